//! What time does to measurements: keys of ids go after their days, and the document guards on.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use onceward::core::stamp::At;
use onceward::engine::Engine;
use onceward::store::memory::MemoryStore;
use onceward::store::{Items, List};
use onceward_reference::measurements::{Measurements, Options};
use serde_json::{Value, json};
use tower::ServiceExt;

const DAY_MS: u64 = 86_400_000;
/// 2025-09-15T12:00:00Z.
const START: At = At(1_757_937_600_000);

async fn send(router: &Router, key: &str, weight: u32) -> (StatusCode, bool, Value) {
    let body = json!({
        "measurement_id": "m1", "weight": weight, "unit": "kg",
        "timestamp": "2025-09-15T12:00:00Z", "source": "scale",
    });
    let request = Request::post("/v1/users/ada/measurements")
        .header("authorization", "Bearer demo-a")
        .header("content-type", "application/json")
        .header("x-idempotency-key", key)
        .body(Body::from(body.to_string()));
    let response = router.clone().oneshot(request.unwrap()).await.unwrap();
    let replayed = response.headers().contains_key("idempotency-replayed");
    let status = response.status();
    let body = to_bytes(response.into_body(), 65_536).await.unwrap();
    (status, replayed, serde_json::from_slice(&body).unwrap())
}

/// Keys of measurement ids that the store still has.
async fn ids(engine: &Engine) -> usize {
    let all = List::Records { tenant: None, scope: Some("measurements".into()), state: None };
    let Items::Records(records) = engine.list(all, None, 100).await.unwrap().items else {
        panic!("records")
    };
    records.len()
}

#[tokio::test]
async fn d05_d12_ttl_expiration_ends_the_key_and_the_document_still_guards_its_id() {
    let (store, clock) = MemoryStore::manual(START);
    let engine = Engine::new(Arc::new(store));
    // Anew each time: what a process has in its own cache it judges by its own clock.
    let service = || Measurements::open(engine.clone(), Options::default()).unwrap().router();
    let (status, _, first) = send(&service(), "k", 80).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(ids(&engine).await, 1);
    // D06: the request's answer is kept for a day.
    clock.advance(DAY_MS - 1_000);
    assert_eq!(send(&service(), "k", 80).await, (StatusCode::CREATED, true, first.clone()));
    clock.advance(1_000);
    assert_eq!(send(&service(), "k", 80).await, (StatusCode::OK, false, first.clone()));
    // D05: the key of the id for seven.
    clock.advance(6 * DAY_MS - 1);
    engine.sweep(|_| {}).await.unwrap();
    assert_eq!(ids(&engine).await, 1);
    clock.advance(1);
    engine.sweep(|_| {}).await.unwrap();
    assert_eq!(ids(&engine).await, 0, "it is gone");
    assert_eq!(send(&service(), "later", 80).await, (StatusCode::OK, false, first.clone()));
    let (status, _, refused) = send(&service(), "other", 81).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(refused["original_result"], first);
}
