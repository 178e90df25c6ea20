//! Jobs that a take of this process reaches for right now: others of it pass them over.
//!
//! Several workers of one process see the same jobs at the head of a queue, and all but one of
//! them would be refused. Nothing hangs on it: whoever comes too late is refused by the store.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward_core::key::Key;

/// Everything that is being reached for.
#[derive(Debug, Default)]
pub(super) struct Hands(Mutex<HashSet<Key>>);

/// What one take reaches for. Free again when dropped.
pub(super) struct Reach<'h> {
    hands: &'h Hands,
    keys: Vec<Key>,
}

impl Hands {
    /// Begins to reach.
    pub(super) fn reach(&self) -> Reach<'_> {
        Reach { hands: self, keys: Vec::new() }
    }

    fn locked(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reach<'_> {
    /// Reaches for a job that `wanted` accepts, unless another take does.
    pub(super) fn seize(&mut self, key: &Key, wanted: impl FnOnce() -> bool) -> bool {
        if !self.hands.locked().insert(key.clone()) {
            return false;
        }
        self.keys.push(key.clone());
        let wanted = wanted();
        if !wanted {
            self.keys.pop();
            self.hands.locked().remove(key);
        }
        wanted
    }
}

impl Drop for Reach<'_> {
    fn drop(&mut self) {
        let mut all = self.hands.locked();
        for key in &self.keys {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward_core::key::Kind;

    #[test]
    fn a_job_is_reached_for_once_until_it_is_let_go() {
        let key = |id: &str| Key::within(Kind::Job, "a", "q", &["t"], id).unwrap();
        let hands = Hands::default();
        let (mut one, mut other) = (hands.reach(), hands.reach());
        assert!(one.seize(&key("1"), || true));
        assert!(!other.seize(&key("1"), || panic!("it is in another's hands")));
        assert!(!one.seize(&key("2"), || false) && other.seize(&key("2"), || true));
        drop(one);
        assert!(other.seize(&key("1"), || true));
        drop(other);
        assert!(hands.locked().is_empty());
    }
}
