//! Whether commits fail, as of the latest one: for health, which must not say "up" while a disk is
//! full. Reads may well go on then.
//!
//! A store that fails gets no traffic, so nothing would ever tell that it is well again: then
//! [`Engine::writes`] commits something of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use onceward_core::batch::{Answer, Batch, Condition, Write};
use onceward_core::decide::{Facts, Step};
use onceward_core::drive::Drive;
use onceward_core::key::Subject;
use onceward_core::record::Body;

use super::{Engine, EngineError, STORE_TENANT};
use crate::store::StoreError;

/// What the latest commit ended with, if it failed.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Looked at on every commit, where a lock would be waste.
    fails: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Trouble {
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
