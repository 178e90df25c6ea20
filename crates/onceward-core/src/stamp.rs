//! The small numbers that correctness hangs on: instants, revs, fences, tokens.
//!
//! Each is a type of its own so that one can't be passed for another. An instant is always the
//! store's; the core never reads a clock.

use std::fmt;

/// An instant by the store's clock, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct At(pub u64);

impl At {
    /// This instant and `ms` later, never overflowing.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` until this instant; 0 when it lies before.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Rises with every write of a record, and across its deletion and re-creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Rev(pub u64);

/// Names one acquisition of a key. Rises with each grant, across release and re-creation too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one batch, made before its first try and the same on every retry of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Token(pub u128);
