//! Guards: the rule a claim must pass against the mark of a subject.
//!
//! A guard is checked at the claim and again, as a condition, in the batch that completes. Marks
//! never move back: whatever a rule moves to, the mark keeps the maximum.

use crate::key::Subject;
use crate::limits::{LimitError, MAX_POSITION, in_range};
use crate::zoo::{Bug, planted};

/// A position that no subject ever has, and every store can compare with.
const NOWHERE: u64 = MAX_POSITION + 1;

/// A rule about one subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Guard {
    /// Whose position is asked for.
    pub subject: Subject,
    /// What it must satisfy.
    pub rule: Rule,
}

/// What a position must satisfy, and where it moves. A subject starts at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Optimistic concurrency: the subject is at `expected`; moves to `expected + 1`.
    Exactly {
        /// The position that the writer has seen.
        expected: u64,
    },
    /// Contiguous: the subject is at `position - 1`; moves to `position`. A gap waits.
    Next {
        /// The claim's own position.
        position: u64,
    },
    /// The subject is below `position`; moves to it. Skips what is older.
    Above {
        /// The claim's own position.
        position: u64,
    },
    /// The subject is at most `grace_ms` past `at`; moves to the maximum of both.
    NotBefore {
        /// The claim's own time, as a position.
        at: u64,
        /// How far the claim may lie behind the latest one.
        grace_ms: u64,
    },
}

/// Why a guard refuses. Each carries where the subject is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Misfit {
    /// The subject has passed this position.
    Stale,
    /// An earlier position is missing.
    Gap,
    /// Another writer was first.
    VersionConflict,
    /// Too far behind the latest time.
    OutOfOrder,
}

/// What a store checks in a guard's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// The position equals this.
    Is(u64),
    /// The position is at most this.
    AtMost(u64),
}

impl Guard {
    /// A guard on `subject`.
    ///
    /// # Errors
    /// When a position lies outside its bounds.
    pub fn new(subject: Subject, rule: Rule) -> Result<Self, LimitError> {
        rule.validate()?;
        Ok(Self { subject, rule })
    }
}

impl Rule {
    /// Checks its bounds.
    ///
    /// # Errors
    /// When a position lies outside of them.
    pub fn validate(self) -> Result<(), LimitError> {
        match self {
            Self::Exactly { expected } => in_range("exactly", expected, 0, MAX_POSITION - 1),
            Self::Next { position } => in_range("next", position, 0, MAX_POSITION),
            Self::Above { position } => in_range("above", position, 0, MAX_POSITION),
            Self::NotBefore { at, grace_ms } => {
                in_range("not_before", at, 0, MAX_POSITION)?;
                in_range("grace_ms", grace_ms, 0, MAX_POSITION)
            }
        }
    }

    /// Judges a position.
    ///
    /// # Errors
    /// The reason why this rule refuses it.
    pub fn judge(self, current: u64) -> Result<(), Misfit> {
        let (fits, misfit) = match self {
            Self::Exactly { expected } => (current == expected, Misfit::VersionConflict),
            Self::Next { position } if planted(Bug::HighWaterMarkSkipsGap) => {
                (current < position, Misfit::Stale)
            }
            Self::Next { position } if current >= position => (false, Misfit::Stale),
            Self::Next { position } => (current + 1 == position, Misfit::Gap),
            Self::Above { position } => (current < position, Misfit::Stale),
            Self::NotBefore { .. } => match self.need() {
                Need::Is(bound) | Need::AtMost(bound) => (current <= bound, Misfit::OutOfOrder),
            },
        };
        if fits { Ok(()) } else { Err(misfit) }
    }

    /// The same rule as a condition that a store can check.
    #[must_use]
    pub fn need(self) -> Need {
        match self {
            Self::Exactly { expected } => Need::Is(expected),
            // Every subject has passed its start: such a claim is always stale.
            Self::Next { position: 0 } | Self::Above { position: 0 } => Need::Is(NOWHERE),
            Self::Next { position } if planted(Bug::HighWaterMarkSkipsGap) => {
                Need::AtMost(position.saturating_sub(1))
            }
            Self::Next { position } => Need::Is(position.saturating_sub(1)),
            Self::Above { position } => Need::AtMost(position.saturating_sub(1)),
            Self::NotBefore { at, grace_ms } => Need::AtMost(at.saturating_add(grace_ms)),
        }
    }

    /// Where the subject is moved by a completion; the mark keeps the maximum.
    #[must_use]
    pub const fn moves_to(self) -> u64 {
        match self {
            Self::Exactly { expected } => expected.saturating_add(1),
            Self::Next { position } | Self::Above { position } => position,
            Self::NotBefore { at, .. } => at,
        }
    }
}

impl Need {
    /// Whether a position satisfies it.
    #[must_use]
    pub const fn holds(self, position: u64) -> bool {
        match self {
            Self::Is(n) => position == n,
            Self::AtMost(n) => position <= n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(rule: Rule, table: &[(u64, Result<(), Misfit>)]) {
        for (current, expected) in table {
            assert_eq!(rule.judge(*current), *expected, "{rule:?} at {current}");
        }
    }

    #[test]
    fn each_rule_judges_by_its_table() {
        use Misfit::{Gap, OutOfOrder, Stale, VersionConflict};
        check(
            Rule::Exactly { expected: 3 },
            &[(2, Err(VersionConflict)), (3, Ok(())), (4, Err(VersionConflict))],
        );
        check(
            Rule::Next { position: 3 },
            &[(0, Err(Gap)), (1, Err(Gap)), (2, Ok(())), (3, Err(Stale)), (9, Err(Stale))],
        );
        check(Rule::Above { position: 3 }, &[(0, Ok(())), (2, Ok(())), (3, Err(Stale))]);
        check(Rule::Above { position: 0 }, &[(0, Err(Stale)), (1, Err(Stale))]);
        check(Rule::Next { position: 0 }, &[(0, Err(Stale)), (1, Err(Stale))]);
        check(
            Rule::NotBefore { at: 1000, grace_ms: 300 },
            &[(0, Ok(())), (1000, Ok(())), (1300, Ok(())), (1301, Err(OutOfOrder))],
        );
    }

    proptest! {
        #[test]
        fn a_need_holds_exactly_when_the_rule_fits(
            kind in 0..4u8, n in 0..50u64, grace in 0..9u64, current in 0..60u64,
        ) {
            let rule = match kind {
                0 => Rule::Exactly { expected: n },
                1 => Rule::Next { position: n },
                2 => Rule::Above { position: n },
                _ => Rule::NotBefore { at: n, grace_ms: grace },
            };
            prop_assert_eq!(rule.judge(current).is_ok(), rule.need().holds(current));
        }
    }

    /// i29: twenty timestamps, each 299 s older than the one before, all within a grace of 300 s
    /// of their predecessor: only the first is within grace of the maximum.
    #[test]
    fn i29_grace_does_not_creep() {
        let mut mark = 10_000_000;
        let mut accepted = 0;
        for step in 1..=20u64 {
            let rule = Rule::NotBefore { at: 10_000_000 - step * 299_000, grace_ms: 300_000 };
            if rule.judge(mark).is_ok() {
                accepted += 1;
                mark = mark.max(rule.moves_to());
            }
        }
        assert_eq!((accepted, mark), (1, 10_000_000));
    }
}
