//! The packer: what waits together becomes the next segment.
//!
//! A segment is created only if no other has its number, by one who has seen all before it and
//! leaves out what they hold. So every event lies in exactly one segment, whoever packs, and no
//! lease has to be trusted. An event is packed only behind all lower numbers of its aggregate.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use onceward_core::key::Subject;
use onceward_core::zoo::{Bug, planted};
use tokio::sync::{mpsc, oneshot};

use super::objects::Created;
use super::segment::{self, Segment};
use super::store::{Shared, Stage};
use super::{Event, EventsError, Place};
use crate::engine::Waiting;

/// Intents of one page of those that wait in the store, and pages per look.
const PAGE: usize = 500;
const PAGES_MAX: usize = 16;
/// How often the one who packs looks for intents that nobody handed over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest pause between two such looks, when one is needed.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// Aggregates whose last number is remembered before those in the index are let go.
const TOPS_MAX: usize = 100_000;

/// Who waits for the places of an append's events.
pub(super) type Reply = oneshot::Sender<Result<Vec<Place>, EventsError>>;

/// Events of one append, reserved and not known to be packed.
pub(super) struct Intent {
    pub(super) aggregate: Subject,
    /// The number of the first event.
    pub(super) first: u64,
    /// The rev of what reserved it. None: it was reserved earlier, and the intent itself is
    /// somewhere else; this one only waits for it.
    pub(super) rev: Option<u64>,
    pub(super) events: Vec<Event>,
    pub(super) replies: Vec<Reply>,
    pub(super) since: Instant,
}

impl Intent {
    fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }

    fn bytes(&self) -> usize {
        self.events.iter().map(|event| event.payload.len() + 256).sum()
    }
}

/// The last packed number of an aggregate, and the segment that it lies in.
#[derive(Debug, Clone, Copy)]
struct Top {
    number: u64,
    segment: u64,
}

pub(super) struct Packer {
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Intent>,
    waiting: HashMap<(Subject, u64), Intent>,
    /// Appends that came again: they wait for what an earlier one reserved.
    followers: Vec<Intent>,
    /// Accurate where it says something. Every aggregate of a segment that is not in the index is
    /// in here; of others, the index tells.
    tops: HashMap<Subject, Top>,
    /// The last segment that was taken in: the next one is ours to write, or to take in.
    seen: u64,
    /// A number is missing before one that waits: its intent has to be looked for.
    missing: bool,
    looked_at: Option<Instant>,
    probed_at: Instant,
}

impl Packer {
    pub(super) fn new(shared: Arc<Shared>, inbox: mpsc::UnboundedReceiver<Intent>) -> Self {
        let seen = shared.head.borrow().segment;
        Self {
            seen,
            shared,
            inbox,
            waiting: HashMap::new(),
            followers: Vec::new(),
            tops: HashMap::new(),
            missing: false,
            looked_at: None,
            probed_at: Instant::now(),
        }
    }

    /// Packs until the event store is closed and nothing waits.
    pub(super) async fn run(mut self) {
        let mut stage = self.shared.stage.subscribe();
        let mut leading = self.shared.leading.subscribe();
        loop {
            let went_well = self.turn().await.is_ok();
            let closing = *stage.borrow_and_update() >= Stage::Closing;
            if closing && self.inbox.is_empty() && (self.waiting.is_empty() || !went_well) {
                break;
            }
            if went_well && !self.inbox.is_empty() {
                continue;
            }
            let nap = if self.missing { LOOK_PAUSE } else { self.shared.options.poll };
            tokio::select! {
                received = self.inbox.recv(), if went_well => match received {
                    Some(intent) => self.admit(intent),
                    None => break,
                },
                _ = stage.changed(), if !closing => {}
                _ = leading.changed() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
        self.inbox.close();
        self.shared.reach(Stage::Packed);
    }

    /// Takes what came, finds out how it stands, and writes segments while there is something.
    async fn turn(&mut self) -> Result<(), EventsError> {
        loop {
            while let Ok(intent) = self.inbox.try_recv() {
                self.admit(intent);
            }
            self.look_around().await?;
            self.learn_tops().await?;
            self.answer_packed();
            if !self.may_pack() {
                return Ok(());
            }
            let chosen = self.choose();
            if chosen.is_empty() {
                return Ok(());
            }
            self.write(&chosen).await?;
        }
    }

    fn admit(&mut self, intent: Intent) {
        if intent.rev.is_none() {
            self.followers.push(intent);
            return;
        }
        match self.waiting.get_mut(&(intent.aggregate.clone(), intent.first)) {
            // It was found in the store before it was handed over.
            Some(there) => there.replies.extend(intent.replies),
            None => {
                self.waiting.insert((intent.aggregate.clone(), intent.first), intent);
            }
        }
    }

    /// Looks for segments that others wrote and for intents that nobody handed over.
    async fn look_around(&mut self) -> Result<(), EventsError> {
        let options = &self.shared.options;
        let leading = *self.shared.leading.borrow();
        if self.probed_at.elapsed() >= options.poll {
            self.probed_at = Instant::now();
            self.shared.current_head().await?;
        }
        // Readers may have met segments of others before.
        while self.seen < self.shared.head.borrow().segment {
            let segment = self.shared.segment(self.seen + 1).await?;
            self.observe(&segment);
        }
        let pause = if self.missing { LOOK_PAUSE } else { LOOK_EVERY };
        let due = self.looked_at.is_none_or(|at| at.elapsed() >= pause);
        if due && (leading || self.missing) {
            self.looked_at = Some(Instant::now());
            self.missing = false;
            // Without an answer, or when one can't be read, the others go on.
            self.missing |= self.find_intents().await.is_err();
        }
        Ok(())
    }

    async fn find_intents(&mut self) -> Result<(), EventsError> {
        let mut after = None;
        for _ in 0..PAGES_MAX {
            let queue = self.shared.names.queue().to_owned();
            let (found, next) = self.shared.engine.intents(&queue, after.take(), PAGE).await?;
            for intent in found {
                let at = (intent.aggregate.clone(), intent.first);
                if let Entry::Vacant(free) = self.waiting.entry(at) {
                    free.insert(revived(intent)?);
                }
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Asks the index for the aggregates that nothing is known of.
    async fn learn_tops(&mut self) -> Result<(), EventsError> {
        let mut asked: Vec<(Subject, u64)> = Vec::new();
        let mut lowest: HashMap<&Subject, u64> = HashMap::new();
        for intent in self.waiting.values().chain(&self.followers) {
            if !self.tops.contains_key(&intent.aggregate) {
                let low = lowest.entry(&intent.aggregate).or_insert(intent.first);
                *low = (*low).min(intent.first);
            }
        }
        let mut subjects = Vec::new();
        for (aggregate, first) in lowest {
            let (tenant, id) = Shared::aggregate_of(aggregate);
            subjects.push(self.shared.names.index(&tenant, &id, first)?);
            subjects.push(self.shared.names.index(&tenant, &id, first.saturating_sub(1))?);
            asked.push((aggregate.clone(), first));
        }
        if asked.is_empty() {
            return Ok(());
        }
        let marks = self.shared.engine.marks(subjects).await?;
        for ((aggregate, first), found) in asked.into_iter().zip(marks.chunks(2)) {
            let [this, before] = found else { continue };
            if this.is_some() {
                self.learn_packed(aggregate, first).await?;
            } else if first == 1 || before.is_some() {
                self.tops.insert(aggregate, Top { number: first - 1, segment: 0 });
            } else {
                self.missing = true;
            }
        }
        Ok(())
    }

    /// An aggregate with an intent that is packed already: how far it is, is read to its end.
    async fn learn_packed(&mut self, aggregate: Subject, from: u64) -> Result<(), EventsError> {
        let (tenant, id) = Shared::aggregate_of(&aggregate);
        let mut number = from;
        loop {
            let more = self.shared.places(&tenant, &id, (number + 1, PAGE as u64)).await?;
            number += more.len() as u64;
            if more.len() < PAGE {
                break;
            }
        }
        self.tops.insert(aggregate, Top { number, segment: 0 });
        Ok(())
    }

    /// Answers those who wait for what is packed already, from the index.
    fn answer_packed(&mut self) {
        let tops = &self.tops;
        let packed = |intent: &Intent| {
            tops.get(&intent.aggregate).is_some_and(|top| top.number >= intent.last())
        };
        let mut done: Vec<Intent> =
            self.followers.extract_if(.., |intent| packed(intent)).collect();
        done.extend(self.waiting.extract_if(|_, intent| packed(intent)).map(|(_, intent)| intent));
        for intent in done {
            if intent.replies.is_empty() {
                continue;
            }
            let shared = self.shared.clone();
            tokio::spawn(async move {
                let (tenant, id) = Shared::aggregate_of(&intent.aggregate);
                let count = intent.events.len() as u64;
                let places = shared.places(&tenant, &id, (intent.first, count)).await;
                for reply in intent.replies {
                    // Whoever does not listen any more asks again.
                    let _ = reply.send(places.clone());
                }
            });
        }
        // A follower whose intent is not here: it lies in the store, or with another process.
        let waiting = &self.waiting;
        let strays =
            |intent: &&Intent| !waiting.contains_key(&(intent.aggregate.clone(), intent.first));
        self.missing |= self.followers.iter().any(|intent| strays(&intent));
    }

    /// Whether it is this process's turn: it holds the lease, or has waited long enough.
    fn may_pack(&self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let shared = &self.shared;
        if *shared.leading.borrow() {
            let behind = shared.head.borrow().segment - *shared.indexed.borrow();
            return behind < shared.options.unsettled_max;
        }
        let patience = if shared.alone { Duration::ZERO } else { shared.options.patience };
        self.waiting.values().any(|intent| intent.since.elapsed() >= patience)
    }

    /// What the next segment holds: in the order of their reservation, each number of an aggregate
    /// behind the one before it.
    fn choose(&mut self) -> Vec<(Subject, u64)> {
        let options = &self.shared.options;
        let mut candidates: Vec<_> = self.waiting.values().collect();
        candidates.sort_by_key(|intent| (intent.rev, intent.first));
        let mut planned: HashMap<&Subject, u64> = HashMap::new();
        let (mut chosen, mut events, mut bytes) = (Vec::new(), 0, 0);
        for intent in candidates {
            let Some(top) = self.tops.get(&intent.aggregate) else { continue };
            let at = planned.get(&intent.aggregate).copied().unwrap_or(top.number);
            if intent.first != at + 1 && !planted(Bug::PackedPastAGap) {
                self.missing = true;
                continue;
            }
            let full = events + intent.events.len() > options.segment_events_max
                || bytes + intent.bytes() > options.segment_bytes_max;
            if full && !chosen.is_empty() {
                break;
            }
            events += intent.events.len();
            bytes += intent.bytes();
            planned.insert(&intent.aggregate, intent.last());
            chosen.push((intent.aggregate.clone(), intent.first));
        }
        chosen
    }

    /// Writes the next segment. When someone else wrote it, that one is taken in instead.
    async fn write(&mut self, chosen: &[(Subject, u64)]) -> Result<(), EventsError> {
        let number = self.seen + 1;
        let intents = chosen.iter().filter_map(|at| self.waiting.get(at));
        let events = intents.flat_map(|intent| {
            intent.events.iter().enumerate().map(|(at, event)| (at == 0, event))
        });
        let content = segment::encode(number, events);
        let path = self.shared.names.segment(number);
        let written = match self.shared.objects.create(&path, &content).await? {
            Created::Ours => content,
            Created::Theirs(theirs) => theirs,
        };
        self.take_in(number, &written)
    }

    fn take_in(&mut self, number: u64, object: &Bytes) -> Result<(), EventsError> {
        let segment = Arc::new(segment::decode(number, object)?);
        self.shared.cache.keep(&segment);
        self.shared.advance_head(segment.last());
        self.observe(&segment);
        Ok(())
    }

    /// Notes what a segment holds, and answers those who waited for it.
    fn observe(&mut self, segment: &Segment) {
        self.seen = segment.number;
        for (place, event) in segment.placed() {
            let Ok(aggregate) = self.shared.names.aggregate(&event.tenant, &event.aggregate_id)
            else {
                continue;
            };
            let number = event.sequence_number;
            let at = (aggregate, number);
            if let Some(intent) = self.waiting.remove(&at) {
                let count = u32::try_from(intent.events.len()).unwrap_or(u32::MAX);
                let places = (place.offset..place.offset.saturating_add(count))
                    .map(|offset| Place { segment: place.segment, offset });
                let places: Vec<_> = places.collect();
                for reply in intent.replies {
                    // Whoever does not listen any more asks again.
                    let _ = reply.send(Ok(places.clone()));
                }
            }
            let top = Top { number, segment: segment.number };
            self.tops.insert(at.0, top);
        }
        if self.tops.len() > TOPS_MAX {
            let indexed = *self.shared.indexed.borrow();
            self.tops.retain(|_, top| top.segment > indexed);
        }
    }
}

/// An intent that was found in the store: its process is gone, or is another.
fn revived(waiting: Waiting) -> Result<Intent, EventsError> {
    let (tenant, id) = Shared::aggregate_of(&waiting.aggregate);
    let events = segment::decode_intent(Bytes::copy_from_slice(&waiting.payload));
    let events = events.filter(|events| !events.is_empty());
    let events = events.ok_or_else(|| EventsError::Corrupt(format!("intent {}", waiting.key)))?;
    let numbered = events.into_iter().zip(waiting.first..);
    let events = numbered.map(|(one, number)| one.placed(tenant.clone(), id.clone(), number));
    Ok(Intent {
        aggregate: waiting.aggregate,
        first: waiting.first,
        rev: Some(waiting.rev),
        events: events.collect(),
        replies: Vec::new(),
        since: Instant::now(),
    })
}
