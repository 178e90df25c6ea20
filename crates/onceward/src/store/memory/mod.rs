//! The memory store: the oracle behind a lock.
//!
//! Keeps nothing across a restart and says so in its durability. Good for tests and for trying
//! things out; everything that other stores do, it does by the book in [`MemoryState`].

pub(crate) mod list;
mod state;

pub use state::{MemoryState, TOKEN_KEPT_MS};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward_core::batch::Batch;
use onceward_core::key::Key;
use onceward_core::stamp::At;
use tokio::sync::Notify;

use super::clock::{ManualClock, StoreClock};
use super::{
    Capabilities, Committed, Cursor, Durability, List, Loaded, Page, Read, Store, StoreError,
    StoreFuture,
};

/// A store in memory.
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<MemoryState>,
    clock: StoreClock,
    changed: Notify,
    closed: AtomicBool,
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(StoreClock::machine(At(0)))
    }

    /// An empty store on a clock that a test moves.
    #[must_use]
    pub fn manual(start: At) -> (Self, ManualClock) {
        let (clock, hand) = StoreClock::manual(start);
        (Self::with_clock(clock), hand)
    }

    fn with_clock(clock: StoreClock) -> Self {
        Self {
            state: Mutex::default(),
            clock,
            changed: Notify::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// A copy of everything, to compare with.
    #[must_use]
    pub fn snapshot(&self) -> MemoryState {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, MemoryState> {
        // A panic while the lock was held can't leave a half-written batch that matters: the
        // process that keeps this memory is the one that panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(StoreError::NotApplied("the memory store is closed".into()));
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            clock: true,
            group_max: 256,
            lanes: 1,
            gathers: false,
            watch: true,
            lists_are_current: true,
            leases_anew: None,
            durability: Durability::None,
            warnings: Vec::new(),
        }
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(async move {
            self.open()?;
            let state = self.locked();
            let facts = reads.iter().map(|read| state.read(read)).collect();
            Ok(Loaded { now: self.clock.now(), facts })
        })
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            self.open()?;
            for batch in &group {
                batch.validate()?;
            }
            let answers = {
                let mut state = self.locked();
                let now = self.clock.now();
                state.apply_group(group.iter().map(|batch| &**batch), now)
            };
            self.changed.notify_waiters();
            Ok(Committed { answers })
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            self.open()?;
            list::list(&self.locked(), self.clock.now(), &what, after.as_ref(), limit)
        })
    }

    fn watch(&self, _keys: Vec<Key>) -> StoreFuture<'_, ()> {
        // Registered here and not at the first poll: a change between the two must wake it.
        let changed = self.changed.notified();
        Box::pin(async move {
            self.open()?;
            changed.await;
            Ok(())
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::SeqCst);
            // Nothing changes any more, so whoever still watches must not wait for it.
            self.changed.notify_waiters();
            Ok(())
        })
    }
}
