//! The loop of one queue: a free place, a job that is due, a task that runs it.
//!
//! Jobs are taken many at a time, as many as there are places. Within the process an enqueue wakes
//! the loop at once; other processes' jobs, and those that fall due, are found by looking, less and
//! less often while there are none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use onceward_core::key::Key;
use onceward_core::record::Record;
use onceward_core::retry::Backoff;

use super::Core;
use super::context::Context;
use super::done::{Done, JobError, Probe};
use super::limits::{Limits, Places};
use super::run;
use crate::engine::{Picker, Take};
use crate::store::clock::boot_ms;

/// How long one take waits for a job before it starts over.
const WAIT: Duration = Duration::from_secs(2);
/// First and longest pause after the store gave no answer.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a take waits for more places while few are free: those that run may end in a moment,
/// and a look at the queue costs the same for one job as for many.
const PATIENCE: Duration = Duration::from_millis(2);

pub(super) type Handler =
    Arc<dyn Fn(Context) -> BoxFuture<'static, Result<Done, JobError>> + Send + Sync>;
pub(super) type Prober =
    Arc<dyn Fn(Context) -> BoxFuture<'static, Result<Probe, JobError>> + Send + Sync>;

/// One queue of a worker.
pub(super) struct Queue {
    pub(super) core: Arc<Core>,
    pub(super) name: String,
    pub(super) any: Option<Handler>,
    pub(super) of_type: HashMap<String, Handler>,
    pub(super) probe: Option<Prober>,
    pub(super) limits: Arc<Limits>,
    pub(super) take_max: usize,
    pub(super) lease_ms: Option<u64>,
    pub(super) time_limit: Option<Duration>,
    pub(super) backoff: Backoff,
}

impl Queue {
    /// The handler of a job's type.
    pub(super) fn handler(&self, job_type: &str) -> Option<&Handler> {
        self.of_type.get(job_type).or(self.any.as_ref())
    }

    /// Whether a job is for this worker: others may know its type.
    fn knows(&self, job: &Record) -> bool {
        self.any.is_some()
            || job.key.within_parts().next().is_some_and(|of| self.of_type.contains_key(&*of))
    }

    /// Takes and runs until told to stop.
    pub(super) async fn run(self: Arc<Self>) {
        let mut pause = PAUSE_FIRST;
        while !self.core.stop.is_said() {
            let freed = self.limits.freed();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.limits.free() == 0 {
                tokio::select! {
                    () = freed => {}
                    () = self.core.stop.heard() => {}
                }
                continue;
            }
            self.more_places().await;
            // A place that is freed may let a job in that its own limit kept back.
            let keyed = self.limits.is_keyed() && self.limits.free() < self.limits.max();
            let stop = async {
                tokio::select! {
                    () = self.core.stop.heard() => {}
                    () = freed, if keyed => {}
                }
            };
            match self.take(stop).await {
                Ok(()) => pause = PAUSE_FIRST,
                Err(_) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                        () = self.core.stop.heard() => {}
                    }
                }
            }
        }
    }

    /// Waits a moment for more places, if few are free.
    async fn more_places(&self) {
        let worth_a_look = self.limits.max().min(self.take_max) / 2;
        let freed = async {
            loop {
                let freed = self.limits.freed();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if self.limits.free() >= worth_a_look {
                    return;
                }
                freed.await;
            }
        };
        // What is free by then will do.
        let _ = tokio::time::timeout(PATIENCE, freed).await;
    }

    async fn take(
        self: &Arc<Self>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), crate::engine::EngineError> {
        let take = Take {
            queue: self.name.clone(),
            owner: self.core.owner.clone(),
            max: self.limits.free().min(self.take_max),
            lease_ms: self.lease_ms,
        };
        let pick = Picks { queue: self, places: Places::new(&self.limits) };
        let line = Some(&*self.core.owner);
        let engine = &self.core.engine;
        let taken = engine.take_picked_waiting(line, &take, &pick, (WAIT, stop)).await?;
        for taken in taken {
            let (from, place) = pick.places.of(taken.permit.key()).unzip();
            self.core.started();
            // Without a place it was never asked for: then its lease counts as over.
            tokio::spawn(run::job(self.clone(), taken, from.unwrap_or_default(), place));
        }
        Ok(())
    }
}

/// Picks the jobs that there are a handler and a place for.
struct Picks<'q> {
    queue: &'q Queue,
    places: Places<'q>,
}

impl Picker for Picks<'_> {
    fn picks(&self, job: &Record) -> bool {
        // The grant follows this question, so the lease is counted from here.
        self.queue.knows(job) && self.places.enter(&job.key, boot_ms())
    }

    fn lost(&self, key: &Key) {
        self.places.leave(key);
    }
}
