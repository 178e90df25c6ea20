//! The log without a broker: the event store's own order, up to where the relay has come.
//!
//! Publishing moves one mark in the store, under the fence of the relay's tenure; marks never move
//! back. Consumers read the event store up to that mark. In the relay's own process they wake at
//! once; other processes look now and then.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::batch::{Condition, Write};
use onceward_core::key::{Key, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::Body;
use onceward_core::stamp::Fence;
use tokio::sync::watch;

use super::log::{Log, LogError, LogFuture, Sink, Source};
use super::run::ROLE;
use crate::engine::{Engine, EngineError, STORE_TENANT};
use crate::events::{Event, Place};
use crate::handlers::role_key;
use crate::store::StoreError;

/// Where the mark is kept.
const LOGS: &str = "onceward.logs";
/// Bits of a position that hold the offset in its segment.
const OFFSET_BITS: u32 = 24;
/// Pauses between two looks of another process.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// The embedded log. Cheap to clone.
#[derive(Clone)]
pub struct EmbeddedLog {
    engine: Engine,
    source: Arc<dyn Source>,
    mark: Subject,
    role: Key,
    reached: watch::Sender<Place>,
}

impl EmbeddedLog {
    /// The log that the relay of this name publishes to.
    ///
    /// # Errors
    /// When the name is too long.
    pub fn new(engine: Engine, source: Arc<dyn Source>, relay: &str) -> Result<Self, LimitError> {
        Ok(Self {
            engine,
            source,
            mark: Subject::new(STORE_TENANT, LOGS, relay)?,
            role: role_key(ROLE, relay)?,
            reached: watch::Sender::new(Place::default()),
        })
    }

    /// How far it has come, from the store.
    async fn look(&self) -> Result<Place, LogError> {
        let mark = self.engine.mark(&self.mark).await.map_err(|error| unavailable(&error))?;
        let place = mark.map_or(Place::default(), |mark| place_of(mark.position));
        self.reach(place);
        Ok(place)
    }

    fn reach(&self, place: Place) {
        self.reached.send_if_modified(|reached| {
            let further = place > *reached;
            *reached = place.max(*reached);
            further
        });
    }
}

impl Sink for EmbeddedLog {
    fn publish<'a>(&'a self, fence: u64, events: &'a [(Place, Event)]) -> LogFuture<'a, Vec<bool>> {
        Box::pin(async move {
            let Some((last, _)) = events.last() else { return Ok(Vec::new()) };
            let position = position_of(*last)?;
            let conditions = [Condition::FenceIs(self.role.clone(), Fence(fence))];
            let subject = self.mark.clone();
            let writes = [Write::Mark { subject, position, value: Body::Keep }];
            let held = self.engine.commit_if(&conditions, &writes).await;
            if !held.map_err(|error| unavailable(&error))? {
                return Err(LogError::Overtaken);
            }
            self.reach(*last);
            Ok(vec![true; events.len()])
        })
    }

    /// The mark is in the store, which may be lost or set back without the event store.
    fn reached(&self) -> LogFuture<'_, Option<Place>> {
        Box::pin(async move { self.look().await.map(Some) })
    }
}

impl Log for EmbeddedLog {
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>> {
        Box::pin(async move {
            let mut reached = *self.reached.borrow();
            if reached <= after {
                reached = self.look().await?;
            }
            if reached <= after {
                return Ok(Vec::new());
            }
            let mut events = self.source.read_after(after, limit).await?;
            events.retain(|(place, _)| *place <= reached);
            Ok(events)
        })
    }

    fn end(&self) -> LogFuture<'_, Place> {
        Box::pin(self.look())
    }

    fn wait_after(&self, after: Place) -> LogFuture<'_, ()> {
        Box::pin(async move {
            let mut news = self.reached.subscribe();
            let (mut pause, longest) = LOOK;
            loop {
                if *news.borrow_and_update() > after || self.look().await? > after {
                    return Ok(());
                }
                tokio::select! {
                    _ = news.changed() => {}
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(longest),
                }
            }
        })
    }
}

/// A place as a position, so that a mark keeps the highest.
fn position_of(place: Place) -> Result<u64, LogError> {
    let fits = place.segment < 1 << (62 - OFFSET_BITS) && place.offset < 1 << OFFSET_BITS;
    if !fits {
        return Err(LogError::Broken(format!("place {place} is beyond what a log can count")));
    }
    Ok((place.segment << OFFSET_BITS) | u64::from(place.offset))
}

fn place_of(position: u64) -> Place {
    let offset = u32::try_from(position & ((1 << OFFSET_BITS) - 1)).unwrap_or_default();
    Place { segment: position >> OFFSET_BITS, offset }
}

fn unavailable(error: &EngineError) -> LogError {
    if error.is_retryable() {
        LogError::Unavailable(error.to_string())
    } else if matches!(error, EngineError::Store(StoreError::Corrupt(_))) {
        LogError::Damaged(error.to_string())
    } else {
        LogError::Broken(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_positions_are_the_same_order() {
        let of = |segment, offset| Place { segment, offset };
        let places = [of(0, 0), of(1, 0), of(1, 1), of(1, (1 << 24) - 1), of(2, 0), of(1 << 37, 9)];
        for pair in places.windows(2) {
            let [low, high] = [pair[0], pair[1]].map(|place| position_of(place).unwrap());
            assert!(low < high);
        }
        for place in places {
            assert_eq!(place_of(position_of(place).unwrap()), place);
        }
        assert!(position_of(of(1, 1 << 24)).is_err());
        assert!(position_of(of(1 << 38, 0)).is_err());
    }
}
