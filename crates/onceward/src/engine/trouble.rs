//! Whether commits fail, as of the latest one, or wait for too long: for health, which must not say
//! "up" while a disk is full or a writer is locked out. Reads may well go on then.
//!
//! A store that fails gets no traffic, so nothing would ever tell that it is well again: then
//! [`Engine::writes`] commits something of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward_core::batch::{Answer, Batch, Condition, Write};
use onceward_core::decide::{Facts, Step};
use onceward_core::drive::Drive;
use onceward_core::key::Subject;
use onceward_core::record::Body;

use super::{Engine, EngineError, STORE_TENANT};
use crate::store::StoreError;

/// How long the store may be silent about a commit before that is told. Below the second within
/// which health has to tell it.
const LATE_AFTER: Duration = Duration::from_millis(900);

/// What the latest commit ended with, if it failed, and since when commits wait.
#[derive(Debug)]
pub(super) struct Trouble {
    /// Looked at on every commit, where a lock would be waste.
    fails: AtomicBool,
    why: Mutex<Option<String>>,
    born: Instant,
    /// Since when each lane waits for the store, in milliseconds from `born`; 0 for one that does
    /// not. A store that gathers by itself answers in turn and counts as one lane, which waits
    /// since its last answer.
    waiting: Vec<AtomicU64>,
}

impl Trouble {
    /// Nothing is known yet about a store with so many lanes.
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            fails: AtomicBool::new(false),
            why: Mutex::default(),
            born: Instant::now(),
            waiting: (0..lanes.max(1)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// From now on this lane waits for the store.
    pub(super) fn waits(&self, lane: usize) {
        self.waiting[lane].store(self.now_ms(), Ordering::Relaxed);
    }

    /// This lane waits for nothing.
    pub(super) fn rests(&self, lane: usize) {
        self.waiting[lane].store(0, Ordering::Relaxed);
    }

    /// For how long the store has been silent about a commit, if that is too long.
    fn late(&self) -> Option<Duration> {
        let began = self.waiting.iter().map(|lane| lane.load(Ordering::Relaxed));
        let longest = began.filter(|began| *began > 0).min()?;
        let waited = Duration::from_millis(self.now_ms().saturating_sub(longest));
        (waited >= LATE_AFTER).then_some(waited)
    }

    /// Notes how a commit ended. One that wrote nothing says nothing about the store.
    pub(super) fn note(&self, result: Result<&[Answer], &StoreError>) {
        let error = match result {
            Err(StoreError::Invalid(_)) => return,
            Err(error) => Some(error),
            Ok(_) if !self.fails.load(Ordering::Relaxed) => return,
            Ok(answers) => {
                let wrote = |answer| matches!(answer, &Answer::Applied(applied) if !applied.again);
                if !answers.iter().any(wrote) {
                    return;
                }
                None
            }
        };
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        *why = error.map(ToString::to_string);
        self.fails.store(why.is_some(), Ordering::Relaxed);
    }

    fn why(&self) -> Option<String> {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Engine {
    /// For how long the store has been silent about a commit, if that is too long: nearly a second.
    /// What is done can be read all the same.
    #[must_use]
    pub fn late(&self) -> Option<Duration> {
        self.0.scheduler.trouble().late()
    }

    /// Why the latest commit failed, if it did.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.0.scheduler.trouble().why()
    }

    /// Whether the store can be written to: commits a mark of the store's own.
    ///
    /// # Errors
    /// When it can't.
    pub async fn writes(&self) -> Result<(), EngineError> {
        let subject = Subject::new(STORE_TENANT, "onceward.health", "written")?;
        let seen = self.mark(&subject).await?.map_or(0, |mark| mark.position);
        let decide = |token, facts: &Facts| -> Step<(), ()> {
            if facts.position(&subject).is_some_and(|position| position != seen) {
                // Someone else has just written it: the store takes writes.
                return Step::Answer(());
            }
            let mut batch = Batch::new(token);
            batch.conditions.push(Condition::PositionIs(subject.clone(), seen));
            batch.writes.push(Write::Mark {
                subject: subject.clone(),
                position: seen + 1,
                value: Body::Clear,
            });
            Step::Commit(batch, ())
        };
        self.drive(None, Drive::default(), decide).await.map(drop)
    }
}
