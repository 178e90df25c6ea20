//! The shorter way through the server: which groups may go it, and when it is worth a try.
//!
//! Rule: it applies a whole group or nothing, and says not why; whatever it leaves goes through
//! `apply_group`. So nothing depends on it but time. What it does is said at `apply_lean` in the
//! eighth migration.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use onceward_core::batch::{Batch, Condition, Write};

/// Groups that go the longer way after a refusal that came alone, and after many: a group of which
/// one batch is refused has been sent in vain.
const REST: RangeInclusive<u32> = 1..=16;

/// How the tries of one session went.
#[derive(Debug, Default)]
pub(super) struct Prospects {
    /// Groups that still go the longer way.
    left: AtomicU32,
    /// How many did after the last refusal.
    rest: AtomicU32,
}

impl Prospects {
    /// Counts a group that could try. Whether it should.
    pub(super) fn next_tries(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    /// Takes note of how a try went: after each refusal in a row, twice as many rest.
    pub(super) fn tried(&self, applied: bool) {
        let rest = match applied {
            true => 0,
            false => (self.rest.load(Relaxed) * 2).clamp(*REST.start(), *REST.end()),
        };
        self.rest.store(rest, Relaxed);
        self.left.store(rest, Relaxed);
    }
}

/// Whether a group is of batches that each ask one thing of one record and write that record, with
/// entries and nothing else.
pub(super) fn fits(group: &[Arc<Batch>]) -> bool {
    group.iter().all(|batch| asks_and_writes_one_record(batch))
}

fn asks_and_writes_one_record(batch: &Batch) -> bool {
    let [condition] = &batch.conditions[..] else { return false };
    let (Condition::Absent(key) | Condition::RevIs(key, _) | Condition::FenceIs(key, _)) =
        condition
    else {
        return false;
    };
    let mut puts = 0;
    let mut others = 0;
    for write in &batch.writes {
        match write {
            Write::Put(draft) if draft.record.key == *key => puts += 1,
            Write::Audit(_) => {}
            _ => others += 1,
        }
    }
    (puts, others) == (1, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many groups that could try, which do, when every try is refused.
    fn tries(of: u32) -> Vec<u32> {
        let prospects = Prospects::default();
        let goes = |_: &u32| {
            let goes = prospects.next_tries();
            if goes {
                prospects.tried(false);
            }
            goes
        };
        (0..of).filter(goes).collect()
    }

    #[test]
    fn after_each_refusal_in_a_row_twice_as_many_rest() {
        assert_eq!(tries(80), [0, 2, 5, 10, 19, 36, 53, 70]);
    }

    #[test]
    fn one_that_goes_well_ends_the_rests() {
        let prospects = Prospects::default();
        prospects.tried(false);
        prospects.tried(false);
        prospects.tried(true);
        assert!(prospects.next_tries() && prospects.next_tries());
    }
}
