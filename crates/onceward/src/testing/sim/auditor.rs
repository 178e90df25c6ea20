//! The auditor: an independent account of what may happen to a key, checked at every commit.
//!
//! It keeps its own small model of each key (who may write, until when, with which payload and
//! outcome), told by those who ask and by the true clock, never read off what the core decided.
//! Whatever the store applies must be allowed by the model and must leave the record that the model
//! expects. Effects are kept in a plain append list without any uniqueness.
//!
//! Not responsible for how a schedule comes about, nor for healing it.

macro_rules! ensure {
    ($holds:expr, $number:literal, $($what:tt)+) => {
        if !$holds {
            return Err(Violation { invariant: $number, what: format!($($what)+) });
        }
    };
}

mod outside;

use onceward_core::batch::{Answer, Batch, Write};
use onceward_core::guard::Rule;
use onceward_core::key::Kind;
use onceward_core::record::{OnAbandoned, Record, State, Terms};
use onceward_core::stamp::Token;

use super::op::{Act, Tag};
use super::plan::{
    Catalog, DOCUMENT, FIRST_EVENT, FIRST_JOB, KEYS, OUTBOX, STREAM, SUBJECTS, TAIL, TURN,
};
use crate::store::memory::MemoryState;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Its number, or a word where the table of invariants has none.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

/// One effect, as the outside world saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// Which key, by its place in the simulator's world.
    pub key: usize,
    /// Under which fence; 0 for a single commit.
    pub fence: u64,
    /// Which life of a worker.
    pub worker: u32,
    /// Which payload.
    pub variant: usize,
    /// Whether it is in the record's transaction.
    pub in_transaction: bool,
}

/// The model of one key.
#[derive(Debug, Clone, Copy, Default)]
struct Model {
    state: Option<State>,
    /// Who may write it; 0 when nobody.
    fence: u64,
    /// The highest fence ever granted, and the first of this life of the key.
    top: u64,
    first: u64,
    /// Whether the record was deleted since the last grant.
    deleted: bool,
    lease_end: u64,
    due: u64,
    /// The end of its retention.
    until: u64,
    written_at: u64,
    variant: usize,
    /// Number in its subject, for ordered jobs.
    number: u64,
    token: Token,
    /// Effects since the key was last unknown to the store.
    effects: u32,
    in_transaction: u32,
}

/// An outcome that was final for a while.
#[derive(Debug, Clone, Copy)]
struct Final {
    key: usize,
    outcome: usize,
    from: u64,
    until: u64,
}

/// A sink outside that refuses fences older than the newest it saw.
#[derive(Debug, Clone, Copy, Default)]
struct Sink {
    fence: u64,
    number: u64,
}

/// Keeps the account of one schedule.
#[derive(Debug)]
pub(super) struct Auditor {
    /// The first broken invariant.
    pub(super) broken: Option<Violation>,
    /// Every effect, in order.
    pub(super) ledger: Vec<Effect>,
    terms: Terms,
    models: [Model; KEYS],
    positions: [u64; SUBJECTS],
    finals: Vec<Final>,
    grants: Vec<(usize, u64, u32)>,
    applied: Vec<Token>,
    denied: Vec<Token>,
    sinks: [Sink; SUBJECTS],
    audited: usize,
}

impl Auditor {
    pub(super) fn new() -> Self {
        Self {
            broken: None,
            ledger: Vec::new(),
            terms: Terms::default(),
            models: [Model::default(); KEYS],
            positions: [0; SUBJECTS],
            finals: Vec::new(),
            grants: Vec::new(),
            applied: Vec::new(),
            denied: Vec::new(),
            sinks: [Sink::default(); SUBJECTS],
            audited: 0,
        }
    }

    pub(super) fn reset(&mut self, terms: Terms) {
        self.broken = None;
        self.ledger.clear();
        self.terms = terms;
        self.models = [Model::default(); KEYS];
        self.positions = [0; SUBJECTS];
        self.finals.clear();
        self.grants.clear();
        self.applied.clear();
        self.denied.clear();
        self.sinks = [Sink::default(); SUBJECTS];
        self.audited = 0;
    }

    /// The state that the model expects, and the payload it was made with.
    pub(super) fn expects(&self, key: usize) -> (Option<State>, usize) {
        (self.models[key].state, self.models[key].variant)
    }

    pub(super) fn position(&self, subject: usize) -> u64 {
        self.positions[subject]
    }

    pub(super) fn note(&mut self, checked: Result<(), Violation>) {
        if let Err(violation) = checked
            && self.broken.is_none()
        {
            self.broken = Some(violation);
        }
    }

    /// Checks what the store did with a batch.
    pub(super) fn committed(
        &mut self,
        (state, catalog): (&MemoryState, &Catalog),
        (tag, act): (&Tag, Act),
        batch: &Batch,
        answer: &Answer,
        now: u64,
    ) {
        let checked = match answer {
            Answer::Applied(applied) if applied.again => self.recognised(tag, batch),
            Answer::Applied(applied) => {
                let fence = applied.first.and_then(|(_, fence)| fence).map_or(0, |fence| fence.0);
                self.written((state, catalog), (tag, act, fence), batch, now)
            }
            Answer::Refused(_) => self.refused(tag, act, batch, now),
            Answer::Contended => Ok(()),
        };
        self.note(checked);
    }

    /// A token may be recognised only if it was applied.
    fn recognised(&self, tag: &Tag, batch: &Batch) -> Result<(), Violation> {
        let known = self.applied.contains(&batch.token);
        ensure!(known, "i09", "a batch of key {} was recognised but never applied", tag.key);
        Ok(())
    }

    /// A batch that was applied and came again is recognised, as long as nothing was written over
    /// it; and a permit that holds is not refused.
    fn refused(&self, tag: &Tag, act: Act, batch: &Batch, now: u64) -> Result<(), Violation> {
        let model = &self.models[tag.key];
        let own = self.applied.contains(&batch.token) && model.token == batch.token;
        ensure!(!own, "i09", "an applied batch of key {} came again and was refused", tag.key);
        let holds = matches!(act, Act::Renew | Act::Fail | Act::Abandon | Act::Release)
            && model.fence == tag.fence
            && model.lease_end > now;
        ensure!(!holds, "i04", "the valid permit {} of key {} was refused", tag.fence, tag.key);
        Ok(())
    }

    fn written(
        &mut self,
        (state, catalog): (&MemoryState, &Catalog),
        (tag, act, fence): (&Tag, Act, u64),
        batch: &Batch,
        now: u64,
    ) -> Result<(), Violation> {
        let before = self.models[tag.key];
        let own = before.token == batch.token && self.applied.contains(&batch.token);
        ensure!(!own, "i09", "a batch of key {} was applied twice in a row", tag.key);
        self.applied.push(batch.token);
        self.allowed(tag, act, now)?;
        self.transition(tag, act, fence, now)?;
        self.models[tag.key].token = batch.token;
        self.models[tag.key].written_at = now;
        let record = state.record(&catalog.keys[tag.key]);
        self.settle(tag, act, record, &before)?;
        self.beside((state, catalog), (tag, act), batch, now)
    }

    /// Whether the model allows the act now.
    fn allowed(&self, tag: &Tag, act: Act, now: u64) -> Result<(), Violation> {
        let model = &self.models[tag.key];
        let key = tag.key;
        match act {
            Act::Grant | Act::Once => self.free(tag, now),
            Act::Renew | Act::Complete | Act::Fail | Act::Abandon | Act::Release => {
                let fence = tag.fence;
                ensure!(
                    model.fence == fence,
                    "i05",
                    "{act:?} of key {key} by fence {fence} was applied, but {} holds it",
                    model.fence
                );
                Ok(())
            }
            Act::MarkUnknown | Act::Bury => {
                let lapsed = model.state == Some(State::Running) && now >= model.lease_end;
                ensure!(lapsed, "i24", "{act:?} of key {key} whose lease has not run out");
                Ok(())
            }
            Act::Enqueue => {
                let gone = matches!(model.state, None | Some(State::Expired))
                    || (model.state == Some(State::Done) && now >= model.until);
                ensure!(gone, "i01", "job {key} was made again while it is {:?}", model.state);
                Ok(())
            }
            Act::Expire | Act::Forget => self.sweepable(key, act, now),
            Act::Rerun | Act::RerunForced | Act::DoneByHand | Act::DeadByHand | Act::Erase => {
                let live = model.state == Some(State::Running) && now < model.lease_end;
                ensure!(!live, "i24", "{act:?} of key {key} under a live lease");
                let done = model.state == Some(State::Done) && now < model.until;
                let erase = act == Act::Erase;
                ensure!(!done || erase, "i02", "{act:?} of key {key} within its retention");
                Ok(())
            }
        }
    }

    /// Whether someone may start on the key.
    fn free(&self, tag: &Tag, now: u64) -> Result<(), Violation> {
        let model = &self.models[tag.key];
        let (key, end) = (tag.key, model.lease_end);
        let fresh = match model.state {
            None | Some(State::Expired) => true,
            Some(State::Done) => {
                let until = model.until;
                ensure!(now >= until, "i02", "key {key} ran again at {now}, kept until {until}");
                true
            }
            Some(State::Pending | State::Failed) => {
                ensure!(now >= model.due, "due", "key {key} ran before it was due");
                false
            }
            Some(State::Running) => {
                ensure!(now >= end, "i24", "key {key} was taken at {now}, leased until {end}");
                let hold = self.terms.on_abandoned == OnAbandoned::Hold;
                ensure!(!hold, "hold", "key {key} is to be held, but ran again");
                false
            }
            Some(State::Dead | State::Unknown) => {
                let state = model.state;
                return Err(Violation {
                    invariant: "i02",
                    what: format!("key {key} is {state:?}, but ran again"),
                });
            }
        };
        let same = fresh || model.variant == tag.variant || key >= FIRST_JOB;
        ensure!(same, "mismatch", "key {key} ran with another payload than it was made with");
        Ok(())
    }

    fn sweepable(&self, key: usize, act: Act, now: u64) -> Result<(), Violation> {
        let model = &self.models[key];
        let forget = self.terms.retain_ms + self.terms.remember_ms;
        let request = key < FIRST_EVENT;
        let rerun = self.terms.on_abandoned == OnAbandoned::Rerun;
        let over = match (model.state, act) {
            (Some(State::Done), _) => now >= model.until,
            (Some(State::Expired), Act::Forget) => now >= model.written_at + self.terms.remember_ms,
            (Some(State::Failed), Act::Forget) => request && now >= model.due + forget,
            (Some(State::Running), Act::Forget) => {
                request && rerun && now >= model.lease_end + forget
            }
            _ => false,
        };
        ensure!(over, "i02", "{act:?} swept key {key} while it is {:?}", model.state);
        Ok(())
    }

    /// Moves the model.
    fn transition(&mut self, tag: &Tag, act: Act, fence: u64, now: u64) -> Result<(), Violation> {
        let terms = self.terms;
        let model = &mut self.models[tag.key];
        match act {
            Act::Grant => {
                let (key, top) = (tag.key, model.top);
                let ahead = fence > top;
                ensure!(ahead || model.deleted, "i05", "key {key}: fence {fence} after {top}");
                ensure!(ahead, "i25", "key {key}, made again: fence {fence} after {top}");
                begin(model, tag);
                model.state = Some(State::Running);
                (model.fence, model.top, model.deleted) = (fence, fence, false);
                model.lease_end = now + terms.lease_ms;
                self.grants.push((tag.key, fence, tag.uid));
            }
            Act::Once => {
                begin(model, tag);
                finish(model, now + terms.retain_ms);
                self.finals.push(Final::of(tag, now, terms.retain_ms));
            }
            Act::Complete | Act::DoneByHand => {
                finish(model, now + terms.retain_ms);
                self.finals.push(Final::of(tag, now, terms.retain_ms));
            }
            Act::Renew => {
                model.state = Some(State::Running);
                model.lease_end = now + terms.lease_ms;
            }
            Act::MarkUnknown => model.state = Some(State::Unknown),
            Act::Bury | Act::DeadByHand => (model.state, model.fence) = (Some(State::Dead), 0),
            Act::Enqueue => {
                begin(model, tag);
                (model.state, model.fence) = (Some(State::Pending), 0);
                model.due = now;
            }
            Act::Expire => (model.state, model.fence) = (Some(State::Expired), 0),
            Act::Forget => forget(model),
            Act::Erase => {
                forget(model);
                for known in self.finals.iter_mut().filter(|known| known.key == tag.key) {
                    known.until = known.until.min(now + 1);
                }
            }
            // What these leave depends on the attempt: settled from the record.
            Act::Fail | Act::Abandon | Act::Release | Act::Rerun | Act::RerunForced => {
                model.fence = 0;
            }
        }
        Ok(())
    }

    /// Compares the model with the record that is there now.
    fn settle(
        &mut self,
        tag: &Tag,
        act: Act,
        record: Option<&Record>,
        before: &Model,
    ) -> Result<(), Violation> {
        let model = &mut self.models[tag.key];
        let key = tag.key;
        let state = record.map(|record| record.state);
        let fits = match act {
            Act::Fail => matches!(state, Some(State::Failed | State::Dead)),
            Act::Abandon => {
                matches!(state, Some(State::Failed | State::Dead | State::Unknown))
            }
            Act::Rerun | Act::RerunForced => matches!(state, Some(State::Failed | State::Pending)),
            Act::Release => matches!(state, None | Some(State::Failed | State::Pending)),
            _ => state == model.state,
        };
        ensure!(fits, "i02", "after {act:?} key {key} is {state:?}, was {:?}", before.state);
        let gone = state.is_none() && act == Act::Release;
        let effects = model.effects;
        ensure!(!gone || effects == 0, "i02", "key {key} was let go, but had {effects} effects");
        model.state = state;
        match record {
            None => forget(model),
            Some(record) => {
                let holder = record.fence.map_or(0, |fence| fence.0);
                let expected = model.fence;
                ensure!(holder == expected, "i05", "key {key}: {holder} may write, not {expected}");
                if matches!(state, Some(State::Failed | State::Pending)) {
                    model.due = record.due_at.map_or(0, |due| due.0);
                }
                if act == Act::RerunForced && record.guard.is_none() {
                    model.number = 0;
                }
            }
        }
        Ok(())
    }

    /// Checks marks, outbox, audit and guards of the same batch.
    fn beside(
        &mut self,
        (state, catalog): (&MemoryState, &Catalog),
        (tag, act): (&Tag, Act),
        batch: &Batch,
        now: u64,
    ) -> Result<(), Violation> {
        if matches!(act, Act::Grant | Act::Once | Act::Complete) {
            self.in_order(tag, act)?;
        }
        let mut effect = false;
        let mut audited = 0;
        for write in &batch.writes {
            match write {
                Write::Put(draft) if draft.record.key != catalog.keys[tag.key] => {
                    let number = draft.record.guard.as_ref().map(|guard| guard.rule.moves_to());
                    if let Some(key) = catalog.key_index(&draft.record.key) {
                        self.outbox(key, batch.token, number, now)?;
                    }
                }
                Write::Put(draft) if act == Act::Enqueue => {
                    let next = draft.record.guard.as_ref().map(|guard| guard.rule.moves_to());
                    self.models[tag.key].number = next.unwrap_or(0);
                }
                Write::Mark { subject, .. } => {
                    let Some(index) = catalog.subject_index(subject) else { continue };
                    effect |= index == DOCUMENT;
                    let at = state.mark(subject).map_or(0, |mark| mark.position);
                    self.moved(index, at)?;
                }
                Write::Audit(_) => audited += 1,
                Write::Put(_) | Write::Delete(_) | Write::Prune { .. } => {}
            }
        }
        let finished = matches!(act, Act::Once | Act::Complete);
        ensure!(!finished || audited > 0, "i11", "key {} ended without an audit entry", tag.key);
        self.audited += audited;
        let kept = state.audit().len();
        ensure!(kept >= self.audited, "i11", "{kept} audit entries, not {}", self.audited);
        let meant = finished && tag.in_transaction;
        ensure!(effect == meant, "i11", "key {}: effect {effect}, {act:?}", tag.key);
        if effect {
            self.in_transaction(tag, catalog.keys[tag.key].kind())?;
        }
        Ok(())
    }

    fn in_transaction(&mut self, tag: &Tag, kind: Kind) -> Result<(), Violation> {
        let model = &mut self.models[tag.key];
        model.effects += 1;
        model.in_transaction += 1;
        let (key, times) = (tag.key, model.in_transaction);
        ensure!(times == 1, "i01", "{kind:?} key {key} took effect {times} times in transactions");
        ensure!(model.state == Some(State::Done), "i11", "key {key}: effect without its record");
        let (variant, fence) = (tag.variant, tag.fence);
        let made_with = model.variant;
        ensure!(variant == made_with, "mismatch", "key {key} took effect with another payload");
        self.ledger.push(Effect { key, fence, worker: tag.uid, variant, in_transaction: true });
        Ok(())
    }

    /// A job that follows a write: it is new, or it was there and is not written again.
    fn outbox(
        &mut self,
        key: usize,
        token: Token,
        number: Option<u64>,
        now: u64,
    ) -> Result<(), Violation> {
        let model = &mut self.models[key];
        ensure!(model.state.is_none(), "i01", "outbox job {key} was made twice");
        let made = self.positions[OUTBOX];
        let next = number.is_none_or(|number| number == made + 1);
        ensure!(next, "i12", "outbox job {key} is number {number:?} after {made}");
        *model = Model { state: Some(State::Pending), token, written_at: now, ..*model };
        Ok(())
    }

    /// The guard that was meant holds at the claim and at the commit that completes.
    fn in_order(&self, tag: &Tag, act: Act) -> Result<(), Violation> {
        let number = self.models[tag.key].number;
        let job = (number > 0).then_some((TURN, Rule::Next { position: number }));
        let Some((subject, rule)) = tag.guard.or(job) else { return Ok(()) };
        let at = self.positions[subject];
        let (fits, invariant) = match rule {
            Rule::Exactly { expected } => (at == expected, "i12"),
            Rule::Next { position } => (at + 1 == position, "i28"),
            Rule::Above { position } => (at < position, "i28"),
            Rule::NotBefore { at: time, grace_ms } => (at <= time + grace_ms, "i29"),
        };
        if fits {
            return Ok(());
        }
        let what = format!("{act:?} of key {} under {rule:?}, but its subject is at {at}", tag.key);
        Err(Violation { invariant, what })
    }

    fn moved(&mut self, subject: usize, at: u64) -> Result<(), Violation> {
        let was = self.positions[subject];
        ensure!(at >= was, "i29", "subject {subject} moved back from {was} to {at}");
        let steps = matches!(subject, TURN | STREAM | TAIL | OUTBOX | DOCUMENT);
        ensure!(!steps || at <= was + 1, "i28", "subject {subject} skipped from {was} to {at}");
        self.positions[subject] = at;
        Ok(())
    }
}

impl Final {
    fn of(tag: &Tag, now: u64, retain_ms: u64) -> Self {
        Self { key: tag.key, outcome: tag.outcome, from: now, until: now + retain_ms }
    }
}

/// A new attempt; a new life of the key, when nothing final is remembered of the old one.
fn begin(model: &mut Model, tag: &Tag) {
    if matches!(model.state, None | Some(State::Expired | State::Done)) {
        model.variant = tag.variant;
        model.first = model.top + 1;
        (model.effects, model.in_transaction, model.number) = (0, 0, 0);
    }
}

fn finish(model: &mut Model, until: u64) {
    (model.state, model.fence) = (Some(State::Done), 0);
    model.until = until;
}

fn forget(model: &mut Model) {
    (model.state, model.fence, model.deleted) = (None, 0, true);
    (model.effects, model.in_transaction, model.number) = (0, 0, 0);
}
