//! What Postgres and the connection report, and what it means for what was asked.
//!
//! Rule: an answer that the server gave is believed; a connection that broke after COMMIT was sent
//! is `Unknown`, whatever the reason looks like. Damage is told as damage.

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{Severity, SqlState};

use super::super::StoreError;

/// Why a transaction did not come to its end.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server refused a statement: the transaction is rolled back, the session can go on.
    Rejected {
        /// Whether the same may work a moment later: a deadlock, a lock, a serialisation.
        transient: bool,
        /// What the server said.
        text: String,
    },
    /// The connection broke before COMMIT was sent.
    Gone(String),
    /// The connection broke, or stayed silent, after COMMIT was sent.
    Lost(String),
}

impl Failure {
    /// As callers see it.
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::Rejected { text, .. } | Self::Gone(text) => StoreError::NotApplied(text),
            Self::Lost(text) => StoreError::Unknown(text),
        }
    }
}

/// An error of a flight that did not carry COMMIT.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = describe(&error);
        if breaks_session(&error) {
            return Self::Gone(text);
        }
        let passing = [
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::LOCK_NOT_AVAILABLE,
        ];
        let transient = error.code().is_some_and(|code| passing.contains(code));
        Self::Rejected { transient, text }
    }
}

/// Whether the session can't be used after this error.
pub(super) fn breaks_session(error: &Error) -> bool {
    let ends = |severity| matches!(severity, Severity::Fatal | Severity::Panic);
    error.as_db_error().is_none_or(|error| error.parsed_severity().is_none_or(ends))
}

/// The whole story in one line: tokio-postgres keeps the better half in the source.
pub(super) fn describe(error: &Error) -> String {
    if let Some(server) = error.as_db_error() {
        return format!("Postgres says {} ({})", server.message(), server.code().code());
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
