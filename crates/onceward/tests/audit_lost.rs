//! What a crash loses of the notes that wait is counted (A26): by whoever comes next, once, and
//! never less than it was.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{START, claim, outcome, print};
use onceward::audit::LostNotes;
use onceward::core::audit::Trace;
use onceward::core::decide::Verdict;
use onceward::core::note::{Note, Noted, Original};
use onceward::engine::{Engine, EngineOptions};
use onceward::store::memory::MemoryStore;
use onceward::store::{AuditFilter, Items, List, Store};

/// An engine that writes notes only when it is told to.
fn engine(store: &Arc<MemoryStore>) -> Engine {
    let notes_every = Duration::from_secs(3_600);
    let store: Arc<dyn Store> = store.clone();
    Engine::with_options(store, EngineOptions { notes_every, ..EngineOptions::default() })
}

async fn replays(engine: &Engine, count: usize) {
    let verdict = match engine.claim(&claim("a", "{}")).await.unwrap() {
        Verdict::Run { permit: granted, .. } => {
            engine.complete(&granted, &outcome("done")).await.unwrap();
            engine.claim(&claim("a", "{}")).await.unwrap()
        }
        other => other,
    };
    let Verdict::Replay(stored) = verdict else { panic!("it is done") };
    let original = Original::of(&stored.record);
    for _ in 0..count {
        let (noted, original, trace) = (Noted::Replay, original.clone(), Trace::default());
        let fingerprint = print("{}");
        engine.note(Note { noted, original, fingerprint, trace }).await.unwrap();
    }
}

/// What processes on this store say that they owe.
async fn owed(engine: &Engine) -> u64 {
    let found = engine.documents("onceward", "onceward.notes", "", None, 100).await.unwrap().0;
    let says = |value: &[u8]| std::str::from_utf8(value).unwrap().parse::<u64>().unwrap();
    found.iter().map(|document| says(&document.value)).sum()
}

/// Waits until at least so many are said to be owed.
async fn owes(engine: &Engine, least: u64) {
    let said = async {
        while owed(engine).await < least {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), said).await.unwrap();
}

async fn told(engine: &Engine) -> Vec<String> {
    let filter = AuditFilter { action: Some("audit.lost".into()), ..AuditFilter::default() };
    let page = engine.list(List::Audit(filter), None, 100).await.unwrap();
    let Items::Audit(entries) = page.items else { panic!("{page:?}") };
    entries.iter().map(|audited| audited.entry.detail.as_deref().unwrap().to_string()).collect()
}

#[tokio::test]
async fn a26_what_a_crash_loses_is_counted_once() {
    let store = Arc::new(MemoryStore::manual(START).0);
    // A process that dies is one that does nothing any more.
    let dead = engine(&store);
    replays(&dead, 300).await;
    owes(&dead, 300).await;
    let next = engine(&store);
    let mut lost = LostNotes::new(next.clone());
    let at_most = lost.pass(Duration::ZERO).await.unwrap();
    assert!((300..=600).contains(&at_most), "{at_most}");
    assert_eq!(told(&next).await, [format!("{{\"at_most\":{at_most}}}")]);
    assert_eq!(lost.pass(Duration::ZERO).await.unwrap(), 0, "once");
    assert_eq!(LostNotes::new(engine(&store)).pass(Duration::ZERO).await.unwrap(), 0);
    assert_eq!(told(&next).await.len(), 1);
}

#[tokio::test]
async fn a26_what_was_written_is_not_lost() {
    let store = Arc::new(MemoryStore::manual(START).0);
    let (one, other) = (engine(&store), engine(&store));
    replays(&one, 100).await;
    owes(&one, 100).await;
    one.flush_notes().await;
    assert_eq!(owed(&other).await, 0);
    assert_eq!(LostNotes::new(other.clone()).pass(Duration::ZERO).await.unwrap(), 0);
    assert_eq!(told(&other).await, Vec::<String>::new());
}

#[tokio::test]
async fn a26_who_lives_is_not_counted() {
    let store = Arc::new(MemoryStore::manual(START).0);
    let (one, other) = (engine(&store), engine(&store));
    replays(&one, 10).await;
    owes(&one, 10).await;
    // Its own are in hand, and another's stand for a while first.
    assert_eq!(LostNotes::new(one.clone()).pass(Duration::ZERO).await.unwrap(), 0);
    let mut lost = LostNotes::new(other.clone());
    let patience = Duration::from_millis(100);
    assert_eq!(lost.pass(patience).await.unwrap(), 0);
    // sleeps because patience is time, and nothing else ends it
    tokio::time::sleep(patience).await;
    one.flush_notes().await;
    replays(&one, 10).await;
    one.flush_notes().await;
    replays(&one, 20).await;
    owes(&one, 20).await;
    assert_eq!(lost.pass(patience).await.unwrap(), 0, "it has said something else since");
    // sleeps because patience is time, and nothing else ends it
    tokio::time::sleep(patience).await;
    assert!(lost.pass(patience).await.unwrap() >= 20);
    // It lives after all: what it owes from here on is told anew.
    one.flush_notes().await;
    replays(&one, 5).await;
    owes(&one, 5).await;
    assert!(lost.pass(Duration::ZERO).await.unwrap() >= 5);
}
