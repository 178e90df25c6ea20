//! How the test kit opens a store and moves what surrounds it: its files, its clock.
//!
//! A harness serves one test at a time: `open` starts an empty place and forgets the one before,
//! everything else is about the place that was opened last. What a store lacks has a default here
//! that says so.

use std::sync::{Arc, Mutex, PoisonError};

use onceward_core::key::Key;
use onceward_core::stamp::At;

use super::poor::PoorStore;
use crate::store::clock::ManualClock;
use crate::store::memory::MemoryStore;
use crate::store::{Store, StoreFuture};

/// Opens the store under test.
pub trait Harness: Send + Sync {
    /// Opens a fresh, empty store.
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>>;

    /// Closes the store and opens the same data again. None: this store keeps nothing.
    fn reopen(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async { Ok(None) })
    }

    /// Moves the store's clock forward. False: it can't be moved, let real time pass.
    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        let _ = ms;
        Box::pin(async { Ok(false) })
    }

    /// Returns when lists see every commit that was answered. Nothing to do when they always do.
    fn settle(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Changes stored bytes behind the store's back. False: nobody can get at them.
    fn damage(&self, what: Damage) -> StoreFuture<'_, bool> {
        let _ = what;
        Box::pin(async { Ok(false) })
    }
}

/// What to change behind the store's back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// One byte of the outcome of this record.
    Outcome(Key),
    /// One column or byte of this record.
    Record(Key),
}

/// Where the manual clocks of the kit start: late enough for anything to lie before it.
pub const START: At = At(1_700_000_000_000);

/// Opens memory stores on a clock that tests move.
#[derive(Debug, Default)]
pub struct MemoryHarness {
    hand: Mutex<Option<ManualClock>>,
}

impl Harness for MemoryHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let (store, hand) = MemoryStore::manual(START);
            *self.hand.lock().unwrap_or_else(PoisonError::into_inner) = Some(hand);
            Ok(Arc::new(store) as Arc<dyn Store>)
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(hand.as_ref().map(|hand| hand.advance(ms)).is_some())
        })
    }
}

/// Opens poor stores.
#[derive(Debug, Default)]
pub struct PoorHarness {
    exact: bool,
    opened: Mutex<Option<(Arc<PoorStore>, ManualClock)>>,
}

impl PoorHarness {
    /// Poor stores whose date is right and whose lists lag until `settle`: comparable with the
    /// oracle.
    #[must_use]
    pub fn exact() -> Self {
        Self { exact: true, opened: Mutex::default() }
    }

    fn opened(&self) -> Option<(Arc<PoorStore>, ManualClock)> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Harness for PoorHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let (store, hand) = PoorStore::manual(START);
            if self.exact {
                store.set_skew_ms(0);
            }
            let store = Arc::new(store);
            let opened = Some((store.clone(), hand));
            *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = opened;
            Ok(store as Arc<dyn Store>)
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move { Ok(self.opened().map(|(_, hand)| hand.advance(ms)).is_some()) })
    }

    fn settle(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            if let Some((store, _)) = self.opened() {
                store.settle();
            }
            Ok(())
        })
    }
}
