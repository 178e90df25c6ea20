//! Timestamps: RFC 3339 with any offset in, an instant in milliseconds out.
//!
//! Two spellings of one instant are one timestamp, and what clocks on walls do in spring and autumn
//! changes nothing. Fractions below a millisecond are cut off; nothing is older than 1970, because
//! positions of subjects start at 0.

use jiff::Timestamp;

/// Reads a timestamp.
///
/// # Errors
/// What it must be.
pub(super) fn parse(text: &str) -> Result<u64, &'static str> {
    const SHAPE: &str = "must be an RFC 3339 timestamp with an offset, as 2025-09-15T10:00:00Z";
    if !is_rfc3339(text) {
        return Err(SHAPE);
    }
    // Lower case is allowed by the RFC and meant the same.
    let instant = text.to_ascii_uppercase().parse::<Timestamp>().map_err(|_| SHAPE)?;
    u64::try_from(instant.as_millisecond()).map_err(|_| "must not lie before 1970")
}

/// An instant as it is shown: UTC.
pub(super) fn shown(at_ms: u64) -> String {
    let instant = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    instant.unwrap_or(Timestamp::MAX).to_string()
}

/// Whether a text has the form that the RFC gives: libraries read more than that.
fn is_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some((date_time, rest)) = bytes.split_at_checked(19) else { return false };
    let fits = date_time.iter().zip(b"0000-00-00T00:00:00").all(|(byte, shape)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        shape => byte == shape,
    });
    let rest = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            &fraction[digits..]
        }
        None => rest,
    };
    let offset = match rest {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()),
        _ => false,
    };
    fits && offset
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
            "é025-09-15T10:00:00Z",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
