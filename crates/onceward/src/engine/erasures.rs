//! Noting erasures, so that a cache can tell what was erased behind its back.
//!
//! The note is a mark of the tenant whose value is the token of the latest erasure, written in the
//! batch that erases: whoever sees the erasure sees another note than before. Keys are spread over
//! a few notes, because batches that write the same mark never share a group. Only requests have
//! outcomes in caches; other kinds are not noted.

use onceward_core::batch::Write;
use onceward_core::decide::{Resolved, Step};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::Body;

/// Over how many marks of a tenant its keys are spread: one for each hex digit.
#[cfg(feature = "http")]
pub(crate) const ERASURES_MARKS: usize = 16;

/// Where the erasures of a key and its likes are noted: one of sixteen marks of its tenant.
pub(crate) fn erasures_subject(key: &Key) -> Result<Subject, LimitError> {
    let hash = key.hash_hex();
    Subject::new(&key.tenant(), "onceward.cache", hash.get(..1).unwrap_or("0"))
}

/// Which of the sixteen that is.
#[cfg(feature = "http")]
pub(crate) fn erasures_mark(key: &Key) -> usize {
    let digit = key.hash_hex().chars().next().and_then(|first| first.to_digit(16));
    digit.map_or(0, |digit| digit as usize)
}

/// An erasure that is also noted.
pub(super) fn noted(key: &Key, step: Step<Resolved, Resolved>) -> Step<Resolved, Resolved> {
    let Step::Commit(mut batch, resolved) = step else { return step };
    // A key is never so long that its tenant has no subject.
    if key.kind() == Kind::Request
        && let Ok(subject) = erasures_subject(key)
    {
        let value = Body::Set(batch.token.0.to_be_bytes().as_slice().into());
        batch.writes.push(Write::Mark { subject, position: 1, value });
    }
    Step::Commit(batch, resolved)
}
