//! The simulated network and the store's side of it.
//!
//! Messages under way are kept in a bag: whichever is drawn next arrives next, so every reordering
//! can happen. A request may be dropped, arrive twice, or arrive after its sender gave up; an
//! answer may be lost or come late. Groups are formed by the scheduler's rule: no two batches of a
//! group touch the same row.

use std::sync::Arc;

use onceward_core::batch::{Answer, Batch, Write};
use onceward_core::decide::Look;
use onceward_core::stamp::{At, Token};
use onceward_core::zoo::{Bug, planted};

use super::Simulator;
use super::op::{Act, Ended, Next, Op, Tag, Wait};
use crate::store::{Fact, Read};

/// Most batches in one simulated group.
const GROUP_MAX: usize = 3;

/// A message under way.
#[derive(Debug)]
pub(super) struct Flight {
    actor: usize,
    uid: u32,
    beat: bool,
    exchange: u32,
    /// Nobody waits for the answer to a second copy.
    echo: bool,
    sent_at: u64,
    cargo: Cargo,
}

#[derive(Debug)]
enum Cargo {
    Commit(Arc<Batch>, Tag, Act),
    Looks(Vec<Look>),
    Heard(u64, Answer),
    Seen(u64, Vec<(Look, Fact)>),
}

impl Simulator {
    /// Lets an op go on: it decides, or it loses its patience.
    pub(super) fn push(&mut self, actor: usize, beat: bool) {
        let Some(mut op) = self.take_op(actor, beat) else { return };
        match op.wait {
            Wait::Ready => self.decide(actor, beat, op),
            Wait::Seen | Wait::Answer => {
                let under_way = self.under_way(actor, &op);
                if under_way && !self.random.chance(self.plan.odds.timeout) {
                    self.put_op(actor, beat, op);
                    return;
                }
                self.tally.timed_out += u64::from(under_way);
                let waited = op.wait;
                op.wait = Wait::Ready;
                if waited == Wait::Seen {
                    self.decide(actor, beat, op);
                } else {
                    self.answer_lost(actor, beat, op);
                }
            }
        }
    }

    /// Whether an op's request or answer is still on its way.
    pub(super) fn under_way(&self, actor: usize, op: &Op) -> bool {
        let of_op = |flight: &Flight| {
            flight.actor == actor && flight.exchange == op.exchange && !flight.echo
        };
        op.wait != Wait::Ready && self.flights.iter().any(of_op)
    }

    fn decide(&mut self, actor: usize, beat: bool, mut op: Box<Op>) {
        self.prepare(actor, &mut op);
        let token = self.next_token();
        match op.decide(token) {
            Next::Look(looks) => {
                op.wait = Wait::Seen;
                op.sent_first = self.now;
                let cargo = Cargo::Looks(looks);
                self.send(actor, beat, op, cargo);
            }
            Next::Commit(batch, act) => {
                (op.act, op.token, op.lost) = (Some(act), batch.token, false);
                op.sent_first = self.now;
                self.commit(actor, beat, op, batch);
            }
            Next::End(ended) => self.ended(actor, beat, &op, ended),
        }
    }

    fn commit(&mut self, actor: usize, beat: bool, mut op: Box<Op>, batch: Arc<Batch>) {
        let Some(act) = op.act else { return };
        let (key, uid) = (op.tag.key as u64, op.tag.uid);
        self.trace.note(self.now, [2, key, act as u64], || {
            format!("worker {actor}.{uid} sends {act:?} of key {key} as {}", batch.token.0)
        });
        if self.random.chance(self.plan.odds.drop) {
            self.tally.dropped += 1;
            self.trace.note(self.now, [3, key, 0], || "  which is dropped on the way".into());
            if op.lost {
                // It speaks only of this try: an earlier one may have been applied.
                op.wait = Wait::Answer;
                op.exchange = 0;
                self.put_op(actor, beat, op);
            } else {
                self.ended(actor, beat, &op, Ended::NotApplied);
            }
            return;
        }
        let mut batch = batch;
        if planted(Bug::EffectAndRecordApart)
            && act == Act::Once
            && let Some((effects, record)) = apart(&batch)
        {
            self.fly(actor, beat, &op, Cargo::Commit(effects, op.tag, act), true);
            batch = record;
        }
        op.wait = Wait::Answer;
        let cargo = Cargo::Commit(batch, op.tag, act);
        self.send(actor, beat, op, cargo);
    }

    fn send(&mut self, actor: usize, beat: bool, mut op: Box<Op>, cargo: Cargo) {
        self.counters.exchange += 1;
        op.exchange = self.counters.exchange;
        op.sent_at = self.now;
        if let Cargo::Commit(batch, tag, act) = &cargo
            && self.random.chance(self.plan.odds.duplicate)
        {
            self.tally.duplicated += 1;
            let copy = Cargo::Commit(batch.clone(), *tag, *act);
            self.fly(actor, beat, &op, copy, true);
        }
        self.fly(actor, beat, &op, cargo, false);
        self.put_op(actor, beat, op);
    }

    fn fly(&mut self, actor: usize, beat: bool, op: &Op, cargo: Cargo, echo: bool) {
        self.flights.push(Flight {
            actor,
            uid: op.tag.uid,
            beat,
            exchange: op.exchange,
            echo,
            sent_at: self.now,
            cargo,
        });
    }

    /// The caller heard nothing: the same batch goes out again, or the caller's time is over.
    fn answer_lost(&mut self, actor: usize, beat: bool, mut op: Box<Op>) {
        op.lost = true;
        let Some(batch) = op.lost() else {
            self.ended(actor, beat, &op, Ended::NotApplied);
            return;
        };
        if self.random.chance(200) {
            self.ended(actor, beat, &op, Ended::Unknown);
            return;
        }
        self.tally.resent += 1;
        self.commit(actor, beat, op, batch);
    }

    /// One message arrives.
    pub(super) fn deliver(&mut self) {
        let index = self.random.index(self.flights.len());
        let flight = self.flights.swap_remove(index);
        match flight.cargo {
            Cargo::Commit(..) => self.serve(flight),
            Cargo::Looks(ref looks) => {
                let facts = looks.iter().map(|look| (look.clone(), self.look(look))).collect();
                let seen = Cargo::Seen(self.now, facts);
                self.reply(Flight { cargo: seen, ..flight });
            }
            Cargo::Heard(..) | Cargo::Seen(..) => self.arrive(flight),
        }
    }

    /// The store takes a group, applies it, and answers each on its own.
    fn serve(&mut self, first: Flight) {
        let mut group = vec![first];
        if self.random.chance(self.plan.odds.group) {
            self.fill(&mut group);
        }
        self.tally.groups += u64::from(group.len() > 1);
        self.tally.batches += group.len() as u64;
        // Zoo: the clock is read when the first of the group arrives, not when its turn comes.
        let early = group.iter().map(|flight| flight.sent_at).min().unwrap_or(self.now);
        let now = if planted(Bug::NowBeforeLock) { At(early) } else { self.store_now() };
        let answers = match group.as_slice() {
            [one] => vec![self.state.apply(one.batch(), now)],
            many => self.state.apply_group(many.iter().map(Flight::batch), now),
        };
        for (flight, answer) in group.into_iter().zip(answers) {
            self.audit(&flight, &answer);
            if !flight.echo {
                self.reply(Flight { cargo: Cargo::Heard(self.now, answer), ..flight });
            }
        }
    }

    /// Adds what waits and shares no row, as the engine's scheduler does.
    fn fill(&mut self, group: &mut Vec<Flight>) {
        let mut index = 0;
        while index < self.flights.len() && group.len() < GROUP_MAX {
            let fits = match &self.flights[index].cargo {
                Cargo::Commit(batch, ..) => {
                    planted(Bug::OneKeyTwiceInGroup)
                        || !group.iter().any(|other| shares_row(batch, other.batch()))
                }
                _ => false,
            };
            if fits {
                let flight = self.flights.swap_remove(index);
                group.push(flight);
            } else {
                index += 1;
            }
        }
    }

    fn audit(&mut self, flight: &Flight, answer: &Answer) {
        let Cargo::Commit(batch, tag, act) = &flight.cargo else { return };
        let code = match answer {
            Answer::Applied(applied) => 10 + u64::from(applied.again),
            Answer::Refused(_) => 12,
            Answer::Contended => 13,
        };
        self.trace.note(self.now, [code, tag.key as u64, batch.token.0 as u64], || {
            let said = match answer {
                Answer::Applied(applied) if applied.again => "recognised".to_owned(),
                Answer::Applied(applied) => match applied.first {
                    Some((_, Some(fence))) => format!("applied, fence {fence}"),
                    _ => "applied".to_owned(),
                },
                Answer::Refused(_) => "refused".to_owned(),
                Answer::Contended => "contended".to_owned(),
            };
            format!("the store: {act:?} of key {} as {}: {said}", tag.key, batch.token.0)
        });
        let world = (&self.state, &self.catalog);
        self.auditor.committed(world, (tag, *act), batch, answer, self.now);
    }

    /// Sends an answer back: at once, later, or never.
    fn reply(&mut self, flight: Flight) {
        if self.random.chance(self.plan.odds.lose) {
            self.tally.lost += 1;
            self.trace.note(self.now, [4, flight.actor as u64, 0], || {
                format!("  the answer to worker {} is lost", flight.actor)
            });
        } else if self.random.chance(self.plan.odds.delay) {
            self.tally.delayed += 1;
            self.flights.push(flight);
        } else {
            self.arrive(flight);
        }
    }

    /// An answer arrives; nobody may be waiting for it any more.
    fn arrive(&mut self, flight: Flight) {
        let Flight { actor, uid, beat, exchange, cargo, .. } = flight;
        let Some(mut op) = self.take_op(actor, beat) else { return };
        if op.tag.uid != uid || op.exchange != exchange || op.wait == Wait::Ready {
            self.put_op(actor, beat, op);
            return;
        }
        match cargo {
            Cargo::Heard(at, answer) => {
                if matches!(answer, Answer::Refused(_)) {
                    op.seen_at = at;
                }
                match op.hear(answer) {
                    Some(ended) => self.ended(actor, beat, &op, ended),
                    None => self.put_op(actor, beat, op),
                }
            }
            Cargo::Seen(now, facts) => {
                learn(&mut op, now, facts);
                self.put_op(actor, beat, op);
            }
            Cargo::Commit(..) | Cargo::Looks(_) => self.put_op(actor, beat, op),
        }
    }

    pub(super) fn look(&self, look: &Look) -> Fact {
        self.state.read(&match look {
            Look::Record(key) => Read::Record { key: key.clone(), payload: false },
            Look::Mark(subject) => Read::Mark(subject.clone()),
        })
    }

    /// When the faults stop, what is under way arrives or is gone.
    pub(super) fn calm(&mut self) {
        while let Some(flight) = self.flights.pop() {
            if matches!(flight.cargo, Cargo::Commit(..)) && self.random.chance(500) {
                let Cargo::Commit(batch, ..) = &flight.cargo else { continue };
                let answer = self.state.apply(batch, At(self.now));
                self.audit(&flight, &answer);
            }
        }
    }

    /// Runs an op to its end without any fault.
    pub(super) fn settle(&mut self, mut op: Op) -> Ended {
        loop {
            self.prepare(0, &mut op);
            let token = self.next_token();
            match op.decide(token) {
                Next::Look(looks) => {
                    let facts = looks.iter().map(|look| (look.clone(), self.look(look))).collect();
                    op.sent_at = self.now;
                    learn(&mut op, self.now, facts);
                }
                Next::Commit(batch, act) => {
                    (op.act, op.token, op.sent_at) = (Some(act), batch.token, self.now);
                    let answer = self.state.apply(&batch, At(self.now));
                    self.tally.batches += 1;
                    let cargo = Cargo::Commit(batch, op.tag, act);
                    let (uid, exchange, sent_at) = (op.tag.uid, 0, self.now);
                    let flight =
                        Flight { actor: 0, uid, beat: false, exchange, echo: true, sent_at, cargo };
                    self.audit(&flight, &answer);
                    op.seen_at = self.now;
                    if let Some(ended) = op.hear(answer) {
                        self.auditor.told(&op, &ended);
                        return ended;
                    }
                }
                Next::End(ended) => {
                    self.auditor.told(&op, &ended);
                    return ended;
                }
            }
        }
    }
}

impl Flight {
    fn batch(&self) -> &Batch {
        static EMPTY: Batch = Batch { token: Token(0), conditions: Vec::new(), writes: Vec::new() };
        match &self.cargo {
            Cargo::Commit(batch, ..) => batch,
            _ => &EMPTY,
        }
    }
}

fn learn(op: &mut Op, now: u64, seen: Vec<(Look, Fact)>) {
    op.wait = Wait::Ready;
    op.seen_at = now;
    let facts = op.facts();
    facts.now = At(now);
    for (look, fact) in seen {
        match (look, fact) {
            (Look::Record(key), Fact::Record(found)) => {
                facts.learn_record(&key, found.map(|found| found.stored));
            }
            (Look::Mark(subject), Fact::Mark(mark)) => {
                facts.learn_position(&subject, mark.map_or(0, |mark| mark.position));
            }
            _ => {}
        }
    }
}

fn shares_row(one: &Batch, other: &Batch) -> bool {
    one.keys().any(|key| other.keys().any(|held| held == key))
        || one.subjects().any(|subject| other.subjects().any(|held| held == subject))
}

/// Zoo: the effects as one batch, the record as another.
fn apart(batch: &Batch) -> Option<(Arc<Batch>, Arc<Batch>)> {
    let mut effects = Batch::new(Token(batch.token.0 ^ (1 << 100)));
    let mut record = Batch::new(batch.token);
    for condition in &batch.conditions {
        let of = if condition.subject().is_some() { &mut effects } else { &mut record };
        of.conditions.push(condition.clone());
    }
    for (index, write) in batch.writes.iter().enumerate() {
        let of = if index > 0 { &mut effects } else { &mut record };
        of.writes.push(write.clone());
    }
    let both = matches!(batch.writes.first(), Some(Write::Put(_))) && batch.writes.len() > 1;
    both.then(|| (Arc::new(effects), Arc::new(record)))
}
