//! Jobs: a job is a record in `pending` until someone takes it.
//!
//! A job with a subject gets the subject's next number when it is made and is guarded by `next`
//! when it is taken, so jobs of one subject run one at a time in the order of their making.

use super::claim::{Claim, Granted, mark_unknown};
use super::effects::NewJob;
use super::{Facts, Look, Step, Verdict, blank, judge, rewrite, running_sweep};
use crate::audit::{Entry, Trace};
use crate::batch::{Batch, Condition, Write};
use crate::guard::{Guard, Rule};
use crate::key::{Key, Subject};
use crate::limits::LimitError;
use crate::record::{Body, Draft, FenceWrite, OnAbandoned, OnDead, Record, State, Time};
use crate::stamp::Token;
use crate::zoo::{Bug, planted};

/// The answer to an enqueue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueue {
    /// The job was made.
    Made,
    /// A job with this key and payload is there already; it keeps its state.
    There(Box<Record>),
    /// A job with this key has another payload.
    Mismatch(Box<Record>),
}

/// What became of a job that joins a batch.
pub(super) enum Placed {
    Added,
    There(Box<Record>),
    Mismatch(Box<Record>),
    Look(Look),
}

/// The two counters that keep jobs of one subject in order within one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobOrder {
    /// Counts the jobs that were made.
    pub tail: Subject,
    /// Counts the jobs that have ended.
    pub done: Subject,
}

/// Spaces of the counters.
const TAIL: &str = "jobs.tail";
const DONE: &str = "jobs.done";

/// Checks that a subject may be written by hand: whoever moved a counter of jobs would make jobs of
/// its subject run out of order, or never.
///
/// # Errors
/// When it is one of [`JobOrder`].
pub fn check_writable(subject: &Subject) -> Result<(), LimitError> {
    let space = subject.space();
    if space == TAIL || space == DONE {
        let bound = "another space: jobs.tail and jobs.done are kept by the queues";
        return Err(LimitError::new("space", space, bound));
    }
    Ok(())
}

impl JobOrder {
    /// The order of a subject's jobs in the queue that `key` belongs to.
    ///
    /// # Errors
    /// When queue and subject together are too long.
    pub fn new(key: &Key, subject: &str) -> Result<Self, LimitError> {
        let id = format!("{}:{}", key.scope_column(), crate::text::escape(subject));
        Ok(Self {
            tail: Subject::new(&key.tenant(), TAIL, &id)?,
            done: Subject::new(&key.tenant(), DONE, &id)?,
        })
    }
}

/// Decides whether a job is made.
#[must_use]
pub fn enqueue(job: &NewJob, token: Token, facts: &Facts) -> Step<Enqueue, Enqueue> {
    let mut batch = Batch::new(token);
    match place_job(&mut batch, job, &Trace::default(), facts) {
        Placed::Added => Step::Commit(batch, Enqueue::Made),
        Placed::There(record) => Step::Answer(Enqueue::There(record)),
        Placed::Mismatch(record) => Step::Answer(Enqueue::Mismatch(record)),
        Placed::Look(look) => Step::Look(vec![look]),
    }
}

pub(super) fn place_job(batch: &mut Batch, job: &NewJob, from: &Trace, facts: &Facts) -> Placed {
    let mut over = None;
    if let Some(Some(stored)) = facts.record(&job.key) {
        let record = &stored.record;
        if record.state_at(facts.now) != State::Expired {
            let same = record.fingerprint == job.fingerprint;
            let record = Box::new(record.clone());
            return if same { Placed::There(record) } else { Placed::Mismatch(record) };
        }
        over = Some(record);
    }
    let mut request = Claim::new(job.key.clone(), job.fingerprint);
    request.terms = job.terms;
    request.payload = Some(job.payload.clone());
    request.trace = joined(&job.trace, from);
    let mut record = blank(&request, State::Pending);
    record.priority = job.priority;
    let mut tail = None;
    if let Some(order) = &job.order {
        let Some(made) = made_so_far(batch, &order.tail, facts) else {
            return Placed::Look(Look::Mark(order.tail.clone()));
        };
        let rule = Rule::Next { position: made + 1 };
        record.guard = Some(Guard { subject: order.done.clone(), rule });
        tail = Some((order.tail.clone(), made));
    }
    batch.conditions.push(match over {
        Some(over) => Condition::RevIs(job.key.clone(), over.rev),
        None => Condition::Absent(job.key.clone()),
    });
    let mut entry = Entry::about(&job.key, "enqueued", &job.fingerprint, &request.trace);
    entry.detail.clone_from(&job.about);
    batch.writes.push(Write::Put(Box::new(Draft {
        record,
        fence: FenceWrite::End,
        fresh: true,
        due: Time::In(job.run_in_ms),
        expires: Time::Clear,
        sweep: Time::Clear,
        outcome: if over.is_some() { Body::Clear } else { Body::Keep },
        payload: Body::Set(job.payload.clone()),
    })));
    if let Some((tail, made)) = tail {
        push_tail(batch, tail, made);
    }
    batch.writes.push(Write::Audit(Box::new(entry)));
    Placed::Added
}

/// The subject's number so far: in this batch, if it made one already, or as looked up.
fn made_so_far(batch: &Batch, counter: &Subject, facts: &Facts) -> Option<u64> {
    let in_batch = batch.writes.iter().find_map(|write| match write {
        Write::Mark { subject, position, .. } if subject == counter => Some(*position),
        _ => None,
    });
    in_batch.or_else(|| facts.position(counter))
}

fn push_tail(batch: &mut Batch, counter: Subject, made: u64) {
    for write in &mut batch.writes {
        if let Write::Mark { subject, position, .. } = write
            && *subject == counter
        {
            *position = made + 1;
            return;
        }
    }
    batch.conditions.push(Condition::PositionIs(counter.clone(), made));
    batch.writes.push(Write::Mark { subject: counter, position: made + 1, value: Body::Keep });
}

fn joined(own: &Trace, from: &Trace) -> Trace {
    Trace {
        actor: own.actor.clone().or_else(|| from.actor.clone()),
        request_id: own.request_id.clone().or_else(|| from.request_id.clone()),
        correlation_id: own
            .correlation_id
            .clone()
            .or_else(|| from.correlation_id.clone())
            .or_else(|| from.request_id.clone()),
    }
}

/// Decides whether a job that was listed as due may be taken by `owner`.
///
/// `Busy` with a wait of 0 means that it is not takeable now (someone was first, or its turn has
/// not come) and should be passed over.
#[must_use]
pub fn take(
    key: &Key,
    owner: &str,
    lease_ms: Option<u64>,
    token: Token,
    facts: &Facts,
) -> Step<Granted, Verdict> {
    let stored = match facts.record(key) {
        None => return Step::Look(vec![Look::Record(key.clone())]),
        Some(None) => return Step::Answer(Verdict::Busy { retry_after_ms: 0 }),
        Some(Some(stored)) => stored,
    };
    let record = &stored.record;
    let due = match record.state {
        State::Pending | State::Failed => record.due_at.is_none_or(|due| facts.now >= due),
        State::Running => facts.lapsed(record),
        _ => false,
    };
    if !due {
        return Step::Answer(Verdict::Busy { retry_after_ms: 0 });
    }
    let abandoned = record.state == State::Running;
    if abandoned && record.terms.on_abandoned == OnAbandoned::Hold {
        return mark_unknown(record, token);
    }
    let guard = record.guard.as_ref().filter(|_| !planted(Bug::OrderedJobsOutOfOrder));
    if let Some(guard) = guard {
        if facts.position(&guard.subject).is_none() {
            return Step::Look(vec![Look::Mark(guard.subject.clone())]);
        }
        if let Err(refusal) = judge(guard, facts) {
            return Step::Answer(Verdict::Refused(refusal));
        }
    }
    if abandoned && is_spent(record) {
        return bury_abandoned(record, token);
    }
    grant_job(record, guard, (owner, lease_ms), token)
}

fn grant_job(
    record: &Record,
    guard: Option<&Guard>,
    (owner, lease_ms): (&str, Option<u64>),
    token: Token,
) -> Step<Granted, Verdict> {
    let mut running = record.clone();
    running.state = State::Running;
    running.attempt = record.attempt.saturating_add(1);
    running.owner = Some(super::text(owner));
    running.terms.lease_ms = lease_ms.unwrap_or(record.terms.lease_ms);
    let mut draft = rewrite(running, FenceWrite::Grant);
    if planted(Bug::FenceByWorkerName)
        && record.owner.as_deref() == Some(owner)
        && record.last_fence.0 > 0
    {
        draft.record.fence = Some(record.last_fence);
        draft.fence = FenceWrite::Keep;
    }
    draft.due = Time::In(draft.record.terms.lease_ms);
    draft.sweep = running_sweep(&draft.record, &draft.record.terms);
    let mut batch = Batch::new(token);
    batch.conditions.push(match record.fence {
        Some(fence) if planted(Bug::TakeoverByFence) => {
            Condition::FenceIs(record.key.clone(), fence)
        }
        _ => Condition::RevIs(record.key.clone(), record.rev),
    });
    if let Some(guard) = guard {
        batch.conditions.push(super::claim::guard_condition(guard));
    }
    batch.writes.push(Write::Put(Box::new(draft.clone())));
    Step::Commit(batch, Granted::Run { draft: Box::new(draft), was_expired: false })
}

/// Whether no attempt is left.
pub(super) fn is_spent(record: &Record) -> bool {
    record.terms.max_attempts > 0 && record.attempt >= record.terms.max_attempts
}

/// A record whose workers vanished on every attempt is poison.
pub(super) fn bury_abandoned(record: &Record, token: Token) -> Step<Granted, Verdict> {
    let mut dead = record.clone();
    dead.state = State::Dead;
    dead.error = Some(super::text("every attempt was abandoned: its worker vanished"));
    let mut batch = Batch::new(token);
    batch.conditions.push(Condition::RevIs(record.key.clone(), record.rev));
    push_dead(&mut batch, dead.clone(), None);
    Step::Commit(batch, Granted::Dead(Box::new(dead)))
}

/// Writes a record as dead and, if its subject goes on without it, moves the mark past it. `by` is
/// who decided so, if it was not the record's own course.
pub(super) fn push_dead(batch: &mut Batch, dead: Record, by: Option<&Trace>) {
    let trace = by.unwrap_or(&dead.trace);
    let mut entry = Entry::about(&dead.key, "dead", &dead.fingerprint, trace);
    entry.fence = Some(dead.last_fence.0);
    entry.detail.clone_from(&dead.error);
    let passed = dead.guard.clone().filter(|_| dead.terms.on_dead == OnDead::Skip);
    let mut draft = rewrite(dead, FenceWrite::End);
    draft.due = Time::Clear;
    draft.sweep = Time::Clear;
    batch.writes.push(Write::Put(Box::new(draft)));
    if let Some(Guard { subject, rule: rule @ Rule::Next { .. } }) = passed {
        // It was granted at position - 1 and marks never move back, so this can't skip anyone.
        batch.writes.push(Write::Mark { subject, position: rule.moves_to(), value: Body::Keep });
    }
    batch.writes.push(Write::Audit(Box::new(entry)));
}
