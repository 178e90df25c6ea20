//! Describing a worker: queues, handlers, limits.
//!
//! Settings after [`Builder::queue`] hold for that queue. What does not fit together is said by
//! [`Builder::start`], never by a panic.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt;
use onceward_core::key::{Key, check_part};
use onceward_core::limits::{LimitError, MAX_LEASE_MS, MIN_LEASE_MS, in_range};
use onceward_core::retry::{Backoff, JOB_BACKOFF};
use tokio::sync::Notify;

use super::context::Context;
use super::done::{Done, JobError, Probe};
use super::event::{Event, Listener, Observer};
use super::keeper::Keeper;
use super::limits::{Limits, PerKey};
use super::schedule::{self, Recurring};
use super::taker::{Handler, Prober, Queue};
use super::{Core, Stop, Worker};
use crate::engine::{Engine, random_u64};

/// Jobs of a queue that run at once, unless told otherwise.
const CONCURRENCY: usize = 64;
/// Jobs of one take, unless told otherwise.
const TAKE_MAX: usize = 512;

/// Why a worker can't start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A setting came before the first queue, or there is no queue.
    #[error("a worker needs a queue first: call .queue(\"name\") before its settings")]
    NoQueue,
    /// A queue has no handler.
    #[error("queue {0:?} has no handler: call .handler(…) after .queue(…)")]
    NoHandler(String),
    /// A queue was named twice.
    #[error("queue {0:?} was named twice")]
    Twice(String),
    /// A setting breaks its bound.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// A worker to be started.
#[must_use = "a worker does nothing before it is started"]
pub struct Builder {
    engine: Engine,
    owner: String,
    queues: Vec<Settings>,
    recurring: Vec<Recurring>,
    listeners: Vec<Listener>,
    misplaced: bool,
}

pub(super) struct Settings {
    name: String,
    any: Option<Handler>,
    of_type: HashMap<String, Handler>,
    probe: Option<Prober>,
    concurrency: usize,
    per_key: Vec<PerKey>,
    take_max: usize,
    lease_ms: Option<u64>,
    time_limit: Option<Duration>,
    backoff: Backoff,
}

impl Settings {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            any: None,
            of_type: HashMap::new(),
            probe: None,
            concurrency: CONCURRENCY,
            per_key: Vec::new(),
            take_max: TAKE_MAX,
            lease_ms: None,
            time_limit: None,
            backoff: JOB_BACKOFF,
        }
    }
}

impl Builder {
    pub(super) fn new(engine: Engine) -> Self {
        let owner = format!("worker {} {:08x}", std::process::id(), random_u64() as u32);
        Self {
            engine,
            owner,
            queues: Vec::new(),
            recurring: Vec::new(),
            listeners: Vec::new(),
            misplaced: false,
        }
    }

    /// Who takes, for people to read. Default: the process id and a random part.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Takes jobs of this queue; the settings that follow are its own.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queues.push(Settings::new(name.into()));
        self
    }

    /// Runs the queue's jobs, of every type that has no handler of its own.
    ///
    /// The handler returns what is to be written, or why it failed. It may run more than once: when
    /// an attempt fails or its worker vanishes, and when others write the documents that it writes.
    pub fn handler<F, R, D>(self, handler: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, JobError>> + Send + 'static,
        D: Into<Done>,
    {
        self.with(|queue| queue.any = Some(boxed(handler)))
    }

    /// Runs the queue's jobs of one type. Without [`Builder::handler`], types that no handler knows
    /// are left to other workers.
    pub fn handler_of<F, R, D>(self, job_type: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, JobError>> + Send + 'static,
        D: Into<Done>,
    {
        self.with(|queue| drop(queue.of_type.insert(job_type.into(), boxed(handler))))
    }

    /// Asked before a job is tried again: did the effect of an earlier attempt happen? For effects
    /// elsewhere that can be looked up but not made idempotent.
    pub fn probe<F, R>(self, probe: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Probe, JobError>> + Send + 'static,
    {
        self.with(|queue| queue.probe = Some(Arc::new(move |context| probe(context).boxed())))
    }

    /// How many of the queue's jobs run at once in this worker. Default: 64.
    pub fn concurrency(self, max: usize) -> Self {
        self.with(|queue| queue.concurrency = max)
    }

    /// How many jobs of one tenant run at once in this worker. Default: no bound.
    pub fn concurrency_per_tenant(self, max: usize) -> Self {
        self.concurrency_per(max, |key| key.tenant().into_owned())
    }

    /// How many jobs that `by` gives the same name run at once in this worker.
    pub fn concurrency_per<F>(self, max: usize, by: F) -> Self
    where
        F: Fn(&Key) -> String + Send + Sync + 'static,
    {
        self.with(|queue| queue.per_key.push(PerKey { max, by: Arc::new(by) }))
    }

    /// How many jobs are taken at once, at most. Default: 512.
    pub fn take_max(self, max: usize) -> Self {
        self.with(|queue| queue.take_max = max)
    }

    /// How long a job is held without renewal. Default: as the job's own terms say, 30 s.
    pub fn lease(self, lease: Duration) -> Self {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.with(|queue| queue.lease_ms = Some(lease_ms))
    }

    /// How long a handler may run before it is cut and counted as failed. Default: no bound.
    pub fn time_limit(self, limit: Duration) -> Self {
        self.with(|queue| queue.time_limit = Some(limit))
    }

    /// When a failed job is tried again; how often is for the job's own terms to say. Default: from
    /// 1 s, doubling, jitter up to 50 % (A20).
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.with(|queue| queue.backoff = backoff)
    }

    /// Runs something again and again: once per period among all processes on this store, at its
    /// start or as soon as a worker is there. Periods that passed while nobody was there are not
    /// made up for. Each run is a job of the queue [`SCHEDULE_QUEUE`](super::SCHEDULE_QUEUE), with
    /// its retries and its audit entries.
    pub fn every<F, R, D>(mut self, period: Duration, name: impl Into<String>, run: F) -> Self
    where
        F: Fn(Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, JobError>> + Send + 'static,
        D: Into<Done>,
    {
        self.recurring.push(Recurring { name: name.into(), period, run: boxed(run) });
        self
    }

    /// Hears what the worker does; called in line, so be quick.
    pub fn on_event(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listeners.push(Arc::new(listener));
        self
    }

    /// Starts taking and running. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the settings don't fit together.
    pub fn start(mut self) -> Result<Worker, WorkerError> {
        let recurring = std::mem::take(&mut self.recurring);
        if !recurring.is_empty() {
            let mut settings = Settings::new(schedule::SCHEDULE_QUEUE.into());
            let handlers = recurring.iter().map(|each| (each.name.clone(), each.run.clone()));
            settings.of_type = handlers.collect();
            self.queues.push(settings);
        }
        self.validate(&recurring)?;
        let observer = Observer::new(self.listeners);
        let core = Arc::new(Core {
            engine: self.engine,
            owner: self.owner,
            keeper: Arc::new(Keeper::new()),
            observer,
            stop: Stop::default(),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
        });
        let weak = Arc::downgrade(&core.keeper);
        tokio::spawn(Keeper::run(weak, core.engine.clone(), core.observer.clone()));
        let mut takers = Vec::new();
        for settings in self.queues {
            let queue = Arc::new(settings.into_queue(core.clone()));
            takers.push(tokio::spawn(queue.run()));
        }
        for each in recurring {
            takers.push(tokio::spawn(schedule::enqueue_each(core.clone(), each)));
        }
        Ok(Worker { core, takers })
    }

    fn validate(&self, recurring: &[Recurring]) -> Result<(), WorkerError> {
        if self.misplaced || self.queues.is_empty() {
            return Err(WorkerError::NoQueue);
        }
        check_part("owner", &self.owner, 1)?;
        for (index, queue) in self.queues.iter().enumerate() {
            check_part("queue", &queue.name, 1)?;
            if self.queues[..index].iter().any(|other| other.name == queue.name) {
                return Err(WorkerError::Twice(queue.name.clone()));
            }
            if queue.any.is_none() && queue.of_type.is_empty() {
                return Err(WorkerError::NoHandler(queue.name.clone()));
            }
            if let Some(lease_ms) = queue.lease_ms {
                in_range("lease", lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)?;
            }
            let most = u64::MAX;
            in_range("concurrency", queue.concurrency as u64, 1, most)?;
            in_range("take_max", queue.take_max as u64, 1, most)?;
            for per in &queue.per_key {
                in_range("concurrency_per", per.max as u64, 1, most)?;
            }
        }
        recurring.iter().try_for_each(Recurring::validate)?;
        Ok(())
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        match self.queues.last_mut() {
            Some(queue) => set(queue),
            None => self.misplaced = true,
        }
        self
    }
}

impl Settings {
    fn into_queue(self, core: Arc<Core>) -> Queue {
        Queue {
            core,
            name: self.name,
            any: self.any,
            of_type: self.of_type,
            probe: self.probe,
            limits: Arc::new(Limits::new(self.concurrency, self.per_key)),
            take_max: self.take_max,
            lease_ms: self.lease_ms,
            time_limit: self.time_limit,
            backoff: self.backoff,
        }
    }
}

fn boxed<F, R, D>(handler: F) -> Handler
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<D, JobError>> + Send + 'static,
    D: Into<Done>,
{
    Arc::new(move |context| handler(context).map(|done| done.map(Into::into)).boxed())
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.queues.iter().map(|queue| queue.name.as_str()).collect();
        f.debug_struct("Builder").field("queues", &names).finish_non_exhaustive()
    }
}
