//! The caller's own SQL in the store's transaction: its rows and the key's record are there
//! together or not at all, a duplicate runs once, and a neighbour in the group never notices a
//! failure.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use onceward::core::decide::{Change, Completion, Effects, NewJob, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::guard::{Guard, Rule};
use onceward::core::outcome_policy::{Said, Statuses, ending};
use onceward::core::record::{Body, OnAbandoned, State};
use onceward::engine::{Engine, EngineError, OnceVerdict, OwnSqlError, Take};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{AuditFilter, Items, List, StoreError};
use rusqlite::Connection;

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// A store with a table of ours beside its own.
struct Place {
    folder: PathBuf,
    engine: Engine,
    ours: Connection,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn open(folder: &Path) -> (Engine, Connection) {
    let file = folder.join("own.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).unwrap();
    let ours = Connection::open(&file).unwrap();
    ours.execute_batch("CREATE TABLE IF NOT EXISTS rows (name TEXT NOT NULL UNIQUE)").unwrap();
    (Engine::new(Arc::new(store)), ours)
}

impl Place {
    fn new() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
        let name = format!("onceward-own-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let (engine, ours) = open(&folder);
        Self { folder, engine, ours }
    }

    fn rows(&self) -> Vec<String> {
        rows(&self.ours)
    }

    async fn state(&self, id: &str) -> Option<State> {
        self.engine.look(&key(id)).await.unwrap().map(|found| found.stored.record.state)
    }

    async fn audited(&self) -> usize {
        let list = List::Audit(AuditFilter::default());
        match self.engine.list(list, None, 1_000).await.unwrap().items {
            Items::Audit(entries) => entries.len(),
            other => panic!("{other:?}"),
        }
    }
}

fn rows(ours: &Connection) -> Vec<String> {
    let mut names = ours.prepare("SELECT name FROM rows ORDER BY name").unwrap();
    let names = names.query_map([], |row| row.get(0)).unwrap();
    names.collect::<rusqlite::Result<_>>().unwrap()
}

/// Inserts a row and answers its name.
fn insert(name: &str) -> impl FnMut(&Connection) -> rusqlite::Result<Completion> + Send + use<> {
    let name = name.to_string();
    move |sql| {
        sql.execute("INSERT INTO rows VALUES (?1)", [&name])?;
        Ok(outcome(&name))
    }
}

#[tokio::test]
async fn a21_row_key_outcome_audit_and_job_commit_together() {
    let place = Place::new();
    let work = |sql: &Connection| -> rusqlite::Result<Completion> {
        sql.execute("INSERT INTO rows VALUES ('r')", [])?;
        let payload = bytes("later");
        let job = NewJob::new(job_key("j"), fingerprint_bytes(&payload), payload);
        let guard = Guard::new(subject("a"), Rule::Exactly { expected: 0 }).unwrap();
        let change = Change { guard, value: Body::Set(bytes("document")) };
        let effects = Effects { jobs: vec![job], changes: vec![change], ..Effects::default() };
        Ok(with_effects("answer", effects))
    };
    let ran = place.engine.run_once_with(&claim("k", "p"), work).await.unwrap();
    let OnceVerdict::Ran { record, was_expired } = ran else { panic!("{ran:?}") };
    assert!(!was_expired && record.state == State::Done && record.last_fence.0 > 0);
    let found = place.engine.look(&key("k")).await.unwrap().unwrap().stored;
    assert_eq!((found.record, found.outcome.unwrap()), (*record, bytes("answer")));
    assert_eq!(place.rows(), ["r"]);
    assert_eq!(place.engine.get(&subject("a")).await.unwrap().unwrap().value, bytes("document"));
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 9, lease_ms: None };
    assert_eq!(place.engine.take(&take).await.unwrap().len(), 1);
}

/// Every status, before and after the row, and a panic: what is not stored is taken back with the
/// row, and the key is free, whatever the policy says of ends that nobody knows.
#[tokio::test]
async fn h5_in_ones_own_transaction_what_is_not_stored_has_not_happened() {
    let place = Place::new();
    let statuses = (200..600).step_by(3).map(Some).chain([None]);
    for (number, status) in statuses.enumerate() {
        for (on_abandoned, before) in
            [(OnAbandoned::Hold, true), (OnAbandoned::Hold, false), (OnAbandoned::Rerun, true)]
        {
            let id = format!("{number}-{on_abandoned:?}-{before}");
            let mut claim = claim(&id, "p");
            claim.terms.on_abandoned = on_abandoned;
            let row = id.clone();
            let fails = move |sql: &Connection| -> Result<Completion, u16> {
                if before {
                    sql.execute("INSERT INTO rows VALUES (?1)", [&row]).unwrap();
                }
                let status = status.expect("a panic is one of its ends");
                let said = Said { status, ..Said::default() };
                match ending(&said, &Statuses::default()).is_stored() {
                    true => Ok(outcome("first")),
                    false => Err(status),
                }
            };
            let first = place.engine.run_once_with(&claim, fails).await;
            let again = place.engine.run_once_with(&claim, insert(&format!("{id} again"))).await;
            let rows = place.rows().into_iter().filter(|row| row.starts_with(&id)).count();
            match (first, again.unwrap()) {
                (Ok(_), OnceVerdict::Not(verdict)) => {
                    assert_eq!((replayed(verdict), rows), ("first".into(), usize::from(before)));
                }
                (Err(OwnSqlError::Caller(_) | OwnSqlError::Panicked(_)), again) => {
                    assert!(matches!(again, OnceVerdict::Ran { .. }), "{id}: {again:?}");
                    assert_eq!(rows, 1, "{status:?}: the first row was taken back");
                }
                other => panic!("{status:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a08_a_duplicate_replays_and_another_payload_is_a_mismatch_without_running() {
    let place = Place::new();
    let run = |payload: &'static str, name: &'static str| {
        let engine = place.engine.clone();
        async move { engine.run_once_with(&claim("k", payload), insert(name)).await.unwrap() }
    };
    assert!(matches!(run("p", "first").await, OnceVerdict::Ran { .. }));
    let OnceVerdict::Not(verdict) = run("p", "second").await else { panic!("it ran again") };
    assert_eq!(replayed(verdict), "first");
    let other = run("q", "third").await;
    assert!(matches!(other, OnceVerdict::Not(Verdict::Mismatch(_))), "{other:?}");
    assert_eq!(place.rows(), ["first"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_duplicates_at_once_leave_one_row() {
    let place = Place::new();
    let runs = (0..100).map(|n| {
        let engine = place.engine.clone();
        let work = insert(&format!("row {n}"));
        tokio::spawn(async move { engine.run_once_with(&claim("k", "p"), work).await.unwrap() })
    });
    let mut ran = 0;
    let mut answers = Vec::new();
    for run in runs.collect::<Vec<_>>() {
        match run.await.unwrap() {
            OnceVerdict::Ran { .. } => ran += 1,
            OnceVerdict::Not(verdict) => answers.push(replayed(verdict)),
        }
    }
    assert_eq!((ran, answers.len()), (1, 99));
    let [row] = &place.rows()[..] else { panic!("{:?}", place.rows()) };
    assert!(answers.iter().all(|answer| answer == row), "all hear of the row that is there");
}

#[tokio::test]
async fn an_error_leaves_nothing_and_the_key_free() {
    let place = Place::new();
    let audited = place.audited().await;
    let failing = |sql: &Connection| -> Result<Completion, String> {
        sql.execute("INSERT INTO rows VALUES ('half')", []).unwrap();
        Err("not today".into())
    };
    let error = place.engine.run_once_with(&claim("k", "p"), failing).await.unwrap_err();
    assert!(matches!(&error, OwnSqlError::Caller(why) if why == "not today"), "{error:?}");
    assert_eq!(
        (place.rows().len(), place.state("k").await, place.audited().await),
        (0, None, audited)
    );
    // SQLite's own error, as it comes.
    place.engine.run_once_with(&claim("one", "p"), insert("taken")).await.unwrap();
    let error = place.engine.run_once_with(&claim("k", "p"), insert("taken")).await.unwrap_err();
    let OwnSqlError::Caller(error) = error else { panic!("{error:?}") };
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::ConstraintViolation));
    let ran = place.engine.run_once_with(&claim("k", "p"), insert("free")).await.unwrap();
    assert!(matches!(ran, OnceVerdict::Ran { .. }));
    assert_eq!(place.rows(), ["free", "taken"]);
}

#[tokio::test]
async fn a_panic_leaves_nothing_and_the_writer_alive() {
    let place = Place::new();
    let panics = |sql: &Connection| -> Result<Completion, String> {
        sql.execute("INSERT INTO rows VALUES ('half')", []).unwrap();
        panic!("broken off")
    };
    let error = place.engine.run_once_with(&claim("k", "p"), panics).await.unwrap_err();
    assert!(matches!(&error, OwnSqlError::Panicked(said) if said == "broken off"), "{error:?}");
    assert_eq!((place.rows().len(), place.state("k").await), (0, None));
    place.engine.run_once_with(&claim("k", "p"), insert("whole")).await.unwrap();
    assert_eq!(place.rows(), ["whole"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_never_touches_its_neighbours_in_the_group() {
    let place = Place::new();
    // The writer is held by one closure, so that all others wait and share a transaction.
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let mut name = insert("holder");
    let holding = move |sql: &Connection| {
        begun.send(()).unwrap();
        may_go_on.lock().unwrap().recv().unwrap();
        name(sql)
    };
    let engine = place.engine.clone();
    let holder =
        tokio::spawn(async move { engine.run_once_with(&claim("holder", "p"), holding).await });
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
    let others = (0..40).map(|n| {
        let engine = place.engine.clone();
        tokio::spawn(async move {
            let request = claim(&format!("k{n}"), "p");
            match n % 4 {
                0 => engine.run_once(&request, &outcome("plain")).await.is_ok(),
                1 => engine.run_once_with(&request, insert(&format!("row {n:02}"))).await.is_ok(),
                2 => engine.run_once_with(&request, insert("holder")).await.is_err(),
                _ => {
                    let panics = |sql: &Connection| -> Result<Completion, String> {
                        sql.execute("INSERT INTO rows VALUES ('half')", []).unwrap();
                        panic!("broken off")
                    };
                    engine.run_once_with(&request, panics).await.is_err()
                }
            }
        })
    });
    let others: Vec<_> = others.collect();
    go_on.send(()).unwrap();
    assert!(matches!(holder.await.unwrap().unwrap(), OnceVerdict::Ran { .. }));
    for (n, other) in others.into_iter().enumerate() {
        assert!(other.await.unwrap(), "{n}");
        let expected = if n % 4 < 2 { Some(State::Done) } else { None };
        assert_eq!(place.state(&format!("k{n}")).await, expected, "{n}");
    }
    let mut expected: Vec<String> = (0..10).map(|n| format!("row {:02}", n * 4 + 1)).collect();
    expected.insert(0, "holder".into());
    assert_eq!(place.rows(), expected);
}

#[tokio::test]
async fn the_transaction_and_the_stores_tables_are_out_of_reach() {
    let place = Place::new();
    place.engine.run_once(&claim("there", "p"), &outcome("o")).await.unwrap();
    for forbidden in [
        "COMMIT",
        "ROLLBACK",
        "END",
        "BEGIN",
        "ROLLBACK TO Own_Sql",
        "RELEASE own_sql",
        "ATTACH ':memory:' AS other",
        "PRAGMA synchronous = OFF",
        "DELETE FROM records",
        "UPDATE meta SET stamp = 0",
        "INSERT INTO tokens SELECT * FROM tokens",
        "DROP TABLE outcomes",
        "DROP TABLE Marks",
        "ALTER TABLE audit RENAME TO mine",
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM rows; END",
    ] {
        let work = move |sql: &Connection| -> rusqlite::Result<Completion> {
            sql.execute("INSERT INTO rows VALUES ('half')", [])?;
            sql.execute_batch(forbidden)?;
            Ok(outcome("reached"))
        };
        let error = place.engine.run_once_with(&claim("k", "p"), work).await.unwrap_err();
        let OwnSqlError::Caller(error) = error else { panic!("{forbidden}: {error:?}") };
        assert!(error.to_string().contains("not authorized"), "{forbidden}: {error}");
        assert_eq!((place.rows().len(), place.state("k").await), (0, None), "{forbidden}");
    }
    // Its own tables are its own, and it may look at everything.
    let work = |sql: &Connection| -> rusqlite::Result<Completion> {
        sql.execute_batch("CREATE TABLE more (n INTEGER); INSERT INTO more VALUES (1)")?;
        let records: i64 = sql.query_row("SELECT count(*) FROM records", [], |row| row.get(0))?;
        Ok(outcome(&records.to_string()))
    };
    place.engine.run_once_with(&claim("k", "p"), work).await.unwrap();
    assert_eq!(
        place.engine.look(&key("k")).await.unwrap().unwrap().stored.outcome.unwrap(),
        bytes("1")
    );
    // The store goes on as before.
    place.engine.run_once(&claim("after", "p"), &outcome("o")).await.unwrap();
    assert_eq!(place.state("there").await, Some(State::Done));
}

#[tokio::test]
async fn a_refused_guard_takes_the_rows_back() {
    let place = Place::new();
    place.engine.put(&subject("a"), 0, Some(bytes("first"))).await.unwrap();
    let ran = Arc::new(AtomicU64::new(0));
    let counted = ran.clone();
    let work = move |sql: &Connection| -> rusqlite::Result<Completion> {
        counted.fetch_add(1, Ordering::SeqCst);
        sql.execute("INSERT INTO rows VALUES ('r')", [])?;
        let guard = Guard::new(subject("a"), Rule::Exactly { expected: 0 }).unwrap();
        let change = Change { guard, value: Body::Set(bytes("second")) };
        Ok(with_effects("o", Effects { changes: vec![change], ..Effects::default() }))
    };
    let verdict = place.engine.run_once_with(&claim("k", "p"), work).await.unwrap();
    assert!(matches!(verdict, OnceVerdict::Not(Verdict::Refused(_))), "{verdict:?}");
    assert_eq!((place.rows().len(), place.state("k").await), (0, None));
    assert!(ran.load(Ordering::SeqCst) >= 1);
}

#[tokio::test]
async fn other_stores_say_that_they_can_not() {
    let (engine, _, _) = engine();
    let error = engine.run_once_with(&claim("k", "p"), insert("r")).await.unwrap_err();
    let unsupported =
        matches!(error, OwnSqlError::Engine(EngineError::Store(StoreError::Unsupported { .. })));
    assert!(unsupported, "{error:?}");
    assert!(engine.look(&key("k")).await.unwrap().is_none());
}

/// The child: one key after the other, each with its row. Does nothing unless it is told where.
#[tokio::test]
async fn child_that_is_killed() {
    let Ok(folder) = std::env::var("ONCEWARD_TEST_OWN_FOLDER") else { return };
    let dies: u64 = std::env::var("ONCEWARD_TEST_OWN_DIES").unwrap().parse().unwrap();
    let inside = std::env::var("ONCEWARD_TEST_OWN_INSIDE").is_ok();
    let (engine, _ours) = open(Path::new(&folder));
    for n in 0.. {
        let mut row = insert(&format!("{n:03}"));
        let work = move |sql: &Connection| {
            let made = row(sql);
            if n == dies && inside {
                std::process::abort();
            }
            made
        };
        engine.run_once_with(&claim(&format!("{n:03}"), "p"), work).await.unwrap();
        if n == dies {
            std::process::abort();
        }
    }
}

#[tokio::test]
async fn i05_killed_anywhere_rows_and_keys_are_there_together() {
    for inside in [true, false] {
        for dies in [0_u64, 1, 7] {
            let place = Place::new();
            place.engine.close().await.unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child
                .args(["--exact", "child_that_is_killed", "--test-threads=1"])
                .env("ONCEWARD_TEST_OWN_FOLDER", &place.folder)
                .env("ONCEWARD_TEST_OWN_DIES", dies.to_string());
            if inside {
                child.env("ONCEWARD_TEST_OWN_INSIDE", "1");
            }
            assert!(!child.output().unwrap().status.success(), "it dies");
            let (engine, ours) = open(&place.folder);
            let whole = if inside { dies } else { dies + 1 };
            let expected: Vec<String> = (0..whole).map(|n| format!("{n:03}")).collect();
            assert_eq!(rows(&ours), expected, "{inside} {dies}");
            for n in 0..=dies {
                let found = engine.look(&key(&format!("{n:03}"))).await.unwrap();
                assert_eq!(found.is_some(), n < whole, "{inside} {dies} {n}");
            }
            // What was cut off runs now, once.
            let last = format!("{dies:03}");
            let again = engine.run_once_with(&claim(&last, "p"), insert(&last)).await.unwrap();
            assert_eq!(matches!(again, OnceVerdict::Ran { .. }), inside);
            assert_eq!(rows(&ours).len() as u64, dies + 1);
            engine.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn i26_of_many_in_one_transaction_one_that_fails_takes_back_its_own_rows_alone() {
    let place = Place::new();
    place.engine.run_once_with(&claim("there", "p"), insert("there")).await.unwrap();
    let run = |name: &'static str| {
        let mut insert = insert(name);
        move |sql: &Connection| {
            let done = insert(sql);
            assert_ne!(name, "panics", "told to");
            if name == "fails" { Err(rusqlite::Error::InvalidQuery) } else { done }
        }
    };
    let names = ["a", "fails", "b", "there", "panics", "c", "other"];
    let mut requests: Vec<_> = names.map(|name| (claim(name, "p"), run(name))).into();
    // The same key with another payload, and a row that is there already.
    requests.push((claim("there", "another"), run("x")));
    requests.push((claim("unique", "p"), run("a")));
    let ends = place.engine.run_once_with_many(requests).await;
    let ran = |at: usize| matches!(ends[at], Ok(OnceVerdict::Ran { .. }));
    assert!([0, 2, 5, 6].into_iter().all(ran), "{ends:?}");
    assert!(matches!(ends[1], Err(OwnSqlError::Caller(_))), "{ends:?}");
    assert!(matches!(ends[3], Ok(OnceVerdict::Not(Verdict::Replay(_)))), "{ends:?}");
    assert!(matches!(ends[4], Err(OwnSqlError::Panicked(_))), "{ends:?}");
    assert!(matches!(ends[7], Ok(OnceVerdict::Not(Verdict::Mismatch(_)))), "{ends:?}");
    assert!(matches!(ends[8], Err(OwnSqlError::Caller(_))), "{ends:?}");
    assert_eq!(place.rows(), ["a", "b", "c", "other", "there"]);
    for (name, state) in [("a", Some(State::Done)), ("fails", None), ("panics", None)] {
        assert_eq!(place.state(name).await, state, "{name}");
    }
}

#[tokio::test]
async fn i01_of_two_with_one_mark_in_one_transaction_the_second_leaves_no_row() {
    let place = Place::new();
    let guarded = |id: &str, name: &str| {
        let mut claim = claim(id, "p");
        let rule = Rule::Next { position: 1 };
        claim.guard = Some(Guard::new(subject("line"), rule).unwrap());
        (claim, insert(name))
    };
    // Both are judged before either is written: the second is refused after its SQL has run.
    let requests = vec![guarded("one", "one"), guarded("two", "two")];
    let ends = place.engine.run_once_with_many(requests).await;
    assert!(matches!(ends[0], Ok(OnceVerdict::Ran { .. })), "{ends:?}");
    assert!(matches!(ends[1], Ok(OnceVerdict::Not(Verdict::Refused(_)))), "{ends:?}");
    assert_eq!(place.rows(), ["one"]);
    assert_eq!(place.state("two").await, None);
}
