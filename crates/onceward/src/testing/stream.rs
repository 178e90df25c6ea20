//! An event store and a broker's log in memory, for tests of what lies between them.
//!
//! The log is a plain append: an event that is published twice is there twice, at two offsets.
//! Acknowledgements can be lost or refused by script.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::events::{Event, Place};
use crate::relay::{Log, LogError, LogFuture, Sink, Source};

/// Events in an order of their own.
#[derive(Clone, Default)]
pub struct MemoryEvents(Arc<Shared>);

#[derive(Default)]
struct Shared {
    events: Mutex<Vec<Event>>,
    acks: Mutex<VecDeque<Ack>>,
    bell: Notify,
}

/// What becomes of one publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// Appended and acknowledged.
    Given,
    /// Appended, and the acknowledgement is lost.
    Lost,
    /// Nothing is appended.
    Refused,
    /// Every second event, from the first, is appended and acknowledged.
    Half,
}

impl MemoryEvents {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends events.
    pub fn push(&self, events: impl IntoIterator<Item = Event>) {
        self.events().extend(events);
        self.0.bell.notify_waiters();
    }

    /// Everything that is there.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        self.events().clone()
    }

    /// What becomes of the next publishes; then they are acknowledged.
    pub fn script(&self, acks: impl IntoIterator<Item = Ack>) {
        self.0.acks.lock().unwrap_or_else(PoisonError::into_inner).extend(acks);
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn after(&self, after: Place, limit: usize) -> Vec<(Place, Event)> {
        let events = self.events();
        let from = usize::try_from(after.segment).unwrap_or(usize::MAX);
        let places = events.iter().enumerate().skip(from).take(limit);
        places.map(|(index, event)| (place(index), event.clone())).collect()
    }

    async fn wait(&self, after: Place) {
        loop {
            let rung = self.0.bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            if self.last() > after {
                return;
            }
            rung.await;
        }
    }

    fn last(&self) -> Place {
        self.events().len().checked_sub(1).map_or(Place::default(), place)
    }
}

/// Segments of one event each.
fn place(index: usize) -> Place {
    Place { segment: index as u64 + 1, offset: 0 }
}

impl Source for MemoryEvents {
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>> {
        Box::pin(async move { Ok(self.after(after, limit)) })
    }

    fn head(&self) -> LogFuture<'_, Place> {
        Box::pin(async move { Ok(self.last()) })
    }

    fn wait_after(&self, after: Place) -> LogFuture<'_, ()> {
        Box::pin(async move {
            self.wait(after).await;
            Ok(())
        })
    }
}

impl Log for MemoryEvents {
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>> {
        Box::pin(async move { Ok(self.after(after, limit)) })
    }

    fn end(&self) -> LogFuture<'_, Place> {
        Box::pin(async move { Ok(self.last()) })
    }

    fn wait_after(&self, after: Place) -> LogFuture<'_, ()> {
        Box::pin(async move {
            self.wait(after).await;
            Ok(())
        })
    }
}

impl Sink for MemoryEvents {
    fn publish<'a>(&'a self, _: u64, events: &'a [(Place, Event)]) -> LogFuture<'a, Vec<bool>> {
        let acks = self.0.acks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let ack = acks.unwrap_or(Ack::Given);
        Box::pin(async move {
            let lost = || LogError::Unavailable("the broker gives no answer".into());
            let own = events.iter().map(|(_, event)| event.clone());
            match ack {
                Ack::Refused => return Err(lost()),
                Ack::Half => self.push(own.step_by(2)),
                Ack::Given | Ack::Lost => self.push(own),
            }
            match ack {
                Ack::Lost => Err(lost()),
                Ack::Half => Ok((0..events.len()).map(|index| index % 2 == 0).collect()),
                _ => Ok(vec![true; events.len()]),
            }
        })
    }
}
