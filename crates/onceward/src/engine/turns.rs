//! Turns: operations of this process that count up the same subject go one after the other.
//!
//! A job with an order takes its subject's next number from what was looked up, and its batch holds
//! only if nobody else took it; so does a one-commit handler that lost a race for a document and
//! runs again. Without turns, N callers at once would need N rounds and N² batches. Other processes
//! are still met by the batch's condition.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use onceward_core::key::Subject;
use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>;

/// Subjects that are left without anyone, before they are cleared away.
const IDLE_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Subject, Weak<Turn>>>);

impl Turns {
    /// Waits until nobody else of this process is at these subjects. They are free again when the
    /// guards are dropped.
    pub(super) async fn wait<'a>(
        &self,
        subjects: impl Iterator<Item = &'a Subject>,
    ) -> Vec<OwnedMutexGuard<()>> {
        let mut subjects: Vec<&Subject> = subjects.collect();
        // Everyone in one order, or two could wait for each other.
        subjects.sort_unstable();
        subjects.dedup();
        let mut guards = Vec::with_capacity(subjects.len());
        for subject in subjects {
            guards.push(self.turn(subject).lock_owned().await);
        }
        guards
    }

    fn turn(&self, subject: &Subject) -> Arc<Turn> {
        let mut turns = self.locked();
        if let Some(turn) = turns.get(subject).and_then(Weak::upgrade) {
            return turn;
        }
        if turns.len() >= IDLE_MAX {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let turn = Arc::new(Turn::default());
        turns.insert(subject.clone(), Arc::downgrade(&turn));
        turn
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Subject, Weak<Turn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
