//! Every bound of the core, by name, and the one error that reports a broken bound.
//!
//! A limit answers with the field, the value that was given and the bound, so that whoever reads
//! the message knows what to change. Nothing here is tunable: these are the sizes that every store
//! can hold.

/// Bytes of one part of a key: tenant, scope, id, subject, owner and so on.
pub const MAX_PART_BYTES: usize = 512;
/// Parts that narrow a scope (caller, path values) in one key.
pub const MAX_WITHIN_PARTS: usize = 16;
/// Bytes of a whole key in its escaped text form: what an index entry of every store can hold.
pub const MAX_KEY_BYTES: usize = 2_560;
/// Writes in one batch; the smallest bound among the stores we support.
pub const MAX_BATCH_WRITES: usize = 40;
/// Bytes of outcomes, payloads, values and entries in one batch.
pub const MAX_BATCH_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of a payload that is kept in full, to explain a mismatch with: it shares a batch with what
/// else is written there. Of a larger one hashes are kept.
pub const MAX_FULL_PAYLOAD_BYTES: usize = 1024 * 1024;
/// Shortest lease: below this a renewal can't keep up with a commit.
pub const MIN_LEASE_MS: u64 = 100;
/// Longest lease: one day.
pub const MAX_LEASE_MS: u64 = 86_400_000;
/// Longest retention, and longest time an expired key is remembered: ten years.
pub const MAX_RETAIN_MS: u64 = 315_360_000_000;
/// Most attempts a policy may allow.
pub const MAX_ATTEMPTS: u32 = 1_000;
/// Highest priority of a job; 0 is the lowest and the default.
pub const MAX_PRIORITY: u8 = 9;
/// Highest position of a subject, so that every store can hold it in a signed 64-bit column.
pub const MAX_POSITION: u64 = i64::MAX as u64 - 1;
/// Bytes of an error text kept with a record; longer ones are cut.
pub const MAX_ERROR_BYTES: usize = 2_048;

/// What a batch with too many writes, or with too many bytes, is told to have.
pub(crate) const BATCH_WRITES: &str = "writes in a batch";
pub(crate) const BATCH_BYTES: &str = "bytes in a batch";

/// A value lies outside its bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but must be {bound}")]
pub struct LimitError {
    /// What was wrong, by the name the caller knows it by.
    pub field: &'static str,
    /// What was given: a size or a number, never a secret.
    pub value: String,
    /// The bound, as a phrase.
    pub bound: String,
}

impl LimitError {
    /// A broken bound: `field` is `value`, but must be `bound`.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and fresh strings")]
    pub fn new(field: &'static str, value: impl ToString, bound: impl Into<String>) -> Self {
        Self { field, value: value.to_string(), bound: bound.into() }
    }

    /// Whether something is larger than one commit may be: it never fits, however often it comes.
    #[must_use]
    pub fn is_batch_size(&self) -> bool {
        [BATCH_WRITES, BATCH_BYTES].contains(&self.field)
    }
}

/// Checks that `value` lies in `low..=high`.
///
/// # Errors
/// When it does not.
pub fn in_range(field: &'static str, value: u64, low: u64, high: u64) -> Result<(), LimitError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(LimitError::new(field, value, format!("between {low} and {high}")))
}
