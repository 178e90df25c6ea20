//! A collaborator's calendar: when it is taken, and by which assignment.
//!
//! One document per collaborator. Whoever takes a time writes it over what was seen, in the commit
//! of the assignment: of two that overlap and come at once, the second one runs again and sees the
//! first. Intervals are half-open: one may begin where another ends.

use onceward::http::Seen;
use serde::{Deserialize, Serialize};

use super::command::Command;
use super::fields::instant;
use super::problem::Problem;
use super::resource::Resource;

const CALENDARS: &str = "planning.calendar";
/// Assignments of one collaborator: bounds what a write has to read.
const SLOTS_MAX: usize = 5_000;

/// A collaborator's calendar as it was seen.
pub(super) struct Calendar {
    seen: Seen,
    slots: Vec<Slot>,
}

/// A time that is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    assignment: String,
    from: Instant,
    to: Instant,
}

/// Seconds since 1970 and nanoseconds, both with the sign: as exact as instants are spelled.
type Instant = (i64, i32);

impl Slot {
    fn of(assignment: &Resource) -> Option<Self> {
        let at = |name| {
            let at = instant(assignment, name)?;
            Some((at.as_secs(), at.subsec_nanos()))
        };
        let (from, to) = (at("starts_at")?, at("ends_at")?);
        Some(Self { assignment: assignment.id.clone(), from, to })
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.from < other.to && other.from < self.to
    }
}

impl Calendar {
    /// The calendar of a collaborator.
    pub(super) async fn read(command: &Command, collaborator_id: &str) -> Result<Self, Problem> {
        let seen = command.see(CALENDARS, collaborator_id).await?;
        let slots = seen.value.as_deref().unwrap_or(b"[]");
        let slots = serde_json::from_slice(slots).unwrap_or_default();
        Ok(Self { seen, slots })
    }

    /// Forgets what an assignment takes: it does not conflict with itself.
    pub(super) fn free(&mut self, assignment: &Resource) {
        self.slots.retain(|slot| slot.assignment != assignment.id);
    }

    /// Takes the time of an assignment.
    pub(super) fn take(&mut self, assignment: &Resource) -> Result<(), Problem> {
        let Some(wanted) = Slot::of(assignment) else { return Ok(()) };
        if let Some(taken) = self.slots.iter().find(|slot| slot.overlaps(&wanted)) {
            return Err(Problem::assignment_conflict(&taken.assignment));
        }
        if self.slots.len() >= SLOTS_MAX {
            let detail = format!("a collaborator has at most {SLOTS_MAX} assignments");
            let title = "The collaborator's calendar is full";
            return Err(Problem::conflict("planning.calendar_full", title, &detail));
        }
        self.slots.push(wanted);
        Ok(())
    }

    /// Writes it over what was seen.
    pub(super) fn save(&self, command: &mut Command) -> Result<(), Problem> {
        let value = serde_json::json!(self.slots).to_string().into_bytes();
        command.put(&self.seen, value).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;
    use crate::planning::resource::Kind;

    #[test]
    fn instants_are_as_exact_as_they_are_spelled() {
        let slot = |id: &str, from: &str, to: &str| {
            let mut assignment = Resource::new(Kind::Assignment, id, Members::default());
            assignment.set("starts_at", format!("2030-01-01T00:00:00.{from}Z"));
            assignment.set("ends_at", format!("2030-01-01T00:00:00.{to}Z"));
            Slot::of(&assignment).unwrap()
        };
        let one = slot("1", "000000100", "000000500");
        assert!(one.overlaps(&slot("2", "000000200", "000000400")));
        assert!(!one.overlaps(&slot("3", "000000500", "000000900")));
    }

    #[test]
    fn intervals_are_half_open() {
        let slot = |from, to| Slot { assignment: "1".into(), from: (0, from), to: (0, to) };
        for (other, overlaps) in [
            ((0, 10), false),
            ((0, 11), true),
            ((10, 20), true),
            ((12, 15), true),
            ((19, 30), true),
            ((20, 30), false),
        ] {
            assert_eq!(slot(10, 20).overlaps(&slot(other.0, other.1)), overlaps, "{other:?}");
            assert_eq!(slot(other.0, other.1).overlaps(&slot(10, 20)), overlaps, "{other:?}");
        }
    }
}
