//! The client against a real server behind the tower layer, over real connections: some of them
//! break, lose an answer or give half of one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use onceward::client::{
    BUDGET_RESERVE, Client, ClientError, ClientOptions, ConflictKind, KeyStore,
};
use onceward::core::outcome_policy::KeyAdvice;
use onceward::core::retry::Backoff;
use onceward::engine::Engine;
use onceward::http::{
    Caller, Commits, Door, Identity, OncewardLayer, Policy, Preconditions, Refusal, Route, Routes,
    Versioned, Writes,
};
use onceward::store::memory::MemoryStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

/// What the service has seen and what it is to say.
#[derive(Default)]
struct Service {
    ran: AtomicU64,
    keys: Mutex<Vec<Option<String>>>,
    /// Statuses and `Retry-After` to answer with before all is well.
    says: Mutex<VecDeque<(u16, Option<&'static str>)>>,
    started: Notify,
    go_on: Option<Semaphore>,
}

async fn pay(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_string());
    service.keys.lock().unwrap().push(key);
    let ran = service.ran.fetch_add(1, Ordering::SeqCst) + 1;
    service.started.notify_one();
    if let Some(gate) = &service.go_on {
        gate.acquire().await.unwrap().forget();
    }
    let says = service.says.lock().unwrap().pop_front();
    match says {
        Some((status, Some(after))) => {
            (StatusCode::from_u16(status).unwrap(), [("retry-after", after)]).into_response()
        }
        Some((status, None)) => StatusCode::from_u16(status).unwrap().into_response(),
        None => (StatusCode::CREATED, axum::Json(json!({ "payment": ran }))).into_response(),
    }
}

async fn put_note(
    mut writes: Writes,
    preconditions: Preconditions,
    body: String,
) -> Result<Response, Refusal> {
    let seen = writes.read("notes", "1").await?;
    preconditions.check_write(seen.tag().as_ref())?;
    let version = writes.put(&seen, body.into_bytes())?;
    Ok(writes.answer(Versioned::new(version, "written")))
}

/// How a connection behaves.
#[derive(Debug, Clone, Copy)]
enum Wire {
    /// Closed before anything is read.
    Close,
    /// The request arrives, its answer does not.
    LoseAnswer,
    /// The request arrives, and half of its answer comes back.
    Half,
}

struct Place {
    service: Arc<Service>,
    url: String,
    wires: Arc<Mutex<VecDeque<Wire>>>,
}

async fn place_of(service: Service, wait_ms: u64) -> Place {
    let service = Arc::new(service);
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let identity = Identity::Single(Caller { tenant: "acme".into(), caller: "ada".into() });
    let two = Policy { wait_ms, ..Policy::default() };
    let one = Policy { commits: Commits::One, ..Policy::default() };
    let routes =
        vec![Route::new("POST /payments", two).unwrap(), Route::new("PUT /note", one).unwrap()];
    let door = Door::new(engine, identity, Routes::written(routes));
    let router = Router::new()
        .route("/payments", post(pay))
        .route("/open", post(pay).get(pay))
        .route("/note", put(put_note))
        .with_state(service.clone())
        .layer(OncewardLayer::new(door));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let behind = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let wires: Arc<Mutex<VecDeque<Wire>>> = Arc::default();
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", front.local_addr().unwrap());
    let queue = wires.clone();
    tokio::spawn(async move {
        loop {
            let (connection, _) = front.accept().await.unwrap();
            let wire = queue.lock().unwrap().pop_front();
            tokio::spawn(carry(connection, behind, wire));
        }
    });
    Place { service, url, wires }
}

async fn place() -> Place {
    place_of(Service::default(), 2_000).await
}

/// Carries one connection, as well as it is meant to.
async fn carry(mut client: TcpStream, behind: SocketAddr, wire: Option<Wire>) {
    if matches!(wire, Some(Wire::Close)) {
        return;
    }
    let mut server = TcpStream::connect(behind).await.unwrap();
    let Some(wire) = wire else {
        // Either side may go away; that is what they test.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        return;
    };
    let mut bytes = [0; 65_536];
    let answered = loop {
        let (read_half, mut write_half) = client.split();
        let mut read_half = read_half;
        tokio::select! {
            read = read_half.read(&mut bytes) => {
                let read = read.unwrap();
                server.write_all(&bytes[..read]).await.unwrap();
            }
            () = async { server.readable().await.unwrap() } => {
                let mut answer = vec![0; 65_536];
                let Ok(read) = server.try_read(&mut answer) else { continue };
                if matches!(wire, Wire::Half) {
                    write_half.write_all(&answer[..read / 2]).await.unwrap();
                }
                break read;
            }
        }
    };
    assert!(answered > 0);
}

/// Tries that follow each other at once.
fn quick() -> ClientOptions {
    let backoff = Backoff { first_ms: 1, max_ms: 5, factor: 2, jitter_percent: 100, attempts: 5 };
    ClientOptions { backoff, ..ClientOptions::default() }
}

fn client() -> Client {
    Client::with_options(quick()).unwrap()
}

impl Place {
    fn break_next(&self, wires: &[Wire]) {
        self.wires.lock().unwrap().extend(wires);
    }

    fn says(&self, says: &[(u16, Option<&'static str>)]) {
        self.service.says.lock().unwrap().extend(says);
    }

    fn ran(&self) -> u64 {
        self.service.ran.load(Ordering::SeqCst)
    }

    fn payments(&self) -> String {
        format!("{}/payments", self.url)
    }
}

#[tokio::test]
async fn e08_a_lost_answer_is_asked_for_again_with_the_same_key_and_runs_once() {
    for wire in [Wire::LoseAnswer, Wire::Half] {
        let place = place().await;
        place.break_next(&[wire]);
        let answer = client().post(place.payments()).json(&json!({ "a": 1 })).send().await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.attempts), (201, 2), "{wire:?}");
        assert!(answer.is_replay());
        assert_eq!(answer.json::<Value>().unwrap(), json!({ "payment": 1 }));
        assert_eq!(place.ran(), 1);
        assert_eq!(place.service.keys.lock().unwrap().first(), Some(&answer.key));
        assert_eq!(answer.key.unwrap().len(), 36, "made by itself");
    }
}

#[tokio::test]
async fn a14_closed_connections_502_503_and_504_are_retried_up_to_five_tries() {
    let place = place().await;
    place.break_next(&[Wire::Close]);
    place.says(&[(502, None), (503, None), (504, None)]);
    let sent = client().post(place.payments()).with_idempotency_key("mine").send();
    let answer = sent.await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (201, 5));
    let keys = place.service.keys.lock().unwrap().clone();
    assert_eq!(keys, vec![Some("mine".to_string()); 4]);
    place.says(&[(503, None); 9]);
    let answer = client().post(place.payments()).send().await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (503, 5));
}

#[tokio::test]
async fn a14_other_errors_are_final_and_500_is_retried_only_when_asked_for() {
    let place = place().await;
    for status in [400, 401, 404, 408, 409, 500] {
        place.says(&[(status, None)]);
        let answer = client().post(place.payments()).send().await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.attempts), (status, 1));
    }
    place.says(&[(500, None)]);
    let retry_on = vec![StatusCode::INTERNAL_SERVER_ERROR];
    let more = Client::with_options(ClientOptions { retry_on, ..quick() }).unwrap();
    let answer = more.post(place.payments()).send().await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (201, 2));
}

#[tokio::test]
async fn a14_a_429_is_retried_after_the_window_that_it_names_and_only_then() {
    let place = place().await;
    place.says(&[(429, None)]);
    let answer = client().post(place.payments()).send().await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (429, 1));
    place.says(&[(429, Some("1"))]);
    let before = Instant::now();
    let answer = client().post(place.payments()).send().await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (201, 2));
    assert!(before.elapsed() >= Duration::from_secs(1));
    // A window that ends after our time is over is not waited for.
    place.says(&[(429, Some("3600"))]);
    let answer = client().post(place.payments()).send().await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts), (429, 1));
}

#[tokio::test]
async fn a14_in_flight_is_waited_for_and_the_first_answer_comes() {
    let service = Service { go_on: Some(Semaphore::new(0)), ..Service::default() };
    let place = place_of(service, 0).await;
    let send = || {
        let call = client().post(place.payments()).with_idempotency_key("k");
        tokio::spawn(call.send())
    };
    let first = send();
    place.service.started.notified().await;
    let second = send();
    // sleeps because the second call has no one to tell that it was refused and waits
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished());
    place.service.go_on.as_ref().unwrap().add_permits(1);
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    assert_eq!((first.status.as_u16(), first.is_replay()), (201, false));
    assert_eq!((second.body, second.attempts), (first.body, 2));
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn a14_a_try_that_takes_too_long_is_followed_by_another() {
    let service = Service { go_on: Some(Semaphore::new(0)), ..Service::default() };
    let place = place_of(service, 30_000).await;
    let options = ClientOptions { try_timeout: Duration::from_millis(200), ..quick() };
    let call = Client::with_options(options).unwrap().post(place.payments());
    let call = tokio::spawn(call.send());
    place.service.started.notified().await;
    // sleeps because the first try has to take longer than it may
    tokio::time::sleep(Duration::from_millis(250)).await;
    place.service.go_on.as_ref().unwrap().add_permits(1);
    let answer = call.await.unwrap().unwrap();
    assert!(answer.attempts >= 2 && answer.is_replay());
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn the_total_time_is_a_bound_over_all_tries() {
    let service = Service { go_on: Some(Semaphore::new(0)), ..Service::default() };
    let place = place_of(service, 30_000).await;
    let options = ClientOptions {
        try_timeout: Duration::from_millis(100),
        total_timeout: Duration::from_millis(250),
        ..quick()
    };
    let before = Instant::now();
    let call = Client::with_options(options).unwrap().post(place.payments());
    let error = call.with_idempotency_key("k").send().await.unwrap_err();
    let ClientError::NoAnswer { attempts, key, nothing_sent, .. } = error else { panic!() };
    assert!((2..=3).contains(&attempts), "{attempts}");
    assert_eq!((key.as_deref(), nothing_sent), (Some("k"), false));
    assert!(before.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn e08_conflicts_are_typed_and_advise_which_key_to_use() {
    let place = place().await;
    let call =
        |body: Value| client().post(place.payments()).with_idempotency_key("k").json(&body).send();
    call(json!({ "amount": 5 })).await.unwrap();
    let error = call(json!({ "amount": 6 })).await.unwrap_err();
    let conflict = error.conflict().unwrap();
    assert_eq!(conflict.kind, ConflictKind::PayloadMismatch);
    assert_eq!(conflict.key_advice, KeyAdvice::Rotate);
    assert_eq!(conflict.differs, ["/amount"]);
    assert_eq!(conflict.key.as_deref(), Some("k"));
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn b02_a_lost_race_over_a_version_is_a_typed_conflict_with_what_is_there() {
    let place = place().await;
    let url = format!("{}/note", place.url);
    let first = client().put(&url).body("a").send().await.unwrap();
    assert_eq!(first.etag(), Some("\"1\""));
    let second = client().put(&url).if_match("\"1\"").body("b").send().await.unwrap();
    assert_eq!((second.etag(), second.key_advice()), (Some("\"2\""), KeyAdvice::Reuse));
    let error = client().put(&url).if_match("\"1\"").body("c").send().await.unwrap_err();
    let conflict = error.conflict().unwrap();
    assert_eq!(conflict.kind, ConflictKind::PreconditionFailed);
    assert_eq!((conflict.current.as_deref(), conflict.key_advice), (Some("2"), KeyAdvice::Rotate));
}

#[tokio::test]
async fn a_restarted_process_resumes_with_the_same_key() {
    let place = place().await;
    let path = keys_path();
    let once = ClientOptions { backoff: Backoff { attempts: 1, ..quick().backoff }, ..quick() };
    place.break_next(&[Wire::LoseAnswer]);
    let keys = Arc::new(KeyStore::open(&path).unwrap());
    let call = Client::with_options(once).unwrap().post(place.payments());
    let error = call.with_stored_key(&keys, "order-17").send().await.unwrap_err();
    let ClientError::NoAnswer { key: Some(first_key), .. } = error else { panic!("{error:?}") };
    // The process ends here, and another one starts.
    drop(keys);
    let keys = Arc::new(KeyStore::open(&path).unwrap());
    assert_eq!(keys.names(), ["order-17"]);
    let call = client().post(place.payments()).with_stored_key(&keys, "order-17");
    let answer = call.send().await.unwrap();
    assert_eq!((answer.key.as_deref(), answer.is_replay()), (Some(first_key.as_str()), true));
    assert_eq!(place.ran(), 1);
    keys.forget("order-17").unwrap();
    let next = client().post(place.payments()).with_stored_key(&keys, "order-17").send();
    assert_ne!(next.await.unwrap().key, Some(first_key));
}

fn keys_path() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("onceward-client-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("keys")
}

#[tokio::test]
async fn retries_are_at_most_a_tenth_of_the_requests_beyond_the_reserve() {
    let place = place().await;
    place.says(&vec![(503, None); 10_000]);
    let client = client();
    let calls = 100;
    for _ in 0..calls {
        let answer = client.post(place.payments()).send().await.unwrap();
        assert_eq!(answer.status.as_u16(), 503);
    }
    let extra = place.ran() - calls;
    let most = u64::from(BUDGET_RESERVE) + calls / 10;
    assert!(extra <= most && extra >= most - 1, "{extra} extra requests");
}

#[tokio::test]
async fn without_a_key_a_write_is_retried_only_when_it_was_not_sent() {
    let place = place().await;
    let open = format!("{}/open", place.url);
    place.says(&[(503, None)]);
    let answer = client().post(&open).without_idempotency_key().send().await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.attempts, answer.key), (503, 1, None));
    place.break_next(&[Wire::LoseAnswer]);
    let fresh = client().post(&open).without_idempotency_key();
    let error = fresh.send().await.unwrap_err();
    assert!(matches!(error, ClientError::NoAnswer { attempts: 1, nothing_sent: false, .. }));
    // Nobody listens there: nothing was sent, so all tries are made.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = client().post(format!("http://{free}/")).without_idempotency_key().send().await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, ClientError::NoAnswer { attempts: 5, nothing_sent: true, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_read_is_retried_without_a_key() {
    let place = place().await;
    place.says(&[(503, None)]);
    let answer = client().get(format!("{}/open", place.url)).send().await.unwrap();
    assert_eq!((answer.attempts, answer.key), (2, None));
    assert_eq!(*place.service.keys.lock().unwrap(), [None, None]);
}

#[tokio::test]
async fn what_can_not_be_sent_is_refused_before_anything_is() {
    let place = place().await;
    for call in [
        client().post(place.payments()).with_idempotency_key("two words"),
        client().post(place.payments()).with_idempotency_key(""),
        client().post(place.payments()).header("x-token", "line\nbreak"),
        client().post("no url"),
    ] {
        let error = call.send().await.unwrap_err();
        assert!(matches!(error, ClientError::Request(_)), "{error:?}");
        assert!(!error.to_string().contains("break"), "a value is not repeated: {error}");
    }
    assert_eq!(place.ran(), 0);
}
