//! The relay at work: reads behind what is acknowledged, publishes, checkpoints.
//!
//! Rule: it goes on from the last place up to which everything is acknowledged. What is not is read
//! and sent again, as it is in the event store; what was acknowledged behind it is known by its id
//! and not sent again, as long as that is remembered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use onceward_core::limits::LimitError;
use onceward_core::zoo::{Bug, planted};
use tokio::task::JoinHandle;

use super::checkpoint::{Checkpoint, Checkpoints, Saved};
use super::log::{LogError, Sink, Source};
use super::options::RelayOptions;
use super::recent::Recent;
use crate::engine::{Engine, EngineError};
use crate::events::{Event, Place};
use crate::handlers::{Asked, Tenure};
use crate::points::{Point, reach};
use crate::worker::Stop;

/// The role of a relay.
pub(crate) const ROLE: &str = "onceward.relay";
/// Pause after something gave no answer, and between two tries to get the role.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause before what is damaged is looked at again: someone may have restored it.
const PAUSE_DAMAGED: Duration = Duration::from_secs(2);
/// Pause after a wait that brought nothing.
const QUIET: Duration = Duration::from_millis(10);

/// Why a relay ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// An option does not fit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The event store or the log is broken.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The store gave an answer that no waiting mends.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its task ended without a word.
    #[error("the relay's task ended: {0}")]
    Task(String),
}

/// How a relay is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayStatus {
    /// Whether this process has the role.
    pub active: bool,
    /// Everything up to there is acknowledged.
    pub acknowledged: Place,
    /// Everything up to there is acknowledged, and the checkpoint says so.
    pub checkpointed: Place,
    /// Events that this process sent and that were acknowledged.
    pub published: u64,
    /// Events that were not sent again because their ids were known.
    pub spared: u64,
    /// Events that had to be sent again.
    pub resent: u64,
    /// What keeps it from going on, by name.
    pub held_by: Option<String>,
}

struct Shared {
    engine: Engine,
    source: Arc<dyn Source>,
    sink: Arc<dyn Sink>,
    checkpoints: Checkpoints,
    options: RelayOptions,
    stop: Stop,
    status: Mutex<RelayStatus>,
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, RelayStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A relay at work. Dropped, it stops.
pub struct Relay {
    shared: Arc<Shared>,
    task: Option<JoinHandle<Result<(), RelayError>>>,
}

impl Relay {
    /// Starts to publish what `source` holds to `sink`; the checkpoint is kept in `bucket`.
    ///
    /// # Errors
    /// When an option lies outside its bounds.
    pub fn start(
        engine: Engine,
        source: Arc<dyn Source>,
        bucket: Arc<dyn ObjectStore>,
        sink: Arc<dyn Sink>,
        options: RelayOptions,
    ) -> Result<Self, LimitError> {
        options.validate()?;
        let checkpoints = Checkpoints::new(bucket, &options.name);
        let (stop, status) = (Stop::default(), Mutex::default());
        let shared = Arc::new(Shared { engine, source, sink, checkpoints, options, stop, status });
        let task = tokio::spawn(run(shared.clone()));
        Ok(Self { shared, task: Some(task) })
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> RelayStatus {
        self.shared.status().clone()
    }

    /// Tells how it is doing to someone who outlives the borrow of it, such as a task that logs.
    pub fn watcher(&self) -> impl Fn() -> RelayStatus + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || shared.status().clone()
    }

    /// Resolves when it has ended by itself.
    ///
    /// # Errors
    /// Why it ended, to the first who asks.
    pub async fn ended(&mut self) -> Result<(), RelayError> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let ended = task.await;
        self.task = None;
        ended.unwrap_or_else(|error| Err(RelayError::Task(error.to_string())))
    }

    /// Ends what it is at, writes its checkpoint and gives the role back.
    ///
    /// # Errors
    /// Why it had ended before.
    pub async fn drain(mut self) -> Result<(), RelayError> {
        self.shared.stop.say();
        self.ended().await
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.say();
    }
}

async fn run(shared: Arc<Shared>) -> Result<(), RelayError> {
    while !shared.stop.is_said() {
        let role = (ROLE, shared.options.name.as_str());
        let owner = shared.options.owner.as_deref();
        let asked = Tenure::ask(&shared.engine, role, shared.options.lease, owner).await;
        let tenure = match asked {
            Ok(Asked::Held(tenure)) => tenure,
            Ok(Asked::Taken(after)) => {
                shared.status().held_by = Some("another relay has the role".into());
                pause(&shared, after.clamp(Duration::from_millis(5), PAUSE)).await;
                continue;
            }
            Err(error) if error.is_retryable() => {
                shared.status().held_by = Some(format!("the store: {error}"));
                pause(&shared, PAUSE).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        shared.status().active = true;
        let ended = tokio::select! {
            ended = publish(&shared, &tenure) => ended,
            () = tenure.keep() => Err(LogError::Overtaken),
        };
        shared.status().active = false;
        match ended {
            Ok(()) => {
                tenure.release().await;
                return Ok(());
            }
            Err(LogError::Overtaken) => {}
            Err(error) if error.is_retryable() => {
                shared.status().held_by = Some(error.to_string());
                tenure.release().await;
                let damaged = matches!(error, LogError::Damaged(_));
                pause(&shared, if damaged { PAUSE_DAMAGED } else { PAUSE }).await;
            }
            Err(error) => {
                tenure.release().await;
                return Err(error.into());
            }
        }
    }
    Ok(())
}

async fn pause(shared: &Shared, time: Duration) {
    tokio::select! {
        () = shared.stop.heard() => {}
        () = tokio::time::sleep(time) => {}
    }
}

/// One tenure.
async fn publish(shared: &Shared, tenure: &Tenure) -> Result<(), LogError> {
    let mut publishing = Publishing::begin(shared, tenure).await?;
    publishing.look_back().await?;
    // Whether the last wait ended without an event: a source that ends its waits is not asked in
    // a hurry.
    let mut quiet = false;
    loop {
        let told_to_stop = shared.stop.is_said();
        let events = if told_to_stop {
            Vec::new()
        } else {
            shared.source.read_after(publishing.acknowledged, shared.options.batch_size).await?
        };
        if !events.is_empty() {
            publishing.send(&events).await?;
        }
        publishing.checkpoint(told_to_stop).await?;
        if told_to_stop {
            return Ok(());
        }
        quiet &= events.is_empty();
        if events.is_empty() {
            let due = publishing.checkpoint_due();
            tokio::select! {
                waited = shared.source.wait_after(publishing.acknowledged) => {
                    waited?;
                    if quiet {
                        pause(shared, QUIET).await;
                    }
                    quiet = true;
                }
                () = tokio::time::sleep(due) => {}
                () = shared.stop.heard() => {}
            }
        } else if publishing.held {
            pause(shared, PAUSE).await;
        }
    }
}

struct Publishing<'a> {
    shared: &'a Shared,
    tenure: &'a Tenure,
    last: Checkpoint,
    acknowledged: Place,
    recent: Recent,
    /// The last places that were published, with their times, for the look back.
    trail: VecDeque<(Place, u64)>,
    /// Events of the last batch were not acknowledged: the next one sends them again.
    held: bool,
    saved_at: Instant,
    published: u64,
}

impl<'a> Publishing<'a> {
    async fn begin(shared: &'a Shared, tenure: &'a Tenure) -> Result<Self, LogError> {
        let last = shared.checkpoints.load().await?.unwrap_or_default();
        let reached = shared.sink.reached().await?.unwrap_or(last.place());
        let head = shared.source.head().await?;
        if head < last.place() {
            shared.source.falls_short(last.place(), head);
        }
        // What comes now stands where the lost events stood, and was never published.
        let acknowledged = reached.min(last.place()).min(head);
        let mut recent = Recent::new(shared.options.dedup_max);
        // What a log that was lost or set back has lost is published again.
        if acknowledged == last.place() {
            for id in &last.recent {
                recent.add_id(Arc::new(id.clone()));
            }
        }
        {
            let mut status = shared.status();
            (status.acknowledged, status.checkpointed) = (acknowledged, last.place());
            status.held_by = None;
        }
        let published = last.published;
        Ok(Self {
            shared,
            tenure,
            acknowledged,
            last,
            recent,
            trail: VecDeque::new(),
            held: false,
            saved_at: Instant::now(),
            published,
        })
    }

    /// Publishes what lies shortly before the checkpoint and is not known to be published: an
    /// entry that came late into an index of the event store.
    async fn look_back(&mut self) -> Result<(), LogError> {
        let options = &self.shared.options;
        let now = self.shared.engine.now_about().map_or(0, |now| now.0);
        let oldest =
            self.last.lookback_at.saturating_add(crate::handlers::millis(options.lookback));
        // A log that was set back has all that lies before, and is told the rest.
        let set_back = self.acknowledged < self.last.place();
        if options.lookback_max == 0 || options.lookback.is_zero() || now > oldest || set_back {
            return Ok(());
        }
        let (segment, offset) = self.last.lookback;
        let from = Place { segment, offset };
        let mut late = match self.shared.source.read_after(from, options.lookback_max).await {
            Ok(late) => late,
            // All of it is acknowledged: what comes behind need not wait until it is restored.
            Err(LogError::Damaged(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        late.retain(|(place, event)| *place <= self.acknowledged && !self.recent.has(event));
        if late.is_empty() {
            return Ok(());
        }
        self.flush(&late).await.map(drop)
    }

    /// Sends events behind the acknowledged place and moves it as far as the acknowledgements go.
    async fn send(&mut self, events: &[(Place, Event)]) -> Result<(), LogError> {
        if planted(Bug::CheckpointBeforeAck)
            && let Some((last, _)) = events.last()
        {
            self.acknowledged = *last;
            self.checkpoint(true).await?;
        }
        let again = std::mem::take(&mut self.held);
        let mut to_send = Vec::with_capacity(events.len());
        for (place, event) in events {
            if self.recent.has(event) {
                self.shared.status().spared += 1;
                continue;
            }
            let mut event = event.clone();
            if again && planted(Bug::NewIdOnResend) {
                event.event_id.push_str("-again");
            }
            to_send.push((*place, event));
        }
        if again {
            self.shared.status().resent += to_send.len() as u64;
        }
        reach(Point::BeforePublish);
        let sizes = self.shared.options.flush().max(1);
        for chunk in to_send.chunks(sizes) {
            if !self.flush(chunk).await? {
                self.held = true;
                break;
            }
        }
        // The prefix ends before the first that nobody has acknowledged.
        let mut known = Acknowledged { recent: &self.recent, sent: !self.held };
        let prefix = events.iter().take_while(|(_, event)| known.has(event));
        if let Some((last, _)) = prefix.last() {
            self.acknowledged = self.acknowledged.max(*last);
        }
        let mut status = self.shared.status();
        status.acknowledged = self.acknowledged;
        if !self.held {
            status.held_by = None;
        }
        Ok(())
    }

    /// Sends events and waits for their acknowledgements. False: at least one was not.
    async fn flush(&mut self, events: &[(Place, Event)]) -> Result<bool, LogError> {
        let options = &self.shared.options;
        let published = self.shared.sink.publish(self.tenure.fence(), events);
        let (acks, why) = match tokio::time::timeout(options.flush_timeout, published).await {
            Ok(Ok(acks)) => (acks, "it was not acknowledged".to_owned()),
            Ok(Err(error)) if error.is_retryable() => (Vec::new(), error.to_string()),
            Ok(Err(error)) => return Err(error),
            Err(_) => (Vec::new(), "its acknowledgement did not come in time".to_owned()),
        };
        let now = self.shared.engine.now_about().map_or(0, |now| now.0);
        let mut first_missing = None;
        for (index, (place, event)) in events.iter().enumerate() {
            if acks.get(index).copied().unwrap_or(false) {
                self.recent.add(event);
                self.published += 1;
                self.trail.push_back((*place, now));
            } else if first_missing.is_none() {
                first_missing = Some(event);
            }
        }
        while self.trail.len() > options.lookback_max.max(1) {
            self.trail.pop_front();
        }
        let mut status = self.shared.status();
        status.published += acks.iter().filter(|ack| **ack).count() as u64;
        if let Some(event) = first_missing {
            let Event { event_id, aggregate_id, sequence_number, .. } = event;
            let named = format!("event {event_id} ({aggregate_id:?} number {sequence_number})");
            status.held_by = Some(format!("{named}: {why}"));
            return Ok(false);
        }
        Ok(true)
    }

    /// How long until the checkpoint may be written; long when there is nothing to write.
    fn checkpoint_due(&self) -> Duration {
        if self.is_saved() {
            return Duration::from_secs(3_600);
        }
        let since = self.saved_at.elapsed();
        self.shared.options.checkpoint_every.saturating_sub(since)
    }

    /// Whether the checkpoint says how far it is, and what holds it back: whoever asks for its
    /// status in another process reads it there.
    fn is_saved(&self) -> bool {
        self.acknowledged == self.last.place() && self.shared.status().held_by == self.last.held_by
    }

    async fn checkpoint(&mut self, now: bool) -> Result<(), LogError> {
        if self.is_saved() || !(now || self.checkpoint_due().is_zero()) {
            return Ok(());
        }
        reach(Point::BeforeCheckpoint);
        let recent = self.recent.last(self.shared.options.dedup_checkpoint_max);
        // Behind this place lie the events that a successor looks at again.
        let (from, at) = self.trail.front().copied().unwrap_or((self.acknowledged, 0));
        let checkpoint = Checkpoint {
            number: self.last.number + 1,
            fence: self.tenure.fence(),
            segment: self.acknowledged.segment,
            offset: self.acknowledged.offset,
            published: self.published,
            lookback: (from.segment, from.offset),
            lookback_at: at,
            recent: recent.map(|id| (**id).clone()).collect(),
            held_by: self.shared.status().held_by.clone(),
            ..Checkpoint::default()
        };
        match self.shared.checkpoints.save(checkpoint).await? {
            Saved::Yes(saved) => self.last = saved,
            Saved::Overtaken => return Err(LogError::Overtaken),
        }
        reach(Point::AfterCheckpoint);
        self.saved_at = Instant::now();
        self.shared.status().checkpointed = self.acknowledged;
        Ok(())
    }
}

/// Which events of a batch are acknowledged.
struct Acknowledged<'a> {
    recent: &'a Recent,
    /// Everything that was sent was acknowledged: needed where no ids are remembered.
    sent: bool,
}

impl Acknowledged<'_> {
    fn has(&mut self, event: &Event) -> bool {
        self.sent || self.recent.has(event)
    }
}
