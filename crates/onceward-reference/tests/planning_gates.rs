//! The gates in front of the planning service: rate limit (A15) over writes and reads together.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, Response};
use onceward::engine::Engine;
use onceward::store::memory::MemoryStore;
use onceward::store::{Items, List};
use onceward_reference::planning::{Options, Planning};
use serde_json::Value;
use tower::ServiceExt;

async fn send(router: &Router, method: &str, key: &str) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri("/v1/projects")
        .header("authorization", "Bearer demo-a")
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(r#"{"name":"Bridge"}"#));
    router.clone().oneshot(request.unwrap()).await.unwrap()
}

#[tokio::test]
async fn a15_a_caller_who_asks_too_often_gets_429_which_leaves_no_record() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let planning = Planning::open(engine.clone(), Options::default()).await.unwrap();
    let router = planning.router();
    let mut refused = None;
    for asked in 0..200_000 {
        let answer = send(&router, "GET", "none").await;
        if answer.status() == 429 {
            assert!(asked >= 2_000, "the burst passes, not only {asked}");
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status(), 200);
    }
    let refused = refused.expect("a read is refused at last");
    assert!(refused.headers().contains_key("retry-after"));
    let mut written = None;
    for n in 0..10_000 {
        let key = format!("write-{n}");
        let answer = send(&router, "POST", &key).await;
        if answer.status() == 429 {
            written = Some((key, answer));
            break;
        }
    }
    let (key, answer) = written.expect("reads and writes share the allowance");
    assert!(answer.headers().contains_key("retry-after"));
    let body = to_bytes(answer.into_body(), 65_536).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["code"], "rate.limited");
    let all = List::Records { tenant: None, scope: None, state: None };
    let records = engine.list(all, None, 1_000).await.unwrap();
    let Items::Records(records) = records.items else { panic!("records") };
    assert!(records.iter().all(|record| record.key.id() != key), "nothing is recorded of it");
    // Another caller has an allowance of its own.
    let request = Request::get("/v1/projects").header("authorization", "Bearer demo-a2");
    let other = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(other.status(), 200);
}
