//! Audit entries: what happened to whom, by whom, told without bodies or raw keys.
//!
//! An entry is one write of the batch it describes, so it is there exactly when its subject is.
//! The instant and the entry's number come from the store. Sealing into a chain is done elsewhere.

use sha2::{Digest, Sha256};

use crate::Text;
use crate::fingerprint::Fingerprint;
use crate::key::{Key, check_part};
use crate::limits::LimitError;
use crate::stamp::At;

/// Who asks and under which ids: stored with records and audit entries, passed on to jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Trace {
    /// Who does it, as identified at the door.
    pub actor: Option<Text>,
    /// `X-Request-ID`.
    pub request_id: Option<Text>,
    /// `X-Correlation-ID`.
    pub correlation_id: Option<Text>,
}

impl Trace {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that breaks its bound.
    pub fn validate(&self) -> Result<(), LimitError> {
        let texts = [
            ("actor", &self.actor),
            ("request_id", &self.request_id),
            ("correlation_id", &self.correlation_id),
        ];
        for (field, text) in texts {
            check_part(field, text.as_deref().unwrap_or_default(), 0)?;
        }
        Ok(())
    }
}

/// One audit entry, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Tenant, as stores keep it (escaped).
    pub tenant: Text,
    /// What happened, as a dotted word: `request.done`, `mission.lock`.
    pub action: Text,
    /// What it happened to: endpoint, queue, aggregate.
    pub subject: Option<Text>,
    /// Truncated hash of the key.
    pub key_hash: Option<Text>,
    /// Fingerprint of the payload, in hex.
    pub payload_hash: Option<Text>,
    /// Position before.
    pub version_before: Option<u64>,
    /// Position after.
    pub version_after: Option<u64>,
    /// Fence of the attempt.
    pub fence: Option<u64>,
    /// Who and under which ids.
    pub trace: Trace,
    /// A sentence or a small JSON text with what else there is to know.
    pub detail: Option<Text>,
}

impl Entry {
    /// An entry of a tenant (escaped, as [`Key::tenant_column`] gives it) about an action.
    #[must_use]
    pub fn new(tenant_column: &str, action: &str) -> Self {
        Self {
            tenant: tenant_column.into(),
            action: action.into(),
            subject: None,
            key_hash: None,
            payload_hash: None,
            version_before: None,
            version_after: None,
            fence: None,
            trace: Trace::default(),
            detail: None,
        }
    }

    /// An entry about a key: `action` is prefixed by the key's kind.
    #[must_use]
    pub fn about(key: &Key, action: &str, fingerprint: &Fingerprint, trace: &Trace) -> Self {
        let mut entry =
            Self::new(key.tenant_column(), &format!("{}.{action}", key.kind().as_str()));
        entry.subject = Some(key.scope().as_ref().into());
        entry.key_hash = Some(key.hash_hex().clone());
        entry.payload_hash = Some(fingerprint.to_string().into());
        entry.trace = trace.clone();
        entry
    }

    /// Bytes that the entry counts towards a batch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let parts = [
            Some(&self.tenant),
            Some(&self.action),
            self.subject.as_ref(),
            self.key_hash.as_ref(),
            self.payload_hash.as_ref(),
            self.detail.as_ref(),
            self.trace.actor.as_ref(),
            self.trace.request_id.as_ref(),
            self.trace.correlation_id.as_ref(),
        ];
        parts.into_iter().flatten().map(|part| part.len()).sum()
    }
}

/// What the subject of an entry about a user begins with.
const OF_USER: &str = "user/";

/// The subject of entries about a user, so that a store can keep them by user.
#[must_use]
pub fn about_user(user_id: &str) -> String {
    format!("{OF_USER}{user_id}")
}

/// The user that a subject is about, if it is about one.
#[must_use]
pub fn user_of(subject: &str) -> Option<&str> {
    subject.strip_prefix(OF_USER)
}

/// An entry as the store gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audited {
    /// Number, rising in the order of commits within one tenant.
    pub id: u64,
    /// When it was committed, by the store's clock.
    pub at: At,
    /// What was written.
    pub entry: Entry,
}

/// First 16 hex digits of the SHA-256 of length-prefixed parts.
pub(crate) fn hash_hex(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut out = String::with_capacity(16);
    for byte in &hash.finalize()[..8] {
        out.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        out.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    out
}
