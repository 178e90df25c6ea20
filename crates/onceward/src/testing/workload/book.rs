//! The workload's book: what workers saw, and the audit that compares it with what is there.
//!
//! Nothing here is unique by construction: effects, grants, acknowledgements and replays are plain
//! append lists, otherwise they would hide duplicates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward_core::Bytes;
use onceward_core::decide::Permit;
use onceward_core::guard::Rule;
use onceward_core::key::Key;
use onceward_core::record::State;

use super::Names;
use crate::engine::{Engine, EngineError};
use crate::store::{AuditFilter, Items, List};
use crate::testing::sim::Violation;

/// Audit entries of one page.
const PAGE: usize = 500;

/// What a workload did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkloadReport {
    /// Effects elsewhere, one for each fence that got so far.
    pub effects: usize,
    /// Effects in the record's transaction.
    pub in_transaction: u64,
    /// Permits that were granted.
    pub grants: usize,
    /// Outcomes that were acknowledged.
    pub acknowledged: usize,
    /// Outcomes that were replayed.
    pub replayed: usize,
    /// Jobs that were made.
    pub jobs: usize,
    /// Operations without an answer.
    pub failed: usize,
}

#[derive(Debug, Default)]
pub(super) struct Book(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    /// Key, fence and, for ordered jobs, the number; in the order of the effects.
    effects: Vec<(Key, u64, Option<u64>)>,
    grants: Vec<(Key, u64, usize)>,
    acknowledged: Vec<(Key, Bytes)>,
    replayed: Vec<(Key, Option<Bytes>)>,
    jobs: BTreeSet<Key>,
    failed: usize,
}

impl Book {
    pub(super) fn effect(&self, permit: &Permit) {
        let number = permit.record.guard.as_ref().and_then(|guard| match guard.rule {
            Rule::Next { position } => Some(position),
            _ => None,
        });
        self.open().effects.push((permit.key().clone(), permit.fence.0, number));
    }

    pub(super) fn granted(&self, permit: &Permit, worker: usize) {
        self.open().grants.push((permit.key().clone(), permit.fence.0, worker));
    }

    pub(super) fn acknowledged(&self, key: &Key, outcome: Bytes) {
        self.open().acknowledged.push((key.clone(), outcome));
    }

    pub(super) fn replayed(&self, key: &Key, outcome: Option<Bytes>) {
        self.open().replayed.push((key.clone(), outcome));
    }

    pub(super) fn made(&self, key: &Key) {
        self.open().jobs.insert(key.clone());
    }

    pub(super) fn jobs(&self) -> Vec<Key> {
        self.open().jobs.iter().cloned().collect()
    }

    pub(super) fn failed(&self) {
        self.open().failed += 1;
    }

    fn open(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares the book with the store.
pub(super) async fn audit(
    engine: &Engine,
    names: &Names,
    book: &Book,
) -> Result<WorkloadReport, Violation> {
    let unreadable = |error: EngineError| Violation {
        invariant: "i02",
        what: format!("what was acknowledged can't be read: {error}"),
    };
    let mut outcomes = BTreeMap::new();
    let jobs = book.jobs();
    for key in names.leased.iter().chain(&names.once).chain(&jobs) {
        let found = engine.look(key).await.map_err(unreadable)?;
        let found = found.filter(|found| found.stored.record.state == State::Done);
        let Some(found) = found else {
            return Err(broken("i02", format!("{key} is not done at the end")));
        };
        outcomes.insert(key.clone(), found.stored.outcome);
    }
    let version = engine.mark(&names.document).await.map_err(unreadable)?;
    let version = version.map_or(0, |mark| mark.position);
    let done = audited_done(engine).await.map_err(unreadable)?;
    let pages = book.open();
    fences(&pages)?;
    order(&pages)?;
    for (key, outcome) in &outcomes {
        same_outcome(&pages, key, outcome.as_ref())?;
        let times = done.get(&**key.hash_hex()).copied().unwrap_or(0);
        if times != 1 {
            return Err(broken("i11", format!("{key} has {times} audit entries of its end")));
        }
    }
    if version != names.once.len() as u64 {
        let what = format!("{} keys took effect, but the version is {version}", names.once.len());
        return Err(broken("i01", what));
    }
    Ok(WorkloadReport {
        effects: pages.effects.len(),
        in_transaction: version,
        grants: pages.grants.len(),
        acknowledged: pages.acknowledged.len(),
        replayed: pages.replayed.len(),
        jobs: pages.jobs.len(),
        failed: pages.failed,
    })
}

/// i01, i06: one grant and at most one effect per fence.
fn fences(pages: &Pages) -> Result<(), Violation> {
    let mut seen = BTreeSet::new();
    for (key, fence, worker) in &pages.grants {
        if !seen.insert((key, fence)) {
            let what = format!("{key}: fence {fence} was granted twice, last to worker {worker}");
            return Err(broken("i06", what));
        }
    }
    let mut seen = BTreeSet::new();
    for (key, fence, _) in &pages.effects {
        if !seen.insert((key, fence)) {
            return Err(broken("i01", format!("{key} took effect twice under fence {fence}")));
        }
    }
    Ok(())
}

/// i28: a sink that refuses older fences sees the jobs of a subject in their order.
fn order(pages: &Pages) -> Result<(), Violation> {
    let mut newest = (0, 0);
    for (key, fence, number) in &pages.effects {
        let Some(number) = number else { continue };
        if *fence > newest.0 {
            if *number < newest.1 {
                let what = format!("{key}, number {number}, took effect after {}", newest.1);
                return Err(broken("i28", what));
            }
            newest = (*fence, *number);
        }
    }
    Ok(())
}

/// i02, i03: what was acknowledged or replayed is what is there.
fn same_outcome(pages: &Pages, key: &Key, there: Option<&Bytes>) -> Result<(), Violation> {
    let mine = |(of, _): &&(Key, Bytes)| of == key;
    if let Some((_, outcome)) =
        pages.acknowledged.iter().filter(mine).find(|(_, outcome)| Some(outcome) != there)
    {
        let what = format!("{key} was acknowledged with {}", String::from_utf8_lossy(outcome));
        return Err(broken("i02", what));
    }
    let other = |(of, outcome): &&(Key, Option<Bytes>)| of == key && outcome.as_ref() != there;
    match pages.replayed.iter().find(other) {
        Some(_) => Err(broken("i03", format!("{key} was replayed with another outcome"))),
        None => Ok(()),
    }
}

/// How often each key's end is in the audit, by the key's hash.
async fn audited_done(engine: &Engine) -> Result<BTreeMap<String, usize>, EngineError> {
    let mut done = BTreeMap::new();
    let mut after = None;
    loop {
        let what = List::Audit(AuditFilter::default());
        let page = engine.list(what, after, PAGE).await?;
        if let Items::Audit(entries) = page.items {
            for audited in entries {
                let hash =
                    audited.entry.key_hash.filter(|_| audited.entry.action.ends_with(".done"));
                if let Some(hash) = hash {
                    *done.entry(hash.to_string()).or_insert(0) += 1;
                }
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(done);
        }
    }
}

fn broken(invariant: &'static str, what: String) -> Violation {
    Violation { invariant, what }
}
