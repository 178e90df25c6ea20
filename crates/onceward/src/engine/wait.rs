//! Waiting for a key that someone else runs: bounded, woken at once, never leaked.
//!
//! A waiter registers before it looks again, so a completion in between is not missed. Within the
//! process the commit lane rings; other processes are noticed by the store's watch or by polling.
//! A waiter leaves when it is dropped, whatever ended it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward_core::batch::{Batch, Write};
use onceward_core::key::{Key, Kind};
use onceward_core::limits::LimitError;
use onceward_core::record::{Record, State};
use onceward_core::zoo::{Bug, planted};
use tokio::sync::Notify;

/// Everyone who waits in this process.
#[derive(Debug)]
pub(super) struct Waiters {
    slots: Mutex<HashMap<Key, Slot>>,
    count: AtomicUsize,
    per_key_max: usize,
    total_max: usize,
}

#[derive(Debug, Default)]
struct Slot {
    bell: Arc<Notify>,
    count: usize,
}

/// One who waits. Leaves when dropped.
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    key: Key,
    pub(super) bell: Arc<Notify>,
}

impl Waiters {
    pub(super) fn new(per_key_max: usize, total_max: usize) -> Self {
        Self { slots: Mutex::default(), count: AtomicUsize::new(0), per_key_max, total_max }
    }

    /// Registers a waiter, or none when too many wait already.
    pub(super) fn enter(&self, key: &Key) -> Option<Waiter<'_>> {
        let mut slots = self.locked();
        if self.count.load(Ordering::SeqCst) >= self.total_max || self.per_key_max == 0 {
            return None;
        }
        let slot = slots.entry(key.clone()).or_default();
        if slot.count >= self.per_key_max {
            return None;
        }
        slot.count += 1;
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(Waiter { waiters: self, key: key.clone(), bell: slot.bell.clone() })
    }

    /// Wakes everyone who waits for a key of this batch, or for a job that it leaves to be taken.
    pub(super) fn wake(&self, batch: &Batch) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let slots = self.locked();
        let ring = |key: &Key| {
            if let Some(slot) = slots.get(key) {
                slot.bell.notify_waiters();
            }
        };
        batch.keys().for_each(ring);
        for write in &batch.writes {
            if let Write::Put(draft) = write
                && draft.record.key.kind() == Kind::Job
                && leaves_one_to_take(&draft.record)
                && let Ok(queue) = queue_key(draft.record.key.scope_column())
            {
                ring(&queue);
            }
        }
    }

    /// How many wait.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Key, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a job that is written so may be taken, or gives the next one of its subject its turn.
fn leaves_one_to_take(job: &Record) -> bool {
    match job.state {
        State::Pending | State::Failed => true,
        State::Done | State::Dead => job.guard.is_some(),
        State::Running | State::Unknown | State::Expired => false,
    }
}

/// What takers of a queue wait under. No job has this key: an id is never empty.
pub(super) fn queue_key(queue_column: &str) -> Result<Key, LimitError> {
    Key::from_columns("onceward", Kind::Job, &format!("{queue_column}:"))
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if planted(Bug::WaiterLeaked) {
            return;
        }
        let mut slots = self.waiters.locked();
        self.waiters.count.fetch_sub(1, Ordering::SeqCst);
        if let Some(slot) = slots.get_mut(&self.key) {
            slot.count -= 1;
            if slot.count == 0 {
                slots.remove(&self.key);
            }
        }
    }
}
