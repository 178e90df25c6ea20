//! Faults with the real server: killed under load, too few connections, bells between processes,
//! and plans that stay index look-ups whatever the server knows of its tables.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what helps a test fails as a test does"
)]

#[path = "postgres/cluster.rs"]
mod cluster;
#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::Cluster;
use onceward::core::audit::Entry;
use onceward::core::batch::{Answer, Condition, Write};
use onceward::core::decide::{Claim, Completion, Finish, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::core::record::{Body, State};
use onceward::engine::{Engine, EngineError};
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::{List, Read, Store, StoreError};
use support::*;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, NoTls};

/// What was done: keys and fences, appended without any constraint.
type Ledger = Arc<Mutex<Vec<(String, u64)>>>;

/// Runs one key to its end, coming again with the same key whatever goes wrong.
async fn one_key(engine: &Engine, id: &str, lease_ms: u64, ledger: &Ledger) {
    let key = Key::new(Kind::Request, "acme", "scope", id).unwrap();
    let mut claim = Claim::new(key, fingerprint_bytes(id.as_bytes()));
    claim.terms.lease_ms = lease_ms;
    // sleeps because the server is away, or the lease of an attempt that is lost still runs.
    let pause = || tokio::time::sleep(Duration::from_millis(20));
    loop {
        let verdict = engine.claim(&claim).await;
        match verdict {
            Ok(Verdict::Run { permit, .. }) => {
                ledger.lock().unwrap().push((id.into(), permit.fence.0));
                let completion = Completion::new(id.as_bytes().into());
                loop {
                    match engine.complete(&permit, &completion).await {
                        Ok(Finish::Ok) => return,
                        Ok(_) => break,
                        Err(error) => assert!(may_pass(&error), "{error}"),
                    }
                    pause().await;
                }
            }
            Ok(Verdict::Replay(stored)) => {
                assert_eq!(stored.outcome.as_deref(), Some(id.as_bytes()));
                return;
            }
            Ok(Verdict::Busy { .. }) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(may_pass(&error), "{error}"),
        }
        pause().await;
    }
}

fn may_pass(error: &EngineError) -> bool {
    error.is_retryable() || matches!(error, EngineError::Contended(_))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i02_a_server_that_is_killed_under_load_loses_nothing_and_runs_nothing_twice() {
    const CALLERS: usize = 16;
    const EACH: usize = 60;
    let cluster = Cluster::start();
    PostgresStore::migrate(&cluster.url(), PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&cluster.url(), PostgresOptions::default()).await.unwrap();
    let engine = Engine::new(Arc::new(store));
    let ledger = Ledger::default();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let (engine, ledger) = (engine.clone(), ledger.clone());
        callers.spawn(async move {
            for number in 0..EACH {
                one_key(&engine, &format!("{caller}-{number}"), 500, &ledger).await;
            }
        });
    }
    for share in [5, 2] {
        // In the middle of the load, not at its edge.
        while ledger.lock().unwrap().len() < CALLERS * EACH / share {
            tokio::task::yield_now().await;
        }
        cluster.kill();
        cluster.restart();
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    // Acknowledged and there, each with its own outcome; each extra effect has a higher fence.
    let mut fences: HashMap<String, Vec<u64>> = HashMap::new();
    for (id, fence) in ledger.lock().unwrap().iter() {
        fences.entry(id.clone()).or_default().push(*fence);
    }
    assert_eq!(fences.len(), CALLERS * EACH);
    for (id, fences) in fences {
        assert!(fences.is_sorted_by(|a, b| a < b), "{id}: {fences:?}");
        let key = Key::new(Kind::Request, "acme", "scope", &id).unwrap();
        let found = engine.look(&key).await.unwrap().unwrap().stored;
        assert_eq!(found.record.state, State::Done, "{id}");
        assert_eq!(found.record.last_fence.0, *fences.last().unwrap(), "{id}");
        assert_eq!(found.outcome.as_deref(), Some(id.as_bytes()));
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i20_too_few_connections_cost_time_only() {
    let place = Place::new("few").await;
    let login = format!("t_few_{}", std::process::id());
    // Three are open from the start: one that writes, one that reads, one that listens.
    place
        .sql(&format!("CREATE ROLE {login} LOGIN CONNECTION LIMIT 3 IN ROLE onceward_engine"))
        .await;
    let store = place.store_with(&[("user", &login)]).await.unwrap();
    let engine = Engine::new(Arc::new(store));
    let ledger = Ledger::default();
    let mut callers = JoinSet::new();
    for caller in 0..32 {
        let (engine, ledger) = (engine.clone(), ledger.clone());
        callers
            .spawn(async move { one_key(&engine, &format!("k{caller}"), 30_000, &ledger).await });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    assert_eq!(ledger.lock().unwrap().len(), 32, "each ran once");
    engine.close().await.unwrap();
    place.sql(&format!("DROP ROLE {login}")).await;
    place.remove().await;
}

/// Hears what groups tell other processes.
async fn bells(place: &Place) -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (client, mut connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
    let (tell, heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(bell) = message {
                let _ = tell.send(bell.payload().to_string());
            }
        }
    });
    client.batch_execute(&format!("LISTEN \"{}\"", place.schema)).await.unwrap();
    // Kept open for as long as the test runs.
    std::mem::forget(client);
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_in_another_process_are_rung_for_and_nobody_else() {
    let place = Place::new("bells").await;
    let (here, there) = (place.store().await, Arc::new(place.store().await));
    let mut heard = bells(&place).await;
    let (wanted, unwanted) = (request("wanted"), request("unwanted"));
    let group = vec![claim(&wanted), claim(&unwanted)];
    for answer in here.commit(group).await.unwrap().answers {
        applied(&answer);
    }
    let watch = tokio::spawn({
        let (there, wanted) = (there.clone(), wanted.clone());
        async move { there.watch(vec![wanted]).await }
    });
    while place.count("SELECT count(*) FROM wanted").await == 0 {
        tokio::task::yield_now().await;
    }
    // Someone else's completion rings for nobody.
    let finish = |key: &Key| batch(vec![], vec![put(done(record(key, State::Done), b"1"))]);
    // (Told by the bells below: a watch may end early, as it does when its listener connects.)
    applied(&commit(&here, &finish(&unwanted)).await);
    let finished = loop {
        // Who has just marked the key holds its lock for as long as he looks at it.
        match commit(&here, &finish(&wanted)).await {
            Answer::Contended => tokio::task::yield_now().await,
            answer => break answer,
        }
    };
    applied(&finished);
    let rung = tokio::time::timeout(Duration::from_secs(5), watch).await;
    rung.expect("the bell is heard").unwrap().unwrap();
    assert_eq!(place.count("SELECT count(*) FROM wanted").await, 0);
    // One bell for the group that had the wanted key, and none for the others.
    applied(&commit(&here, &claim(&request("last"))).await);
    place.sql(&format!("NOTIFY \"{}\", 'end'", place.schema)).await;
    assert_ne!(heard.recv().await.unwrap(), "end");
    assert_eq!(heard.recv().await.unwrap(), "end");
    // What was done before it was watched is noticed at once.
    let done_before = there.watch(vec![wanted]);
    tokio::time::timeout(Duration::from_secs(5), done_before).await.expect("at once").unwrap();
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_duplicate_in_another_process_gets_the_answer_at_once() {
    let place = Place::new("duplicate").await;
    let engines =
        [place.store().await, place.store().await].map(|store| Engine::new(Arc::new(store)));
    let key = request("k");
    let claim = Claim::new(key, fingerprint_bytes(b"payload"));
    let Verdict::Run { permit, .. } = engines[0].claim(&claim).await.unwrap() else { panic!() };
    let waiting = tokio::spawn({
        let (engine, claim) = (engines[1].clone(), claim.clone());
        async move { engine.claim_waiting(&claim, Duration::from_secs(10)).await }
    });
    while place.count("SELECT count(*) FROM wanted").await == 0 {
        tokio::task::yield_now().await;
    }
    let completed = Instant::now();
    engines[0].complete(&permit, &Completion::new(b"answer"[..].into())).await.unwrap();
    let Verdict::Replay(stored) = waiting.await.unwrap().unwrap() else { panic!("not a replay") };
    assert_eq!(stored.outcome.as_deref(), Some(&b"answer"[..]));
    assert!(completed.elapsed() < Duration::from_secs(2), "{:?}", completed.elapsed());
    for engine in engines {
        engine.close().await.unwrap();
    }
    place.remove().await;
}

/// What goes the shorter way.
async fn claims_and_completions(store: &PostgresStore, round: &str) {
    let keys: Vec<_> = (0..16).map(|number| request(&format!("{round}-well-{number}"))).collect();
    let claims = keys.iter().map(claim).collect();
    let granted = store.commit(claims).await.unwrap().answers;
    let ends = keys.iter().zip(&granted).map(|(key, answer)| {
        let fence = applied(answer).first.unwrap().1.unwrap();
        let entry = Write::Audit(Box::new(Entry::new("acme", "thing.done")));
        let writes = vec![put(done(record(key, State::Done), b"outcome")), entry];
        batch(vec![Condition::FenceIs(key.clone(), fence)], writes)
    });
    for answer in store.commit(ends.collect()).await.unwrap().answers {
        applied(&answer);
    }
}

/// A batch of each kind, on keys that are new, running and done.
async fn every_statement(place: &Place, round: &str) {
    let store = place.store().await;
    claims_and_completions(&store, round).await;
    let group: Vec<_> = (0..16)
        .map(|number| {
            let key = request(&format!("{round}-{number}"));
            let mut draft = draft(record(&key, State::Running));
            draft.record.has_payload = true;
            draft.payload = Body::Set(b"payload"[..].into());
            let writes = vec![
                put(draft),
                mark(&format!("{round}-{number}"), 1, Body::Set(b"value"[..].into())),
                Write::Audit(Box::new(Entry::new("acme", "thing.done"))),
            ];
            batch(vec![Condition::Absent(key), Condition::PositionIs(subject(round), 0)], writes)
        })
        .collect();
    // Twice: applied, and recognised.
    for _ in 0..2 {
        for answer in store.commit(group.clone()).await.unwrap().answers {
            applied(&answer);
        }
    }
    for number in 0..16 {
        let key = request(&format!("{round}-{number}"));
        refused(&commit(&store, &claim(&key)).await);
        let done = put(done(record(&key, State::Done), b"outcome"));
        let move_mark = mark(&format!("{round}-{number}"), 2, Body::Keep);
        applied(&commit(&store, &batch(vec![], vec![done, move_mark])).await);
        applied(&commit(&store, &batch(vec![], vec![Write::Delete(key)])).await);
    }
    let key = request(&format!("{round}-0"));
    let mark = Read::Mark(subject(&format!("{round}-0")));
    store.load(vec![Read::Record { key, payload: true }, mark]).await.unwrap();
    store.list(List::Sweepable, None, 10).await.unwrap();
    store.list(List::Due { queue: "mail".into() }, None, 10).await.unwrap();
    let tenant = Some("acme".into());
    let records = List::Records { tenant, scope: None, state: None };
    store.list(records, None, 10).await.unwrap();
    // The sessions tell what they did when they end.
    store.close().await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name";
    while place.count(&format!("{sessions} = '{}'", place.schema)).await > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn plans_are_index_look_ups_on_empty_never_analysed_and_large_tables() {
    const ROWS: u64 = 1_000_000;
    let place = Place::new("plans").await;
    for partition in ["records_request", "records_job", "outcomes", "payloads", "marks", "audit"] {
        place.sql(&format!("ALTER TABLE {partition} SET (autovacuum_enabled = off)")).await;
    }
    let scans = "SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_all_tables \
                 WHERE schemaname = current_schema() AND relname <> 'migrations' \
                 AND relname <> 'wanted'";
    // Rows that were fetched: a look-up by half of a key reads the other half's rows as well.
    let fetched = "SELECT coalesce(sum(idx_tup_fetch), 0)::bigint FROM pg_stat_all_tables \
                   WHERE schemaname = current_schema() AND relname <> 'migrations'";
    const FETCHED_MAX: i64 = 2_000;
    place.sql("SELECT pg_stat_force_next_flush()").await;
    let before = place.count(scans).await;
    for round in 0..10 {
        // Sessions are new each time, and so are their plans; the tables grow meanwhile.
        let fetched_before = place.count(fetched).await;
        every_statement(&place, &format!("empty{round}")).await;
        let rows = place.count(fetched).await - fetched_before;
        assert!(rows < FETCHED_MAX, "round {round} fetched {rows} rows");
    }
    assert_eq!(place.count(scans).await, before, "a table was read whole while it was empty");

    place
        .sql(&format!(
            "INSERT INTO records (tenant, kind, name, state, fingerprint, rev, last_fence, token, \
                 attempt, priority, created_at, updated_at, sweep_at, sweep_from, outcome_id, \
                 has_payload, rest) \
             SELECT 'filler', 0, 'scope:x' || n, 2, '', 1, 1, '', 1, 0, 1, 1, 9e17::bigint, \
                 9e17::bigint, -n, false, '' \
             FROM generate_series(1, {ROWS}) AS n; \
             INSERT INTO outcomes SELECT -n, 'filler', 'bytes' \
             FROM generate_series(1, {ROWS}, 10) AS n; \
             INSERT INTO marks SELECT 1, 1, 'filler', 'space:x' || n, '' \
             FROM generate_series(1, {ROWS}, 10) AS n"
        ))
        .await;
    place.sql("SELECT pg_stat_force_next_flush()").await;
    for analysed in ["never", "now"] {
        let (before, fetched_before) = (place.count(scans).await, place.count(fetched).await);
        every_statement(&place, analysed).await;
        assert_eq!(place.count(scans).await, before, "read whole, analysed: {analysed}");
        let rows = place.count(fetched).await - fetched_before;
        assert!(rows < FETCHED_MAX, "analysed {analysed}: fetched {rows} rows");
        place.sql("ANALYZE records, outcomes, marks").await;
        place.sql("SELECT pg_stat_force_next_flush()").await;
    }
    place.remove().await;
}

/// A server that is told to answer before its log is on the disk, while we are at work: what we
/// were promised when we connected holds. Its log is written late enough for the loss to show.
#[tokio::test]
async fn i02_a_server_that_is_told_to_answer_early_loses_nothing_that_we_answered() {
    const KEYS: usize = 20;
    let cluster = Cluster::start();
    let options = PostgresOptions::default();
    PostgresStore::migrate(&cluster.url(), options.clone()).await.unwrap();
    let sql = client(&cluster.url()).await;
    sql.batch_execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await.unwrap();
    let store = PostgresStore::connect(&cluster.url(), options).await.unwrap();
    applied(&commit(&store, &claim(&request("before"))).await);
    sql.batch_execute("ALTER SYSTEM SET synchronous_commit = off").await.unwrap();
    sql.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // Sessions hear of it one after the other; this one was there before those of the store.
    while sql.query_one("SHOW synchronous_commit", &[]).await.unwrap().get::<_, &str>(0) != "off" {
        tokio::task::yield_now().await;
    }
    for number in 0..KEYS {
        applied(&commit(&store, &claim(&request(&format!("k{number}")))).await);
    }
    cluster.kill();
    cluster.restart();
    let sql = client(&cluster.url()).await;
    let kept = sql.query_one("SELECT count(*) FROM onceward.records", &[]).await.unwrap();
    assert_eq!(kept.get::<_, i64>(0), i64::try_from(KEYS).unwrap() + 1);
}

/// A real standby: whatever asks it for writes would fail later, and what it shows is of a moment
/// ago, so that a claim decided from it could run twice.
#[tokio::test]
async fn a_replica_is_refused_unless_allowed_and_then_is_only_read() {
    let cluster = Cluster::start();
    let options = PostgresOptions::default();
    PostgresStore::migrate(&cluster.url(), options.clone()).await.unwrap();
    let primary = PostgresStore::connect(&cluster.url(), options.clone()).await.unwrap();
    let key = request("k");
    applied(&commit(&primary, &claim(&key)).await);
    let standby = cluster.standby();

    let refused = PostgresStore::connect(&standby.url(), options.clone()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Open(why) if why.contains("replica")), "{refused}");
    assert!(refused.to_string().contains("?allow=replica"), "{refused}");
    let refused = PostgresStore::migrate(&standby.url(), options.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Open(_) | StoreError::NotApplied(_)), "{refused}");

    let allowed = format!("{}?allow=replica", standby.url());
    let replica = PostgresStore::connect(&allowed, options).await.unwrap();
    let warnings = replica.capabilities().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("replica")), "{warnings:?}");
    assert!(find(&replica, &key).await.is_some(), "it was there before the copy was made");
    let written = try_commit(&replica, &claim(&request("new"))).await.unwrap_err();
    assert!(matches!(written, StoreError::NotApplied(_)), "{written}");
    replica.close().await.unwrap();
    primary.close().await.unwrap();
}
