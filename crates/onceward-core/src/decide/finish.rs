//! What a permit's holder does: renew, complete, fail, abandon, release.
//!
//! Each is conditional on the fence, and a finished record has no fence any more: an old permit
//! fits nothing. The guard is checked again in the commit that completes.

use super::claim::{add_guard, failed_sweep};
use super::effects::{Effects, add_effects};
use super::job::{is_spent, push_dead};
use super::{Facts, Permit, Refusal, Step, Verdict, rewrite, running_sweep};
use crate::Bytes;
use crate::audit::Entry;
use crate::batch::{Batch, Condition, Write};
use crate::fingerprint::{Fingerprint, fingerprint_bytes};
use crate::key::Kind;
use crate::limits::{LimitError, MAX_RETAIN_MS, in_range};
use crate::record::{Body, FenceWrite, OnAbandoned, Record, State, Time, error_text};
use crate::stamp::Token;
use crate::zoo::{Bug, planted};

/// What a finished attempt hands in.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The outcome's bytes.
    pub outcome: Bytes,
    /// Their digest.
    pub digest: Fingerprint,
    /// How long to keep it, if not as the terms say (stored errors are kept shorter).
    pub retain_ms: Option<u64>,
    /// What commits together with it.
    pub effects: Effects,
}

impl Completion {
    /// An outcome that is kept as long as the terms say, with nothing beside it.
    #[must_use]
    pub fn new(outcome: Bytes) -> Self {
        let digest = fingerprint_bytes(&outcome);
        Self { outcome, digest, retain_ms: None, effects: Effects::default() }
    }

    /// Checks every bound, that the digest is the outcome's, and that the effects stay with the
    /// tenant.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn validate(&self, tenant_column: &str) -> Result<(), LimitError> {
        if let Some(retain_ms) = self.retain_ms {
            in_range("retain_ms", retain_ms, 1, MAX_RETAIN_MS)?;
        }
        if self.digest != fingerprint_bytes(&self.outcome) {
            // Stored so, the outcome would count as damaged for ever.
            return Err(LimitError::new("digest", self.digest, "that of the outcome"));
        }
        self.effects.validate(tenant_column)
    }
}

/// The answer to a permit's holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// It is recorded, now or before.
    Ok,
    /// It is recorded as dead: that was the last attempt.
    Dead,
    /// The permit is not valid any more: someone else was granted, or it is finished.
    Lost,
    /// The guard refuses; nothing was recorded. The key has to be released.
    Refused(Refusal),
    /// A job of the outbox has a key that was used with another payload, or a further key of the
    /// effects is not free.
    JobMismatch(Box<Record>),
}

/// When a failed attempt may be followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// This long from now.
    In(u64),
    /// Never: it is poison.
    Never,
}

/// Decides a renewal: the lease starts anew.
#[must_use]
pub fn renew(
    permit: &Permit,
    lease_ms: Option<u64>,
    token: Token,
    facts: &Facts,
) -> Step<Finish, Finish> {
    if lost(permit, facts) && !planted(Bug::RenewWithoutFence) {
        return Step::Answer(Finish::Lost);
    }
    let mut record = (*permit.record).clone();
    record.state = State::Running;
    record.terms.lease_ms = lease_ms.unwrap_or(record.terms.lease_ms);
    let mut batch = Batch::new(token);
    if !planted(Bug::RenewWithoutFence) {
        batch.conditions.push(holder(permit));
    }
    let terms = record.terms;
    let mut draft = rewrite(record, FenceWrite::Keep);
    draft.due = Time::In(terms.lease_ms);
    draft.sweep = running_sweep(&draft.record, &terms);
    batch.writes.push(Write::Put(Box::new(draft)));
    Step::Commit(batch, Finish::Ok)
}

/// Decides a completion.
#[must_use]
pub fn complete(
    permit: &Permit,
    completion: &Completion,
    token: Token,
    facts: &Facts,
) -> Step<Finish, Finish> {
    if lost(permit, facts) && !planted(Bug::CompleteWithoutFence) {
        return Step::Answer(match facts.record(permit.key()) {
            Some(Some(there)) if repeated(permit, completion, &there.record) => Finish::Ok,
            _ => Finish::Lost,
        });
    }
    let mut record = (*permit.record).clone();
    record.state = State::Done;
    record.outcome = Some(completion.digest);
    record.error = None;
    let retain_ms = completion.retain_ms.unwrap_or(record.terms.retain_ms);
    record.terms.retain_ms = retain_ms;
    let kept_ms = if planted(Bug::OneTtlForTwo) { record.terms.lease_ms } else { retain_ms };
    let mut batch = Batch::new(token);
    if !planted(Bug::CompleteWithoutFence) {
        batch.conditions.push(holder(permit));
    }
    let mut entry = Entry::about(&record.key, "done", &record.fingerprint, &record.trace);
    entry.fence = Some(permit.fence.0);
    let guard = record.guard.clone();
    if let Some(guard) = &guard {
        entry.version_after = Some(guard.rule.moves_to());
    }
    let ends = if planted(Bug::DoneKeepsFence) { FenceWrite::Keep } else { FenceWrite::End };
    let mut draft = rewrite(record, ends);
    draft.due = Time::Clear;
    draft.expires = Time::In(kept_ms);
    draft.sweep = Time::In(kept_ms);
    draft.outcome = Body::Set(completion.outcome.clone());
    let trace = draft.record.trace.clone();
    batch.writes.push(Write::Put(Box::new(draft)));
    if let Err(refused) = add_guard(&mut batch, guard.as_ref(), facts) {
        if !planted(Bug::GuardOnlyAtClaim) {
            return Step::Answer(finish_of(refused));
        }
    } else if planted(Bug::GuardOnlyAtClaim) && guard.is_some() {
        batch.conditions.pop();
    }
    batch.writes.push(Write::Audit(Box::new(entry)));
    match add_effects(&mut batch, &completion.effects, &trace, facts) {
        Ok(looks) if looks.is_empty() => Step::Commit(batch, Finish::Ok),
        Ok(looks) => Step::Look(looks),
        Err(verdict) => Step::Answer(finish_of(verdict)),
    }
}

/// Decides what a failed attempt leaves: a record that may be retried, or a dead one.
#[must_use]
pub fn fail(
    permit: &Permit,
    error: &str,
    retry: Retry,
    token: Token,
    facts: &Facts,
) -> Step<Finish, Finish> {
    if lost(permit, facts) {
        return Step::Answer(Finish::Lost);
    }
    let mut record = (*permit.record).clone();
    record.error = Some(error_text(error));
    let mut batch = Batch::new(token);
    batch.conditions.push(holder(permit));
    if planted(Bug::ReleaseAfterEffect) {
        batch.writes.push(Write::Delete(record.key));
        return Step::Commit(batch, Finish::Ok);
    }
    match retry {
        Retry::In(ms) if !is_spent(&record) => {
            let mut entry = Entry::about(&record.key, "failed", &record.fingerprint, &record.trace);
            entry.fence = Some(permit.fence.0);
            entry.detail.clone_from(&record.error);
            push_failed(&mut batch, record, ms);
            batch.writes.push(Write::Audit(Box::new(entry)));
            Step::Commit(batch, Finish::Ok)
        }
        Retry::In(_) | Retry::Never => {
            record.state = State::Dead;
            push_dead(&mut batch, record, None);
            Step::Commit(batch, Finish::Dead)
        }
    }
}

/// Decides the end of an attempt whose effect may or may not have happened: the lease ends at once.
#[must_use]
pub fn abandon(permit: &Permit, why: &str, token: Token, facts: &Facts) -> Step<Finish, Finish> {
    if permit.record.terms.on_abandoned == OnAbandoned::Rerun {
        return fail(permit, why, Retry::In(0), token, facts);
    }
    if lost(permit, facts) {
        return Step::Answer(Finish::Lost);
    }
    let mut record = (*permit.record).clone();
    record.state = State::Unknown;
    record.error = Some(error_text(why));
    let mut entry = Entry::about(&record.key, "unknown", &record.fingerprint, &record.trace);
    entry.fence = Some(permit.fence.0);
    entry.detail.clone_from(&record.error);
    let mut draft = rewrite(record, FenceWrite::End);
    draft.due = Time::Clear;
    draft.sweep = Time::Clear;
    let mut batch = Batch::new(token);
    batch.conditions.push(holder(permit));
    batch.writes.push(Write::Put(Box::new(draft)));
    batch.writes.push(Write::Audit(Box::new(entry)));
    Step::Commit(batch, Finish::Ok)
}

/// Decides a release: nothing was done under this permit, so the key goes back to what it was.
///
/// A first attempt of a request leaves nothing. A job goes back to pending. A later attempt goes
/// back to failed: an earlier one may have had an effect, and the key must not forget its payload.
#[must_use]
pub fn release(permit: &Permit, token: Token, facts: &Facts) -> Step<Finish, Finish> {
    if lost(permit, facts) {
        return Step::Answer(Finish::Lost);
    }
    let mut record = (*permit.record).clone();
    let mut batch = Batch::new(token);
    batch.conditions.push(holder(permit));
    match (record.key.kind(), record.attempt) {
        (Kind::Job, attempt) => {
            record.state = State::Pending;
            record.attempt = attempt.saturating_sub(1);
            let mut draft = rewrite(record, FenceWrite::End);
            draft.due = Time::In(0);
            draft.sweep = Time::Clear;
            batch.writes.push(Write::Put(Box::new(draft)));
        }
        (_, 0 | 1) => batch.writes.push(Write::Delete(record.key)),
        (_, attempt) => {
            // Not counted: nothing was done. But never back to what a release would forget.
            record.attempt = attempt - 1;
            push_failed(&mut batch, record, 0);
        }
    }
    Step::Commit(batch, Finish::Ok)
}

fn push_failed(batch: &mut Batch, mut record: Record, due_in_ms: u64) {
    record.state = State::Failed;
    let sweep = failed_sweep(&record.key, &record.terms, due_in_ms);
    let mut draft = rewrite(record, FenceWrite::End);
    draft.due = Time::In(due_in_ms);
    draft.sweep = sweep;
    batch.writes.push(Write::Put(Box::new(draft)));
}

fn holder(permit: &Permit) -> Condition {
    Condition::FenceIs(permit.key().clone(), permit.fence)
}

/// Whether what is known shows that the permit is not valid any more.
fn lost(permit: &Permit, facts: &Facts) -> bool {
    facts
        .record(permit.key())
        .is_some_and(|there| there.is_none_or(|stored| stored.record.fence != Some(permit.fence)))
}

/// Whether the record was finished by this very permit with this very outcome.
fn repeated(permit: &Permit, completion: &Completion, there: &Record) -> bool {
    there.state == State::Done
        && there.last_fence == permit.fence
        && there.outcome == Some(completion.digest)
}

fn finish_of(verdict: Verdict) -> Finish {
    match verdict {
        Verdict::Refused(refusal) => Finish::Refused(refusal),
        Verdict::Mismatch(record) => Finish::JobMismatch(record),
        _ => Finish::Lost,
    }
}
