//! One tenure of a consumer: reads, hands events to the handler, commits the offset.
//!
//! Everything that waits does so beside everything else: a slow handler, a read, a commit of the
//! offset, a look for events that a hand sent back. Nothing is read past the window's bound.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use onceward_core::zoo::{Bug, planted};

use super::consumer::{ConsumerError, Shared};
use super::handler::Handled;
use super::offset::{Moved, Offset, Offsets};
use super::options::OnRegistryDown;
use super::tenure::Tenure;
use super::window::{Ticket, Window};
use crate::engine::EngineError;
use crate::events::{Event, Place};
use crate::points::{Point, reach};
use crate::relay::{Log, LogError};

/// Pauses before an event is tried again that waits for a lower number, for someone else, for the
/// store, or for a hand.
const GAP_PAUSE: Duration = Duration::from_millis(50);
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
const DOWN_PAUSE: Duration = Duration::from_millis(200);
const BLOCKED_PAUSE: Duration = Duration::from_secs(1);
/// How many times a handler that takes many events together is at it at once: while some are
/// committed, others are made ready, and what waits meanwhile goes together.
const HAND_OVERS: usize = 2;
/// Pause before a log that gave no answer is read again.
const READ_PAUSE: Duration = Duration::from_millis(200);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// An event that was handed to the handler, and what became of it.
type Ran = (Ticket, Result<Handled, EngineError>);
type Read = Result<Vec<(Place, Event)>, LogError>;

/// How a tenure ended.
pub(super) enum Ended {
    /// As it was told.
    Stopped,
    /// Someone else has the role.
    Overtaken,
}

/// A tenure under way.
pub(super) struct Holding<'a> {
    shared: &'a Arc<Shared>,
    tenure: &'a Tenure,
    offsets: Offsets,
    window: Window,
    read_to: Place,
    events_before: u64,
    running: FuturesUnordered<Boxed<Vec<Ran>>>,
    reading: Option<Boxed<Read>>,
    moving: Option<Boxed<Result<Moved, EngineError>>>,
    retrying: Option<Boxed<Result<usize, EngineError>>>,
    moved_at: Instant,
    retried_at: Instant,
    /// Tickets of events that came from the spool, and whether there is more in it.
    spooled: HashSet<Ticket>,
    spool_waits: bool,
    spool_tried_at: Option<Instant>,
    stopping: bool,
}

/// What happened while everything was waited for.
enum Turn {
    Stop,
    Lost,
    Ran(Vec<Ran>),
    Read(Read),
    Moved(Result<Moved, EngineError>),
    Retried,
    Time,
}

impl<'a> Holding<'a> {
    pub(super) async fn begin(
        shared: &'a Arc<Shared>,
        tenure: &'a Tenure,
    ) -> Result<Self, ConsumerError> {
        let handler = &shared.handler;
        let offsets = Offsets::load(handler.engine(), handler.name()).await?;
        let read_to = offsets.now.place();
        let spool_waits = shared.options.spool.as_ref().is_some_and(|spool| !spool.is_empty());
        {
            let mut progress = shared.progress();
            progress.place = read_to;
            progress.trouble = None;
        }
        let now = Instant::now();
        Ok(Self {
            shared,
            tenure,
            events_before: offsets.now.events,
            offsets,
            window: Window::default(),
            read_to,
            running: FuturesUnordered::new(),
            reading: None,
            moving: None,
            retrying: None,
            moved_at: now,
            // The first look is at once: a hand may have decided while nobody consumed.
            retried_at: now.checked_sub(shared.options.retries_every).unwrap_or(now),
            spooled: HashSet::new(),
            spool_waits,
            spool_tried_at: None,
            stopping: false,
        })
    }

    pub(super) async fn run(&mut self) -> Result<Ended, ConsumerError> {
        let keep = self.tenure.keep();
        tokio::pin!(keep);
        loop {
            self.take_in_spool().await?;
            let wake_at = self.set_going();
            self.tell();
            if self.stopping && self.running.is_empty() && self.moving.is_none() {
                return Ok(Ended::Stopped);
            }
            let turn = tokio::select! {
                () = self.shared.stop.heard(), if !self.stopping => Turn::Stop,
                () = &mut keep => Turn::Lost,
                Some(ran) = self.running.next(), if !self.running.is_empty() => Turn::Ran(ran),
                read = waited(&mut self.reading), if self.reading.is_some() => Turn::Read(read),
                moved = waited(&mut self.moving), if self.moving.is_some() => Turn::Moved(moved),
                _ = waited(&mut self.retrying), if self.retrying.is_some() => Turn::Retried,
                () = tokio::time::sleep_until(wake_at.into()) => Turn::Time,
            };
            match turn {
                Turn::Stop => self.stopping = true,
                Turn::Lost => {
                    self.let_go();
                    return Ok(Ended::Overtaken);
                }
                Turn::Ran(all) => {
                    for (ticket, handled) in all {
                        self.ran(ticket, handled).await?;
                    }
                }
                Turn::Read(read) => self.read(read)?,
                Turn::Moved(moved) => {
                    if !self.moved(moved)? {
                        self.let_go();
                        return Ok(Ended::Overtaken);
                    }
                }
                Turn::Retried => self.retrying = None,
                Turn::Time => {}
            }
        }
    }

    /// Starts whatever may start; says when time alone is worth a look.
    fn set_going(&mut self) -> Instant {
        let now = Instant::now();
        let options = &self.shared.options;
        let mut wake_at = now + options.commit_every.max(Duration::from_millis(10));
        if let Some(until) = options.until
            && self.offsets.now.place() >= until
        {
            self.stopping = true;
        }
        if let Some(at) = self.window.wake(now) {
            wake_at = wake_at.min(at);
        }
        while !self.stopping && self.hand_over() {}
        if self.reading.is_none() && !self.stopping && self.window.len() < options.window_max {
            let (log, after, most) = (self.shared.log.clone(), self.read_to, options.read_max);
            self.reading = Some(Box::pin(async move { read(&*log, after, most).await }));
        }
        if self.retrying.is_none()
            && !self.stopping
            && now.duration_since(self.retried_at) >= options.retries_every
        {
            self.retried_at = now;
            let handler = self.shared.handler.clone();
            self.retrying = Some(Box::pin(async move { handler.run_retries().await }));
        }
        self.move_offset(now);
        wake_at
    }

    /// Hands the next events to the handler. False: there are none, or enough are under way.
    fn hand_over(&mut self) -> bool {
        let concurrency = self.shared.options.concurrency;
        let (at_once, each) = if self.shared.handler.takes_many() {
            (HAND_OVERS, concurrency.div_ceil(HAND_OVERS))
        } else {
            (concurrency, 1)
        };
        if self.running.len() >= at_once {
            return false;
        }
        let (mut tickets, mut events) = (Vec::new(), Vec::new());
        while events.len() < each
            && let Some((ticket, event)) = self.window.next()
        {
            tickets.push(ticket);
            events.push(event);
        }
        if events.is_empty() {
            return false;
        }
        let handler = self.shared.handler.clone();
        self.running.push(Box::pin(async move {
            let ended = handler.handle_many(events).await;
            tickets.into_iter().zip(ended).collect()
        }));
        true
    }

    /// Commits the offset when there is something to say and it is time, or the end.
    fn move_offset(&mut self, now: Instant) {
        let early = now.duration_since(self.moved_at) < self.shared.options.commit_every;
        let at_end = self.stopping && self.running.is_empty();
        let reached =
            self.shared.options.until.is_some_and(|until| {
                self.window.frontier().is_some_and(|frontier| frontier >= until)
            });
        if self.moving.is_some() || (early && !at_end && !reached) {
            return;
        }
        let mut place = self.window.frontier().unwrap_or(self.offsets.now.place());
        if planted(Bug::CheckpointBeforeView) {
            place = self.read_to;
        }
        let to = Offset::at(
            place.max(self.offsets.now.place()),
            self.events_before + self.window.passed(),
            self.window.held_by(),
        );
        if to.place() == self.offsets.now.place() && to.held_by == self.offsets.now.held_by {
            return;
        }
        reach(Point::BeforeOffset);
        self.moved_at = now;
        self.moving = Some(Box::pin(self.offsets.moving(self.tenure, to)));
    }

    fn moved(&mut self, moved: Result<Moved, EngineError>) -> Result<bool, ConsumerError> {
        self.moving = None;
        match moved {
            Ok(Moved::To(offset)) => {
                self.shared.progress().place = offset.place();
                self.offsets.moved(offset);
                Ok(true)
            }
            Ok(Moved::Overtaken) => Ok(false),
            // Told to stop, it has tried; the events behind the offset are known when they come
            // again.
            Err(error) if error.is_retryable() && self.stopping => Err(error.into()),
            Err(error) if error.is_retryable() && !self.fails() => {
                self.moved_at = Instant::now() + DOWN_PAUSE;
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read(&mut self, read: Read) -> Result<(), ConsumerError> {
        self.reading = None;
        let events = read?;
        for (place, event) in events {
            self.read_to = self.read_to.max(place);
            self.window.add(Some(place), Arc::new(event));
        }
        Ok(())
    }

    async fn ran(
        &mut self,
        ticket: Ticket,
        handled: Result<Handled, EngineError>,
    ) -> Result<(), ConsumerError> {
        let now = Instant::now();
        let handled = match handled {
            Ok(handled) => handled,
            Err(error) => return self.down(ticket, error).await,
        };
        self.shared.progress().trouble = None;
        let (pause, waits) = match &handled {
            handled if handled.is_final() => {
                self.window.finish(ticket);
                if self.spooled.remove(&ticket) && self.spooled.is_empty() && !self.spool_waits {
                    return self.clear_spool().await;
                }
                return Ok(());
            }
            Handled::Gap { current } => {
                (GAP_PAUSE, format!("waits for number {}", current.saturating_add(1)))
            }
            Handled::Failed { error, retry_after } => {
                (*retry_after, format!("failed and is tried again: {error}"))
            }
            Handled::Dead { error, .. } => {
                (BLOCKED_PAUSE, format!("is dead and its aggregate waits: {error}"))
            }
            Handled::Busy { retry_after } => {
                let (least, most) = BUSY_PAUSE;
                ((*retry_after).clamp(least, most), "is with someone else, or not due yet".into())
            }
            _ => return Ok(()),
        };
        self.window.again(ticket, now + pause, waits);
        Ok(())
    }

    /// The registry gave no answer to an event.
    async fn down(&mut self, ticket: Ticket, error: EngineError) -> Result<(), ConsumerError> {
        if !error.is_retryable() || self.fails() {
            return Err(error.into());
        }
        self.shared.progress().trouble = Some(error.to_string());
        let spool = self.shared.options.spool.as_ref();
        let aside = self.shared.options.on_registry_down == OnRegistryDown::DeadLetter;
        if let (true, Some(spool)) = (aside, spool)
            && !self.spooled.contains(&ticket)
            && let Some(event) = self.window.event(ticket)
        {
            spool.put(event).await?;
            self.spool_waits = true;
            self.window.finish(ticket);
            return Ok(());
        }
        let waits = format!("waits for the registry: {error}");
        self.window.again(ticket, Instant::now() + DOWN_PAUSE, waits);
        Ok(())
    }

    /// Takes events that were put aside into the window, once the registry answers again.
    async fn take_in_spool(&mut self) -> Result<(), ConsumerError> {
        let Some(spool) = self.shared.options.spool.as_ref() else { return Ok(()) };
        if !self.spool_waits || !self.spooled.is_empty() || self.stopping {
            return Ok(());
        }
        let lately = |at: Instant| at.elapsed() < DOWN_PAUSE;
        if self.spool_tried_at.is_some_and(lately) {
            return Ok(());
        }
        self.spool_tried_at = Some(Instant::now());
        if self.shared.handler.engine().now().await.is_err() {
            return Ok(());
        }
        self.spool_tried_at = None;
        for event in spool.events().await? {
            let ticket = self.window.add(None, Arc::new(event));
            self.spooled.insert(ticket);
        }
        self.spool_waits = false;
        Ok(())
    }

    async fn clear_spool(&mut self) -> Result<(), ConsumerError> {
        if let Some(spool) = &self.shared.options.spool {
            spool.clear().await?;
        }
        Ok(())
    }

    fn fails(&self) -> bool {
        self.shared.options.on_registry_down == OnRegistryDown::Fail
    }

    /// What is under way goes on by itself: the registry keeps it apart from whoever comes next.
    fn let_go(&mut self) {
        let mut running = std::mem::take(&mut self.running);
        tokio::spawn(async move { while running.next().await.is_some() {} });
    }

    fn tell(&self) {
        let mut progress = self.shared.progress();
        progress.finished = self.window.finished();
        progress.waiting = self.window.len();
        progress.held_by = self.window.held_by();
    }
}

/// Waits for what is there, and takes it away when it has ended.
async fn waited<T>(slot: &mut Option<Boxed<T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// The next events of a log, as soon as there are some.
async fn read(log: &dyn Log, after: Place, most: usize) -> Read {
    loop {
        let answer = match log.read_after(after, most).await {
            Ok(events) if !events.is_empty() => return Ok(events),
            Ok(_) => log.wait_after(after).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => {}
            Err(error) if error.is_retryable() => tokio::time::sleep(READ_PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}
