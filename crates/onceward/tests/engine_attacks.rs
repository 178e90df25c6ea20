//! What an attack on the engine found once, and must not find again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use futures_util::future::join_all;
use onceward::core::audit::Trace;
use onceward::core::batch::{Answer, Batch};
use onceward::core::decide::{
    Completion, Effects, Enqueue, Finish, JobOrder, NewJob, Resolution, Resolved, Retry, Verdict,
};
use onceward::core::guard::{Guard, Rule};
use onceward::core::key::{Key, Kind};
use onceward::core::record::{OnDead, State};
use onceward::engine::{Engine, EngineOptions, OnceVerdict, Take};
use onceward::store::memory::MemoryStore;
use onceward::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreError, StoreFuture,
};
use tokio::sync::Semaphore;

/// A memory store whose commits pass a gate, and that can be told to misbehave.
struct Odd {
    inner: MemoryStore,
    gate: Semaphore,
    arrived: AtomicUsize,
    /// Applies the next commit and loses its answer; from then on every row is held.
    lose_then_hold: AtomicBool,
    held: AtomicBool,
    panics: AtomicBool,
}

impl Odd {
    fn new(open: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::manual(START).0,
            gate: Semaphore::new(open),
            arrived: AtomicUsize::new(0),
            lose_then_hold: AtomicBool::new(false),
            held: AtomicBool::new(false),
            panics: AtomicBool::new(false),
        })
    }
}

impl Store for Odd {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.inner.load(reads)
    }
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            self.arrived.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            assert!(!self.panics.swap(false, Ordering::SeqCst), "a store that breaks");
            if self.held.load(Ordering::SeqCst) {
                return Ok(Committed { answers: vec![Answer::Contended; group.len()] });
            }
            let committed = self.inner.commit(group).await;
            if self.lose_then_hold.swap(false, Ordering::SeqCst) {
                self.held.store(true, Ordering::SeqCst);
                return Err(StoreError::Unknown("lost".into()));
            }
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

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}

fn job(id: &str) -> NewJob {
    NewJob::new(job_key(id), print(id), bytes(id))
}

fn ordered(id: &str, subject: &str) -> NewJob {
    let mut job = job(id);
    job.order = Some(JobOrder::new(&job.key, subject).unwrap());
    job
}

async fn take(engine: &Engine, max: usize) -> Vec<String> {
    let take = Take { queue: "mail".into(), owner: "w".into(), max, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    taken.iter().map(|t| String::from_utf8(t.payload.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn i01_a_retry_with_the_same_attempt_id_is_not_pulled_from_under_its_caller() {
    let store = Odd::new(0);
    let engine = Engine::new(store.clone());
    let mut named = claim("k", "p");
    named.attempt_id = Some("try-1".into());
    let gone = {
        let (engine, named) = (engine.clone(), named.clone());
        tokio::spawn(async move { engine.claim(&named).await })
    };
    until(|| store.arrived.load(Ordering::SeqCst) == 1).await;
    let retry = {
        let (engine, named) = (engine.clone(), named.clone());
        tokio::spawn(async move { engine.claim(&named).await })
    };
    tokio::task::yield_now().await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    store.gate.add_permits(1_000);
    let held = permit(retry.await.unwrap().unwrap());
    let other = engine.claim(&claim("k", "p")).await.unwrap();
    assert!(matches!(other, Verdict::Busy { .. }), "{other:?}");
    assert_eq!(engine.complete(&held, &outcome("once")).await.unwrap(), Finish::Ok);
}

#[tokio::test]
async fn i09_a_held_row_after_a_lost_answer_settles_nothing() {
    let store = Odd::new(1_000_000);
    let options = EngineOptions {
        resend_for: Duration::from_millis(60),
        resend_pause: Duration::from_millis(1),
        contended_for: Duration::from_millis(5),
        ..EngineOptions::default()
    };
    let engine = Engine::with_options(store.clone(), options);
    store.lose_then_hold.store(true, Ordering::SeqCst);
    let error = engine.run_once(&claim("k", "p"), &outcome("once")).await.unwrap_err();
    assert!(!error.nothing_done(), "{error:?}: it was done");
    store.held.store(false, Ordering::SeqCst);
    assert_eq!(replayed(engine.claim(&claim("k", "p")).await.unwrap()), "once");
}

#[tokio::test]
async fn a_grant_that_was_answered_but_never_heard_is_released() {
    let (engine, ..) = engine();
    for _ in 0..20 {
        let request = claim("k", "p");
        let mut asking = Box::pin(engine.claim(&request));
        // One poll sends the claim; the lane answers while nobody polls; then it is dropped.
        assert!(futures_util::poll!(&mut asking).is_pending());
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        drop(asking);
        let next = engine.claim_waiting(&claim("k", "p"), Duration::from_secs(5)).await.unwrap();
        engine.release(&permit(next)).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_panics_hangs_nobody() {
    let store = Odd::new(1_000_000);
    let engine = Engine::new(store.clone());
    store.panics.store(true, Ordering::SeqCst);
    // The batch is sent again after the panic, and then it works.
    permit(engine.claim(&claim("k", "p")).await.unwrap());
    permit(engine.claim(&claim("other", "p")).await.unwrap());
    engine.close().await.unwrap();
}

#[test]
fn an_engine_whose_runtime_ended_answers_instead_of_hanging() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = runtime();
    let options = EngineOptions { resend_for: Duration::ZERO, ..EngineOptions::default() };
    let store = Arc::new(MemoryStore::new());
    let engine = first.block_on(async { Engine::with_options(store, options) });
    drop(first);
    runtime().block_on(async {
        assert!(engine.claim(&claim("k", "p")).await.is_err());
        engine.close().await.unwrap();
    });
}

#[tokio::test]
async fn a_forced_rerun_keeps_its_turn_when_it_still_has_one() {
    let (engine, ..) = engine();
    let mut first = ordered("a", "s");
    first.terms.on_dead = OnDead::Block;
    engine.enqueue(&first).await.unwrap();
    engine.enqueue(&ordered("b", "s")).await.unwrap();
    let request = Take { queue: "mail".into(), owner: "w".into(), max: 1, lease_ms: None };
    let taken = engine.take(&request).await.unwrap().remove(0);
    engine.fail(&taken.permit, "no", Retry::Never).await.unwrap();
    let force = Resolution::Rerun { force: true };
    let resolved = engine.resolve(&first.key, &force, &Trace::default()).await.unwrap();
    assert_eq!(resolved, Resolved::Ok);
    let again = engine.take(&request).await.unwrap().remove(0);
    engine.complete(&again.permit, &outcome("ok")).await.unwrap();
    assert_eq!(take(&engine, 9).await, ["b"], "those behind it go on");
}

#[tokio::test]
async fn one_blocked_subject_does_not_hide_the_rest_of_a_queue() {
    let (engine, ..) = engine();
    for number in 0..400 {
        engine.enqueue(&ordered(&format!("o{number:03}"), "s")).await.unwrap();
    }
    assert_eq!(take(&engine, 1).await, ["o000"]);
    let mut late = job("free");
    late.key = Key::new(Kind::Job, "umbrella", "mail", "free").unwrap();
    engine.enqueue(&late).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.extend(take(&engine, 1).await);
    }
    assert_eq!(seen, ["free"]);
}

#[tokio::test]
async fn many_writers_of_one_subject_all_get_their_turn() {
    let (engine, ..) = engine();
    let jobs: Vec<NewJob> = (0..200).map(|n| ordered(&format!("j{n}"), "s")).collect();
    for answer in join_all(jobs.iter().map(|job| engine.enqueue(job))).await {
        assert_eq!(answer.unwrap(), Enqueue::Made);
    }
    let requests: Vec<_> = (0..200)
        .map(|n| {
            let effects =
                Effects { jobs: vec![ordered(&format!("o{n}"), "s")], ..Effects::default() };
            (claim(&format!("r{n}"), "p"), with_effects("ok", effects))
        })
        .collect();
    for ran in engine.run_once_many(&requests).await {
        let ran = ran.unwrap();
        assert!(matches!(ran, OnceVerdict::Ran { .. }), "{ran:?}");
    }
}

#[tokio::test]
async fn a_job_is_not_claimed_like_a_request() {
    let (engine, ..) = engine();
    engine.enqueue(&ordered("a", "s")).await.unwrap();
    let mut request = claim("x", "p");
    request.key = job_key("a");
    assert_eq!(engine.claim(&request).await.unwrap_err().code(), "limit");
    assert_eq!(take(&engine, 1).await, ["a"]);
}

#[tokio::test]
async fn a03_the_order_of_a_job_is_its_own_tenants() {
    let (engine, ..) = engine();
    let mut foreign = job("a");
    let theirs = Key::new(Kind::Job, "victim", "mail", "a").unwrap();
    foreign.order = Some(JobOrder::new(&theirs, "s").unwrap());
    assert_eq!(engine.enqueue(&foreign).await.unwrap_err().code(), "limit");
    let effects = Effects { jobs: vec![foreign], ..Effects::default() };
    let refused = engine.run_once(&claim("k", "p"), &with_effects("ok", effects)).await;
    assert_eq!(refused.unwrap_err().code(), "limit");
}

#[tokio::test]
async fn bounds_hold_for_what_is_built_by_hand_too() {
    let (engine, ..) = engine();
    let held = permit(engine.claim(&claim("k", "p")).await.unwrap());
    let mut gone_at_once = outcome("x");
    gone_at_once.retain_ms = Some(0);
    let mut damaged = outcome("x");
    damaged.digest = print("another");
    for bad in [gone_at_once, damaged] {
        assert_eq!(engine.complete(&held, &bad).await.unwrap_err().code(), "limit");
    }
    for rule in [Rule::Exactly { expected: u64::MAX }, Rule::Next { position: u64::MAX }] {
        let mut guarded = claim("g", "p");
        guarded.guard = Some(Guard { subject: subject("s"), rule });
        assert_eq!(engine.claim(&guarded).await.unwrap_err().code(), "limit");
        let ran = engine.run_once(&guarded, &outcome("x")).await;
        assert_eq!(ran.unwrap_err().code(), "limit");
    }
    assert_eq!(engine.complete(&held, &Completion::new(bytes("x"))).await.unwrap(), Finish::Ok);
    let waited = engine.claim_waiting(&claim("k", "p"), Duration::MAX).await.unwrap();
    assert_eq!(replayed(waited), "x");
}

#[tokio::test]
async fn a_released_attempt_is_not_counted() {
    let (engine, ..) = engine();
    let mut three = claim("k", "p");
    three.terms.max_attempts = 3;
    let first = permit(engine.claim(&three).await.unwrap());
    engine.fail(&first, "no", Retry::In(0)).await.unwrap();
    for _ in 0..5 {
        let again = permit(engine.claim(&three).await.unwrap());
        assert_eq!(again.record.attempt, 2);
        engine.release(&again).await.unwrap();
    }
    let second = permit(engine.claim(&three).await.unwrap());
    assert_eq!(engine.fail(&second, "no", Retry::In(0)).await.unwrap(), Finish::Ok);
    let record = engine.look(&key("k")).await.unwrap().unwrap().stored.record;
    assert_eq!(record.state, State::Failed, "one attempt is left");
}

#[tokio::test]
async fn what_follows_a_job_that_was_not_made_does_not_overtake_it() {
    let (engine, ..) = engine();
    let mut bad = ordered("a", "s");
    bad.priority = 200;
    let jobs = [bad, ordered("b", "s"), ordered("x", "t")];
    let answers = engine.enqueue_many(&jobs).await;
    assert!(answers[0].is_err() && answers[1].is_err());
    assert!(matches!(answers[2], Ok(Enqueue::Made)));
    assert_eq!(engine.look(&job_key("b")).await.unwrap(), None);
}
