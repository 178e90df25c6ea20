//! Two gateways on one Postgres, with and without Redis: one truth, whichever is asked, and a cache
//! that may be killed, stopped, flushed and bypassed without anybody noticing more than time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use serde_json::Value;

use super::client::{Answer, PATIENCE, post, request, send, try_send};
use super::redis_server::RedisServer;
use super::servers::Database;
use super::target::{Gateway, Setup, command, folder, serve};
use super::upstream::App;

/// Two gateways in front of one API.
struct Pair {
    one: Gateway,
    two: Gateway,
    app: Arc<App>,
    upstream: SocketAddr,
    database: Database,
}

impl Pair {
    async fn new(name: &str, setup: &Setup, redis: Option<&RedisServer>) -> Self {
        let app = App::new();
        let upstream = serve(app.router()).await;
        let database = Database::new().await;
        let start = |number: u32| {
            let folder = folder(&format!("{name}-{number}"));
            // Nothing in a gateway's own memory: what a cache answers, Redis does. It may take long
            // enough that a busy machine does not pass for an outage.
            let config = "[cache]\nmax_bytes = 0\ntimeout = \"500ms\"\n";
            let config = if redis.is_some() { config } else { "" };
            std::fs::write(folder.join("onceward.toml"), config).unwrap();
            let mut flags = setup.flags();
            flags.push(format!("--store={}", database.url()));
            flags.extend(redis.map(|redis| format!("--cache={}", redis.url())));
            Gateway::start(&folder, upstream, &flags)
        };
        Self { one: start(1), two: start(2), app, upstream, database }
    }

    fn both(&self) -> [SocketAddr; 2] {
        [self.one.listen, self.two.listen]
    }
}

/// Asks a control API, as its operator.
async fn admin(at: SocketAddr, method: &str, path: &str) -> Answer {
    let asked = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "x")
        .header("authorization", "Bearer operator-of-the-tests");
    send(at, asked.body(Empty::<Bytes>::new()).unwrap()).await
}

/// A counter of a gateway, by its whole name.
async fn counter(at: SocketAddr, name: &str) -> u64 {
    let text = admin(at, "GET", "/metrics").await.body;
    let text = String::from_utf8(text.to_vec()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

async fn health(at: SocketAddr) -> Value {
    admin(at, "GET", "/healthz").await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_sent_to_both_run_once() {
    let pair = Pair::new("both", &Setup::default(), None).await;
    let sent: Vec<_> = (0..40)
        .map(|n| {
            let (to, key) = (pair.both()[n % 2], format!("k{}", n / 10));
            tokio::spawn(async move { (n / 10, post(to, "/payments", Some(&key), "{}").await) })
        })
        .collect();
    let mut first: [Option<Bytes>; 4] = Default::default();
    for sent in sent {
        let (key, answer) = sent.await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(*first[key].get_or_insert_with(|| answer.body.clone()), answer.body);
    }
    assert_eq!((pair.app.ran(), pair.app.at_once_max()), (4, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_at_the_other_gets_the_answer() {
    let pair = Pair::new("waits", &Setup::default(), None).await;
    let [one, two] = pair.both();
    let first = tokio::spawn(async move { post(one, "/slow", Some("k"), "{}").await });
    pair.app.started().await;
    let other = post(two, "/slow", Some("k"), r#"{"another":1}"#).await;
    assert_eq!(other.problem(), (422, "idempotency.payload_mismatch".into()));
    let waiting: Vec<_> = (0..5)
        .map(|_| tokio::spawn(async move { post(two, "/slow", Some("k"), "{}").await }))
        .collect();
    pair.app.go_on();
    let first = first.await.unwrap();
    for waiting in waiting {
        let waited = waiting.await.unwrap();
        assert_eq!((waited.is_replay(), &waited.body), (true, &first.body));
    }
    assert_eq!(pair.app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i05_what_one_was_killed_at_the_other_takes_over_with_a_higher_fence() {
    let setup = Setup { lease_ms: 1_000, ..Setup::default() };
    let pair = Pair::new("taken_over", &setup, None).await;
    let [one, two] = pair.both();
    let lost = tokio::spawn(try_send(one, request("/slow", Some("k"), "{}")));
    pair.app.started().await;
    let Pair { one, two: _other, app, upstream: _, database: _database } = pair;
    one.kill();
    assert_eq!(lost.await.unwrap(), None);
    let retried = tokio::spawn(async move { post(two, "/slow", Some("k"), "{}").await });
    app.started().await;
    app.go_on();
    app.go_on();
    assert_eq!(retried.await.unwrap().status, 200);
    let runs = app.runs();
    assert!(runs.len() == 2 && runs[1].fence > runs[0].fence && runs[1].attempt == 2, "{runs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a11_a_replay_at_the_other_comes_from_redis_and_is_counted() {
    let redis = RedisServer::start();
    let pair = Pair::new("cached", &Setup::default(), Some(&redis)).await;
    let [one, two] = pair.both();
    let first = post(one, "/payments", Some("k"), "{}").await;
    assert!(post(one, "/payments", Some("k"), "{}").await.is_replay());
    let begun = Instant::now();
    while counter(pair.one.admin, "onceward_redis_fills_total").await == 0 {
        assert!(begun.elapsed() < PATIENCE);
        assert!(post(one, "/payments", Some("k"), "{}").await.is_replay());
    }
    let names = redis.names();
    let [name] = &names[..] else { panic!("{names:?}") };
    assert!(name.starts_with("idempo:default:") && name.ends_with(":k"), "{name}");
    let again = post(two, "/payments", Some("k"), "{}").await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    assert_eq!(counter(pair.two.admin, "onceward_redis_hits_total").await, 1);
    assert_eq!(counter(pair.two.admin, "onceward_cache_hits_total").await, 1);
    assert_eq!(pair.app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_of_the_cache_and_readiness_does_not_hang_on_it() {
    let mut redis = RedisServer::start();
    let pair = Pair::new("cache_health", &Setup::default(), Some(&redis)).await;
    let at = pair.one.admin;
    let up = health(at).await;
    assert_eq!((&up["cache"], &up["cache_status"]), (&"redis".into(), &"up".into()), "{up}");
    redis.kill();
    let down = health(at).await;
    assert_eq!((&down["status"], &down["cache_status"]), (&"ok".into(), &"down".into()), "{down}");
    assert_eq!(admin(at, "GET", "/readyz").await.status, 200);
    assert_eq!(post(pair.one.listen, "/payments", Some("k"), "{}").await.status, 201);
    assert!(counter(at, "onceward_redis_errors_total").await > 0);
    redis.restart();
    assert_eq!(health(at).await["cache_status"], "up");
    // A gateway that starts while the cache is away serves all the same, and says so.
    redis.kill();
    let folder = folder("cache_away");
    let flags = [format!("--store={}", pair.database.url()), format!("--cache={}", redis.url())];
    let late = Gateway::start(&folder, pair.upstream, &flags);
    assert!(post(late.listen, "/payments", Some("k"), "{}").await.is_replay());
    late.terminate();
    let (code, said) = late.ended();
    assert_eq!(code, Some(0));
    assert!(said.contains("the cache gives no answer"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_erased_anywhere_is_replayed_nowhere() {
    let redis = RedisServer::start();
    let pair = Pair::new("erased", &Setup::default(), Some(&redis)).await;
    let [one, two] = pair.both();
    for at in [one, two] {
        post(at, "/payments", Some("k"), "{}").await;
        assert!(post(at, "/payments", Some("k"), "{}").await.is_replay());
    }
    let listed = admin(pair.one.admin, "GET", "/v1/records").await.json();
    let word = |name: &str| listed["items"][0][name].as_str().unwrap().to_string();
    let (key, reference) = (word("key"), word("ref"));
    // By the command line, which is told of the store alone: it reaches neither cache.
    let erase = ["keys", "erase", &key, "--yes", "--store", &pair.database.url()];
    let erased = command(&folder("erasing"), &erase).output().unwrap();
    assert!(erased.status.success(), "{}", String::from_utf8_lossy(&erased.stderr));
    for (at, ran) in [(one, 2), (two, 2)] {
        let begun = Instant::now();
        let old = loop {
            let answer = post(at, "/payments", Some("k"), "{}").await;
            assert_eq!(answer.status, 201);
            if answer.json()["payment"] == 2 {
                break answer;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "still replayed: {answer:?}");
        };
        assert_eq!((old.json()["payment"].clone(), pair.app.ran()), (2.into(), ran));
    }
    // Through the control API it is gone at once, and from Redis too.
    let erased = admin(pair.one.admin, "DELETE", &format!("/v1/records/{reference}")).await;
    assert_eq!(erased.status, 200, "{erased:?}");
    assert!(redis.names().iter().all(|name| !name.ends_with(":k")), "{:?}", redis.names());
    assert!(!post(one, "/payments", Some("k"), "{}").await.is_replay());
}

/// Sends every key several times, through both gateways in turn; what each key was answered.
async fn load(both: [SocketAddr; 2], client: usize, stop: Arc<AtomicBool>) -> Vec<(String, Bytes)> {
    let mut answered = Vec::new();
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let key = format!("c{client}-{n}");
        let first = post(both[(client + n) % 2], "/payments", Some(&key), "{}").await;
        assert!(first.status == 201 && !first.is_replay(), "{first:?}");
        for turn in 1..4 {
            let again = post(both[(client + n + turn) % 2], "/payments", Some(&key), "{}").await;
            assert_eq!((again.is_replay(), &again.body), (true, &first.body), "{key}");
        }
        answered.push((key, first.body));
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a11_killed_stopped_and_flushed_under_load_nothing_is_lost_and_nothing_runs_twice() {
    let mut redis = RedisServer::start();
    let pair = Pair::new("cache_faults", &Setup::default(), Some(&redis)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..6).map(|client| tokio::spawn(load(pair.both(), client, stop.clone()))).collect();
    // Each fault comes once some more requests have gone through what was before it.
    let app = pair.app.clone();
    let some_more = async || {
        let (begun, before) = (Instant::now(), app.ran());
        while app.ran() < before + 40 {
            assert!(begun.elapsed() < PATIENCE, "the load stands still");
            // sleeps because requests of others are counted, and looking must not slow them down
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    for _ in 0..2 {
        some_more().await;
        redis.kill();
        some_more().await;
        redis.restart();
        some_more().await;
        let _: () = redis.ask(&redis::cmd("FLUSHALL"));
        some_more().await;
        redis.stop();
        some_more().await;
        redis.go_on();
    }
    some_more().await;
    stop.store(true, Ordering::SeqCst);
    let mut answered = Vec::new();
    for client in clients {
        answered.extend(client.await.unwrap());
    }
    assert_eq!(pair.app.ran(), answered.len(), "each key ran once");
    assert_eq!(pair.app.at_once_max(), 1);
    // What was answered stands, at both, and from the store alone when all caches are gone.
    let _: () = redis.ask(&redis::cmd("FLUSHALL"));
    for (n, (key, body)) in answered.iter().enumerate() {
        let again = post(pair.both()[n % 2], "/payments", Some(key), "{}").await;
        assert_eq!((again.is_replay(), &again.body), (true, body), "{key}");
    }
    let hits = counter(pair.one.admin, "onceward_redis_hits_total").await;
    let errors = counter(pair.one.admin, "onceward_redis_errors_total").await;
    assert!(hits > 0 && errors > 0, "the cache was used ({hits}) and was away ({errors})");
}
