//! The cache in Redis, with the real server: it answers replays and nothing else, and whatever is
//! done to it (killed, stopped, flushed, filled with rubbish) costs time only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's helpers")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use http_body_util::BodyExt;
use onceward::cache::{ERASED_SEEN_WITHIN, RedisCache, RedisCacheOptions, RedisStats};
use onceward::core::audit::Trace;
use onceward::core::decide::{Resolution, Resolved};
use onceward::core::key::{Key, Kind};
use onceward::engine::Engine;
use onceward::http::{Caller, Door, Identity, OncewardLayer, Policy, Routes};
use onceward::store::Store;
use onceward::store::clock::ManualClock;
use onceward::store::memory::MemoryStore;
use onceward::testing::harness::START;
use tower::ServiceExt;

use support::redis::RedisServer;

/// Long enough that a slow machine never misses it by accident.
const WITHIN: Duration = Duration::from_millis(500);
/// How long something that happens by itself may take.
const PATIENCE: Duration = Duration::from_secs(20);
const RETAIN_MS: u64 = 60_000;

/// One store, one Redis, one handler that counts; as many processes on them as a test wants.
struct Place {
    redis: RedisServer,
    store: Arc<MemoryStore>,
    clock: ManualClock,
    ran: Arc<AtomicU64>,
}

/// One process: a door with caches of its own.
struct Process {
    router: Router,
    door: Arc<Door>,
    engine: Engine,
    cache: RedisCache,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotency-replayed")
    }
}

async fn pay(State(ran): State<Arc<AtomicU64>>, body: Bytes) -> (StatusCode, String) {
    let ran = ran.fetch_add(1, Ordering::SeqCst) + 1;
    (StatusCode::CREATED, format!("run {ran} of {} bytes", body.len()))
}

impl Place {
    fn new() -> Self {
        let (store, clock) = MemoryStore::manual(START);
        let ran = Arc::new(AtomicU64::new(0));
        Self { redis: RedisServer::start(), store: Arc::new(store), clock, ran }
    }

    /// A process that keeps nothing in its own memory.
    fn process(&self) -> Process {
        self.process_with(RedisCacheOptions::default(), 0)
    }

    fn process_with(&self, options: RedisCacheOptions, bytes: u64) -> Process {
        let options = RedisCacheOptions { within: WITHIN, secret: [5; 32], ..options };
        let cache = RedisCache::open(&self.redis.url(), options).unwrap();
        let engine = Engine::new(self.store.clone() as Arc<dyn Store>);
        let everybody = Caller { tenant: "acme".into(), caller: "ada".into() };
        let identity = Identity::Custom(Arc::new(move |_| Some(everybody.clone())));
        let policy =
            Policy { retain_ms: RETAIN_MS, retain_errors_ms: RETAIN_MS, ..Policy::default() };
        let door = Door::new(engine.clone(), identity, Routes::every(policy).unwrap())
            .with_cache_bytes(bytes)
            .with_redis(cache.clone());
        let door = Arc::new(door);
        let router = Router::new()
            .route("/payments", post(pay))
            .with_state(self.ran.clone())
            .layer(OncewardLayer::shared(door.clone()));
        Process { router, door, engine, cache }
    }

    fn ran(&self) -> u64 {
        self.ran.load(Ordering::SeqCst)
    }
}

impl Process {
    async fn post(&self, key: &str, body: &str) -> Answer {
        let request = Request::post("/payments")
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    /// Runs a request once and lets a retry fill the cache; the outcome's name in Redis.
    async fn filled(&self, key: &str) -> String {
        let fills = self.cache.stats().fills;
        let first = self.post(key, "{}").await;
        assert!(first.status == 201 && !first.is_replay());
        self.refill(key, fills).await;
        self.cache.name(&self.key(key))
    }

    /// A retry that the store answers, and the end of the fill that it begins.
    async fn refill(&self, key: &str, fills: u64) {
        assert!(self.post(key, "{}").await.is_replay());
        until("the fill has ended", || self.cache.stats().fills > fills).await;
    }

    fn key(&self, id: &str) -> Key {
        Key::within(Kind::Request, "acme", "POST /payments", &["ada"], id).unwrap()
    }

    async fn erase(&self, key: &str) {
        let by = Trace::default();
        let erased = self.engine.resolve(&self.key(key), &Resolution::Erase, &by).await.unwrap();
        assert_eq!(erased, Resolved::Ok);
    }
}

/// Waits for something that another task does.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a11_a_replay_in_another_process_comes_from_redis() {
    let place = Place::new();
    let (one, two) = (place.process(), place.process());
    let first = one.post("k", "{}").await;
    assert!(place.redis.names().is_empty(), "nothing is kept before someone asks again");
    one.refill("k", 0).await;
    let name = one.cache.name(&one.key("k"));
    assert_eq!(name, "idempo:default:acme:POST /payments%3Aada:k");
    assert_eq!(place.redis.names(), std::slice::from_ref(&name));
    let ttl: u64 = place.redis.ask(redis::cmd("PTTL").arg(&name));
    assert!((RETAIN_MS - 20_000..=RETAIN_MS).contains(&ttl), "{ttl}");
    let again = two.post("k", "{}").await;
    assert!(again.is_replay() && again.status == 201 && again.body == first.body);
    let stats = RedisStats { hits: 1, ..RedisStats::default() };
    assert_eq!((two.cache.stats(), place.ran()), (stats, 1));
}

#[tokio::test]
async fn a11_the_ttl_is_what_is_left_of_the_retention() {
    let place = Place::new();
    let one = place.process();
    one.post("k", "{}").await;
    place.clock.advance(RETAIN_MS - 10_000);
    one.refill("k", 0).await;
    let ttl: u64 = place.redis.ask(redis::cmd("PTTL").arg(one.cache.name(&one.key("k"))));
    assert!((1..=10_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a13_what_has_expired_is_not_replayed_though_redis_has_it() {
    let place = Place::new();
    let name = place.process().filled("k").await;
    // The store's clock has gone on, that of Redis has not.
    place.clock.advance(RETAIN_MS);
    let two = place.process();
    let again = two.post("k", "{}").await;
    assert!(!again.is_replay() && place.ran() == 2);
    assert_eq!(two.cache.stats().stale, 1);
    assert_eq!(place.redis.names(), [name]);
}

#[tokio::test]
async fn a09_another_payload_is_judged_by_the_store() {
    let place = Place::new();
    let one = place.process();
    one.filled("k").await;
    assert_eq!(one.post("k", "[1]").await.status, 422);
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn a11_rubbish_in_redis_is_refused_and_replaced() {
    let place = Place::new();
    let one = place.process();
    let (name, other) = (one.filled("k").await, one.filled("other").await);
    let get = |name: &str| -> Vec<u8> { place.redis.ask(redis::cmd("GET").arg(name)) };
    let (good, swapped) = (get(&name), get(&other));
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    let cut = good[..good.len() - 1].to_vec();
    let bad = [swapped, flipped, cut, Vec::new(), b"rubbish".to_vec(), vec![0; 100_000]];
    for (at, bad) in bad.into_iter().enumerate() {
        let _: () = place.redis.ask(redis::cmd("SET").arg(&name).arg(bad));
        let process = place.process();
        process.refill("k", 0).await;
        assert_eq!(process.cache.stats().refused, 1, "{at}");
        assert_eq!(get(&name).len(), good.len(), "{at}: it was replaced");
        assert!(process.post("k", "{}").await.is_replay());
        assert_eq!(process.cache.stats().hits, 1, "{at}");
    }
    // Not even of a kind that can be read.
    let _: () = place.redis.ask(redis::cmd("DEL").arg(&name));
    let _: () = place.redis.ask(redis::cmd("LPUSH").arg(&name).arg("x"));
    let process = place.process();
    assert!(process.post("k", "{}").await.is_replay());
    assert_eq!((process.cache.stats().errors > 0, place.ran()), (true, 2));
}

#[tokio::test]
async fn a01_a_value_of_another_store_or_deployment_is_not_read() {
    let place = Place::new();
    place.process().filled("k").await;
    // Another store, the same names: the seal differs.
    let (store, _) = MemoryStore::manual(START);
    let elsewhere = Place { store: Arc::new(store), ..place };
    let secret = [6; 32];
    let cache = RedisCacheOptions { within: WITHIN, secret, ..RedisCacheOptions::default() };
    let cache = RedisCache::open(&elsewhere.redis.url(), cache).unwrap();
    let engine = Engine::new(elsewhere.store.clone() as Arc<dyn Store>);
    let everybody = Caller { tenant: "acme".into(), caller: "ada".into() };
    let identity = Identity::Custom(Arc::new(move |_| Some(everybody.clone())));
    let routes = Routes::every(Policy::default()).unwrap();
    let door = Arc::new(Door::new(engine.clone(), identity, routes).with_redis(cache.clone()));
    let router = Router::new()
        .route("/payments", post(pay))
        .with_state(elsewhere.ran.clone())
        .layer(OncewardLayer::shared(door.clone()));
    let process = Process { router, door, engine, cache };
    assert!(!process.post("k", "{}").await.is_replay());
    assert_eq!((process.cache.stats().refused, elsewhere.ran()), (1, 2));
    // Another deployment: other names.
    let options = RedisCacheOptions { env: "staging".into(), ..RedisCacheOptions::default() };
    let staging = elsewhere.process_with(options, 0);
    assert!(staging.post("k", "{}").await.is_replay(), "from the store that they share");
    assert_eq!(staging.cache.stats().misses, 1);
}

#[tokio::test]
async fn an_erased_outcome_is_not_replayed_though_redis_still_has_it() {
    let place = Place::new();
    let (one, two) = (place.process_with(RedisCacheOptions::default(), 1 << 20), place.process());
    let name = one.filled("k").await;
    // Erasures are noted for sixteen kinds of keys apart: one of the same kind.
    let kind = |id: &str| one.key(id).hash_hex()[..1].to_string();
    let mut others = (0..).map(|n| format!("kept-{n}"));
    let kept = others.find(|id| kind(id) == kind("k")).unwrap();
    one.filled(&kept).await;
    assert!(one.post("k", "{}").await.is_replay(), "from memory");
    // Erased by a process that can't reach Redis, so that nothing is purged.
    two.erase("k").await;
    assert!(place.redis.names().contains(&name));
    // One that heard nothing of it notices in time, though memory and Redis have the value.
    let begun = Instant::now();
    while one.post("k", "{}").await.is_replay() {
        assert!(begun.elapsed() < ERASED_SEEN_WITHIN + PATIENCE, "still replayed");
    }
    assert_eq!(place.ran(), 3);
    // Its neighbours cost a look at the store, and are kept again.
    let three = place.process();
    three.refill(&kept, 0).await;
    assert_eq!((three.cache.stats().stale, place.ran()), (1, 3));
    assert!(three.post(&kept, "{}").await.is_replay());
    assert_eq!(three.cache.stats().hits, 1);
    // The new outcome of the erased key is replayed, never the old one.
    assert_eq!(three.post("k", "{}").await.body, "run 3 of 2 bytes");
}

#[tokio::test]
async fn whoever_erases_forgets_at_once_and_purges_redis() {
    let place = Place::new();
    let one = place.process_with(RedisCacheOptions::default(), 1 << 20);
    one.filled("k").await;
    one.erase("k").await;
    one.door.forget(&one.key("k")).await;
    assert!(place.redis.names().is_empty());
    assert!(!one.post("k", "{}").await.is_replay());
    assert_eq!(place.ran(), 2);
}

#[tokio::test]
async fn a_fill_from_before_an_erasure_is_not_replayed_after_it() {
    let place = Place::new();
    let one = place.process();
    let name = one.filled("k").await;
    let old: Vec<u8> = place.redis.ask(redis::cmd("GET").arg(&name));
    one.erase("k").await;
    one.door.forget(&one.key("k")).await;
    // What a slow process read before the erasure comes after the purge.
    let _: () = place.redis.ask(redis::cmd("SET").arg(&name).arg(old));
    assert!(!place.process().post("k", "{}").await.is_replay());
    assert!(!one.post("k", "{}").await.body.starts_with(b"run 1"));
}

#[tokio::test]
async fn a12_a_sweep_tells_whose_outcomes_are_gone() {
    let place = Place::new();
    let one = place.process();
    one.filled("k").await;
    place.clock.advance(RETAIN_MS);
    let mut gone = Vec::new();
    one.engine.sweep_telling(|_, keys| gone.extend(keys)).await.unwrap();
    assert_eq!(gone, [one.key("k")]);
    one.cache.purge(&gone).await.unwrap();
    assert!(place.redis.names().is_empty());
}

#[tokio::test]
async fn a11_a_flushed_redis_is_filled_again() {
    let place = Place::new();
    let one = place.process();
    one.filled("k").await;
    let _: () = place.redis.ask(&redis::cmd("FLUSHALL"));
    one.refill("k", 1).await;
    assert!(one.post("k", "{}").await.is_replay());
    assert_eq!((one.cache.stats().hits, place.ran()), (1, 1));
}

#[tokio::test]
async fn a11_a_killed_redis_costs_time_only_and_is_used_again_when_it_is_back() {
    let mut place = Place::new();
    let one = place.process();
    one.filled("k").await;
    place.redis.kill();
    for round in 0..20 {
        assert!(one.post("k", "{}").await.is_replay(), "{round}");
        let fresh = one.post(&format!("new-{round}"), "{}").await;
        assert!(fresh.status == 201 && !fresh.is_replay(), "{round}");
    }
    assert!(!one.cache.is_up().await);
    assert_eq!((one.cache.stats().hits, place.ran()), (0, 21));
    // A process that starts while it is away serves too.
    let two = place.process();
    assert!(two.post("k", "{}").await.is_replay());
    place.redis.restart();
    let begun = Instant::now();
    while one.cache.stats().hits == 0 || two.cache.stats().hits == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is not used again");
        for process in [&one, &two] {
            assert!(process.post("k", "{}").await.is_replay());
        }
    }
    assert_eq!(place.ran(), 21);
}

#[tokio::test]
async fn a11_a_redis_that_says_nothing_is_waited_for_thrice_at_most() {
    let place = Place::new();
    let one = place.process();
    one.filled("k").await;
    place.redis.stop();
    let begun = Instant::now();
    for round in 0..30 {
        assert!(one.post("k", "{}").await.is_replay(), "{round}");
    }
    // Without a breaker it would be thirty times, and a fill after each.
    assert!(begun.elapsed() < 12 * WITHIN, "{:?}", begun.elapsed());
    assert!(!one.cache.is_up().await);
    place.redis.go_on();
    let begun = Instant::now();
    while one.cache.stats().hits == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is not used again");
        assert!(one.post("k", "{}").await.is_replay());
    }
    assert_eq!(place.ran(), 1);
}

#[tokio::test]
async fn a11_a_redis_without_room_keeps_nothing_and_harms_nobody() {
    let place = Place::new();
    let _: () = place.redis.ask(redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1"));
    let one = place.process();
    one.post("k", "{}").await;
    for _ in 0..5 {
        assert!(one.post("k", "{}").await.is_replay());
    }
    until("a fill was refused", || one.cache.stats().errors > 0).await;
    assert_eq!((one.cache.stats().fills, place.ran()), (0, 1));
}
