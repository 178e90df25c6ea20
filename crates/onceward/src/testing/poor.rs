//! The poor store: as little as the contract allows, so that nothing above leans on more.
//!
//! It has no clock of its own: its `now` is a date that is about right and may step back a little.
//! A group is one batch, it can't be watched, and its lists trail behind its commits by a number
//! of calls. What it does commit, it commits by the book: the oracle's state does the work.
//! Not for use outside tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward_core::batch::{Answer, Applied, Batch};
use onceward_core::key::Key;
use onceward_core::limits::LimitError;
use onceward_core::stamp::At;

use super::random::Random;
use crate::store::clock::{ManualClock, StoreClock};
use crate::store::memory::{MemoryState, list};
use crate::store::{
    Capabilities, Committed, Cursor, Durability, List, Loaded, Page, Read, Store, StoreError,
    StoreFuture,
};

/// How far the date may lie off, either way, unless it is set.
pub const SKEW_MS: u64 = 40;
/// How many further calls it takes until a commit shows in lists, unless it is set.
pub const LIST_LAG_CALLS: u64 = 3;

const NAME: &str = "poor";
const GROUP_MAX: usize = 1;

/// A store in memory that can do as little as the contract allows.
#[derive(Debug)]
pub struct PoorStore {
    clock: StoreClock,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// What `load` and `commit` see.
    truth: MemoryState,
    /// What lists see: `truth` without the newest commits.
    listed: MemoryState,
    /// Commits that lists don't see yet: the call that made them, the batch, its instant.
    late: VecDeque<(u64, Arc<Batch>, At)>,
    calls: u64,
    skew_ms: u64,
    lag_calls: u64,
    closed: bool,
}

impl PoorStore {
    /// An empty store around the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(StoreClock::machine(At(0)))
    }

    /// An empty store around a clock that a test moves.
    #[must_use]
    pub fn manual(start: At) -> (Self, ManualClock) {
        let (clock, hand) = StoreClock::manual(start);
        (Self::with_clock(clock), hand)
    }

    fn with_clock(clock: StoreClock) -> Self {
        let inner = Inner {
            truth: MemoryState::default(),
            listed: MemoryState::default(),
            late: VecDeque::new(),
            calls: 0,
            skew_ms: SKEW_MS,
            lag_calls: LIST_LAG_CALLS,
            closed: false,
        };
        Self { clock, inner: Mutex::new(inner) }
    }

    /// Sets how far the date may lie off, either way.
    pub fn set_skew_ms(&self, skew_ms: u64) {
        self.locked().skew_ms = skew_ms;
    }

    /// Sets after how many further calls a commit shows in lists.
    pub fn set_list_lag(&self, calls: u64) {
        self.locked().lag_calls = calls;
    }

    /// Lets lists see every commit so far.
    pub fn settle(&self) {
        self.locked().show(u64::MAX);
    }

    /// A copy of everything that is committed, to compare with.
    #[must_use]
    pub fn snapshot(&self) -> MemoryState {
        self.locked().truth.clone()
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        // As in the memory store: what a panic leaves behind matters only to who panicked.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, lets lists catch up and reads the date.
    fn enter(&self) -> Result<(MutexGuard<'_, Inner>, At), StoreError> {
        let mut inner = self.locked();
        if inner.closed {
            return Err(StoreError::NotApplied("the poor store is closed".into()));
        }
        inner.calls += 1;
        let seen = inner.calls.saturating_sub(inner.lag_calls);
        inner.show(seen);
        // The call's number decides how far the date is off: the same calls, the same dates.
        let off = Random::new(inner.calls).below(inner.skew_ms * 2 + 1);
        let now = At((self.clock.now().0 + off).saturating_sub(inner.skew_ms));
        Ok((inner, now))
    }
}

impl Inner {
    /// Lets lists see the commits of calls below `before`.
    fn show(&mut self, before: u64) {
        while let Some((_, batch, at)) = self.late.pop_front_if(|(call, ..)| *call < before) {
            // In the same order at the same instants, so the copy draws the same stamps.
            self.listed.apply(&batch, at);
        }
    }
}

impl Default for PoorStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for PoorStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            clock: false,
            group_max: GROUP_MAX,
            lanes: 4,
            gathers: false,
            watch: false,
            lists_are_current: false,
            leases_anew: None,
            durability: Durability::None,
            warnings: Vec::new(),
        }
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(async move {
            let (inner, now) = self.enter()?;
            Ok(Loaded { now, facts: reads.iter().map(|read| inner.truth.read(read)).collect() })
        })
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            let (mut inner, now) = self.enter()?;
            if group.len() > GROUP_MAX {
                let bound = format!("at most {GROUP_MAX}");
                return Err(LimitError::new("batches in a group", group.len(), bound).into());
            }
            for batch in &group {
                batch.validate()?;
            }
            let mut answers = Vec::with_capacity(group.len());
            for batch in group {
                let answer = inner.truth.apply(&batch, now);
                if matches!(answer, Answer::Applied(Applied { again: false, .. })) {
                    let call = inner.calls;
                    inner.late.push_back((call, batch, now));
                }
                answers.push(answer);
            }
            Ok(Committed { answers })
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            let (inner, now) = self.enter()?;
            list::list(&inner.listed, now, &what, after.as_ref(), limit)
        })
    }

    fn watch(&self, _keys: Vec<Key>) -> StoreFuture<'_, ()> {
        Box::pin(async { Err(StoreError::Unsupported { store: NAME, what: "watch" }) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.locked().closed = true;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Items;
    use crate::testing::conformance::bench::{draft, key, put};

    async fn insert(store: &PoorStore, id: &str) {
        let mut batch = Batch::new(onceward_core::stamp::Token(id.len() as u128));
        batch.writes.push(put(draft(&key(id).unwrap())));
        store.commit(vec![Arc::new(batch)]).await.unwrap();
    }

    async fn listed(store: &PoorStore) -> usize {
        let what = List::Records { tenant: None, scope: None, state: None };
        match store.list(what, None, 100).await.unwrap().items {
            Items::Records(records) => records.len(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn lists_trail_behind_until_they_settle() {
        let (store, _) = PoorStore::manual(At(1_000));
        insert(&store, "a").await;
        let seen: Vec<_> =
            [listed(&store).await, listed(&store).await, listed(&store).await].into();
        assert_eq!(seen, [0, 0, 0]);
        assert_eq!(listed(&store).await, 1, "a number of calls later it is there");
        insert(&store, "bb").await;
        assert_eq!(listed(&store).await, 1);
        store.settle();
        assert_eq!(listed(&store).await, 2);
    }

    #[tokio::test]
    async fn the_date_is_about_right_and_may_step_back() {
        let (store, hand) = PoorStore::manual(At(1_000));
        let mut dates = Vec::new();
        for _ in 0..50 {
            dates.push(store.load(vec![]).await.unwrap().now);
            hand.advance(1);
        }
        assert!(dates.windows(2).any(|pair| pair[1] < pair[0]), "{dates:?}");
        let near = |(n, at): (usize, &At)| at.0.abs_diff(1_000 + n as u64) <= SKEW_MS;
        assert!(dates.iter().enumerate().all(near), "{dates:?}");
    }
}
