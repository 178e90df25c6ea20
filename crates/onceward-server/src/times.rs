//! Times for people and programs: RFC 3339 in UTC, "in 3 h", and moments from the command line.
//!
//! "Now" is always the store's, passed in: this machine's clock may be another one.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::temporal::Pieces;
use onceward_core::stamp::At;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
const TWO_DAYS_MS: u64 = 2 * DAY_MS;

/// An instant as RFC 3339 with milliseconds, in UTC.
pub(crate) fn rfc3339(at: At) -> String {
    let stamp = i64::try_from(at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    // Instants beyond the year 9999 have no such form; the number is the honest answer.
    stamp.map_or_else(|| format!("{} ms", at.0), |stamp| format!("{stamp:.3}"))
}

/// An instant as seen from `now`: "in 3 h", "2 d ago", "now".
pub(crate) fn relative(at: At, now: At) -> String {
    match (at.since(now), now.since(at)) {
        (0, 0) => "now".into(),
        (ahead, 0) => format!("in {}", span(ahead)),
        (_, behind) => format!("{} ago", span(behind)),
    }
}

/// A length of time in a unit that keeps it short, rounded down; "24 h" reads better than "1 d".
pub(crate) fn span(ms: u64) -> String {
    match ms {
        0..SECOND_MS => format!("{ms} ms"),
        SECOND_MS..MINUTE_MS => format!("{} s", ms / SECOND_MS),
        MINUTE_MS..HOUR_MS => format!("{} min", ms / MINUTE_MS),
        HOUR_MS..TWO_DAYS_MS => format!("{} h", ms / HOUR_MS),
        _ => format!("{} d", ms / DAY_MS),
    }
}

/// A point in time as it is given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// An instant.
    At(At),
    /// A while before the store's now, in milliseconds.
    Ago(u64),
}

impl Moment {
    /// The instant, as seen from the store's now.
    pub(crate) fn resolve(self, now: At) -> At {
        match self {
            Self::At(at) => at,
            Self::Ago(ms) => At(now.0.saturating_sub(ms)),
        }
    }
}

/// Why a text is no moment.
#[derive(Debug)]
pub(crate) struct BadMoment;

impl fmt::Display for BadMoment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a time is an instant (2026-11-15T08:00:00Z), a day in UTC (2026-11-15) or a while ago \
             (90s, 15m, 3h, 7d)",
        )
    }
}

impl std::error::Error for BadMoment {}

impl FromStr for Moment {
    type Err = BadMoment;

    fn from_str(text: &str) -> Result<Self, BadMoment> {
        if let Some(ms) = ago(text) {
            return Ok(Self::Ago(ms));
        }
        let stamp = text.parse::<Timestamp>().ok().or_else(|| {
            let day = text.parse::<Date>().ok().filter(|_| text.len() == "2026-11-15".len())?;
            format!("{day}T00:00:00Z").parse().ok()
        });
        let ms = stamp.and_then(|stamp| u64::try_from(stamp.as_millisecond()).ok());
        ms.map(At).or_else(|| at_the_end(text)).map(Self::At).ok_or(BadMoment)
    }
}

/// The last hours of the year 9999, which many write for "never": more than a `Timestamp` holds,
/// because with an offset they could be in the next year.
fn at_the_end(text: &str) -> Option<At> {
    let pieces = Pieces::parse(text).ok().filter(|pieces| pieces.date().year() == 9999)?;
    let (time, offset_s) = match (pieces.time(), pieces.to_numeric_offset()) {
        (Some(time), Some(offset)) => (time, i64::from(offset.seconds())),
        // A day is one in UTC.
        (None, None) => (Time::midnight(), 0),
        _ => return None,
    };
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    let local = pieces.date().to_datetime(time).duration_since(epoch);
    u64::try_from(local.as_millis() - i128::from(offset_s * 1_000)).ok().map(At)
}

fn ago(text: &str) -> Option<u64> {
    let unit = match text.as_bytes().last()? {
        b's' => SECOND_MS,
        b'm' => MINUTE_MS,
        b'h' => HOUR_MS,
        b'd' => DAY_MS,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_rfc_3339_with_milliseconds() {
        assert_eq!(rfc3339(At(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(At(1_794_700_800_007)), "2026-11-15T00:00:00.007Z");
        assert_eq!(rfc3339(At(u64::MAX)), format!("{} ms", u64::MAX));
    }

    #[test]
    fn instants_are_told_from_now() {
        let now = At(10 * DAY_MS);
        for (at, told) in [
            (now, "now"),
            (now.plus(999), "in 999 ms"),
            (now.plus(3 * HOUR_MS + 5), "in 3 h"),
            (now.plus(DAY_MS), "in 24 h"),
            (At(now.0 - 61 * SECOND_MS), "1 min ago"),
            (At(0), "10 d ago"),
        ] {
            assert_eq!(relative(at, now), told);
        }
    }

    #[test]
    fn moments_are_read() {
        let read = |text: &str| text.parse::<Moment>().ok();
        assert_eq!(read("2026-11-15T00:00:00.007Z"), Some(Moment::At(At(1_794_700_800_007))));
        assert_eq!(read("2026-11-15T01:00:00+01:00"), Some(Moment::At(At(1_794_700_800_000))));
        assert_eq!(read("2026-11-15"), Some(Moment::At(At(1_794_700_800_000))));
        assert_eq!(read("3h"), Some(Moment::Ago(3 * HOUR_MS)));
        assert_eq!(Moment::Ago(5).resolve(At(3)), At(0));
        for bad in ["", "h", "3", "-3h", "yesterday", "2026-13-01", "99999999999999999999d"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
    #[test]
    fn moments_are_read_to_the_end_of_the_year_9999() {
        const LAST_MS: u64 = 253_402_300_799_000;
        let at = |text: &str| match text.parse() {
            Ok(Moment::At(at)) => Some(at.0),
            _ => None,
        };
        assert_eq!(at("9999-12-31T23:59:59Z"), Some(LAST_MS));
        assert_eq!(at("9999-12-31T23:59:59.5-02:00"), Some(LAST_MS + 7_200_500));
        assert_eq!(at("9999-12-31"), Some(LAST_MS + 1_000 - 86_400_000));
        assert_eq!(at("9999-12-30T00:00:00Z"), Some(LAST_MS + 1_000 - 2 * 86_400_000));
        for bad in ["9999-12-31T23:59:59", "9999-13-01", "10000-01-01T00:00:00Z", "9999", ""] {
            assert_eq!(at(bad), None, "{bad}");
        }
    }
}
