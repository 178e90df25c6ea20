//! The event store as the source of a relay.

use super::log::{LogError, LogFuture, Source};
use crate::events::{Event, EventStore, EventsError, Place};

impl Source for EventStore {
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>> {
        Box::pin(async move { Self::read_after(self, after, limit).await.map_err(said) })
    }

    fn head(&self) -> LogFuture<'_, Place> {
        Box::pin(async move { Self::head(self).await.map_err(said) })
    }

    fn wait_after(&self, after: Place) -> LogFuture<'_, ()> {
        Box::pin(async move {
            Self::wait_after(self, after).await;
            Ok(())
        })
    }

    fn falls_short(&self, published: Place, head: Place) {
        self.note_lost(published, head);
    }
}

fn said(error: EventsError) -> LogError {
    match error {
        EventsError::Corrupt(_) => LogError::Damaged(error.to_string()),
        other => LogError::Unavailable(other.to_string()),
    }
}
