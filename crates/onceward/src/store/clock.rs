//! The clock of a store that has none of its own in a server: wall time at open, then monotonic.
//!
//! Setting the machine's clock while a store is open changes nothing. Suspension counts, because a
//! lease must not outlive it. A store that keeps its last instant passes it as `floor`, so that
//! time never runs back across restarts. Tests set a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use onceward_core::stamp::At;

/// Tells a store's now.
#[derive(Debug, Clone)]
pub struct StoreClock(Inner);

#[derive(Debug, Clone)]
enum Inner {
    /// Wall time at open and the boot clock's reading then.
    Machine {
        opened_ms: u64,
        boot_ms: u64,
    },
    Manual(Arc<AtomicU64>),
}

impl StoreClock {
    /// The machine's clock, never below `floor`.
    #[must_use]
    pub fn machine(floor: At) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        Self(Inner::Machine { opened_ms: wall_ms.max(floor.0), boot_ms: boot_ms() })
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
            Inner::Machine { opened_ms, boot_ms: then } => {
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
