//! The rate limit: how often one caller of one tenant may ask (A15).
//!
//! A generic cell rate: one number per caller, the moment at which its allowance is whole again.
//! Time is an argument. Memory is bounded by a number of callers: those whose allowance is whole
//! are forgotten, and when everybody is busy, new ones share the allowance of one.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use onceward_core::limits::{LimitError, in_range};

use super::identity::Caller;

/// Longest period that a rate can be given for: an hour.
const PERIOD_MS_MAX: u64 = 3_600_000;
/// Independent parts of the map, so that callers rarely wait for each other.
const SHARDS: usize = 16;
/// How long callers whose allowance is whole are kept before they are looked for.
const FORGET_EVERY_NS: u64 = 10_000_000_000;
/// How soon a full map is searched again for callers to forget.
const SEARCH_EVERY_NS: u64 = 100_000_000;

/// How often a caller may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    count: u32,
    per_ms: u64,
    burst: u32,
}

impl RateLimit {
    /// `count` requests per `per_ms` milliseconds, up to `burst` of them at once.
    ///
    /// # Errors
    /// When one of them is zero, or the period is longer than an hour.
    pub fn new(count: u32, per_ms: u64, burst: u32) -> Result<Self, LimitError> {
        in_range("rate_limit", count.into(), 1, u32::MAX.into())?;
        in_range("rate_limit burst", burst.into(), 1, u32::MAX.into())?;
        in_range("rate_limit period", per_ms, 1, PERIOD_MS_MAX)?;
        Ok(Self { count, per_ms, burst })
    }

    /// Requests per period.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The period in milliseconds.
    #[must_use]
    pub const fn per_ms(&self) -> u64 {
        self.per_ms
    }

    /// Requests at once.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Nanoseconds that one request costs.
    fn cost_ns(&self) -> u64 {
        (self.per_ms * 1_000_000 / u64::from(self.count)).max(1)
    }
}

/// Who asked how often.
pub(super) struct Limiter {
    cost_ns: u64,
    /// How far ahead the moment of the whole allowance may lie for one more request.
    slack_ns: u64,
    callers_max: usize,
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    /// By a keyed hash of tenant and caller.
    whole_at: HashMap<u64, u64>,
    /// The allowance that those share who found no place.
    shared: u64,
    searched_at: u64,
}

impl Limiter {
    /// A limiter that remembers about `callers_max` callers.
    pub(super) fn new(limit: RateLimit, callers_max: usize) -> Self {
        let cost_ns = limit.cost_ns();
        Self {
            cost_ns,
            slack_ns: cost_ns.saturating_mul(u64::from(limit.burst) - 1),
            callers_max: (callers_max / SHARDS).max(1),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Takes one request off the caller's allowance, or says after how many nanoseconds there is
    /// one again. `now_ns` counts from any fixed moment and never falls.
    pub(super) fn ask(&self, caller: &Caller, now_ns: u64) -> Result<(), u64> {
        let id = self.hasher.hash_one(caller);
        let shard = &self.shards[(id >> 32) as usize % SHARDS];
        // A panic elsewhere leaves numbers that are still numbers.
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.forget(now_ns, self.callers_max);
        let is_full = shard.whole_at.len() >= self.callers_max;
        let Shard { whole_at, shared, .. } = &mut *shard;
        let place = match whole_at.get_mut(&id) {
            Some(place) => place,
            None if is_full => shared,
            None => whole_at.entry(id).or_insert(now_ns),
        };
        let ahead_ns = place.saturating_sub(now_ns);
        if ahead_ns > self.slack_ns {
            return Err(ahead_ns - self.slack_ns);
        }
        *place = (*place).max(now_ns).saturating_add(self.cost_ns);
        Ok(())
    }

    /// How many callers are remembered.
    #[cfg(test)]
    fn callers(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().whole_at.len()).sum()
    }
}

impl Shard {
    /// Drops callers whose allowance is whole: forgetting them changes nothing.
    fn forget(&mut self, now_ns: u64, callers_max: usize) {
        let is_full = self.whole_at.len() >= callers_max;
        let pause_ns = if is_full { SEARCH_EVERY_NS } else { FORGET_EVERY_NS };
        if now_ns.saturating_sub(self.searched_at) < pause_ns {
            return;
        }
        self.searched_at = now_ns;
        self.whole_at.retain(|_, whole_at| *whole_at > now_ns);
        if self.whole_at.capacity() > 4 * self.whole_at.len().max(16) {
            self.whole_at.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use governor::clock::FakeRelativeClock;
    use governor::{Quota, RateLimiter};
    use proptest::prelude::*;
    use std::num::NonZeroU32;
    use std::time::Duration;

    fn caller(name: &str) -> Caller {
        Caller { tenant: "t".into(), caller: name.into() }
    }

    #[test]
    fn a_burst_passes_then_the_rate_counts_and_callers_are_apart() {
        let limiter = Limiter::new(RateLimit::new(10, 1_000, 3).unwrap(), 100);
        let (alice, bob) = (caller("alice"), caller("bob"));
        for _ in 0..3 {
            assert_eq!(limiter.ask(&alice, 0), Ok(()));
        }
        assert_eq!(limiter.ask(&alice, 0), Err(100_000_000));
        assert_eq!(limiter.ask(&bob, 0), Ok(()));
        assert_eq!(limiter.ask(&alice, 99_999_999), Err(1));
        assert_eq!(limiter.ask(&alice, 100_000_000), Ok(()));
        assert!(limiter.ask(&alice, 100_000_000).is_err());
    }

    #[test]
    fn memory_is_bounded_whoever_comes() {
        let limiter = Limiter::new(RateLimit::new(1, 1_000, 1).unwrap(), 1_000);
        let mut refused = 0_u32;
        for number in 0..20_000 {
            refused += u32::from(limiter.ask(&caller(&number.to_string()), number).is_err());
        }
        assert!(limiter.callers() <= 1_000 + SHARDS, "{}", limiter.callers());
        assert!(refused > 15_000, "strangers share one allowance, {refused} refused");
        // Once the allowances are whole again, everybody is forgotten and new ones have a place.
        for number in 0..300 {
            let late = 20_000_000_000;
            assert_eq!(limiter.ask(&caller(&format!("late {number}")), late + number), Ok(()));
        }
    }

    proptest! {
        /// Another implementation of the same rule lets the same requests pass.
        #[test]
        fn it_agrees_with_another_limiter(
            count in 1_u32..50,
            burst in 1_u32..20,
            steps in prop::collection::vec((0_u64..200_000_000, 0_usize..3), 1..200),
        ) {
            let period = Duration::from_nanos(1_000_000_000 / u64::from(count));
            let quota = Quota::with_period(period).unwrap();
            let quota = quota.allow_burst(NonZeroU32::new(burst).unwrap());
            let clock = FakeRelativeClock::default();
            let other = RateLimiter::hashmap_with_clock(quota, clock.clone());
            let limiter = Limiter::new(RateLimit::new(count, 1_000, burst).unwrap(), 1_000);
            let mut now_ns = 0;
            for (pause, who) in steps {
                now_ns += pause;
                clock.advance(Duration::from_nanos(pause));
                let ours = limiter.ask(&caller(["a", "b", "c"][who]), now_ns).is_ok();
                prop_assert_eq!(ours, other.check_key(&who).is_ok());
            }
        }
    }
}
