//! Attempts that are alive in this process: whatever a clock says, none of them is taken over here.
//!
//! A store's clock may leap ahead while the work goes on; the process that runs it knows better.
//! Other processes only have the clock. Not responsible for ending an attempt whose lease is over:
//! that is its holder's business.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward_core::decide::Permit;
use onceward_core::key::Key;
use onceward_core::record::Record;
use onceward_core::stamp::Fence;

use super::Engine;

/// The fences of the attempts that are alive, by their keys. Of two under one key the later counts.
#[derive(Debug, Default)]
pub(super) struct Alive(Mutex<HashMap<Key, Fence>>);

impl Alive {
    /// Whether this running record's attempt is one of them.
    pub(super) fn has(&self, record: &Record) -> bool {
        record.fence.is_some() && self.locked().get(&record.key).copied() == record.fence
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Key, Fence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An attempt that is alive in this process until this is dropped.
#[derive(Debug)]
pub struct AliveHere {
    alive: Arc<Alive>,
    key: Key,
    fence: Fence,
}

impl Drop for AliveHere {
    fn drop(&mut self) {
        let mut alive = self.alive.locked();
        if alive.get(&self.key) == Some(&self.fence) {
            alive.remove(&self.key);
        }
    }
}

impl Engine {
    /// Says that the holder of this permit is at work in this process: its key is not granted to
    /// anybody else through this engine until the answer is dropped, whatever the store's clock
    /// says. Say it before the work begins, and drop it when the work has ended.
    #[must_use]
    pub fn alive_here(&self, permit: &Permit) -> AliveHere {
        let (alive, key, fence) = (self.0.alive.clone(), permit.key().clone(), permit.fence);
        alive.locked().insert(key.clone(), fence);
        AliveHere { alive, key, fence }
    }
}
