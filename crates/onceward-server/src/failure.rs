//! Why a command did not do what it was asked: a stable code, a message that says what happened,
//! where and what to do, and whether the usage was wrong (exit 2) or the work failed (exit 1).

use std::process::ExitCode;

use onceward::engine::EngineError;
use onceward::store::StoreError;
use onceward_core::limits::LimitError;

/// The work failed.
pub(crate) const EXIT_FAILED: u8 = 1;
/// The command was used wrongly.
pub(crate) const EXIT_USAGE: u8 = 2;

/// A command's failure.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Stable, for programs.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) message: String,
    usage: bool,
    /// Whoever read our output went away: there is nobody to tell.
    pub(crate) silent: bool,
}

impl Failure {
    /// The work failed.
    pub(crate) fn failed(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), usage: false, silent: false }
    }

    /// The command was used wrongly.
    pub(crate) fn usage(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), usage: true, silent: false }
    }

    /// The reader of standard output has gone, as `head` does when it has seen enough.
    pub(crate) fn reader_gone() -> Self {
        Self { code: "output.closed", message: String::new(), usage: false, silent: true }
    }

    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match (self.silent, self.usage) {
            (true, _) => ExitCode::SUCCESS,
            (false, true) => ExitCode::from(EXIT_USAGE),
            (false, false) => ExitCode::from(EXIT_FAILED),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match &error {
            EngineError::Limit(limit) => Self::usage(error.code(), limit.to_string()),
            EngineError::Store(StoreError::Unknown(_)) => Self::failed(
                error.code(),
                format!("{error}. It may or may not have happened: look before you try again"),
            ),
            _ => Self::failed(error.code(), error.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<LimitError> for Failure {
    fn from(error: LimitError) -> Self {
        Self::usage("limit", error.to_string())
    }
}
