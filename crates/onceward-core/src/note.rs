//! Notes: audit entries about requests that wrote nothing of their own.
//!
//! A replay, a conflict and an expiry leave no record behind, so their entries ride in no batch of
//! theirs. A note says what is told about them; when it is written is not this file's business.

use std::sync::{Arc, OnceLock};

use crate::Text;
use crate::audit::{Audited, Entry, Trace};
use crate::fingerprint::Fingerprint;
use crate::key::Key;
use crate::record::Record;
use crate::stamp::{At, Fence, Rev};
use crate::text::quoted;

/// The action of an entry about a replay (A26).
pub const REPLAY: &str = "audit.replay";
/// The action of an entry about a key that came with another payload (E06).
pub const CONFLICT: &str = "idempotency_conflict";
/// The action of an entry about a key that ran again because its outcome had expired (E06).
pub const EXPIRED: &str = "idempotency_expired";

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// The outcome was given again.
    Replay,
    /// The key came with another payload.
    Conflict,
    /// The outcome was past its retention, and the request ran anew.
    Expired,
}

impl Noted {
    /// The action that the entry names.
    #[must_use]
    pub const fn action(self) -> &'static str {
        match self {
            Self::Replay => REPLAY,
            Self::Conflict => CONFLICT,
            Self::Expired => EXPIRED,
        }
    }
}

/// What a note points back to: the record as it was when it was written last.
///
/// Made once per record and shared by all its replays, so that the number of the entry it was
/// written with is looked for once.
#[derive(Debug)]
pub struct Original {
    key: Key,
    rev: Rev,
    at: At,
    fence: Option<Fence>,
    trace: Trace,
    entry: OnceLock<u64>,
}

impl Original {
    /// Of this record.
    #[must_use]
    pub fn of(record: &Record) -> Arc<Self> {
        let trace = record.trace.clone();
        Self::new(record.key.clone(), record.rev, record.updated_at, record.last_fence, trace)
    }

    /// Of a record that is known by these.
    #[must_use]
    pub fn new(key: Key, rev: Rev, at: At, last_fence: Fence, trace: Trace) -> Arc<Self> {
        Arc::new(Self {
            key,
            rev,
            at,
            fence: Some(last_fence).filter(|fence| fence.0 > 0),
            trace,
            entry: OnceLock::new(),
        })
    }

    /// Whose record it is.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Which life of the record.
    #[must_use]
    pub fn rev(&self) -> Rev {
        self.rev
    }

    /// When it was written, by the store's clock: its entry has the same instant.
    #[must_use]
    pub fn at(&self) -> At {
        self.at
    }

    /// The key's hash, as entries show it.
    pub fn key_hash(&self) -> &Text {
        self.key.hash_hex()
    }

    /// The number of the entry that the record was written with, once it is known.
    #[must_use]
    pub fn entry(&self) -> Option<u64> {
        self.entry.get().copied()
    }

    /// Looks for that entry among those of the same key and instant.
    pub fn find_entry(&self, candidates: &[Audited]) {
        let notes = [REPLAY, CONFLICT, EXPIRED];
        let written = candidates.iter().filter(|found| !notes.contains(&&*found.entry.action));
        let done = |found: &&Audited| found.entry.action.ends_with(".done");
        if let Some(found) = written.clone().find(done).or_else(|| written.clone().next()) {
            // Whoever finds it finds the same one.
            let _ = self.entry.set(found.id);
        }
    }
}

/// Something to be told.
#[derive(Debug, Clone)]
pub struct Note {
    /// What happened.
    pub noted: Noted,
    /// What it points back to. Of an expiry: the record that began anew.
    pub original: Arc<Original>,
    /// Of the payload that came.
    pub fingerprint: Fingerprint,
    /// Who asked now, and under which ids.
    pub trace: Trace,
}

impl Note {
    /// The entry that tells it. Its trace is this request's own; what it points back to stands in
    /// its detail, as JSON.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let original = &*self.original;
        let mut entry = Entry::new(original.key.tenant_column(), self.noted.action());
        entry.subject = Some(original.key.scope().as_ref().into());
        entry.key_hash = Some(original.key_hash().clone());
        entry.payload_hash = Some(self.fingerprint.to_string().into());
        entry.fence = original.fence.map(|fence| fence.0);
        entry.trace = self.trace.clone();
        entry.detail = (self.noted != Noted::Expired).then(|| self.detail().into());
        entry
    }

    fn detail(&self) -> String {
        let original = &*self.original;
        let number = original.entry().map_or("null".into(), |id| id.to_string());
        let text = |text: &Option<Text>| text.as_deref().map_or("null".into(), quoted);
        format!(
            "{{\"original\":{number},\"request_id\":{},\"correlation_id\":{}}}",
            text(&original.trace.request_id),
            text(&original.trace.correlation_id),
        )
    }
}
