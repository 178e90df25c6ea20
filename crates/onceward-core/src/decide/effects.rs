//! Effects: what a handler wants committed together with its record.
//!
//! Documents and marks under their guards, further keys, jobs (the outbox) and audit entries. They
//! join the batch that completes the key, so all of it is there or none; [`write`] commits effects
//! that follow no key.

use super::claim::{Claim, add_guard, guard_condition, place_done};
use super::job::{JobOrder, Placed, check_writable, place_job};
use super::{Facts, Look, Step, Verdict, judge};
use crate::audit::{Entry, Trace};
use crate::batch::{Batch, Write};
use crate::fingerprint::Fingerprint;
use crate::guard::Guard;
use crate::key::{Key, Kind, Subject, check_part};
use crate::limits::{LimitError, MAX_POSITION, MAX_PRIORITY, MAX_RETAIN_MS, in_range};
use crate::record::{Body, Terms};
use crate::stamp::Token;
use crate::{Bytes, Text};

/// What a handler wants committed with its outcome.
#[derive(Debug, Clone, Default)]
pub struct Effects {
    /// Documents and marks.
    pub changes: Vec<Change>,
    /// Marks that several positions move together.
    pub spans: Vec<Span>,
    /// Further keys that are done with this commit.
    pub keys: Vec<DoneKey>,
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

/// Positions that were judged together: the first must pass the guard, and the mark moves through
/// all of them to the last.
#[derive(Debug, Clone)]
pub struct Span {
    /// Which subject, and what must hold of it for the first position.
    pub guard: Guard,
    /// The last position; one below the first changes nothing.
    pub through: u64,
}

/// A key that is done with the commit of something else, such as the id of an item in a request.
/// It must be free then: whoever used it has to be found by a guard of the same commit.
#[derive(Debug, Clone)]
pub struct DoneKey {
    /// The key, its payload's fingerprint and its terms; a guard of its own is not looked at.
    pub claim: Claim,
    /// What a replay of it is told.
    pub outcome: Bytes,
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
    /// Whether there is nothing to commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { changes, spans, keys, jobs, audit } = self;
        changes.is_empty()
            && spans.is_empty()
            && keys.is_empty()
            && jobs.is_empty()
            && audit.is_empty()
    }

    /// Checks that every effect stays with the tenant of the key it follows (A03), that none moves
    /// a counter of jobs, and the bounds of jobs.
    ///
    /// # Errors
    /// The first effect that does not.
    pub fn validate(&self, tenant_column: &str) -> Result<(), LimitError> {
        let subjects = self.guards().map(|guard| guard.subject.tenant_column());
        let jobs = self.jobs.iter().map(|job| job.key.tenant_column());
        let keys = self.keys.iter().map(|key| key.claim.key.tenant_column());
        let entries = self.audit.iter().map(|entry| &*entry.tenant);
        let mut tenants = subjects.chain(jobs).chain(keys).chain(entries);
        if tenants.any(|tenant| tenant != tenant_column) {
            let bound = "of the tenant that the effects belong to";
            return Err(LimitError::new("effects", "another tenant's", bound));
        }
        self.guards().try_for_each(|guard| guard.rule.validate())?;
        self.guards().try_for_each(|guard| check_writable(&guard.subject))?;
        for span in &self.spans {
            in_range("through", span.through, 0, MAX_POSITION)?;
        }
        self.keys.iter().try_for_each(|key| key.claim.validate())?;
        self.audit.iter().try_for_each(|entry| entry.trace.validate())?;
        self.jobs.iter().try_for_each(NewJob::validate)
    }

    fn guards(&self) -> impl Iterator<Item = &Guard> {
        let spans = self.spans.iter().map(|span| &span.guard);
        self.changes.iter().map(|change| &change.guard).chain(spans)
    }
}

/// Decides effects that follow no key: all of them in one batch, or the verdict of what refuses. A
/// guard, where there is one, is all that keeps them from happening twice.
#[must_use]
pub fn write(
    guard: Option<&Guard>,
    effects: &Effects,
    trace: &Trace,
    token: Token,
    facts: &Facts,
) -> Step<(), Verdict> {
    let mut batch = Batch::new(token);
    if let Err(refused) = add_guard(&mut batch, guard, facts) {
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
/// The verdict, when a guard refuses, a further key is not free, or a job's key was used with
/// another payload.
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
    for Span { guard, through } in &effects.spans {
        judge(guard, facts).map_err(Verdict::Refused)?;
        batch.conditions.push(guard_condition(guard));
        batch.writes.push(Write::Mark {
            subject: guard.subject.clone(),
            position: guard.rule.moves_to().max(*through),
            value: Body::Keep,
        });
    }
    // After the guards: a taken key is the answer only where no guard tells more.
    for key in &effects.keys {
        place_done(batch, key, facts).map_err(Verdict::Mismatch)?;
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
