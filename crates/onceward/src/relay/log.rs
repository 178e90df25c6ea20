//! What a relay publishes to, and what consumers read.
//!
//! Rule: publishing is at least once, with the same id and the same bytes every time. An event
//! counts as published when its sink says so, and not before. A broker is a [`Sink`] on the
//! producer's side and one [`Log`] per partition on the consumer's: its offset is the place.

use std::future::Future;
use std::pin::Pin;

use crate::events::{Event, Place};

/// What methods of a log return.
pub type LogFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LogError>> + Send + 'a>>;

/// Why a source, a sink or a log gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// It may work later.
    #[error("{0}")]
    Unavailable(String),
    /// Someone else publishes now: this relay was overtaken.
    #[error("another relay has taken over")]
    Overtaken,
    /// What is stored is not what was written. It may be restored; until then nothing goes on
    /// behind it.
    #[error("{0}")]
    Damaged(String),
    /// It can't work as it is.
    #[error("{0}")]
    Broken(String),
}

impl LogError {
    /// Whether the same may work later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Damaged(_))
    }
}

/// The event store, as a relay reads it.
pub trait Source: Send + Sync + 'static {
    /// Events behind a place, in their order, at most `limit`, only what is durable.
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>>;

    /// The place of the last event.
    fn head(&self) -> LogFuture<'_, Place>;

    /// Resolves when there may be an event behind a place.
    fn wait_after(&self, after: Place) -> LogFuture<'_, ()>;

    /// Hears that events were published up to a place that lies behind its last one: they are lost
    /// here. Whoever shows how the source is should say so.
    fn falls_short(&self, published: Place, head: Place) {
        let _ = (published, head);
    }
}

/// Where a relay publishes.
pub trait Sink: Send + Sync + 'static {
    /// Publishes events, in their order, for the relay whose tenure has this fence. Answers for
    /// each, in the same order, whether it is acknowledged; those behind one that is not may be.
    fn publish<'a>(&'a self, fence: u64, events: &'a [(Place, Event)]) -> LogFuture<'a, Vec<bool>>;

    /// Up to where it is known to hold what was published; none where it can't tell. One that was
    /// lost or set back is behind the relay's checkpoint, and is told all that follows again.
    fn reached(&self) -> LogFuture<'_, Option<Place>> {
        Box::pin(async { Ok(None) })
    }
}

/// What consumers read.
pub trait Log: Send + Sync + 'static {
    /// Events behind an offset, in the order of the log, at most `limit`. An event may come more
    /// than once, at other offsets.
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>>;

    /// The offset of the last event.
    fn end(&self) -> LogFuture<'_, Place>;

    /// Resolves when there may be an event behind an offset.
    fn wait_after(&self, after: Place) -> LogFuture<'_, ()>;
}
