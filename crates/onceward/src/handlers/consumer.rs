//! A consumer: feeds a handler from a log, many aggregates side by side, and keeps its offset.
//!
//! Rule: an offset is committed only past events that are final in the registry, under the fence of
//! the consumer's tenure. One process consumes for a handler at a time and others stand by; what an
//! overtaken one still does is kept apart by the registry, not by the tenure.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward_core::limits::LimitError;
use tokio::task::JoinHandle;

use super::handler::{Counts, Handler};
use super::holding::{Ended, Holding};
use super::options::OnRegistryDown;
use super::spool::{Spool, SpoolError};
use super::tenure::{Asked, Tenure};
use crate::engine::EngineError;
use crate::events::Place;
use crate::relay::{Log, LogError};
use crate::worker::Stop;

/// The role of a consumer.
pub(super) const ROLE: &str = "onceward.consumer";
/// Longest pause between two tries to get the role.
const STAND_BY_MAX: Duration = Duration::from_millis(500);

/// How a consumer works.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// Events under way at once, of as many aggregates. Default: 256.
    pub concurrency: usize,
    /// Events that were read and are not final. Default: 10,000.
    pub window_max: usize,
    /// Events of one read. Default: 1,000.
    pub read_max: usize,
    /// How long the consumer's role holds without renewal. Default: 5 s.
    pub lease: Duration,
    /// How often the offset is committed at most. Default: 100 ms.
    pub commit_every: Duration,
    /// How often events that a hand sent back are looked for. Default: 1 s.
    pub retries_every: Duration,
    /// What to do while the registry gives no answer. Default: pause.
    pub on_registry_down: OnRegistryDown,
    /// Where events are put aside under [`OnRegistryDown::DeadLetter`]. Default: none.
    pub spool: Option<Spool>,
    /// Ends by itself once everything up to there is final. Default: none, it goes on for ever.
    pub until: Option<Place>,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            concurrency: 256,
            window_max: 10_000,
            read_max: 1_000,
            lease: Duration::from_secs(5),
            commit_every: Duration::from_millis(100),
            retries_every: Duration::from_secs(1),
            on_registry_down: OnRegistryDown::Pause,
            spool: None,
            until: None,
        }
    }
}

impl ConsumerOptions {
    /// Checks what goes together.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn validate(&self) -> Result<(), LimitError> {
        let sizes = [
            ("concurrency", self.concurrency),
            ("window_max", self.window_max),
            ("read_max", self.read_max),
        ];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(LimitError::new(field, 0, "at least 1"));
        }
        if self.on_registry_down == OnRegistryDown::DeadLetter && self.spool.is_none() {
            let bound = "given, because on_registry_down is dead_letter";
            return Err(LimitError::new("spool", "missing", bound));
        }
        Ok(())
    }
}

/// Why a consumer ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The registry gave no answer, or one that no waiting mends.
    #[error("the registry: {0}")]
    Registry(#[from] EngineError),
    /// The log is broken.
    #[error("the log: {0}")]
    Log(#[from] LogError),
    /// Events can't be put aside.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// An option does not fit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Its task ended without a word.
    #[error("the consumer's task ended: {0}")]
    Task(String),
}

/// How a consumer is doing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether this process has the role.
    pub active: bool,
    /// Everything up to there is final, and that is committed.
    pub place: Place,
    /// Events that became final in this process.
    pub finished: u64,
    /// Events that were read and are not final.
    pub waiting: usize,
    /// What holds the offset back, by name.
    pub held_by: Option<String>,
    /// What the store or the log last failed with, until it works again.
    pub trouble: Option<String>,
}

/// What the task and its owner share.
pub(super) struct Shared {
    pub(super) handler: Handler,
    pub(super) log: Arc<dyn Log>,
    pub(super) options: ConsumerOptions,
    pub(super) stop: Stop,
    progress: Mutex<Progress>,
}

impl Shared {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A consumer at work. Dropped, it stops; what is under way goes on.
pub struct Consumer {
    shared: Arc<Shared>,
    task: Option<JoinHandle<Result<(), ConsumerError>>>,
}

impl Consumer {
    /// Starts to consume `log` for `handler`.
    ///
    /// # Errors
    /// When the options don't fit together.
    pub fn start(
        handler: Handler,
        log: Arc<dyn Log>,
        options: ConsumerOptions,
    ) -> Result<Self, LimitError> {
        options.validate()?;
        let (stop, progress) = (Stop::default(), Mutex::default());
        let shared = Arc::new(Shared { handler, log, options, stop, progress });
        let task = tokio::spawn(run(shared.clone()));
        Ok(Self { shared, task: Some(task) })
    }

    /// Its handler.
    #[must_use]
    pub fn handler(&self) -> &Handler {
        &self.shared.handler
    }

    /// How it is doing.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.shared.progress().clone()
    }

    /// What its handler did.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.handler.counts()
    }

    /// Resolves when it has ended by itself.
    ///
    /// # Errors
    /// Why it ended, unless it has come to where it was told to end.
    pub async fn ended(&mut self) -> Result<(), ConsumerError> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let ended = task.await.unwrap_or_else(|error| Err(ConsumerError::Task(error.to_string())));
        self.task = None;
        ended
    }

    /// Reads no further, lets what runs end within this time, and commits its offset.
    ///
    /// # Errors
    /// Why it had ended before.
    pub async fn drain(mut self, within: Duration) -> Result<(), ConsumerError> {
        self.shared.stop.say();
        let Some(mut task) = self.task.take() else { return Ok(()) };
        match tokio::time::timeout(within, &mut task).await {
            Ok(ended) => ended.unwrap_or_else(|error| Err(ConsumerError::Task(error.to_string()))),
            Err(_) => {
                // What still runs elsewhere ends with its lease.
                task.abort();
                Ok(())
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.shared.stop.say();
    }
}

/// Tenure after tenure, until it is told to stop or can't go on.
async fn run(shared: Arc<Shared>) -> Result<(), ConsumerError> {
    loop {
        let Some(tenure) = tenure(&shared).await? else { return Ok(()) };
        shared.progress().active = true;
        let ended = match Holding::begin(&shared, &tenure).await {
            Ok(mut holding) => holding.run().await,
            Err(error) => Err(error),
        };
        shared.progress().active = false;
        match ended {
            Ok(Ended::Stopped) => {
                tenure.release().await;
                return Ok(());
            }
            Ok(Ended::Overtaken) => {}
            Err(error) => {
                tenure.release().await;
                if !pauses(&shared, &error) {
                    return Err(error);
                }
                trouble(&shared, &error).await;
            }
        }
    }
}

/// Waits for the role; none when it is told to stop before.
async fn tenure(shared: &Arc<Shared>) -> Result<Option<Tenure>, ConsumerError> {
    let handler = &shared.handler;
    while !shared.stop.is_said() {
        let role = (ROLE, handler.name());
        let owner = handler.options().owner.as_deref();
        let asked = Tenure::ask(handler.engine(), role, shared.options.lease, owner).await;
        match asked {
            Ok(Asked::Held(tenure)) => return Ok(Some(tenure)),
            Ok(Asked::Taken(after)) => {
                shared.progress().trouble = None;
                let pause = after.clamp(Duration::from_millis(5), STAND_BY_MAX);
                tokio::select! {
                    () = shared.stop.heard() => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
            Err(error) => {
                let error = ConsumerError::from(error);
                if !pauses(shared, &error) {
                    return Err(error);
                }
                trouble(shared, &error).await;
            }
        }
    }
    Ok(None)
}

/// Whether an error is one to wait for better times with.
fn pauses(shared: &Shared, error: &ConsumerError) -> bool {
    match error {
        ConsumerError::Registry(error) => {
            error.is_retryable() && shared.options.on_registry_down != OnRegistryDown::Fail
        }
        ConsumerError::Log(error) => error.is_retryable(),
        _ => false,
    }
}

async fn trouble(shared: &Shared, error: &ConsumerError) {
    shared.progress().trouble = Some(error.to_string());
    tokio::select! {
        () = shared.stop.heard() => {}
        () = tokio::time::sleep(STAND_BY_MAX) => {}
    }
}
