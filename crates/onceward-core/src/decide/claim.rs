//! Claims: may this request run, and under which fence?
//!
//! [`claim`] grants a lease for an effect elsewhere (two commits). [`run_once`] writes the key as
//! done together with its effects (one commit, no lease): that write is the claim. Both read the
//! same standing of the key, so they can't disagree.

use super::effects::{DoneKey, add_effects};
use super::finish::Completion;
use super::job::{bury_abandoned, is_spent};
use super::{
    Clock, Facts, Look, Permit, Step, Verdict, blank, forget_after, judge, payload_body, rewrite,
    running_sweep,
};
use crate::audit::{Entry, Trace};
use crate::batch::{Applied, Batch, Condition, Write};
use crate::fingerprint::{Fingerprint, fingerprint_bytes};
use crate::guard::{Guard, Need};
use crate::key::{Key, Kind, check_part};
use crate::limits::LimitError;
use crate::record::{Body, Draft, FenceWrite, OnAbandoned, Record, State, Stored, Terms, Time};
use crate::stamp::Token;
use crate::zoo::{Bug, planted};
use crate::{Bytes, Text};

/// A request to run.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What it is unique in.
    pub key: Key,
    /// Of its payload.
    pub fingerprint: Fingerprint,
    /// Policy, stored with the record.
    pub terms: Terms,
    /// Who asks, for people to read.
    pub owner: Option<Text>,
    /// The caller's name for this claim, so that a repeated one returns the same permit.
    pub attempt_id: Option<Text>,
    /// The order it must keep.
    pub guard: Option<Guard>,
    /// What is kept of the payload, encoded.
    pub payload: Option<Bytes>,
    /// Correlation ids and actor.
    pub trace: Trace,
    /// Whether [`run_once`] writes an audit entry that it is done. Not for what only derives from
    /// something that is kept, such as a view of events. Default: true.
    pub audited: bool,
}

impl Claim {
    /// A claim with default terms and nothing else.
    #[must_use]
    pub fn new(key: Key, fingerprint: Fingerprint) -> Self {
        Self {
            key,
            fingerprint,
            terms: Terms::default(),
            owner: None,
            attempt_id: None,
            guard: None,
            payload: None,
            trace: Trace::default(),
            audited: true,
        }
    }
}

/// What an applied batch of a claim meant.
#[derive(Debug, Clone)]
pub enum Granted {
    /// The permit is ours.
    Run {
        /// The draft that was written, to make the permit from.
        draft: Box<Draft>,
        /// An outcome past its retention was there.
        was_expired: bool,
    },
    /// The record was marked as unknown.
    Unknown(Box<Record>),
    /// The record was marked as dead.
    Dead(Box<Record>),
}

impl Granted {
    /// The verdict, once the store has stamped the batch.
    #[must_use]
    pub fn verdict(self, token: Token, applied: Applied) -> Option<Verdict> {
        match self {
            Self::Run { draft, was_expired } => {
                let (rev, fence) = applied.first?;
                let mut record = draft.resolve(token, applied.now, rev.0);
                record.fence = fence;
                record.last_fence = fence?;
                Permit::of(record).map(|permit| Verdict::Run { permit, was_expired })
            }
            Self::Unknown(record) => Some(Verdict::Unknown(record)),
            Self::Dead(record) => Some(Verdict::Dead(record)),
        }
    }

    /// The verdict of a batch whose first answer was lost and that was recognised when it came
    /// again. The lease began at an earlier instant, so the permit is made from what is there now;
    /// by then the lease may have run out and gone to someone else.
    #[must_use]
    pub fn recognised(self, applied: Applied, there: Option<&Record>) -> Verdict {
        let was_expired = match self {
            Self::Run { was_expired, .. } => was_expired,
            _ if planted(Bug::RecognisedMeansGranted) => false,
            Self::Unknown(record) => return Verdict::Unknown(record),
            Self::Dead(record) => return Verdict::Dead(record),
        };
        let ours = applied.first.and_then(|(_, fence)| fence);
        let permit = there.cloned().and_then(Permit::of);
        match permit.filter(|permit| Some(permit.fence) == ours || planted(Bug::FirstClaimByFence))
        {
            Some(permit) => Verdict::Run { permit, was_expired },
            None => Verdict::Busy { retry_after_ms: 1 },
        }
    }
}

/// How a key stands for someone who wants to run.
enum Standing<'a> {
    /// Free to write under this condition, over this record if there is one.
    Free { condition: Condition, over: Option<&'a Record>, was_expired: bool },
    /// The lease ran out and the terms say hold.
    Abandoned(&'a Record),
    /// Not free: this is the answer.
    Answer(Verdict),
}

/// Decides a claim for an effect elsewhere.
#[must_use]
pub fn claim(request: &Claim, token: Token, facts: &Facts) -> Step<Granted, Verdict> {
    let (condition, over, was_expired) = match standing(request, facts) {
        Standing::Answer(verdict) => return Step::Answer(verdict),
        Standing::Abandoned(record) => return mark_unknown(record, token),
        Standing::Free { condition, over, was_expired } => (condition, over, was_expired),
    };
    if let Some(Err(refusal)) = request.guard.as_ref().map(|guard| judge(guard, facts)) {
        return Step::Answer(Verdict::Refused(refusal));
    }
    if let Some(spent) = over.filter(|over| over.state == State::Running && is_spent(over)) {
        return bury_abandoned(spent, token);
    }
    let mut record = blank(request, State::Running);
    let mut fence = FenceWrite::Grant;
    record.attempt = 1;
    if let Some(over) = over
        && !was_expired
    {
        record.attempt = over.attempt.saturating_add(1);
        record.created_at = over.created_at;
        record.priority = over.priority;
        record.error.clone_from(&over.error);
        if planted(Bug::FenceByWorkerName) && over.owner == request.owner && over.last_fence.0 > 0 {
            record.fence = Some(over.last_fence);
            record.last_fence = over.last_fence;
            fence = FenceWrite::Keep;
        }
    }
    let draft = Draft {
        fence,
        fresh: over.is_none() || was_expired,
        due: Time::In(request.terms.lease_ms),
        expires: Time::Clear,
        sweep: running_sweep(&record, &request.terms),
        outcome: if over.is_some() { Body::Clear } else { Body::Keep },
        payload: payload_body(request.payload.as_ref(), over.is_some_and(|over| over.has_payload)),
        record,
    };
    let mut batch = Batch::new(token);
    if !planted(Bug::LookThenClaim) {
        batch.conditions.push(condition);
    }
    if let Some(guard) = &request.guard {
        batch.conditions.push(guard_condition(guard));
    }
    batch.writes.push(Write::Put(Box::new(draft.clone())));
    if let Some(over) = over
        && over.state == State::Running
    {
        batch.writes.push(Write::Audit(Box::new(takeover_entry(request, over))));
    }
    Step::Commit(batch, Granted::Run { draft: Box::new(draft), was_expired })
}

/// What an applied batch of [`run_once`] meant.
#[derive(Debug, Clone)]
pub enum Once {
    /// It is done.
    Ran {
        /// The draft that was written.
        draft: Box<Draft>,
        /// An outcome past its retention was there.
        was_expired: bool,
    },
    /// The record was marked as unknown.
    Unknown(Box<Record>),
}

/// Decides a request whose whole effect is in this store: the key as done, its outcome and its
/// effects in one batch.
#[must_use]
pub fn run_once(
    request: &Claim,
    completion: &Completion,
    token: Token,
    facts: &Facts,
) -> Step<Once, Verdict> {
    let (condition, over, was_expired) = match standing(request, facts) {
        Standing::Answer(verdict) => return Step::Answer(verdict),
        Standing::Abandoned(record) => {
            let (batch, record) = unknown_batch(record, token);
            return Step::Commit(batch, Once::Unknown(record));
        }
        Standing::Free { condition, over, was_expired } => (condition, over, was_expired),
    };
    let retain_ms = completion.retain_ms.unwrap_or(request.terms.retain_ms);
    let done = (completion.digest, &completion.outcome, retain_ms);
    let draft = once_draft(request, done, over, was_expired);
    let mut batch = Batch::new(token);
    batch.conditions.push(condition);
    batch.writes.push(Write::Put(Box::new(draft.clone())));
    if let Err(refused) = add_guard(&mut batch, request.guard.as_ref(), facts) {
        return Step::Answer(refused);
    }
    if request.audited {
        let mut entry = Entry::about(&request.key, "done", &request.fingerprint, &request.trace);
        entry.version_after = request.guard.as_ref().map(|guard| guard.rule.moves_to());
        batch.writes.push(Write::Audit(Box::new(entry)));
    }
    match add_effects(&mut batch, &completion.effects, &request.trace, facts) {
        Ok(looks) if looks.is_empty() => {
            Step::Commit(batch, Once::Ran { draft: Box::new(draft), was_expired })
        }
        Ok(looks) => Step::Look(looks),
        Err(refused) => Step::Answer(refused),
    }
}

/// Adds a further key, as done.
///
/// # Errors
/// The record that is there, when the key is not free.
pub(super) fn place_done(
    batch: &mut Batch,
    key: &DoneKey,
    facts: &Facts,
) -> Result<(), Box<Record>> {
    let DoneKey { claim, outcome } = key;
    let (condition, over, was_expired) = match standing(claim, facts) {
        Standing::Free { condition, over, was_expired } => (condition, over, was_expired),
        Standing::Abandoned(_) | Standing::Answer(_) => {
            let there = facts.record(&claim.key).flatten();
            return Err(Box::new(match there {
                Some(stored) => stored.record.clone(),
                None => blank(claim, State::Done),
            }));
        }
    };
    let done = (fingerprint_bytes(outcome), outcome, claim.terms.retain_ms);
    let draft = once_draft(claim, done, over, was_expired);
    batch.conditions.push(condition);
    batch.writes.push(Write::Put(Box::new(draft)));
    Ok(())
}

fn once_draft(
    request: &Claim,
    (digest, outcome, retain_ms): (Fingerprint, &Bytes, u64),
    over: Option<&Record>,
    was_expired: bool,
) -> Draft {
    let mut record = blank(request, State::Done);
    record.outcome = Some(digest);
    record.terms.retain_ms = retain_ms;
    record.attempt = match over {
        Some(over) if !was_expired => over.attempt.saturating_add(1),
        _ => 1,
    };
    if let Some(over) = over {
        record.created_at = over.created_at;
    }
    Draft {
        fence: FenceWrite::Once,
        fresh: over.is_none() || was_expired,
        due: Time::Clear,
        expires: Time::In(record.terms.retain_ms),
        sweep: Time::In(record.terms.retain_ms),
        outcome: Body::Set(outcome.clone()),
        payload: payload_body(request.payload.as_ref(), over.is_some_and(|over| over.has_payload)),
        record,
    }
}

/// Adds a guard's condition and the move of its mark.
pub(super) fn add_guard(
    batch: &mut Batch,
    guard: Option<&Guard>,
    facts: &Facts,
) -> Result<(), Verdict> {
    let Some(guard) = guard else { return Ok(()) };
    judge(guard, facts).map_err(Verdict::Refused)?;
    batch.conditions.push(guard_condition(guard));
    batch.writes.push(Write::Mark {
        subject: guard.subject.clone(),
        position: guard.rule.moves_to(),
        value: Body::Keep,
    });
    Ok(())
}

pub(super) fn guard_condition(guard: &Guard) -> Condition {
    let subject = guard.subject.clone();
    match guard.rule.need() {
        Need::Is(n) => Condition::PositionIs(subject, n),
        Need::AtMost(n) => Condition::PositionAtMost(subject, n),
    }
}

fn standing<'a>(request: &Claim, facts: &'a Facts) -> Standing<'a> {
    let key = request.key.clone();
    let stored = match facts.record(&request.key) {
        None | Some(None) => {
            let condition = Condition::Absent(key);
            return Standing::Free { condition, over: None, was_expired: false };
        }
        Some(Some(stored)) => stored,
    };
    let record = &stored.record;
    let mut state = record.state_at(facts.now);
    if planted(Bug::ExpiredReplayed) && state == State::Expired && stored.outcome.is_some() {
        state = State::Done;
    }
    let over_rev = Condition::RevIs(key, record.rev);
    if state == State::Expired {
        return Standing::Free { condition: over_rev, over: Some(record), was_expired: true };
    }
    let seen = !planted(Bug::MismatchOnlyWhenDone) || state == State::Done;
    if record.fingerprint != request.fingerprint && seen {
        return Standing::Answer(Verdict::Mismatch(Box::new(record.clone())));
    }
    let free = |condition| Standing::Free { condition, over: Some(record), was_expired: false };
    match state {
        State::Done | State::Expired => Standing::Answer(Verdict::Replay(Box::new(stored.clone()))),
        State::Dead => Standing::Answer(Verdict::Dead(Box::new(record.clone()))),
        State::Unknown => Standing::Answer(Verdict::Unknown(Box::new(record.clone()))),
        State::Pending | State::Failed => match not_due_ms(record, facts) {
            0 => free(over_rev),
            retry_after_ms => Standing::Answer(Verdict::Busy { retry_after_ms }),
        },
        State::Running if !facts.lapsed(record) => running(request, stored, facts),
        State::Running if record.terms.on_abandoned == OnAbandoned::Hold => {
            Standing::Abandoned(record)
        }
        State::Running => free(takeover_condition(record, over_rev)),
    }
}

/// A live lease: one's own claim comes again, or someone else's runs.
fn running<'a>(request: &Claim, stored: &'a Stored, facts: &Facts) -> Standing<'a> {
    let record = &stored.record;
    let own = request.attempt_id.is_some() && record.attempt_id == request.attempt_id;
    if own && let Some(permit) = Permit::of(record.clone()) {
        return Standing::Answer(Verdict::Run { permit, was_expired: false });
    }
    let by_store_ms = record.due_at.map_or(0, |end| end.since(facts.now));
    let retry_after_ms = match facts.clock {
        // The store's clock is past its end, and does not count.
        Clock::Watched { unchanged_ms } if by_store_ms == 0 => {
            record.terms.lease_ms.saturating_sub(unchanged_ms)
        }
        _ => by_store_ms,
    };
    Standing::Answer(Verdict::Busy { retry_after_ms: retry_after_ms.max(1) })
}

fn takeover_condition(record: &Record, over_rev: Condition) -> Condition {
    match record.fence {
        Some(fence) if planted(Bug::TakeoverByFence) => {
            Condition::FenceIs(record.key.clone(), fence)
        }
        _ => over_rev,
    }
}

fn not_due_ms(record: &Record, facts: &Facts) -> u64 {
    record.due_at.map_or(0, |due| due.since(facts.now))
}

/// The lease of a held record ran out: it becomes unknown. The fence stays, so that its owner, if
/// it lives after all, can still say how it ended.
pub(super) fn unknown_batch(record: &Record, token: Token) -> (Batch, Box<Record>) {
    let mut unknown = record.clone();
    unknown.state = State::Unknown;
    let mut batch = Batch::new(token);
    batch.conditions.push(Condition::RevIs(record.key.clone(), record.rev));
    let mut draft = rewrite(unknown.clone(), FenceWrite::Keep);
    draft.due = Time::Clear;
    draft.sweep = Time::Clear;
    batch.writes.push(Write::Put(Box::new(draft)));
    let entry = Entry::about(&record.key, "unknown", &record.fingerprint, &record.trace);
    batch.writes.push(Write::Audit(Box::new(entry)));
    (batch, Box::new(unknown))
}

/// [`unknown_batch`] as the outcome of a claim.
pub(super) fn mark_unknown(record: &Record, token: Token) -> Step<Granted, Verdict> {
    let (batch, record) = unknown_batch(record, token);
    Step::Commit(batch, Granted::Unknown(record))
}

fn takeover_entry(request: &Claim, over: &Record) -> Entry {
    let mut entry = Entry::about(&request.key, "takeover", &request.fingerprint, &request.trace);
    entry.fence = Some(over.last_fence.0);
    entry.detail = Some("the lease ran out; a new attempt was granted".into());
    entry
}

/// How long a record of these terms is kept after a failure that nobody takes up again.
pub(super) fn failed_sweep(key: &Key, terms: &Terms, due_in_ms: u64) -> Time {
    match key.kind() {
        Kind::Request => Time::In(due_in_ms.saturating_add(forget_after(terms))),
        Kind::Job | Kind::Event | Kind::Append => Time::Clear,
    }
}

impl Claim {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that breaks its bound.
    pub fn validate(&self) -> Result<(), LimitError> {
        if self.key.kind() == Kind::Job {
            // A claim would drop the job's payload and its place in the order.
            return Err(LimitError::new(
                "kind",
                "job",
                "another kind: jobs are enqueued and taken",
            ));
        }
        self.terms.validate()?;
        self.trace.validate()?;
        for (field, text) in [("owner", &self.owner), ("attempt_id", &self.attempt_id)] {
            check_part(field, text.as_deref().unwrap_or_default(), 0)?;
        }
        if let Some(guard) = &self.guard {
            guard.rule.validate()?;
        }
        match &self.guard {
            Some(guard) if guard.subject.tenant_column() != self.key.tenant_column() => {
                Err(LimitError::new("guard", "another tenant's subject", "of the key's own tenant"))
            }
            _ => Ok(()),
        }
    }
}

/// What a request has to know before it can be decided without a guess.
#[must_use]
pub fn looks(request: &Claim) -> Vec<Look> {
    let mut looks = vec![Look::Record(request.key.clone())];
    looks.extend(request.guard.iter().map(|guard| Look::Mark(guard.subject.clone())));
    looks
}
