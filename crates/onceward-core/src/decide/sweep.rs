//! The sweep: outcomes past their retention, keys past their remembrance.
//!
//! Conditional on the rev, so two sweeps at once, or a claim in between, do no harm. Live running,
//! unknown and dead records are never swept; neither is a job that still has to run.

use super::claim::unknown_batch;
use super::{Facts, Look, Step, rewrite};
use crate::batch::{Batch, Condition, Write};
use crate::key::Key;
use crate::record::{Body, FenceWrite, OnAbandoned, Record, State, Time};
use crate::stamp::Token;
use crate::zoo::{Bug, planted};

/// What the sweep did with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Swept {
    /// Its outcome was dropped; the key is still known.
    Expired,
    /// It was removed.
    Forgotten,
    /// Its lease ran out under `hold`: it is unknown now.
    MarkedUnknown,
    /// It was not time, or someone else was first.
    Left,
}

/// Decides about one record that was listed as due for the sweep.
#[must_use]
pub fn sweep(key: &Key, token: Token, facts: &Facts) -> Step<Swept, Swept> {
    let record = match facts.record(key) {
        None => return Step::Look(vec![Look::Record(key.clone())]),
        Some(None) => return Step::Answer(Swept::Left),
        Some(Some(stored)) => &stored.record,
    };
    if record.sweep_at.is_none_or(|at| facts.now < at) && !planted(Bug::SweepDeletesLive) {
        return Step::Answer(Swept::Left);
    }
    match record.state_at(facts.now) {
        State::Expired if record.state == State::Done && record.terms.remember_ms > 0 => {
            Step::Commit(expire(record, token), Swept::Expired)
        }
        State::Expired | State::Failed => Step::Commit(forget(record, token), Swept::Forgotten),
        State::Running if planted(Bug::SweepDeletesLive) => {
            Step::Commit(forget(record, token), Swept::Forgotten)
        }
        State::Running if !facts.lapsed(record) => Step::Answer(Swept::Left),
        State::Running if record.terms.on_abandoned == OnAbandoned::Hold => {
            Step::Commit(unknown_batch(record, token).0, Swept::MarkedUnknown)
        }
        State::Running => Step::Commit(forget(record, token), Swept::Forgotten),
        State::Pending | State::Done | State::Dead | State::Unknown => Step::Answer(Swept::Left),
    }
}

fn expire(record: &Record, token: Token) -> Batch {
    let mut expired = record.clone();
    expired.state = State::Expired;
    expired.outcome = None;
    expired.has_payload = false;
    let remember_ms = expired.terms.remember_ms;
    let mut draft = rewrite(expired, FenceWrite::End);
    draft.sweep = Time::In(remember_ms);
    draft.outcome = Body::Clear;
    draft.payload = Body::Clear;
    let mut batch = conditional(record, token);
    batch.writes.push(Write::Put(Box::new(draft)));
    batch
}

fn forget(record: &Record, token: Token) -> Batch {
    let mut batch = conditional(record, token);
    batch.writes.push(Write::Delete(record.key.clone()));
    batch
}

fn conditional(record: &Record, token: Token) -> Batch {
    let mut batch = Batch::new(token);
    if !planted(Bug::SweepUnconditional) {
        batch.conditions.push(Condition::RevIs(record.key.clone(), record.rev));
    }
    batch
}
