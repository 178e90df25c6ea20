//! How an answer of a handler ends its attempt, and what a caller should do with its key (rulings 4
//! and 6).
//!
//! Rule: an answer is stored when repeating the request could only repeat it. One that says "not
//! now" or "not you" had no effect: the key is released, so that a retry can run. One that says "it
//! went wrong" does not tell what was done before: its end is unknown, as that of a lost
//! connection.
//!
//! Not responsible for how long an answer is kept (A12), nor for answers given before a claim,
//! which leave no record at all. Where nothing can have happened without a record (one commit, the
//! caller's own transaction) whoever asks takes an unknown end for a released one.

use crate::limits::LimitError;
use crate::zoo::{Bug, planted};

/// Largest body of a problem that is asked whether a retry may succeed.
pub const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// How an answer ends the attempt that it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Stored for the retention of successes.
    Success,
    /// Stored for the retention of errors: the request itself was wrong and stays so.
    Error,
    /// Not stored, and nothing was done: the key is released.
    Released,
    /// Not stored, and nobody knows what was done: the attempt is abandoned (ruling 6).
    Unknown,
}

impl Ending {
    /// Whether the answer is stored.
    #[must_use]
    pub const fn is_stored(self) -> bool {
        matches!(self, Self::Success | Self::Error)
    }
}

/// What an answer says of the end of its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said {
    /// Its status.
    pub status: u16,
    /// It has a `Retry-After`.
    pub retry_after: bool,
    /// It is a problem of at most [`PROBLEM_BYTES_MAX`] that says `"retryable": true`.
    pub retryable: bool,
    /// It is a refusal of a layer or gateway of ours: nobody has judged the request yet.
    pub refusal: bool,
}

/// Statuses that a route moves, because it knows its handler better.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statuses {
    /// These are final: stored as errors.
    pub stored: Vec<u16>,
    /// These had no effect: released.
    pub released: Vec<u16>,
}

impl Statuses {
    /// Checks that only errors are moved, each of them once, and to one side.
    ///
    /// # Errors
    /// The first status that is wrong; the fields are called as configurations call them.
    pub fn validate(&self) -> Result<(), LimitError> {
        for (field, list) in [("final", &self.stored), ("retryable", &self.released)] {
            for (at, status) in list.iter().enumerate() {
                if !(400..=599).contains(status) {
                    let bound = "an error status, from 400 to 599: others are stored as they are";
                    return Err(LimitError::new(field, status, bound));
                }
                if list[..at].contains(status) {
                    return Err(LimitError::new(field, status, "named once"));
                }
            }
        }
        match self.released.iter().find(|status| self.stored.contains(status)) {
            Some(status) => {
                let bound = "in one of `final` and `retryable`: a status is stored or released";
                Err(LimitError::new("retryable", status, bound))
            }
            None => Ok(()),
        }
    }
}

/// What a caller should do with its key before the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyAdvice {
    /// Send the same request with the same key.
    Reuse,
    /// A changed request needs a new key: this one's outcome is settled.
    Rotate,
}

impl KeyAdvice {
    /// The word on the wire: `reuse` or `rotate`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reuse => "reuse",
            Self::Rotate => "rotate",
        }
    }
}

/// How an answer ends its attempt. What a route says of a status goes before the rule, but a
/// refusal of ours is never stored: it is no answer of the handler's.
#[must_use]
pub fn ending(said: &Said, moved: &Statuses) -> Ending {
    let Said { status, retry_after, retryable, refusal } = *said;
    if planted(Bug::FailureLetsGo) && status >= 500 {
        return Ending::Released;
    }
    if moved.released.contains(&status) {
        return Ending::Released;
    }
    if moved.stored.contains(&status) && !refusal {
        return Ending::Error;
    }
    match status {
        200..=399 => Ending::Success,
        429 | 503 if planted(Bug::StoresRetryable) => Ending::Error,
        401 | 403 | 425 | 429 | 501 => Ending::Released,
        503 if retry_after => Ending::Released,
        408 => Ending::Unknown,
        409 | 423 if retry_after || retryable => Ending::Released,
        400..=499 if refusal => Ending::Released,
        400..=499 => Ending::Error,
        // Not yet an answer (1xx), a failure in the middle (5xx), or no status at all.
        _ => Ending::Unknown,
    }
}

/// What a stored answer with this status advises.
#[must_use]
pub const fn key_advice(status: u16) -> KeyAdvice {
    match status {
        409 | 412 | 422 => KeyAdvice::Rotate,
        _ => KeyAdvice::Reuse,
    }
}

#[cfg(test)]
mod tests;
