//! Effects: what a handler wants committed together with its record.
//!
//! Documents and marks under their guards, jobs (the outbox) and audit entries. They join the batch
//! that completes the key, so all of it is there or none.

use super::claim::{add_guard, guard_condition};
use super::job::{JobOrder, Placed, check_writable, place_job};
use super::{Facts, Look, Step, Verdict, judge};
use crate::audit::{Entry, Trace};
use crate::batch::{Batch, Write};
use crate::fingerprint::Fingerprint;
use crate::guard::Guard;
use crate::key::{Key, Kind, Subject, check_part};
use crate::limits::{LimitError, MAX_PRIORITY, MAX_RETAIN_MS, in_range};
use crate::record::{Body, Terms};
use crate::stamp::Token;
use crate::{Bytes, Text};

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
    /// What the audit says of its making, such as the write that it follows. Default: nothing.
    pub about: Option<Text>,
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
            about: None,
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that breaks its bound.
    pub fn validate(&self) -> Result<(), LimitError> {
        if self.key.kind() != Kind::Job {
            return Err(LimitError::new("kind", self.key.kind().as_str(), "job"));
        }
        in_range("priority", self.priority.into(), 0, MAX_PRIORITY.into())?;
        in_range("run_in_ms", self.run_in_ms, 0, MAX_RETAIN_MS)?;
        let ours = |subject: &Subject| subject.tenant_column() == self.key.tenant_column();
        if self.order.as_ref().is_some_and(|order| !ours(&order.tail) || !ours(&order.done)) {
            return Err(LimitError::new("order", "another tenant's subject", "of the job's own"));
        }
        self.trace.validate()?;
        check_part("about", self.about.as_deref().unwrap_or_default(), 0)?;
        self.terms.validate()
    }
}

impl Effects {
    /// Checks that every effect stays with the tenant of the key it follows (A03), that none moves
    /// a counter of jobs, and the bounds of jobs.
    ///
    /// # Errors
    /// The first effect that does not.
    pub fn validate(&self, tenant_column: &str) -> Result<(), LimitError> {
        let subjects = self.changes.iter().map(|change| change.guard.subject.tenant_column());
        let jobs = self.jobs.iter().map(|job| job.key.tenant_column());
        let entries = self.audit.iter().map(|entry| &*entry.tenant);
        if subjects.chain(jobs).chain(entries).any(|tenant| tenant != tenant_column) {
            let bound = "of the tenant that the effects belong to";
            return Err(LimitError::new("effects", "another tenant's", bound));
        }
        self.changes.iter().try_for_each(|change| change.guard.rule.validate())?;
        self.changes.iter().try_for_each(|change| check_writable(&change.guard.subject))?;
        self.audit.iter().try_for_each(|entry| entry.trace.validate())?;
        self.jobs.iter().try_for_each(NewJob::validate)
    }
}

/// Decides effects that no record stands for: their order alone keeps them from happening twice.
#[must_use]
pub fn apply(
    guard: &Guard,
    effects: &Effects,
    trace: &Trace,
    token: Token,
    facts: &Facts,
) -> Step<(), Verdict> {
    let mut batch = Batch::new(token);
    if let Err(refused) = add_guard(&mut batch, Some(guard), facts) {
        return Step::Answer(refused);
    }
    match add_effects(&mut batch, effects, trace, facts) {
        Ok(looks) if looks.is_empty() => Step::Commit(batch, ()),
        Ok(looks) => Step::Look(looks),
        Err(refused) => Step::Answer(refused),
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
