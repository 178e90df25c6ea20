//! The layer when its store fails or its lease is lost: never an answer that was not recorded,
//! never an effect without a claim, and never two answers to one key.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::routing::post;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use onceward::engine::Engine;
use onceward::http::{
    Attempt, Door, DoorLimits, Identity, OncewardLayer, PermitText, Policy, Routes,
};
use onceward::store::memory::MemoryStore;
use onceward::store::{Items, List, Store};
use onceward::testing::faulty::{Fault, FaultPlan, FaultyStore, Method};
use onceward_core::record::{OnAbandoned, Record};
use onceward_core::stamp::At;
use serde_json::Value;
use tokio::sync::Semaphore;
use tower::{Layer, Service, ServiceExt};

/// How long a request waits for the store.
const STORE_WITHIN: Duration = Duration::from_millis(800);
/// More faults than anybody tries.
const MANY: usize = 100_000;

/// A handler that waits to be let go, attempt by attempt.
struct Upstream {
    ran: AtomicU64,
    started: Semaphore,
    go_on: [Semaphore; 2],
}

struct Place {
    router: Router,
    upstream: Arc<Upstream>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

async fn slow(State(upstream): State<Arc<Upstream>>, request: Request<Body>) -> String {
    upstream.ran.fetch_add(1, Ordering::SeqCst);
    let attempt = request.extensions().get::<Attempt>().unwrap().attempt;
    upstream.started.add_permits(1);
    let gate = &upstream.go_on[(attempt as usize - 1).min(1)];
    gate.acquire().await.unwrap().forget();
    format!("attempt {attempt}")
}

/// Charges, waits to be let go, and says that it failed.
async fn fails(State(upstream): State<Arc<Upstream>>) -> StatusCode {
    upstream.ran.fetch_add(1, Ordering::SeqCst);
    upstream.started.add_permits(1);
    upstream.go_on[0].acquire().await.unwrap().forget();
    StatusCode::BAD_GATEWAY
}

/// Answers a head when the first attempt is let go, and its body when the second one is.
async fn trickles(State(upstream): State<Arc<Upstream>>) -> Body {
    upstream.started.add_permits(1);
    upstream.go_on[0].acquire().await.unwrap().forget();
    Body::from_stream(futures_util::stream::once(async move {
        upstream.go_on[1].acquire().await.unwrap().forget();
        Ok::<_, std::io::Error>("at last")
    }))
}

/// A service that is not ready before its gate is open.
struct Unready {
    gate: Arc<Semaphore>,
    opens: Option<BoxFuture<'static, ()>>,
    ran: Arc<AtomicU64>,
}

impl Clone for Unready {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), opens: None, ran: self.ran.clone() }
    }
}

impl Service<Request<Body>> for Unready {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let gate = self.gate.clone();
        let opens = self
            .opens
            .get_or_insert_with(|| Box::pin(async move { gate.acquire().await.unwrap().forget() }));
        opens.as_mut().poll(context).map(Ok)
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.ran.fetch_add(1, Ordering::SeqCst);
        ready(Ok(Response::new(Body::from("ran"))))
    }
}

fn door(store: Arc<dyn Store>, policy: Policy) -> Door {
    let identity = Identity::Authorization { secret: [7; 32], strict: false };
    let door = Door::new(Engine::new(store), identity, Routes::every(policy).unwrap());
    let store_within_ms = u64::try_from(STORE_WITHIN.as_millis()).unwrap();
    door.with_limits(DoorLimits { store_within_ms, ..DoorLimits::default() })
}

fn request(path: &str, body: &str) -> Request<Body> {
    Request::post(path)
        .header("authorization", "Bearer alice")
        .header("content-type", "application/json")
        .header("idempotency-key", "k")
        .body(Body::from(body.to_string()))
        .unwrap()
}

fn place(store: Arc<dyn Store>, policy: Policy) -> Arc<Place> {
    let gate = || Semaphore::new(0);
    let go_on = [gate(), gate()];
    let upstream = Arc::new(Upstream { ran: AtomicU64::new(0), started: gate(), go_on });
    before(upstream, store, policy)
}

/// A layer of its own, as another process has one, before a service that is there.
fn before(upstream: Arc<Upstream>, store: Arc<dyn Store>, policy: Policy) -> Arc<Place> {
    let door = door(store, policy);
    let router = Router::new()
        .route("/slow", post(slow))
        .route("/says", post(says))
        .route("/fails", post(fails))
        .route("/trickles", post(trickles))
        .with_state(upstream.clone())
        .layer(OncewardLayer::new(door));
    Arc::new(Place { router, upstream })
}

fn faulty(policy: Policy) -> (Arc<FaultyStore>, Arc<Place>) {
    let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), FaultPlan::Quiet));
    (store.clone(), place(store, policy))
}

impl Place {
    async fn post(&self) -> Answer {
        self.send("/slow", "{}").await
    }

    async fn send(&self, path: &str, body: &str) -> Answer {
        let (head, body) =
            self.router.clone().oneshot(request(path, body)).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// Sends the request and waits until its handler runs.
    async fn begin(self: &Arc<Self>) -> tokio::task::JoinHandle<Answer> {
        let place = self.clone();
        let answer = tokio::spawn(async move { place.post().await });
        self.upstream.started.acquire().await.unwrap().forget();
        answer
    }

    fn go_on(&self, attempt: usize) {
        self.upstream.go_on[attempt - 1].add_permits(1);
    }

    fn ran(&self) -> u64 {
        self.upstream.ran.load(Ordering::SeqCst)
    }
}

impl Answer {
    #[track_caller]
    fn is(&self, body: &str, replayed: bool) {
        assert_eq!((self.status, &self.body[..]), (200, body.as_bytes()));
        assert_eq!(self.headers.contains_key("idempotency-replayed"), replayed);
    }

    #[track_caller]
    fn is_unavailable(&self) {
        self.is_unavailable_after("");
    }

    /// The same, with a detail that tells whether anything has run.
    #[track_caller]
    fn is_unavailable_after(&self, told: &str) {
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert!(problem["detail"].as_str().unwrap().starts_with(told), "{problem}");
        assert_eq!((self.status, &problem["code"]), (503, &"store.unavailable".into()));
        assert_eq!(
            (&problem["key_advice"], &problem["retryable"]),
            (&"reuse".into(), &true.into())
        );
        let after: u64 = self.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(after >= 1);
    }
}

#[tokio::test]
async fn a_store_that_is_down_before_the_claim_is_503_and_nothing_runs() {
    let (store, place) = faulty(Policy::default());
    store.set_plan(FaultPlan::Script(vec![Fault::Before; MANY]));
    place.post().await.is_unavailable_after("nothing was executed");
    assert_eq!(place.ran(), 0);
    store.set_plan(FaultPlan::Quiet);
    place.go_on(1);
    place.post().await.is("attempt 1", false);
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn a_store_that_is_down_before_the_completion_is_503_and_never_an_unrecorded_answer() {
    let policy = Policy { lease_ms: 300, wait_ms: 10_000, ..Policy::default() };
    let (store, place) = faulty(policy);
    let first = place.begin().await;
    store.set_plan(FaultPlan::Script(vec![Fault::Before; MANY]));
    place.go_on(1);
    first.await.unwrap().is_unavailable_after("the request has run");
    // The retry waits until the lease has ended; then it is its turn.
    store.set_plan(FaultPlan::Quiet);
    place.go_on(2);
    place.post().await.is("attempt 2", false);
    place.post().await.is("attempt 2", true);
    assert_eq!(place.ran(), 2);
}

#[tokio::test]
async fn a_completion_is_tried_again_and_one_whose_answer_was_lost_is_recognised() {
    for fault in [Fault::Before, Fault::After, Fault::Lost(Duration::from_millis(1))] {
        let (store, place) = faulty(Policy::default());
        let first = place.begin().await;
        store.set_plan(FaultPlan::Named(vec![(Method::Commit, fault); 3]));
        place.go_on(1);
        first.await.unwrap().is("attempt 1", false);
        assert_eq!(store.injected().faults(), 3, "{fault:?}");
        place.post().await.is("attempt 1", true);
        assert_eq!(place.ran(), 1);
    }
}

#[tokio::test]
async fn a_completion_is_tried_until_the_renewed_lease_ends_not_the_first_one() {
    // Long enough for a machine that is busy with something else for a second.
    let (store, place) = faulty(Policy { lease_ms: 3_000, ..Policy::default() });
    let first = place.begin().await;
    // sleeps because the lease is renewed in real time, and the first one has to be over
    tokio::time::sleep(Duration::from_millis(3_200)).await;
    store.set_plan(FaultPlan::Named(vec![(Method::Commit, Fault::Before); 3]));
    place.go_on(1);
    first.await.unwrap().is("attempt 1", false);
    assert_eq!(place.ran(), 1);
}

/// The only record that there is.
async fn the_record(store: &dyn Store) -> Record {
    let all = List::Records { tenant: None, scope: None, state: None };
    let Items::Records(mut records) = store.list(all, None, 10).await.unwrap().items else {
        unreachable!()
    };
    assert_eq!(records.len(), 1);
    records.remove(0)
}

#[tokio::test]
async fn a_lease_is_renewed_before_half_of_it_whatever_is_awaited_meanwhile() {
    const LEASE_MS: u64 = 4_500;
    let store = Arc::new(MemoryStore::new());
    let place = place(store.clone(), Policy { lease_ms: LEASE_MS, ..Policy::default() });
    let (asked, sent) = (place.clone(), Instant::now());
    let answer = tokio::spawn(async move { asked.send("/trickles", "{}").await });
    place.upstream.started.acquire().await.unwrap().forget();
    let granted = the_record(&*store).await;
    // sleeps because the lease is renewed in real time: just before the first renewal
    tokio::time::sleep(Duration::from_millis(1_300).saturating_sub(sent.elapsed())).await;
    place.go_on(1);
    let mut renewed = the_record(&*store).await;
    while renewed.rev == granted.rev {
        // sleeps because the lease is renewed in real time, and nothing tells of it
        tokio::time::sleep(Duration::from_millis(20)).await;
        renewed = the_record(&*store).await;
    }
    assert!(renewed.updated_at.since(granted.updated_at) < LEASE_MS / 2, "{renewed:?}");
    place.go_on(2);
    answer.await.unwrap().is("at last", false);
}

#[tokio::test]
async fn i07_a_request_that_waits_for_its_service_keeps_its_lease_until_it_begins() {
    const LEASE_MS: u64 = 1_000;
    let (gate, ran) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU64::new(0)));
    let service = Unready { gate: gate.clone(), opens: None, ran: ran.clone() };
    let policy = Policy { lease_ms: LEASE_MS, wait_ms: 0, ..Policy::default() };
    let store = Arc::new(MemoryStore::new());
    let service = OncewardLayer::new(door(store.clone(), policy)).layer(service);
    let first = tokio::spawn(service.clone().oneshot(request("/", "{}")));
    let all = || List::Records { tenant: None, scope: None, state: None };
    let is_claimed = async || {
        let page = store.list(all(), None, 1).await.unwrap();
        matches!(page.items, Items::Records(records) if !records.is_empty())
    };
    while !is_claimed().await {
        tokio::task::yield_now().await;
    }
    // sleeps because the lease is renewed in real time, and the first one has to be over
    tokio::time::sleep(Duration::from_millis(LEASE_MS + 300)).await;
    let duplicate = service.oneshot(request("/", "{}")).await.unwrap();
    assert_eq!(duplicate.status(), StatusCode::CONFLICT, "it is still the first one's");
    gate.add_permits(2);
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a23_who_lost_its_lease_while_running_answers_what_the_other_recorded() {
    for late_first in [false, true] {
        let (store, clock) = MemoryStore::manual(At(1_707_993_000_000));
        let policy = Policy { lease_ms: 30_000, wait_ms: 20_000, ..Policy::default() };
        let store: Arc<dyn Store> = Arc::new(store);
        let place = place(store.clone(), policy.clone());
        let first = place.begin().await;
        clock.advance(30_001);
        // Another process: where the first one runs, nobody takes its key.
        let second = before(place.upstream.clone(), store, policy).begin().await;
        if late_first {
            place.go_on(1);
            place.go_on(2);
            second.await.unwrap().is("attempt 2", false);
        } else {
            place.go_on(2);
            second.await.unwrap().is("attempt 2", false);
            place.go_on(1);
        }
        first.await.unwrap().is("attempt 2", true);
        place.post().await.is("attempt 2", true);
        assert_eq!(place.ran(), 2);
    }
}

#[tokio::test]
async fn m8_a_store_s_clock_that_leaps_takes_no_key_from_who_runs_it_here() {
    for on_abandoned in [OnAbandoned::Rerun, OnAbandoned::Hold] {
        let (store, clock) = MemoryStore::manual(At(1_707_993_000_000));
        let policy = Policy { on_abandoned, wait_ms: 0, ..Policy::default() };
        let place = place(Arc::new(store), policy);
        let first = place.begin().await;
        clock.advance(3_600_000);
        let second = place.post().await;
        assert_eq!(second.status, 409, "{second:?}");
        let problem: Value = serde_json::from_slice(&second.body).unwrap();
        assert_eq!(problem["code"], "idempotency.in_flight");
        place.go_on(1);
        first.await.unwrap().is("attempt 1", false);
        place.post().await.is("attempt 1", true);
        assert_eq!(place.ran(), 1);
    }
}

#[tokio::test]
async fn i19_a_burst_on_a_silent_store_does_not_wait_for_one_failure_after_the_other() {
    const CALLERS: u32 = 20;
    let (store, place) = faulty(Policy::default());
    let silence = Duration::from_millis(100);
    let loads = vec![(Method::Load, Fault::Lost(silence)); MANY];
    let commits = vec![(Method::Commit, Fault::Before); MANY];
    store.set_plan(FaultPlan::Named([loads, commits].concat()));
    let asked = Instant::now();
    // All of them come before the first look has failed.
    let all = futures_util::future::join_all((0..CALLERS).map(|_| place.post())).await;
    all.iter().for_each(Answer::is_unavailable);
    assert_eq!(place.ran(), 0);
    // The cache's look is one for all. Then each looks once whether its key is done (M7).
    assert_eq!(store.injected().lost, 1 + u64::from(CALLERS), "who waits for a look repeats it");
    assert!(asked.elapsed() < silence * CALLERS, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_silent_store_is_503_in_time_and_what_it_granted_is_given_back() {
    let (store, place) = faulty(Policy { wait_ms: 200, ..Policy::default() });
    let silence = Duration::from_secs(3);
    let lost = Fault::Lost(silence);
    store.set_plan(FaultPlan::Named(vec![(Method::Load, lost), (Method::Commit, lost)]));
    let asked = Instant::now();
    place.post().await.is_unavailable();
    // A second for the cache, the route's own wait, and what the store may take.
    let most = Duration::from_secs(1) + Duration::from_millis(200) + STORE_WITHIN;
    assert!((most..silence).contains(&asked.elapsed()), "{:?}", asked.elapsed());
    assert_eq!(place.ran(), 0);
    // The claim was committed; it is found and given back long before its lease ends.
    place.go_on(1);
    let mut answer = place.post().await;
    while answer.status != 200 {
        answer = place.post().await;
    }
    answer.is("attempt 1", false);
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn h5_an_unknown_end_that_can_not_be_recorded_ends_with_its_lease_all_the_same() {
    for (fault, count) in [(Fault::Before, MANY), (Fault::After, 3)] {
        for on_abandoned in [OnAbandoned::Hold, OnAbandoned::Rerun] {
            let policy =
                Policy { on_abandoned, lease_ms: 300, wait_ms: 10_000, ..Policy::default() };
            let (store, place) = faulty(policy);
            let asked = place.clone();
            let first = tokio::spawn(async move { asked.send("/fails", "{}").await });
            place.upstream.started.acquire().await.unwrap().forget();
            store.set_plan(FaultPlan::Named(vec![(Method::Commit, fault); count]));
            place.go_on(1);
            let first = first.await.unwrap();
            assert_eq!(first.status, 502);
            assert_eq!(first.headers["idempotency-stored"], "false");
            store.set_plan(FaultPlan::Quiet);
            place.go_on(1);
            let retry = place.send("/fails", "{}").await;
            let expected = if on_abandoned == OnAbandoned::Hold { (409, 1) } else { (502, 2) };
            assert_eq!((retry.status, place.ran()), expected, "{fault:?}: {retry:?}");
        }
    }
}

/// Answers with the status that the body names, and completes nothing.
async fn says(State(upstream): State<Arc<Upstream>>, body: String) -> (StatusCode, &'static str) {
    upstream.ran.fetch_add(1, Ordering::SeqCst);
    (StatusCode::from_bytes(body.as_bytes()).unwrap(), "said")
}

/// What two requests with one key get when the service completes by itself and has not.
async fn uncompleted(on_abandoned: OnAbandoned, status: &str) -> (Vec<Answer>, u64) {
    let permit_text = Some(PermitText(Arc::new(|_, fence, _| fence.to_string())));
    let policy = Policy { permit_text, on_abandoned, ..Policy::default() };
    let place = place(Arc::new(MemoryStore::new()), policy);
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(place.send("/says", status).await);
    }
    (answers, place.ran())
}

#[tokio::test]
async fn ruling_4_an_error_that_completes_nothing_gives_the_key_back() {
    for on_abandoned in [OnAbandoned::Rerun, OnAbandoned::Hold] {
        for status in ["401", "404", "408", "422", "429", "500", "503"] {
            let (answers, ran) = uncompleted(on_abandoned, status).await;
            assert_eq!(ran, 2, "{status} under {on_abandoned:?}");
            for answer in answers {
                assert_eq!(
                    (answer.status.to_string().as_str(), &answer.body[..]),
                    (status, &b"said"[..])
                );
                assert_eq!(answer.headers["idempotency-stored"], "false");
            }
        }
    }
}

#[tokio::test]
async fn a_success_that_completes_nothing_promises_only_what_the_policy_does() {
    let problem = |answer: &Answer| serde_json::from_slice::<Value>(&answer.body).unwrap();
    let (answers, ran) = uncompleted(OnAbandoned::Rerun, "201").await;
    assert_eq!((answers[0].status, answers[1].status, ran), (502, 502, 2));
    assert!(problem(&answers[0])["detail"].as_str().unwrap().contains("runs again"));
    let (answers, ran) = uncompleted(OnAbandoned::Hold, "201").await;
    assert_eq!((answers[0].status, answers[1].status, ran), (502, 409, 1));
    assert!(!problem(&answers[0])["detail"].as_str().unwrap().contains("runs again"));
    assert_eq!(problem(&answers[1])["code"], "idempotency.outcome_unknown");
}
