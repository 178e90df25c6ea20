//! What the store's clock last said, so that an instant can be judged without asking again.
//!
//! The store read its clock after we asked, so its answer plus the time since we asked is never
//! behind the store's clock: what is judged by it ends early rather than late. Only for caches;
//! leases and retention are judged by the store's own answers.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use onceward_core::stamp::At;

/// The last answer and when it was asked for.
#[derive(Default)]
pub(super) struct Clockwork(Mutex<Option<(Instant, At)>>);

impl Clockwork {
    /// The store said `now` to something that was asked at `asked`.
    pub(super) fn note(&self, asked: Instant, now: At) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.is_none_or(|(earlier, _)| earlier <= asked) {
            *heard = Some((asked, now));
        }
    }

    /// About what it shows now.
    pub(super) fn now(&self) -> Option<At> {
        let (asked, said) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(said.plus(u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_latest_question_counts_and_time_goes_on() {
        let clock = Clockwork::default();
        assert_eq!(clock.now(), None);
        let asked = Instant::now();
        let Some(earlier) = asked.checked_sub(Duration::from_secs(60)) else { return };
        clock.note(earlier, At(1_000));
        assert!(clock.now() >= Some(At(61_000)));
        clock.note(asked, At(5_000_000));
        clock.note(earlier, At(9));
        assert!(clock.now() >= Some(At(5_000_000)), "an older answer that came late counts not");
    }
}
