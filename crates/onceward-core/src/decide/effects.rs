//! Effects: what a handler wants committed together with its record.
//!
//! Documents and marks under their guards, jobs (the outbox) and audit entries. They join the batch
//! that completes the key, so all of it is there or none.

use super::claim::guard_condition;
use super::job::{JobOrder, Placed, place_job};
use super::{Facts, Look, Verdict, judge};
use crate::Bytes;
use crate::audit::{Entry, Trace};
use crate::batch::{Batch, Write};
use crate::fingerprint::Fingerprint;
use crate::guard::Guard;
use crate::key::Key;
use crate::record::{Body, Terms};

/// What a handler wants committed with its outcome.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    /// Documents and marks.
    pub changes: Vec<Change>,
    /// Jobs that follow.
    pub jobs: Vec<NewJob>,
    /// Further audit entries.
    pub audit: Vec<Entry>,
}

/// A guarded move of a mark, with or without a new value.
#[derive(Debug, Clone)]
pub struct Change {
    /// Which subject, and what must hold of it; where it moves follows from the rule.
    pub guard: Guard,
    /// The document: set, kept or cleared.
    pub value: Body,
}

/// A job to be made.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Its key: the scope is the queue.
    pub key: Key,
    /// Of its payload.
    pub fingerprint: Fingerprint,
    /// What the worker gets.
    pub payload: Bytes,
    /// Not before this long from now. Default: 0.
    pub run_in_ms: u64,
    /// 0 to 9. Default: 0.
    pub priority: u8,
    /// Jobs of one subject run one after the other, in the order of their making.
    pub order: Option<JobOrder>,
    /// Policy, stored with the record.
    pub terms: Terms,
    /// Correlation ids; what is missing here is taken from the request that makes the job.
    pub trace: Trace,
}

impl NewJob {
    /// A job that is due at once, under the default terms of jobs.
    #[must_use]
    pub fn new(key: Key, fingerprint: Fingerprint, payload: Bytes) -> Self {
        Self {
            key,
            fingerprint,
            payload,
            run_in_ms: 0,
            priority: 0,
            order: None,
            terms: Terms::job(),
            trace: Trace::default(),
        }
    }
}

/// Adds effects to a batch. Returns what has to be looked up first, if anything.
///
/// # Errors
/// The verdict, when a guard refuses or a job's key was used with another payload.
pub(super) fn add_effects(
    batch: &mut Batch,
    effects: &Effects,
    trace: &Trace,
    facts: &Facts,
) -> Result<Vec<Look>, Verdict> {
    for change in &effects.changes {
        judge(&change.guard, facts).map_err(Verdict::Refused)?;
        batch.conditions.push(guard_condition(&change.guard));
        batch.writes.push(Write::Mark {
            subject: change.guard.subject.clone(),
            position: change.guard.rule.moves_to(),
            value: change.value.clone(),
        });
    }
    let mut looks = Vec::new();
    for job in &effects.jobs {
        match place_job(batch, job, trace, facts) {
            Placed::Added | Placed::There(_) => {}
            Placed::Look(look) => looks.push(look),
            Placed::Mismatch(record) => return Err(Verdict::Mismatch(record)),
        }
    }
    for entry in &effects.audit {
        batch.writes.push(Write::Audit(Box::new(entry.clone())));
    }
    Ok(looks)
}
