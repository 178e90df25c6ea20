//! The latest erasures that this process knows of: what tells a cached outcome that was erased.
//!
//! Every erasure leaves its token in a mark of its tenant, in the batch that erases (see the
//! engine's `erasures.rs`). A cached outcome carries the note that was known before its record was
//! looked at, and is replayed only where the note that the store shows now, or showed within
//! [`ERASED_SEEN_WITHIN`], is still the same. So a purge that never reached a cache, a cache
//! restored from an old copy, and a process that heard nothing of the erasure cost time only. A
//! store that gives no answer ends the replays from caches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::key::Key;
use quick_cache::sync::Cache;
use tokio::sync::Mutex;

use crate::engine::{ERASURES_MARKS, Engine, erasures_mark, erasures_subject};

/// How long after an erasure was answered another process may still replay what was erased.
pub const ERASED_SEEN_WITHIN: Duration = Duration::from_secs(1);
/// How long a note is waited for: a cache is there to save time, and the store is asked anyway.
const LOOKED_FOR: Duration = Duration::from_secs(1);
/// Tenants whose notes are remembered, with one or two kilobytes each; others are read when they
/// are needed.
const TENANTS_MAX: usize = 4_096;

/// The notes that this process knows, by the tenant's column.
pub(super) struct Erasures(Cache<Box<str>, Arc<[Known; ERASURES_MARKS]>>);

/// What is known of one note; one reader at a time, so that a burst asks once.
#[derive(Default)]
struct Known(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The note, and when it was asked for.
    note: Option<(u128, Instant)>,
    /// When the store last gave no answer.
    failed: Option<Instant>,
}

impl Erasures {
    pub(super) fn new() -> Self {
        Self(Cache::new(TENANTS_MAX))
    }

    /// The note as it is now, or was a moment ago.
    pub(super) async fn fresh(&self, engine: &Engine, key: &Key) -> Option<u128> {
        self.not_older_than(Some(ERASED_SEEN_WITHIN), engine, key).await
    }

    /// The note as it was at some time before now: enough for what is looked at from here on.
    pub(super) async fn known(&self, engine: &Engine, key: &Key) -> Option<u128> {
        self.not_older_than(None, engine, key).await
    }

    /// Forgets the note of a key, and its tenant's others, so that the next look is a fresh one.
    pub(super) fn forget(&self, key: &Key) {
        self.0.remove(key.tenant_column());
    }

    async fn not_older_than(
        &self,
        age: Option<Duration>,
        engine: &Engine,
        key: &Key,
    ) -> Option<u128> {
        let notes = self.0.get(key.tenant_column()).unwrap_or_else(|| {
            let notes = Arc::<[Known; ERASURES_MARKS]>::default();
            self.0.insert(key.tenant_column().into(), notes.clone());
            notes
        });
        let came = Instant::now();
        let mut seen = notes[erasures_mark(key)].0.lock().await;
        if let Some((note, asked)) = seen.note
            && age.is_none_or(|age| asked.elapsed() < age)
        {
            return Some(note);
        }
        // A burst also fails once: on a store that is silent, those who waited for this answer
        // would else wait for one failure after the other.
        if seen.failed.is_some_and(|failed| failed >= came) {
            return None;
        }
        let subject = erasures_subject(key).ok()?;
        // Noted before the question is sent: the answer is no older than that.
        let asked = Instant::now();
        let looked = tokio::time::timeout(LOOKED_FOR, engine.mark(&subject)).await;
        let Ok(Ok(mark)) = looked else {
            seen.failed = Some(Instant::now());
            return None;
        };
        let note = match mark.and_then(|mark| mark.value) {
            Some(value) => u128::from_be_bytes(value.get(..16)?.try_into().ok()?),
            None => 0,
        };
        seen.note = Some((note, asked));
        Some(note)
    }
}
