//! What a handler returns: its writes, or why it failed and when to try again.
//!
//! Writes are documents, jobs and audit entries of the job's own tenant. They commit in the batch
//! that completes the job: all of it is there, once, or nothing of it.

use std::fmt;
use std::time::Duration;

use onceward_core::Bytes;
use onceward_core::audit::Entry;
use onceward_core::decide::{Completion, Effects, NewJob};
use onceward_core::limits::LimitError;
use onceward_core::record::Body;
use onceward_core::stamp::At;

use super::lease::LeaseLost;
use crate::engine::{EngineError, Seen};

/// A job that was done, with everything that commits beside it.
#[derive(Debug, Clone, Default)]
pub struct Done {
    outcome: Vec<u8>,
    effects: Effects,
}

impl Done {
    /// Done, with nothing beside it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With an outcome, for people and for whoever looks the job up. Default: none.
    #[must_use]
    pub fn outcome(mut self, outcome: impl Into<Vec<u8>>) -> Self {
        self.outcome = outcome.into();
        self
    }

    /// Writes a document over what was seen; answers its new version. When someone else writes it
    /// first, the handler runs again and sees what is there then.
    ///
    /// # Errors
    /// When the version can't rise any more.
    pub fn put(&mut self, seen: &Seen, value: impl Into<Bytes>) -> Result<u64, LimitError> {
        self.change(seen, Body::Set(value.into()))
    }

    /// Deletes a document over what was seen; its version rises.
    ///
    /// # Errors
    /// When the version can't rise any more.
    pub fn delete(&mut self, seen: &Seen) -> Result<u64, LimitError> {
        self.change(seen, Body::Clear)
    }

    /// Makes a job with the commit. It inherits the correlation ids.
    pub fn enqueue(&mut self, job: NewJob) {
        self.effects.jobs.push(job);
    }

    /// Writes an audit entry with the commit; [`Context::entry`](super::Context::entry) makes one.
    pub fn audit(&mut self, entry: Entry) {
        self.effects.audit.push(entry);
    }

    /// Everything so far, for what has no method of its own: marks, guards.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    pub(crate) fn into_completion(self) -> Completion {
        let mut completion = Completion::new(self.outcome.into());
        completion.effects = self.effects;
        completion
    }

    fn change(&mut self, seen: &Seen, value: Body) -> Result<u64, LimitError> {
        let (change, version) = seen.change(value)?;
        self.effects.changes.push(change);
        Ok(version)
    }
}

impl From<()> for Done {
    fn from((): ()) -> Self {
        Self::new()
    }
}

/// Why a handler did not do its job, and what follows from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// It may work later: tried again after the back-off, until the attempts are used up.
    #[error("{0}")]
    Retryable(String),
    /// It may work at a certain time: tried again then. That attempt counts too.
    #[error("{why}")]
    RunAt {
        /// Not before, by the store's clock.
        at: At,
        /// Why.
        why: String,
    },
    /// It may work after a while: tried again then. That attempt counts too.
    #[error("{why}")]
    RunIn {
        /// From now.
        after: Duration,
        /// Why.
        why: String,
    },
    /// It will never work: a dead letter at once.
    #[error("{0}")]
    Permanent(String),
}

impl JobError {
    /// It may work later.
    pub fn retryable(why: impl fmt::Display) -> Self {
        Self::Retryable(why.to_string())
    }

    /// It will never work.
    pub fn permanent(why: impl fmt::Display) -> Self {
        Self::Permanent(why.to_string())
    }

    /// It may work at this instant.
    pub fn run_at(at: At, why: impl fmt::Display) -> Self {
        Self::RunAt { at, why: why.to_string() }
    }

    /// It may work after this long.
    pub fn run_in(after: Duration, why: impl fmt::Display) -> Self {
        Self::RunIn { after, why: why.to_string() }
    }
}

impl From<EngineError> for JobError {
    fn from(error: EngineError) -> Self {
        if error.is_retryable() { Self::retryable(error) } else { Self::permanent(error) }
    }
}

impl From<LimitError> for JobError {
    fn from(error: LimitError) -> Self {
        Self::permanent(error)
    }
}

impl From<LeaseLost> for JobError {
    fn from(error: LeaseLost) -> Self {
        Self::retryable(error)
    }
}

/// What a probe found out about an earlier attempt.
#[derive(Debug, Clone)]
pub enum Probe {
    /// The effect happened: the job is done, with this.
    Happened(Done),
    /// It did not happen: run the handler.
    NotHappened,
}
