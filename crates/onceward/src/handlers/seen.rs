//! What a handler gets: the event, eyes on the store, and for effects elsewhere its right to act.
//!
//! Nothing here writes. What a handler wants written it hands back; what it does elsewhere it does
//! under [`Attempt::effect_key`] and [`Attempt::fence`].

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use onceward_core::audit::{Entry, Trace};
use onceward_core::decide::Permit;
use onceward_core::key::Subject;
use onceward_core::text::escape;

use super::HandlerError;
use crate::engine::{Engine, Seen};
use crate::events::Event;
use crate::worker::LeaseLost;
use crate::worker::lease::Lease;

/// An event as a handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct SeenEvent {
    pub(super) engine: Engine,
    pub(super) event: Arc<Event>,
}

impl SeenEvent {
    /// The event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The engine, for looks.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A document of the event's tenant, with the version that a write of it expects.
    ///
    /// # Errors
    /// When the store gives no answer, or a part breaks its bound.
    pub async fn read(&self, space: &str, id: &str) -> Result<Seen, HandlerError> {
        let subject = Subject::new(&self.event.tenant, space, id)?;
        Ok(self.engine.see(subject).await?)
    }

    /// An audit entry of the event's tenant with its ids, to be filled in and handed back.
    #[must_use]
    pub fn entry(&self, action: &str) -> Entry {
        let mut entry = Entry::new(&escape(&self.event.tenant), action);
        entry.trace = trace(&self.event);
        entry.subject = Some(self.event.aggregate_id.as_str().into());
        entry
    }
}

/// The ids that an event passes on.
pub(super) fn trace(event: &Event) -> Trace {
    let correlation_id = event.correlation_id.as_deref().map(Into::into);
    Trace { correlation_id, ..Trace::default() }
}

/// One attempt at an effect elsewhere. Cheap to clone; shows the event as [`SeenEvent`] does.
#[derive(Clone)]
pub struct Attempt {
    pub(super) seen: SeenEvent,
    /// None: the registry is switched off, and nobody keeps attempts apart.
    pub(super) held: Option<Arc<Held>>,
    pub(super) effect_key: Arc<str>,
}

/// The right to act, as granted.
pub(super) struct Held {
    pub(super) permit: Permit,
    pub(super) lease: Lease,
}

impl Attempt {
    /// Rises with every attempt at this event. Hand it to whatever you call: what refuses a lower
    /// one is safe from an attempt that was overtaken. 0 when the registry is switched off.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.permit.fence.0)
    }

    /// The same on every attempt of this handler at this event. Hand it as the idempotency key to
    /// whatever you call: what accepts it does the work once.
    #[must_use]
    pub fn effect_key(&self) -> &str {
        &self.effect_key
    }

    /// The number of this attempt, 1 for the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.held.as_ref().map_or(1, |held| held.permit.record.attempt)
    }

    /// Whether this attempt may still act. To be asked right before an effect, above all by work
    /// that runs outside the handler's own future and so is not cut with it.
    ///
    /// # Errors
    /// When the lease was lost or has run out.
    pub fn check(&self) -> Result<(), LeaseLost> {
        let Some(held) = &self.held else { return Ok(()) };
        let fence = self.fence();
        held.lease.over().map_or(Ok(()), |why| Err(LeaseLost { fence, why }))
    }
}

impl Deref for Attempt {
    type Target = SeenEvent;

    fn deref(&self) -> &SeenEvent {
        &self.seen
    }
}

impl fmt::Debug for SeenEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeenEvent")
            .field("kind", &self.event.kind)
            .field("sequence_number", &self.event.sequence_number)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("seen", &self.seen).field("fence", &self.fence()).finish()
    }
}
