//! Jobs that wait behind another of their subject, as takes have seen them: the next in line is
//! found without looking through the queue again.
//!
//! A long line behind one subject would otherwise be read anew for every job of it. This is only
//! a memory of what lists said: marks and records are read before anything is taken. It is asked
//! only for a moment after a look through the queue that found less than was wanted, and not when
//! this process has left a job there since: so whatever else there is waits a moment at most.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward_core::batch::{Batch, Write};
use onceward_core::guard::Rule;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Record, State as RecordState};
use onceward_core::stamp::At;

/// How long after such a look the memory serves alone, by the store's clock.
const AFTER_A_LOOK_MS: u64 = 50;
/// Takers and queues that are remembered, and jobs for each; beyond, the memory starts anew or is
/// full.
const PLACES_MAX: usize = 256;
const QUEUES_MAX: usize = 1_000;
const KEYS_MAX: usize = 4_096;
/// Subjects that one take asks about.
const SUBJECTS_MAX: usize = 64;

/// What waits, by taker and queue.
#[derive(Debug, Default)]
pub(super) struct Behind(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    places: HashMap<String, Lines>,
    /// Counts batches that left a job to be taken, and tells the last one of each queue.
    batches: u64,
    left: HashMap<String, u64>,
}

/// The last batch that left a job in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left(Option<u64>);

#[derive(Debug, Default)]
struct Lines {
    of: HashMap<Subject, BTreeMap<u64, Key>>,
    count: usize,
    looked: Option<Looked>,
}

/// A look into the queue that found nothing else to take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked {
    pub(super) at: At,
    /// What had been left in the queue before.
    pub(super) left: Left,
    /// Whether it came to the queue's end.
    pub(super) through: bool,
}

impl State {
    fn leave(&mut self, queue_column: &str) {
        self.batches += 1;
        if let Some(last) = self.left.get_mut(queue_column) {
            *last = self.batches;
            return;
        }
        if self.left.len() >= QUEUES_MAX {
            self.left.clear();
        }
        self.left.insert(queue_column.to_string(), self.batches);
    }
}

impl Behind {
    /// Remembers a job whose turn has not come.
    pub(super) fn note(&self, place: &str, job: &Record) {
        let Some(guard) = &job.guard else { return };
        let Rule::Next { position } = guard.rule else { return };
        let places = &mut self.locked().places;
        if !places.contains_key(place) {
            if places.len() >= PLACES_MAX {
                places.clear();
            }
            places.insert(place.to_string(), Lines::default());
        }
        let Some(lines) = places.get_mut(place) else { return };
        if lines.count < KEYS_MAX {
            let line = lines.of.entry(guard.subject.clone()).or_default();
            lines.count += usize::from(line.insert(position, job.key.clone()).is_none());
        }
    }

    /// What has been left in a queue; to be asked before it is looked through.
    pub(super) fn left(&self, queue_column: &str) -> Left {
        Left(self.locked().left.get(queue_column).copied())
    }

    /// The queue was looked through and gave less than was wanted.
    pub(super) fn came_up_short(&self, place: &str, looked: Looked) {
        if let Some(lines) = self.locked().places.get_mut(place) {
            lines.looked = Some(looked);
        }
    }

    /// A batch was committed: where it left a job to be taken, the queue has to be looked through.
    pub(super) fn committed(&self, batch: &Batch) {
        for write in &batch.writes {
            if let Write::Put(draft) = write
                && draft.record.key.kind() == Kind::Job
                && matches!(draft.record.state, RecordState::Pending | RecordState::Failed)
            {
                self.locked().leave(draft.record.key.scope_column());
            }
        }
    }

    /// Subjects with jobs that wait, when a look came up short and nothing was left there since,
    /// and that look.
    pub(super) fn subjects(
        &self,
        place: &str,
        queue_column: &str,
    ) -> Option<(Looked, Vec<Subject>)> {
        let state = self.locked();
        let lines = state.places.get(place)?;
        let looked = lines.looked?;
        if lines.of.is_empty() || looked.left.0 != state.left.get(queue_column).copied() {
            return None;
        }
        Some((looked, lines.of.keys().take(SUBJECTS_MAX).cloned().collect()))
    }

    /// The job whose turn it is when the subject has come to `current`. Told once; what the subject
    /// has passed is forgotten.
    pub(super) fn next(&self, place: &str, subject: &Subject, current: u64) -> Option<Key> {
        let mut state = self.locked();
        let lines = state.places.get_mut(place)?;
        let line = lines.of.get_mut(subject)?;
        let mut later = line.split_off(&current.saturating_add(1));
        let next = later.remove(&current.saturating_add(1));
        lines.count -= line.len() + usize::from(next.is_some());
        if later.is_empty() {
            lines.of.remove(subject);
        } else {
            *line = later;
        }
        next
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Looked {
    /// Whether it is still good.
    pub(super) fn is_good_at(self, now: At) -> bool {
        now.since(self.at) < AFTER_A_LOOK_MS
    }
}
