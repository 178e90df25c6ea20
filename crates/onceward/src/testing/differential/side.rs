//! One side of a differential run: a store, and what it answered so far.
//!
//! Steps speak of "the rev before last of this key"; a side turns that into its own numbers.

use std::sync::Arc;

use onceward_core::batch::{Batch, Condition, Write};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::record::{Body, Draft, Mark, Record};
use onceward_core::stamp::{Fence, Rev, Token};

use super::steps::{Ask, Do, Plan, Put, Universe};
use crate::store::{Committed, Cursor, Fact, Items, List, Loaded, Page, Store, StoreError};
use crate::testing::conformance::bench::{draft, draft_of};

/// A store and what it said about each key and subject of the universe.
pub(super) struct Side {
    pub(super) store: Arc<dyn Store>,
    pub(super) records: Vec<Option<Record>>,
    pub(super) marks: Vec<Option<Mark>>,
    /// All revs and fences that were seen of each key, oldest first.
    pub(super) revs: Vec<Vec<Rev>>,
    pub(super) fences: Vec<Vec<Fence>>,
    sent: Vec<Arc<Batch>>,
}

impl Side {
    pub(super) fn new(store: Arc<dyn Store>, universe: &Universe) -> Self {
        let (keys, subjects) = (universe.keys.len(), universe.subjects.len());
        Self {
            store,
            records: vec![None; keys],
            marks: vec![None; subjects],
            revs: vec![Vec::new(); keys],
            fences: vec![Vec::new(); keys],
            sent: Vec::new(),
        }
    }

    /// Prepares the batch of a plan; [`Side::commit`] sends it, once or more.
    pub(super) fn send(&mut self, universe: &Universe, plan: &Plan, token: Token) {
        let conditions = plan.asks.iter().map(|ask| self.condition(universe, ask)).collect();
        let writes = plan.writes.iter().map(|write| self.write(universe, write)).collect();
        self.sent.push(Arc::new(Batch { token, conditions, writes }));
    }

    pub(super) async fn commit(&self, sent: &[usize]) -> Result<Committed, StoreError> {
        let group = sent.iter().filter_map(|index| self.sent.get(*index).cloned()).collect();
        self.store.commit(group).await
    }

    /// Remembers what a look at the whole universe gave.
    pub(super) fn learn(&mut self, loaded: Result<Loaded, StoreError>) {
        let facts = loaded.map(|loaded| loaded.facts).unwrap_or_default();
        let (mut key, mut subject) = (0, 0);
        for fact in facts {
            match fact {
                Fact::Record(found) => {
                    let record = found.map(|found| found.stored.record);
                    if let Some(record) = &record {
                        remember(&mut self.revs[key], record.rev);
                        remember(&mut self.fences[key], record.last_fence);
                    }
                    self.records[key] = record;
                    key += 1;
                }
                Fact::Mark(mark) => {
                    self.marks[subject] = mark;
                    subject += 1;
                }
            }
        }
    }

    fn condition(&self, universe: &Universe, ask: &Ask) -> Condition {
        let key = |key: usize| universe.keys[key].clone();
        let subject = |subject: usize| universe.subjects[subject].clone();
        match *ask {
            Ask::Absent(k) => Condition::Absent(key(k)),
            Ask::Rev(k, back) => Condition::RevIs(key(k), seen(&self.revs[k], back, Rev(0))),
            Ask::Fence(k, back) => {
                Condition::FenceIs(key(k), seen(&self.fences[k], back, Fence(0)))
            }
            Ask::Position(s, position) => Condition::PositionIs(subject(s), position),
            Ask::AtMost(s, position) => Condition::PositionAtMost(subject(s), position),
        }
    }

    fn write(&self, universe: &Universe, write: &Do) -> Write {
        match write {
            Do::Put(put) => Write::Put(Box::new(self.draft(universe, put))),
            Do::Delete(key) => Write::Delete(universe.keys[*key].clone()),
            Do::Mark { subject, position, value } => Write::Mark {
                subject: universe.subjects[*subject].clone(),
                position: *position,
                value: value.clone(),
            },
            Do::Audit(entry) => Write::Audit(entry.clone()),
        }
    }

    fn draft(&self, universe: &Universe, put: &Put) -> Draft {
        let base = match &self.records[put.key] {
            Some(record) => draft_of(record),
            None => draft(&universe.keys[put.key]),
        };
        let mut record = base.record;
        record.state = put.state;
        record.fingerprint = fingerprint_bytes(&[put.fingerprint]);
        record.attempt = put.attempt;
        record.terms = put.terms;
        record.priority = put.priority;
        record.guard.clone_from(&put.guard);
        record.owner.clone_from(&put.text);
        record.error.clone_from(&put.text);
        record.trace.correlation_id.clone_from(&put.text);
        match &put.outcome {
            Body::Keep => {}
            Body::Set(bytes) => record.outcome = Some(fingerprint_bytes(bytes)),
            Body::Clear => record.outcome = None,
        }
        match &put.payload {
            Body::Keep => {}
            Body::Set(_) => record.has_payload = true,
            Body::Clear => record.has_payload = false,
        }
        Draft {
            record,
            fence: put.fence,
            fresh: put.fresh,
            due: put.due,
            expires: put.expires,
            sweep: put.sweep,
            outcome: put.outcome.clone(),
            payload: put.payload.clone(),
        }
    }
}

fn remember<T: PartialEq>(seen: &mut Vec<T>, new: T) {
    if seen.last() != Some(&new) {
        seen.push(new);
    }
}

/// The stamp that was seen `back` changes ago.
fn seen<T: Copy>(seen: &[T], back: usize, none: T) -> T {
    seen.iter().rev().nth(back).copied().unwrap_or(none)
}

/// Every page of a list, walked by the store's own cursors.
pub(super) async fn page_items(
    store: &dyn Store,
    what: &List,
    limit: usize,
) -> Result<Vec<Items>, StoreError> {
    let mut pages = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let Page { items, next, .. } = store.list(what.clone(), after, limit).await?;
        pages.push(items);
        if next.is_none() || pages.len() > MAX_PAGES {
            return Ok(pages);
        }
        after = next;
    }
}

/// A walk that is longer than this does not end; the comparison shows what it repeats.
const MAX_PAGES: usize = 2_000;
