//! The replay cache: outcomes that are done, in this process, bounded by bytes.
//!
//! Only what is immutable is kept, and only until its retention ends, counted on our own monotonic
//! clock from the store's answer. A miss costs a look at the store; the cache never answers a
//! claim.

use std::time::{Duration, Instant};

use onceward_core::Bytes;
use onceward_core::fingerprint::Fingerprint;
use onceward_core::key::Key;
use onceward_core::record::Record;
use onceward_core::stamp::At;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Bytes that an entry takes beside its outcome, about.
const ENTRY_BYTES: u64 = 512;

/// Outcomes by key.
pub(super) struct ReplayCache(Cache<Key, Cached, Weight>);

#[derive(Clone)]
struct Cached {
    fingerprint: Fingerprint,
    outcome: Bytes,
    until: Instant,
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Cached> for Weight {
    fn weight(&self, _: &Key, cached: &Cached) -> u64 {
        ENTRY_BYTES + cached.outcome.len() as u64
    }
}

impl ReplayCache {
    /// A cache of at most about `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let entries = usize::try_from(bytes / (2 * ENTRY_BYTES)).unwrap_or(usize::MAX).max(1);
        Self(Cache::with_weighter(entries, bytes, Weight))
    }

    /// The outcome of a key with this very payload, as long as it is kept.
    pub(super) fn get(&self, key: &Key, fingerprint: &Fingerprint) -> Option<Bytes> {
        let cached = self.0.get(key)?;
        if Instant::now() >= cached.until {
            self.0.remove(key);
            return None;
        }
        (cached.fingerprint == *fingerprint).then_some(cached.outcome)
    }

    /// Keeps the outcome of a done record that the store showed at `now`.
    pub(super) fn put(&self, record: &Record, outcome: Bytes, now: At) {
        let Some(expires_at) = record.expires_at else { return };
        let left = Duration::from_millis(expires_at.since(now));
        if left.is_zero() {
            return;
        }
        let until = Instant::now() + left;
        let cached = Cached { fingerprint: record.fingerprint, outcome, until };
        self.0.insert(record.key.clone(), cached);
    }
}
