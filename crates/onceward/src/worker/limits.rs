//! How many jobs of a queue run at once in this worker: in all, and per key of your choosing.
//!
//! A place is taken before the job is, so that a job over its limit stays where it is and can be
//! taken by someone else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward_core::key::Key;
use tokio::sync::Notify;

/// Groups the jobs that a limit counts together.
pub(super) type By = Arc<dyn Fn(&Key) -> String + Send + Sync>;

/// At most `max` at once of those that `by` gives the same name.
#[derive(Clone)]
pub(super) struct PerKey {
    pub(super) max: usize,
    pub(super) by: By,
}

/// The places of one queue.
pub(super) struct Limits {
    max: usize,
    per_key: Vec<PerKey>,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    running: usize,
    of: HashMap<(usize, String), usize>,
}

/// A place that is taken until it is dropped.
pub(super) struct Place {
    limits: Arc<Limits>,
    names: Vec<String>,
}

/// Places of one take: what is not used in the end is free again.
pub(super) struct Places<'l> {
    limits: &'l Arc<Limits>,
    /// Each with the instant at which it was asked for last.
    taken: Mutex<HashMap<Key, (u64, Place)>>,
}

impl Limits {
    pub(super) fn new(max: usize, per_key: Vec<PerKey>) -> Self {
        Self { max: max.max(1), per_key, state: Mutex::default(), freed: Notify::new() }
    }

    /// How many places are free.
    pub(super) fn free(&self) -> usize {
        self.max.saturating_sub(self.locked().running)
    }

    /// Resolves when a place was freed after this was called.
    pub(super) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// How many places there are.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Whether a limit besides the total may keep jobs back.
    pub(super) fn is_keyed(&self) -> bool {
        !self.per_key.is_empty()
    }

    fn enter(self: &Arc<Self>, key: &Key) -> Option<Place> {
        let names: Vec<String> = self.per_key.iter().map(|per| (per.by)(key)).collect();
        let mut state = self.locked();
        let full = names.iter().enumerate().any(|(index, name)| {
            let running = state.of.get(&(index, name.clone())).copied().unwrap_or(0);
            running >= self.per_key[index].max
        });
        if full || state.running >= self.max {
            return None;
        }
        state.running += 1;
        for (index, name) in names.iter().enumerate() {
            *state.of.entry((index, name.clone())).or_default() += 1;
        }
        drop(state);
        Some(Place { limits: self.clone(), names })
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.limits.locked();
        state.running -= 1;
        for (index, name) in std::mem::take(&mut self.names).into_iter().enumerate() {
            let counted = (index, name);
            if let Some(running) = state.of.get_mut(&counted) {
                *running -= 1;
                if *running == 0 {
                    state.of.remove(&counted);
                }
            }
        }
        drop(state);
        self.limits.freed.notify_waiters();
    }
}

impl<'l> Places<'l> {
    pub(super) fn new(limits: &'l Arc<Limits>) -> Self {
        Self { limits, taken: Mutex::default() }
    }

    /// Takes a place for a job at an instant, if its limits allow. One that it has is its own: it
    /// was asked for before, and nobody has said what became of that.
    pub(super) fn enter(&self, job: &Key, now: u64) -> bool {
        let mut taken = self.locked();
        if let Some((asked, _)) = taken.get_mut(job) {
            *asked = now;
            return true;
        }
        let Some(place) = self.limits.enter(job) else { return false };
        taken.insert(job.clone(), (now, place));
        true
    }

    /// Gives the place of a job back that was asked for and not granted.
    pub(super) fn leave(&self, key: &Key) {
        let left = self.locked().remove(key);
        // Not under the lock: whoever waits for a place is woken.
        drop(left);
    }

    /// When a job was asked for, and the place that was taken for it.
    pub(super) fn of(&self, key: &Key) -> Option<(u64, Place)> {
        self.locked().remove(key)
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<Key, (u64, Place)>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward_core::key::Kind;

    fn key(tenant: &str, id: &str) -> Key {
        Key::within(Kind::Job, tenant, "q", &["t"], id).unwrap()
    }

    #[test]
    fn who_is_not_granted_a_job_leaves_its_place_to_the_next() {
        let limits = Arc::new(Limits::new(1, Vec::new()));
        let places = Places::new(&limits);
        assert!(places.enter(&key("a", "1"), 1) && !places.enter(&key("a", "2"), 1));
        places.leave(&key("a", "1"));
        assert!(places.enter(&key("a", "2"), 1));
        assert!(places.of(&key("a", "1")).is_none() && places.of(&key("a", "2")).is_some());
    }

    #[test]
    fn places_are_counted_in_all_and_per_key_and_given_back() {
        let by: By = Arc::new(|key| key.tenant().into_owned());
        let limits = Arc::new(Limits::new(3, vec![PerKey { max: 2, by }]));
        let first = limits.enter(&key("a", "1")).unwrap();
        let second = limits.enter(&key("a", "2"));
        assert!(second.is_some() && limits.enter(&key("a", "3")).is_none());
        let third = limits.enter(&key("b", "1"));
        assert!(third.is_some() && limits.enter(&key("c", "1")).is_none(), "three in all");
        drop(first);
        assert_eq!(limits.free(), 1);
        assert!(limits.enter(&key("a", "3")).is_some());
        drop((second, third));
        assert_eq!(limits.free(), 3);
        assert!(limits.locked().of.is_empty());
    }
}
