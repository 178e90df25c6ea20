//! Notes: what replays, conflicts and expiries leave in the audit (A26, E06), on the layer over a
//! memory store whose clock tests move, and on a store that fails.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use common::{START, claim, outcome, permit, print};
use onceward::core::audit::{Audited, Trace};
use onceward::core::decide::Verdict;
use onceward::core::note::{Note, Noted, Original};
use onceward::engine::{Engine, EngineOptions, NoteWriting};
use onceward::http::{Door, Identity, OncewardLayer, Policy, Routes};
use onceward::store::clock::ManualClock;
use onceward::store::memory::MemoryStore;
use onceward::store::{AuditFilter, Items, List, Store};
use serde_json::{Value, json};
use tower::ServiceExt;

struct Place {
    router: Router,
    engine: Engine,
    clock: ManualClock,
    ran: Arc<AtomicU64>,
}

fn options(notes: NoteWriting) -> EngineOptions {
    EngineOptions { notes, ..EngineOptions::default() }
}

fn place(options: EngineOptions, cache_bytes: u64) -> Place {
    let (store, clock) = MemoryStore::manual(START);
    let engine = Engine::with_options(Arc::new(store), options);
    let identity = Identity::Authorization { secret: [7; 32], strict: false };
    let routes = Routes::every(Policy::default()).unwrap();
    let door = Door::new(engine.clone(), identity, routes).with_cache_bytes(cache_bytes);
    let ran = Arc::new(AtomicU64::new(0));
    let counted = ran.clone();
    let pay = move || async move { (counted.fetch_add(1, Ordering::SeqCst) + 1).to_string() };
    let router = Router::new()
        .route("/pay", post(pay).get(|| async { "list" }))
        .layer(OncewardLayer::new(door));
    Place { router, engine, clock, ran }
}

impl Place {
    async fn send(&self, method: &str, id: &str, body: &str) -> u16 {
        let request = Request::builder()
            .method(method)
            .uri("/pay")
            .header("authorization", "Bearer a")
            .header("idempotency-key", "k-1")
            .header("x-request-id", id)
            .header("x-correlation-id", format!("corr-{id}"))
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        self.router.clone().oneshot(request).await.unwrap().status().as_u16()
    }
}

async fn entries(engine: &Engine, action: Option<&str>) -> Vec<Audited> {
    let filter = AuditFilter { action: action.map(Into::into), ..AuditFilter::default() };
    let page = engine.list(List::Audit(filter), None, 1_000).await.unwrap();
    let Items::Audit(entries) = page.items else { panic!("{page:?}") };
    entries
}

fn detail(entry: &Audited) -> Value {
    serde_json::from_str(entry.entry.detail.as_deref().unwrap()).unwrap()
}

#[tokio::test]
async fn a26_a_replay_writes_only_an_entry_that_names_the_original() {
    // Every replay from the store, and all but the first from memory.
    for cache_bytes in [0, 1 << 20] {
        let place = place(options(NoteWriting::Buffered), cache_bytes);
        assert_eq!(place.send("POST", "first", "{}").await, 200);
        place.clock.advance(50);
        for id in ["second", "third", "a \"quoted\" one"] {
            assert_eq!(place.send("POST", id, "{}").await, 200);
        }
        place.engine.flush_notes().await;
        assert_eq!(place.ran.load(Ordering::SeqCst), 1);
        let all = entries(&place.engine, None).await;
        let actions: Vec<_> = all.iter().map(|audited| &*audited.entry.action).collect();
        let replay = "audit.replay";
        assert_eq!(actions, ["request.done", replay, replay, replay], "and nothing else");
        let first = &all[0];
        let mut ids: Vec<_> =
            all[1..].iter().map(|audited| audited.entry.trace.request_id.as_deref()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [Some("a \"quoted\" one"), Some("second"), Some("third")]);
        for audited in &all[1..] {
            let (entry, original) = (&audited.entry, &first.entry);
            assert_eq!(entry.key_hash, original.key_hash);
            assert_eq!(entry.payload_hash, original.payload_hash);
            assert_eq!((&entry.subject, &entry.fence), (&original.subject, &original.fence));
            assert_eq!(entry.trace.actor, original.trace.actor);
            let must_be = json!({
                "original": first.id, "request_id": "first", "correlation_id": "corr-first",
            });
            assert_eq!(detail(audited), must_be);
        }
        let counts = place.engine.note_counts();
        assert_eq!((counts.written, counts.waiting), (3, 0));
    }
}

#[tokio::test]
async fn a26_a_note_is_written_without_being_asked_for() {
    let place = place(options(NoteWriting::Buffered), 1 << 20);
    place.send("POST", "first", "{}").await;
    place.send("POST", "second", "{}").await;
    let written = async {
        while entries(&place.engine, Some("audit.replay")).await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let within = Duration::from_secs(1);
    tokio::time::timeout(within, written).await.expect("durable within a second");
    // The writer sleeps once nothing waits, and wakes for what comes later.
    place.send("POST", "third", "{}").await;
    place.engine.flush_notes().await;
    assert_eq!(entries(&place.engine, Some("audit.replay")).await.len(), 2);
}

#[tokio::test]
async fn a26_sync_notes_are_there_when_the_replay_is_answered() {
    let place = place(options(NoteWriting::Sync), 1 << 20);
    for (id, must_be) in [("1", 0), ("2", 1), ("3", 2)] {
        place.send("POST", id, "{}").await;
        assert_eq!(entries(&place.engine, Some("audit.replay")).await.len(), must_be);
    }
}

#[tokio::test]
async fn a26_what_waits_is_written_when_the_engine_closes() {
    let (store, _) = MemoryStore::manual(START);
    let store = Arc::new(store);
    let options =
        EngineOptions { notes_every: Duration::from_secs(600), ..EngineOptions::default() };
    let engine = Engine::with_options(store.clone(), options);
    let original = done(&engine).await;
    engine.note(replay(&original)).await.unwrap();
    assert_eq!(engine.note_counts().waiting, 1);
    engine.close().await.unwrap();
    assert_eq!(engine.note_counts().written, 1);
    engine.note(replay(&original)).await.unwrap();
    assert_eq!(engine.note_counts().failed, 1, "too late, and counted");
    assert!(store.list(List::Sweepable, None, 1).await.is_err(), "the store is closed");
}

async fn done(engine: &Engine) -> Arc<Original> {
    let granted = permit(engine.claim(&claim("a", "{}")).await.unwrap());
    engine.complete(&granted, &outcome("done")).await.unwrap();
    let Verdict::Replay(stored) = engine.claim(&claim("a", "{}")).await.unwrap() else {
        panic!("it is done")
    };
    Original::of(&stored.record)
}

fn replay(original: &Arc<Original>) -> Note {
    Note {
        noted: Noted::Replay,
        original: original.clone(),
        fingerprint: print("{}"),
        trace: Trace::default(),
    }
}

#[tokio::test]
async fn a26_what_finds_the_buffer_full_is_counted() {
    let (store, _) = MemoryStore::manual(START);
    let options = EngineOptions {
        notes_waiting_max: 100,
        notes_every: Duration::from_secs(600),
        ..EngineOptions::default()
    };
    let engine = Engine::with_options(Arc::new(store), options);
    let original = done(&engine).await;
    for _ in 0..250 {
        engine.note(replay(&original)).await.unwrap();
    }
    let counts = engine.note_counts();
    assert_eq!((counts.waiting, counts.overflowed), (100, 150));
    engine.flush_notes().await;
    let counts = engine.note_counts();
    assert_eq!((counts.waiting, counts.written, counts.failed), (0, 100, 0));
    assert_eq!(entries(&engine, Some("audit.replay")).await.len(), 100);
    engine.note(replay(&original)).await.unwrap();
    assert_eq!(engine.note_counts().waiting, 1, "there is room again");
}

#[tokio::test]
async fn a04_a_get_leaves_no_entry() {
    let place = place(options(NoteWriting::Sync), 1 << 20);
    for _ in 0..2 {
        place.send("GET", "read", "").await;
        place.send("HEAD", "read", "").await;
    }
    assert_eq!(entries(&place.engine, None).await, []);
}

#[tokio::test]
async fn e06_conflicts_and_expiries_are_audited() {
    let place = place(options(NoteWriting::Buffered), 1 << 20);
    place.send("POST", "first", r#"{"a":1}"#).await;
    assert_eq!(place.send("POST", "other", r#"{"a":2}"#).await, 422);
    place.engine.flush_notes().await;
    let conflicts = entries(&place.engine, Some("idempotency_conflict")).await;
    let [conflict] = &conflicts[..] else { panic!("{conflicts:?}") };
    let first = &entries(&place.engine, Some("request.done")).await[0];
    assert_eq!(conflict.entry.key_hash, first.entry.key_hash);
    assert_ne!(conflict.entry.payload_hash, first.entry.payload_hash);
    assert_eq!(conflict.entry.trace.request_id.as_deref(), Some("other"));
    assert_eq!(detail(conflict)["original"], first.id);
    // Past its retention and not swept yet: it runs anew, and that is told.
    place.clock.advance(86_400_001);
    assert_eq!(place.send("POST", "late", r#"{"a":2}"#).await, 200);
    place.engine.flush_notes().await;
    let expired = entries(&place.engine, Some("idempotency_expired")).await;
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].entry.trace.request_id.as_deref(), Some("late"));
    assert_eq!(expired[0].entry.key_hash, first.entry.key_hash);
}
