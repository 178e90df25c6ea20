//! Queues as a whole: pausing them for every process, and waiting for a job to take.
//!
//! A pause is a document in the store, so it holds over restarts and for every process on it. It
//! belongs to nobody's tenant: its space is one that no claim or job can name.

use std::time::{Duration, Instant};

use onceward_core::audit::{Entry, Trace};
use onceward_core::batch::{Batch, Condition, Write};
use onceward_core::decide::{Facts, Step};
use onceward_core::drive::{Drive, End};
use onceward_core::key::Subject;
use onceward_core::limits::LimitError;
use onceward_core::record::{Body, Record};
use onceward_core::stamp::Token;
use onceward_core::text::escape;

use super::jobs::Whose;
use super::wait::queue_key;
use super::{Engine, EngineError, Pick, Take, Taken, later};

/// The tenant of what belongs to the store as a whole.
pub const STORE_TENANT: &str = "onceward";
/// Spaces that start so hold the store's own documents.
pub const STORE_SPACE_PREFIX: &str = "onceward.";

const PAUSES: &str = "onceward.queues";
/// Others may pause and resume at the same time this often before it is their turn to win.
const TRIES_MAX: usize = 16;

/// Where the pause of a queue is kept.
pub(super) fn pause_subject(queue: &str) -> Result<Subject, LimitError> {
    Subject::new(STORE_TENANT, PAUSES, queue)
}

impl Engine {
    /// Whether a queue is paused.
    ///
    /// # Errors
    /// When the store gives no answer or the name is too long.
    pub async fn is_paused(&self, queue: &str) -> Result<bool, EngineError> {
        Ok(self.get(&pause_subject(queue)?).await?.is_some())
    }

    /// Pauses or resumes a queue: while it is paused, nothing is taken from it. Leases that are out
    /// stay out. Answers whether that changed anything.
    ///
    /// # Errors
    /// When the store gives no answer or the name is too long.
    pub async fn set_paused(
        &self,
        queue: &str,
        paused: bool,
        by: &Trace,
    ) -> Result<bool, EngineError> {
        by.validate()?;
        let subject = pause_subject(queue)?;
        let action = if paused { "queue.paused" } else { "queue.resumed" };
        let mut entry = Entry::new(STORE_TENANT, action);
        entry.subject = Some(queue.into());
        entry.trace = by.clone();
        for _ in 0..TRIES_MAX {
            let mark = self.mark(&subject).await?;
            let is = mark.as_ref().is_some_and(|mark| mark.value.is_some());
            if is == paused {
                return Ok(false);
            }
            let seen = mark.map_or(0, |mark| mark.position);
            let decide = |token: Token, facts: &Facts| -> Step<(), ()> {
                if facts.position(&subject).is_some_and(|position| position != seen) {
                    return Step::Answer(());
                }
                let mut batch = Batch::new(token);
                batch.conditions.push(Condition::PositionIs(subject.clone(), seen));
                batch.writes.push(Write::Mark {
                    subject: subject.clone(),
                    position: seen + 1,
                    value: if paused { Body::Set(action.as_bytes().into()) } else { Body::Clear },
                });
                batch.writes.push(Write::Audit(Box::new(entry.clone())));
                Step::Commit(batch, ())
            };
            if let End::Committed { .. } = self.drive(None, Drive::default(), decide).await? {
                return Ok(true);
            }
        }
        Err(EngineError::Contended("time after time"))
    }

    /// [`Engine::take_of`] that waits up to `wait` for a job when there is none to take, or until
    /// `stop` resolves. Stopping ends the wait, never a take that is under way: what that gets is
    /// answered.
    ///
    /// # Errors
    /// When the store gives no answer and nothing was taken.
    pub async fn take_waiting(
        &self,
        tenant: Option<&str>,
        take: &Take,
        wait: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<Vec<Taken>, EngineError> {
        let column = tenant.map(escape);
        let ours =
            |job: &Record| column.as_deref().is_none_or(|column| job.key.tenant_column() == column);
        let whose = Whose { tenant: column.as_deref(), line: tenant };
        self.take_whose_waiting(whose, take, &ours, (wait, stop)).await
    }

    /// [`Engine::take`] of those jobs that `pick` accepts, which waits as [`Engine::take_waiting`]
    /// does. `line` names the picker: each goes on where it stopped.
    ///
    /// # Errors
    /// When the store gives no answer and nothing was taken.
    pub async fn take_picked_waiting(
        &self,
        line: Option<&str>,
        take: &Take,
        pick: Pick<'_>,
        waiting: (Duration, impl Future<Output = ()>),
    ) -> Result<Vec<Taken>, EngineError> {
        self.take_whose_waiting(Whose { tenant: None, line }, take, pick, waiting).await
    }

    async fn take_whose_waiting(
        &self,
        whose: Whose<'_>,
        take: &Take,
        pick: Pick<'_>,
        (wait, stop): (Duration, impl Future<Output = ()>),
    ) -> Result<Vec<Taken>, EngineError> {
        let deadline = later(Instant::now(), wait);
        let first = self.take_once(whose, take, pick).await?;
        if wait.is_zero() || take.max == 0 || !first.is_empty() {
            return Ok(first);
        }
        // Where too many wait already, one more only looks now and then.
        let waiter = self.0.waiters.enter(&queue_key(&escape(&take.queue))?);
        let bell = waiter.as_ref().map(|waiter| waiter.bell.clone()).unwrap_or_default();
        let mut pause = self.0.options.poll_first;
        tokio::pin!(stop);
        loop {
            let rung = bell.notified();
            tokio::pin!(rung);
            // Registered before the look, so that a job made in between rings.
            rung.as_mut().enable();
            let taken = self.take_once(whose, take, pick).await?;
            let now = Instant::now();
            if !taken.is_empty() || now >= deadline {
                return Ok(taken);
            }
            tokio::select! {
                () = &mut stop => return Ok(taken),
                () = rung => {}
                // Jobs that fall due, and those of other processes, are found by looking.
                () = tokio::time::sleep(pause.min(deadline - now)) => {
                    pause = (pause * 2).min(self.0.options.poll_max);
                }
            }
        }
    }
}
