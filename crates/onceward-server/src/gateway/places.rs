//! Places for connections to upstreams: as many as the process has files for, whatever the pools.
//!
//! One client over HTTP/2 has many requests at once, each with a connection of its own to an
//! upstream: bounding clients alone keeps no file back. An idle connection has a place too, and
//! gives way to a request that waits for one, the oldest first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pool::Idle;

/// The idle connections of one pool, the oldest first.
pub(super) type Kept = Arc<Mutex<VecDeque<Idle>>>;

/// Those of one pool, to look at and to change.
pub(super) fn locked(kept: &Kept) -> MutexGuard<'_, VecDeque<Idle>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The places of all pools.
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// How many wait for one.
    waiting: AtomicUsize,
    pools: Mutex<Vec<Kept>>,
}

impl Places {
    /// So many.
    pub(super) fn new(most: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            waiting: AtomicUsize::new(0),
            pools: Mutex::default(),
        }
    }

    /// The idle connections of a new pool.
    pub(super) fn pool(&self) -> Kept {
        let kept = Kept::default();
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(kept.clone());
        kept
    }

    /// A place, if one comes free in time.
    pub(super) async fn take(&self, within: Duration) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            return Some(place);
        }
        // Said before anybody gives way: what becomes idle from now on does too.
        let _waits = Waits::one_more(&self.waiting);
        self.oldest_gives_way();
        let place = tokio::time::timeout(within, self.free.clone().acquire_owned()).await;
        place.ok()?.ok()
    }

    /// Told of a connection that has just become idle.
    pub(super) fn one_more_idle(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.oldest_gives_way();
        }
    }

    /// Closes the connection that has been idle for longest; its place is free once it is closed.
    fn oldest_gives_way(&self) {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |kept: &&Kept| locked(kept).front().map(Idle::since);
        let oldest: Option<(Instant, &Kept)> = pools
            .iter()
            .filter_map(|kept| since(&kept).map(|since| (since, kept)))
            .min_by_key(|(since, _)| *since);
        if let Some((_, kept)) = oldest {
            locked(kept).pop_front();
        }
    }
}

/// One who waits, until dropped.
struct Waits<'w>(&'w AtomicUsize);

impl<'w> Waits<'w> {
    fn one_more(waiting: &'w AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
