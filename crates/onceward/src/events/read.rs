//! Reading: everything from a place on, or the events of one aggregate. Only what is durable.
//!
//! The index tells where an aggregate's events lie; the few segments behind it are looked through.
//! A reader looks for segments of other processes first, so that what any has answered is seen by
//! all.

use std::sync::Arc;

use onceward_core::canonical::Arrays;
use onceward_core::decide::append_number;
use onceward_core::diff::diff_full;
use onceward_core::record::Record;
use onceward_core::text::escape;

use super::append::{AppendMany, NewEvent};
use super::names::read_place;
use super::segment::{self, Segment};
use super::store::Shared;
use super::{Event, EventStore, EventsError, Place};
use crate::store::{Cursor, Items, List};

/// Index entries of one look.
const LOOK_MAX: u64 = 256;
/// Pointers that a mismatch names at most.
const DIFFERS_MAX: usize = 32;

/// An aggregate and its last number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Which.
    pub aggregate_id: String,
    /// The number of its last event; reserved, and durable soon if not yet.
    pub last: u64,
}

impl EventStore {
    /// Events behind a place, in their total order, up to `limit`. `Place::default()` is the start.
    /// Nothing that appears later stands before what was returned.
    ///
    /// # Errors
    /// When a store gives no answer, or what is stored is damaged.
    pub async fn read_after(
        &self,
        after: Place,
        limit: usize,
    ) -> Result<Vec<(Place, Event)>, EventsError> {
        let mut head = *self.0.head.borrow();
        if after >= head {
            head = self.0.current_head().await?;
        }
        let mut events = Vec::new();
        let mut number = after.segment.max(1);
        while number <= head.segment && events.len() < limit {
            let segment = self.0.segment(number).await?;
            let left = limit - events.len();
            let behind = segment.placed().filter(|(place, _)| *place > after || after.segment == 0);
            events.extend(behind.take(left).map(|(place, event)| (place, event.clone())));
            number += 1;
        }
        Ok(events)
    }

    /// Events of an aggregate with numbers above `after_seq`, in order, without gaps.
    ///
    /// # Errors
    /// As [`EventStore::read_after`].
    pub async fn read_aggregate(
        &self,
        tenant: &str,
        aggregate_id: &str,
        after_seq: u64,
        limit: usize,
    ) -> Result<Vec<(Place, Event)>, EventsError> {
        let Some(first) = after_seq.checked_add(1) else { return Ok(Vec::new()) };
        self.0.current_head().await?;
        self.0.events_from(tenant, aggregate_id, first, limit as u64).await
    }

    /// The event with an id, if it is durable.
    ///
    /// # Errors
    /// As [`EventStore::read_after`].
    pub async fn find(
        &self,
        tenant: &str,
        event_id: &str,
    ) -> Result<Option<(Place, Event)>, EventsError> {
        let key = self.0.names.event(tenant, event_id)?;
        let Some(found) = self.0.engine.look(&key).await? else { return Ok(None) };
        let record = &found.stored.record;
        let (Some(guard), Some(number)) = (&record.guard, append_number(record)) else {
            return Ok(None);
        };
        let id = guard.subject.id();
        self.0.current_head().await?;
        Ok(self.0.events_from(tenant, &id, number, 1).await?.pop())
    }

    /// The place of the last durable event; the default when there is none.
    ///
    /// # Errors
    /// When the object store gives no answer.
    pub async fn head(&self) -> Result<Place, EventsError> {
        self.0.current_head().await
    }

    /// The place that `count` events lie behind, up to `last`.
    ///
    /// # Errors
    /// As [`EventStore::read_after`].
    pub async fn place_before(&self, last: Place, count: u64) -> Result<Place, EventsError> {
        let mut left = count;
        let mut number = last.segment;
        while number > 0 {
            let segment = self.0.segment(number).await?;
            let up_to = segment.placed().rev().filter(|(place, _)| *place <= last);
            for (place, _) in up_to {
                if left == 0 {
                    return Ok(place);
                }
                left -= 1;
            }
            number -= 1;
        }
        Ok(Place::default())
    }

    /// Resolves when there is an event behind a place: at once in the process that wrote it, within
    /// `poll` in others. Also resolves when the event store is closed.
    pub async fn wait_after(&self, after: Place) {
        let mut head = self.0.head.subscribe();
        let mut stage = self.0.stage.subscribe();
        loop {
            if *head.borrow_and_update() > after
                || *stage.borrow_and_update() > super::store::Stage::Open
            {
                return;
            }
            tokio::select! {
                _ = head.changed() => {}
                _ = stage.changed() => {}
                () = tokio::time::sleep(self.0.options.poll) => {
                    // Without an answer there is nothing new; the next look may have one.
                    let _ = self.0.current_head().await;
                }
            }
        }
    }

    /// Aggregates of a tenant in the order of their ids, behind one of them.
    ///
    /// # Errors
    /// When the engine's store gives no answer.
    pub async fn streams(
        &self,
        tenant: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Stream>, EventsError> {
        let prefix = self.0.names.aggregates_prefix();
        let after = after.map(|id| Cursor(format!("{prefix}{}", escape(id))));
        let what = List::Marks { tenant: Some(escape(tenant).into_owned()), prefix };
        let page = self.0.engine.list(what, after, limit).await?;
        let Items::Marks(marks) = page.items else { return Ok(Vec::new()) };
        let stream =
            |(subject, mark): (onceward_core::key::Subject, onceward_core::record::Mark)| Stream {
                aggregate_id: subject.id().into_owned(),
                last: mark.position,
            };
        Ok(marks.into_iter().map(stream).collect())
    }

    /// The highest number of an aggregate that is durable.
    pub(super) async fn durable_number(&self, tenant: &str, id: &str) -> Result<u64, EventsError> {
        let mark = self.0.engine.mark(&self.0.names.aggregate(tenant, id)?).await?;
        let mut number = mark.map_or(0, |mark| mark.position);
        self.0.current_head().await?;
        while number > 0 && self.0.events_from(tenant, id, number, 1).await?.is_empty() {
            number -= 1;
        }
        Ok(number)
    }

    /// Waits until an aggregate's event of this number is durable: numbers are reserved before.
    ///
    /// # Errors
    /// [`EventsError::NotDurableYet`] when it takes longer than an append may; otherwise as
    /// [`EventStore::read_after`].
    pub async fn wait_number(
        &self,
        tenant: &str,
        aggregate_id: &str,
        number: u64,
    ) -> Result<(), EventsError> {
        let mut head = self.0.head.subscribe();
        let until = tokio::time::Instant::now() + self.0.options.append_wait;
        while self.durable_number(tenant, aggregate_id).await? < number {
            tokio::select! {
                _ = head.changed() => {}
                () = tokio::time::sleep(self.0.options.poll) => {}
                () = tokio::time::sleep_until(until) => return Err(EventsError::NotDurableYet),
            }
        }
        Ok(())
    }

    /// What an event that came again says differently.
    pub(super) async fn differs(
        &self,
        append: &AppendMany,
        event: &NewEvent,
        record: &Record,
    ) -> Result<Vec<String>, EventsError> {
        let mut differs = Vec::new();
        let there = record.guard.as_ref().map(|guard| guard.subject.id().into_owned());
        if there.as_deref() != Some(append.aggregate_id.as_str()) {
            differs.push("/aggregate_id".to_owned());
        }
        let Some((_, first)) = self.find(&append.tenant, &event.event_id).await? else {
            return Ok(differs);
        };
        if first.kind != event.kind {
            differs.push("/kind".to_owned());
        }
        match diff_full(&first.payload, &event.payload, Arrays::Ordered, &[]) {
            Ok(diff) => {
                let pointers = diff.changes.into_iter().take(DIFFERS_MAX);
                differs.extend(pointers.map(|change| format!("/payload{}", change.pointer)));
            }
            Err(_) if first.payload != event.payload => differs.push("/payload".to_owned()),
            Err(_) => {}
        }
        Ok(differs)
    }
}

impl Shared {
    /// Events of an aggregate from a number on, without gaps, in what this process knows of.
    pub(super) async fn events_from(
        &self,
        tenant: &str,
        id: &str,
        first: u64,
        count: u64,
    ) -> Result<Vec<(Place, Event)>, EventsError> {
        // Read before the index: what is not in it lies behind this segment.
        let subjects = vec![self.names.indexed()?, self.names.aggregate(tenant, id)?];
        let marks = self.engine.marks(subjects).await?;
        let position = |at: usize| marks.get(at).and_then(Option::as_ref).map_or(0, |m| m.position);
        let (noted, last) = (position(0), position(1));
        let end = first.saturating_add(count - count.min(1)).min(last);
        let mut events = Vec::new();
        let mut next = first;
        while count > 0 && next <= end {
            let until = end.min(next.saturating_add(LOOK_MAX - 1));
            let subjects: Result<Vec<_>, _> =
                (next..=until).map(|number| self.names.index(tenant, id, number)).collect();
            let found = self.engine.marks(subjects?).await?;
            let places = found.iter().map_while(|mark| read_place(mark.as_ref()?.value.as_ref()?));
            let before = next;
            for place in places {
                let segment = self.segment(place.segment).await?;
                let event = segment.events.get(place.offset as usize);
                let event =
                    event.filter(|event| event.sequence_number == next && event.aggregate_id == id);
                let event = event.ok_or_else(|| {
                    EventsError::Corrupt(format!("the index points to another event at {place}"))
                })?;
                events.push((place, event.clone()));
                next += 1;
            }
            if next <= until || next == before {
                break;
            }
        }
        if count > 0 && next <= end {
            self.add_unnoted(&mut events, (tenant, id), (next, end), noted).await?;
        }
        Ok(events)
    }

    /// Adds events from the segments that are not in the index yet.
    async fn add_unnoted(
        &self,
        events: &mut Vec<(Place, Event)>,
        (tenant, id): (&str, &str),
        (mut next, end): (u64, u64),
        noted: u64,
    ) -> Result<(), EventsError> {
        let head = self.head.borrow().segment;
        for number in noted + 1..=head {
            let segment = self.segment(number).await?;
            for (place, event) in segment.placed() {
                let ours = event.sequence_number == next
                    && event.aggregate_id == id
                    && event.tenant == tenant;
                if ours && next <= end {
                    events.push((place, event.clone()));
                    next += 1;
                }
            }
        }
        Ok(())
    }

    /// A segment that is there.
    pub(super) async fn segment(&self, number: u64) -> Result<Arc<Segment>, EventsError> {
        if let Some(segment) = self.fetch(number).await? {
            return Ok(segment);
        }
        let missing = EventsError::Corrupt(format!("segment {number} is missing"));
        self.alarms.note(number, Some(missing.to_string()));
        Err(missing)
    }

    /// A segment, or none when there is none yet.
    pub(super) async fn fetch(&self, number: u64) -> Result<Option<Arc<Segment>>, EventsError> {
        if let Some(segment) = self.cache.get(number) {
            return Ok(Some(segment));
        }
        let Some(object) = self.objects.get(&self.names.segment(number)).await? else {
            return Ok(None);
        };
        let decoded = segment::decode(number, &object);
        self.alarms.note(number, decoded.as_ref().err().map(ToString::to_string));
        let segment = Arc::new(decoded?);
        self.cache.keep(&segment);
        Ok(Some(segment))
    }

    /// The next segment, if there is one that this process does not know of.
    pub(super) async fn probe(&self) -> Result<Option<Arc<Segment>>, EventsError> {
        let next = self.head.borrow().segment + 1;
        let Some(segment) = self.fetch(next).await? else { return Ok(None) };
        self.objects.sync(&self.names.segment(next)).await?;
        self.advance_head(segment.last());
        Ok(Some(segment))
    }

    /// The last durable event's place, other processes' included: one look per call.
    pub(super) async fn current_head(&self) -> Result<Place, EventsError> {
        while self.probe().await?.is_some() {}
        Ok(*self.head.borrow())
    }
}
