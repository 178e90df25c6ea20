//! E08: the client's helpers against the running service.

use http::StatusCode;
use onceward::client::{Client, ClientError, ClientOptions, ConflictKind};
use onceward::core::outcome_policy::KeyAdvice;
use onceward::core::retry::CLIENT_BACKOFF;
use serde_json::{Value, json};

use super::world::{ORGANISATION_A, Service, hold, link};

const AUTHORIZATION: (&str, &str) = ("authorization", "Bearer demo-a");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e08_keys_are_made_or_given_and_conflicts_have_a_type() {
    let service = Service::start("e08_keys");
    let client = Client::new().unwrap();
    let url = format!("http://{}/payments/link", service.listen);
    let call = |body: &Value| client.post(&url).header(AUTHORIZATION.0, AUTHORIZATION.1).json(body);
    // Each call has a key of its own, so two calls are two links.
    let made = call(&link(5)).send().await.unwrap();
    let other = call(&link(5)).send().await.unwrap();
    assert_eq!((made.status, made.attempts), (StatusCode::CREATED, 1));
    assert!(made.key.is_some() && made.key != other.key && !other.is_replay());
    // A key that is given makes them one.
    let given = async |amount| call(&link(amount)).with_idempotency_key("order-7").send().await;
    let first = given(5).await.unwrap();
    let again = given(5).await.unwrap();
    assert!(again.is_replay() && again.body == first.body);
    let Err(ClientError::Conflict(conflict)) = given(6).await else { panic!("a conflict") };
    assert_eq!(conflict.kind, ConflictKind::PayloadMismatch);
    assert_eq!((conflict.status.as_u16(), &*conflict.code), (409, "IDEMPOTENCY_CONFLICT"));
    assert_eq!(conflict.key.as_deref(), Some("order-7"));
    assert_eq!(conflict.key_advice, KeyAdvice::Rotate);
    assert_eq!(conflict.diff, ["amount: 5 → 6"]);
    // Without one, the service derives it.
    let derived = async || call(&link(9)).without_idempotency_key().send().await.unwrap();
    let (first, again) = (derived().await, derived().await);
    assert!(again.is_replay() && again.body == first.body);
    // A refusal of the service itself is an answer.
    let refused = call(&link(0)).send().await.unwrap();
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let refused: Value = refused.json().unwrap();
    assert_eq!(refused["error"]["code"], "VALIDATION_FAILED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e08_a_client_retries_through_a_kill_and_books_once() {
    let mut service = Service::start("e08_retry");
    let mut backoff = CLIENT_BACKOFF;
    backoff.attempts = 60;
    let options = ClientOptions { backoff, ..ClientOptions::default() };
    let client = Client::with_options(options).unwrap();
    let url = format!("http://{}/bookings/hold", service.listen);
    let listen = service.listen.to_string();
    service.kill();
    let body = hold("+1", 10);
    let sent = tokio::spawn(async move {
        let call = client.post(&url).header(AUTHORIZATION.0, AUTHORIZATION.1);
        call.json(&body).with_idempotency_key("through").send().await
    });
    // It finds nobody, and goes on trying with its key until somebody is there.
    let arguments = ["demo", "business", "--no-traffic"];
    let place = (&*listen, service.store_url());
    let back = Service::spawn_at("business", service.folder.clone(), &arguments, place, &[]);
    let answer = sent.await.unwrap().unwrap();
    assert_eq!((answer.status, answer.key.as_deref()), (StatusCode::CREATED, Some("through")));
    let holds = back.entries(ORGANISATION_A, "hold.create").await;
    assert_eq!(holds.len(), 1, "{holds:?}");
    assert_eq!(answer.json::<Value>().unwrap()["status"], json!("held"));
}
