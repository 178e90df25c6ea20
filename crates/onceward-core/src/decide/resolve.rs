//! Decisions by hand: what becomes of a record that nobody may run.
//!
//! Everything here is decided from facts and conditional on the rev, and it ends every permit: a
//! zombie of the old attempt fits nothing afterwards.

use super::claim::{failed_sweep, guard_condition};
use super::job::push_dead;
use super::{Facts, Look, Step, judge, rewrite};
use crate::Bytes;
use crate::audit::{Entry, Trace};
use crate::batch::{Batch, Condition, Write};
use crate::fingerprint::Fingerprint;
use crate::guard::{Guard, Misfit, Rule};
use crate::key::{Key, Kind};
use crate::record::{Body, FenceWrite, OnDead, Record, State, Time, error_text};
use crate::stamp::Token;
use crate::zoo::{Bug, planted};

/// What a person decides about a record.
#[derive(Debug, Clone)]
pub enum Resolution {
    /// Run again: a job becomes pending, a request may be retried.
    Rerun {
        /// Also when its subject has passed it.
        force: bool,
    },
    /// It happened: this is the outcome.
    Done {
        /// The outcome's bytes and their digest.
        outcome: (Bytes, Fingerprint),
    },
    /// It will never run.
    Dead {
        /// Why.
        reason: String,
    },
    /// Forget the key with everything beside it.
    Erase,
    /// Forget a dead letter; nothing else.
    Discard,
}

/// The answer to a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// Done as asked.
    Ok,
    /// There is no such record.
    Absent,
    /// The record does not allow it: a live lease, an outcome that is final, or an ordered job that
    /// can't be passed over before its turn has come.
    NotNow(Box<Record>),
    /// Its subject has moved past it; `force` runs it all the same.
    Stale {
        /// Where the subject is.
        current: u64,
    },
}

/// Decides a resolution.
#[must_use]
pub fn resolve(
    key: &Key,
    resolution: &Resolution,
    trace: &Trace,
    token: Token,
    facts: &Facts,
) -> Step<Resolved, Resolved> {
    let record = match facts.record(key) {
        None => return Step::Look(vec![Look::Record(key.clone())]),
        Some(None) => return Step::Answer(Resolved::Absent),
        Some(Some(stored)) => &stored.record,
    };
    if !allowed(record, resolution, facts) {
        return Step::Answer(Resolved::NotNow(Box::new(record.clone())));
    }
    let passed = match passes(record, resolution, facts) {
        Ok(passed) => passed,
        Err(step) => return step,
    };
    let mut batch = Batch::new(token);
    batch.conditions.push(Condition::RevIs(key.clone(), record.rev));
    batch.conditions.extend(passed.map(guard_condition));
    let by_hand = |action: &str| {
        let mut entry = Entry::about(key, action, &record.fingerprint, trace);
        entry.detail = Some(format!("by hand, from {}", record.state.as_str()).into());
        Write::Audit(Box::new(entry))
    };
    match resolution {
        Resolution::Rerun { force } => {
            let mut out_of_order = false;
            if let Some(guard) = &record.guard {
                if facts.position(&guard.subject).is_none() {
                    return Step::Look(vec![Look::Mark(guard.subject.clone())]);
                }
                match judge(guard, facts) {
                    Err(refusal) if !force => {
                        return Step::Answer(Resolved::Stale { current: refusal.current });
                    }
                    // Only what was passed runs outside the order: others still have their turn,
                    // and those behind them wait for it.
                    Err(refusal) => out_of_order = refusal.why == Misfit::Stale,
                    Ok(()) => {}
                }
            }
            push_rerun(&mut batch, record, out_of_order);
            batch.writes.push(by_hand("rerun"));
        }
        Resolution::Done { outcome } => {
            push_done(&mut batch, record, outcome);
            batch.writes.push(by_hand("done"));
        }
        Resolution::Dead { reason } => {
            let mut dead = record.clone();
            dead.state = State::Dead;
            dead.error = Some(error_text(reason));
            push_dead(&mut batch, dead, Some(trace));
        }
        Resolution::Erase | Resolution::Discard => {
            batch.writes.push(Write::Delete(key.clone()));
            batch.writes.extend(passed.map(|guard| Write::Mark {
                subject: guard.subject.clone(),
                position: guard.rule.moves_to(),
                value: Body::Keep,
            }));
            let discarded = matches!(resolution, Resolution::Discard);
            batch.writes.push(by_hand(if discarded { "discarded" } else { "erased" }));
        }
    }
    Step::Commit(batch, Resolved::Ok)
}

/// A live lease belongs to its holder, and an outcome is final until its retention ends; a person
/// may erase an outcome, because erasure can be a duty.
fn allowed(record: &Record, resolution: &Resolution, facts: &Facts) -> bool {
    match (record.state_at(facts.now), resolution) {
        (state, Resolution::Discard) => state == State::Dead,
        (State::Running, _) => facts.lapsed(record),
        (_, Resolution::Erase) => true,
        (State::Done | State::Expired, _) => false,
        (State::Pending, Resolution::Rerun { .. }) => false,
        (State::Dead, Resolution::Dead { .. }) => false,
        _ => true,
    }
}

/// The guard whose subject goes past the record, when it is the record's turn. Before its turn, an
/// ordered job can't be passed over: those before it would never run.
fn passes<'a>(
    record: &'a Record,
    resolution: &Resolution,
    facts: &Facts,
) -> Result<Option<&'a Guard>, Step<Resolved, Resolved>> {
    let ends = match resolution {
        Resolution::Rerun { .. } => false,
        Resolution::Done { .. } => true,
        Resolution::Dead { .. } => record.terms.on_dead == OnDead::Skip,
        // An event that is forgotten may come again; a job never does.
        Resolution::Erase | Resolution::Discard => record.key.kind() == Kind::Job,
    };
    let guard = record.guard.as_ref().filter(|guard| matches!(guard.rule, Rule::Next { .. }));
    let ends = ends && !planted(Bug::PassedBeforeTurn);
    let Some(guard) = guard.filter(|_| ends) else { return Ok(None) };
    if facts.position(&guard.subject).is_none() {
        return Err(Step::Look(vec![Look::Mark(guard.subject.clone())]));
    }
    match judge(guard, facts) {
        Ok(()) => Ok(Some(guard)),
        Err(refusal) if refusal.why == Misfit::Stale => Ok(None),
        Err(_) => Err(Step::Answer(Resolved::NotNow(Box::new(record.clone())))),
    }
}

fn push_rerun(batch: &mut Batch, record: &Record, out_of_order: bool) {
    let mut again = record.clone();
    let job = record.key.kind() == Kind::Job;
    // The count starts anew. But an earlier attempt of a request may have had its effect, and a
    // release of a first attempt forgets the key: the next one counts as the second.
    again.attempt = u32::from(!job && !planted(Bug::RerunForgets));
    if out_of_order {
        // Its turn has passed: it runs outside the order, once, because a person said so.
        again.guard = None;
    }
    again.state = if job { State::Pending } else { State::Failed };
    let sweep = failed_sweep(&again.key, &again.terms, 0);
    let mut draft = rewrite(again, FenceWrite::End);
    draft.due = Time::In(0);
    draft.sweep = sweep;
    batch.writes.push(Write::Put(Box::new(draft)));
}

fn push_done(batch: &mut Batch, record: &Record, outcome: &(Bytes, Fingerprint)) {
    let mut done = record.clone();
    done.state = State::Done;
    done.outcome = Some(outcome.1);
    done.error = None;
    let guard = done.guard.clone();
    let retain_ms = done.terms.retain_ms;
    let mut draft = rewrite(done, FenceWrite::Once);
    draft.due = Time::Clear;
    draft.expires = Time::In(retain_ms);
    draft.sweep = Time::In(retain_ms);
    draft.outcome = Body::Set(outcome.0.clone());
    batch.writes.push(Write::Put(Box::new(draft)));
    if let Some(guard) = guard {
        // Said by hand to have happened: the subject moves on, never back.
        let position = guard.rule.moves_to();
        batch.writes.push(Write::Mark { subject: guard.subject, position, value: Body::Keep });
    }
}
