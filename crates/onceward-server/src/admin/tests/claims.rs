//! Claims and permits over HTTP.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{ACME, Server};

fn claim(id: &str) -> Value {
    json!({
        "tenant": "acme", "scope": "POST /pay", "id": id, "payload": {"amount": 5, "to": "ada"},
        "lease_ms": 60_000, "owner": "w1",
    })
}

fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

async fn verdict(server: &Server, body: Value) -> Value {
    server.post("/v1/claims", body).await.ok()
}

async fn complete(server: &Server, granted: &Value, outcome: Value) -> super::Reply {
    let body = json!({"permit": granted["permit"], "outcome": outcome});
    server.post("/v1/permits/complete", body).await
}

#[tokio::test]
async fn a_claim_runs_once_and_is_replayed() {
    let server = Server::start("claims").await;
    let granted = verdict(&server, claim("k1")).await;
    assert_eq!((&granted["verdict"], &granted["attempt"]), (&"run".into(), &1.into()));
    assert!(granted["fence"].as_u64().unwrap() > 0 && granted["permit"].is_string());
    assert!(granted["lease_until"].as_str().unwrap().ends_with('Z'), "{granted}");
    let busy = verdict(&server, claim("k1")).await;
    assert_eq!(busy["verdict"], "busy");
    assert!(busy["retry_after_ms"].as_u64().unwrap() > 50_000, "{busy}");
    let other = json!({"amount": 6, "to": "ada"});
    let mismatch = verdict(&server, with(claim("k1"), "payload", other)).await;
    assert_eq!(
        (&mismatch["verdict"], &mismatch["differs"]),
        (&"mismatch".into(), &json!(["/amount"]))
    );
    let outcome = json!({"id": "pay_1", "z": [1, {"a": null}]});
    assert_eq!(complete(&server, &granted, outcome.clone()).await.ok()["state"], "done");
    // The answer may have been lost: again is fine, another outcome is not.
    complete(&server, &granted, outcome.clone()).await.ok();
    let problem = complete(&server, &granted, json!("another")).await.problem(409);
    assert_eq!(problem["code"], "permit.lost");
    let replay = verdict(&server, claim("k1")).await;
    assert_eq!((&replay["verdict"], &replay["outcome"]), (&"replay".into(), &outcome));
    assert!(replay.get("permit").is_none() && replay.get("current").is_none(), "{replay}");
    server.stop().await;
}

#[tokio::test]
async fn an_outcome_is_replayed_as_it_was_written() {
    let server = Server::start("raw-outcome").await;
    let granted = verdict(&server, claim("k")).await;
    let permit = granted["permit"].as_str().unwrap();
    // A number that no double can hold, in spelling and order of its own.
    let raw = r#"{ "z":123456789012345678901234567890, "a":1.50 }"#;
    let body = format!(r#"{{"permit":"{permit}","outcome":{raw}}}"#);
    server.call(Some(ACME), Method::POST, "/v1/permits/complete", body).await.ok();
    let reply = server.post("/v1/claims", claim("k")).await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    assert!(text.contains(raw), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn fingerprints_stand_in_for_payloads() {
    let server = Server::start("fingerprints").await;
    let by_hash = |hash: &str| {
        let mut body = with(claim("k"), "fingerprint", hash.into());
        body.as_object_mut().unwrap().remove("payload");
        body
    };
    assert_eq!(verdict(&server, by_hash("a")).await["verdict"], "run");
    assert_eq!(verdict(&server, by_hash("a")).await["verdict"], "busy");
    for other in [by_hash("b"), claim("k")] {
        let mismatch = verdict(&server, other).await;
        assert_eq!(mismatch["verdict"], "mismatch");
        assert!(mismatch.get("differs").is_none(), "{mismatch}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_attempt_gets_the_same_permit() {
    let server = Server::start("attempt-id").await;
    let body = with(claim("k"), "attempt_id", "try-1".into());
    let (one, two) = (verdict(&server, body.clone()).await, verdict(&server, body).await);
    assert_eq!((&one["verdict"], &two["verdict"]), (&"run".into(), &"run".into()));
    assert_eq!((&one["permit"], &one["fence"]), (&two["permit"], &two["fence"]));
    let other = verdict(&server, with(claim("k"), "attempt_id", "try-2".into())).await;
    assert_eq!(other["verdict"], "busy");
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_claim_gets_the_outcome() {
    let server = Server::start("waiting").await;
    let granted = verdict(&server, claim("k")).await;
    let waits = verdict(&server, with(claim("k"), "wait_ms", 30_000.into()));
    let ends = async {
        while server.engine.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        complete(&server, &granted, json!("out")).await.ok()
    };
    let (replay, _) = tokio::join!(waits, ends);
    assert_eq!((&replay["verdict"], &replay["outcome"]), (&"replay".into(), &"out".into()));
    server.stop().await;
}

#[tokio::test]
async fn guards_are_checked_at_the_claim_and_at_the_completion() {
    let server = Server::start("guards").await;
    let guarded = |id: &str, rule: Value| with(claim(id), "guard", rule);
    let exactly = |n: u64| json!({"subject": "cart/1", "exactly": n});
    let (one, two) = (
        verdict(&server, guarded("a", exactly(0))).await,
        verdict(&server, guarded("b", exactly(0))).await,
    );
    assert_eq!((&one["verdict"], &two["verdict"]), (&"run".into(), &"run".into()));
    complete(&server, &one, json!(1)).await.ok();
    let loser = complete(&server, &two, json!(2)).await.problem(409);
    assert_eq!((&loser["code"], &loser["current"]), (&"guard.failed".into(), &1.into()));
    // Its key is released: it is as if it had never been claimed.
    let again = verdict(&server, guarded("b", exactly(1))).await;
    assert_eq!((&again["verdict"], &again["attempt"]), (&"run".into(), &1.into()));
    for (rule, expected) in [
        (exactly(7), "version_conflict"),
        (json!({"subject": "cart/1", "above": 1}), "stale"),
        (json!({"subject": "cart/1", "next": 1}), "stale"),
        (json!({"subject": "cart/1", "next": 3}), "gap"),
        (json!({"subject": "cart/1", "above": 0}), "stale"),
        (json!({"subject": "cart/1", "next": 0}), "stale"),
    ] {
        let refused = verdict(&server, guarded("c", rule)).await;
        assert_eq!((&refused["verdict"], &refused["current"]), (&expected.into(), &1.into()));
    }
    // A subject starts at 0, so nothing is below it.
    for rule in ["above", "next"] {
        let refused = verdict(&server, guarded("d", json!({"subject": "new", rule: 0}))).await;
        assert_eq!((&refused["verdict"], &refused["current"]), (&"stale".into(), &0.into()));
    }
    let at = |ms: u64| json!({"subject": "clock", "not_before": ms, "grace_ms": 10});
    let first = verdict(&server, guarded("t1", at(1_000))).await;
    complete(&server, &first, json!(null)).await.ok();
    assert_eq!(verdict(&server, guarded("t2", at(990))).await["verdict"], "run");
    let late = verdict(&server, guarded("t3", at(989))).await;
    assert_eq!((&late["verdict"], &late["current"]), (&"out_of_order".into(), &1_000.into()));
    let marks = server.get("/v1/marks?tenant=acme").await.ok();
    let cart = marks["items"].as_array().unwrap().iter().find(|mark| mark["subject"] == "cart/1");
    assert_eq!(cart.unwrap()["position"], 1);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_answers_each_claim_in_order() {
    let server = Server::start("batch").await;
    let done = verdict(&server, claim("done")).await;
    complete(&server, &done, json!(7)).await.ok();
    let claims = [claim("a"), claim("a"), claim("done"), claim("b")];
    let answer = server.post("/v1/claims/batch", json!({"claims": claims})).await.ok();
    let verdicts = answer["verdicts"].as_array().unwrap();
    let words: Vec<&str> = verdicts.iter().map(|v| v["verdict"].as_str().unwrap()).collect();
    assert_eq!(words, ["run", "busy", "replay", "run"]);
    let bad = json!({"claims": [claim("a"), {"tenant": "acme"}]});
    let problem = server.post("/v1/claims/batch", bad).await.problem(400);
    let pointers: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["pointer"].as_str().unwrap())
        .collect();
    for field in ["scope", "id", "lease_ms", "owner"] {
        assert!(pointers.contains(&format!("/claims/1/{field}").as_str()), "{pointers:?}");
    }
    let many: Vec<Value> = (0..1_001).map(|n| claim(&n.to_string())).collect();
    server.post("/v1/claims/batch", json!({"claims": many})).await.problem(400);
    let most: Vec<Value> = (0..1_000).map(|n| claim(&format!("m{n}"))).collect();
    let answer = server.post("/v1/claims/batch", json!({"claims": most})).await.ok();
    assert_eq!(answer["verdicts"].as_array().unwrap().len(), 1_000);
    server.stop().await;
}

#[tokio::test]
async fn e07_what_claims_of_a_batch_came_to_is_counted() {
    let server = Server::start("batch_counts").await;
    let granted = verdict(&server, claim("done")).await;
    complete(&server, &granted, json!(7)).await.ok();
    let other = with(claim("done"), "payload", json!({"amount": 6}));
    let claims = json!({"claims": [claim("done"), claim("done"), other]});
    server.post("/v1/claims/batch", claims).await.ok();
    let counted = async |what: &str| {
        let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
        let name = format!("onceward_{what}_total{{endpoint=\"POST /v1/claims/batch\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok())
    };
    assert_eq!((counted("replays").await, counted("conflicts").await), (Some(2), Some(1)));
    let granted = verdict(&server, claim("gone")).await;
    let body = json!({"permit": granted["permit"], "outcome": 1, "retain_ms": 1});
    server.post("/v1/permits/complete", body).await.ok();
    // A replay as long as its millisecond lasts.
    loop {
        let claims = json!({"claims": [claim("gone")]});
        let answer = server.post("/v1/claims/batch", claims).await.ok();
        if answer["verdicts"][0]["was_expired"] == true {
            break;
        }
    }
    assert_eq!(counted("expired").await, Some(1));
    server.stop().await;
}

#[tokio::test]
async fn permits_are_renewed_failed_and_released() {
    let server = Server::start("permits").await;
    let granted = verdict(&server, claim("k")).await;
    let permit = &granted["permit"];
    let renewed = server
        .post("/v1/permits/renew", json!({"permit": permit, "lease_ms": 86_400_000}))
        .await
        .ok();
    assert!(renewed["lease_until"].as_str().unwrap() > granted["lease_until"].as_str().unwrap());
    let failed = json!({"permit": permit, "error": "boom", "retry": true});
    assert_eq!(server.post("/v1/permits/fail", failed.clone()).await.ok()["state"], "failed");
    assert_eq!(server.post("/v1/permits/fail", failed).await.problem(409)["code"], "permit.lost");
    let second = verdict(&server, claim("k")).await;
    assert_eq!((&second["verdict"], &second["attempt"]), (&"run".into(), &2.into()));
    assert!(second["fence"].as_u64() > granted["fence"].as_u64());
    let old = complete(&server, &granted, json!(1)).await.problem(409);
    assert_eq!(old["code"], "permit.lost");
    let poison = json!({"permit": second["permit"], "error": "no use", "retry": false});
    assert_eq!(server.post("/v1/permits/fail", poison).await.ok()["state"], "dead");
    let dead = verdict(&server, claim("k")).await;
    assert_eq!((&dead["verdict"], &dead["error"]), (&"dead".into(), &"no use".into()));
    let other = verdict(&server, claim("other")).await;
    server.post("/v1/permits/release", json!({"permit": other["permit"]})).await.ok();
    let fresh = verdict(&server, with(claim("other"), "payload", json!("something else"))).await;
    assert_eq!((&fresh["verdict"], &fresh["attempt"]), (&"run".into(), &1.into()));
    server.stop().await;
}

#[tokio::test]
async fn a23_a_lapsed_permit_that_was_regranted_is_lost() {
    let server = Server::start("lapsed").await;
    let short = verdict(&server, with(claim("k"), "lease_ms", 100.into())).await;
    let next = verdict(&server, with(claim("k"), "wait_ms", 30_000.into())).await;
    assert_eq!((&next["verdict"], &next["attempt"]), (&"run".into(), &2.into()));
    assert_eq!(complete(&server, &short, json!(1)).await.problem(409)["code"], "permit.lost");
    complete(&server, &next, json!(2)).await.ok();
    let held = with(with(claim("h"), "lease_ms", 100.into()), "on_abandoned", "hold".into());
    verdict(&server, held.clone()).await;
    let unknown = verdict(&server, with(held, "wait_ms", 30_000.into())).await;
    assert_eq!(unknown["verdict"], "unknown");
    server.stop().await;
}

#[tokio::test]
async fn every_bad_field_of_a_claim_is_named() {
    let server = Server::start("bad-claims").await;
    let errors = async |body: Value| {
        let problem = server.post("/v1/claims", body).await.problem(400);
        assert_eq!(problem["code"], "request.invalid");
        let errors = problem["errors"].as_array().unwrap().clone();
        errors.into_iter().map(|e| e["pointer"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let required = ["/payload", "/tenant", "/scope", "/id", "/lease_ms", "/owner"];
    assert_eq!(errors(json!({})).await, required);
    let mut bad = claim("");
    bad["lease_ms"] = 99.into();
    bad["guard"] = json!({"subject": "s", "above": 1, "next": 2});
    bad["on_abandoned"] = "maybe".into();
    bad["wait"] = 1.into();
    assert_eq!(errors(bad).await, ["/id", "/lease_ms", "/guard", "/on_abandoned", "/wait"]);
    let both = with(claim("k"), "fingerprint", "x".into());
    assert_eq!(errors(both).await, ["/fingerprint"]);
    let rules = with(claim("k"), "guard", json!({"subject": "s", "above": 1, "next": 2}));
    assert_eq!(errors(rules).await, ["/guard"]);
    let none = with(claim("k"), "guard", json!({"subject": "s", "next": -1}));
    assert_eq!(errors(none).await, ["/guard/next"]);
    let long = with(claim(&"x".repeat(513)), "lease_ms", 86_400_001.into());
    assert_eq!(errors(long).await, ["/id", "/lease_ms"]);
    let twice = r#"{"payload":{"a":1,"a":2},"tenant":"acme","scope":"s","id":"i",
        "lease_ms":100,"owner":"w"}"#;
    let reply = server.call(Some(ACME), Method::POST, "/v1/claims", twice).await;
    assert_eq!(reply.problem(400)["errors"][0]["pointer"], "/payload");
    let reply = server.call(Some(ACME), Method::POST, "/v1/claims", "{").await;
    assert_eq!(reply.problem(400)["errors"][0]["pointer"], "");
    for permit in ["", "nonsense", "AAAA"] {
        let problem = server.post("/v1/permits/release", json!({"permit": permit})).await;
        assert_eq!(problem.problem(400)["errors"][0]["pointer"], "/permit");
    }
    let both = json!({"permit": "nonsense", "error": 1, "retry": false, "run_at": 5});
    let problem = server.post("/v1/permits/fail", both).await.problem(400);
    assert_eq!(problem["errors"].as_array().unwrap().len(), 3, "{problem}");
    server.stop().await;
}

#[tokio::test]
async fn a_draining_server_grants_nothing_and_ends_waits() {
    let server = Server::start("draining").await;
    let granted = verdict(&server, claim("k")).await;
    let waits = server.post("/v1/claims", with(claim("k"), "wait_ms", 300_000.into()));
    let drains = async {
        while server.engine.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        server.health.drain();
    };
    let (waited, ()) = tokio::join!(waits, drains);
    assert_eq!(waited.problem(503)["code"], "server.draining");
    assert!(waited.headers.contains_key("retry-after"));
    let refused = server.post("/v1/claims", claim("new")).await;
    assert_eq!(refused.problem(503)["code"], "server.draining");
    // What runs may still finish.
    complete(&server, &granted, json!("late but fine")).await.ok();
    tokio::time::timeout(Duration::from_secs(30), server.stop()).await.unwrap();
}

#[tokio::test]
async fn a_dead_claim_that_was_passed_runs_by_force_and_without_its_guard() {
    let server = Server::start("forced").await;
    let guarded = |id: &str, position: u64| {
        with(claim(id), "guard", json!({"subject": "cart/1", "above": position}))
    };
    let first = verdict(&server, guarded("first", 1)).await;
    let failed = json!({"permit": first["permit"], "error": "poison", "retry": false});
    server.post("/v1/permits/fail", failed).await.ok();
    let second = verdict(&server, guarded("second", 2)).await;
    complete(&server, &second, json!(2)).await.ok();
    let retry = format!("/v1/dead/{}/retry", first["ref"].as_str().unwrap());
    let stale = server.post(&retry, json!({})).await.problem(409);
    assert_eq!((&stale["code"], &stale["current"]), (&"record.stale".into(), &2.into()));
    server.post(&retry, json!({"force": true})).await.ok();
    assert_eq!(verdict(&server, guarded("first", 1)).await["verdict"], "stale");
    let again = verdict(&server, claim("first")).await;
    assert_eq!(again["verdict"], "run", "{again}");
    complete(&server, &again, json!(1)).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_is_too_long_when_it_is_escaped_is_refused() {
    let server = Server::start("long-key").await;
    let sign = "%".repeat(512);
    let long = with(with(claim(&sign), "tenant", json!(sign)), "scope", json!(sign));
    let problem = server.post("/v1/claims", long).await.problem(400);
    assert_eq!(problem["errors"][0]["pointer"], "/id");
    let message = problem["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("2560 bytes, escaped"), "{message}");
    server.stop().await;
}

/// A consumer's role is a lease in the store's own tenant: whoever took it would stop the consumer.
#[tokio::test]
async fn the_stores_own_leases_can_not_be_claimed() {
    let server = Server::start("own-leases").await;
    let own = with(with(claim("k"), "tenant", json!("onceward")), "scope", json!("onceward.relay"));
    let problem = server.post("/v1/claims", own.clone()).await.problem(400);
    assert_eq!(problem["errors"][0]["pointer"], "/scope", "{problem}");
    let batch = json!({"claims": [claim("k"), own]});
    let problem = server.post("/v1/claims/batch", batch).await.problem(400);
    assert_eq!(problem["errors"][0]["pointer"], "/claims/1/scope", "{problem}");
    // Either of the two alone is nobody's but the caller's.
    for (member, value) in [("tenant", "onceward"), ("scope", "onceward.relay")] {
        let fine = verdict(&server, with(claim(member), member, json!(value))).await;
        assert_eq!(fine["verdict"], "run");
    }
    server.stop().await;
}
