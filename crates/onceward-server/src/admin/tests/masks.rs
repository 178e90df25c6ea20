//! What people see of stored values: masked members are hidden, at whatever depth; programs that
//! work on them get them whole.

use http::Method;
use serde_json::{Value, json};

use super::{ACME, OPERATOR, Server};

/// What nobody may read who is only looking.
const SECRETS: [&str; 3] = ["4242424242424242", "hunter2", "s3cr3t"];

fn secrets() -> Value {
    json!({
        "amount": 5, "card_number": SECRETS[0],
        "customer": [{"Password": SECRETS[1], "name": "ada"}], "token": {"deep": [SECRETS[2]]},
    })
}

async fn claim(server: &Server, id: &str) -> Value {
    let body = json!({
        "tenant": "acme", "scope": "POST /pay", "id": id, "payload": secrets(),
        "lease_ms": 60_000, "owner": "w",
    });
    server.post("/v1/claims", body).await.ok()
}

/// Everything that lists or shows, as text.
async fn seen(server: &Server, references: &[&Value]) -> String {
    let mut paths: Vec<String> =
        references.iter().map(|at| format!("/v1/records/{}", at.as_str().unwrap())).collect();
    paths.extend(
        ["/v1/records", "/v1/dead", "/v1/marks", "/v1/audit", "/metrics"].map(String::from),
    );
    paths.extend(["csv", "ndjson"].map(|format| format!("/v1/audit?format={format}")));
    let mut text = String::new();
    for path in &paths {
        let reply = server.get(path).await;
        assert!(reply.status.is_success(), "{path}: {}", reply.status);
        text += std::str::from_utf8(&reply.body).unwrap();
    }
    text
}

#[tokio::test]
async fn m5_no_masked_value_is_shown_and_programs_get_them_whole() {
    let server = Server::start("masks").await;
    let granted = claim(&server, "k").await;
    let outcome = json!({"permit": granted["permit"], "outcome": secrets()});
    server.post("/v1/permits/complete", outcome).await.ok();
    let job = json!({"tenant": "acme", "queue": "mail", "type": "t", "payload": secrets()});
    server.post("/v1/jobs", job).await.ok();
    let take = json!({"queue": "mail", "max": 1, "lease_ms": 60_000, "owner": "w"});
    let taken = server.post("/v1/jobs/take", take).await.ok()["jobs"][0].clone();
    assert_eq!(taken["payload"], secrets(), "its worker needs them");
    let failed = json!({"permit": taken["permit"], "error": "no", "retry": false});
    server.post("/v1/permits/fail", failed).await.ok();
    assert_eq!(claim(&server, "k").await["outcome"], secrets(), "a replay is what was given");

    let text = seen(&server, &[&granted["ref"], &taken["ref"]]).await;
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let shown = server.get(&format!("/v1/records/{}", taken["ref"].as_str().unwrap())).await.ok();
    let body: Value =
        serde_json::from_str(shown["payload"]["body"]["text"].as_str().unwrap()).unwrap();
    let expected = json!({
        "amount": 5, "card_number": "***", "customer": [{"Password": "***", "name": "ada"}],
        "token": "***",
    });
    assert_eq!(body, expected);
    server.stop().await;
}

#[tokio::test]
async fn m5_what_is_listed_is_known_by_reference_and_by_the_audits_hash() {
    let server = Server::start("references").await;
    let granted = claim(&server, "k").await;
    let listed = server.get("/v1/records").await.ok()["items"][0].clone();
    assert_eq!(listed["ref"], granted["ref"]);
    let key_hash = listed["key_hash"].as_str().unwrap();
    assert!(key_hash.len() == 16 && key_hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let path = format!("/v1/records/{}", granted["ref"].as_str().unwrap());
    assert_eq!(server.get(&path).await.ok()["key_hash"], key_hash);
    // Erasing by the reference: not while it runs, and not another tenant's.
    let erase = |token| server.call(Some(token), Method::DELETE, &path, "");
    assert_eq!(erase(OPERATOR).await.problem(409)["code"], "record.not_now");
    let body = json!({"permit": granted["permit"], "outcome": 1});
    server.post("/v1/permits/complete", body).await.ok();
    let erased = erase(ACME).await.ok();
    assert_eq!((&erased["ref"], &erased["resolved"]), (&granted["ref"], &"erased".into()));
    assert_eq!(erase(OPERATOR).await.problem(404)["code"], "record.absent");
    let audit = server.get(&format!("/v1/audit?key={key_hash}")).await.ok();
    assert_eq!(audit["items"][0]["key_hash"], key_hash, "{audit}");
    assert!(audit.to_string().contains("erase"), "it is audited: {audit}");
    let other = json!({
        "tenant": "globex", "scope": "s", "id": "k", "payload": 1, "lease_ms": 60_000, "owner": "w",
    });
    let other = server.post("/v1/claims", other).await.ok();
    let path = format!("/v1/records/{}", other["ref"].as_str().unwrap());
    server.call(Some(ACME), Method::DELETE, &path, "").await.problem(403);
    server.stop().await;
}
