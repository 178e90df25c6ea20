//! Jobs that a take of this process reaches for right now: others of it pass them over, and begin
//! to look where its look has ended.
//!
//! Several workers of one process see the same jobs at the head of a queue, and all but one of
//! them would be refused. Nothing hangs on it: whoever comes too late is refused by the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward_core::key::Key;

use crate::store::Cursor;

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

/// How long a take counts as one that is at the head. A slow one hides nothing there for longer.
const LEAD_FOR: Duration = Duration::from_millis(50);

/// How far the takes under way have looked, per queue. One of them begins at the head, whatever the
/// others do, so that nothing there waits for long.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<HashMap<String, Front>>);

#[derive(Debug, Default)]
struct Front {
    takes: usize,
    /// When the last one began at the head, while it is under way.
    led_since: Option<Instant>,
    /// Where the last page of any of them has ended.
    after: Option<Cursor>,
}

/// A take that looks through a queue, until it is dropped.
pub(super) struct Looking<'a> {
    ahead: &'a Ahead,
    queue: &'a str,
    leads_since: Option<Instant>,
}

impl Ahead {
    /// Begins to look: behind what others have seen, if one of them is at the head.
    pub(super) fn begin<'a>(&'a self, queue: &'a str) -> (Looking<'a>, Option<Cursor>) {
        self.begin_at(queue, Instant::now())
    }

    fn begin_at<'a>(&'a self, queue: &'a str, now: Instant) -> (Looking<'a>, Option<Cursor>) {
        let mut all = self.locked();
        let front = all.entry(queue.to_string()).or_default();
        let leads = front.led_since.is_none_or(|since| now.duration_since(since) >= LEAD_FOR);
        let leads_since = leads.then_some(now);
        front.led_since = leads_since.or(front.led_since);
        front.takes += 1;
        let after = front.after.clone().filter(|_| !leads);
        (Looking { ahead: self, queue, leads_since }, after)
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Front>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Looking<'_> {
    /// Notes where a page has ended; none at the queue's end.
    pub(super) fn saw(&self, next: Option<&Cursor>) {
        if let Some(front) = self.ahead.locked().get_mut(self.queue) {
            front.after = next.cloned();
        }
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut all = self.ahead.locked();
        if let Some(front) = all.get_mut(self.queue) {
            front.takes -= 1;
            if self.leads_since.is_some() && front.led_since == self.leads_since {
                front.led_since = None;
            }
            if front.takes == 0 {
                all.remove(self.queue);
            }
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

    #[test]
    fn a_look_that_takes_long_hides_nothing_at_the_head() {
        let ahead = Ahead::default();
        let (slow, _) = ahead.begin("q");
        slow.saw(Some(&Cursor("5".into())));
        assert_eq!(ahead.begin("q").1, Some(Cursor("5".into())));
        let (two, after) = ahead.begin_at("q", Instant::now() + LEAD_FOR);
        assert_eq!(after, None);
        drop(slow);
        assert_eq!(ahead.begin("q").1, Some(Cursor("5".into())), "the second is at the head");
        drop(two);
        assert!(ahead.locked().is_empty());
    }

    #[test]
    fn one_look_begins_at_the_head_and_the_others_behind_it() {
        let ahead = Ahead::default();
        let (one, after) = ahead.begin("q");
        assert_eq!(after, None);
        one.saw(Some(&Cursor("5".into())));
        let (two, after) = ahead.begin("q");
        assert_eq!(after, Some(Cursor("5".into())));
        assert_eq!(ahead.begin("other").1, None);
        two.saw(Some(&Cursor("9".into())));
        drop(one);
        let (three, after) = ahead.begin("q");
        assert_eq!(after, None, "nobody is at the head any more");
        assert_eq!(ahead.begin("q").1, Some(Cursor("9".into())));
        three.saw(None);
        assert_eq!(ahead.begin("q").1, None, "all was seen");
        drop((two, three));
        assert!(ahead.locked().is_empty());
    }
}
