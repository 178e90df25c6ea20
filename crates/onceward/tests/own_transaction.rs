//! The caller's own Postgres transaction: its rows and the key's record are there together or not
//! at all, a duplicate runs once, and waits without a connection.
//!
//! Commits are cut by a proxy, processes are killed, sessions are ended by the server; whoever
//! comes after finds both or neither.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what helps a test fails as a test does"
)]

#[path = "postgres/proxy.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod proxy;
#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::core::decide::{Claim, Completion, Effects, NewJob, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::core::outcome_policy::{Said, Statuses, ending};
use onceward::core::record::{OnAbandoned, State};
use onceward::engine::{Begun, Engine, EngineError, EngineOptions, OnceVerdict, Open, Take};
use onceward::store::StoreError;
use onceward::store::postgres::{OwnTransactions, PostgresOptions, PostgresStore};
use proxy::{Cut, CutAt, Proxy};
use support::*;
use tokio::task::JoinSet;
use tokio_postgres::Client;

/// A shop with a table of its own in the store's database.
struct Shop {
    place: Place,
    engine: Engine,
    own: OwnTransactions,
}

impl Shop {
    async fn new(name: &str) -> Self {
        let options =
            EngineOptions { contended_for: Duration::from_millis(300), ..EngineOptions::default() };
        Self::with(name, options).await
    }

    async fn with(name: &str, options: EngineOptions) -> Self {
        let place = Place::new(name).await;
        place.sql(&format!("CREATE TABLE {}.orders (name text NOT NULL)", place.schema)).await;
        // Longer than anything that a busy machine makes of a moment.
        let options_of_store =
            PostgresOptions { idle_in_transaction_timeout_ms: 30_000, ..place.options() };
        let store = PostgresStore::connect(&url(), options_of_store).await.unwrap();
        let own = store.own_transactions();
        let engine = Engine::with_options(Arc::new(store), options);
        Self { place, engine, own }
    }

    async fn client(&self) -> Client {
        client(&url()).await
    }

    async fn orders(&self) -> i64 {
        self.place.count(&format!("SELECT count(*) FROM {}.orders", self.place.schema)).await
    }

    async fn state(&self, id: &str) -> Option<State> {
        self.engine.look(&request(id)).await.unwrap().map(|found| found.stored.record.state)
    }

    fn insert(&self, name: &str) -> String {
        format!("INSERT INTO {}.orders VALUES ('{name}')", self.place.schema)
    }

    /// Orders once, on a connection of its own.
    async fn order(&self, id: &str) -> Result<OnceVerdict, EngineError> {
        let mut client = self.client().await;
        order(&self.engine, &self.own, &mut client, id, &self.insert(id)).await
    }

    async fn end(self) {
        self.engine.close().await.unwrap();
        self.place.remove().await;
    }
}

fn claim_of(id: &str) -> Claim {
    Claim::new(request(id), fingerprint_bytes(id.as_bytes()))
}

/// Inserts a row and answers the key's id.
async fn order(
    engine: &Engine,
    own: &OwnTransactions,
    client: &mut Client,
    id: &str,
    insert: &str,
) -> Result<OnceVerdict, EngineError> {
    match engine.begin_once(own, client, &claim_of(id)).await? {
        Begun::Not(verdict) => Ok(OnceVerdict::Not(verdict)),
        Begun::Open(open) => {
            open.client().batch_execute(insert).await.unwrap();
            open.complete(&Completion::new(id.as_bytes().into())).await
        }
    }
}

/// Begins what must begin.
async fn opened<'c>(shop: &Shop, client: &'c mut Client, id: &str) -> Open<'c> {
    match shop.engine.begin_once(&shop.own, client, &claim_of(id)).await.unwrap() {
        Begun::Open(open) => open,
        Begun::Not(verdict) => panic!("{verdict:?}"),
    }
}

#[tokio::test]
async fn a21_row_key_outcome_audit_and_job_commit_together() {
    let shop = Shop::new("own_together").await;
    let mut client = shop.client().await;
    let open = opened(&shop, &mut client, "k").await;
    open.client().batch_execute(&shop.insert("o")).await.unwrap();
    let key = Key::new(Kind::Job, "acme", "mail", "order/1").unwrap();
    let job = NewJob::new(key, fingerprint_bytes(b"later"), b"later"[..].into());
    let effects = Effects { jobs: vec![job], ..Effects::default() };
    let completion = Completion { effects, ..Completion::new(b"201"[..].into()) };
    let ran = open.complete(&completion).await.unwrap();
    let OnceVerdict::Ran { record, .. } = ran else { panic!("{ran:?}") };
    let found = shop.engine.look(&request("k")).await.unwrap().unwrap().stored;
    assert_eq!((&found.record, found.outcome.as_deref()), (&*record, Some(&b"201"[..])));
    assert_eq!((shop.orders().await, found.record.state), (1, State::Done));
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 9, lease_ms: None };
    assert_eq!(shop.engine.take(&take).await.unwrap().len(), 1);
    let audited = "SELECT count(*) FROM audit WHERE action = 'request.done'";
    assert_eq!(shop.place.count(audited).await, 1);
    // The connection is as it was: its settings are the caller's.
    let idle = "SELECT current_setting('idle_in_transaction_session_timeout')";
    assert_eq!(client.query_one(idle, &[]).await.unwrap().get::<_, String>(0), "0");
    shop.end().await;
}

#[tokio::test]
async fn a08_a_duplicate_replays_and_another_payload_is_a_mismatch_without_running() {
    let shop = Shop::new("own_duplicate").await;
    assert!(matches!(shop.order("k").await.unwrap(), OnceVerdict::Ran { .. }));
    let OnceVerdict::Not(Verdict::Replay(stored)) = shop.order("k").await.unwrap() else {
        panic!("it ran again")
    };
    assert_eq!(stored.outcome.as_deref(), Some(&b"k"[..]));
    let mut client = shop.client().await;
    let other = Claim::new(request("k"), fingerprint_bytes(b"another"));
    let begun = shop.engine.begin_once(&shop.own, &mut client, &other).await.unwrap();
    assert!(matches!(begun, Begun::Not(Verdict::Mismatch(_))), "{begun:?}");
    assert_eq!(shop.orders().await, 1);
    shop.end().await;
}

#[tokio::test]
async fn i11_work_that_is_given_up_leaves_nothing() {
    let shop = Shop::new("own_given_up").await;
    let mut client = shop.client().await;
    for abandoned in [true, false] {
        let open = opened(&shop, &mut client, "k").await;
        open.client().batch_execute(&shop.insert("k")).await.unwrap();
        if abandoned {
            open.abandon().await.unwrap();
        } else {
            drop(open);
        }
        assert_eq!((shop.orders().await, shop.state("k").await), (0, None));
    }
    // The connection can be used on, and the key is free.
    let ran = order(&shop.engine, &shop.own, &mut client, "k", &shop.insert("k")).await.unwrap();
    assert!(matches!(ran, OnceVerdict::Ran { .. }));
    shop.end().await;
}

/// As in SQLite: an end that would be unknown elsewhere is none here, because it is rolled back.
#[tokio::test]
async fn h5_in_ones_own_transaction_what_is_not_stored_has_not_happened() {
    let shop = Shop::new("own_ends").await;
    let mut client = shop.client().await;
    for status in [201, 401, 404, 408, 500, 502, 503, 504] {
        for (on_abandoned, dropped) in [(OnAbandoned::Hold, true), (OnAbandoned::Rerun, false)] {
            let id = format!("{status}-{on_abandoned:?}");
            let mut claim = claim_of(&id);
            claim.terms.on_abandoned = on_abandoned;
            let before = shop.orders().await;
            let said = Said { status, ..Said::default() };
            let stored = ending(&said, &Statuses::default()).is_stored();
            for attempt in [1, 2] {
                let begun = shop.engine.begin_once(&shop.own, &mut client, &claim).await.unwrap();
                let open = match begun {
                    Begun::Open(open) => open,
                    Begun::Not(verdict) => {
                        assert!(matches!(verdict, Verdict::Replay(_)), "{id}: {verdict:?}");
                        assert!(attempt == 2 && stored, "{id}");
                        continue;
                    }
                };
                open.client().batch_execute(&shop.insert(&id)).await.unwrap();
                if stored || attempt == 2 {
                    open.complete(&Completion::new(b"said"[..].into())).await.unwrap();
                } else if dropped {
                    // As a panic leaves it.
                    drop(open);
                } else {
                    open.abandon().await.unwrap();
                }
                let done = u64::from(stored || attempt == 2);
                assert_eq!(shop.orders().await, before + done.cast_signed(), "{id}");
            }
        }
    }
    shop.end().await;
}

#[tokio::test]
async fn i11_work_that_ends_the_transaction_itself_is_not_recorded() {
    let shop = Shop::new("own_ended").await;
    let mut client = shop.client().await;
    let open = opened(&shop, &mut client, "k").await;
    open.client().batch_execute(&shop.insert("k")).await.unwrap();
    open.client().batch_execute("ROLLBACK").await.unwrap();
    let error = open.complete(&Completion::new(b"done"[..].into())).await.unwrap_err();
    assert!(error.nothing_done() && error.to_string().contains("ended"), "{error}");
    assert_eq!((shop.orders().await, shop.state("k").await), (0, None));
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i01_of_many_at_once_one_runs_and_the_others_get_its_answer() {
    let shop = Arc::new(Shop::with("own_many", EngineOptions::default()).await);
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        let shop = shop.clone();
        callers.spawn(async move { shop.order(&format!("k{}", caller % 4)).await.unwrap() });
    }
    let mut ran = 0;
    while let Some(verdict) = callers.join_next().await {
        match verdict.unwrap() {
            OnceVerdict::Ran { .. } => ran += 1,
            OnceVerdict::Not(Verdict::Replay(_)) => {}
            OnceVerdict::Not(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((ran, shop.orders().await), (4, 4));
}

#[tokio::test]
async fn i26_a_duplicate_of_an_open_transaction_is_busy_and_holds_no_connection() {
    let shop = Arc::new(Shop::new("own_busy").await);
    let mut client = shop.client().await;
    let open = opened(&shop, &mut client, "k").await;
    open.client().batch_execute(&shop.insert("k")).await.unwrap();
    let before = Instant::now();
    let verdict = shop.order("k").await.unwrap();
    assert!(matches!(verdict, OnceVerdict::Not(Verdict::Busy { .. })), "{verdict:?}");
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
    // Another key is not held up by it.
    assert!(matches!(shop.order("other").await.unwrap(), OnceVerdict::Ran { .. }));
    // One that is patient gets the first one's answer.
    let waiting = tokio::spawn({
        let shop = shop.clone();
        async move {
            loop {
                match shop.order("k").await.unwrap() {
                    OnceVerdict::Not(Verdict::Busy { .. }) => {}
                    other => return other,
                }
            }
        }
    });
    assert!(matches!(
        open.complete(&Completion::new(b"first"[..].into())).await.unwrap(),
        OnceVerdict::Ran { .. }
    ));
    let OnceVerdict::Not(Verdict::Replay(stored)) = waiting.await.unwrap() else {
        panic!("no replay")
    };
    assert_eq!(stored.outcome.as_deref(), Some(&b"first"[..]));
    assert_eq!(shop.orders().await, 2);
}

#[tokio::test]
async fn i19_the_server_ends_a_transaction_that_idles_and_the_key_is_free() {
    let place = Place::new("own_idle").await;
    place.sql(&format!("CREATE TABLE {}.orders (name text NOT NULL)", place.schema)).await;
    let options = PostgresOptions { idle_in_transaction_timeout_ms: 500, ..place.options() };
    let store = PostgresStore::connect(&url(), options).await.unwrap();
    let own = store.own_transactions();
    let engine = Engine::new(Arc::new(store));
    let shop = Shop { place, engine, own };
    let mut idles = shop.client().await;
    let pid: i32 = idles.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let open = opened(&shop, &mut idles, "k").await;
    open.client().batch_execute(&shop.insert("k")).await.unwrap();
    // Does nothing until the server has had enough.
    let there = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    while shop.place.count(&there).await > 0 {
        tokio::task::yield_now().await;
    }
    let error = open.complete(&Completion::new(b"late"[..].into())).await.unwrap_err();
    assert!(error.nothing_done(), "{error}");
    assert_eq!((shop.orders().await, shop.state("k").await), (0, None));
    assert!(matches!(shop.order("k").await.unwrap(), OnceVerdict::Ran { .. }));
    shop.end().await;
}

#[tokio::test]
async fn i09_a_commit_whose_answer_is_lost_is_recognised() {
    let shop = Shop::new("own_lost").await;
    let (host, port) = server();
    for (cut, id) in [(Cut::AfterAnswer, "after"), (Cut::BeforeAnswer, "before")] {
        let proxy = Proxy::to(format!("{host}:{port}"), CutAt::Commit).await;
        let through = format!("postgres://postgres@{}/postgres", proxy.address());
        let mut client = client(&through).await;
        proxy.arm(cut);
        let ran = order(&shop.engine, &shop.own, &mut client, id, &shop.insert(id)).await.unwrap();
        assert!(matches!(ran, OnceVerdict::Ran { .. }), "{ran:?}");
        let again = shop.order(id).await.unwrap();
        assert!(matches!(again, OnceVerdict::Not(Verdict::Replay(_))), "{again:?}");
    }
    assert_eq!(shop.orders().await, 2);
    shop.end().await;
}

#[tokio::test]
async fn i02_a_connection_that_is_lost_before_the_commit_leaves_nothing() {
    let shop = Shop::new("own_cut").await;
    let mut client = shop.client().await;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let open = opened(&shop, &mut client, "k").await;
    open.client().batch_execute(&shop.insert("k")).await.unwrap();
    let end = format!("SELECT pg_terminate_backend({pid}, 5000)::int::bigint");
    assert_eq!(shop.place.count(&end).await, 1);
    let error = open.complete(&Completion::new(b"late"[..].into())).await.unwrap_err();
    assert!(matches!(error, EngineError::Store(StoreError::NotApplied(_))), "{error}");
    assert_eq!((shop.orders().await, shop.state("k").await), (0, None));
    shop.end().await;
}

#[tokio::test]
async fn a_login_that_is_no_member_is_refused_and_leaves_nothing() {
    let shop = Shop::new("own_stranger").await;
    let login = format!("t_own_{}", std::process::id());
    shop.place.sql(&format!("DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN")).await;
    let schema = &shop.place.schema;
    let (host, port) = server();
    let as_login = format!("postgres://{login}@{host}:{port}/postgres");
    shop.place.sql(&format!("GRANT USAGE ON SCHEMA {schema} TO {login}")).await;
    shop.place.sql(&format!("GRANT INSERT ON {schema}.orders TO {login}")).await;
    let mut stranger = client(&as_login).await;
    let insert = shop.insert("k");
    let refused = order(&shop.engine, &shop.own, &mut stranger, "k", &insert).await.unwrap_err();
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    assert_eq!((shop.orders().await, shop.state("k").await), (0, None));
    shop.place.sql(&format!("GRANT onceward_engine TO {login}")).await;
    let ran = order(&shop.engine, &shop.own, &mut stranger, "k", &insert).await.unwrap();
    assert!(matches!(ran, OnceVerdict::Ran { .. }), "{ran:?}");
    drop(stranger);
    shop.place.sql(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
    shop.end().await;
}

/// kill -9, of ourselves.
fn die() -> ! {
    let own = std::process::id().to_string();
    let killed = Command::new("kill").args(["-9", &own]).status();
    unreachable!("killed, and still here: {killed:?}")
}

/// The child: one key after the other, each with its row. Does nothing unless it is told where.
#[tokio::test]
async fn child_that_is_killed() {
    let Ok(schema) = std::env::var("ONCEWARD_TEST_OWN_SCHEMA") else { return };
    let dies: u64 = std::env::var("ONCEWARD_TEST_OWN_DIES").unwrap().parse().unwrap();
    let inside = std::env::var("ONCEWARD_TEST_OWN_INSIDE").is_ok();
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    let store = PostgresStore::connect(&url(), options).await.unwrap();
    let own = store.own_transactions();
    let engine = Engine::new(Arc::new(store));
    let mut client = client(&url()).await;
    for n in 0.. {
        let (id, insert) =
            (format!("{n:03}"), format!("INSERT INTO {schema}.orders VALUES ('{n}')"));
        match engine.begin_once(&own, &mut client, &claim_of(&id)).await.unwrap() {
            Begun::Not(verdict) => panic!("{verdict:?}"),
            Begun::Open(open) => {
                open.client().batch_execute(&insert).await.unwrap();
                if n == dies && inside {
                    die();
                }
                open.complete(&Completion::new(b"done"[..].into())).await.unwrap();
            }
        }
        if n == dies {
            die();
        }
    }
}

#[tokio::test]
async fn i11_killed_anywhere_rows_and_keys_are_there_together() {
    for inside in [true, false] {
        for dies in [0_u64, 3] {
            let name = format!("own_kill_{inside}_{dies}");
            let shop = Shop::with(&name, EngineOptions::default()).await;
            let mut child = Command::new(std::env::current_exe().unwrap());
            child
                .args(["--exact", "child_that_is_killed", "--test-threads=1"])
                .env("ONCEWARD_TEST_OWN_SCHEMA", &shop.place.schema)
                .env("ONCEWARD_TEST_OWN_DIES", dies.to_string());
            if inside {
                child.env("ONCEWARD_TEST_OWN_INSIDE", "1");
            }
            assert!(!child.output().unwrap().status.success(), "it dies");
            let whole = if inside { dies } else { dies + 1 };
            // What was cut off runs now, once: waits until the server has noticed.
            let last = format!("{dies:03}");
            let again = shop.order(&last).await.unwrap();
            assert_eq!(matches!(again, OnceVerdict::Ran { .. }), inside, "{again:?}");
            assert_eq!(shop.orders().await, i64::try_from(dies + 1).unwrap(), "{inside} {dies}");
            for n in 0..whole {
                assert_eq!(shop.state(&format!("{n:03}")).await, Some(State::Done));
            }
            shop.end().await;
        }
    }
}
