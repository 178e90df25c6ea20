//! The tower layer around a real axum router, on every store: what clients see.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod support;

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use http_body_util::BodyExt;
use onceward::engine::Engine;
use onceward::http::{
    AsSent, Attempt, Dialect, Door, Identity, IfMatch, MissingKey, Mode, OncewardLayer, Policy,
    Route, Routes, Unmatched, UnprotectedKey,
};
use onceward::testing::harness::START;
use onceward_core::payload::KeepPayload;
use onceward_core::record::OnAbandoned;
use onceward_core::stamp::At;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt};

use support::on::{On, Opened};

/// The service under protection: counts what reaches it.
#[derive(Default)]
struct Upstream {
    ran: AtomicU64,
    started: Notify,
    go_on: Notify,
}

struct Place {
    router: Router,
    upstream: Arc<Upstream>,
    engine: Engine,
    opened: Opened,
}

async fn pay(
    State(upstream): State<Arc<Upstream>>,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let ran = upstream.ran.fetch_add(1, Ordering::SeqCst) + 1;
    let fence = headers.get("onceward-fence").map(|value| value.to_str().unwrap().to_string());
    let answer = json!({ "payment": ran, "bytes": body.len(), "fence": fence.is_some() });
    (
        StatusCode::CREATED,
        [
            ("content-type", "application/json"),
            ("location", "/payments/1"),
            ("set-cookie", "session=1"),
            ("x-correlation-id", "corr-1"),
            ("x-ratelimit-remaining", "9"),
            ("onceward-forged", "yes"),
        ],
        answer.to_string(),
    )
}

async fn slow(State(upstream): State<Arc<Upstream>>) -> String {
    let ran = upstream.ran.fetch_add(1, Ordering::SeqCst) + 1;
    upstream.started.notify_one();
    upstream.go_on.notified().await;
    format!("slow {ran}")
}

async fn status(State(upstream): State<Arc<Upstream>>, Path(code): Path<u16>) -> impl IntoResponse {
    let ran = upstream.ran.fetch_add(1, Ordering::SeqCst) + 1;
    (StatusCode::from_u16(code).unwrap(), format!("run {ran}"))
}

async fn large(State(upstream): State<Arc<Upstream>>) -> Vec<u8> {
    upstream.ran.fetch_add(1, Ordering::SeqCst);
    vec![7; 5_000]
}

async fn panics(State(upstream): State<Arc<Upstream>>) -> String {
    upstream.ran.fetch_add(1, Ordering::SeqCst);
    panic!("the handler breaks off");
}

async fn attempt(request: Request<Body>) -> String {
    let attempt = request.extensions().get::<Attempt>().copied();
    format!("{}", attempt.map_or(0, |attempt| attempt.attempt))
}

/// The seed's example begins here.
const BEGUN: At = At(1_707_993_000_000);

async fn place_with(on: On, routes: Routes) -> Place {
    let opened = on.open().await;
    opened.advance(BEGUN.since(START)).await;
    let engine = Engine::new(opened.store.clone());
    let identity = Identity::Authorization { secret: [7; 32], strict: false };
    let door = on.cached(Door::new(engine.clone(), identity, routes).with_secret([9; 32]));
    let upstream = Arc::new(Upstream::default());
    let router = Router::new()
        .route("/payments", post(pay).get(|| async { "list" }))
        .route("/things/{id}", put(pay))
        .route("/slow", post(slow))
        .route("/status/{code}", post(status))
        .route("/large", post(large))
        .route("/panics", post(panics))
        .route("/attempt", post(attempt))
        .route("/open", get(|| async { "open" }))
        .with_state(upstream.clone())
        .layer(OncewardLayer::new(door));
    Place { router, upstream, engine, opened }
}

async fn place(on: On, policy: Policy) -> Place {
    place_with(on, Routes::every(policy).unwrap()).await
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_string()
    }
}

impl Place {
    async fn send(&self, request: Request<Body>) -> Answer {
        let response: Response<_> = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    async fn post(&self, path: &str, key: Option<&str>, body: &str) -> Answer {
        self.send(request("POST", path, key, body)).await
    }

    fn ran(&self) -> u64 {
        self.upstream.ran.load(Ordering::SeqCst)
    }
}

fn request(method: &str, path: &str, key: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("authorization", "Bearer alice")
        .header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_string())).unwrap()
}

async fn a08_replay_returns_the_original_response_byte_for_byte(on: On) {
    let place = place(on, Policy::default()).await;
    let first = place.post("/payments", Some("k"), r#"{"amount": 5}"#).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.header("idempotency-replayed"), None);
    assert_eq!(first.header("set-cookie"), Some("session=1"), "the first answer is untouched");
    assert_eq!(first.header("onceward-forged"), None, "only we may set our headers");
    let again = place.post("/payments", Some("k"), r#"{ "amount":5.0 }"#).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.header("location"), Some("/payments/1"));
    assert_eq!(again.header("x-correlation-id"), Some("corr-1"));
    assert_eq!(again.header("cache-control"), Some("no-store"));
    for never in ["set-cookie", "x-ratelimit-remaining"] {
        assert_eq!(again.header(never), None, "{never}");
    }
    assert_ne!(again.header("x-request-id"), first.header("x-request-id"));
    assert_eq!(place.ran(), 1);
}

async fn the_quoted_and_the_raw_key_are_one_and_bad_keys_are_refused_before_any_lookup(on: On) {
    let place = place(on, Policy::default()).await;
    place.post("/payments", Some("\"abc\""), "{}").await;
    let raw = place.post("/payments", Some("abc"), "{}").await;
    assert_eq!(raw.header("idempotency-replayed"), Some("true"));
    for bad in ["", "a b", "\"", "é", &"x".repeat(129)] {
        let mut sent = request("POST", "/payments", None, "{}");
        let value = HeaderValue::from_bytes(bad.as_bytes()).unwrap();
        sent.headers_mut().insert("idempotency-key", value);
        let answer = place.send(sent).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "idempotency.key_invalid"),
            "{bad:?}"
        );
    }
    let mut twice = request("POST", "/payments", Some("a"), "{}");
    twice.headers_mut().append("idempotency-key", "b".parse().unwrap());
    assert_eq!(place.send(twice).await.code(), "idempotency.key_invalid");
    let missing = place.post("/payments", None, "{}").await;
    assert_eq!((missing.status, missing.code().as_str()), (400, "idempotency.key_required"));
    assert_eq!(missing.header("content-type"), Some("application/problem+json"));
    assert_eq!(place.ran(), 1);
}

async fn a09_another_payload_is_422_and_names_what_differs(on: On) {
    let place = place(on, Policy::default()).await;
    place.post("/payments", Some("k"), r#"{"amount": 5, "to": {"name": "bob"}}"#).await;
    let other =
        place.post("/payments", Some("k"), r#"{"amount": 777123, "to": {"name": "bob"}}"#).await;
    assert_eq!(other.status, 422);
    let problem = other.json();
    assert_eq!(problem["code"], "idempotency.payload_mismatch");
    assert_eq!(problem["differs"], json!(["/amount"]));
    assert_eq!(problem["key_advice"], "rotate");
    assert_eq!(problem["retryable"], false);
    assert!(!String::from_utf8_lossy(&other.body).contains("777123"), "no values in this dialect");
    assert_eq!(place.ran(), 1);
}

async fn ruling_8_other_methods_paths_queries_callers_and_tenants_are_apart(on: On) {
    let routes = vec![
        Route::new("PUT /things/{id}", Policy::default()).unwrap(),
        Route::new("POST /payments", Policy::default()).unwrap(),
    ];
    let place = place_with(on, Routes::written(routes)).await;
    for path in ["/things/1", "/things/2"] {
        let answer = place.send(request("PUT", path, Some("k"), "{}")).await;
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (201, None), "{path}");
    }
    let answer = place.post("/payments", Some("k"), "{}").await;
    assert_eq!(answer.header("idempotency-replayed"), None);
    // The query belongs to the fingerprint.
    let query = place.post("/payments?x=1", Some("k"), "{}").await;
    assert_eq!(query.status, 422);
    let mut bob = request("POST", "/payments", Some("k"), "{}");
    bob.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
    assert_eq!(place.send(bob).await.header("idempotency-replayed"), None);
    assert_eq!(place.ran(), 4);
    // A path that no route matches passes unprotected, twice if it comes twice.
    for _ in 0..2 {
        assert_eq!(place.post("/status/200", Some("k"), "{}").await.status, 200);
    }
    assert_eq!(place.ran(), 6);
}

async fn a04_reads_pass_and_touch_nothing(on: On) {
    let place = place(on, Policy::default()).await;
    let answer = place.send(request("GET", "/payments", Some("k"), "")).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"list"[..]));
    let what = onceward::store::List::Records { tenant: None, scope: None, state: None };
    let page = place.engine.list(what, None, 10).await.unwrap();
    assert_eq!(page.items, onceward::store::Items::Records(vec![]));
}

async fn no_identity_is_401_and_there_is_no_shared_scope(on: On) {
    let place = place(on, Policy::default()).await;
    let mut anonymous = request("POST", "/payments", Some("k"), "{}");
    anonymous.headers_mut().remove("authorization");
    let answer = place.send(anonymous).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "auth.required"));
    assert_eq!(place.ran(), 0);
}

async fn without_a_key_allow_passes_and_derive_makes_one(on: On) {
    let allow = place(on, Policy::unwritten()).await;
    for _ in 0..2 {
        let mut anonymous = request("POST", "/payments", None, "{}");
        anonymous.headers_mut().remove("authorization");
        assert_eq!(allow.send(anonymous).await.status, 201);
    }
    assert_eq!(allow.ran(), 2);
    let derive = place(on, Policy { missing_key: MissingKey::Derive, ..Policy::default() }).await;
    derive.post("/payments", None, r#"{"a":1,"b":2}"#).await;
    let again = derive.post("/payments", None, r#"{"b":2,"a":1}"#).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(derive.post("/payments", None, r#"{"a":2}"#).await.status, 201);
    assert_eq!(derive.ran(), 2);
    // The same bytes as something else are another request, not a conflict.
    for _ in 0..2 {
        let mut text = request("POST", "/payments", None, r#"{"a":2}"#);
        text.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        assert_eq!(derive.send(text).await.status, 201);
    }
    assert_eq!(derive.ran(), 3);
}

async fn ruling_5_a_duplicate_waits_for_the_first_and_gets_its_answer(on: On) {
    let place = Arc::new(place(on, Policy { wait_ms: 30_000, ..Policy::default() }).await);
    let first = {
        let place = place.clone();
        tokio::spawn(async move { place.post("/slow", Some("k"), "{}").await })
    };
    place.upstream.started.notified().await;
    let mismatch = place.post("/slow", Some("k"), r#"{"other":1}"#).await;
    assert_eq!(mismatch.status, 422, "also while the first runs");
    let duplicates: Vec<_> = (0..50)
        .map(|_| {
            let place = place.clone();
            tokio::spawn(async move { place.post("/slow", Some("k"), "{}").await })
        })
        .collect();
    while place.engine.waiting() < 50 {
        tokio::task::yield_now().await;
    }
    place.upstream.go_on.notify_one();
    let first = first.await.unwrap();
    for duplicate in duplicates {
        let duplicate = duplicate.await.unwrap();
        assert_eq!((duplicate.status, &duplicate.body), (200, &first.body));
        assert_eq!(duplicate.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(place.ran(), 1);
}

async fn ruling_5_when_the_wait_is_over_it_is_409_in_flight(on: On) {
    let place = Arc::new(place(on, Policy { wait_ms: 10, ..Policy::default() }).await);
    let first = {
        let place = place.clone();
        tokio::spawn(async move { place.post("/slow", Some("k"), "{}").await })
    };
    place.upstream.started.notified().await;
    let busy = place.post("/slow", Some("k"), "{}").await;
    assert_eq!((busy.status, busy.code().as_str()), (409, "idempotency.in_flight"));
    assert_eq!(busy.json()["key_advice"], "reuse");
    let seconds: u64 = busy.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds));
    place.upstream.go_on.notify_one();
    assert_eq!(first.await.unwrap().status, 200);
}

async fn ruling_4_final_answers_are_stored_and_others_leave_the_key_free(on: On) {
    let place = place(on, Policy::default()).await;
    for (status, stored) in [
        (200, true),
        (302, true),
        (400, true),
        (409, true),
        (412, true),
        (422, true),
        (401, false),
        (403, false),
        // Nobody wrote that there is something at these paths.
        (404, false),
        (405, false),
        (408, false),
        (425, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let path = format!("/status/{status}");
        let first = place.post(&path, Some("k"), "{}").await;
        let again = place.post(&path, Some("k"), "{}").await;
        assert_eq!((first.status, again.status), (status, status));
        let replayed = again.header("idempotency-replayed").is_some();
        assert_eq!(replayed, stored, "{status}");
        assert_eq!(first.body == again.body, stored, "{status}");
    }
}

async fn a12_successes_are_kept_a_day_and_errors_four_hours(on: On) {
    let place = place(on, Policy::default()).await;
    place.post("/status/201", Some("k"), "{}").await;
    place.post("/status/422", Some("k"), "{}").await;
    let kept = |id: &str| {
        let filter = onceward::store::List::Records { tenant: None, scope: None, state: None };
        let (engine, id) = (place.engine.clone(), id.to_string());
        async move {
            let onceward::store::Items::Records(records) =
                engine.list(filter, None, 100).await.unwrap().items
            else {
                panic!("records")
            };
            let record = records.into_iter().find(|record| record.key.scope().ends_with(&id));
            let record = record.unwrap();
            record.expires_at.unwrap().since(record.updated_at)
        }
    };
    assert_eq!(kept("/status/201").await, 24 * 3_600_000);
    assert_eq!(kept("/status/422").await, 4 * 3_600_000);
}

async fn a_response_over_the_cap_is_served_once_and_never_runs_again(on: On) {
    let place = place(on, Policy { max_stored_bytes: 1_000, ..Policy::default() }).await;
    let first = place.post("/large", Some("k"), "{}").await;
    assert_eq!((first.status, first.body.len()), (200, 5_000));
    assert_eq!(first.header("idempotency-stored"), Some("false"));
    let again = place.post("/large", Some("k"), "{}").await;
    assert_eq!((again.status, again.code().as_str()), (409, "idempotency.response_not_stored"));
    assert_eq!(place.ran(), 1);
}

async fn a_body_over_the_cap_is_413_and_leaves_nothing(on: On) {
    let place = place(on, Policy { max_request_bytes: 10, ..Policy::default() }).await;
    let answer = place.post("/payments", Some("k"), &"x".repeat(11)).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body.too_large"));
    assert_eq!(place.post("/payments", Some("k"), "{}").await.status, 201);
}

async fn a07_bodies_without_a_canonical_form_are_400_and_what_is_not_json_is_left_to_the_handler(
    on: On,
) {
    let place = place(on, Policy::default()).await;
    let deep = "[".repeat(100_000);
    for bad in [r#"{"a":1,"a":2}"#, r#"{"a":1e400}"#, r#""\ud800""#, &deep] {
        let answer = place.post("/payments", Some("k"), bad).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "body.not_canonical"));
    }
    assert_eq!(place.post("/payments", Some("k"), "not json").await.status, 201);
    let again = place.post("/payments", Some("k"), "not json").await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
}

async fn a_handler_that_panics_leaves_a_failed_attempt_and_the_retry_runs(on: On) {
    let place = place(on, Policy::default()).await;
    let first = place.post("/panics", Some("k"), "{}").await;
    assert_eq!((first.status, first.code().as_str()), (502, "upstream.failed"));
    assert_eq!(place.post("/panics", Some("k"), "{}").await.status, 502);
    assert_eq!(place.ran(), 2);
    let hold = Policy { on_abandoned: OnAbandoned::Hold, ..Policy::default() };
    let held = self::place(on, hold).await;
    held.post("/panics", Some("k"), "{}").await;
    let unknown = held.post("/panics", Some("k"), "{}").await;
    assert_eq!((unknown.status, unknown.code().as_str()), (409, "idempotency.outcome_unknown"));
    assert_eq!(held.ran(), 1);
}

async fn a_client_that_goes_away_does_not_tear_the_handler_apart(on: On) {
    let place = Arc::new(place(on, Policy::default()).await);
    let gone = {
        let place = place.clone();
        tokio::spawn(async move { place.post("/slow", Some("k"), "{}").await })
    };
    place.upstream.started.notified().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    place.upstream.go_on.notify_one();
    let retry = place.post("/slow", Some("k"), "{}").await;
    assert_eq!((retry.status, &retry.body[..]), (200, &b"slow 1"[..]));
    assert_eq!(retry.header("idempotency-replayed"), Some("true"));
    assert_eq!(place.ran(), 1);
}

async fn the_handler_sees_its_attempt_and_the_fence_rises(on: On) {
    let place = place(on, Policy::default()).await;
    assert_eq!(&place.post("/attempt", Some("k"), "{}").await.body[..], b"1");
    let paid = place.post("/payments", Some("k"), "{}").await.json();
    assert_eq!(paid["fence"], true, "also as a header, for services in other languages");
}

async fn b06_a_replay_never_bypasses_authorisation(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let allowed = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let identity = Identity::Authorization { secret: [7; 32], strict: false };
    let may = allowed.clone();
    let door = Door::new(engine.clone(), identity, Routes::every(Policy::default()).unwrap())
        .with_authorize(move |_, _| {
            let may = may.load(Ordering::SeqCst);
            Box::pin(async move {
                if may {
                    return Ok(());
                }
                let mut refused = Response::new(Bytes::from_static(b"no"));
                *refused.status_mut() = StatusCode::FORBIDDEN;
                Err(refused)
            })
        });
    let door = on.cached(door);
    let upstream = Arc::new(Upstream::default());
    let router = Router::new()
        .route("/payments", post(pay))
        .with_state(upstream.clone())
        .layer(OncewardLayer::new(door));
    let place = Place { router, upstream, engine, opened };
    assert_eq!(place.post("/payments", Some("k"), "{}").await.status, 201);
    allowed.store(false, Ordering::SeqCst);
    assert_eq!(place.post("/payments", Some("k"), "{}").await.status, 403);
    allowed.store(true, Ordering::SeqCst);
    let again = place.post("/payments", Some("k"), "{}").await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
}

/// What a service behind the layer is told of its address.
async fn address(request: Request<Body>) -> String {
    let as_sent = request.extensions().get().map(|AsSent(uri)| uri.to_string());
    format!("{} {}", request.uri(), as_sent.unwrap_or_default())
}

async fn b06_a_path_reaches_the_service_and_who_permits_in_the_spelling_of_its_key(on: On) {
    let opened = on.open().await;
    let identity = Identity::Authorization { secret: [7; 32], strict: false };
    let off = Policy { mode: Mode::Off, ..Policy::default() };
    let routes = Routes::written(vec![
        Route::new("PUT /things/{id}", Policy::default()).unwrap(),
        Route::new("POST /payments", Policy::default()).unwrap(),
        Route::new("POST /off", off).unwrap(),
    ]);
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let hears = asked.clone();
    let engine = Engine::new(opened.store.clone());
    let door = Door::new(engine, identity, routes).with_authorize(move |head, _| {
        hears.lock().unwrap().push(head.uri.to_string());
        Box::pin(async { Ok(()) })
    });
    let routed = Router::new()
        .route("/payments", post(address))
        .route("/things/{id}", put(|Path(id): Path<String>| async { id }))
        .fallback(address);
    let router = Router::new().fallback_service(OncewardLayer::new(on.cached(door)).layer(routed));
    let send = async |method: &str, path: &str| {
        let sent = request(method, path, Some("k"), "{}");
        let answer = router.clone().oneshot(sent).await.unwrap();
        let replayed = answer.headers().contains_key("idempotency-replayed");
        let (status, body) = (answer.status(), answer.into_body().collect().await.unwrap());
        assert_eq!(status, 200, "{path}");
        (String::from_utf8(body.to_bytes().to_vec()).unwrap(), replayed)
    };
    // The router knows the path in one spelling, and so does the key: no 404 lies under it.
    let first = send("POST", "/%70ayments?%70=1").await;
    assert_eq!(first, ("/payments?%70=1 /%70ayments?%70=1".into(), false));
    assert_eq!(send("POST", "/payments?%70=1").await, (first.0, true));
    // What is reserved stays encoded, and is one value.
    assert_eq!(send("PUT", "/thing%73/%61%2fb").await, ("a/b".into(), false));
    assert_eq!(send("PUT", "/things/a%2Fb").await, ("a/b".into(), true));
    let expected = ["/payments?%70=1", "/payments?%70=1", "/things/a%2Fb", "/things/a%2Fb"];
    assert_eq!(*asked.lock().unwrap(), expected);
    // What is not protected passes as it came.
    assert_eq!(send("POST", "/o%66f").await, ("/o%66f ".into(), false));
    assert_eq!(send("GET", "/%70ayments").await, ("/%70ayments ".into(), false));
}

async fn b02_a_route_may_require_a_precondition(on: On) {
    let policy =
        Policy { if_match: IfMatch::Require, dialect: Dialect::Planning, ..Policy::default() };
    let place = place(on, policy).await;
    let unkeyed = place.post("/payments", None, "{}").await;
    assert_eq!((unkeyed.status, unkeyed.code().as_str()), (400, "idempotency.key_required"));
    for bad in ["*", "W/\"3\""] {
        let mut with = request("POST", "/payments", Some("k"), "{}");
        with.headers_mut().insert("if-match", bad.parse().unwrap());
        let refused = place.send(with).await;
        let code = "planning.concurrency_etag_invalid";
        assert_eq!((refused.status, refused.code().as_str()), (400, code), "{bad}");
    }
    let missing = place.post("/payments", Some("k"), "{}").await;
    let code = "planning.concurrency_etag_required";
    assert_eq!((missing.status, missing.code().as_str()), (428, code));
    let mut with = request("POST", "/payments", Some("k"), "{}");
    with.headers_mut().insert("if-match", "\"3\"".parse().unwrap());
    assert_eq!(place.send(with).await.status, 201);
    // Replay wins over a now-stale If-Match: headers are not part of the fingerprint.
    let mut stale = request("POST", "/payments", Some("k"), "{}");
    stale.headers_mut().insert("if-match", "\"2\"".parse().unwrap());
    assert_eq!(place.send(stale).await.header("idempotency-replayed"), Some("true"));
}

async fn the_planning_dialect_says_mismatch_as_409_with_its_alias(on: On) {
    let place = place(on, Policy { dialect: Dialect::Planning, ..Policy::default() }).await;
    place.post("/payments", Some("k"), r#"{"a":1}"#).await;
    let other = place.post("/payments", Some("k"), r#"{"a":2}"#).await;
    assert_eq!(other.status, 409);
    assert_eq!(other.json()["code"], "idempotency.payload_mismatch");
    assert_eq!(other.json()["alias"], "planning.idempotency_replay_conflict");
}

async fn d06_the_measurements_dialect_echoes_its_key_and_warns_without_one(on: On) {
    let place = place(on, Policy { dialect: Dialect::Measurements, ..Policy::unwritten() }).await;
    let unkeyed = place.post("/payments", None, "{}").await;
    assert!(unkeyed.header("warning").unwrap().starts_with("299"));
    let keyed = |key: &str, body: &str| {
        let mut sent = request("POST", "/payments", None, body);
        sent.headers_mut().insert("x-idempotency-key", key.parse().unwrap());
        sent
    };
    let first = place.send(keyed("m1", "{}")).await;
    assert_eq!(first.header("x-idempotency-key"), Some("m1"));
    let reused = place.send(keyed("m1", r#"{"x":1}"#)).await;
    assert_eq!(
        (reused.status, reused.json()["error"].as_str()),
        (409, Some("IdempotencyKeyReused"))
    );
    assert_eq!(reused.header("x-idempotency-key"), Some("m1"), "refusals name the key too");
    let mut both = keyed("m1", "{}");
    both.headers_mut().insert("idempotency-key", "m2".parse().unwrap());
    let both = place.send(both).await;
    assert_eq!((both.status, both.json()["error"].as_str()), (400, Some("InvalidIdempotencyKey")));
}

async fn d06_a_body_over_the_cap_names_its_key_and_warns_of_nothing(on: On) {
    let dialect = Dialect::Measurements;
    let place = place(on, Policy { dialect, max_request_bytes: 16, ..Policy::unwritten() }).await;
    let body = "x".repeat(17);
    let mut keyed = request("POST", "/payments", None, &body);
    keyed.headers_mut().insert("x-idempotency-key", "m1".parse().unwrap());
    let keyed = place.send(keyed).await;
    assert_eq!((keyed.status, keyed.header("x-idempotency-key")), (413, Some("m1")));
    // What a service refuses unread did not run, whoever says so.
    for status in ["401", "403", "413"] {
        let refused = place.post(&format!("/status/{status}"), None, "{}").await;
        assert_eq!(
            (refused.status.to_string().as_str(), refused.header("warning")),
            (status, None)
        );
    }
    let ran = place.post("/status/422", None, "{}").await;
    assert!(ran.header("warning").unwrap().starts_with("299"));
}

async fn e04_the_business_dialect_explains_a_conflict_and_marks_an_expired_key(on: On) {
    let policy = Policy {
        dialect: Dialect::Business,
        keep_payload: KeepPayload::Full,
        per_caller: false,
        retain_ms: 1_800_000,
        retain_errors_ms: 1_800_000,
        ..Policy::default()
    };
    let place = place(on, policy).await;
    let body =
        r#"{"customer_info":{"phone":"+1-512-555-0100"},"requested_time":"10:00","password":"a"}"#;
    place.post("/payments", Some("k"), body).await;
    let again = place.post("/payments", Some("k"), body).await;
    assert_eq!(again.header("x-idempotency-replay"), Some("true"));
    let other = body.replace("0100", "0200").replace("\"a\"", "\"b\"");
    let conflict = place.post("/payments", Some("k"), &other).await;
    assert_eq!(conflict.status, 409);
    assert_eq!(conflict.header("x-idempotency-conflict"), Some("body-mismatch"));
    let error = &conflict.json()["error"];
    assert_eq!(error["code"], "IDEMPOTENCY_CONFLICT");
    let details = &error["details"];
    assert_eq!(details["original_key"], "k");
    assert_eq!(details["original_timestamp"], "2024-02-15T10:30:00Z");
    assert_eq!(details["retry_after"], 1_800);
    assert_ne!(details["original_hash"], details["current_hash"]);
    assert_eq!(
        details["diff_summary"],
        json!([
            "customer_info.phone: '+1-512-555-0100' → '+1-512-555-0200'",
            "password: '***' → '***'",
        ])
    );
    // The same body asked for otherwise: the hashes are those of the whole requests.
    let query = place.post("/payments?dry_run=1", Some("k"), body).await;
    assert_eq!(
        (query.status, query.header("x-idempotency-conflict")),
        (409, Some("body-mismatch"))
    );
    let asked = &query.json()["error"]["details"];
    for hash in ["original_hash", "current_hash"] {
        let digits = asked[hash].as_str().unwrap();
        assert!(digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{asked}");
    }
    assert_ne!(asked["original_hash"], asked["current_hash"]);
    // Also of a body that is not JSON, and of which only a hash is kept.
    let text = |body| {
        let mut text = request("POST", "/payments", Some("text"), body);
        text.headers_mut().insert("content-type", "text/plain".parse().unwrap());
        text
    };
    place.send(text("one")).await;
    let conflict = place.send(text("two")).await.json();
    let asked = &conflict["error"]["details"];
    assert!(asked["original_hash"].as_str().is_some_and(|hash| hash.len() == 16), "{asked}");
    assert_ne!(asked["original_hash"], asked["current_hash"]);
    place.opened.advance(1_800_000).await;
    let anew = place.post("/payments", Some("k"), &other).await;
    assert_eq!((anew.status, anew.header("x-idempotency-expired")), (201, Some("true")));
}

async fn m5_what_masked_values_grow_to_is_kept_as_hashes(on: On) {
    let policy = Policy { keep_payload: KeepPayload::Full, ..Policy::default() };
    let place = place(on, policy).await;
    let items = |last: &str| format!("[{}{last}]", r#"{"cvc":1},"#.repeat(80_000));
    let first = place.post("/payments", Some("body"), &items("1")).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(place.post("/payments", Some("body"), &items("2")).await.status, 422);
    let path = |last: &str| format!("/payments?{}a={last}", "token=x&".repeat(3_000));
    assert_eq!(place.post(&path("1"), Some("query"), "{}").await.status, 201);
    let conflict = place.post(&path("2"), Some("query"), "{}").await;
    assert_eq!((conflict.status, &conflict.json()["differs"]), (422, &json!(["?"])));
}

async fn m5_masked_values_inside_a_part_are_kept_as_a_hash(on: On) {
    let (dialect, keep_payload) = (Dialect::Business, KeepPayload::Full);
    let place = place(on, Policy { dialect, keep_payload, ..Policy::default() }).await;
    let upload = |secret: &str| {
        let body = format!(
            "--b\r\nContent-Disposition: form-data; name=\"order\"\r\n\
             Content-Type: application/json\r\n\r\n{{\"password\":\"{secret}\"}}\r\n--b--\r\n"
        );
        let mut upload = request("POST", "/payments", Some("k"), &body);
        let media_type = "multipart/form-data; boundary=b".parse().unwrap();
        upload.headers_mut().insert("content-type", media_type);
        upload
    };
    assert_eq!(place.send(upload("kiwi")).await.status, 201);
    let conflict = place.send(upload("plum")).await;
    assert_eq!(conflict.status, 409);
    let said = conflict.json().to_string();
    assert!(!said.contains("kiwi") && !said.contains("plum"), "{said}");
}

async fn a07_what_a_body_is_encoded_in_counts(on: On) {
    let place = place(on, Policy::default()).await;
    let sent = |headers: &[(&'static str, &str)]| {
        let mut request = request("POST", "/payments", Some("k"), "{}");
        request.headers_mut().remove("content-type");
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request
    };
    let json = ("content-type", "application/json");
    assert_eq!(place.send(sent(&[json])).await.status, 201);
    let again = place.send(sent(&[json, ("content-encoding", "identity")])).await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    for other in [("content-encoding", "gzip"), ("content-type", "text/plain"), json] {
        assert_eq!(place.send(sent(&[json, other])).await.status, 422, "{other:?}");
    }
}

/// Says what only the layer may say.
async fn forges() -> impl IntoResponse {
    [("idempotency-protected", "full"), ("idempotency_protected", "full")]
}

async fn r07_a_key_that_no_route_protects_is_marked_or_refused(on: On) {
    let opened = on.open().await;
    let mode = |mode| Policy { mode, ..Policy::default() };
    let place = |unmatched| {
        let routes = Routes::written(vec![
            Route::new("POST /payments", Policy::default()).unwrap(),
            Route::new("POST /seen/{id}", mode(Mode::Shadow)).unwrap(),
            Route::new("POST /off/{id}", mode(Mode::Off)).unwrap(),
            Route::new("PUT /points", measurements()).unwrap(),
        ]);
        let identity = Identity::Authorization { secret: [7; 32], strict: false };
        let engine = Engine::new(opened.store.clone());
        let door = Door::new(engine, identity, routes).with_unmatched(unmatched);
        let service = Router::new().fallback(forges);
        Router::new().fallback_service(OncewardLayer::new(on.cached(door)).layer(service))
    };
    let sent = async |router: &Router, method: &str, path: &str, key: Option<&str>| {
        let mut sent = request(method, path, None, "{}");
        if let Some(name) = key {
            sent.headers_mut().insert(HeaderName::from_str(name).unwrap(), "k".parse().unwrap());
        }
        let answer = router.clone().oneshot(sent).await.unwrap();
        assert!(!answer.headers().contains_key("idempotency_protected"), "{path}");
        let mark = answer.headers().get("idempotency-protected");
        assert!(mark.is_none_or(|mark| mark == "none"), "{path}: {mark:?}");
        let named = answer.extensions().get().map(|key: &UnprotectedKey| key.endpoint.clone());
        assert_eq!(mark.is_some(), named.is_some(), "{path}");
        (answer.status().as_u16(), named)
    };
    let (key, other) = (Some("idempotency-key"), Some("x-idempotency-key"));
    let passes = place(Unmatched::Pass);
    for (method, path, key, expected) in [
        ("POST", "/none/%37", key, Some("POST /none/7")),
        ("DELETE", "/payments", key, Some("DELETE /payments")),
        ("PATCH", "/payments", other, Some("PATCH /payments")),
        ("POST", "/seen/7", key, Some("POST /seen/{id}")),
        ("POST", "/off/7", key, Some("POST /off/{id}")),
        ("POST", "/none/7", None, None),
        ("POST", "/seen/7", None, None),
        ("GET", "/none/7", key, None),
        ("OPTIONS", "/none/7", key, None),
        ("TRACE", "/none/7", key, None),
        ("PROPPATCH", "/none/7", key, Some("PROPPATCH /none/7")),
        ("POST", "/payments", key, None),
        // The replay says no more than the first answer.
        ("POST", "/payments", key, None),
    ] {
        let answer = sent(&passes, method, path, key).await;
        assert_eq!(answer, (200, expected.map(Into::into)), "{method} {path}");
    }
    let (keyed, all) = (place(Unmatched::RefuseKeyed), place(Unmatched::Refuse));
    for (router, key, status) in [
        (&keyed, key, 400),
        (&keyed, other, 400),
        (&keyed, None, 200),
        (&all, key, 404),
        (&all, None, 404),
    ] {
        assert_eq!(sent(router, "POST", "/none/7", key).await.0, status, "{key:?}");
        assert_eq!(sent(router, "GET", "/none/7", key).await.0, 200);
        for path in ["/seen/7", "/off/7", "/payments"] {
            let status =
                if path == "/payments" && key != Some("idempotency-key") { 400 } else { 200 };
            assert_eq!(sent(router, "POST", path, key).await.0, status, "{path} {key:?}");
        }
    }
}

fn measurements() -> Policy {
    Policy { dialect: Dialect::Measurements, ..Policy::default() }
}

async fn a_lease_is_renewed_while_the_handler_works(on: On) {
    let place =
        Arc::new(place(on, Policy { lease_ms: 100, wait_ms: 0, ..Policy::default() }).await);
    let first = {
        let place = place.clone();
        tokio::spawn(async move { place.post("/slow", Some("k"), "{}").await })
    };
    place.upstream.started.notified().await;
    // The store's clock runs on in small steps; the heartbeat runs on real time.
    for _ in 0..8 {
        place.opened.advance(30).await;
        // sleeps because the heartbeat's pause is a third of a real lease
        tokio::time::sleep(Duration::from_millis(45)).await;
        let busy = place.post("/slow", Some("k"), "{}").await;
        assert_eq!(busy.code(), "idempotency.in_flight");
    }
    place.upstream.go_on.notify_one();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(place.ran(), 1);
}

on_every_store! {
    a08_replay_returns_the_original_response_byte_for_byte,
    the_quoted_and_the_raw_key_are_one_and_bad_keys_are_refused_before_any_lookup,
    a09_another_payload_is_422_and_names_what_differs,
    ruling_8_other_methods_paths_queries_callers_and_tenants_are_apart,
    a04_reads_pass_and_touch_nothing,
    no_identity_is_401_and_there_is_no_shared_scope,
    without_a_key_allow_passes_and_derive_makes_one,
    ruling_5_a_duplicate_waits_for_the_first_and_gets_its_answer,
    ruling_5_when_the_wait_is_over_it_is_409_in_flight,
    ruling_4_final_answers_are_stored_and_others_leave_the_key_free,
    a12_successes_are_kept_a_day_and_errors_four_hours,
    a_response_over_the_cap_is_served_once_and_never_runs_again,
    a_body_over_the_cap_is_413_and_leaves_nothing,
    a07_bodies_without_a_canonical_form_are_400_and_what_is_not_json_is_left_to_the_handler,
    a_handler_that_panics_leaves_a_failed_attempt_and_the_retry_runs,
    a_client_that_goes_away_does_not_tear_the_handler_apart,
    the_handler_sees_its_attempt_and_the_fence_rises,
    b06_a_replay_never_bypasses_authorisation,
    b06_a_path_reaches_the_service_and_who_permits_in_the_spelling_of_its_key,
    b02_a_route_may_require_a_precondition,
    the_planning_dialect_says_mismatch_as_409_with_its_alias,
    d06_the_measurements_dialect_echoes_its_key_and_warns_without_one,
    d06_a_body_over_the_cap_names_its_key_and_warns_of_nothing,
    e04_the_business_dialect_explains_a_conflict_and_marks_an_expired_key,
    m5_what_masked_values_grow_to_is_kept_as_hashes,
    m5_masked_values_inside_a_part_are_kept_as_a_hash,
    a07_what_a_body_is_encoded_in_counts,
    r07_a_key_that_no_route_protects_is_marked_or_refused,
    a_lease_is_renewed_while_the_handler_works,
}
