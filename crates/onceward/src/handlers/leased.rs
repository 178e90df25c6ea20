//! Effects elsewhere: claim, run under a lease, complete.
//!
//! Rule: the work is not polled once its lease is over or lost; what it did is recorded under its
//! fence or not at all. A process that dies leaves a lease that runs out, and the next attempt has
//! a higher fence.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::decide::{Claim, Completion, Finish, Permit, Verdict};

use super::handler::{Handled, Handler, OVERTAKEN_MAX, answered, caught};
use super::letter::write_event;
use super::seen::{Attempt, Held, SeenEvent};
use super::{HandlerError, millis};
use crate::engine::EngineError;
use crate::events::Event;
use crate::points::{Point, reach};
use crate::store::clock::boot_ms;
use crate::worker::Done;
use crate::worker::lease::{Cut, Lease};

/// Pause before a step that the store gave no answer to is tried again; doubles up to 1 s.
const AGAIN_FIRST: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_secs(1);

impl Handler {
    pub(super) async fn elsewhere<F>(
        &self,
        event: &Arc<Event>,
        mut claim: Claim,
        work: impl Fn(Attempt) -> F,
    ) -> Result<Handled, EngineError>
    where
        F: Future<Output = Result<Done, HandlerError>>,
    {
        // A dead letter carries its event.
        claim.payload = Some(write_event(event).into());
        let from = boot_ms();
        let permit = match self.engine().claim(&claim).await? {
            Verdict::Run { permit, .. } => permit,
            verdict => return Ok(answered(verdict)),
        };
        reach(Point::AfterClaim);
        let lease = Lease::new(from, millis(self.options().lease));
        let _alive = self.engine().alive_here(&permit);
        let held = Arc::new(Held { permit, lease });
        let attempt = Attempt {
            seen: SeenEvent { engine: self.engine().clone(), event: event.clone() },
            held: Some(held.clone()),
            effect_key: held.permit.key().to_string().into(),
        };
        let beating = self.beat(&held);
        let running = self.attempt(&claim, &attempt, &held, work);
        tokio::pin!(beating, running);
        tokio::select! {
            biased;
            handled = &mut running => handled,
            never = &mut beating => match never {},
        }
    }

    async fn attempt<F>(
        &self,
        claim: &Claim,
        attempt: &Attempt,
        held: &Held,
        work: impl Fn(Attempt) -> F,
    ) -> Result<Handled, EngineError>
    where
        F: Future<Output = Result<Done, HandlerError>>,
    {
        for _ in 0..OVERTAKEN_MAX {
            reach(Point::BeforeEffect);
            let done = match held.lease.within(caught(work(attempt.clone()))).await {
                Ok(Ok(done)) => done,
                Ok(Err(error)) => return self.record_failure(&held.permit, &error).await,
                // It is someone else's by now, or will be.
                Err(_) => return Ok(again_soon()),
            };
            reach(Point::AfterEffect);
            reach(Point::BeforeDone);
            match self.complete(held, &done.into_completion()).await? {
                Finish::Ok | Finish::Dead => return Ok(Handled::Done),
                Finish::Lost => {
                    let _ = self.engine().note_refused(&held.permit, "complete").await;
                    return Ok(again_soon());
                }
                Finish::Refused(refusal) => {
                    let verdict = Verdict::Refused(refusal);
                    if !self.overtaken(claim, &verdict) {
                        self.engine().release(&held.permit).await?;
                        return Ok(answered(verdict));
                    }
                }
                Finish::JobMismatch(job) => {
                    let hash = job.key.hash_hex();
                    let why = format!("it makes job {hash}, which has another payload");
                    let error = HandlerError::Permanent(why);
                    return self.record_failure(&held.permit, &error).await;
                }
            }
        }
        let why = format!("others wrote first {OVERTAKEN_MAX} times in a row");
        self.record_failure(&held.permit, &HandlerError::Retryable(why)).await
    }

    /// Records the outcome, trying until the store answers or the lease is over.
    async fn complete(&self, held: &Held, completion: &Completion) -> Result<Finish, EngineError> {
        let mut pause = AGAIN_FIRST;
        loop {
            let answer = self.engine().complete_or_keep(&held.permit, completion).await;
            match answer {
                Err(error) if error.is_retryable() && held.lease.over().is_none() => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(AGAIN_MAX);
                }
                Err(EngineError::Limit(limit)) => {
                    let error = HandlerError::permanent(limit);
                    self.record_failure(&held.permit, &error).await?;
                    return Ok(Finish::Lost);
                }
                answer => return answer,
            }
        }
    }

    /// Renews the lease at every heartbeat, until it is dropped.
    async fn beat(&self, held: &Held) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(self.options().heartbeat).await;
            let from = boot_ms();
            match self.renew(&held.permit).await {
                Ok(Finish::Ok) => held.lease.renewed(from),
                // What the store gave no answer to was not refused; the next beat tries again.
                Err(error) if error.is_retryable() => {}
                Ok(_) => held.lease.end(Cut::Lost),
                Err(_) => held.lease.end(Cut::Lapsed),
            }
        }
    }

    async fn renew(&self, permit: &Permit) -> Result<Finish, EngineError> {
        self.engine().renew(permit, None).await
    }
}

fn again_soon() -> Handled {
    Handled::Busy { retry_after: Duration::from_millis(10) }
}
