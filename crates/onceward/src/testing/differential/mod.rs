//! The differential runner: a store and the memory oracle take the same random steps, and every
//! answer is compared (i17).
//!
//! A small universe of keys and subjects makes steps collide. Stamps differ between two stores, so
//! a step names them by what each store answered itself, and answers are compared through a map
//! that must be one to one and keep the order. Cursors are compared by what they lead to. A seed
//! determines every step; a divergence prints it.

mod compare;
mod side;
mod steps;

use std::fmt;
use std::sync::Arc;

use onceward_core::batch::Answer;
use onceward_core::stamp::{At, Token};

use super::harness::Harness;
use super::random::Random;
use crate::store::memory::MemoryStore;
use crate::store::{AuditFilter, List, Store, StoreError};
use compare::Stamps;
use side::{Side, page_items};
use steps::{Known, Step, Universe};

/// What a run did. A run that never refused or recognised anything shows little.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps, all told.
    pub steps: usize,
    /// Batches that were applied.
    pub applied: usize,
    /// Batches that were refused.
    pub refused: usize,
    /// Batches that were recognised by their token.
    pub again: usize,
    /// Groups of more than one batch.
    pub groups: usize,
    /// Lists that were walked.
    pub lists: usize,
    /// Items that were listed.
    pub listed: usize,
    /// Times that the store was closed and opened again.
    pub reopened: usize,
}

/// The store answered otherwise than the oracle.
#[derive(Debug, Clone)]
pub struct Divergence {
    /// Repeats the run.
    pub seed: u64,
    /// The step's number, from 0.
    pub number: usize,
    /// The step.
    pub step: String,
    /// What differs.
    pub why: String,
    /// What the store answered.
    pub store: String,
    /// What the oracle answered.
    pub oracle: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, number, step, why, store, oracle } = self;
        write!(f, "seed {seed}, step {number}: {why}\n   step   {step}")?;
        write!(f, "\n   store  {store}\n   oracle {oracle}")
    }
}

impl std::error::Error for Divergence {}

/// Two answers that differ, before it is known at which step.
struct Differs {
    why: String,
    store: String,
    oracle: String,
}

impl Differs {
    fn new(why: impl Into<String>, store: &dyn fmt::Debug, oracle: &dyn fmt::Debug) -> Self {
        Self { why: why.into(), store: format!("{store:?}"), oracle: format!("{oracle:?}") }
    }
}

/// Drives a fresh store of this harness and the oracle through `steps` random steps.
///
/// # Errors
/// The first answer that differs, or why the store can't be compared at all.
pub async fn run(
    harness: &dyn Harness,
    seed: u64,
    steps: usize,
) -> Result<Summary, Box<Divergence>> {
    let wrap = |number: usize, step: String| {
        move |Differs { why, store, oracle }| {
            Box::new(Divergence { seed, number, step, why, store, oracle })
        }
    };
    let mut pair = Pair::open(harness).await.map_err(wrap(0, "open".into()))?;
    let mut random = Random::new(seed);
    for number in 0..steps {
        let step = pair.universe.step(&mut random, &pair.known);
        let taken = pair.take(&step).await;
        taken.map_err(wrap(number, format!("{step:?}")))?;
        pair.summary.steps += 1;
    }
    let last = Step::List(List::Audit(AuditFilter::default()), 1_000);
    pair.take(&last).await.map_err(wrap(steps, format!("{last:?}")))?;
    Ok(pair.summary)
}

/// The store under test and the oracle, side by side.
struct Pair<'a> {
    harness: &'a dyn Harness,
    universe: Universe,
    store: Side,
    oracle: Side,
    hand: crate::store::clock::ManualClock,
    stamps: Stamps,
    known: Known,
    tokens: u128,
    summary: Summary,
}

impl<'a> Pair<'a> {
    async fn open(harness: &'a dyn Harness) -> Result<Self, Differs> {
        let failed = |error: StoreError| Differs::new("the store can't be opened", &error, &"");
        let store = harness.open().await.map_err(failed)?;
        let start = store.load(vec![]).await.map_err(failed)?.now;
        if !harness.advance(1).await.map_err(failed)? {
            let why = "the store's clock can't be moved, so its instants can't be compared";
            return Err(Differs::new(why, &start, &""));
        }
        let group_max = store.capabilities().group_max;
        let (oracle, hand) = MemoryStore::manual(At(start.0 + 1));
        let universe = Universe::new(group_max)
            .map_err(|error| Differs::new("the universe does not fit the limits", &error, &""))?;
        let known = universe.nothing_known(At(start.0 + 1));
        let side = |store: Arc<dyn Store>| Side::new(store, &universe);
        let (store, oracle) = (side(store), side(Arc::new(oracle)));
        let (stamps, summary) = (Stamps::default(), Summary::default());
        Ok(Self { harness, universe, store, oracle, hand, stamps, known, tokens: 0, summary })
    }

    async fn take(&mut self, step: &Step) -> Result<(), Differs> {
        match step {
            Step::Commit(plans) => {
                for plan in plans {
                    self.tokens += 1;
                    let token = Token(self.tokens << 64 | u128::from(u64::MAX));
                    self.store.send(&self.universe, plan, token);
                    self.oracle.send(&self.universe, plan, token);
                    self.known.sent_at.push(self.known.now);
                }
                self.summary.groups += usize::from(plans.len() > 1);
                let first = self.known.sent_at.len() - plans.len();
                self.commit((first..self.known.sent_at.len()).collect()).await?;
                self.look().await
            }
            Step::Resend(sent) => {
                self.commit(sent.clone()).await?;
                self.look().await
            }
            Step::Load(reads) => {
                let store = self.store.store.load(reads.clone()).await;
                let oracle = self.oracle.store.load(reads.clone()).await;
                self.stamps.same_load(&store, &oracle)
            }
            Step::List(what, limit) => self.list(what, *limit).await,
            Step::Advance(ms) => {
                self.hand.advance(*ms);
                self.known.now = self.hand.now();
                let moved = self.harness.advance(*ms).await;
                let moved = moved.map_err(|error| Differs::new("advance failed", &error, &""));
                moved.map(drop)
            }
            Step::Reopen => self.reopen().await,
        }
    }

    /// Sends batches that both sides have prepared, and compares what they answer.
    async fn commit(&mut self, sent: Vec<usize>) -> Result<(), Differs> {
        let store = self.store.commit(&sent).await;
        let oracle = self.oracle.commit(&sent).await;
        self.stamps.same_commit(&store, &oracle)?;
        for answer in oracle.iter().flat_map(|committed| &committed.answers) {
            match answer {
                Answer::Applied(applied) if applied.again => self.summary.again += 1,
                Answer::Applied(_) => self.summary.applied += 1,
                Answer::Refused(_) => self.summary.refused += 1,
                Answer::Contended => {}
            }
        }
        Ok(())
    }

    /// Loads the whole universe on both sides, compares it and remembers what each side said.
    async fn look(&mut self) -> Result<(), Differs> {
        let store = self.store.store.load(self.universe.everything()).await;
        let oracle = self.oracle.store.load(self.universe.everything()).await;
        self.stamps.same_load(&store, &oracle)?;
        self.store.learn(store);
        self.oracle.learn(oracle);
        self.known.learn(&self.oracle);
        Ok(())
    }

    async fn list(&mut self, what: &List, limit: usize) -> Result<(), Differs> {
        let failed = |error: StoreError| Differs::new("settle failed", &error, &"");
        self.harness.settle().await.map_err(failed)?;
        let store = page_items(&*self.store.store, what, limit).await;
        let oracle = page_items(&*self.oracle.store, what, limit).await;
        self.summary.lists += 1;
        self.summary.listed += self.stamps.same_list(what, store, oracle)?;
        Ok(())
    }

    async fn reopen(&mut self) -> Result<(), Differs> {
        let failed = |error: StoreError| Differs::new("reopen failed", &error, &"");
        if let Some(store) = self.harness.reopen().await.map_err(failed)? {
            self.store.store = store;
            self.summary.reopened += 1;
        }
        self.look().await
    }
}
