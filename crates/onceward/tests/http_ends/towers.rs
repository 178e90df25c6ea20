//! Layers of others between us and the handler, which make an answer of its failure: the key is
//! held, or its next attempt has a higher fence. Before, each retry charged as the first attempt.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use onceward::engine::Engine;
use onceward::http::{Attempt, Caller, Door, Identity, OncewardLayer, Policy, Routes};
use onceward::store::memory::MemoryStore;
use onceward_core::record::OnAbandoned;
use std::sync::{Arc, Mutex};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::TimeoutLayer;

use super::shop::send;

/// The attempts that charged.
type Charged = Arc<Mutex<Vec<Attempt>>>;

fn protected(router: Router, on_abandoned: OnAbandoned) -> Router {
    let caller = Caller { tenant: "acme".into(), caller: "ada".into() };
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let policy = Policy { on_abandoned, ..Policy::default() };
    let routes = Routes::every(policy).unwrap();
    let door = Door::new(engine, Identity::Single(caller), routes);
    router.layer(OncewardLayer::new(door))
}

/// Three tries with one key: what each got, and the attempts that charged.
async fn three(router: &Router, charged: &Charged) -> (Vec<(u16, String)>, Vec<Attempt>) {
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = send(router, "k", "{}".into()).await;
        answers.push((answer.status, answer.code()));
    }
    (answers, charged.lock().unwrap().clone())
}

async fn charges_once_or_rises(make: impl Fn(Charged) -> Router, status: u16) {
    let charged = Charged::default();
    let router = protected(make(charged.clone()), OnAbandoned::Hold);
    let (answers, charges) = three(&router, &charged).await;
    let held = || (409, "idempotency.outcome_unknown".to_string());
    assert_eq!(answers, [(status, String::new()), held(), held()]);
    assert_eq!(charges.len(), 1);

    let charged = Charged::default();
    let router = protected(make(charged.clone()), OnAbandoned::Rerun);
    let (answers, charges) = three(&router, &charged).await;
    assert!(answers.iter().all(|answer| answer.0 == status), "{answers:?}");
    let attempts: Vec<_> = charges.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert!(charges.is_sorted_by(|a, b| a.fence < b.fence), "{charges:?}");
}

#[tokio::test]
async fn h5_a_panic_under_catch_panic_layer_is_an_unknown_end() {
    let panics = |charged: Charged| {
        let handler = async move |request: axum::extract::Request| -> StatusCode {
            charged.lock().unwrap().push(*request.extensions().get::<Attempt>().unwrap());
            panic!("charged, and broken off");
        };
        Router::new().route("/charges", post(handler)).layer(CatchPanicLayer::new())
    };
    charges_once_or_rises(panics, 500).await;
}

#[tokio::test]
async fn h5_a_time_out_under_timeout_layer_is_an_unknown_end() {
    for status in [StatusCode::REQUEST_TIMEOUT, StatusCode::GATEWAY_TIMEOUT] {
        let slow = |charged: Charged| {
            let handler = async move |request: axum::extract::Request| -> StatusCode {
                charged.lock().unwrap().push(*request.extensions().get::<Attempt>().unwrap());
                std::future::pending().await
            };
            let layer = TimeoutLayer::with_status_code(status, Duration::from_millis(20));
            Router::new().route("/charges", post(handler)).layer(layer)
        };
        charges_once_or_rises(slow, status.as_u16()).await;
    }
}
