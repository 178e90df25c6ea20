//! What a process owes the audit: a document of its own says how many notes a crash can lose.
//!
//! Notes wait in memory (see `notes`), so whoever dies with some can't say how many. The document
//! says it beforehand: it is written as soon as a note waits, with room for as many again, again
//! when half of that is used, and cleared once nothing waits. So it holds an upper bound, but for
//! notes that came while its first write was on its way. Whoever finds the document of a dead
//! process counts what it says (`audit::LostNotes`).

use onceward_core::key::Subject;
use onceward_core::limits::LimitError;

use super::{Engine, EngineError, Put, STORE_TENANT, random_u64};

/// Where these documents lie: one per process that ever had a note waiting.
pub(crate) const OWED: &str = "onceward.notes";
/// Room beside what waits, so that a few notes more need no further write.
const ROOM_MIN: usize = 64;

/// The document of this process, as it was last written.
#[derive(Debug)]
pub(super) struct Owed {
    id: String,
    version: u64,
    /// How many notes it says.
    said: usize,
}

impl Default for Owed {
    fn default() -> Self {
        Self { id: format!("{:016x}", random_u64()), version: 0, said: 0 }
    }
}

impl Owed {
    /// How many may wait before more has to be said: half of what was, unless no more ever wait.
    pub(super) fn room(&self, most: usize) -> usize {
        if self.said >= most { usize::MAX } else { self.said / 2 }
    }

    fn subject(&self) -> Result<Subject, LimitError> {
        Subject::new(STORE_TENANT, OWED, &self.id)
    }
}

/// What is to be said of so many that wait.
pub(super) fn bound(waiting: usize, most: usize) -> usize {
    match waiting {
        0 => 0,
        some => some.saturating_add(some.max(ROOM_MIN)).min(most.max(some)),
    }
}

impl Engine {
    /// Says how many notes may be lost when so many wait. What can't be said is said the next time:
    /// notes are never held up by it.
    pub(super) async fn say_owed(&self, owed: &mut Owed, waiting: usize) {
        let bound = bound(waiting, self.0.options.notes_waiting_max);
        if bound == 0 && owed.said == 0 {
            return;
        }
        let _ = self.write_owed(owed, bound).await;
    }

    /// Whether a document says what this engine owes.
    pub(crate) async fn owes_as(&self, subject: &Subject) -> bool {
        self.0.notes.owed().await.subject().is_ok_and(|own| own == *subject)
    }

    async fn write_owed(&self, owed: &mut Owed, bound: usize) -> Result<(), EngineError> {
        let subject = owed.subject()?;
        let value = (bound > 0).then(|| bound.to_string().into_bytes().into());
        match self.put(&subject, owed.version, value.clone()).await? {
            Put::Written(version) => owed.version = version,
            // Someone took this process for dead and counted: from here on it is a new debt.
            Put::Conflict { current } => {
                owed.version = current;
                if let Put::Written(version) = self.put(&subject, current, value).await? {
                    owed.version = version;
                }
            }
        }
        owed.said = bound;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_never_below_what_waits() {
        for (waiting, must_be) in
            [(0, 0), (1, 65), (64, 128), (100, 200), (8_000, 8_192), (8_200, 8_200)]
        {
            assert_eq!(bound(waiting, 8_192), must_be, "{waiting}");
        }
    }
}
