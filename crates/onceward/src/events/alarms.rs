//! What is damaged or lost of the segments, for health: told for as long as it is so.
//!
//! Whoever reads a segment that is not what was written notes it here, whoever reads it whole takes
//! that back: a segment can be restored from a backup while the service runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Place;

/// Damaged segments that are told of, at most; the first ones.
const TOLD_MAX: usize = 20;

#[derive(Debug, Default)]
pub(super) struct Alarms(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Why each can't be read.
    damaged: BTreeMap<u64, String>,
    lost: Option<(Place, Place)>,
}

impl Alarms {
    /// A segment was read: what is wrong with it, if anything.
    pub(super) fn note(&self, segment: u64, wrong: Option<String>) {
        let mut state = self.locked();
        match wrong {
            Some(why) => state.damaged.insert(segment, why),
            None => state.damaged.remove(&segment),
        };
    }

    /// Events were published up to a place behind the last one.
    pub(super) fn note_lost(&self, published: Place, head: Place) {
        self.locked().lost = Some((published, head));
    }

    pub(super) fn sentences(&self) -> Vec<String> {
        let state = self.locked();
        let damaged = state.damaged.values().take(TOLD_MAX).map(|why| {
            format!(
                "{why}; its events can't be read, and none behind them is published or handled \
                 where they are still to be: restore the object of this segment from a backup"
            )
        });
        let lost = state.lost.map(|(published, head)| {
            format!(
                "events were published up to {published}, but the event store ends at {head}: the \
                 last segments are lost; restore them and the database from backups of one time, \
                 or tell consumers that what they have beyond is of the past"
            )
        });
        damaged.chain(lost).collect()
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
