//! What can go wrong in the event store, apart from verdicts, which are answers.

use onceward_core::limits::LimitError;

use crate::engine::EngineError;

/// Why the event store has no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The engine or its store failed.
    #[error(transparent)]
    Engine(EngineError),
    /// The object store failed.
    #[error("the object store failed: {0}")]
    Objects(String),
    /// The append is reserved but not known to be durable yet. The same append, sent again, is
    /// answered once it is.
    #[error("the append is not durable yet; send the same one again")]
    NotDurableYet,
    /// What is stored is not what was written.
    #[error("stored events are damaged: {0}")]
    Corrupt(String),
    /// The event store can't be opened as it is.
    #[error("{0}")]
    Open(String),
    /// The event store is closed.
    #[error("the event store is closed")]
    Closed,
    /// The request breaks a bound.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl EventsError {
    /// A stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Engine(error) => error.code(),
            Self::Objects(_) => "events.objects_unavailable",
            Self::NotDurableYet => "events.not_durable_yet",
            Self::Corrupt(_) => "events.corrupt",
            Self::Open(_) => "events.open",
            Self::Closed => "events.closed",
            Self::Limit(_) => "limit",
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_retryable(),
            Self::Objects(_) | Self::NotDurableYet | Self::Closed => true,
            Self::Corrupt(_) | Self::Open(_) | Self::Limit(_) => false,
        }
    }
}

impl From<EngineError> for EventsError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Limit(limit) => Self::Limit(limit),
            other => Self::Engine(other),
        }
    }
}
