//! What the outside sees: effects elsewhere, what callers are told, and what is left at the end.

use onceward_core::decide::{Enqueue, Finish, Verdict};
use onceward_core::guard::Rule;
use onceward_core::record::State;

use super::super::op::{Ended, Op, Tag};
use super::super::plan::{Catalog, DOCUMENT};
use super::{Auditor, Effect, Sink, Violation};
use crate::store::memory::MemoryState;

impl Auditor {
    /// Notes an effect elsewhere. `careful`: its worker looked at its lease in the same instant.
    pub(in super::super) fn effect(&mut self, tag: &Tag, careful: bool, now: u64) {
        let checked = self.elsewhere(tag, careful, now);
        self.note(checked);
    }

    fn elsewhere(&mut self, tag: &Tag, careful: bool, now: u64) -> Result<(), Violation> {
        let (key, fence, uid, variant) = (tag.key, tag.fence, tag.uid, tag.variant);
        let twice = self
            .ledger
            .iter()
            .any(|effect| effect.key == key && effect.fence == fence && !effect.in_transaction);
        self.ledger.push(Effect { key, fence, worker: uid, variant, in_transaction: false });
        ensure!(!twice, "i01", "key {key} took effect twice under fence {fence}");
        let granted = self.grants.contains(&(key, fence, uid));
        ensure!(granted, "i06", "key {key}: the effect's fence {fence} was granted to another");
        let model = &mut self.models[key];
        let holds = model.fence == fence && now < model.lease_end;
        ensure!(!careful || holds, "i07", "key {key}: an effect after its authority had ended");
        if model.state.is_some() && fence >= model.first {
            // Also when its lease went to someone else: the key must not be forgotten.
            model.effects += 1;
            let same = model.variant == variant;
            ensure!(same, "mismatch", "key {key} took effect with another payload");
        }
        if let Some((subject, Rule::Next { position: number })) = tag.guard {
            let sink = &mut self.sinks[subject];
            if fence > sink.fence {
                let last = sink.number;
                *sink = Sink { fence, number: number.max(last) };
                ensure!(number >= last, "i28", "number {number} took effect after {last}");
            }
        }
        Ok(())
    }

    /// Checks what a caller was told.
    pub(in super::super) fn told(&mut self, op: &Op, ended: &Ended) {
        let checked = self.answer(op, ended);
        self.note(checked);
    }

    fn answer(&mut self, op: &Op, ended: &Ended) -> Result<(), Violation> {
        let tag = &op.tag;
        let key = tag.key;
        match ended {
            Ended::Verdict(Verdict::Run { permit, .. }) => {
                let fence = permit.fence.0;
                let granted = self.grants.contains(&(key, fence, tag.uid));
                ensure!(granted, "i06", "key {key}: fence {fence} was handed to another worker");
            }
            Ended::Verdict(Verdict::Replay(stored)) => {
                let bytes = stored.outcome.as_deref().unwrap_or_default();
                let outcome = bytes.try_into().map_or(usize::MAX, usize::from_le_bytes);
                let at = op.seen_at;
                let right = self
                    .finals
                    .iter()
                    .any(|f| f.key == key && f.outcome == outcome && f.from <= at && at < f.until);
                ensure!(right, "i03", "key {key} replayed {outcome}, not final at {at}");
            }
            Ended::Ran => {
                let there = self.finals.iter().any(|f| f.key == key && f.outcome == tag.outcome);
                ensure!(there, "i02", "key {key} was acknowledged, but nothing was recorded");
            }
            Ended::Finish(Finish::Ok) if op.is_complete() => {
                let there = self.finals.iter().any(|f| f.key == key && f.outcome == tag.outcome);
                ensure!(there, "i02", "key {key} was acknowledged, but nothing was recorded");
            }
            Ended::Made(Enqueue::Made) => {
                let there = self.applied.contains(&op.token);
                ensure!(there, "i02", "job {key} was acknowledged, but not made");
            }
            Ended::NotApplied => self.denied.push(op.token),
            Ended::GaveUp => {
                return Err(Violation {
                    invariant: "i22",
                    what: format!("an operation on key {key} never came to an end"),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks what must hold when everything has come to rest.
    pub(in super::super) fn rest(&mut self, state: &MemoryState, catalog: &Catalog, now: u64) {
        let checked = self.at_rest(state, catalog, now);
        self.note(checked);
    }

    fn at_rest(&self, state: &MemoryState, catalog: &Catalog, now: u64) -> Result<(), Violation> {
        let wrong = self.denied.iter().any(|token| self.applied.contains(token));
        ensure!(!wrong, "i09", "an applied batch was reported as not applied");
        for (index, model) in self.models.iter().enumerate() {
            let there = state.record(&catalog.keys[index]).map(|record| record.state);
            ensure!(there == model.state, "i02", "key {index} is {there:?} at the end");
        }
        for f in self.finals.iter().filter(|f| now < f.until) {
            let key = f.key;
            let kept = self.models[key].state == Some(State::Done);
            ensure!(kept, "i02", "key {key}: an acknowledged outcome is gone");
        }
        let kept = state.audit().len();
        ensure!(kept == self.audited, "i11", "{kept} audit entries, not {}", self.audited);
        let effects = self.ledger.iter().filter(|effect| effect.in_transaction).count() as u64;
        let written = self.positions[DOCUMENT];
        ensure!(effects == written, "i11", "{effects} effects, but version {written}");
        Ok(())
    }
}
