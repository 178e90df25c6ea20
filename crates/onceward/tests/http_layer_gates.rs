//! What stands before a claim, and beside it: rate limit, breaker, load shedding, permission,
//! shadow mode, identity headers, the policy document.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use futures_util::future::ready;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use onceward::engine::Engine;
use onceward::http::{
    Authorize, BreakerPolicy, Commits, Dialect, Door, DoorLimits, Identity, IfMatch, MissingKey,
    Mode, OncewardLayer, Policy, RateLimit, Route, Routes, ShadowReport,
};
use onceward::store::{Items, List};
use onceward_core::outcome_policy::Statuses;
use onceward_core::payload::KeepPayload;
use onceward_core::record::OnAbandoned;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::ServiceExt;

use support::on::{On, Opened};

#[derive(Default)]
struct Upstream {
    ran: AtomicU64,
    broken: AtomicBool,
    panics: AtomicBool,
    started: Notify,
    go_on: Notify,
}

#[derive(Clone)]
struct Place {
    router: Router,
    upstream: Arc<Upstream>,
    engine: Held,
}

async fn pay(State(upstream): State<Arc<Upstream>>, headers: HeaderMap) -> impl IntoResponse {
    let ran = upstream.ran.fetch_add(1, Ordering::SeqCst) + 1;
    assert!(!upstream.panics.load(Ordering::SeqCst), "the handler breaks off");
    let broken = upstream.broken.load(Ordering::SeqCst);
    let status = if broken { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::CREATED };
    let told = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_string());
    let body = json!({ "ran": ran, "org": told("x-org"), "user": told("x-user") });
    (status, body.to_string())
}

async fn slow(State(upstream): State<Arc<Upstream>>) -> String {
    upstream.ran.fetch_add(1, Ordering::SeqCst);
    upstream.started.notify_one();
    upstream.go_on.notified().await;
    "slow".into()
}

/// An engine, and what its store stands on: that goes with the last of them.
#[derive(Clone)]
struct Held {
    engine: Engine,
    _opened: Opened,
}

impl std::ops::Deref for Held {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

async fn engine(on: On) -> Held {
    let opened = on.open().await;
    Held { engine: Engine::new(opened.store.clone()), _opened: opened }
}

fn door(on: On, engine: &Engine, routes: Routes) -> Door {
    let identity = Identity::Authorization { secret: [7; 32], strict: false };
    on.cached(Door::new(engine.clone(), identity, routes))
}

fn behind(engine: Held, door: Door) -> Place {
    let upstream = Arc::new(Upstream::default());
    let router = Router::new()
        .route("/payments", post(pay).get(pay))
        .route("/other", post(pay))
        .route("/slow", post(slow))
        .route("/open", get(|| async { "open" }))
        .with_state(upstream.clone())
        .layer(OncewardLayer::new(door));
    Place { router, upstream, engine }
}

async fn place(on: On, policy: Policy) -> Place {
    let engine = engine(on).await;
    let door = door(on, &engine, Routes::every(policy).unwrap());
    behind(engine, door)
}

#[derive(Debug)]
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

    /// Status and code of a refusal that says when to come again.
    #[track_caller]
    fn refused(&self) -> (u16, String) {
        let after: u64 = self.header("retry-after").unwrap().parse().unwrap();
        assert!(after >= 1);
        (self.status, self.json()["code"].as_str().unwrap().to_string())
    }
}

impl Place {
    async fn send(&self, request: Request<Body>) -> Answer {
        let response: Response<_> = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.send(request("alice", path, Some(key), body)).await
    }

    fn ran(&self) -> u64 {
        self.upstream.ran.load(Ordering::SeqCst)
    }

    /// How many records the store has.
    async fn records(&self) -> usize {
        let all = List::Records { tenant: None, scope: None, state: None };
        match self.engine.list(all, None, 1_000).await.unwrap().items {
            Items::Records(records) => records.len(),
            other => panic!("{other:?}"),
        }
    }
}

fn request(who: &str, path: &str, key: Option<&str>, body: &str) -> Request<Body> {
    let mut request = Request::builder()
        .method("POST")
        .uri(path)
        .header("authorization", format!("Bearer {who}"))
        .header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body.to_string())).unwrap()
}

async fn a15_a_429_comes_before_the_store_and_leaves_no_record(on: On) {
    let limit = RateLimit::new(1, 3_600_000, 2).unwrap();
    let place = place(on, Policy { rate_limit: Some(limit), ..Policy::default() }).await;
    assert_eq!(place.post("/payments", "a", "{}").await.status, 201);
    assert_eq!(place.post("/payments", "a", "{}").await.status, 201, "a replay counts too");
    let limited = place.post("/payments", "b", "{}").await;
    assert_eq!(limited.refused(), (429, "rate.limited".into()));
    let seconds: u64 = limited.header("retry-after").unwrap().parse().unwrap();
    assert!((3_590..=3_660).contains(&seconds), "an hour, and up to a minute: {seconds}");
    assert_eq!(limited.json()["key_advice"], "reuse");
    assert_eq!((place.ran(), place.records().await), (1, 1));
    let bad_key = place.send(request("alice", "/payments", Some("a b"), "{}")).await;
    assert_eq!(bad_key.status, 400, "the key is looked at before the limit");
    let bob = place.send(request("bob", "/payments", Some("a"), "{}")).await;
    assert_eq!(bob.status, 201, "each caller has an allowance of its own");
    let nobody = Request::post("/payments").header("idempotency-key", "a");
    assert_eq!(place.send(nobody.body(Body::empty()).unwrap()).await.status, 401);
}

async fn a15_leaving_the_key_out_is_no_way_around_the_limit(on: On) {
    let limit = RateLimit::new(1, 3_600_000, 2).unwrap();
    let policy =
        Policy { rate_limit: Some(limit), missing_key: MissingKey::Allow, ..Policy::default() };
    let place = place(on, policy).await;
    let unkeyed = || request("alice", "/payments", None, "{}");
    assert_eq!(place.send(unkeyed()).await.status, 201);
    assert_eq!(place.post("/payments", "a", "{}").await.status, 201);
    assert_eq!(place.send(unkeyed()).await.refused(), (429, "rate.limited".into()));
    let nobody = Request::post("/payments").body(Body::from("{}")).unwrap();
    assert_eq!(place.send(nobody).await.status, 201, "without a key identity is not needed");
    assert_eq!(place.ran(), 3);
}

async fn a16_an_open_breaker_is_503_leaves_records_and_still_replays(on: On) {
    let breaker = BreakerPolicy { failures: 2, open_ms: 3_600_000, trials: 1 };
    let place = place(on, Policy { breaker: Some(breaker), ..Policy::default() }).await;
    let first = place.post("/payments", "done", "{}").await;
    place.upstream.broken.store(true, Ordering::SeqCst);
    assert_eq!(place.post("/payments", "x", "{}").await.status, 500);
    assert_eq!(place.post("/payments", "x", "{}").await.status, 500);
    place.upstream.broken.store(false, Ordering::SeqCst);
    let (ran, records) = (place.ran(), place.records().await);
    let open = place.post("/payments", "y", "{}").await;
    assert_eq!(open.refused(), (503, "circuit.open".into()));
    let seconds: u64 = open.header("retry-after").unwrap().parse().unwrap();
    assert!((3_600..=3_660).contains(&seconds), "an hour, and up to a minute: {seconds}");
    let replay = place.post("/payments", "done", "{}").await;
    assert_eq!((replay.status, &replay.body), (201, &first.body));
    assert_eq!(replay.header("idempotency-replayed"), Some("true"));
    assert_eq!(place.post("/payments", "done", r#"{"other":1}"#).await.status, 422);
    assert_eq!((place.ran(), place.records().await), (ran, records));
}

async fn a16_after_its_time_a_trial_passes_and_its_success_closes_it(on: On) {
    let breaker = BreakerPolicy { failures: 1, open_ms: 1, trials: 1 };
    let place = place(on, Policy { breaker: Some(breaker), ..Policy::default() }).await;
    place.upstream.broken.store(true, Ordering::SeqCst);
    assert_eq!(place.post("/payments", "x", "{}").await.status, 500);
    place.upstream.broken.store(false, Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = place.post("/payments", "x", "{}").await;
        if answer.status == 201 {
            break;
        }
        assert_eq!(answer.refused(), (503, "circuit.open".into()));
        assert!(Instant::now() < until, "it never closes");
        tokio::task::yield_now().await;
    }
    assert_eq!(place.post("/payments", "z", "{}").await.status, 201);
}

async fn a_panic_and_a_request_without_a_key_count_for_the_breaker_too(on: On) {
    let breaker = BreakerPolicy { failures: 2, open_ms: 3_600_000, trials: 1 };
    let policy =
        Policy { breaker: Some(breaker), missing_key: MissingKey::Allow, ..Policy::default() };
    let place = place(on, policy).await;
    place.upstream.panics.store(true, Ordering::SeqCst);
    assert_eq!(place.post("/payments", "x", "{}").await.status, 502);
    place.upstream.panics.store(false, Ordering::SeqCst);
    place.upstream.broken.store(true, Ordering::SeqCst);
    assert_eq!(place.send(request("alice", "/payments", None, "{}")).await.status, 500);
    let open = place.send(request("alice", "/payments", None, "{}")).await;
    assert_eq!(open.refused(), (503, "circuit.open".into()));
    assert_eq!(place.ran(), 2);
}

async fn too_many_at_once_are_shed_and_replays_are_not(on: On) {
    let engine = engine(on).await;
    let limits = DoorLimits { in_flight_max: 1, ..DoorLimits::default() };
    // Without a cache, so that the look at the store answers.
    let door = door(on, &engine, Routes::every(Policy::default()).unwrap());
    let place = behind(engine, door.with_limits(limits).with_cache_bytes(0));
    assert_eq!(place.post("/payments", "done", "{}").await.status, 201);
    let running = {
        let place = place.clone();
        tokio::spawn(async move { place.post("/slow", "s", "{}").await })
    };
    place.upstream.started.notified().await;
    let shed = place.post("/payments", "new", "{}").await;
    assert_eq!(shed.refused(), (503, "overload.shed".into()));
    let replay = place.post("/payments", "done", "{}").await;
    assert_eq!(replay.header("idempotency-replayed"), Some("true"));
    assert_eq!(place.records().await, 2);
    place.upstream.go_on.notify_one();
    assert_eq!(running.await.unwrap().status, 200);
    assert_eq!(place.post("/payments", "new", "{}").await.status, 201);
}

async fn the_crowd_of_one_tenant_leaves_room_for_others(on: On) {
    let engine = engine(on).await;
    let limits = DoorLimits { tenant_in_flight_max: 1, ..DoorLimits::default() };
    let door = door(on, &engine, Routes::every(Policy::default()).unwrap());
    let place = behind(engine, door.with_limits(limits).with_cache_bytes(0));
    assert_eq!(place.post("/payments", "done", "{}").await.status, 201);
    let running = {
        let place = place.clone();
        tokio::spawn(async move { place.post("/slow", "s", "{}").await })
    };
    place.upstream.started.notified().await;
    let limited = place.post("/payments", "new", "{}").await;
    assert_eq!(limited.refused(), (429, "rate.limited".into()));
    let replay = place.post("/payments", "done", "{}").await;
    assert_eq!(replay.header("idempotency-replayed"), Some("true"));
    let bob = place.send(request("bob", "/payments", Some("new"), "{}")).await;
    assert_eq!(bob.status, 201, "another tenant has places of its own");
    assert_eq!(place.records().await, 3, "a 429 leaves no record");
    place.upstream.go_on.notify_one();
    assert_eq!(running.await.unwrap().status, 200);
    assert_eq!(place.post("/payments", "new", "{}").await.status, 201);
}

async fn bodies_that_would_take_too_much_memory_together_are_shed(on: On) {
    let engine = engine(on).await;
    let limits = DoorLimits { body_bytes_max: 64 << 10, ..DoorLimits::default() };
    let door = door(on, &engine, Routes::every(Policy::default()).unwrap());
    let place = behind(engine, door.with_limits(limits));
    let large = format!("\"{}\"", "x".repeat(40 << 10));
    // A body that has begun and does not end yet.
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let first = Bytes::from(large[..large.len() - 1].to_string());
    let rest = {
        let (begun, go_on) = (begun.clone(), go_on.clone());
        async move {
            begun.notify_one();
            go_on.notified().await;
            Ok::<_, std::io::Error>(Bytes::from_static(b"\""))
        }
    };
    let slow = stream::once(ready(Ok(first))).chain(stream::once(rest));
    let slow = request("alice", "/payments", Some("s"), "").map(|_| Body::from_stream(slow));
    let running = {
        let place = place.clone();
        tokio::spawn(async move { place.send(slow).await })
    };
    begun.notified().await;
    let shed = place.post("/payments", "new", &large).await;
    assert_eq!(shed.refused(), (503, "overload.shed".into()));
    assert_eq!(place.post("/payments", "small", "{}").await.status, 201);
    assert_eq!(place.records().await, 1, "nothing is recorded of what is shed");
    go_on.notify_one();
    assert_eq!(running.await.unwrap().status, 201);
    assert_eq!(place.post("/payments", "new", &large).await.status, 201);
}

/// Bytes of the answers that are held in the next test.
const LARGE: usize = 60_000;

/// A place whose answers are large, and the first of them, which its client does not take.
async fn with_an_answer_held(on: On, answer_bytes_max: u64) -> (Place, Response<Body>) {
    with_an_answer_held_within(on, DoorLimits { answer_bytes_max, ..DoorLimits::default() }).await
}

async fn with_an_answer_held_within(on: On, limits: DoorLimits) -> (Place, Response<Body>) {
    let engine = engine(on).await;
    let door = door(on, &engine, Routes::every(Policy::default()).unwrap());
    let upstream = Arc::new(Upstream::default());
    let router = Router::new()
        .route("/large", post(|| async { "x".repeat(LARGE) }))
        .route("/payments", post(pay))
        .with_state(upstream.clone())
        .layer(OncewardLayer::new(door.with_limits(limits)));
    let place = Place { router, upstream, engine };
    assert_eq!(place.post("/payments", "small", "{}").await.status, 201);
    let request = request("alice", "/large", Some("held"), "{}");
    let held = place.router.clone().oneshot(request).await.unwrap();
    assert_eq!(held.status(), 200);
    (place, held)
}

async fn answers_that_would_take_too_much_memory_together_are_not_begun_or_not_stored(on: On) {
    // No room for another one: it is not begun. What is small is replayed all the same.
    let (place, held) = with_an_answer_held(on, 70_000).await;
    let shed = place.post("/payments", "new", "{}").await;
    assert_eq!(shed.refused(), (503, "overload.shed".into()));
    assert_eq!(place.upstream.ran.load(Ordering::SeqCst), 1);
    assert_eq!(place.records().await, 2, "nothing is recorded of what is shed");
    assert_eq!(place.post("/payments", "small", "{}").await.status, 201);
    let replay = place.post("/large", "held", "{}").await;
    assert_eq!((replay.status, replay.body.len()), (200, LARGE), "replays have room of their own");
    drop(held);
    assert_eq!(place.post("/payments", "new", "{}").await.status, 201);
    // Who takes long leaves room for others.
    let (place, _held) = with_an_answer_held(on, 100_000).await;
    let shed = place.post("/payments", "new", "{}").await;
    assert_eq!(shed.refused(), (503, "overload.shed".into()), "it has its half");
    let others = place.send(request("bob", "/payments", Some("new"), "{}")).await;
    assert_eq!(others.status, 201);
    // Room for some: what has run is passed on whole, and never runs again.
    let (place, _held) = with_an_answer_held(on, 160_000).await;
    let unstored = place.post("/large", "new", "{}").await;
    assert_eq!((unstored.status, unstored.body.len()), (200, LARGE));
    assert_eq!(unstored.header("idempotency-stored"), Some("false"));
    let again = place.post("/large", "new", "{}").await;
    assert_eq!(
        (again.status, &again.json()["code"]),
        (409, &"idempotency.response_not_stored".into())
    );
}

async fn replays_that_nobody_takes_keep_no_first_answer_from_running(on: On) {
    let limits = DoorLimits { replay_bytes_max: 70_000, ..DoorLimits::default() };
    let (place, first) = with_an_answer_held_within(on, limits).await;
    drop(first);
    let asked = || request("alice", "/large", Some("held"), "{}");
    let held = place.router.clone().oneshot(asked()).await.unwrap();
    assert_eq!(held.headers()["idempotency-replayed"], "true");
    let another = place.send(asked()).await;
    assert_eq!(another.refused(), (503, "overload.shed".into()), "no room for another replay");
    for key in ["one", "two"] {
        let new = place.post("/large", key, "{}").await;
        let stored = new.header("idempotency-stored");
        assert_eq!((new.status, new.body.len(), stored), (200, LARGE, None), "{key}");
    }
    drop(held);
    assert_eq!(place.send(asked()).await.status, 200);
}

async fn b06_each_route_may_ask_somebody_else(on: On) {
    let refuse = Authorize::new(|head, caller| {
        let told = format!("{} {} {}", head.method, head.uri.path(), caller.tenant.len());
        Box::pin(async move {
            let mut refused = Response::new(Bytes::from(told));
            *refused.status_mut() = StatusCode::PAYMENT_REQUIRED;
            Err(refused)
        })
    });
    let asked = Policy { authorize: Some(refuse), ..Policy::default() };
    let routes = Routes::written(vec![
        Route::new("POST /payments", asked).unwrap(),
        Route::new("POST /other", Policy::default()).unwrap(),
    ]);
    let engine = engine(on).await;
    let door = door(on, &engine, routes);
    let place = behind(engine, door);
    let refused = place.post("/payments", "k", "{}").await;
    assert_eq!((refused.status, &refused.body[..]), (402, &b"POST /payments 32"[..]));
    assert_eq!((place.ran(), place.records().await), (0, 0));
    assert_eq!(place.post("/other", "k", "{}").await.status, 201);
}

async fn b06_without_a_key_permission_is_asked_for_too(on: On) {
    let may = || {
        Authorize::new(|head, _| {
            let is_allowed = head.headers.contains_key("x-may");
            Box::pin(async move {
                let mut refused = Response::new(Bytes::new());
                *refused.status_mut() = StatusCode::PAYMENT_REQUIRED;
                if is_allowed { Ok(()) } else { Err(refused) }
            })
        })
    };
    for at_the_door in [false, true] {
        let authorize = (!at_the_door).then(may);
        let policy = Policy { missing_key: MissingKey::Allow, authorize, ..Policy::default() };
        let routes = Routes::written(vec![Route::new("POST /payments", policy).unwrap()]);
        let engine = engine(on).await;
        let mut door = door(on, &engine, routes);
        if at_the_door {
            let asked = may();
            door = door.with_authorize(move |head, caller| {
                let asked = asked.clone();
                Box::pin(async move { asked.ask(head, caller).await })
            });
        }
        let place = behind(engine, door);
        let refused = place.send(request("alice", "/payments", None, "{}")).await;
        assert_eq!((refused.status, place.ran()), (402, 0), "{at_the_door}");
        let nobody = Request::post("/payments").header("x-may", "1").body(Body::from("{}"));
        let nobody = place.send(nobody.unwrap()).await;
        let code = nobody.json()["code"].clone();
        assert_eq!((nobody.status, code), (401, "auth.required".into()), "{at_the_door}");
        assert_eq!(place.ran(), 0);
        let mut allowed = request("alice", "/payments", None, "{}");
        allowed.headers_mut().insert("x-may", "1".parse().unwrap());
        assert_eq!((place.send(allowed).await.status, place.ran()), (201, 1));
    }
}

async fn shadow_mode_reports_and_never_touches_the_store(on: On) {
    let engine = engine(on).await;
    let shadow = Policy { mode: Mode::Shadow, ..Policy::default() };
    let routes = Routes::written(vec![
        Route::new("POST /other", Policy::default()).unwrap(),
        Route::new("POST /payments", shadow).unwrap(),
    ]);
    let door = Arc::new(door(on, &engine, routes));
    let place = behind_shared(engine, &door);
    let nobody = Request::post("/payments").header("idempotency-key", "a");
    for request in [
        request("alice", "/payments", Some("a"), "{}"),
        request("alice", "/payments", Some("a"), "{ }"),
        request("alice", "/payments", Some("a"), r#"{"other":1}"#),
        request("alice", "/payments", None, "{}"),
        request("alice", "/payments", Some("two words"), "{}"),
        request("alice", "/payments", Some("b"), r#"{"a":1,"a":2}"#),
        nobody.body(Body::from("{}")).unwrap(),
    ] {
        let answer = place.send(request).await;
        assert_eq!(answer.status, 201, "every request goes on");
        assert_eq!(answer.header("idempotency-replayed"), None);
    }
    place.upstream.broken.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        // What fails is not kept: it would run again.
        assert_eq!(place.post("/payments", "c", "{}").await.status, 500);
    }
    assert_eq!((place.ran(), place.records().await), (9, 0));
    let ShadowReport { routes, forgotten } = door.shadow_report();
    assert_eq!((routes.len(), forgotten), (1, 0));
    assert_eq!(routes[0].endpoint, "POST /payments");
    let counted: Vec<_> = routes[0].verdicts.iter().map(|(verdict, n)| (*verdict, *n)).collect();
    assert_eq!(
        counted,
        [
            ("auth.required", 1),
            ("body.not_canonical", 1),
            ("idempotency.key_invalid", 1),
            ("idempotency.key_required", 1),
            ("idempotency.payload_mismatch", 1),
            ("replay", 1),
            ("run", 3),
        ]
    );
}

/// What shadow mode reports is what enforcing would have answered.
async fn shadow_mode_refuses_what_enforcing_refuses(on: On) {
    let mut told = Vec::new();
    for mode in [Mode::Enforce, Mode::Shadow] {
        let engine = engine(on).await;
        let allow = Policy {
            mode,
            missing_key: MissingKey::Allow,
            if_match: IfMatch::Require,
            max_request_bytes: 100,
            ..Policy::default()
        };
        let limit = RateLimit::new(2, 3_600_000, 2).unwrap();
        let few = Policy { mode, rate_limit: Some(limit), ..Policy::default() };
        let routes = Routes::written(vec![
            Route::new("POST /payments", allow).unwrap(),
            Route::new("POST /other", few).unwrap(),
        ]);
        let door = Arc::new(door(on, &engine, routes));
        let place = behind_shared(engine, &door);
        let large = format!("{:?}", "x".repeat(200));
        let bad_key = Request::post("/other").header("idempotency-key", "two words");
        let mut codes = Vec::new();
        for request in [
            request("alice", "/payments", None, "{}"),
            request("alice", "/payments", None, &large),
            request("alice", "/payments", Some("two words"), &large),
            bad_key.body(Body::from("{}")).unwrap(),
            request("bob", "/other", Some("a"), "{}"),
            request("bob", "/other", Some("b"), "{}"),
            request("bob", "/other", Some("c"), "{}"),
        ] {
            let answer = place.send(request).await;
            let code = answer.json()["code"].as_str().unwrap_or("run").to_string();
            codes.push(code);
        }
        if mode == Mode::Shadow {
            assert!(codes.iter().all(|code| code == "run"), "every request goes on: {codes:?}");
            let report = door.shadow_report();
            let counted = report.routes.iter().flat_map(|route| &route.verdicts);
            let times = |n: &u64| usize::try_from(*n).unwrap();
            codes = counted.flat_map(|(code, n)| vec![code.to_string(); times(n)]).collect();
        }
        codes.sort_unstable();
        told.push(codes);
    }
    assert_eq!(told[0], told[1]);
    for code in ["precondition.required", "body.too_large", "auth.required", "rate.limited"] {
        assert!(told[0].iter().any(|told| told == code), "{code}: {told:?}");
    }
}

async fn shadow_mode_remembers_a_bounded_number_of_keys(on: On) {
    let engine = engine(on).await;
    let shadow = Policy { mode: Mode::Shadow, ..Policy::default() };
    let limits = DoorLimits { shadow_keys_max: 10, ..DoorLimits::default() };
    let door = door(on, &engine, Routes::every(shadow).unwrap()).with_limits(limits);
    let door = Arc::new(door);
    let place = behind_shared(engine, &door);
    for number in 0..100 {
        place.post("/payments", &format!("k{number}"), "{}").await;
    }
    let report = door.shadow_report();
    assert_eq!(report.routes[0].endpoint, "*");
    assert_eq!(report.routes[0].verdicts["run"], 100);
    assert!(report.forgotten >= 90, "{report:?}");
}

async fn shadow_mode_holds_a_bounded_number_of_bytes(on: On) {
    let engine = engine(on).await;
    let shadow = Policy { mode: Mode::Shadow, ..Policy::default() };
    let limits = DoorLimits { body_bytes_max: 100_000, ..DoorLimits::default() };
    let door = Arc::new(door(on, &engine, Routes::every(shadow).unwrap()).with_limits(limits));
    let place = behind_shared(engine, &door);
    let body = |length: usize| format!("{:?}", "x".repeat(length));
    for length in [90_000, 110_000, 90_000] {
        let answer = place.post("/payments", &format!("k{length}"), &body(length)).await;
        assert_eq!(answer.status, 201, "every request goes on");
    }
    let verdicts = &door.shadow_report().routes[0].verdicts;
    assert_eq!((verdicts["run"], verdicts["overload.shed"], verdicts["replay"]), (1, 1, 1));
}

fn behind_shared(engine: Held, door: &Arc<Door>) -> Place {
    let upstream = Arc::new(Upstream::default());
    let router = Router::new()
        .route("/payments", post(pay))
        .route("/other", post(pay))
        .with_state(upstream.clone())
        .layer(OncewardLayer::shared(door.clone()));
    Place { router, upstream, engine }
}

async fn identity_headers_are_what_was_identified_on_every_path(on: On) {
    let engine = engine(on).await;
    let names = ["x-org", "x-user"].map(HeaderName::from_static);
    let [org, user] = names;
    let door = door(on, &engine, Routes::every(Policy::default()).unwrap());
    let place = behind(engine, door.with_identity_headers(org, user));
    let forged = |method: &str, who: Option<&str>| {
        let mut request = Request::builder()
            .method(method)
            .uri("/payments")
            .header("idempotency-key", "k")
            .header("x-org", "forged")
            .header("x-org", "twice")
            .header("x-user", "root");
        if let Some(who) = who {
            request = request.header("authorization", who);
        }
        request.body(Body::from("{}")).unwrap()
    };
    let told = place.send(forged("POST", Some("alice"))).await.json();
    assert_eq!(told["org"].as_str().unwrap().len(), 32);
    assert_eq!(told["org"], told["user"]);
    let read = place.send(forged("GET", Some("alice"))).await.json();
    assert_eq!(read["org"], told["org"], "also where nothing is claimed");
    let unknown = place.send(forged("GET", None)).await.json();
    assert_eq!((&unknown["org"], &unknown["user"]), (&Value::Null, &Value::Null));
}

fn in_dialect(dialect: Dialect) -> Policy {
    Policy { dialect, ..Policy::default() }
}

async fn the_policy_document_tells_what_is_enforced(on: On) {
    let business = Policy {
        dialect: Dialect::Business,
        missing_key: MissingKey::Derive,
        per_caller: false,
        retain_ms: 1_800_000,
        retain_errors_ms: 1_799_500,
        store_headers: vec![HeaderName::from_static("x-total")],
        ..Policy::default()
    };
    let routes = Routes::written(vec![
        Route::new("POST /payments", Policy::default()).unwrap(),
        Route::new("PUT /holds/{id}", business).unwrap(),
        Route::new("POST /missions", in_dialect(Dialect::Planning)).unwrap(),
        Route::new("POST /weights", in_dialect(Dialect::Measurements)).unwrap(),
    ]);
    let engine = engine(on).await;
    let door = door(on, &engine, routes);
    let place = behind(engine, door);
    let get = || Request::get("/.well-known/idempotency-policy").body(Body::empty()).unwrap();
    let answer = place.send(get()).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    let routes = &answer.json()["routes"];
    assert_eq!(routes[0]["match"], "POST /payments");
    assert_eq!(routes[0]["key"]["headers"], json!(["idempotency-key"]));
    assert_eq!(
        (&routes[0]["key"]["max_length"], &routes[0]["key"]["missing"]),
        (&json!(128), &json!("require"))
    );
    assert_eq!(
        routes[0]["retention"],
        json!({ "success_s": 86_400, "error_s": 14_400, "expired_key_s": 86_400 })
    );
    assert_eq!(routes[0]["statuses"]["refusals"]["idempotency.payload_mismatch"], 422);
    assert_eq!(routes[0]["headers"]["replay"], json!(["idempotency-replayed"]));
    let refusals = |at: usize| &routes[at]["statuses"]["refusals"];
    assert_eq!(refusals(1)["IDEMPOTENCY_CONFLICT"], 409);
    assert_eq!(refusals(1)["idempotency.payload_mismatch"], Value::Null);
    assert_eq!(refusals(2)["planning.concurrency_etag_required"], 428);
    assert_eq!(refusals(2)["idempotency.payload_mismatch"], 409);
    assert_eq!(refusals(3)["IdempotencyKeyReused"], 409);
    assert_eq!(routes[1]["retention"]["error_s"], json!(1_799.5), "what is true");
    assert_eq!(routes[1]["headers"]["replay"], json!(["x-idempotency-replay"]));
    assert_eq!(routes[1]["scope"], json!(["tenant", "endpoint"]));
    assert!(routes[1]["headers"]["stored"].as_array().unwrap().contains(&json!("x-total")));
}

async fn h3_h5_the_policy_document_tells_how_statuses_end(on: On) {
    let moved = Policy {
        on_abandoned: OnAbandoned::Hold,
        statuses: Statuses { stored: vec![409, 500], released: vec![404, 502] },
        ..Policy::default()
    };
    let one = Policy { commits: Commits::One, ..Policy::default() };
    let routes = [("POST /a", Policy::default()), ("POST /b", moved), ("POST /c", one)];
    let routes = routes.map(|(text, policy)| Route::new(text, policy).unwrap());
    let engine = engine(on).await;
    let door = door(on, &engine, Routes::written(routes.into()));
    let document: Value = serde_json::from_slice(&door.policy_document()).unwrap();
    let routes = &document["routes"];
    let statuses = |at: usize| &routes[at]["statuses"];
    let ends = ["stored", "released", "released_with_retry_after", "unknown_end"];
    let said = |at: usize| ends.map(|end| statuses(at)[end].clone());
    assert_eq!(
        said(0),
        [
            json!(["2xx", "3xx", "4xx"]),
            json!([401, 403, 425, 429, 501]),
            json!([409, 423, 503]),
            json!([408, "5xx"]),
        ]
    );
    assert_eq!(
        said(1),
        [
            json!(["2xx", "3xx", "4xx", 500]),
            json!([401, 403, 404, 425, 429, 501, 502]),
            json!([423, 503]),
            json!([408, "5xx"]),
        ],
        "a route moves statuses"
    );
    assert_eq!(
        said(2),
        [
            json!(["2xx", "3xx", "4xx"]),
            json!([401, 403, 408, 425, 429, "5xx"]),
            json!([409, 423]),
            json!([]),
        ],
        "nothing can have happened without a record"
    );
    let on_abandoned = [0, 1].map(|at| routes[at]["on_abandoned"].clone());
    assert_eq!(on_abandoned, [json!("rerun"), json!("hold")]);
}

async fn a_mismatch_names_pointers_and_masks_values_at_any_depth(on: On) {
    // No secret could stand in a hash or in the random id of a request, which are hex digits.
    let original = r#"{"user":{"Password":"kiwi","deep":[{"token":"lime","n":1}]},"a/b":1}"#;
    let other = original.replace("kiwi", "plum").replace("lime", "yuzu").replace(":1}", ":2}");
    for (dialect, keep) in [
        (Dialect::Standard, KeepPayload::Hashed),
        (Dialect::Planning, KeepPayload::Hashed),
        (Dialect::Measurements, KeepPayload::Full),
        (Dialect::Business, KeepPayload::Full),
    ] {
        let name = format!("{dialect:?}");
        let place = place(on, Policy { dialect, keep_payload: keep, ..Policy::default() }).await;
        place.post("/payments", "k", original).await;
        let conflict = place.post("/payments", "k", &other).await;
        let text = String::from_utf8(conflict.body.to_vec()).unwrap();
        for secret in ["kiwi", "lime", "plum", "yuzu"] {
            assert!(!text.contains(secret), "{name}: {text}");
        }
        if name == "business" {
            let expected = json!([
                "a/b: 1 → 2",
                "user.Password: '***' → '***'",
                "user.deep.0.n: 1 → 2",
                "user.deep.0.token: '***' → '***'",
            ]);
            assert_eq!(conflict.json()["error"]["details"]["diff_summary"], expected);
        } else {
            let mut differs: Vec<String> =
                serde_json::from_value(conflict.json()["differs"].clone()).unwrap();
            differs.sort();
            let expected = ["/a~1b", "/user/Password", "/user/deep/0/n", "/user/deep/0/token"];
            assert_eq!(differs, expected, "{name}");
        }
    }
}

on_every_store! {
    a15_leaving_the_key_out_is_no_way_around_the_limit,
    a15_a_429_comes_before_the_store_and_leaves_no_record,
    a16_an_open_breaker_is_503_leaves_records_and_still_replays,
    a16_after_its_time_a_trial_passes_and_its_success_closes_it,
    a_panic_and_a_request_without_a_key_count_for_the_breaker_too,
    too_many_at_once_are_shed_and_replays_are_not,
    the_crowd_of_one_tenant_leaves_room_for_others,
    bodies_that_would_take_too_much_memory_together_are_shed,
    answers_that_would_take_too_much_memory_together_are_not_begun_or_not_stored,
    replays_that_nobody_takes_keep_no_first_answer_from_running,
    b06_each_route_may_ask_somebody_else,
    b06_without_a_key_permission_is_asked_for_too,
    shadow_mode_reports_and_never_touches_the_store,
    shadow_mode_refuses_what_enforcing_refuses,
    shadow_mode_remembers_a_bounded_number_of_keys,
    shadow_mode_holds_a_bounded_number_of_bytes,
    identity_headers_are_what_was_identified_on_every_path,
    the_policy_document_tells_what_is_enforced,
    h3_h5_the_policy_document_tells_how_statuses_end,
    a_mismatch_names_pointers_and_masks_values_at_any_depth,
}
