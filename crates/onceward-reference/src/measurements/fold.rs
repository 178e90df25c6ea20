//! Many measurements of one user: one look, one fold in the order of time, few commits.
//!
//! The fold judges each by what was seen and by what the ones before it make of that. A commit
//! takes as many as a batch holds; when someone else was first, nothing of it is written, and what
//! is left is looked at and folded again. Refusals need no such care: last timestamps only rise,
//! and a document never changes, unless its user's ids are not checked: then the last one stands.

use std::collections::HashMap;
use std::time::Instant;

use onceward::core::Bytes;
use onceward::core::decide::Effects;
use onceward::core::key::Subject;
use onceward::core::limits::MAX_BATCH_WRITES;
use onceward::engine::{Engine, EngineError, Seen};
use serde_json::value::RawValue;

use super::Happened;
use super::answer::why;
use super::measurement::{Measurement, last_of};
use super::rules::{Judged, Rules};
use super::settle::{Context, Verdict, WRITES_PER_ITEM, span};

/// How often a user's measurements are looked at anew while others write the same.
const LOOKS_MAX: u32 = 64;

/// One measurement of a batch.
#[derive(Debug)]
pub(super) struct Item {
    /// Its place in the request.
    pub(super) index: usize,
    pub(super) measurement: Measurement,
    pub(super) payload: Option<Box<RawValue>>,
}

/// All measurements of one user in a batch, in the order of their timestamps.
#[derive(Debug)]
pub(super) struct OfUser {
    pub(super) user_id: String,
    pub(super) items: Vec<Item>,
}

/// What was seen of a user: the last timestamp, and the documents of the items in their order.
pub(super) struct Sight {
    pub(super) now_ms: u64,
    pub(super) last: Seen,
    pub(super) documents: Vec<Seen>,
}

/// What is the same for everyone in a batch.
pub(super) struct Folding<'a> {
    pub(super) engine: &'a Engine,
    pub(super) context: Context<'a>,
    pub(super) fail_fast: bool,
    pub(super) began: Instant,
}

/// What became of an item.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) index: usize,
    pub(super) judged: Judged,
    pub(super) happened: Happened,
}

/// What the items that were folded so far make of what was seen.
struct State {
    last_ms: u64,
    /// Results of ids that are to be kept.
    kept: HashMap<String, Bytes>,
    /// Versions of documents that were written since they were seen.
    written: HashMap<Subject, u64>,
    stopped: bool,
}

impl State {
    fn new(sight: &Sight, stopped: bool) -> Self {
        let (kept, written) = (HashMap::new(), HashMap::new());
        Self { last_ms: sight.last.version, kept, written, stopped }
    }

    /// Whose id is not checked may come again in a later commit, and is written over this one.
    fn wrote(&mut self, effects: Effects) {
        let guards = effects.changes.into_iter().map(|change| change.guard);
        self.written.extend(guards.map(|guard| (guard.subject, guard.rule.moves_to())));
    }

    /// A document as it is by now.
    fn now(&self, seen: &Seen) -> Seen {
        let version = self.written.get(&seen.subject).copied().unwrap_or(seen.version);
        Seen { version, ..seen.clone() }
    }
}

impl OfUser {
    /// What has to be seen of it.
    pub(super) fn subjects(&self, tenant: &str) -> Result<Vec<Subject>, EngineError> {
        let mut subjects = vec![last_of(tenant, &self.user_id)?];
        for item in &self.items {
            subjects.push(item.measurement.subject(tenant)?);
        }
        Ok(subjects)
    }
}

impl Sight {
    /// From what was seen of [`OfUser::subjects`].
    pub(super) fn of(
        now_ms: u64,
        mut seen: impl Iterator<Item = Seen>,
        items: usize,
    ) -> Option<Self> {
        let last = seen.next()?;
        let documents: Vec<Seen> = seen.by_ref().take(items).collect();
        (documents.len() == items).then_some(Self { now_ms, last, documents })
    }
}

impl Folding<'_> {
    /// Commits all measurements of a user; answers what became of each.
    pub(super) async fn settle(
        &self,
        rules: &Rules,
        user: OfUser,
        mut sight: Sight,
    ) -> Result<Vec<Settled>, EngineError> {
        let mut settled = Vec::with_capacity(user.items.len());
        let OfUser { user_id, items: mut left } = user;
        let mut state = State::new(&sight, false);
        let (mut looks, mut turn) = (0, None);
        while !left.is_empty() {
            let (mut effects, stopped) = (Effects::default(), state.stopped);
            let folded = self.fold(rules, (&left, &sight), &mut state, &mut effects)?;
            // A backfill of what is there has nothing to write.
            let written = effects.is_empty()
                || self.engine.write(self.context.tenant, &effects).await?.is_none();
            if written {
                let count = folded.len();
                settled.extend(left.drain(..count).zip(folded).map(|(item, judged)| {
                    let happened = self.happened(&judged);
                    Settled { index: item.index, judged, happened }
                }));
                sight.documents.drain(..count);
                if !rules.ids {
                    state.wrote(effects);
                }
                continue;
            }
            looks += 1;
            if looks > LOOKS_MAX {
                return Err(EngineError::Contended("time after time"));
            }
            // Those who lost take turns: nobody overtakes them between the look and the commit.
            if turn.is_none() {
                turn = Some(self.engine.turn_at(&sight.last.subject).await);
            }
            let user = OfUser { user_id: user_id.clone(), items: left };
            sight = self.look(&user).await?;
            left = user.items;
            state = State::new(&sight, stopped);
        }
        drop(turn);
        Ok(settled)
    }

    /// Looks at a user alone.
    async fn look(&self, user: &OfUser) -> Result<Sight, EngineError> {
        let (now, seen) = self.engine.see_many(user.subjects(self.context.tenant)?).await?;
        Sight::of(now.0, seen.into_iter(), user.items.len())
            .ok_or(EngineError::Contended("by a store that answers less than it was asked"))
    }

    /// Folds as many items as one commit holds.
    fn fold(
        &self,
        rules: &Rules,
        (left, sight): (&[Item], &Sight),
        state: &mut State,
        effects: &mut Effects,
    ) -> Result<Vec<Judged>, EngineError> {
        let mut folded = Vec::new();
        let mut accepted: Option<(u64, u64)> = None;
        // One write is kept for the last timestamp.
        let mut room = MAX_BATCH_WRITES - 1;
        for (item, seen) in left.iter().zip(&sight.documents) {
            if room < WRITES_PER_ITEM {
                break;
            }
            let measurement = &item.measurement;
            let at_ms = measurement.payload.at_ms;
            let known = state.kept.get(&measurement.id).or(seen.value.as_ref());
            let judged = if state.stopped {
                Judged::Skipped
            } else {
                rules.judge(measurement, known, state.last_ms, sight.now_ms)
            };
            state.stopped |= self.fail_fast && matches!(judged, Judged::OutOfOrder { .. });
            let verdict =
                Verdict { measurement, payload: item.payload.as_deref(), rules, judged: &judged };
            let before = effects.changes.len() + effects.keys.len() + effects.audit.len();
            let kept = verdict.add(effects, self.context, (&state.now(seen), sight.now_ms))?;
            room -= effects.changes.len() + effects.keys.len() + effects.audit.len() - before;
            if let Some(result) = kept {
                let (first, through) = accepted.unwrap_or((at_ms, at_ms));
                accepted = Some((first.min(at_ms), through.max(at_ms)));
                state.last_ms = state.last_ms.max(at_ms);
                state.kept.insert(measurement.id.clone(), result);
            }
            folded.push(judged);
        }
        if let (Some(moved), Some(item)) = (accepted, left.first()) {
            let (tenant, user_id) = (self.context.tenant, &item.measurement.user_id);
            effects.spans.push(span(tenant, user_id, rules, moved)?);
        }
        Ok(folded)
    }

    fn happened(&self, judged: &Judged) -> Happened {
        let error = why(judged).map(|(error, _)| error);
        Happened::Attempt { action: judged.action(), error, took: self.began.elapsed() }
    }
}
