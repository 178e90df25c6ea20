//! The oracle: what every store must do, in plain maps and without I/O.
//!
//! The memory store wraps it in a lock, the simulator and the model checker drive it directly, and
//! the differential runner compares every other store with it. Like a database, a group checks all
//! its conditions before its first write.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use onceward_core::Bytes;
use onceward_core::audit::Audited;
use onceward_core::batch::{Answer, Applied, Batch, Refused, There, Witness, Write};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Body, Draft, FenceWrite, Mark, Record, Stored};
use onceward_core::seal::Place;
use onceward_core::stamp::{At, Fence, Rev, Token};
use onceward_core::zoo::{Bug, planted};

use super::super::{Fact, Found, Read};

/// How long the token of a batch that left no record is kept: longer than any resend.
pub const TOKEN_KEPT_MS: u64 = 15 * 60 * 1_000;

type DueKey = (Reverse<u8>, At, Key);

/// Everything a store keeps.
#[derive(Debug, Clone, Default)]
pub struct MemoryState {
    stamp: u64,
    records: BTreeMap<Key, Row>,
    marks: BTreeMap<Subject, Mark>,
    audit: Vec<Audited>,
    audited: u64,
    tokens: HashMap<Token, At>,
    due: BTreeMap<Box<str>, BTreeSet<DueKey>>,
    sweepable: BTreeSet<(At, Key)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    record: Record,
    outcome: Option<Bytes>,
    payload: Option<Bytes>,
}

impl MemoryState {
    /// Looks one thing up.
    #[must_use]
    pub fn read(&self, read: &Read) -> Fact {
        match read {
            Read::Record { key, payload } => Fact::Record(self.records.get(key).map(|row| Found {
                stored: row.stored(),
                payload: if *payload { row.payload.clone() } else { None },
            })),
            Read::Mark(subject) => Fact::Mark(self.marks.get(subject).cloned()),
        }
    }

    /// The record of a key.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.records.get(key).map(|row| &row.record)
    }

    /// The outcome of a key.
    #[must_use]
    pub fn outcome(&self, key: &Key) -> Option<&Bytes> {
        self.records.get(key).and_then(|row| row.outcome.as_ref())
    }

    /// The mark of a subject.
    #[must_use]
    pub fn mark(&self, subject: &Subject) -> Option<&Mark> {
        self.marks.get(subject)
    }

    /// Every record, in the order of the keys.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().map(|row| &row.record)
    }

    /// Records after a key, in order.
    pub(super) fn records_after(&self, after: Option<&Key>) -> impl Iterator<Item = &Record> {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.records.range((from, Bound::Unbounded)).map(|(_, row)| &row.record)
    }

    /// Marks after a subject, in order.
    pub(super) fn marks_from(
        &self,
        from: Bound<Subject>,
    ) -> impl Iterator<Item = (&Subject, &Mark)> {
        self.marks.range((from, Bound::Unbounded))
    }

    /// Audit entries, in order.
    #[must_use]
    pub fn audit(&self) -> &[Audited] {
        &self.audit
    }

    /// Jobs of a queue that may be taken at `now`: higher priority first, then longest due.
    pub fn due<'a>(&'a self, queue: &'a str, now: At) -> impl Iterator<Item = &'a Record> {
        let of_queue = self.due.get(queue).into_iter().flatten();
        of_queue.filter(move |(_, at, _)| *at <= now).filter_map(|(.., key)| self.record(key))
    }

    /// Records that the sweep has to look at, longest due first.
    pub fn sweepable(&self, now: At) -> impl Iterator<Item = &Record> {
        self.sweepable
            .iter()
            .take_while(move |(at, _)| *at <= now)
            .filter_map(|(_, key)| self.record(key))
    }

    /// Applies a group: checks every batch, then writes those that passed.
    pub fn apply_group<'a>(
        &mut self,
        group: impl Iterator<Item = &'a Batch> + Clone,
        now: At,
    ) -> Vec<Answer> {
        let checked: Vec<Option<Answer>> = group.clone().map(|b| self.check(b, now)).collect();
        let mut answers = Vec::with_capacity(checked.len());
        for (batch, refused) in group.zip(checked) {
            answers.push(refused.unwrap_or_else(|| self.write(batch, now)));
        }
        answers
    }

    /// Applies one batch.
    pub fn apply(&mut self, batch: &Batch, now: At) -> Answer {
        match self.check(batch, now) {
            Some(answer) => answer,
            None => self.write(batch, now),
        }
    }

    /// The answer of a batch that is not to be written: recognised or refused.
    fn check(&self, batch: &Batch, now: At) -> Option<Answer> {
        if let Some(applied) = self.recognise(batch, now) {
            return Some(Answer::Applied(applied));
        }
        let mut failed = Vec::new();
        for (index, condition) in batch.conditions.iter().enumerate() {
            if let Some(key) = condition.key() {
                let row = self.records.get(key);
                if !condition.holds_for(row.map(|row| &row.record)) {
                    let there = row.map(|row| Box::new(row.stored()));
                    failed.push((index, There::Record(there)));
                }
            } else if let Some(subject) = condition.subject() {
                let mark = self.marks.get(subject);
                if !condition.holds_at(mark.map_or(0, |mark| mark.position)) {
                    failed.push((index, There::Mark(mark.cloned())));
                }
            }
        }
        if failed.is_empty() { None } else { Some(Answer::Refused(Refused { now, failed })) }
    }

    fn recognise(&self, batch: &Batch, now: At) -> Option<Applied> {
        if planted(Bug::TokenIgnored) {
            return None;
        }
        match batch.witness() {
            Witness::Tokens => self.tokens.contains_key(&batch.token).then_some(Applied {
                now,
                first: None,
                again: true,
            }),
            Witness::Record(key) => {
                let record = self.record(key).filter(|record| record.token == batch.token)?;
                Some(Applied { now, first: Some((record.rev, record.fence)), again: true })
            }
        }
    }

    fn write(&mut self, batch: &Batch, now: At) -> Answer {
        let mut first = None;
        for write in &batch.writes {
            match write {
                Write::Put(draft) => {
                    let stamps = self.put(draft, batch.token, now);
                    first = first.or(Some(stamps));
                }
                Write::Delete(key) => drop(self.remove(key)),
                Write::Mark { subject, position, value } => {
                    self.move_mark(subject, *position, value, now);
                }
                Write::Audit(entry) => {
                    self.audited += 1;
                    let (id, entry) = (self.audited, (**entry).clone());
                    self.audit.push(Audited { id, at: now, entry });
                }
                Write::Prune { tenant, through, until } => self.audit.retain(|audited| {
                    audited.entry.tenant != *tenant
                        || Place(0, audited.id) > *through
                        || audited.at > *until
                }),
            }
        }
        if batch.witness() == Witness::Tokens {
            self.tokens.insert(batch.token, now);
            if self.tokens.len() > 1_024 {
                self.tokens.retain(|_, at| now.since(*at) < TOKEN_KEPT_MS);
            }
        }
        Answer::Applied(Applied { now, first, again: false })
    }

    fn put(&mut self, draft: &Draft, token: Token, now: At) -> (Rev, Option<Fence>) {
        let key = &draft.record.key;
        self.stamp += 1;
        let mut record = draft.resolve(token, now, self.stamp);
        self.misnumber(&mut record, draft);
        let old = self.remove(key);
        let (mut outcome, mut payload) = old.map_or((None, None), |row| (row.outcome, row.payload));
        replace(&mut outcome, &draft.outcome);
        replace(&mut payload, &draft.payload);
        let stamps = (record.rev, record.fence);
        if let Some(at) = record.sweep_at {
            self.sweepable.insert((at, key.clone()));
        }
        if let Some(due) = due_key(&record) {
            self.due.entry(key.scope_column().into()).or_default().insert(due);
        }
        self.records.insert(key.clone(), Row { record, outcome, payload });
        stamps
    }

    /// Zoo: wrong ways to number fences.
    fn misnumber(&self, record: &mut Record, draft: &Draft) {
        if draft.fence != FenceWrite::Grant {
            return;
        }
        if planted(Bug::FenceNotMonotonic) {
            record.fence = Some(Fence(u64::MAX / 2 - self.stamp));
        } else if planted(Bug::FencePerRecord) {
            let last = self.record(&record.key).map_or(0, |old| old.last_fence.0);
            record.fence = Some(Fence(last + 1));
        }
        record.last_fence = record.fence.unwrap_or(record.last_fence);
    }

    /// Takes a record out, with its index entries.
    fn remove(&mut self, key: &Key) -> Option<Row> {
        let row = self.records.remove(key)?;
        if let Some(at) = row.record.sweep_at {
            self.sweepable.remove(&(at, key.clone()));
        }
        if let Some(due) = due_key(&row.record)
            && let Some(queue) = self.due.get_mut(key.scope_column())
        {
            queue.remove(&due);
        }
        Some(row)
    }

    fn move_mark(&mut self, subject: &Subject, position: u64, value: &Body, now: At) {
        let mark = self.marks.entry(subject.clone()).or_insert(Mark {
            position: 0,
            value: None,
            updated_at: now,
        });
        if planted(Bug::GraceCreeps) {
            mark.position = position;
        }
        mark.position = mark.position.max(position);
        mark.updated_at = now;
        replace(&mut mark.value, value);
    }
}

impl Row {
    fn stored(&self) -> Stored {
        Stored { record: self.record.clone(), outcome: self.outcome.clone() }
    }
}

fn replace(place: &mut Option<Bytes>, body: &Body) {
    match body {
        Body::Keep => {}
        Body::Set(bytes) => *place = Some(bytes.clone()),
        Body::Clear => *place = None,
    }
}

fn due_key(record: &Record) -> Option<DueKey> {
    use onceward_core::record::State::{Failed, Pending, Running};
    let takeable = matches!(record.state, Pending | Failed | Running);
    if record.key.kind() != Kind::Job || !takeable {
        return None;
    }
    let at = record.due_at?;
    Some((Reverse(record.priority), at, record.key.clone()))
}
