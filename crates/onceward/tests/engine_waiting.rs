//! Waiting and grouping: who waits is bounded, woken at once and never leaked; batches share
//! commits without touching one another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use onceward::core::batch::Batch;
use onceward::core::decide::{Claim, Finish, Verdict};
use onceward::core::key::Key;
use onceward::engine::{Engine, EngineOptions};
use onceward::store::memory::MemoryStore;
use onceward::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreFuture,
};
use tokio::sync::Semaphore;

const LONG: Duration = Duration::from_secs(60);

/// A memory store whose commits pass a gate one by one, and are counted.
struct Gated {
    inner: MemoryStore,
    gate: Semaphore,
    arrived: AtomicUsize,
    groups: AtomicUsize,
    loads: AtomicUsize,
    watch: bool,
    /// Its watch tells of a change whenever it is asked.
    tells_always: bool,
    gathers: bool,
}

impl Gated {
    fn new(open: usize) -> Arc<Self> {
        Self::that(open, false)
    }

    fn that(open: usize, gathers: bool) -> Arc<Self> {
        let inner = MemoryStore::manual(START).0;
        Arc::new(Self {
            inner,
            gate: Semaphore::new(open),
            arrived: AtomicUsize::new(0),
            groups: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            watch: true,
            tells_always: false,
            gathers,
        })
    }
}

impl Store for Gated {
    fn capabilities(&self) -> Capabilities {
        let (watch, gathers) = (self.watch, self.gathers);
        Capabilities { watch, gathers, ..self.inner.capabilities() }
    }
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(reads)
    }
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            self.arrived.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            self.groups.fetch_add(1, Ordering::SeqCst);
            self.inner.commit(group).await
        })
    }
    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.inner.list(what, after, limit)
    }
    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        match self.tells_always {
            true => Box::pin(std::future::ready(Ok(()))),
            false => self.inner.watch(keys),
        }
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

#[tokio::test]
async fn a_waiter_gets_the_outcome_as_soon_as_it_is_there() {
    let (engine, ..) = engine();
    let held = permit(engine.claim(&claim("k", "p")).await.unwrap());
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move { engine.claim_waiting(&claim("k", "p"), LONG).await })
        })
        .collect();
    until(|| engine.waiting() == 50).await;
    assert_eq!(engine.complete(&held, &outcome("paid")).await.unwrap(), Finish::Ok);
    for waiter in waiters {
        assert_eq!(replayed(waiter.await.unwrap().unwrap()), "paid");
    }
    assert_eq!(engine.waiting(), 0);
}

#[tokio::test]
async fn a_released_key_goes_to_exactly_one_waiter() {
    let (engine, ..) = engine();
    let held = permit(engine.claim(&claim("k", "p")).await.unwrap());
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let engine = engine.clone();
            let wait = Duration::from_millis(300);
            tokio::spawn(async move { engine.claim_waiting(&claim("k", "p"), wait).await })
        })
        .collect();
    until(|| engine.waiting() == 10).await;
    engine.release(&held).await.unwrap();
    let mut ran = 0;
    for waiter in waiters {
        match waiter.await.unwrap().unwrap() {
            Verdict::Run { .. } => ran += 1,
            Verdict::Busy { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ran, 1);
}

#[tokio::test]
async fn i19_a_cancelled_waiter_leaves_nothing_behind() {
    let (engine, ..) = engine();
    permit(engine.claim(&claim("k", "p")).await.unwrap());
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move { engine.claim_waiting(&claim("k", "p"), LONG).await })
        })
        .collect();
    until(|| engine.waiting() == 20).await;
    for waiter in waiters {
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
    }
    assert_eq!(engine.waiting(), 0);
}

#[tokio::test]
async fn i19_waiters_end_by_their_deadline_and_their_number_is_bounded() {
    let (store, _) = MemoryStore::manual(START);
    let options = EngineOptions { waiters_per_key_max: 2, waiters_max: 3, ..Default::default() };
    let engine = Engine::with_options(Arc::new(store), options);
    for id in ["a", "b"] {
        permit(engine.claim(&claim(id, "p")).await.unwrap());
    }
    let mut waiters = Vec::new();
    for id in ["a", "a", "b"] {
        let engine = engine.clone();
        waiters.push(tokio::spawn(async move {
            engine.claim_waiting(&claim(id, "p"), Duration::from_millis(100)).await
        }));
    }
    until(|| engine.waiting() == 3).await;
    // One more of the key, one more of the process: busy at once.
    for id in ["a", "b"] {
        let verdict = engine.claim_waiting(&claim(id, "p"), LONG).await.unwrap();
        assert!(matches!(verdict, Verdict::Busy { .. }));
    }
    for waiter in waiters {
        assert!(matches!(waiter.await.unwrap().unwrap(), Verdict::Busy { .. }));
    }
    assert_eq!(engine.waiting(), 0);
}

#[tokio::test]
async fn a_waiter_takes_over_when_the_lease_runs_out() {
    let (engine, _, clock) = engine();
    let old = permit(engine.claim(&claim("k", "p")).await.unwrap());
    let waiter = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.claim_waiting(&claim("k", "p"), LONG).await })
    };
    until(|| engine.waiting() == 1).await;
    clock.advance(30_000);
    let new = permit(waiter.await.unwrap().unwrap());
    assert!(new.fence > old.fence);
}

#[tokio::test]
async fn a_completion_in_another_process_is_noticed_by_watch_and_by_polling() {
    for watch in [true, false] {
        let store = Gated::new(Semaphore::MAX_PERMITS);
        let mut store = Arc::into_inner(store).unwrap();
        store.watch = watch;
        let store: Arc<dyn Store> = Arc::new(store);
        // Two engines on one store: neither rings the other's bells.
        let (here, there) = (Engine::new(store.clone()), Engine::new(store));
        let held = permit(there.claim(&claim("k", "p")).await.unwrap());
        let waiter = {
            let here = here.clone();
            tokio::spawn(async move { here.claim_waiting(&claim("k", "p"), LONG).await })
        };
        until(|| here.waiting() == 1).await;
        there.complete(&held, &outcome("paid")).await.unwrap();
        assert_eq!(replayed(waiter.await.unwrap().unwrap()), "paid");
    }
}

#[tokio::test]
async fn a_watch_that_tells_of_nothing_makes_no_loop_without_a_pause() {
    let mut store = Arc::into_inner(Gated::new(Semaphore::MAX_PERMITS)).unwrap();
    store.tells_always = true;
    let store = Arc::new(store);
    let engine = Engine::new(store.clone());
    permit(engine.claim(&claim("k", "p")).await.unwrap());
    let before = store.loads.load(Ordering::SeqCst);
    let verdict = engine.claim_waiting(&claim("k", "p"), Duration::from_millis(300)).await.unwrap();
    assert!(matches!(verdict, Verdict::Busy { .. }), "{verdict:?}");
    // One look at once, and then one each 10 ms at most.
    let looks = store.loads.load(Ordering::SeqCst) - before;
    assert!((2..=2 + 30).contains(&looks), "{looks} looks");
}

#[tokio::test]
async fn what_waits_together_shares_one_commit() {
    let store = Gated::new(0);
    let engine = Engine::new(store.clone());
    let claims: Vec<Claim> = (0..100).map(|n| claim(&format!("k{n}"), "p")).collect();
    let all = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.claim_many(&claims).await })
    };
    store.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    for verdict in all.await.unwrap() {
        permit(verdict.unwrap());
    }
    // The lane may have picked up the first few before the rest had come.
    let groups = store.groups.load(Ordering::SeqCst);
    assert!(groups <= 2, "{groups} commits for 100 claims");
}

#[tokio::test]
async fn i26_the_same_key_twice_in_one_call_is_answered_in_order() {
    let (engine, ..) = engine();
    let claims = [claim("k", "p"), claim("other", "p"), claim("k", "p"), claim("k", "q")];
    let verdicts: Vec<_> =
        engine.claim_many(&claims).await.into_iter().map(Result::unwrap).collect();
    permit(verdicts[0].clone());
    permit(verdicts[1].clone());
    assert!(matches!(verdicts[2], Verdict::Busy { .. }), "{:?}", verdicts[2]);
    assert!(matches!(verdicts[3], Verdict::Mismatch(_)), "{:?}", verdicts[3]);
}

#[tokio::test]
async fn a_grant_whose_caller_went_away_is_released() {
    for gathers in [false, true] {
        a_grant_is_released(gathers).await;
    }
}

async fn a_grant_is_released(gathers: bool) {
    let store = Gated::that(0, gathers);
    let engine = Engine::new(store.clone());
    let gone = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.claim(&claim("k", "p")).await })
    };
    // The claim waits at the gate when its caller goes away.
    until(|| store.arrived.load(Ordering::SeqCst) == 1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    store.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    let next = engine.claim_waiting(&claim("k", "p"), LONG).await.unwrap();
    assert_eq!(permit(next).record.attempt, 1, "nothing was done, so nothing is remembered");
}

#[tokio::test]
async fn closing_commits_what_waits_and_refuses_what_comes_later() {
    for gathers in [false, true] {
        closing_commits_what_waits(gathers).await;
    }
}

async fn closing_commits_what_waits(gathers: bool) {
    let store = Gated::that(0, gathers);
    let engine = Engine::new(store.clone());
    let last = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.claim(&claim("k", "p")).await })
    };
    until(|| store.arrived.load(Ordering::SeqCst) == 1).await;
    let closing = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.close().await })
    };
    tokio::task::yield_now().await;
    store.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    permit(last.await.unwrap().unwrap());
    closing.await.unwrap().unwrap();
    let late = engine.claim(&claim("late", "p")).await.unwrap_err();
    assert!(late.nothing_done() && late.is_retryable(), "{late:?}");
}
