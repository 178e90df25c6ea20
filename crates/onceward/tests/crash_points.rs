//! A real process that dies at every named point; then another one finds the key.
//!
//! The test runs itself as a child, which works on one key of an embedded store and aborts (as
//! `kill -9` would end it: no unwinding, no destructors, no flush) right before or right after its
//! n-th commit, or between them. Afterwards the key must be final or claimable within its lease,
//! and the ledger, a plain append file, must show at most one effect per fence.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use onceward::core::batch::Batch;
use onceward::core::decide::{Change, Claim, Effects, Finish, Verdict};
use onceward::core::guard::{Guard, Rule};
use onceward::core::key::Key;
use onceward::core::record::Body;
use onceward::engine::{Engine, OnceVerdict};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreFuture,
};

const LEASE_MS: u64 = 400;

/// Where the child dies.
const POINTS: [&str; 10] = [
    "never",
    "before commit 1",
    "after commit 1",
    "after claim",
    "before effect",
    "after effect",
    "before commit 2",
    "after commit 2",
    "after complete",
    "before answer",
];

/// Aborts the process right before or right after its n-th commit.
struct Crashing {
    inner: SqliteStore,
    commits: AtomicUsize,
    point: String,
}

impl Store for Crashing {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.inner.load(reads)
    }
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            let commit = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
            die_at(&self.point, &format!("before commit {commit}"));
            let committed = self.inner.commit(group).await;
            die_at(&self.point, &format!("after commit {commit}"));
            committed
        })
    }
    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.inner.list(what, after, limit)
    }
    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

/// Where to die and where to work, when this process is such a child.
fn told() -> Option<(String, PathBuf)> {
    let point = std::env::var("ONCEWARD_TEST_CRASH_POINT").ok()?;
    let folder = std::env::var("ONCEWARD_TEST_CRASH_FOLDER").ok()?;
    Some((point, PathBuf::from(folder)))
}

fn die_at(point: &str, here: &str) {
    if point == here {
        std::process::abort();
    }
}

fn request() -> Claim {
    let mut request = claim("k", "p");
    request.terms.lease_ms = LEASE_MS;
    request
}

fn open(folder: &Path) -> SqliteStore {
    SqliteStore::open(folder.join("crash.db"), SqliteOptions::default()).unwrap()
}

/// An effect elsewhere: appended to a plain file, synced, no unique constraint to hide a duplicate.
fn effect(folder: &Path, fence: u64) {
    let mut ledger =
        std::fs::OpenOptions::new().create(true).append(true).open(folder.join("ledger")).unwrap();
    writeln!(ledger, "{fence}").unwrap();
    ledger.sync_data().unwrap();
}

fn ledger(folder: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(folder.join("ledger")).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The child: claim, effect, complete, answer. Does nothing unless it is told where to die.
#[tokio::test]
async fn child_in_two_commits() {
    let Some((point, folder)) = told() else { return };
    let store = Crashing { inner: open(&folder), commits: AtomicUsize::new(0), point };
    let point = store.point.clone();
    let engine = Engine::new(Arc::new(store));
    let held = permit(engine.claim(&request()).await.unwrap());
    die_at(&point, "after claim");
    die_at(&point, "before effect");
    effect(&folder, held.fence.0);
    die_at(&point, "after effect");
    assert_eq!(engine.complete(&held, &outcome("done")).await.unwrap(), Finish::Ok);
    die_at(&point, "after complete");
    std::fs::write(folder.join("answered"), "done").unwrap();
    die_at(&point, "before answer");
}

fn counted() -> Effects {
    let guard = Guard::new(subject("count"), Rule::Exactly { expected: 0 }).unwrap();
    Effects { changes: vec![Change { guard, value: Body::Set(bytes("1")) }], ..Effects::default() }
}

/// The child in one commit: its whole effect is a document.
#[tokio::test]
async fn child_in_one_commit() {
    let Some((point, folder)) = told() else { return };
    let store = Crashing { inner: open(&folder), commits: AtomicUsize::new(0), point };
    let point = store.point.clone();
    let engine = Engine::new(Arc::new(store));
    let ran = engine.run_once(&request(), &with_effects("done", counted())).await.unwrap();
    assert!(matches!(ran, OnceVerdict::Ran { .. }), "{ran:?}");
    die_at(&point, "after complete");
}

/// Runs a child that dies at a point, in a fresh folder.
fn crash(child: &str, point: &str) -> PathBuf {
    let name = format!("onceward-crash-{}-{child}-{}", std::process::id(), point.replace(' ', "-"));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([child, "--exact", "--nocapture"])
        .env("ONCEWARD_TEST_CRASH_POINT", point)
        .env("ONCEWARD_TEST_CRASH_FOLDER", &folder)
        .output()
        .unwrap();
    let reached = POINTS.contains(&point) && point != "never";
    let applies = child == "child_in_two_commits"
        || ["before commit 1", "after commit 1", "after complete"].contains(&point);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.success(), !(reached && applies), "{point}: {errors}");
    folder
}

#[tokio::test]
async fn i10_after_a_crash_at_any_point_the_key_is_final_or_claimable_within_its_lease() {
    for point in POINTS {
        let folder = crash("child_in_two_commits", point);
        let engine = Engine::new(Arc::new(open(&folder)));
        let started = Instant::now();
        let wait = Duration::from_millis(LEASE_MS * 5);
        let before = ledger(&folder);
        match engine.claim_waiting(&request(), wait).await.unwrap() {
            Verdict::Run { permit, .. } => {
                assert!(!folder.join("answered").exists(), "{point}: acknowledged, then lost");
                // i01: an extra effect elsewhere has a higher fence.
                assert!(before.iter().all(|fence| *fence < permit.fence.0), "{point}");
                effect(&folder, permit.fence.0);
                engine.complete(&permit, &outcome("done")).await.unwrap();
            }
            Verdict::Replay(_) => assert_eq!(before.len(), 1, "{point}: i02"),
            other => panic!("{point}: {other:?}"),
        }
        let took = started.elapsed();
        assert!(took < Duration::from_millis(LEASE_MS * 3), "{point}: took {took:?}");
        let fences = ledger(&folder);
        assert!(fences.is_sorted_by(|a, b| a < b), "{point}: one effect per fence: {fences:?}");
        assert!(!fences.is_empty() && fences.len() <= 2, "{point}: {fences:?}");
        assert_eq!(replayed(engine.claim(&request()).await.unwrap()), "done", "{point}");
        engine.close().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[tokio::test]
async fn i02_i11_a_crash_around_one_commit_leaves_all_of_it_or_nothing() {
    for (point, there) in
        [("before commit 1", false), ("after commit 1", true), ("after complete", true)]
    {
        let folder = crash("child_in_one_commit", point);
        let engine = Engine::new(Arc::new(open(&folder)));
        let document = engine.get(&subject("count")).await.unwrap();
        assert_eq!(document.is_some(), there, "{point}");
        assert_eq!(engine.look(&key("k")).await.unwrap().is_some(), there, "{point}");
        let again = engine.run_once(&request(), &with_effects("done", counted())).await.unwrap();
        assert_eq!(matches!(again, OnceVerdict::Ran { .. }), !there, "{point}: {again:?}");
        let version = engine.get(&subject("count")).await.unwrap().unwrap().version;
        assert_eq!(version, 1, "{point}: exactly once");
        engine.close().await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
