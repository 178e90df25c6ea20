//! One attempt at one job: probe, handler, and the record of how it ended.
//!
//! Rule: whatever the handler does, one of these is recorded under the attempt's fence: done with
//! its writes, failed with a time to try again, dead; or nothing, when the attempt was overtaken
//! and the refusal is recorded instead. A panic and a time limit are failures like any other, but
//! for a job that is held where nobody knows what it did: that waits for a person.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use onceward_core::decide::{Completion, Finish, Permit, Refusal, Retry};
use onceward_core::record::OnAbandoned;
use onceward_core::retry::Backoff;

use super::context::Context;
use super::done::{Done, JobError, Probe};
use super::event::{Happened, Step};
use super::keeper::Keep;
use super::lease::Cut;
use super::limits::Place;
use super::taker::Queue;
use crate::engine::{EngineError, Taken, random_u64};

/// How often a handler runs again, in one attempt, because others wrote what it writes.
const OVERTAKEN_MAX: u32 = 32;
/// Pause before a step that the store gave no answer to is tried again; doubles up to 1 s.
const AGAIN_FIRST: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// Runs a job that was taken by a call made at `from`.
pub(super) async fn job(queue: Arc<Queue>, taken: Taken, from: u64, place: Option<Place>) {
    let core = queue.core.clone();
    let _running = Running(&core);
    let alive = core.engine.alive_here(&taken.permit);
    let keep = core.keeper.keep(taken.permit, from);
    let attempt = Attempt { queue: &queue, keep: &keep };
    core.observer.tell(attempt.permit(), Happened::Taken);
    let context = Context::new(core.engine.clone(), keep.held.clone(), taken.payload, taken.again);
    attempt.run(context).await;
    drop((keep, alive));
    drop(place);
}

/// Counts a job out when it ends, however it ends.
struct Running<'c>(&'c super::Core);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// How a handler ended that has done nothing to be recorded.
enum Ended {
    /// It says so.
    Failed(JobError),
    /// It panicked, or was cut off at its time limit.
    Broken(String),
}

struct Attempt<'a> {
    queue: &'a Queue,
    keep: &'a Keep,
}

impl Attempt<'_> {
    fn permit(&self) -> &Permit {
        &self.keep.held.permit
    }

    fn tell(&self, happened: Happened) {
        self.queue.core.observer.tell(self.permit(), happened);
    }

    async fn run(&self, context: Context) {
        for _ in 0..OVERTAKEN_MAX {
            let returned = self.keep.held.lease.within(self.handle(context.clone())).await;
            let done = match returned {
                Err(why) => return self.cut(why).await,
                Ok(Err(Ended::Failed(error))) => return self.failed(error).await,
                Ok(Err(Ended::Broken(why))) => return self.broken(why).await,
                Ok(Ok(done)) => done,
            };
            self.tell(Happened::Returned);
            self.keep.held.finishing.store(true, Ordering::SeqCst);
            let Some(refusal) = self.complete(&done.into_completion()).await else { return };
            let own = self.permit().record.guard.as_ref();
            if own.is_some_and(|guard| guard.subject == refusal.subject) {
                let why = "its subject has passed it";
                return self.failed(JobError::permanent(why)).await;
            }
            // Someone else wrote what this handler read: it has to see that first.
            self.tell(Happened::Overtaken);
            self.keep.held.finishing.store(false, Ordering::SeqCst);
        }
        let why = format!("others wrote first {OVERTAKEN_MAX} times in a row");
        self.failed(JobError::Retryable(why)).await;
    }

    /// Probes, if it has to, and runs the handler. Panics end here.
    async fn handle(&self, context: Context) -> Result<Done, Ended> {
        let work = async {
            if let (Some(probe), true) = (&self.queue.probe, context.is_again())
                && let Probe::Happened(done) = probe(context.clone()).await?
            {
                return Ok(done);
            }
            match self.queue.handler(&context.job_type()) {
                Some(handler) => handler(context.clone()).await,
                None => Err(JobError::retryable("this worker has no handler for its type")),
            }
        };
        let work = AssertUnwindSafe(work).catch_unwind();
        let ended = match self.queue.time_limit {
            None => work.await,
            Some(limit) => match tokio::time::timeout(limit, work).await {
                Ok(ended) => ended,
                Err(_) => {
                    let why = format!("the handler took longer than {} ms", limit.as_millis());
                    return Err(Ended::Broken(why));
                }
            },
        };
        match ended {
            Ok(returned) => returned.map_err(Ended::Failed),
            Err(panic) => Err(Ended::Broken(panic_text(&*panic))),
        }
    }

    /// The handler broke off, and nobody knows whether it had its effect: a failure like any other
    /// where the job may run again; otherwise it waits for a person (ruling 6).
    async fn broken(&self, why: String) {
        if self.permit().record.terms.on_abandoned == OnAbandoned::Rerun {
            return self.failed(JobError::Retryable(why)).await;
        }
        self.keep.held.finishing.store(true, Ordering::SeqCst);
        let engine = &self.queue.core.engine;
        let abandoned = self.until_answered(|| engine.abandon(self.permit(), &why)).await;
        match abandoned {
            Some(Ok(Finish::Lost)) => self.refused(Step::Fail).await,
            Some(Ok(_)) => self.tell(Happened::Unknown { error: why }),
            // Its lease ends, and that comes to the same.
            Some(Err(_)) | None => self.tell(Happened::Cut(Cut::Lapsed)),
        }
    }

    /// Records the outcome. Answers the refusal of a guard, which leaves the permit valid.
    async fn complete(&self, completion: &Completion) -> Option<Refusal> {
        let engine = &self.queue.core.engine;
        let finish =
            self.until_answered(|| engine.complete_or_keep(self.permit(), completion)).await;
        match finish {
            Some(Ok(Finish::Ok | Finish::Dead)) => self.tell(Happened::Done),
            Some(Ok(Finish::Lost)) => self.refused(Step::Complete).await,
            Some(Ok(Finish::Refused(refusal))) => return Some(refusal),
            Some(Ok(Finish::JobMismatch(job))) => {
                let why = format!(
                    "it makes a job whose key {} was used with another payload; nothing was \
                     written",
                    job.key.hash_hex()
                );
                self.failed(JobError::Permanent(why)).await;
            }
            Some(Err(error)) => self.failed(JobError::permanent(error)).await,
            // Nobody knows whether it is recorded; whoever comes next finds out.
            None => self.tell(Happened::Cut(Cut::Lapsed)),
        }
        None
    }

    /// Records a failure: tried again later, or dead.
    async fn failed(&self, error: JobError) {
        self.keep.held.finishing.store(true, Ordering::SeqCst);
        let engine = &self.queue.core.engine;
        let retry = match &error {
            JobError::Permanent(_) => Retry::Never,
            JobError::Retryable(_) => Retry::In(self.delay_ms()),
            JobError::RunIn { after, .. } => Retry::In(millis(*after)),
            JobError::RunAt { at, .. } => match self.until_answered(|| engine.now()).await {
                Some(Ok(now)) => Retry::In(at.since(now)),
                _ => Retry::In(self.delay_ms()),
            },
        };
        let error = error.to_string();
        let finish = self.until_answered(|| engine.fail(self.permit(), &error, retry)).await;
        match (finish, retry) {
            (Some(Ok(Finish::Dead)), _) | (Some(Ok(Finish::Ok)), Retry::Never) => {
                self.tell(Happened::Dead { error });
            }
            (Some(Ok(Finish::Ok)), Retry::In(ms)) => {
                self.tell(Happened::Failed { error, again_in: Duration::from_millis(ms) });
            }
            (Some(Ok(_)), _) => self.refused(Step::Fail).await,
            // It comes back when its lease ends.
            (Some(Err(_)) | None, _) => self.tell(Happened::Cut(Cut::Lapsed)),
        }
    }

    /// The handler was cut: of a drain, the job is handed on; otherwise it is someone else's.
    async fn cut(&self, why: Cut) {
        self.keep.held.finishing.store(true, Ordering::SeqCst);
        if why == Cut::Drained {
            let engine = &self.queue.core.engine;
            let abandon = || engine.abandon(self.permit(), "cut: the worker was told to stop");
            let _ = self.until_answered(abandon).await;
        }
        self.tell(Happened::Cut(why));
    }

    async fn refused(&self, step: Step) {
        let core = &self.queue.core;
        core.observer.refused(&core.engine, self.permit(), step).await;
    }

    fn delay_ms(&self) -> u64 {
        // Whether there is another attempt is for the job's terms to say.
        let backoff = Backoff { attempts: u32::MAX, ..self.queue.backoff };
        backoff.delay_ms(self.permit().record.attempt, random_u64()).unwrap_or(backoff.max_ms)
    }

    /// Tries a step until the store answers, for as long as the lease would hold. Each step is
    /// fenced and says the same when it is said again.
    async fn until_answered<T, F>(&self, step: impl Fn() -> F) -> Option<Result<T, EngineError>>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        let mut pause = AGAIN_FIRST;
        loop {
            match step().await {
                Err(error) if error.is_retryable() => {
                    if matches!(self.keep.held.lease.over(), Some(Cut::Lapsed | Cut::Lost)) {
                        return None;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(AGAIN_MAX);
                }
                answered => return Some(answered),
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", said.unwrap_or("without a message"))
}
