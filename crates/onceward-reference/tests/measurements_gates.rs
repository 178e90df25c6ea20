//! The gate in front of the measurements service: each request takes one of the caller's allowance.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::Request;
use onceward::engine::Engine;
use onceward::store::memory::MemoryStore;
use onceward_reference::measurements::{Measurements, Options};
use tower::ServiceExt;

/// How many requests may come at once; one more a second.
const BURST: u32 = 8;

/// How many of a burst pass, and a few more.
async fn passed(router: &Router, path: &str, key: Option<&str>) -> u32 {
    let mut passed = 0;
    for _ in 0..BURST + 4 {
        let mut request = Request::post(path)
            .header("authorization", "Bearer demo-a")
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("x-idempotency-key", key);
        }
        let request = request.body(Body::from(r#"{"measurements":[]}"#)).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        passed += u32::from(answer.status() != 429);
    }
    passed
}

#[tokio::test]
async fn a15_a_request_is_counted_once_with_a_key_and_without() {
    for (path, key) in [
        ("/v1/measurements/batch", None),
        ("/v1/measurements/batch", Some("k")),
        ("/v1/measurements/batch", Some("no key")),
        ("/v1/users/ada/measurements", None),
        ("/v1/users/ada/measurements", Some("k")),
        ("/v1/users/ada/measurements", Some("no key")),
    ] {
        let engine = Engine::new(Arc::new(MemoryStore::new()));
        let options = Options { rate: Some((1, BURST)), ..Options::default() };
        let router = Measurements::open(engine, options).unwrap().router();
        let passed = passed(&router, path, key).await;
        assert!(passed >= BURST, "{path} {key:?}: {passed} of {BURST}");
    }
}
