//! The gate in front of the ontology service: rate limit (A15) over commands and reads together.

#![expect(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use futures_util::future::join_all;
use http::{Request, Response};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use onceward::engine::Engine;
use onceward::events::Place;
use onceward::store::memory::MemoryStore;
use onceward_reference::ontology::{Ontology, Options};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn send(router: &Router, token: &str, command: Option<&Value>) -> Response<Body> {
    let (method, uri) = match command {
        Some(_) => ("POST", "/v1/commands"),
        None => ("GET", "/v1/instances/none"),
    };
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header("authorization", format!("Bearer {token}"))
        .body(Body::from(command.map(Value::to_string).unwrap_or_default()));
    router.clone().oneshot(request.unwrap()).await.unwrap()
}

#[tokio::test]
async fn a15_a_caller_who_asks_too_often_gets_429_and_nothing_is_appended() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let ontology = Ontology::open(engine, objects.into(), Options::default()).await.unwrap();
    let router = ontology.router();
    let mut asked = 0;
    let refused = loop {
        let answer = send(&router, "demo-a", None).await;
        if answer.status() == 429 {
            break answer;
        }
        asked += 1;
        assert!(asked < 200_000, "a read is refused at last");
    };
    assert!(asked >= 2_000, "the burst passes, not only {asked}");
    assert!(refused.headers().contains_key("retry-after"));
    // Commands share the allowance; these are so many that it does not grow for all meanwhile.
    let commands = (0..200).map(|n| {
        let id = format!("e{n}");
        json!({ "event_id": id, "aggregate_id": id, "kind": "create", "payload": {} })
    });
    let commands: Vec<_> = commands.collect();
    let sent = commands.iter().map(|command| send(&router, "demo-a", Some(command)));
    let answers = join_all(sent).await;
    let appended = answers.iter().filter(|answer| answer.status() == 201).count();
    let answer = answers.into_iter().find(|answer| answer.status() == 429).unwrap();
    assert!(answer.headers().contains_key("retry-after"));
    let body = to_bytes(answer.into_body(), 65_536).await.unwrap();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("rate.limited"), &json!(true)));
    let events = ontology.events().read_after(Place::default(), 1_000).await.unwrap();
    assert_eq!(events.len(), appended, "what is refused is not appended");
    // Another caller has an allowance of its own.
    assert_eq!(send(&router, "demo-a2", None).await.status(), 404);
}
