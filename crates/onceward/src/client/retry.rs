//! What a client retries, when, and how much of it (contract A14).
//!
//! Retried are time-outs and broken connections, 502, 503, 504, a 429 that names a retry window,
//! and `in_flight`, which is no verdict. Everything else is final, unless `retry_on` adds it. The
//! server's `Retry-After` wins over our own schedule. A budget bounds what all retries of a client
//! add to its load, so that a server in trouble is not buried by those who wait for it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, StatusCode};
use onceward_core::retry::{Backoff, CLIENT_BACKOFF};

use super::conflict::{Conflict, ConflictKind};

/// Retries that a client may make before its requests have earned any: without them, a client with
/// a single request could not retry it.
pub const BUDGET_RESERVE: u32 = 10;
/// Requests that earn one retry: at most 10 % extra.
const REQUESTS_PER_RETRY: i64 = 10;
/// How much later than `Retry-After` we come, at most: those who were told the same second must not
/// come back at the same moment.
const LATER_MS_MAX: u64 = 500;

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// When tries follow each other, and how many there are. Default: 200–500 ms at first,
    /// doubling, at most 5 s, 5 tries.
    pub backoff: Backoff,
    /// How long one try may take. Default: 10 s.
    pub try_timeout: Duration,
    /// How long all tries and pauses together may take. Default: 60 s.
    pub total_timeout: Duration,
    /// Statuses that are retried beside those of A14, such as 500. Default: none.
    pub retry_on: Vec<StatusCode>,
    /// The header that carries the key. Default: `Idempotency-Key`.
    pub key_header: HeaderName,
    /// Largest answer that is read. Default: 16 MiB.
    pub answer_bytes_max: u64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            backoff: CLIENT_BACKOFF,
            try_timeout: Duration::from_secs(10),
            total_timeout: Duration::from_secs(60),
            retry_on: Vec::new(),
            key_header: HeaderName::from_static("idempotency-key"),
            answer_bytes_max: 16 * 1024 * 1024,
        }
    }
}

/// What follows an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is the last one.
    Final,
    /// Try again, when our own schedule says.
    Again,
    /// Try again, this long from now.
    AgainAfter(Duration),
}

impl ClientOptions {
    /// Judges an answer.
    pub(super) fn judge(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        conflict: Option<&Conflict>,
    ) -> Next {
        let after = retry_after(headers, SystemTime::now());
        let in_flight = conflict.is_some_and(|conflict| conflict.kind == ConflictKind::InFlight);
        let again = match status.as_u16() {
            502..=504 => true,
            429 => after.is_some(),
            _ => in_flight || self.retry_on.contains(&status),
        };
        match (again, after) {
            (false, _) => Next::Final,
            (true, None) => Next::Again,
            (true, Some(after)) => Next::AgainAfter(after),
        }
    }
}

/// A wait that the server asked for, and a little more at random: never less.
pub(super) fn a_little_later(after: Duration, random: u64) -> Duration {
    let most = u64::try_from(after.as_millis() / 5).unwrap_or(u64::MAX).min(LATER_MS_MAX);
    after.saturating_add(Duration::from_millis(random % (most + 1)))
}

/// What `Retry-After` asks for: seconds, or an instant that is compared with the answer's own
/// `Date`, so that our clock does not matter; `now` counts when there is none.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = instant(value)?;
    let date = headers.get(DATE).and_then(|date| instant(date.to_str().ok()?));
    let now = date.or_else(|| {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(since.as_secs())
    });
    Some(Duration::from_secs(at.saturating_sub(now?)))
}

/// Seconds since 1970 of a date as HTTP writes it: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn instant(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok()?;
    let mut time = words.next()?.split(':');
    let mut part = || time.next()?.parse::<u64>().ok();
    let (hours, minutes, seconds) = (part()?, part()?, part()?);
    let fits = (1..=31).contains(&day) && (1970..=9999).contains(&year);
    if !fits || hours > 23 || minutes > 59 || seconds > 60 || words.next() != Some("GMT") {
        return None;
    }
    // Years that begin in March end with the leap day, which makes days a plain sum.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

/// What all retries of a client may add to its load.
#[derive(Debug)]
pub(super) struct Budget(AtomicI64);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicI64::new(i64::from(BUDGET_RESERVE) * REQUESTS_PER_RETRY))
    }
}

impl Budget {
    /// A request is made: a tenth of a retry is earned, up to the reserve.
    pub(super) fn earn(&self) {
        let most = i64::from(BUDGET_RESERVE) * REQUESTS_PER_RETRY;
        let more = |have: i64| (have < most).then_some(have + 1);
        // Full is fine.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether there is a retry to spend.
    pub(super) fn spend(&self) -> bool {
        let less = |have: i64| (have >= REQUESTS_PER_RETRY).then_some(have - REQUESTS_PER_RETRY);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(retry_after: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a14_what_is_retried_by_its_table() {
        use Next::{Again, AgainAfter, Final};
        let options = ClientOptions::default();
        let two = AgainAfter(Duration::from_secs(2));
        for (status, after, expected) in [
            (200, None, Final),
            (400, Some("2"), Final),
            (401, None, Final),
            (404, None, Final),
            (408, Some("2"), Final),
            (409, Some("2"), Final),
            (412, None, Final),
            (422, None, Final),
            (425, None, Final),
            (429, None, Final),
            (429, Some("2"), two),
            (500, None, Final),
            (500, Some("2"), Final),
            (501, None, Final),
            (502, None, Again),
            (503, None, Again),
            (503, Some("2"), two),
            (503, Some("soon"), Again),
            (504, None, Again),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                options.judge(status, &headers(after), None),
                expected,
                "{status} {after:?}"
            );
        }
        let more = ClientOptions { retry_on: vec![StatusCode::INTERNAL_SERVER_ERROR], ..options };
        assert_eq!(more.judge(StatusCode::INTERNAL_SERVER_ERROR, &headers(None), None), Again);
    }

    #[test]
    fn a14_in_flight_is_no_verdict() {
        let body = br#"{"code":"idempotency.in_flight"}"#;
        let conflict = Conflict::read(StatusCode::CONFLICT, body);
        let judge = |after| {
            ClientOptions::default().judge(StatusCode::CONFLICT, &headers(after), conflict.as_ref())
        };
        assert_eq!(judge(Some("1")), Next::AgainAfter(Duration::from_secs(1)));
        assert_eq!(judge(None), Next::Again);
    }

    #[test]
    fn retry_after_may_be_a_date_and_is_measured_by_the_servers_own() {
        let mut map = headers(Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        map.insert(DATE, "Sun, 06 Nov 1994 08:49:30 GMT".parse().unwrap());
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(retry_after(&map, now), Some(Duration::from_secs(7)));
        map.insert(DATE, "Sun, 06 Nov 1994 08:50:00 GMT".parse().unwrap());
        assert_eq!(retry_after(&map, now), Some(Duration::ZERO));
        map.remove(DATE);
        let now = now + Duration::from_secs(784_111_770);
        assert_eq!(retry_after(&map, now), Some(Duration::from_secs(7)));
    }

    #[test]
    fn dates_are_read_and_others_refused() {
        assert_eq!(instant("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(instant("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(instant("Tue, 29 Feb 2000 12:00:00 GMT"), Some(951_825_600));
        for bad in [
            "",
            "soon",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 0001 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
        ] {
            assert_eq!(instant(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_wait_is_never_shorter_than_asked_for() {
        for random in [0, 1, 77, u64::MAX] {
            for seconds in [0, 1, 30, u64::MAX] {
                let asked = Duration::from_secs(seconds);
                let wait = a_little_later(asked, random);
                assert!(wait >= asked && wait - asked <= Duration::from_millis(LATER_MS_MAX));
            }
        }
    }

    #[test]
    fn retries_are_at_most_a_tenth_beyond_the_reserve() {
        let budget = Budget::default();
        for _ in 0..BUDGET_RESERVE {
            assert!(budget.spend());
        }
        assert!(!budget.spend());
        let mut retries = 0;
        for _ in 0..1_000 {
            budget.earn();
            retries += u32::from(budget.spend());
        }
        assert_eq!(retries, 100);
        for _ in 0..10_000 {
            budget.earn();
        }
        let saved = (0..1_000).filter(|_| budget.spend()).count();
        assert_eq!(saved, BUDGET_RESERVE as usize, "a quiet time saves up no more than that");
    }
}
