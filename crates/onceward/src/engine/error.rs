//! What can go wrong in the engine, apart from verdicts, which are answers.

use onceward_core::limits::LimitError;

use crate::store::StoreError;

/// Why an operation has no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The store failed. [`StoreError::NotApplied`] means that nothing was executed;
    /// [`StoreError::Unknown`] that nobody knows, even after sending it again for a while.
    #[error(transparent)]
    Store(StoreError),
    /// The request breaks a bound.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Others went ahead, or held the row, every time it was tried. Nothing was done.
    #[error("the key or mark is contended: it was taken by others {0}; try again")]
    Contended(&'static str),
}

impl EngineError {
    /// A stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.code(),
            Self::Limit(_) => "limit",
            Self::Contended(_) => "contended",
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Limit(_) => false,
            Self::Contended(_) => true,
        }
    }

    /// Whether it is certain that nothing was done.
    #[must_use]
    pub const fn nothing_done(&self) -> bool {
        !matches!(self, Self::Store(StoreError::Unknown(_)))
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Invalid(limit) => Self::Limit(limit),
            other => Self::Store(other),
        }
    }
}
