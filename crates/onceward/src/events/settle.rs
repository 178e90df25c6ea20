//! Noting where events lie: the index by aggregate and number, and the end of their intents.
//!
//! The index is only as good as the segments: everything in it follows from them, so noting twice,
//! or by two at once, says the same. The counter of noted segments moves when all events of all
//! segments up to there are in the index; readers look into the few segments behind it by
//! themselves. Nobody waits for the index.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use onceward_core::decide::{Packed, Reserved, settle_max};

use super::names::{place_bytes, trace};
use super::segment::Segment;
use super::store::{Shared, Stage, fingerprint};
use super::{EventsError, Place};

/// Segments that are noted together at most.
const TOGETHER_MAX: u64 = 64;
/// Pause after the store gave no answer.
const PAUSE: Duration = Duration::from_millis(200);

impl Shared {
    /// Finds the last segment that is noted; what lies behind it is found by looking.
    pub(super) async fn look_for_head(&self) -> Result<u64, EventsError> {
        let mark = self.engine.mark(&self.names.indexed()?).await?;
        let noted = mark.map_or(0, |mark| mark.position);
        if noted > 0 {
            let Some(last) = self.fetch(noted).await? else {
                let path = self.names.segment(noted);
                return Err(EventsError::Open(format!(
                    "{path} is missing: these events are not the ones that the store knows; \
                     open the store with the folder or bucket that belongs to it"
                )));
            };
            self.advance_head(last.last());
        }
        self.indexed.send_replace(noted);
        Ok(noted)
    }

    /// Brings this process and the index up to the last segment.
    pub(super) async fn recover(&self) -> Result<(), EventsError> {
        let counter = self.names.indexed()?;
        self.objects.sync(&self.names.segment(0)).await?;
        let noted = self.look_for_head().await?;
        let mut next = noted + 1;
        while let Some(segment) = self.fetch(next).await? {
            // The store may have been set back to before these segments were written.
            self.note(&segment, true).await?;
            self.engine.advance(&counter, next).await?;
            self.indexed.send_replace(next);
            self.advance_head(segment.last());
            next += 1;
        }
        Ok(())
    }

    /// Notes every segment, as long as this process holds the packer's lease.
    pub(super) async fn settle_on(self: Arc<Self>) {
        let mut head = self.head.subscribe();
        let mut leading = self.leading.subscribe();
        let mut stage = self.stage.subscribe();
        loop {
            let noted = *self.indexed.borrow();
            let behind = head.borrow_and_update().segment > noted;
            if *stage.borrow() >= Stage::Packed && (!behind || !*leading.borrow()) {
                break;
            }
            if behind && *leading.borrow_and_update() {
                if self.settle_from(noted).await.is_err() {
                    if *stage.borrow() >= Stage::Packed {
                        // The next start notes it.
                        break;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
            tokio::select! {
                _ = head.changed() => {}
                _ = leading.changed() => {}
                _ = stage.changed() => {}
            }
        }
        self.reach(Stage::Noted);
    }

    async fn settle_from(&self, noted: u64) -> Result<(), EventsError> {
        let last = self.head.borrow().segment.min(noted + TOGETHER_MAX);
        let mut segments = Vec::new();
        for number in noted + 1..=last {
            segments.push(self.segment(number).await?);
        }
        try_join_all(segments.iter().map(|segment| self.note(segment, false))).await?;
        self.engine.advance(&self.names.indexed()?, last).await?;
        self.indexed.send_replace(last);
        Ok(())
    }

    /// Notes the events of one segment; `whole` also what their appends wrote.
    async fn note(&self, segment: &Segment, whole: bool) -> Result<(), EventsError> {
        let mut by_tenant: HashMap<&str, Vec<Packed>> = HashMap::new();
        for ((place, event), first) in segment.placed().zip(&segment.firsts) {
            let packed = self.packed(place, event, (*first, whole))?;
            by_tenant.entry(&event.tenant).or_default().push(packed);
        }
        let chunks = by_tenant.values().flat_map(|events| events.chunks(settle_max(whole)));
        if whole {
            // Numbers of one aggregate rise, so chunks go one after the other.
            for chunk in chunks {
                self.engine.settle(chunk).await?;
            }
            return Ok(());
        }
        try_join_all(chunks.map(|chunk| self.engine.settle(chunk))).await?;
        Ok(())
    }

    fn packed(
        &self,
        place: Place,
        event: &super::Event,
        (first, whole): (bool, bool),
    ) -> Result<Packed, EventsError> {
        let (tenant, id) = (&event.tenant, &event.aggregate_id);
        let number = event.sequence_number;
        let reserved = || -> Result<Reserved, EventsError> {
            Ok(Reserved {
                key: self.names.event(tenant, &event.event_id)?,
                fingerprint: fingerprint(&event.kind, &event.payload),
                aggregate: self.names.aggregate(tenant, id)?,
                number,
                trace: trace(event.correlation_id.as_deref()),
            })
        };
        Ok(Packed {
            index: self.names.index(tenant, id, number)?,
            place: place_bytes(place),
            intent: if first { Some(self.names.intent(tenant, &event.event_id)?) } else { None },
            reserved: if whole { Some(reserved()?) } else { None },
        })
    }
}
