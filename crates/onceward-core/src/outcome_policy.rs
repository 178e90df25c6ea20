//! Which answers of a handler are stored, and what a caller should do with its key (ruling 4).
//!
//! Rule: an answer is stored when repeating the request could only repeat it. An answer that says
//! "not now" or "not you" is never stored: the key is released, so that a retry can run.
//!
//! Not responsible for how long an answer is kept (A12), nor for answers given before a claim,
//! which leave no record at all.

use crate::zoo::{Bug, planted};

/// Whether an outcome is stored, and for which retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Stored for the retention of successes.
    Success,
    /// Stored for the retention of errors: the request itself was wrong and stays so.
    Error,
    /// Not stored: the key is released.
    Never,
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

/// Whether a handler's answer with this status is stored.
#[must_use]
pub fn keep(status: u16) -> Keep {
    match status {
        200..=399 => Keep::Success,
        429 | 503 if planted(Bug::StoresRetryable) => Keep::Error,
        401 | 403 | 408 | 425 | 429 => Keep::Never,
        400..=499 => Keep::Error,
        // Not yet an answer (1xx), a failure that may pass (5xx), or no status at all.
        _ => Keep::Never,
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
