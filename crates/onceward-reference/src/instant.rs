//! Timestamps: RFC 3339 with any offset in, an instant in milliseconds out.
//!
//! Two spellings of one instant are one timestamp, and what clocks on walls do in spring and autumn
//! changes nothing. Fractions below a millisecond are cut off; nothing is older than 1970, because
//! positions of subjects start at 0. Every year that the RFC can write is read, up to the last
//! second of 9999: that such a time lies too far ahead is for the rules to say.

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time, date};
use onceward::core::stamp::At;

/// From here on milliseconds are counted.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
/// Digits of a fraction that are read; further ones are cut off like all below a millisecond.
const FRACTION_DIGITS: usize = 9;
/// The first millisecond that is asked for by its number, in 1973: a smaller one is a year, a day
/// without hyphens or a count of seconds, and would be an instant that nobody meant.
const MS_ASKED_MIN: u64 = 100_000_000_000;
/// Where the seconds of a timestamp stand.
const SECOND: std::ops::Range<usize> = 17..19;
/// Bytes of a day as `2025-09-15`.
const DAY_BYTES: usize = 10;

/// Reads a timestamp.
///
/// # Errors
/// What it must be.
pub(super) fn parse(text: &str) -> Result<u64, &'static str> {
    const SHAPE: &str = "must be an RFC 3339 timestamp with an offset, as 2025-09-15T10:00:00Z";
    let since = since_1970(text).ok_or(SHAPE)?;
    // Not cut towards zero: a moment before 1970 is before 1970.
    if since.is_negative() {
        return Err("must not lie before 1970");
    }
    u64::try_from(since.as_millis()).map_err(|_| SHAPE)
}

/// Reads an instant of a query: a timestamp, a day in UTC, or milliseconds since 1970.
///
/// # Errors
/// What it must be.
pub(super) fn asked(text: &str) -> Result<At, &'static str> {
    const SHAPE: &str = "must be an instant (2025-09-15T10:00:00Z), a day in UTC (2025-09-15) or \
                         milliseconds since 1970 (up to 3 digits, or 12 and more)";
    let at_ms = match text.parse::<u64>() {
        Ok(ms) => (!(1_000..MS_ASKED_MIN).contains(&ms)).then_some(ms).ok_or(SHAPE)?,
        Err(_) if text.len() == DAY_BYTES => {
            parse(&format!("{text}T00:00:00Z")).map_err(|_| SHAPE)?
        }
        Err(_) => parse(text).map_err(|_| SHAPE)?,
    };
    Ok(At(at_ms))
}

/// The time since 1970 that a timestamp tells, as exact as it is spelled; none when it is not as
/// the RFC has them.
pub(crate) fn since_1970(text: &str) -> Option<SignedDuration> {
    let (local, ahead) = parts(text)?;
    // Lower case is allowed by the RFC and meant the same; so is a space.
    let is_leap = &local[SECOND] == "60";
    let local = local.to_ascii_uppercase().parse::<DateTime>().ok()?;
    let since = local.duration_since(EPOCH) - ahead;
    (!is_leap || ends_month(since)).then_some(since)
}

/// Whether the second that this lies in is the last of a month in UTC: the only ones that a leap
/// second, which is read as the second before it, may follow (RFC 3339, section 5.7). Which months
/// have one is not known here.
fn ends_month(since: SignedDuration) -> bool {
    let next = SignedDuration::from_secs(since.as_secs() + 1);
    let next = EPOCH.checked_add(next);
    next.is_ok_and(|next| next.day() == 1 && next.time() == Time::midnight())
}

/// An instant as it is shown: UTC.
pub(super) fn shown(at_ms: u64) -> String {
    let since = i64::try_from(at_ms).unwrap_or(i64::MAX);
    let shown = EPOCH.checked_add(SignedDuration::from_millis(since)).unwrap_or(DateTime::MAX);
    format!("{shown}Z")
}

/// Date and time with their fraction, and how far they are ahead of UTC, if a text has the form
/// that the RFC gives: libraries read more than that.
fn parts(text: &str) -> Option<(&str, SignedDuration)> {
    let bytes = text.as_bytes();
    let (date_time, rest) = bytes.split_at_checked(19)?;
    let fits = date_time.iter().zip(b"0000-00-00T00:00:00").all(|(byte, shape)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        shape => byte == shape,
    });
    let (fraction, rest) = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return None;
            }
            (1 + digits.min(FRACTION_DIGITS), &fraction[digits..])
        }
        None => (0, rest),
    };
    let ahead = match rest {
        [b'Z' | b'z'] => SignedDuration::ZERO,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let hours = two_digits(*h1, *h2).filter(|hours| *hours <= 23)?;
            let minutes = two_digits(*m1, *m2).filter(|minutes| *minutes <= 59)?;
            let ahead = SignedDuration::from_mins(hours * 60 + minutes);
            if *sign == b'-' { -ahead } else { ahead }
        }
        _ => return None,
    };
    fits.then(|| (&text[..19 + fraction], ahead))
}

fn two_digits(tens: u8, ones: u8) -> Option<i64> {
    let digit = |byte: u8| char::from(byte).to_digit(10).map(i64::from);
    Some(digit(tens)? * 10 + digit(ones)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d03_instants_are_compared_not_clock_faces() {
        let at = |text: &str| parse(text).unwrap();
        assert_eq!(at("2025-09-15T10:00:00Z"), at("2025-09-15T12:00:00+02:00"));
        assert_eq!(at("2025-09-15T10:00:00Z"), at("2025-09-15t05:30:00.000-04:30"));
        // The hour that comes twice in autumn: an hour lies between the two.
        let (first, again) = ("2025-10-26T02:30:00+02:00", "2025-10-26T02:30:00+01:00");
        assert_eq!(at(again) - at(first), 3_600_000);
        assert_eq!(shown(at("2025-09-15T12:00:00.1239+02:00")), "2025-09-15T10:00:00.123Z");
    }

    #[test]
    fn d03_all_that_the_rfc_can_write_is_read() {
        for (text, expected) in [
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("9999-12-31T23:59:59.999+23:59", "9999-12-31T00:00:59.999Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
            ("2025-09-15T10:00:00.123456789123456789Z", "2025-09-15T10:00:00.123Z"),
            ("2025-09-15T10:00:00-00:00", "2025-09-15T10:00:00Z"),
            ("2025-09-15 10:00:00z", "2025-09-15T10:00:00Z"),
            ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59Z"),
            ("2017-01-01T08:59:60.5+09:00", "2016-12-31T23:59:59.5Z"),
            ("2015-06-30T16:59:60-07:00", "2015-06-30T23:59:59Z"),
        ] {
            assert_eq!(parse(text).map(shown).as_deref(), Ok(expected), "{text}");
        }
        // A year that can't be written is still an instant, and later than all that can.
        let late = parse("9999-12-31T23:59:59-23:59").unwrap();
        assert!(late > parse("9999-12-31T23:59:59Z").unwrap());
    }

    #[test]
    fn what_is_no_timestamp_is_refused() {
        for bad in [
            "",
            "2025-09-15",
            "2025-09-15T10:00:00",
            "2025-09-15T10:00Z",
            "2025-09-15T10:00:00.Z",
            "2025-13-15T10:00:00Z",
            "2025-09-15T10:00:00+0200",
            "2025-09-15T10:00:00Z[UTC]",
            "1757930400",
            "1969-12-31T23:59:59Z",
            "1969-12-31T23:59:59.9999Z",
            "2025-09-15T10:00:00+24:00",
            "2025-09-15T10:00:00+02:60",
            "2025-02-29T10:00:00Z",
            "2025-09-15T24:00:00Z",
            "é025-09-15T10:00:00Z",
            // No leap second comes at these times.
            "2025-09-15T23:59:60Z",
            "2016-12-31T23:58:60Z",
            "2016-12-31T23:59:60+01:00",
            "9999-12-31T23:59:60-23:59",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_instant_of_a_query_may_be_a_day_or_milliseconds() {
        for (text, expected) in [
            ("1970-01-01T00:00:01Z", 1_000),
            ("1970-01-01T01:00:00+01:00", 0),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000),
            ("2026-11-15", 1_794_700_800_000),
            ("1794700800007", 1_794_700_800_007),
            ("0", 0),
        ] {
            assert_eq!(asked(text), Ok(At(expected)), "{text}");
        }
        let bad =
            ["2027", "20270101", "1794700800", "99999999999", "-1", "", "yesterday", "2026-11"];
        for bad in bad.into_iter().chain(["2026-13-01", "1969-12-31T00:00:00Z", "15-11-2026"]) {
            assert!(asked(bad).is_err(), "{bad}");
        }
    }
}
