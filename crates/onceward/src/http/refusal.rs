//! What the layer refuses, and the one table of codes: status, title, whether to retry, which key.
//!
//! A refusal is a fact; how it is said is the dialect's business. The table is what the problem
//! types in the documentation are made from.

use std::hash::{BuildHasher, RandomState};

use onceward_core::diff::Diff;
use onceward_core::outcome_policy::KeyAdvice;
use onceward_core::stamp::At;

use super::identity::Unidentified;

/// Why a request got no answer from its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The route requires a key.
    KeyRequired,
    /// The key is not one.
    KeyInvalid,
    /// No route protects what the key came with.
    Unprotected,
    /// The body is JSON without a canonical form.
    BodyNotCanonical,
    /// The request breaks the syntax or framing of HTTP.
    BadRequest,
    /// Nobody can be told who asks.
    AuthRequired,
    /// The caller may not do it.
    Forbidden,
    /// No route is there for it.
    RouteUnmatched,
    /// Another request with this key runs.
    InFlight,
    /// Nobody knows how the first attempt ended.
    OutcomeUnknown,
    /// The first response was too large to be stored.
    ResponseNotStored,
    /// A precondition is not one, or names what can't be matched strongly.
    PreconditionInvalid,
    /// The version that the body expects is not the one that is there.
    VersionMismatch,
    /// The resource is not at the version that was expected.
    PreconditionFailed,
    /// The body is too large.
    BodyTooLarge,
    /// The key was used with another payload.
    PayloadMismatch,
    /// Too far behind.
    OutOfOrder,
    /// The route requires a precondition.
    PreconditionRequired,
    /// Too many requests.
    RateLimited,
    /// The handler or upstream failed on the way.
    UpstreamFailed,
    /// The store gives no answer.
    StoreUnavailable,
    /// The breaker is open.
    CircuitOpen,
    /// Too much to do.
    Shed,
    /// The upstream took too long.
    UpstreamTimeout,
    /// What is stored is damaged.
    Damaged,
    /// The upstream leads back to the gateway that asks it.
    Loop,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// Stable code.
    pub code: &'static str,
    /// Status of the standard dialect.
    pub status: u16,
    /// A few words.
    pub title: &'static str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Which key the next request should carry.
    pub key_advice: KeyAdvice,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 26] = [
        Self::KeyRequired,
        Self::KeyInvalid,
        Self::Unprotected,
        Self::BodyNotCanonical,
        Self::BadRequest,
        Self::AuthRequired,
        Self::Forbidden,
        Self::RouteUnmatched,
        Self::InFlight,
        Self::OutcomeUnknown,
        Self::ResponseNotStored,
        Self::PreconditionInvalid,
        Self::VersionMismatch,
        Self::PreconditionFailed,
        Self::BodyTooLarge,
        Self::PayloadMismatch,
        Self::OutOfOrder,
        Self::PreconditionRequired,
        Self::RateLimited,
        Self::UpstreamFailed,
        Self::StoreUnavailable,
        Self::CircuitOpen,
        Self::Shed,
        Self::UpstreamTimeout,
        Self::Damaged,
        Self::Loop,
    ];

    /// What it means.
    #[must_use]
    pub const fn meaning(self) -> Meaning {
        let (code, status, title) = match self {
            Self::KeyRequired => {
                ("idempotency.key_required", 400, "An Idempotency-Key is required")
            }
            Self::KeyInvalid => {
                ("idempotency.key_invalid", 400, "The Idempotency-Key is not valid")
            }
            Self::Unprotected => ("idempotency.unprotected", 400, "No route protects this"),
            Self::BodyNotCanonical => ("body.not_canonical", 400, "The body has no canonical form"),
            Self::BadRequest => ("request.malformed", 400, "The request is malformed"),
            Self::AuthRequired => ("auth.required", 401, "Who are you?"),
            Self::Forbidden => ("auth.forbidden", 403, "You may not do this"),
            Self::RouteUnmatched => ("route.unmatched", 404, "No route is there for this"),
            Self::InFlight => ("idempotency.in_flight", 409, "The first request is still running"),
            Self::OutcomeUnknown => {
                ("idempotency.outcome_unknown", 409, "Nobody knows how the first request ended")
            }
            Self::ResponseNotStored => (
                "idempotency.response_not_stored",
                409,
                "It was done, but its response was not stored",
            ),
            Self::PreconditionInvalid => {
                ("precondition.invalid", 400, "The precondition is not valid")
            }
            Self::VersionMismatch => {
                ("concurrency.version_mismatch", 409, "The version has changed")
            }
            Self::PreconditionFailed => ("precondition.failed", 412, "The resource has changed"),
            Self::BodyTooLarge => ("body.too_large", 413, "The body is too large"),
            Self::PayloadMismatch => {
                ("idempotency.payload_mismatch", 422, "This key was used with another payload")
            }
            Self::OutOfOrder => ("ordering.out_of_order", 422, "Out of order"),
            Self::PreconditionRequired => {
                ("precondition.required", 428, "A precondition is required")
            }
            Self::RateLimited => ("rate.limited", 429, "Too many requests"),
            Self::UpstreamFailed => ("upstream.failed", 502, "The upstream gave no whole answer"),
            Self::StoreUnavailable => ("store.unavailable", 503, "The store is not available"),
            Self::CircuitOpen => ("circuit.open", 503, "The circuit breaker is open"),
            Self::Shed => ("overload.shed", 503, "Too much to do"),
            Self::UpstreamTimeout => ("upstream.timeout", 504, "The upstream took too long"),
            Self::Damaged => ("store.corrupt", 500, "Stored data is damaged"),
            Self::Loop => ("upstream.loop", 508, "The upstream leads back here"),
        };
        Meaning {
            code,
            status,
            title,
            retryable: self.is_retryable(),
            key_advice: self.key_advice(),
        }
    }

    const fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::InFlight
                | Self::RateLimited
                | Self::UpstreamFailed
                | Self::StoreUnavailable
                | Self::CircuitOpen
                | Self::Shed
                | Self::UpstreamTimeout
        )
    }

    const fn key_advice(self) -> KeyAdvice {
        match self {
            Self::KeyInvalid
            | Self::VersionMismatch
            | Self::PreconditionFailed
            | Self::PayloadMismatch
            | Self::OutOfOrder => KeyAdvice::Rotate,
            _ => KeyAdvice::Reuse,
        }
    }

    /// Whether a route can say it; the others are about requests that match none.
    pub(super) const fn is_of_routes(self) -> bool {
        !matches!(self, Self::Unprotected | Self::RouteUnmatched)
    }

    /// Whether a handler that refuses with this has judged the request, so that the refusal is its
    /// outcome. Everything else is said before a claim counts and leaves no record (ruling 4).
    #[must_use]
    pub const fn is_outcome(self) -> bool {
        matches!(self, Self::VersionMismatch | Self::PreconditionFailed | Self::OutOfOrder)
    }
}

/// Something that is refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// A sentence for the client: never a key, a body or another tenant's anything.
    pub detail: String,
    /// When it is worth trying again, in whole seconds: [`spread`] already.
    pub retry_after_s: Option<u64>,
    /// What differed, for a mismatch.
    pub conflict: Option<Box<Conflict>>,
    /// The revision or version that is there, for a failed precondition.
    pub current: Option<String>,
    /// What is wrong with the bearer token that came (RFC 6750).
    pub bad_token: Option<&'static str>,
}

/// What is known of a mismatch, within the scope that the key has.
#[derive(Debug, Clone, Default)]
pub struct Conflict {
    /// The key as the client knows it.
    pub key: String,
    /// First 16 hex digits of the hash of the first body, when it was kept in full; of the whole
    /// request's when it was not, or when the bodies are the same and the query or the media type
    /// is not.
    pub original_hash: Option<String>,
    /// The same of this request.
    pub current_hash: String,
    /// What differs: JSON pointers into the body, `/name` for a field of a form, `?name` for one of
    /// the query, `?` for the query, an empty one for the body as a whole.
    pub pointers: Option<Vec<String>>,
    /// The same in words for people.
    pub words: Option<String>,
    /// Old and new values, masked, when the payload was kept in full.
    pub changes: Option<Diff>,
    /// When the first request came.
    pub original_at: At,
    /// Seconds until the first outcome expires.
    pub expires_in_s: u64,
}

impl Refusal {
    /// A refusal that says why.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after_s = code.meaning().retryable.then(|| spread(1));
        let detail = detail.into();
        let (conflict, current, bad_token) = (None, None, None);
        Self { code, detail, retry_after_s, conflict, current, bad_token }
    }

    /// The refusal of a claim by nobody.
    pub(super) fn unidentified(unknown: &Unidentified) -> Self {
        let Unidentified { looked_for, token } = unknown;
        let detail = match token {
            Some(wrong) => format!("a claim needs to know who makes it: {wrong}"),
            None => format!("a claim needs to know who makes it: {looked_for}"),
        };
        Self { bad_token: *token, ..Self::new(Code::AuthRequired, detail) }
    }

    /// With the time when it is worth trying again, at the earliest.
    #[must_use]
    pub fn after(mut self, retry_after_ms: u64) -> Self {
        self.retry_after_s = Some(spread(retry_after_ms.div_ceil(1_000)));
        self
    }
}

/// Most seconds that are added to a `Retry-After`.
const SPREAD_MAX: u64 = 60;

/// A `Retry-After` of at least so many seconds, and at least one, that is not the same for all: up
/// to half as long again, within one second and a minute. Who is turned away together must not come
/// back together.
#[must_use]
pub fn spread(seconds: u64) -> u64 {
    let seconds = seconds.max(1);
    // Every such state has keys of its own: random enough, and nothing is asked of the system.
    let random = RandomState::new().hash_one(());
    seconds.saturating_add(random % ((seconds / 2).clamp(1, SPREAD_MAX) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a14_those_who_are_turned_away_together_are_told_different_seconds() {
        for (asked_ms, least, most) in [(0, 1, 2), (1_000, 1, 2), (1_001, 2, 3), (20_000, 20, 30)] {
            let waits: Vec<u64> = (0..1_000)
                .filter_map(|_| Refusal::new(Code::Shed, "").after(asked_ms).retry_after_s)
                .collect();
            let times = |wait| waits.iter().filter(|told| **told == wait).count();
            assert!(waits.iter().all(|wait| (least..=most).contains(wait)), "{asked_ms}");
            // Nobody's second is everybody's.
            let wanted = 1_000 / usize::try_from(most - least + 1).unwrap() / 4;
            assert!((least..=most).all(|wait| times(wait) > wanted), "{asked_ms}");
        }
        assert!((0..1_000).all(|_| (3_600..=3_660).contains(&spread(3_600))));
        assert!(Refusal::new(Code::Shed, "").retry_after_s.is_some());
        assert!(Refusal::new(Code::KeyInvalid, "").retry_after_s.is_none());
    }
}
