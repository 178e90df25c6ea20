//! Leases on a store without a clock: how long have we seen the same rev?
//!
//! A lease is taken over only by one who has seen the record unchanged for a whole lease on its own
//! monotonic clock. A renewal changes the rev and starts the watch anew. Forgetting a sighting is
//! safe: it only makes the takeover later.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use onceward_core::key::Key;
use onceward_core::stamp::Rev;

/// Sightings that are kept at most; past that the oldest half is forgotten.
const SIGHTINGS_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Sightings(Mutex<HashMap<Key, (Rev, Instant)>>);

impl Sightings {
    /// Notes that `key` has `rev` now, and tells for how long it has been seen so.
    pub(super) fn note(&self, key: &Key, rev: Rev) -> u64 {
        let now = Instant::now();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= SIGHTINGS_MAX && !seen.contains_key(key) {
            let mut times: Vec<_> = seen.values().map(|(_, at)| *at).collect();
            times.sort_unstable();
            let middle = times[times.len() / 2];
            seen.retain(|_, (_, at)| *at > middle);
        }
        let (known, since) = seen.entry(key.clone()).or_insert((rev, now));
        if *known != rev {
            *known = rev;
            *since = now;
        }
        u64::try_from(now.duration_since(*since).as_millis()).unwrap_or(u64::MAX)
    }

    /// Forgets a key that is not running any more.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
