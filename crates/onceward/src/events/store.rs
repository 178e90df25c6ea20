//! The event store: appends in, durable and in order.
//!
//! An append is answered only after its segment is durable. What every part shares is here;
//! packing, noting and reading are files of their own.

use std::fmt;
use std::sync::Arc;

use onceward_core::decide::{self, Reservation};
use onceward_core::fingerprint::{
    Body, CanonicalBody, Fingerprint, FingerprintBuilder, FingerprintPolicy,
};
use onceward_core::key::{Subject, check_part};
use onceward_core::limits::{LimitError, MAX_BATCH_BYTES};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::alarms::Alarms;
use super::append::{Append, AppendMany, AppendVerdict, Appended, ManyVerdict, NewEvent};
use super::cache::Cache;
use super::names::{self, Names};
use super::packer::{Intent, Packer};
use super::segment;
use super::{Allocator, Event, EventStoreOptions, EventsError, Objects, OnMismatch, Place};
use crate::engine::{Engine, random_u64};

/// An event store. Cheap to clone; must be opened within a tokio runtime. When the last clone is
/// dropped it closes by itself, and what waits is packed.
#[derive(Clone)]
pub struct EventStore(pub(super) Arc<Shared>, #[expect(dead_code, reason = "dropped")] Arc<Last>);

/// Held by every clone, and by nobody else: its end is the event store's.
struct Last(Arc<Shared>);

impl Drop for Last {
    fn drop(&mut self) {
        self.0.reach(Stage::Closing);
    }
}

/// How far its end has come: each part waits for the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It takes appends.
    Open,
    /// It takes no more; what waits is packed.
    Closing,
    /// All is packed; what is not noted yet is noted.
    Packed,
    /// All is noted: the lease may go.
    Noted,
}

/// What appends, packer, settler and readers share.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) objects: Objects,
    pub(super) options: EventStoreOptions,
    pub(super) names: Names,
    pub(super) cache: Cache,
    /// The place of the last durable event that this process knows of.
    pub(super) head: watch::Sender<Place>,
    /// The last segment whose events are all in the index, as far as this process knows.
    pub(super) indexed: watch::Sender<u64>,
    /// Whether this process holds the packer's lease.
    pub(super) leading: watch::Sender<bool>,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) inbox: mpsc::UnboundedSender<Intent>,
    /// Whether no other process can write to the engine's store: then nobody else packs, and a
    /// lease that a dead process left need not be waited for.
    pub(super) alone: bool,
    /// What is damaged or lost of the segments.
    pub(super) alarms: Alarms,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl EventStore {
    /// Opens an event store: probes that the object store keeps conditions, brings the index up to
    /// the last segment, and starts to pack.
    ///
    /// # Errors
    /// When the object store can't be used, the index and the segments do not belong together, the
    /// events are counted in another space, or a store gives no answer.
    pub async fn open(
        engine: Engine,
        objects: impl Into<Objects>,
        options: EventStoreOptions,
    ) -> Result<Self, EventsError> {
        let (shared, received) = Shared::new(engine, objects.into(), options)?;
        shared.objects.probe(&shared.names.probe(random_u64())).await?;
        shared.keep_space().await?;
        shared.recover().await?;
        let packer = Packer::new(shared.clone(), received);
        let tasks = vec![
            tokio::spawn(shared.clone().keep_lease()),
            tokio::spawn(shared.clone().settle_on()),
            tokio::spawn(packer.run()),
        ];
        shared.tasks().extend(tasks);
        Ok(Self::of(shared))
    }

    /// Opens an event store to look at it: nothing is written anywhere, and appends are refused.
    ///
    /// # Errors
    /// When a store gives no answer, the index and the segments do not belong together, or the
    /// events are counted in another space.
    pub async fn open_to_read(
        engine: Engine,
        objects: impl Into<Objects>,
        options: EventStoreOptions,
    ) -> Result<Self, EventsError> {
        let (shared, _) = Shared::new(engine, objects.into(), options)?;
        shared.check_space().await?;
        shared.look_for_head().await?;
        Ok(Self::of(shared))
    }

    fn of(shared: Arc<Shared>) -> Self {
        Self(shared.clone(), Arc::new(Last(shared)))
    }

    /// Appends an event, once, and answers when it is durable.
    ///
    /// # Errors
    /// When a store gives no answer or something breaks a bound. Send the same append again.
    pub async fn append(&self, append: &Append) -> Result<AppendVerdict, EventsError> {
        let many = many_of(append);
        let one = |all: Vec<Appended>| {
            all.first().copied().ok_or_else(|| EventsError::Corrupt("an event has no place".into()))
        };
        Ok(match self.append_many(&many).await? {
            ManyVerdict::Appended(all) => AppendVerdict::Appended(one(all)?),
            ManyVerdict::Again(all) => AppendVerdict::Again(one(all)?),
            ManyVerdict::Mismatch { differs, .. } => AppendVerdict::Mismatch { differs },
            ManyVerdict::Ignored { differs, .. } => {
                let found = self.find(&append.tenant, &append.event_id).await?;
                let (place, event) = found.ok_or(EventsError::NotDurableYet)?;
                let sequence_number = event.sequence_number;
                AppendVerdict::Ignored { first: Appended { sequence_number, place }, differs }
            }
            ManyVerdict::SequenceMismatch { current } => {
                AppendVerdict::SequenceMismatch { current }
            }
            ManyVerdict::ExpectedSeqRequired => AppendVerdict::ExpectedSeqRequired,
            // One event is there or it is not.
            ManyVerdict::Mixed { .. } => {
                return Err(EventsError::Corrupt("one event is there in part".into()));
            }
        })
    }

    /// Appends events to one aggregate, all or none, and answers when they are durable.
    ///
    /// # Errors
    /// As [`EventStore::append`].
    pub async fn append_many(&self, append: &AppendMany) -> Result<ManyVerdict, EventsError> {
        let shared = &self.0;
        // Without a packer it is closed, or open for reading alone.
        if *shared.stage.borrow() != Stage::Open || shared.inbox.is_closed() {
            return Err(EventsError::Closed);
        }
        if append.expected_seq.is_none() && shared.options.allocator == Allocator::Caller {
            return Ok(ManyVerdict::ExpectedSeqRequired);
        }
        let mut request = shared.request(append)?;
        let listing = shared.options.allocator == Allocator::Listing;
        loop {
            if listing && append.expected_seq.is_none() {
                let at = self.durable_number(&append.tenant, &append.aggregate_id).await?;
                request.append.expected = Some(at);
            }
            let (reservation, rev) = shared.engine.reserve(&request.append).await?;
            let again = match reservation {
                // Someone's number is reserved and not listed yet.
                Reservation::Expected { current } if listing && append.expected_seq.is_none() => {
                    self.wait_number(&append.tenant, &append.aggregate_id, current).await?;
                    continue;
                }
                Reservation::Expected { current } => {
                    return Ok(ManyVerdict::SequenceMismatch { current });
                }
                Reservation::Mixed { there } => return Ok(ManyVerdict::Mixed { there }),
                Reservation::Mismatch(index, record) => {
                    let event = append.events.get(index);
                    let differs = match event {
                        Some(event) => self.differs(append, event, &record).await?,
                        None => Vec::new(),
                    };
                    return Ok(match shared.options.on_mismatch {
                        OnMismatch::Error => ManyVerdict::Mismatch { index, differs },
                        OnMismatch::Warn => ManyVerdict::Ignored { index, differs },
                    });
                }
                Reservation::Reserved(first) => {
                    let done = shared.hand_over(request, first, rev).await?;
                    return Ok(ManyVerdict::Appended(done));
                }
                Reservation::There(first) => first,
            };
            let done = shared.hand_over(request, again, None).await?;
            return Ok(ManyVerdict::Again(done));
        }
    }

    /// Reserves an append's number and tells the packer nothing: what a process leaves that dies
    /// between the two.
    ///
    /// # Errors
    /// As [`EventStore::append`].
    #[cfg(feature = "testing")]
    pub async fn reserve_only(&self, append: &Append) -> Result<(), EventsError> {
        let request = self.0.request(&many_of(append))?;
        self.0.engine.reserve(&request.append).await?;
        Ok(())
    }

    /// Writes what waits and ends the packer. Appends are refused from now on.
    ///
    /// # Errors
    /// When what waits could not be written.
    pub async fn close(&self) -> Result<(), EventsError> {
        self.0.reach(Stage::Closing);
        let tasks = std::mem::take(&mut *self.0.tasks());
        for task in tasks {
            if task.await.is_err() {
                return Err(EventsError::Closed);
            }
        }
        Ok(())
    }

    /// What someone who runs it should know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.0.options.allocator.warning().map(str::to_owned).into_iter().collect()
    }

    /// What is damaged or lost, as far as anyone has looked: a person has to see to it.
    #[must_use]
    pub fn alarms(&self) -> Vec<String> {
        self.0.alarms.sentences()
    }

    /// Events were published up to a place behind the last one that is here.
    pub(crate) fn note_lost(&self, published: Place, head: Place) {
        self.0.alarms.note_lost(published, head);
    }

    /// Whether this process writes the segments at the moment.
    #[must_use]
    pub fn is_packing(&self) -> bool {
        *self.0.leading.borrow()
    }

    /// Where the segments are kept.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.0.objects
    }

    /// The engine that it works on.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }
}

/// An append of one event as one of many.
fn many_of(append: &Append) -> AppendMany {
    let event = NewEvent {
        event_id: append.event_id.clone(),
        kind: append.kind.clone(),
        payload: append.payload.clone(),
    };
    AppendMany {
        tenant: append.tenant.clone(),
        aggregate_id: append.aggregate_id.clone(),
        expected_seq: append.expected_seq,
        events: vec![event],
        correlation_id: append.correlation_id.clone(),
    }
}

/// An append, ready to be reserved.
pub(super) struct Request {
    pub(super) append: decide::Append,
    pub(super) events: Vec<Event>,
}

impl Shared {
    fn new(
        engine: Engine,
        objects: Objects,
        options: EventStoreOptions,
    ) -> Result<(Arc<Self>, mpsc::UnboundedReceiver<Intent>), EventsError> {
        options.validate()?;
        let (inbox, received) = mpsc::unbounded_channel();
        let alone = matches!(engine.capabilities().name, "sqlite" | "memory");
        let shared = Arc::new(Self {
            alone,
            cache: Cache::new(options.cache_bytes),
            names: Names::new(&options),
            engine,
            objects,
            options,
            head: watch::Sender::new(Place::default()),
            indexed: watch::Sender::new(0),
            leading: watch::Sender::new(false),
            stage: watch::Sender::new(Stage::Open),
            inbox,
            alarms: Alarms::default(),
            tasks: std::sync::Mutex::default(),
        });
        Ok((shared, received))
    }

    fn request(&self, append: &AppendMany) -> Result<Request, EventsError> {
        let tenant = &append.tenant;
        let aggregate = self.names.aggregate(tenant, &append.aggregate_id)?;
        let mut keys = Vec::with_capacity(append.events.len());
        let mut events = Vec::with_capacity(append.events.len());
        for event in &append.events {
            check_part("kind", &event.kind, 1)?;
            let key = self.names.event(tenant, &event.event_id)?;
            keys.push((key, fingerprint(&event.kind, &event.payload)));
            events.push(Event {
                tenant: tenant.clone(),
                aggregate_id: append.aggregate_id.clone(),
                event_id: event.event_id.clone(),
                sequence_number: 0,
                kind: event.kind.clone(),
                payload: event.payload.clone(),
                correlation_id: append.correlation_id.clone(),
            });
        }
        let first = append.events.first().map_or("", |event| event.event_id.as_str());
        let intent = self.names.intent(tenant, first)?;
        let payload = segment::encode_intent(&events);
        if payload.len() > MAX_BATCH_BYTES {
            let bound = format!("at most {MAX_BATCH_BYTES}");
            return Err(LimitError::new("bytes of an append", payload.len(), bound).into());
        }
        let trace = names::trace(append.correlation_id.as_deref());
        let append = decide::Append {
            aggregate,
            expected: append.expected_seq,
            events: keys,
            intent,
            payload: payload.as_ref().into(),
            trace,
        };
        append.validate()?;
        Ok(Request { append, events })
    }

    /// Hands reserved events to the packer and waits until they are durable. Without a rev they
    /// were reserved earlier: the packer finds them by itself, if it has not packed them already.
    async fn hand_over(
        &self,
        request: Request,
        first: u64,
        rev: Option<u64>,
    ) -> Result<Vec<Appended>, EventsError> {
        let count = request.events.len() as u64;
        let mut events = request.events;
        for (event, number) in events.iter_mut().zip(first..) {
            event.sequence_number = number;
        }
        let (reply, durable) = oneshot::channel();
        let intent = Intent {
            aggregate: request.append.aggregate,
            first,
            rev,
            events,
            replies: vec![reply],
            since: std::time::Instant::now(),
        };
        if self.inbox.send(intent).is_err() {
            return Err(EventsError::Closed);
        }
        let waited = tokio::time::timeout(self.options.append_wait, durable).await;
        let places = match waited {
            Ok(Ok(places)) => places?,
            Ok(Err(_)) => return Err(EventsError::Closed),
            Err(_) => return Err(EventsError::NotDurableYet),
        };
        if places.len() as u64 != count {
            return Err(EventsError::Corrupt("events of an append have lost their places".into()));
        }
        let done = places.into_iter().zip(first..);
        Ok(done.map(|(place, sequence_number)| Appended { sequence_number, place }).collect())
    }

    /// The places of events that were packed, as the index or the latest segments tell.
    pub(super) async fn places(
        &self,
        tenant: &str,
        aggregate_id: &str,
        (first, count): (u64, u64),
    ) -> Result<Vec<Place>, EventsError> {
        let found = self.events_from(tenant, aggregate_id, first, count).await?;
        Ok(found.into_iter().map(|(place, _)| place).collect())
    }

    pub(super) fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Tells everyone of a later head.
    pub(super) fn advance_head(&self, to: Place) {
        self.head.send_if_modified(|head| {
            let later = to > *head;
            *head = (*head).max(to);
            later
        });
    }

    /// The event store ends in stages, one after the other.
    pub(super) fn reach(&self, stage: Stage) {
        self.stage.send_if_modified(|at| {
            let later = stage > *at;
            *at = stage.max(*at);
            later
        });
    }

    /// The aggregate's tenant and id, as its mark is named.
    pub(super) fn aggregate_of(subject: &Subject) -> (String, String) {
        (subject.tenant().into_owned(), subject.id().into_owned())
    }
}

/// The fingerprint of an event: what it says, in its canonical form. Which aggregate it belongs to
/// is compared beside it.
pub(super) fn fingerprint(kind: &str, payload: &[u8]) -> Fingerprint {
    let builder = FingerprintBuilder::new().part("kind", kind.as_bytes());
    match CanonicalBody::new(payload, &FingerprintPolicy::default()) {
        Ok(canonical) => builder.body(&canonical).finish(),
        // JSON without a canonical form is compared byte for byte.
        Err(_) => {
            let policy = FingerprintPolicy { body: Body::Bytes, ..FingerprintPolicy::default() };
            match CanonicalBody::new(payload, &policy) {
                Ok(bytes) => builder.body(&bytes).finish(),
                Err(_) => builder.part("payload", payload).finish(),
            }
        }
    }
}

impl fmt::Debug for EventStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = *self.0.head.borrow();
        f.debug_struct("EventStore")
            .field("name", &self.0.options.name)
            .field("head", &head)
            .finish_non_exhaustive()
    }
}
