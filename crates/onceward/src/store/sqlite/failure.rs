//! What SQLite reports, as the shared error.
//!
//! Rule: damage is told as damage; everything else that happens before a commit did nothing.
//! Whether a failed commit is `Unknown` is decided where the commit is (`writer.rs`).

use rusqlite::{Error, ErrorCode};

use super::super::StoreError;
use onceward_core::codec::CodecError;

/// An error inside a transaction or a read: nothing was written.
#[derive(Debug)]
pub(super) enum Failure {
    /// SQLite could not do it.
    Sqlite(Error),
    /// What is stored is not what was written.
    Corrupt(String),
    /// The request can't be read.
    Refused(StoreError),
}

impl Failure {
    /// As callers see it.
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::Corrupt(what) => StoreError::Corrupt(what),
            Self::Refused(error) => error,
            Self::Sqlite(error) if is_damage(&error) => StoreError::Corrupt(error.to_string()),
            Self::Sqlite(error) => StoreError::NotApplied(error.to_string()),
        }
    }

    /// Whether it is about one row alone: what is in it is not what was written.
    pub(super) fn is_of_one_row(&self) -> bool {
        match self {
            Self::Corrupt(_) => true,
            Self::Sqlite(error) => error.sqlite_error_code().is_none() && is_damage(error),
            Self::Refused(_) => false,
        }
    }

    /// Whether what is stored is not what was written; otherwise it just could not be had.
    pub(super) fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt(_) => true,
            Self::Sqlite(error) => is_damage(error),
            Self::Refused(error) => matches!(error, StoreError::Corrupt(_)),
        }
    }

    /// Whether the connection should be opened anew before it is used again.
    pub(super) fn spoils_connection(&self) -> bool {
        let busy = Some(ErrorCode::DatabaseBusy);
        matches!(self, Self::Sqlite(error) if error.sqlite_error_code() != busy)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(error) => error.fmt(f),
            Self::Corrupt(what) => f.write_str(what),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::Corrupt(error.to_string())
    }
}

/// Whether SQLite says that the file is damaged, or that a value has a type we never write.
pub(super) fn is_damage(error: &Error) -> bool {
    let damaged = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
    error.sqlite_error_code().is_some_and(|code| damaged.contains(&code))
        || matches!(
            error,
            Error::InvalidColumnType(..)
                | Error::FromSqlConversionFailure(..)
                | Error::IntegralValueOutOfRange(..)
                | Error::Utf8Error(..)
        )
}
