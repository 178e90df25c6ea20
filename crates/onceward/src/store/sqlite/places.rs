//! Places: the rows of records that were found lately, so that they need not be looked up by name
//! again.
//!
//! A job is listed, taken and completed within moments, and among a million names each look is a
//! page from another place. A place is a guess: the row may be gone. Whoever writes there names the
//! rev or the fence that it expects, which no other row ever has, and looks the name up when there
//! was nothing to write. Never asked whether a record is there.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward_core::key::Key;

/// Places that are kept at least, the latest: more than are taken and not completed. Twice as many
/// at most.
const KEPT: usize = 8_192;

/// Where records were found lately.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    latest: HashMap<Key, i64>,
    before: HashMap<Key, i64>,
}

impl Places {
    /// Remembers where records were found.
    pub(super) fn note<'k>(&self, found: impl Iterator<Item = (&'k Key, i64)>) {
        let mut places = self.locked();
        for (key, id) in found {
            if places.latest.len() >= KEPT {
                places.before = std::mem::take(&mut places.latest);
            }
            places.latest.insert(key.clone(), id);
        }
    }

    /// Where a record was found last, if that was lately.
    pub(super) fn get(&self, key: &Key) -> Option<i64> {
        let places = self.locked();
        places.latest.get(key).or_else(|| places.before.get(key)).copied()
    }

    fn locked(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::key::Kind;

    use super::*;

    fn key(number: usize) -> Key {
        Key::new(Kind::Job, "acme", "mail", &number.to_string()).unwrap()
    }

    #[test]
    fn the_latest_places_are_kept_and_no_more_than_twice_as_many() {
        let places = Places::default();
        for number in 0..3 * KEPT {
            places.note([(&key(number), i64::try_from(number).unwrap())].into_iter());
        }
        let kept = (0..3 * KEPT).filter(|number| places.get(&key(*number)).is_some()).count();
        assert!((KEPT..=2 * KEPT).contains(&kept), "{kept}");
        let last = 3 * KEPT - KEPT;
        assert_eq!(places.get(&key(last)), i64::try_from(last).ok());
        places.note([(&key(last), 7)].into_iter());
        assert_eq!(places.get(&key(last)), Some(7), "the latest one counts");
    }
}
