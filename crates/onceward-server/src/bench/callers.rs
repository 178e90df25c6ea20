//! The subject: many concurrent callers of one engine, doing what a service would do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::engine::{Engine, OnceVerdict};
use onceward_core::decide::{Finish, Resolution, Verdict};
use tokio::task::JoinSet;

use super::load::{Keys, Work, mixed};
use super::measure::Round;
use crate::failure::Failure;

/// Callers that fill or erase, more than measure: large groups are what makes that fast.
const FILLERS: u64 = 1_024;

/// What a caller does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// A first claim and its completion: two durable commits.
    Pair,
    /// The key as done with its outcome: one durable commit.
    OneCommit,
    /// A look before the claim, on a key that is done.
    Look,
    /// A claim on a key that is done.
    Replay,
}

/// Concurrent callers of an engine.
#[derive(Clone)]
pub(crate) struct Callers {
    /// What they call.
    pub(crate) engine: Engine,
    /// Their keys; those of replays were drawn before.
    pub(crate) keys: Arc<Keys>,
    work: Arc<Work>,
    count: u32,
}

impl Callers {
    /// This many callers.
    pub(crate) fn new(engine: Engine, keys: Keys, count: u32) -> Self {
        Self { engine, keys: Arc::new(keys), work: Arc::new(Work::new()), count }
    }

    /// All callers do this for a time.
    pub(crate) async fn round(&self, act: Act, time: Duration) -> Result<Round, Failure> {
        let mut callers = JoinSet::new();
        let started = Instant::now();
        let known = self.keys.made();
        for caller in 0..u64::from(self.count) {
            let this = self.clone();
            callers.spawn(async move {
                let mut random = mixed(caller);
                let mut round = Round::default();
                let mut before = started;
                while before.duration_since(started) < time {
                    random = mixed(random);
                    let number = match act {
                        Act::Pair | Act::OneCommit => this.keys.draw(),
                        Act::Look | Act::Replay => random % known.max(1),
                    };
                    this.act(act, number).await?;
                    let after = Instant::now();
                    round.latencies.add(after - before);
                    round.operations += 1;
                    before = after;
                }
                round.elapsed = started.elapsed();
                Ok::<_, Failure>(round)
            });
        }
        let mut all = Round::default();
        while let Some(joined) = callers.join_next().await {
            all.join(&joined.map_err(|error| ended(&error))??);
        }
        Ok(all)
    }

    async fn act(&self, act: Act, number: u64) -> Result<(), Failure> {
        let claim = self.work.claim(self.keys.key(number)?);
        match act {
            Act::Pair => {
                let verdict = self.engine.claim(&claim).await?;
                let Verdict::Run { permit, .. } = verdict else { return unexpected(&verdict) };
                match self.engine.complete(&permit, &self.work.completion).await? {
                    Finish::Ok => Ok(()),
                    other => unexpected(&other),
                }
            }
            Act::OneCommit => match self.engine.run_once(&claim, &self.work.completion).await? {
                OnceVerdict::Ran { .. } => Ok(()),
                other @ OnceVerdict::Not(_) => unexpected(&other),
            },
            Act::Look => match self.engine.look_before(&claim).await? {
                Some(Verdict::Replay(_)) => Ok(()),
                other => unexpected(&other),
            },
            Act::Replay => match self.engine.claim(&claim).await? {
                Verdict::Replay(_) => Ok(()),
                other => unexpected(&other),
            },
        }
    }

    /// Makes `count` done records with outcomes. `progress` hears how many there are.
    pub(crate) async fn fill(
        &self,
        count: u64,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        let end = self.keys.made() + count;
        let progress = Arc::new(progress);
        let mut fillers = JoinSet::new();
        for _ in 0..FILLERS.min(count) {
            let (this, progress) = (self.clone(), progress.clone());
            fillers.spawn(async move {
                loop {
                    let number = this.keys.draw();
                    if number >= end {
                        return Ok::<_, Failure>(());
                    }
                    this.act(Act::OneCommit, number).await?;
                    progress(number);
                }
            });
        }
        while let Some(joined) = fillers.join_next().await {
            joined.map_err(|error| ended(&error))??;
        }
        Ok(())
    }

    /// Erases every record whose key was drawn.
    pub(crate) async fn erase(&self) -> Result<(), Failure> {
        let end = self.keys.made();
        let mut erasers = JoinSet::new();
        for eraser in 0..FILLERS.min(end) {
            let this = self.clone();
            erasers.spawn(async move {
                for number in (eraser..end).step_by(FILLERS as usize) {
                    let key = this.keys.key(number)?;
                    // Numbers that a filler drew past its end have no record; that is fine.
                    this.engine.resolve(&key, &Resolution::Erase, &Default::default()).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        while let Some(joined) = erasers.join_next().await {
            joined.map_err(|error| ended(&error))??;
        }
        Ok(())
    }
}

fn ended(error: &tokio::task::JoinError) -> Failure {
    Failure::failed("bench.caller", format!("a caller ended early: {error}"))
}

fn unexpected<T>(answer: &dyn std::fmt::Debug) -> Result<T, Failure> {
    let message = format!("an answer that the load can't have caused: {answer:?}");
    Err(Failure::failed("bench.answer", message))
}
