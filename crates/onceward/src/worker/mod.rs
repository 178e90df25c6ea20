//! The worker: takes due jobs, runs your handlers, renews leases, and records how each ended.
//!
//! ```
//! use onceward::engine::Engine;
//! use onceward::worker::{Context, Done, Job, JobError, Worker};
//!
//! # async fn example(engine: Engine) -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder(engine.clone())
//!     .queue("mail")
//!     .handler(|job: Context| async move {
//!         // Exact: what is handed back commits together with the job's end, or not at all.
//!         let sent = job.read("mail.sent", &job.resource()).await?;
//!         let mut done = Done::new();
//!         done.put(&sent, job.payload().clone())?;
//!         Ok::<_, JobError>(done)
//!     })
//!     .start()?;
//!
//! engine.enqueue(&Job::new("acme", "mail", "welcome").resource("user/7@1").build()?).await?;
//! worker.drain(std::time::Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
//!
//! Rule: delivery is at least once, the record of it exactly once. Effects in our store are exact
//! when the handler hands them back; effects elsewhere happen at least once, each further one under
//! a higher [`fence`](Context::fence) and with the same [`effect_key`](Context::effect_key).

mod builder;
mod context;
mod done;
mod event;
mod job;
mod keeper;
pub(crate) mod lease;
mod limits;
mod run;
mod schedule;
mod taker;

pub use builder::{Builder, WorkerError};
pub use context::Context;
pub use done::{Done, JobError, Probe};
pub use event::{Counts, Event, Happened, Step};
pub use job::{Job, job_key};
pub use lease::{Cut, LeaseLost};
pub use schedule::SCHEDULE_QUEUE;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::engine::Engine;
use event::Observer;
use keeper::Keeper;
use lease::Cut as Why;

/// How long handlers that were cut at the end of a drain have to be recorded as such.
const CUT_WITHIN: Duration = Duration::from_secs(5);

/// A worker at work. Dropped, it takes no further jobs; those that run go on.
#[derive(Debug)]
pub struct Worker {
    core: Arc<Core>,
    takers: Vec<JoinHandle<()>>,
}

/// What all queues of a worker share.
#[derive(Debug)]
pub(crate) struct Core {
    engine: Engine,
    owner: String,
    keeper: Arc<Keeper>,
    observer: Observer,
    stop: Stop,
    running: AtomicUsize,
    idle: Notify,
}

/// Tells everyone that no further job is taken.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    said: AtomicBool,
    bell: Notify,
}

impl Stop {
    pub(crate) fn say(&self) {
        self.said.store(true, Ordering::SeqCst);
        self.bell.notify_waiters();
    }

    pub(crate) fn is_said(&self) -> bool {
        self.said.load(Ordering::SeqCst)
    }

    pub(crate) async fn heard(&self) {
        let bell = self.bell.notified();
        tokio::pin!(bell);
        bell.as_mut().enable();
        if !self.is_said() {
            bell.await;
        }
    }
}

/// What a drain came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Handlers that did not end in time and were cut; their jobs are tried again elsewhere.
    pub cut: usize,
}

impl Worker {
    /// Describes a worker on this engine.
    pub fn builder(engine: Engine) -> Builder {
        Builder::new(engine)
    }

    /// How many jobs run now.
    #[must_use]
    pub fn running(&self) -> usize {
        self.core.running.load(Ordering::SeqCst)
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.observer.counts()
    }

    /// Takes no further jobs and waits up to `within` for those that run. Then handlers are cut,
    /// and their jobs are handed on as attempts of which nobody knows how they ended.
    pub async fn drain(mut self, within: Duration) -> Drained {
        self.core.stop.say();
        for taker in self.takers.drain(..) {
            // A taker ends between takes, and what the last one got runs.
            let _ = taker.await;
        }
        if tokio::time::timeout(within, self.core.idled()).await.is_ok() {
            return Drained { cut: 0 };
        }
        let cut = self.core.keeper.cut_all(Why::Drained);
        let _ = tokio::time::timeout(CUT_WITHIN, self.core.idled()).await;
        Drained { cut }
    }

    /// Takes no further jobs, without waiting for those that run.
    pub fn stop(&self) {
        self.core.stop.say();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.core.stop.say();
    }
}

impl Core {
    /// Resolves when no job runs.
    async fn idled(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    fn started(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    fn ended(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_waiters();
        }
    }
}
