//! The end of a schedule: the faults stop, and every key must come to rest (i10, i22).
//!
//! All workers are gone, what was under way arrives or does not, and one healthy worker does what
//! is left. A key that it can neither finish nor find final within a few leases is stuck.

use onceward_core::decide::{Finish, Resolution, Verdict};
use onceward_core::guard::Rule;
use onceward_core::record::State;

use super::Simulator;
use super::actor::RETRY_MS;
use super::auditor::Violation;
use super::op::{Ask, Ended, Op, Tag};
use super::plan::{AGGREGATE, EVENTS, FIRST_JOB, JOBS, KEYS, Shape, TAIL, TIMES, TURN};

/// Leases within which a key must come to rest.
const ROUNDS: u32 = 8;

impl Simulator {
    /// Heals the world and checks that every key comes to rest.
    pub(super) fn heal(&mut self) {
        self.calm();
        self.actors.clear();
        let healer = self.born(0);
        self.actors.push(healer);
        self.trace.note(self.now, [50, 0, 0], || "the faults stop".into());
        self.now += self.plan.terms.lease_ms + RETRY_MS;
        match self.plan.shape {
            Shape::Jobs => self.heal_jobs(),
            Shape::Events => {
                for number in 1..=EVENTS as u64 {
                    let tag = self.event(self.counters.uid, 0, number);
                    self.heal_request(tag);
                }
            }
            _ => {
                for key in 0..self.plan.keys {
                    self.heal_request(Tag::of(key, self.counters.uid));
                }
            }
        }
    }

    fn heal_request(&mut self, mut tag: Tag) {
        for _ in 0..ROUNDS {
            if self.auditor.broken.is_some() {
                return;
            }
            let (state, variant) = self.auditor.expects(tag.key);
            tag.variant = if state.is_some() { variant } else { 0 };
            tag.guard = self.current_guard(tag);
            let claim = self.claim(&tag, 0);
            match self.settle(Op::new(Ask::Claim(Box::new(claim)), tag)) {
                Ended::Verdict(Verdict::Run { permit, .. }) => {
                    tag.fence = permit.fence.0;
                    if self.healed_effect(tag, permit) {
                        return;
                    }
                }
                Ended::Verdict(Verdict::Busy { retry_after_ms }) => {
                    let bound = self.plan.terms.lease_ms + RETRY_MS;
                    if retry_after_ms > bound {
                        self.stuck("i10", tag.key, "has to wait longer than a lease");
                    }
                    let watch = if self.plan.watched { self.plan.terms.lease_ms } else { 0 };
                    self.now += retry_after_ms.max(watch);
                }
                Ended::Verdict(Verdict::Unknown(_)) => self.resolve_by_hand(tag),
                Ended::Verdict(Verdict::Mismatch(_)) => {
                    return self.stuck("mismatch", tag.key, "does not know its own payload");
                }
                // Final: an outcome, poison, or an order that has passed it by.
                _ => return,
            }
        }
        self.stuck("i22", tag.key, "did not come to rest");
    }

    fn current_guard(&self, tag: Tag) -> Option<(usize, Rule)> {
        match self.plan.shape {
            Shape::Guarded => {
                let expected = self.auditor.position(AGGREGATE);
                Some((AGGREGATE, Rule::Exactly { expected }))
            }
            Shape::Times => {
                let at = self.auditor.position(TIMES);
                Some((TIMES, Rule::NotBefore { at, grace_ms: 300 }))
            }
            _ => tag.guard,
        }
    }

    /// Takes effect and hands in; whether that worked.
    fn healed_effect(&mut self, mut tag: Tag, permit: onceward_core::decide::Permit) -> bool {
        if self.plan.plain {
            self.auditor.effect(&tag, true, self.now);
        }
        tag.in_transaction = !self.plan.plain;
        tag.outcome = self.next_outcome();
        let completion = Box::new(self.completion(&tag, tag.in_transaction));
        let ended = self.settle(Op::new(Ask::Complete(permit, completion), tag));
        matches!(ended, Ended::Finish(Finish::Ok))
    }

    fn resolve_by_hand(&mut self, tag: Tag) {
        let how = Resolution::Rerun { force: false };
        let key = self.catalog.keys[tag.key].clone();
        self.settle(Op::new(Ask::Resolve(key, how), tag));
    }

    fn heal_jobs(&mut self) {
        for _ in 0..ROUNDS * 2 {
            if self.auditor.broken.is_some() || self.jobs_at_rest() {
                break;
            }
            self.heal_due_jobs();
            self.heal_held_jobs();
            self.now += self.plan.terms.lease_ms + RETRY_MS;
        }
        if self.auditor.broken.is_some() {
            return;
        }
        for key in FIRST_JOB..FIRST_JOB + JOBS {
            if !self.job_at_rest(key) {
                return self.stuck("i22", key, "is a job that never came to an end");
            }
        }
        let (made, ended) = (self.auditor.position(TAIL), self.auditor.position(TURN));
        if made != ended && !self.blocked() {
            self.stuck("i22", KEYS, "stands for jobs whose turn never comes");
        }
    }

    fn heal_due_jobs(&mut self) {
        let now = self.store_now();
        let due: Vec<usize> = self
            .state
            .due(self.catalog.queue(), now)
            .filter_map(|record| self.catalog.key_index(&record.key))
            .collect();
        for key in due {
            let mut tag = Tag::of(key, self.counters.uid);
            let owner = self.catalog.owners[0].clone();
            let ask = Ask::Take(self.catalog.keys[key].clone(), owner);
            if let Ended::Verdict(Verdict::Run { permit, .. }) = self.settle(Op::new(ask, tag)) {
                tag.fence = permit.fence.0;
                let other = permit.record.fingerprint == self.catalog.payloads[1].0;
                tag.variant = usize::from(other);
                tag.guard = permit.record.guard.as_ref().map(|guard| (TURN, guard.rule));
                self.healed_effect(tag, permit);
            }
        }
    }

    /// What only a hand can free: held jobs, and dead ones that block their subject.
    fn heal_held_jobs(&mut self) {
        for key in FIRST_JOB..FIRST_JOB + JOBS {
            let tag = Tag::of(key, self.counters.uid);
            let blocks = self.blocked() && self.auditor.expects(key).0 == Some(State::Dead);
            if self.auditor.expects(key).0 == Some(State::Unknown) || blocks {
                self.resolve_by_hand(tag);
            }
        }
    }

    /// Whether a dead job may hold up its subject.
    fn blocked(&self) -> bool {
        self.plan.terms.on_dead == onceward_core::record::OnDead::Block
    }

    fn jobs_at_rest(&self) -> bool {
        (FIRST_JOB..FIRST_JOB + JOBS).all(|key| self.job_at_rest(key))
    }

    fn job_at_rest(&self, key: usize) -> bool {
        let (state, _) = self.auditor.expects(key);
        matches!(state, None | Some(State::Done | State::Dead | State::Expired))
    }

    fn stuck(&mut self, invariant: &'static str, key: usize, what: &str) {
        let what = format!("key {key} {what}");
        self.auditor.note(Err(Violation { invariant, what }));
    }
}
