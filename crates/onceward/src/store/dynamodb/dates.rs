//! The store's date, and the numbers that are counted from it.
//!
//! DynamoDB has no clock to ask. Every answer carries a `Date` in whole seconds; between answers
//! the machine's monotonic clock goes on. Rule: this is a date that is about right and nothing
//! more. Retention is judged by it; leases are not, and no order hangs on it: numbers start from it
//! so that they rise across tenants too, and their counters see to it that they rise in any case.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use onceward_core::stamp::At;

use super::super::clock::{StoreClock, boot_ms};

/// Numbers per millisecond of the date. More are taken from the milliseconds to come.
const NUMBER_BITS: u32 = 7;
/// How far a number may run ahead of its write's instant: counters that were moved by a process
/// with a better date, or by very many writes at once.
pub(super) const AHEAD_MS: u64 = 86_400_000;
/// Milliseconds that a `Date` does not tell.
const UNTOLD_MS: i64 = 1_000;
/// How far two machines' monotonic clocks may drift apart: a tenth of a millisecond per second.
const DRIFT: u64 = 10_000;

/// The date of the store's answers.
#[derive(Debug)]
pub(super) struct Dates {
    /// What a test moves in its place.
    manual: Option<StoreClock>,
    /// Longest time that an answer may have been under way.
    patience_ms: i64,
    offset: Mutex<Option<Offset>>,
    /// The last number that was given out or seen.
    last: AtomicU64,
}

/// The store's date less the machine's monotonic clock, as an answer told it, and when.
#[derive(Debug, Clone, Copy)]
struct Offset {
    ms: i64,
    at: u64,
}

impl Dates {
    pub(super) fn new(manual: Option<StoreClock>, patience: Duration) -> Self {
        let patience_ms = i64::try_from(patience.as_millis()).unwrap_or(i64::MAX / 4);
        Self { manual, patience_ms, offset: Mutex::default(), last: AtomicU64::new(0) }
    }

    /// The store's now. Before the first answer, the machine's.
    pub(super) fn now(&self) -> At {
        if let Some(clock) = &self.manual {
            return clock.now();
        }
        let offset = *self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        match offset {
            Some(offset) => {
                At(u64::try_from(signed(boot_ms()) + effective(offset)).unwrap_or_default())
            }
            None => {
                let wall = UNIX_EPOCH.elapsed().unwrap_or_default();
                At(u64::try_from(wall.as_millis()).unwrap_or_default())
            }
        }
    }

    /// The store's now, to sign a request with. None on a test's clock: then the machine's is used.
    pub(super) fn signing(&self) -> Option<SystemTime> {
        let now = self.manual.is_none().then(|| self.now())?;
        UNIX_EPOCH.checked_add(Duration::from_millis(now.0))
    }

    /// Learns from the date of an answer that has just come.
    fn learn(&self, date_ms: i64, boot: u64) {
        // The answer was made up to its time-out ago, within the second that it tells: the offset
        // lies above this one, and the highest seen is the best.
        let told = Offset { ms: date_ms - signed(boot), at: boot };
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        let better = offset.is_none_or(|known| {
            let known = effective_at(known, boot);
            told.ms > known || known - told.ms > UNTOLD_MS + self.patience_ms
        });
        if better {
            *offset = Some(told);
        }
    }

    /// Takes `count` numbers, above all that this process took or saw and not before `now`.
    pub(super) fn take(&self, count: u64, now: At) -> u64 {
        let least = now.0 << NUMBER_BITS;
        let next = |last: u64| Some((last + 1).max(least) + count - 1);
        let last = self.last.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        let last = last.unwrap_or_else(|last| last);
        (last + 1).max(least)
    }

    /// A number that another process had taken.
    pub(super) fn saw(&self, number: u64) {
        self.last.fetch_max(number, Ordering::SeqCst);
    }

    /// The least number that can be taken at an instant.
    pub(super) fn least_at(at: At) -> u64 {
        at.0.saturating_mul(1 << NUMBER_BITS)
    }

    /// The instant that a number is of.
    pub(super) fn instant_of(number: u64) -> At {
        At(number >> NUMBER_BITS)
    }
}

fn effective(offset: Offset) -> i64 {
    effective_at(offset, boot_ms())
}

/// What is certain of an offset fades as clocks drift apart.
fn effective_at(offset: Offset, boot: u64) -> i64 {
    offset.ms - signed(boot.saturating_sub(offset.at) / DRIFT)
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 4)
}

/// Reads the `Date` of every answer.
#[derive(Debug)]
pub(super) struct DateReader(pub(super) std::sync::Arc<Dates>);

impl Intercept for DateReader {
    fn name(&self) -> &'static str {
        "DateReader"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        // An answer without a date tells nothing; the next one will.
        if let Some(date) = date {
            self.0.learn(date.secs().saturating_mul(1_000), boot_ms());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dates() -> Dates {
        Dates::new(None, Duration::from_secs(3))
    }

    fn offset(dates: &Dates) -> i64 {
        dates.offset.lock().unwrap().unwrap().ms
    }

    #[test]
    fn i08_the_date_follows_the_answers_and_not_the_machine() {
        let dates = dates();
        // An answer of second 100, heard at 5 s after boot; later ones tell more of the second.
        dates.learn(100_000, 5_000);
        assert_eq!(offset(&dates), 95_000);
        dates.learn(100_000, 5_400);
        assert_eq!(offset(&dates), 95_000, "the same second, later: nothing new");
        dates.learn(101_000, 5_700);
        assert_eq!(offset(&dates), 95_300, "a new second had begun by then");
        dates.learn(102_000, 8_500);
        assert_eq!(offset(&dates), 95_300, "an answer that took its time");
        dates.learn(101_000, 10_000);
        assert_eq!(offset(&dates), 91_000, "the store's clock was set back");
    }

    #[test]
    fn numbers_rise_and_are_not_below_the_date() {
        let dates = dates();
        assert_eq!(dates.take(1, At(10)), 10 << NUMBER_BITS);
        assert_eq!(dates.take(3, At(10)), (10 << NUMBER_BITS) + 1);
        assert_eq!(dates.take(1, At(9)), (10 << NUMBER_BITS) + 4, "the date steps back");
        dates.saw(5_000);
        assert_eq!(dates.take(1, At(9)), 5_001, "above what others took");
        assert_eq!(dates.take(2, At(1_000)), Dates::least_at(At(1_000)));
    }
}
