//! The clock of a store that has none of its own in a server: wall time at open, then monotonic.
//!
//! Setting the machine's clock while a store is open changes nothing. Suspension counts, because a
//! lease must not outlive it. A store that keeps its last instant passes it as `floor`, so that
//! time never runs back across restarts; one that keeps the boot clock's reading beside it goes on
//! from there in the same boot, whatever the machine's clock was set to meanwhile. Tests set a
//! manual clock, or say what the machine's clocks read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use onceward_core::stamp::At;

/// Tells a store's now.
#[derive(Debug, Clone)]
pub struct StoreClock(Inner);

#[derive(Debug, Clone)]
enum Inner {
    /// The instant at open and the boot clock's reading then.
    Machine {
        opened_ms: u64,
        boot_ms: u64,
        boot: Option<[u8; 16]>,
        /// What people had set then.
        wall: At,
        /// Whether the last instant was of the same boot.
        goes_on: bool,
    },
    Manual(Arc<AtomicU64>),
}

/// A moment by a clock that nobody sets: how long a boot of the machine had lasted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Which boot.
    pub id: [u8; 16],
    /// For how long the machine had been up, suspension included, in milliseconds.
    pub up_ms: u64,
}

/// The last instant that a store wrote, and when that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// The instant.
    pub now: At,
    /// The boot clock's reading then, if there was one.
    pub boot: Option<Boot>,
}

/// What the machine's clocks read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The clock that people set.
    pub wall: At,
    /// The one that nobody sets, where the system tells which boot it is.
    pub boot: Option<Boot>,
}

impl Reading {
    /// What they read now.
    #[must_use]
    pub fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = At(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX));
        Self { wall, boot: boot_id().map(|id| Boot { id, up_ms: boot_ms() }) }
    }

    /// How long ago the last instant was written, if that was in this boot.
    fn since(&self, last: Last) -> Option<u64> {
        let (now, then) = (self.boot?, last.boot?);
        (now.id == then.id).then(|| now.up_ms.checked_sub(then.up_ms))?
    }
}

impl StoreClock {
    /// The machine's clock, never below `floor`.
    #[must_use]
    pub fn machine(floor: At) -> Self {
        Self::going_on(Last { now: floor, boot: None }, Reading::now())
    }

    /// The machine's clock behind the last instant that was written. In the same boot it goes on
    /// from there; otherwise it is what people have set, never below the last instant.
    #[must_use]
    pub fn going_on(last: Last, reading: Reading) -> Self {
        let since = reading.since(last);
        let opened_ms = match since {
            Some(since) => last.now.0.saturating_add(since),
            None => reading.wall.0.max(last.now.0),
        };
        let boot = reading.boot.map(|boot| boot.id);
        let (wall, goes_on) = (reading.wall, since.is_some());
        Self(Inner::Machine { opened_ms, boot_ms: boot_ms(), boot, wall, goes_on })
    }

    /// Whether the time since the last instant is known, and not only what people have set.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        match &self.0 {
            Inner::Machine { goes_on, .. } => *goes_on,
            Inner::Manual(_) => true,
        }
    }

    /// How far it was ahead of what people had set when it began.
    #[must_use]
    pub fn ahead_of_wall_ms(&self) -> i64 {
        match &self.0 {
            Inner::Machine { opened_ms, wall, .. } => {
                opened_ms.cast_signed().saturating_sub(wall.0.cast_signed())
            }
            Inner::Manual(_) => 0,
        }
    }

    /// The boot clock's reading now, where there is one.
    #[must_use]
    pub fn boot(&self) -> Option<Boot> {
        match &self.0 {
            Inner::Machine { boot, .. } => boot.map(|id| Boot { id, up_ms: boot_ms() }),
            Inner::Manual(_) => None,
        }
    }

    /// A clock that moves only when it is told to.
    #[must_use]
    pub fn manual(start: At) -> (Self, ManualClock) {
        let now = Arc::new(AtomicU64::new(start.0));
        (Self(Inner::Manual(now.clone())), ManualClock(now))
    }

    /// The store's now.
    #[must_use]
    pub fn now(&self) -> At {
        match &self.0 {
            Inner::Machine { opened_ms, boot_ms: then, .. } => {
                At(opened_ms.saturating_add(boot_ms().saturating_sub(*then)))
            }
            Inner::Manual(now) => At(now.load(Ordering::SeqCst)),
        }
    }
}

/// The hand of a manual clock.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> At {
        At(self.0.load(Ordering::SeqCst))
    }
}

/// Milliseconds since boot, suspension included.
pub(crate) fn boot_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let millis = u64::try_from(time.tv_nsec).unwrap_or_default() / 1_000_000;
    seconds.saturating_mul(1_000).saturating_add(millis)
}

/// Which boot of the machine this is, where the system says so.
fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits = text.trim().replace('-', "");
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn boot(id: u8, up_ms: u64) -> Option<Boot> {
        Some(Boot { id: [id; 16], up_ms })
    }

    /// The now of a clock that was opened so.
    fn opened(last: Last, wall: u64, boot: Option<Boot>) -> (u64, bool) {
        let clock = StoreClock::going_on(last, Reading { wall: At(wall), boot });
        let passed = clock.now().0.saturating_sub(last.now.0.max(wall)).min(50);
        (clock.now().0 - passed.min(clock.now().0), clock.goes_on())
    }

    #[test]
    fn m8_in_the_same_boot_time_is_what_has_passed_and_not_what_was_set() {
        let last = Last { now: At(10 * HOUR), boot: boot(1, 5_000) };
        for wall in [0, 9 * HOUR, 10 * HOUR, 11 * HOUR] {
            let clock =
                StoreClock::going_on(last, Reading { wall: At(wall), boot: boot(1, 7_500) });
            let now = clock.now().0;
            assert!((10 * HOUR + 2_500..10 * HOUR + 60_000).contains(&now), "{wall}: {now}");
            assert!(clock.goes_on());
        }
    }

    #[test]
    fn m8_in_another_boot_time_is_what_was_set_and_never_runs_back() {
        let last = Last { now: At(10 * HOUR), boot: boot(1, 5_000) };
        let none = Last { boot: None, ..last };
        // A boot clock that ran back is of another boot, whatever its name.
        for (last, boot) in [(last, boot(2, 9_000)), (last, boot(1, 4_999)), (last, None)] {
            assert_eq!(opened(last, 11 * HOUR, boot), (11 * HOUR, false));
            assert_eq!(opened(last, 9 * HOUR, boot), (10 * HOUR, false));
        }
        assert_eq!(opened(none, 11 * HOUR, boot(1, 5_000)), (11 * HOUR, false));
    }
}
