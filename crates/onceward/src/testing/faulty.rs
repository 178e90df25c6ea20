//! The faulty store: any store with faults injected into its calls, on every method.
//!
//! A plan says which call suffers which fault, by script or by seed, so that a run can be repeated.
//! The faults are those that a network and a server produce: nothing happened, it happened and the
//! answer was lost, it happens later, past a re-read, or a row is held. A fault on a read never
//! pretends that something was written: it answers `NotApplied`.

#![deny(clippy::missing_trait_methods)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward_core::batch::{Answer, Batch};
use onceward_core::key::Key;

use super::random::Random;
use crate::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Standing, Store, StoreError,
    StoreFuture,
};

/// A fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// None: the call goes through.
    None,
    /// Nothing is done. Answers `NotApplied`.
    Before,
    /// It is done, then the call fails. A commit or close answers `Unknown`.
    After,
    /// It is done, and the answer never arrives: `Unknown` after this while.
    Lost(Duration),
    /// A commit answers `Unknown` at once and is applied after this many further calls, or at
    /// [`FaultyStore::release_delayed`]: a statement that waits in the server.
    Delayed(u64),
    /// One batch of a group (this index, modulo the group's size) answers `Contended`.
    Contended(usize),
}

/// A method of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// [`Store::load`]
    Load,
    /// [`Store::commit`]
    Commit,
    /// [`Store::list`]
    List,
    /// [`Store::watch`]
    Watch,
    /// [`Store::close`]
    Close,
}

/// Which call suffers which fault.
#[derive(Debug, Clone)]
pub enum FaultPlan {
    /// No faults.
    Quiet,
    /// One per call, whatever its method, then none.
    Script(Vec<Fault>),
    /// Each call takes the first fault that names its method, then none.
    Named(Vec<(Method, Fault)>),
    /// A random fault in `per_mille` of a thousand calls. The same seed and calls, the same faults.
    Seeded {
        /// Determines everything.
        seed: u64,
        /// How often.
        per_mille: u64,
    },
}

/// What was injected so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Injected {
    /// Calls, with or without a fault.
    pub calls: u64,
    /// [`Fault::Before`], and faults of reads that were not done.
    pub before: u64,
    /// [`Fault::After`]
    pub after: u64,
    /// [`Fault::Lost`]
    pub lost: u64,
    /// [`Fault::Delayed`]
    pub delayed: u64,
    /// Delayed groups that were sent to the store since.
    pub released: u64,
    /// [`Fault::Contended`]
    pub contended: u64,
}

impl Injected {
    /// All faults.
    #[must_use]
    pub const fn faults(&self) -> u64 {
        self.before + self.after + self.lost + self.delayed + self.contended
    }
}

/// A store that fails as planned.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    injected: Injected,
    /// Groups that wait in the server, and the number of the call that they overtake.
    delayed: VecDeque<(u64, Vec<Arc<Batch>>)>,
}

enum Plan {
    Quiet,
    Script(VecDeque<Fault>),
    Named(Vec<(Method, Fault)>),
    Seeded(Random, u64),
}

impl FaultyStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, plan: FaultPlan) -> Self {
        let state =
            State { plan: plan.into(), injected: Injected::default(), delayed: VecDeque::new() };
        Self { inner, state: Mutex::new(state) }
    }

    /// Replaces the plan from the next call on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.locked().plan = plan.into();
    }

    /// What was injected so far.
    #[must_use]
    pub fn injected(&self) -> Injected {
        self.locked().injected
    }

    /// Groups that still wait in the server.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.locked().delayed.len()
    }

    /// The store without faults.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    /// Lets every delayed group reach the store now, and says how many there were.
    pub async fn release_delayed(&self) -> usize {
        let groups: Vec<_> = self.locked().delayed.drain(..).map(|(_, group)| group).collect();
        let count = groups.len();
        self.release(groups).await;
        count
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the call, lets delayed groups overtake it, and says which fault it suffers.
    async fn enter(&self, method: Method) -> Fault {
        let (groups, fault) = {
            let mut state = self.locked();
            state.injected.calls += 1;
            let call = state.injected.calls;
            let mut groups = Vec::new();
            state.delayed.retain_mut(|(until, group)| {
                let due = *until <= call;
                if due {
                    groups.push(std::mem::take(group));
                }
                !due
            });
            (groups, state.choose(method))
        };
        self.release(groups).await;
        fault
    }

    /// Sends groups whose answers nobody hears.
    async fn release(&self, groups: Vec<Vec<Arc<Batch>>>) {
        for group in groups {
            self.locked().injected.released += 1;
            // `Unknown` allows both: that it happens now, and that it never does.
            let _unheard = self.inner.commit(group).await;
        }
    }

    /// Answers for a read: whatever the fault, nothing was written.
    async fn read<T>(&self, method: Method, read: StoreFuture<'_, T>) -> Result<T, StoreError> {
        let what = match self.enter(method).await {
            Fault::None | Fault::Contended(_) => return read.await,
            Fault::Before | Fault::Delayed(_) => "failed before the read",
            Fault::After => {
                read.await?;
                "failed after the read"
            }
            Fault::Lost(after) => {
                read.await?;
                // sleeps because the caller is to wait as long as the plan says
                tokio::time::sleep(after).await;
                "the read's answer was lost"
            }
        };
        Err(StoreError::NotApplied(format!("injected: {what}")))
    }
}

impl State {
    /// Takes the fault of this call from the plan and counts it.
    fn choose(&mut self, method: Method) -> Fault {
        let fault = match &mut self.plan {
            Plan::Quiet => Fault::None,
            Plan::Script(script) => script.pop_front().unwrap_or(Fault::None),
            Plan::Named(named) => {
                let found = named.iter().position(|(of, _)| *of == method);
                found.map_or(Fault::None, |index| named.remove(index).1)
            }
            Plan::Seeded(random, per_mille) => {
                if random.chance(*per_mille) {
                    seeded_fault(random)
                } else {
                    Fault::None
                }
            }
        };
        let fault = suited(fault, method);
        let injected = &mut self.injected;
        match fault {
            Fault::None => {}
            Fault::Before => injected.before += 1,
            Fault::After => injected.after += 1,
            Fault::Lost(_) => injected.lost += 1,
            Fault::Delayed(_) => injected.delayed += 1,
            Fault::Contended(_) => injected.contended += 1,
        }
        fault
    }
}

impl From<FaultPlan> for Plan {
    fn from(plan: FaultPlan) -> Self {
        match plan {
            FaultPlan::Quiet => Self::Quiet,
            FaultPlan::Script(script) => Self::Script(script.into()),
            FaultPlan::Named(named) => Self::Named(named),
            FaultPlan::Seeded { seed, per_mille } => Self::Seeded(Random::new(seed), per_mille),
        }
    }
}

/// What a fault means for a method that can't suffer it as such: only commits are delayed or
/// contended, everything else just fails before.
fn suited(fault: Fault, method: Method) -> Fault {
    match fault {
        Fault::Delayed(_) | Fault::Contended(_) if method != Method::Commit => Fault::Before,
        fault => fault,
    }
}

fn seeded_fault(random: &mut Random) -> Fault {
    match random.below(5) {
        0 => Fault::Before,
        1 => Fault::After,
        2 => Fault::Lost(Duration::from_millis(random.below(3))),
        3 => Fault::Delayed(random.below(4)),
        _ => Fault::Contended(random.index(64)),
    }
}

impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(self.read(Method::Load, self.inner.load(reads)))
    }

    fn commit(&self, mut group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            match self.enter(Method::Commit).await {
                Fault::None => self.inner.commit(group).await,
                Fault::Before => {
                    Err(StoreError::NotApplied("injected: failed before the commit".into()))
                }
                Fault::After => {
                    self.inner.commit(group).await?;
                    Err(StoreError::Unknown("injected: failed after the commit".into()))
                }
                Fault::Lost(after) => {
                    self.inner.commit(group).await?;
                    // sleeps because the caller is to wait as long as the plan says
                    tokio::time::sleep(after).await;
                    Err(StoreError::Unknown("injected: the answer was lost".into()))
                }
                Fault::Delayed(calls) => {
                    let mut state = self.locked();
                    let overtakes = state.injected.calls + calls + 1;
                    state.delayed.push_back((overtakes, group));
                    Err(StoreError::Unknown("injected: the commit is under way".into()))
                }
                Fault::Contended(index) => {
                    let Some(index) = index.checked_rem(group.len()) else {
                        return self.inner.commit(group).await;
                    };
                    group.remove(index);
                    let mut committed = self.inner.commit(group).await?;
                    committed.answers.insert(index, Answer::Contended);
                    Ok(committed)
                }
            }
        })
    }

    fn commit_one(self: Arc<Self>, batch: Arc<Batch>) -> StoreFuture<'static, Answer> {
        Box::pin(async move {
            let committed = self.commit(vec![batch]).await?;
            let missing = || StoreError::Unknown("the store left out an answer".into());
            committed.answers.into_iter().next().ok_or_else(missing)
        })
    }

    #[cfg(feature = "sqlite")]
    fn commit_own(
        &self,
        group: Vec<Arc<dyn crate::store::sqlite::OwnSql>>,
    ) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            match self.enter(Method::Commit).await {
                Fault::None => self.inner.commit_own(group).await,
                Fault::Before => {
                    Err(StoreError::NotApplied("injected: failed before the commit".into()))
                }
                // A closure that comes late would come to a caller who has gone.
                Fault::After | Fault::Delayed(_) => {
                    self.inner.commit_own(group).await?;
                    Err(StoreError::Unknown("injected: failed after the commit".into()))
                }
                Fault::Lost(after) => {
                    self.inner.commit_own(group).await?;
                    // sleeps because the caller is to wait as long as the plan says
                    tokio::time::sleep(after).await;
                    Err(StoreError::Unknown("injected: the answer was lost".into()))
                }
                Fault::Contended(_) => {
                    Ok(Committed { answers: group.iter().map(|_| Answer::Contended).collect() })
                }
            }
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(self.read(Method::List, self.inner.list(what, after, limit)))
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        Box::pin(self.read(Method::Watch, self.inner.watch(keys)))
    }

    fn scrub(&self) -> StoreFuture<'_, bool> {
        self.inner.scrub()
    }

    fn standing(&self) -> Standing {
        self.inner.standing()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.enter(Method::Close).await {
                Fault::None => self.inner.close().await,
                Fault::After => {
                    self.inner.close().await?;
                    Err(StoreError::Unknown("injected: failed after the close".into()))
                }
                Fault::Lost(after) => {
                    self.inner.close().await?;
                    // sleeps because the caller is to wait as long as the plan says
                    tokio::time::sleep(after).await;
                    Err(StoreError::Unknown("injected: the close's answer was lost".into()))
                }
                Fault::Before | Fault::Delayed(_) | Fault::Contended(_) => {
                    Err(StoreError::NotApplied("injected: failed before the close".into()))
                }
            }
        })
    }
}
