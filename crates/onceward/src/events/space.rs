//! Where events are counted: remembered by the first who opens, and never another place after.
//!
//! In another space every aggregate would begin at 1 again, and its new events would take the
//! places of those that are there. So whoever names another space is refused before anything is
//! written.

use super::EventsError;
use super::store::Shared;
use crate::engine::Put;

impl Shared {
    /// Checks the space that aggregates are counted in, and remembers it.
    pub(super) async fn keep_space(&self) -> Result<(), EventsError> {
        if self.check_space().await? {
            return Ok(());
        }
        let space = self.options.allocator_space.as_bytes().into();
        match self.engine.put(&self.names.allocator()?, 0, Some(space)).await? {
            Put::Written(_) => Ok(()),
            // Another process was first: what it remembers counts.
            Put::Conflict { .. } => self.check_space().await.map(drop),
        }
    }

    /// Refuses a space that the events are not counted in. Whether that is remembered.
    pub(super) async fn check_space(&self) -> Result<bool, EventsError> {
        let asked = &self.options.allocator_space;
        let kept = self.engine.mark(&self.names.allocator()?).await?;
        if let Some(space) = kept.and_then(|kept| kept.value) {
            if &space[..] == asked.as_bytes() {
                return Ok(true);
            }
            return Err(other(asked, &format!("in {:?}", String::from_utf8_lossy(&space))));
        }
        if self.last_is_counted().await? { Ok(false) } else { Err(other(asked, "elsewhere")) }
    }

    /// Whether the last event that is in the index is counted in the space that was asked for. A
    /// store of an earlier build remembers no space, but an event is counted before it is packed.
    async fn last_is_counted(&self) -> Result<bool, EventsError> {
        let noted = self.engine.mark(&self.names.indexed()?).await?.map_or(0, |mark| mark.position);
        let segment = if noted > 0 { self.fetch(noted).await? } else { None };
        let Some(last) = segment.as_ref().and_then(|segment| segment.events.last()) else {
            return Ok(true);
        };
        let counted = self.names.aggregate(&last.tenant, &last.aggregate_id)?;
        let counted = self.engine.mark(&counted).await?;
        Ok(counted.is_some_and(|counted| counted.position >= last.sequence_number))
    }
}

fn other(asked: &str, kept: &str) -> EventsError {
    EventsError::Open(format!(
        "the events that are there are counted {kept}, and not in {asked:?}, where every number \
         would begin anew: set EVENT_STORE_SEQUENCE_SCHEMA and \
         EVENT_STORE_SEQUENCE_HANDLER_PREFIX (allocator_space) as they were"
    ))
}
