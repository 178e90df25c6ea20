//! Outcomes in the memory of this process, bounded by bytes.
//!
//! Only what is immutable is kept, and only until its retention ends, counted on our own monotonic
//! clock from the store's answer. Whether an outcome was erased since is not known here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::Bytes;
use onceward_core::fingerprint::Fingerprint;
use onceward_core::key::Key;
use onceward_core::note::Original;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// Bytes that an entry takes beside its outcome, about.
const ENTRY_BYTES: u64 = 512;

/// Outcomes by key.
pub(super) struct Local(Cache<Key, Entry, Weight>);

/// An outcome and how long it may be replayed.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) fingerprint: Fingerprint,
    pub(super) outcome: Bytes,
    /// What a note about its replay points back to.
    pub(super) original: Arc<Original>,
    /// The note of the latest erasure from before the record was looked at.
    pub(super) erasures: u128,
    until: Instant,
}

impl Entry {
    /// Kept for as long as its retention has left.
    pub(super) fn new(
        fingerprint: Fingerprint,
        outcome: Bytes,
        original: Arc<Original>,
        erasures: u128,
        left: Duration,
    ) -> Self {
        Self { fingerprint, outcome, original, erasures, until: Instant::now() + left }
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Key, Entry> for Weight {
    fn weight(&self, _: &Key, entry: &Entry) -> u64 {
        ENTRY_BYTES + entry.outcome.len() as u64
    }
}

impl Local {
    /// A cache of at most about `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let entries = usize::try_from(bytes / (2 * ENTRY_BYTES)).unwrap_or(usize::MAX).max(1);
        Self(Cache::with_weighter(entries, bytes, Weight))
    }

    /// The outcome of a key with this very payload, as long as it is kept.
    pub(super) fn get(&self, key: &Key, fingerprint: &Fingerprint) -> Option<Entry> {
        let entry = self.0.get(key)?;
        if Instant::now() >= entry.until {
            self.0.remove(key);
            return None;
        }
        (entry.fingerprint == *fingerprint).then_some(entry)
    }

    /// Keeps an outcome.
    pub(super) fn put(&self, key: &Key, entry: Entry) {
        self.0.insert(key.clone(), entry);
    }

    /// Forgets an outcome.
    pub(super) fn remove(&self, key: &Key) {
        self.0.remove(key);
    }
}
