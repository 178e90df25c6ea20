//! Refusals of a server, by kind: the same whichever dialect it speaks.
//!
//! A conflict is known by its code, not by its status: a service's own 409 is an answer like any
//! other.

use std::fmt;

use http::StatusCode;
use onceward_core::outcome_policy::{KeyAdvice, key_advice};
use serde_json::Value;

/// What is at odds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConflictKind {
    /// The key was used with another payload.
    PayloadMismatch,
    /// The first request with this key still runs.
    InFlight,
    /// Nobody knows how the first request ended.
    OutcomeUnknown,
    /// It was done, but the response was too large to be kept.
    ResponseNotStored,
    /// `If-Match` or `If-None-Match` does not hold.
    PreconditionFailed,
    /// The expected version in the body is not the one that is there.
    VersionMismatch,
    /// The server wants an `If-Match`.
    PreconditionRequired,
}

/// A refusal that the caller has to decide about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// What is at odds.
    pub kind: ConflictKind,
    /// The status that it came with.
    pub status: StatusCode,
    /// The server's code.
    pub code: String,
    /// The server's sentence.
    pub detail: String,
    /// The key that was sent.
    pub key: Option<String>,
    /// Which key the next request should carry.
    pub key_advice: KeyAdvice,
    /// JSON pointers at which the payload differs from the first one, if the server tells.
    pub differs: Vec<String>,
    /// What differs in words, one line per path with the old and the new value, if the server
    /// tells.
    pub diff: Vec<String>,
    /// The revision or version that is there, if the server tells.
    pub current: Option<String>,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, code, detail, key_advice, .. } = self;
        write!(f, "{} {code} ({} the key): {detail}", status.as_u16(), key_advice.as_str())
    }
}

impl Conflict {
    /// Reads a conflict off an answer; none when it is anything else.
    pub(super) fn read(status: StatusCode, body: &[u8]) -> Option<Self> {
        if !matches!(status.as_u16(), 409 | 412 | 422 | 428) {
            return None;
        }
        let body: Value = serde_json::from_slice(body).ok()?;
        // Problems have `code`, the business dialect an object under `error`, measurements a word.
        let error = body.get("error");
        let inner = error.filter(|error| error.is_object()).unwrap_or(&body);
        let word = error.and_then(Value::as_str);
        let code = inner.get("code").and_then(Value::as_str).or(word)?;
        let kind = kind(code)?;
        let text = |of: &Value, names: &[&str]| {
            let found = names.iter().find_map(|name| of.get(*name))?;
            Some(found.as_str().map_or_else(|| found.to_string(), str::to_string))
        };
        let texts = |list: Option<&Value>| -> Vec<String> {
            let list = list.and_then(Value::as_array).into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_string).collect()
        };
        Some(Self {
            kind,
            status,
            code: code.to_string(),
            detail: text(inner, &["detail", "message"]).unwrap_or_default(),
            key: None,
            key_advice: advice(&body).unwrap_or_else(|| advised_by(kind, status)),
            differs: texts(body.get("differs")),
            diff: texts(inner.pointer("/details/diff_summary")),
            current: text(&body, &["current_revision", "current_version"]),
        })
    }
}

/// The advice that a body carries.
pub(super) fn advice_in(body: &[u8]) -> Option<KeyAdvice> {
    advice(&serde_json::from_slice(body).ok()?)
}

fn advice(body: &Value) -> Option<KeyAdvice> {
    let word = body.get("key_advice")?.as_str()?;
    [KeyAdvice::Reuse, KeyAdvice::Rotate].into_iter().find(|advice| advice.as_str() == word)
}

/// What a dialect without advice means.
fn advised_by(kind: ConflictKind, status: StatusCode) -> KeyAdvice {
    match kind {
        ConflictKind::InFlight
        | ConflictKind::OutcomeUnknown
        | ConflictKind::ResponseNotStored
        | ConflictKind::PreconditionRequired => KeyAdvice::Reuse,
        _ => key_advice(status.as_u16()),
    }
}

fn kind(code: &str) -> Option<ConflictKind> {
    Some(match code {
        "idempotency.payload_mismatch" | "IDEMPOTENCY_CONFLICT" | "IdempotencyKeyReused" => {
            ConflictKind::PayloadMismatch
        }
        "idempotency.in_flight" | "IDEMPOTENCY_IN_PROGRESS" | "RequestInProgress" => {
            ConflictKind::InFlight
        }
        "idempotency.outcome_unknown" | "IDEMPOTENCY_OUTCOME_UNKNOWN" => {
            ConflictKind::OutcomeUnknown
        }
        "idempotency.response_not_stored" | "IDEMPOTENCY_RESPONSE_NOT_STORED" => {
            ConflictKind::ResponseNotStored
        }
        "precondition.failed" | "planning.concurrency_mismatch" | "PRECONDITION_FAILED" => {
            ConflictKind::PreconditionFailed
        }
        "concurrency.version_mismatch" | "CONCURRENCY_VERSION_MISMATCH" => {
            ConflictKind::VersionMismatch
        }
        "precondition.required"
        | "planning.concurrency_etag_required"
        | "PRECONDITION_REQUIRED" => ConflictKind::PreconditionRequired,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> Option<(ConflictKind, KeyAdvice, Option<String>)> {
        let conflict = Conflict::read(StatusCode::from_u16(status).unwrap(), body.as_bytes())?;
        Some((conflict.kind, conflict.key_advice, conflict.current))
    }

    #[test]
    fn e08_conflicts_are_known_in_every_dialect() {
        use ConflictKind::{InFlight, PayloadMismatch, PreconditionFailed, VersionMismatch};
        use KeyAdvice::{Reuse, Rotate};
        let at = |text: &str| Some(text.to_string());
        for (status, body, expected) in [
            (
                422,
                r#"{"code":"idempotency.payload_mismatch","key_advice":"rotate"}"#,
                (PayloadMismatch, Rotate, None),
            ),
            (
                409,
                r#"{"error":{"code":"IDEMPOTENCY_CONFLICT","message":"m"}}"#,
                (PayloadMismatch, Rotate, None),
            ),
            (409, r#"{"error":"RequestInProgress","message":"m"}"#, (InFlight, Reuse, None)),
            (
                412,
                r#"{"code":"planning.concurrency_mismatch","current_revision":"r7"}"#,
                (PreconditionFailed, Rotate, at("r7")),
            ),
            (
                409,
                r#"{"code":"concurrency.version_mismatch","current_version":7}"#,
                (VersionMismatch, Rotate, at("7")),
            ),
        ] {
            assert_eq!(read(status, body), Some(expected), "{body}");
        }
    }

    #[test]
    fn a_services_own_409_is_no_conflict_of_ours() {
        for (status, body) in [
            (409, "taken"),
            (409, r#"{"error":"sold out"}"#),
            (409, r#"{"code":"planning.mission_locked"}"#),
            (200, r#"{"code":"idempotency.in_flight"}"#),
            (409, "[]"),
        ] {
            assert_eq!(read(status, body), None, "{body}");
        }
    }
}
