//! When to try again (contract A14 for clients, A20 for jobs).
//!
//! Rule: a delay depends on the attempt and on a random number that is passed in, grows up to a
//! cap, is never shorter than the first one, and ends after a fixed number of attempts. No input
//! overflows.
//!
//! Not responsible for what may be retried, nor for a server's `Retry-After`, which wins.

/// A14: 200–500 ms at first, doubling, at most 5 s, 5 attempts.
pub const CLIENT_BACKOFF: Backoff =
    Backoff { first_ms: 200, max_ms: 5_000, factor: 2, jitter_percent: 150, attempts: 5 };

/// A20: 1–1.5 s at first, doubling, 5 attempts. The cap matters only to those who raise them.
pub const JOB_BACKOFF: Backoff =
    Backoff { first_ms: 1_000, max_ms: 300_000, factor: 2, jitter_percent: 50, attempts: 5 };

/// An exponential retry schedule with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Backoff {
    /// The shortest delay, which is also the base of the first.
    pub first_ms: u64,
    /// The longest delay, jitter included.
    pub max_ms: u64,
    /// By how much the base grows from one attempt to the next; 0 counts as 1.
    pub factor: u32,
    /// How much of the base is added at random, at most.
    pub jitter_percent: u32,
    /// How many attempts there are, the first included.
    pub attempts: u32,
}

impl Backoff {
    /// How long to wait when `attempt` attempts have been made (0: none yet, so start at once), or
    /// none when they were the last. `random` is uniform over all of `u64`.
    #[must_use]
    pub fn delay_ms(&self, attempt: u32, random: u64) -> Option<u64> {
        if attempt >= self.attempts {
            return None;
        }
        if attempt == 0 {
            return Some(0);
        }
        let (low, high) = self.range_ms(attempt);
        // The upper half of the product maps the random number evenly onto low..=high.
        let width = u128::from(high - low) + 1;
        let jitter = (u128::from(random) * width) >> 64;
        Some(low.saturating_add(u64::try_from(jitter).unwrap_or(u64::MAX)))
    }

    /// The longest that all delays together can take: what a retention must outlast.
    #[must_use]
    pub fn total_ms_max(&self) -> u64 {
        let mut total = 0_u64;
        let mut previous = None;
        for attempt in 1..self.attempts {
            let (_, high) = self.range_ms(attempt);
            if previous == Some(high) {
                // It has stopped growing, so all that are left are the same. There may be four
                // billion of them, but it takes at most 64 doublings to get here.
                let left = u64::from(self.attempts - attempt);
                return total.saturating_add(high.saturating_mul(left));
            }
            total = total.saturating_add(high);
            previous = Some(high);
        }
        total
    }

    /// The shortest and the longest delay after `attempt` attempts, at least one.
    ///
    /// At the cap the jitter goes down from it instead of up: callers that all reached the cap
    /// must not come back at the same moment.
    fn range_ms(&self, attempt: u32) -> (u64, u64) {
        let first = self.first_ms.min(self.max_ms);
        let growth = u64::from(self.factor.max(1)).saturating_pow(attempt.saturating_sub(1));
        let base = first.saturating_mul(growth).min(self.max_ms);
        let jitter = u128::from(base) * u128::from(self.jitter_percent) / 100;
        let jitter = u64::try_from(jitter).unwrap_or(u64::MAX);
        let high = base.saturating_add(jitter).min(self.max_ms);
        (high.saturating_sub(jitter).max(first), high)
    }
}

#[cfg(test)]
mod tests;
