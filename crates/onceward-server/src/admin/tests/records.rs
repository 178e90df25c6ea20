//! Records, dead letters and the audit over HTTP.

use http::Method;
use serde_json::{Value, json};

use super::{ACME, OPERATOR, Server};

async fn claimed(server: &Server, tenant: &str, id: &str) -> Value {
    let body = json!({
        "tenant": tenant, "scope": "POST /pay", "id": id, "payload": 1, "lease_ms": 60_000,
        "owner": "w",
    });
    server.post("/v1/claims", body).await.ok()
}

async fn done(server: &Server, tenant: &str, id: &str) -> Value {
    let granted = claimed(server, tenant, id).await;
    let body = json!({"permit": granted["permit"], "outcome": {"id": id}});
    server.post("/v1/permits/complete", body).await.ok();
    granted
}

async fn dead(server: &Server, id: &str) -> Value {
    let granted = claimed(server, "acme", id).await;
    let body = json!({"permit": granted["permit"], "error": "poison", "retry": false});
    server.post("/v1/permits/fail", body).await.ok();
    granted
}

async fn ids(server: &Server, path: &str) -> Vec<String> {
    let page = server.get(path).await.ok();
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test]
async fn records_are_paged_and_filtered() {
    let server = Server::start("records").await;
    for id in ["a", "b", "c"] {
        done(&server, "acme", id).await;
    }
    claimed(&server, "globex", "g").await;
    assert_eq!(ids(&server, "/v1/records").await, ["a", "b", "c", "g"]);
    assert_eq!(ids(&server, "/v1/records?tenant=acme&state=done").await, ["a", "b", "c"]);
    assert_eq!(ids(&server, "/v1/records?state=running").await, ["g"]);
    assert!(ids(&server, "/v1/records?scope=POST%20%2Fother").await.is_empty());
    let first = server.get("/v1/records?limit=2").await.ok();
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    // A cursor goes into a query as it is; one that a command printed is good too.
    let cursor = first["next"].as_str().unwrap();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    assert!(cursor.chars().all(fits), "{cursor}");
    let printed = form(first["items"][1]["key"].as_str().unwrap());
    for after in [cursor, &printed] {
        let second = server.get(&format!("/v1/records?limit=2&after={after}")).await.ok();
        assert_eq!(second["items"][0]["id"], "c");
    }
    let second = server.get(&format!("/v1/records?limit=2&after={cursor}")).await.ok();
    assert_eq!(second["next"], Value::Null);
    let bad = server.get("/v1/records?limit=0&sate=done&after=x%01").await.problem(400);
    let pointers: Vec<&str> =
        bad["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["/limit", "/sate"]);
    assert!(bad["errors"][1]["message"].as_str().unwrap().contains("state"), "{bad}");
    let cursor = server.get("/v1/records?after=nonsense").await.problem(400);
    assert_eq!(cursor["errors"][0]["pointer"], "/after");
    server.stop().await;
}

/// Percent-encodes everything but letters and digits.
fn form(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// After a crash an operator looks for what needs a hand: nobody has come by to write it down yet.
#[tokio::test]
async fn a_held_record_whose_owner_has_vanished_is_found_as_unknown() {
    let server = Server::start("vanished").await;
    claimed(&server, "acme", "live").await;
    for (id, policy) in [("held", "hold"), ("free", "rerun")] {
        let body = json!({
            "tenant": "acme", "scope": "POST /pay", "id": id, "payload": 1, "lease_ms": 100,
            "owner": "w", "on_abandoned": policy,
        });
        server.post("/v1/claims", body).await.ok();
    }
    while ids(&server, "/v1/records?state=unknown").await.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(ids(&server, "/v1/records?state=unknown").await, ["held"]);
    assert_eq!(ids(&server, "/v1/records?state=running").await, ["free", "live"]);
    let page = server.get("/v1/records?state=unknown").await.ok();
    assert_eq!(
        (&page["items"][0]["state"], &page["items"][0]["lapsed"]),
        (&json!("unknown"), &json!(true))
    );
    server.stop().await;
}

#[tokio::test]
async fn a_record_is_shown_resolved_and_erased() {
    let server = Server::start("resolve").await;
    let granted = done(&server, "acme", "k").await;
    let path = format!("/v1/records/{}", granted["ref"].as_str().unwrap());
    let shown = server.get(&path).await.ok();
    assert_eq!((&shown["state"], &shown["id"]), (&"done".into(), &"k".into()));
    assert_eq!(shown["outcome"]["text"], r#"{"id":"k"}"#);
    let by_key = format!("/v1/records/{}", form(shown["key"].as_str().unwrap()));
    assert_eq!(server.get(&by_key).await.ok()["ref"], granted["ref"]);
    let resolve = format!("{path}/resolve");
    let refused = server.post(&resolve, json!({"as": "rerun"})).await.problem(409);
    assert_eq!(refused["code"], "record.not_now");
    let erased = server.call(Some(OPERATOR), Method::DELETE, &path, "").await.ok();
    assert_eq!(erased["resolved"], "erased");
    assert_eq!(server.get(&path).await.problem(404)["code"], "record.absent");
    let poison = dead(&server, "p").await;
    let resolve = format!("/v1/records/{}/resolve", poison["ref"].as_str().unwrap());
    let bad = server.post(&resolve, json!({"as": "dead", "outcome": 1, "force": true})).await;
    assert_eq!(bad.problem(400)["errors"].as_array().unwrap().len(), 2);
    server.post(&resolve, json!({"as": "done", "outcome": {"by": "hand"}})).await.ok();
    let replay = claimed(&server, "acme", "p").await;
    assert_eq!(
        (&replay["verdict"], &replay["outcome"]),
        (&"replay".into(), &json!({"by": "hand"}))
    );
    server.get("/v1/records/nonsense").await.problem(400);
    server.stop().await;
}

#[tokio::test]
async fn a22_dead_letters_are_retried_and_discarded() {
    let server = Server::start("dead").await;
    let (one, two) = (dead(&server, "one").await, dead(&server, "two").await);
    let live = done(&server, "acme", "live").await;
    assert_eq!(ids(&server, "/v1/dead?tenant=acme").await, ["one", "two"]);
    let letter = server.get("/v1/dead?tenant=acme&limit=1").await.ok()["items"][0].clone();
    for fact in ["error", "fingerprint", "tenant", "request_id"] {
        assert!(letter[fact].is_string(), "{fact} of {letter}");
    }
    assert!(letter.get("correlation_id").is_some(), "{letter}");
    let path =
        |record: &Value, what: &str| format!("/v1/dead/{}/{what}", record["ref"].as_str().unwrap());
    let call = async |path: &str| server.call(Some(ACME), Method::POST, path, "").await;
    assert_eq!(call(&path(&one, "retry")).await.ok()["resolved"], "rerun");
    assert_eq!(claimed(&server, "acme", "one").await["verdict"], "run");
    assert_eq!(call(&path(&two, "discard")).await.ok()["resolved"], "discarded");
    assert!(ids(&server, "/v1/dead").await.is_empty());
    for what in ["retry", "discard"] {
        assert_eq!(call(&path(&live, what)).await.problem(409)["code"], "record.not_now");
        assert_eq!(call(&path(&two, what)).await.problem(404)["code"], "record.absent");
    }
    let audit = server.get("/v1/audit?action=request.discarded").await.ok();
    assert_eq!(audit["items"][0]["actor"], "acme");
    server.stop().await;
}

#[tokio::test]
async fn the_audit_is_searched_and_exported() {
    let server = Server::start("audit").await;
    let mut key = Value::Null;
    for n in 0..25 {
        key = done(&server, "acme", &format!("k{n}")).await["ref"].clone();
    }
    done(&server, "globex", "g").await;
    let count = async |query: &str| {
        let page = server.get(&format!("/v1/audit?{query}")).await.ok();
        page["items"].as_array().unwrap().len()
    };
    assert_eq!(count("action=request.done").await, 26);
    assert_eq!(count("action=request.done&tenant=globex").await, 1);
    assert_eq!(count(&format!("key={}", key.as_str().unwrap())).await, 1);
    // As a log line has it.
    let page = server.get("/v1/audit?tenant=globex").await.ok();
    let hash = page["items"][0]["key_hash"].as_str().unwrap();
    assert_eq!(count(&format!("key={hash}")).await, 1);
    assert_eq!(server.get("/v1/audit?key=nonsense").await.problem(400)["code"], "request.invalid");
    assert_eq!(count("to=1h").await, 0);
    assert_eq!(count("from=1h&to=9999-12-31T23:59:59Z").await, 26);
    assert_eq!(count("from=1h&limit=3").await, 3);
    let lines = server.get("/v1/audit?format=ndjson&tenant=acme").await;
    assert_eq!(lines.headers["content-type"], "application/x-ndjson");
    let text = String::from_utf8(lines.body.to_vec()).unwrap();
    assert_eq!(text.lines().count(), 25);
    for line in text.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["tenant"], "acme");
    }
    let sheet = server.get("/v1/audit?format=csv").await;
    let text = String::from_utf8(sheet.body.to_vec()).unwrap();
    assert!(text.starts_with("id,at,tenant,action,subject,"), "{text}");
    assert_eq!(text.lines().count(), 27);
    server.get("/v1/audit?format=xml&from=yesterday").await.problem(400);
    // Milliseconds since 1970; no year, and no seconds.
    assert_eq!(count("from=0&to=253402300799000").await, 26);
    for bad in ["from=2027", "to=20270101", "from=1794700800"] {
        server.get(&format!("/v1/audit?{bad}")).await.problem(400);
    }
    let verified = server.get("/v1/audit/verify").await.ok();
    let must_be = json!({
        "ok": true, "tenants": 2, "sealed": 0, "unsealed": 26, "dropped": 0, "first_bad": null,
        "bad": [],
    });
    assert_eq!(verified, must_be);
    let own = server.call(Some(ACME), Method::GET, "/v1/audit/verify", "").await.ok();
    assert_eq!((&own["tenants"], &own["unsealed"]), (&1.into(), &25.into()));
    let theirs = "/v1/audit/verify?tenant=globex";
    server.call(Some(ACME), Method::GET, theirs, "").await.problem(403);
    server.stop().await;
}

#[tokio::test]
async fn a_sweep_is_the_operators() {
    let server = Server::start("sweep").await;
    let granted = claimed(&server, "acme", "k").await;
    let body = json!({"permit": granted["permit"], "outcome": 1, "retain_ms": 1});
    server.post("/v1/permits/complete", body).await.ok();
    while claimed(&server, "acme", "other").await["verdict"] == "run" {}
    server.call(Some(ACME), Method::POST, "/v1/sweep", "").await.problem(403);
    let swept = server.post("/v1/sweep", json!(null)).await.ok();
    assert_eq!(swept["expired"], 1, "{swept}");
    server.stop().await;
}

#[tokio::test]
async fn a01_a_tenant_sees_nothing_of_another() {
    let server = Server::start("isolation").await;
    let theirs = done(&server, "globex", "g").await;
    done(&server, "acme", "a").await;
    let reference = theirs["ref"].as_str().unwrap();
    let call = async |method: Method, path: &str| server.call(Some(ACME), method, path, "").await;
    let usage = call(Method::GET, "/v1/reports/usage").await.ok();
    let expected = [("acme", 1)].map(|(tenant, total)| (json!(tenant), json!(total)));
    let rows = usage["items"].as_array().unwrap().iter();
    let rows = rows.map(|row| (row["tenant_id"].clone(), row["total_keys"].clone()));
    assert_eq!(rows.collect::<Vec<_>>(), expected, "E07");
    let reports = ["/v1/reports/usage", "/v1/reports/conflicts", "/v1/reports/retention"];
    for path in ["/v1/records", "/v1/dead", "/v1/marks", "/v1/audit"].into_iter().chain(reports) {
        call(Method::GET, &format!("{path}?tenant=globex")).await.problem(403);
        let page = call(Method::GET, path).await.ok().to_string();
        assert!(!page.contains("globex"), "{path}: {page}");
    }
    // The same answer whether it is there or not.
    let absent = super::opaque::reference(
        &onceward_core::key::Key::parse("globex:request:none:none").unwrap(),
    );
    for reference in [reference, &absent] {
        let path = format!("/v1/records/{reference}");
        call(Method::GET, &path).await.problem(403);
        call(Method::DELETE, &path).await.problem(403);
    }
    for key in [reference, &absent, "globex:request:none:none"] {
        call(Method::GET, &format!("/v1/audit?key={key}")).await.problem(403);
    }
    // A hash does not tell whose key it is.
    let hash = server.get("/v1/audit?tenant=globex").await.ok()["items"][0]["key_hash"].clone();
    let page = call(Method::GET, &format!("/v1/audit?key={}", hash.as_str().unwrap())).await.ok();
    assert_eq!(page["items"], json!([]));
    // The store's own documents are in a tenant that anyone may have the name of.
    let marks = server.get("/v1/marks?tenant=onceward").await.ok();
    assert_eq!(marks["items"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn the_operator_sees_every_tenants_marks_and_a_tenant_its_own() {
    let server = Server::start("marks").await;
    // One that has marks and no record left is listed too.
    let mut refs = Vec::new();
    for (tenant, subject) in [("globex", "a"), ("acme", "b"), ("acme", "a"), ("Ünï:x", "a")] {
        let claim = json!({
            "tenant": tenant, "scope": "s", "id": subject, "payload": 1, "lease_ms": 30_000,
            "owner": "w", "guard": {"subject": subject, "above": 3},
        });
        let granted = server.post("/v1/claims", claim).await.ok();
        let complete = json!({"permit": granted["permit"], "outcome": 1});
        server.post("/v1/permits/complete", complete).await.ok();
        refs.push(granted["ref"].as_str().unwrap().to_string());
    }
    server.call(Some(OPERATOR), Method::DELETE, &format!("/v1/records/{}", refs[0]), "").await.ok();
    let walk = async |token: &str, query: &str| {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/marks?limit=1{query}{after}");
            let page = server.call(Some(token), Method::GET, &path, "").await.ok();
            for mark in page["items"].as_array().unwrap() {
                assert_eq!((&mark["space"], &mark["position"]), (&json!("subjects"), &json!(3)));
                let text = |name: &str| mark[name].as_str().unwrap().to_string();
                found.push((text("tenant"), text("subject")));
            }
            let Some(next) = page["next"].as_str() else { return found };
            after = format!("&after={next}");
        }
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(tenant, subject)| ((*tenant).into(), (*subject).into())).collect()
    };
    let all = [("acme", "a"), ("acme", "b"), ("globex", "a"), ("Ünï:x", "a")];
    assert_eq!(walk(OPERATOR, "").await, pairs(&all));
    assert_eq!(walk(OPERATOR, "&subject=a").await, pairs(&[all[0], all[2], all[3]]));
    assert_eq!(walk(OPERATOR, "&tenant=globex").await, pairs(&[all[2]]));
    assert_eq!(walk(ACME, "").await, pairs(&all[..2]));
    // Each list has cursors of its own.
    let page = server.get("/v1/marks?limit=1&tenant=acme").await.ok();
    let path = format!("/v1/marks?after={}", page["next"].as_str().unwrap());
    server.get(&path).await.problem(400);
    server.stop().await;
}
