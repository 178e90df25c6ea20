//! A projection: a fold, a view and its generations, kept up to date, rebuilt and swapped.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward_core::limits::LimitError;

use super::fold::{Fold, Folded};
use super::generation::{self, Generation};
use super::view::{View, ViewError};
use crate::engine::{Engine, EngineError};
use crate::events::{Event, Place};
use crate::handlers::{
    Consumer, ConsumerError, ConsumerOptions, Handler, HandlerError, HandlerOptions, Progress,
    read_offset,
};
use crate::relay::{Log, LogError};

/// How often a projection looks whether another generation was swapped in.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long what is under way may take when a generation is let go.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// A rebuild is swapped in once it has caught up within this time: what came meanwhile follows.
const CLOSE: Duration = Duration::from_millis(500);
/// Pause between two tellings of how far a rebuild is.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Why a projection could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// The engine gave no answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The view gave no answer.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The log gave no answer.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Its consumer ended.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// A name or an option does not fit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Another rebuild was swapped in meanwhile.
    #[error("another rebuild has swapped in generation {live} meanwhile")]
    Overtaken {
        /// The live one.
        live: u64,
    },
}

/// A projection. Cheap to clone.
#[derive(Clone)]
pub struct Projection {
    pub(super) engine: Engine,
    pub(super) name: String,
    pub(super) view: Arc<dyn View>,
    pub(super) fold: Arc<dyn Fold>,
    options: HandlerOptions,
}

/// What a rebuild came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilt {
    /// The generation that is live now.
    pub generation: u64,
    /// Events that it was made from.
    pub events: u64,
}

impl Projection {
    /// A projection of this name.
    pub fn new(
        engine: Engine,
        name: impl Into<String>,
        view: Arc<dyn View>,
        fold: impl Fold,
        options: HandlerOptions,
    ) -> Self {
        Self { engine, name: name.into(), view, fold: Arc::new(fold), options }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name under which a generation is registered: `search@7`.
    #[must_use]
    pub fn handler_name(&self, generation: u64) -> String {
        format!("{}@{generation}", self.name)
    }

    /// Its generations.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn generation(&self) -> Result<Generation, EngineError> {
        generation::read(&self.engine, &self.name).await
    }

    /// How far the live generation has come.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn place(&self) -> Result<Place, EngineError> {
        let name = self.handler_name(self.generation().await?.live);
        Ok(read_offset(&self.engine, &name).await?.map_or(Place::default(), |o| o.place()))
    }

    /// The handler of a generation, ready to be fed.
    ///
    /// # Errors
    /// When the view can't be made ready.
    pub async fn handler(&self, generation: u64) -> Result<Handler, ProjectionError> {
        self.handler_of(generation, self.fold.clone()).await
    }

    async fn handler_of(
        &self,
        generation: u64,
        fold: Arc<dyn Fold>,
    ) -> Result<Handler, ProjectionError> {
        self.view.prepare(generation).await?;
        let work = self.view.work(generation, fold);
        let name = self.handler_name(generation);
        let options = HandlerOptions { audited: false, ..self.options.clone() };
        Ok(Handler::new(self.engine.clone(), name, options, work)?)
    }

    /// Keeps the live generation up to date, and follows when another is swapped in.
    #[must_use]
    pub fn start(&self, log: Arc<dyn Log>, options: ConsumerOptions) -> Projecting {
        let stop = Arc::new(crate::worker::Stop::default());
        let now = Arc::new(Mutex::new((0, Progress::default())));
        let (projection, heard, told) = (self.clone(), stop.clone(), now.clone());
        let task =
            tokio::spawn(async move { projection.follow(log, options, &heard, &told).await });
        Projecting { stop, now, task: Some(task) }
    }

    async fn follow(
        &self,
        log: Arc<dyn Log>,
        options: ConsumerOptions,
        stop: &crate::worker::Stop,
        now: &Mutex<(u64, Progress)>,
    ) -> Result<(), ProjectionError> {
        while !stop.is_said() {
            let generation = match self.generation().await {
                Ok(generation) => generation.live,
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let handler = match self.handler(generation).await {
                Ok(handler) => handler,
                Err(ProjectionError::View(ViewError::Unavailable(_))) => {
                    tokio::time::sleep(LOOK_EVERY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut consumer = Consumer::start(handler, log.clone(), options.clone())?;
            loop {
                *now.lock().unwrap_or_else(PoisonError::into_inner) =
                    (generation, consumer.progress());
                tokio::select! {
                    ended = consumer.ended() => return Ok(ended?),
                    () = stop.heard() => break,
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
                // Without an answer it goes on with what it has.
                if self.generation().await.is_ok_and(|now| now.live != generation) {
                    break;
                }
            }
            consumer.drain(DRAIN_WITHIN).await?;
        }
        Ok(())
    }

    /// Makes the next generation from zero and swaps it in. The one before the last is dropped: a
    /// reader of the last may still be at it. `tell` hears how far it is.
    ///
    /// # Errors
    /// When something gives no answer, or another rebuild was faster.
    pub async fn rebuild(
        &self,
        log: Arc<dyn Log>,
        options: ConsumerOptions,
        mut tell: impl FnMut(&Progress, Place),
    ) -> Result<Rebuilt, ProjectionError> {
        let begun = generation::change(&self.engine, &self.name, |now| {
            Some(Generation { made: now.made.max(now.live) + 1, ..now })
        });
        let Some(begun) = begun.await? else { return Err(ProjectionError::Overtaken { live: 0 }) };
        let tenants = Arc::new(Noting { fold: self.fold.clone(), seen: Mutex::default() });
        let handler = self.handler_of(begun.made, tenants.clone()).await?;
        let mut events = 0;
        // What comes in meanwhile is caught up with, until there is next to nothing left: writers
        // who never rest would keep it from its end.
        let mut end = log.end().await?;
        loop {
            let begun_at = Instant::now();
            let options = ConsumerOptions { until: Some(end), ..options.clone() };
            let mut consumer = Consumer::start(handler.clone(), log.clone(), options)?;
            loop {
                let ended = tokio::select! {
                    ended = consumer.ended() => Some(ended),
                    () = tokio::time::sleep(TELL_EVERY) => None,
                };
                tell(&consumer.progress(), end);
                if let Some(ended) = ended {
                    ended?;
                    break;
                }
            }
            events += consumer.progress().finished;
            let now = log.end().await?;
            if now == end || begun_at.elapsed() < CLOSE {
                break;
            }
            end = now;
        }
        let swapped = generation::change(&self.engine, &self.name, |now| {
            (now.live == begun.live).then_some(Generation { live: begun.made, ..now })
        });
        if swapped.await?.is_none() {
            let live = self.generation().await?.live;
            return Err(ProjectionError::Overtaken { live });
        }
        let tenants = tenants.tenants();
        for old in (1..begun.live).rev().take(4) {
            self.view.clear(old, &tenants).await?;
        }
        Ok(Rebuilt { generation: begun.made, events })
    }
}

/// A fold that notes whose events it saw.
struct Noting {
    fold: Arc<dyn Fold>,
    seen: Mutex<BTreeSet<String>>,
}

impl Noting {
    fn tenants(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Fold for Noting {
    fn fold(&self, event: &Event, before: Option<&[u8]>) -> Result<Folded, HandlerError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.contains(&event.tenant) {
            seen.insert(event.tenant.clone());
        }
        drop(seen);
        self.fold.fold(event, before)
    }
}

/// A projection at work. Dropped, it stops.
pub struct Projecting {
    stop: Arc<crate::worker::Stop>,
    now: Arc<Mutex<(u64, Progress)>>,
    task: Option<tokio::task::JoinHandle<Result<(), ProjectionError>>>,
}

impl Projecting {
    /// The generation that it keeps, and how that is doing.
    #[must_use]
    pub fn progress(&self) -> (u64, Progress) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resolves when it has ended by itself.
    ///
    /// # Errors
    /// Why.
    pub async fn ended(&mut self) -> Result<(), ProjectionError> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let ended = task.await;
        self.task = None;
        ended.unwrap_or_else(|error| Err(ConsumerError::Task(error.to_string()).into()))
    }

    /// Ends what it is at and commits its offset.
    ///
    /// # Errors
    /// Why it had ended before.
    pub async fn drain(mut self) -> Result<(), ProjectionError> {
        self.stop.say();
        self.ended().await
    }
}

impl Drop for Projecting {
    fn drop(&mut self) {
        self.stop.say();
    }
}
