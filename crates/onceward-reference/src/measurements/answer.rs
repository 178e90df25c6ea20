//! Answers: results, and refusals as the measurements API says them, member for member.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use onceward::engine::EngineError;
use onceward::http::{Code, Dialect, Refusal};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Measurements;
use super::measurement::{FieldError, Measurement, Payload};
use super::rules::Judged;
use crate::instant;

/// Which measurement was there before.
pub(super) const X_DUPLICATE_OF: HeaderName = HeaderName::from_static("x-duplicate-of");

/// Names of refusals.
pub(super) const DUPLICATE: &str = "DuplicateMeasurement";
pub(super) const OUT_OF_ORDER: &str = "OutOfOrderTimestamp";
pub(super) const FUTURE: &str = "FutureTimestamp";
pub(super) const INVALID: &str = "InvalidMeasurement";
pub(super) const OVERRIDE: &str = "OverrideNotAllowed";
pub(super) const KEY_REUSED: &str = "IdempotencyKeyReused";
pub(super) const KEY_INVALID: &str = "InvalidIdempotencyKey";
pub(super) const IN_PROGRESS: &str = "RequestInProgress";

/// Every name that an attempt is refused by: those above, and the library's own words.
pub const REFUSALS: [&str; 11] = [
    DUPLICATE,
    OUT_OF_ORDER,
    FUTURE,
    INVALID,
    OVERRIDE,
    KEY_REUSED,
    KEY_INVALID,
    IN_PROGRESS,
    Code::BodyTooLarge.meaning().code,
    Code::ResponseNotStored.meaning().code,
    Code::OutcomeUnknown.meaning().code,
];

/// Why a measurement is refused: its name, and a sentence.
pub(super) fn why(judged: &Judged) -> Option<(&'static str, &'static str)> {
    match judged {
        Judged::Conflict(_) => {
            Some((DUPLICATE, "Measurement already exists with different payload"))
        }
        Judged::OutOfOrder { .. } => Some((OUT_OF_ORDER, "Timestamp older than last accepted")),
        Judged::Future => Some((FUTURE, "Timestamp lies more than 24 hours in the future")),
        Judged::Accepted(_) | Judged::Duplicate(_) | Judged::Skipped => None,
    }
}

/// The answer to a measurement that is known.
pub(super) fn known(result: &[u8]) -> Response {
    json_of(StatusCode::OK, Bytes::copy_from_slice(result))
}

/// The answer to a measurement that is kept.
pub(super) fn kept(result: &[u8]) -> Response {
    json_of(StatusCode::CREATED, Bytes::copy_from_slice(result))
}

/// The id is known with another payload.
pub(super) fn conflict(measurement: &Measurement, original: &[u8]) -> Response {
    #[derive(Serialize)]
    struct Conflict<'a, D> {
        error: &'static str,
        message: &'static str,
        measurement_id: &'a str,
        original_result: &'a RawValue,
        payload_diff: D,
        resolution: &'static str,
    }
    let original_payload = Payload::of_result(original);
    let payload_diff = original_payload.map(|payload| payload.differences(&measurement.payload));
    let body = Conflict {
        error: DUPLICATE,
        message: "Measurement already exists with different payload",
        measurement_id: &measurement.id,
        original_result: serde_json::from_slice(original).unwrap_or(RawValue::NULL),
        payload_diff,
        resolution: "Keep the original, or send what was measured under a new measurement_id and \
                     a new X-Idempotency-Key",
    };
    json_of(StatusCode::CONFLICT, serde_json::to_vec(&body).unwrap_or_default().into())
}

/// The timestamp is too far behind the last one.
pub(super) fn out_of_order(measurement: &Measurement, last_ms: u64, grace_ms: u64) -> Response {
    unprocessable(&json!({
        "error": OUT_OF_ORDER,
        "message": "Timestamp older than last accepted",
        "last_accepted": instant::shown(last_ms),
        "submitted": instant::shown(measurement.payload.at_ms),
        "user_id": measurement.user_id,
        "resubmit_after": resubmit_after(last_ms, grace_ms),
    }))
}

/// The earliest timestamp that would be accepted.
pub(super) fn resubmit_after(last_ms: u64, grace_ms: u64) -> String {
    instant::shown(last_ms.saturating_sub(grace_ms))
}

/// The timestamp lies in the future.
pub(super) fn future(measurement: &Measurement, now_ms: u64) -> Response {
    unprocessable(&json!({
        "error": FUTURE,
        "message": "Timestamp lies more than 24 hours in the future",
        "submitted": instant::shown(measurement.payload.at_ms),
        "server_time": instant::shown(now_ms),
        "user_id": measurement.user_id,
    }))
}

/// Fields are wrong.
pub(super) fn invalid(errors: &[FieldError], id: Option<&str>) -> Response {
    let mut body = json!({
        "error": INVALID,
        "message": FieldError::sentence(errors),
        "errors": errors,
    });
    if let Some(id) = id {
        body["measurement_id"] = json!(id);
    }
    unprocessable(&body)
}

/// An override that this caller, or anybody, may not use.
pub(super) fn override_not_allowed(why: &str) -> Response {
    let body = json!({ "error": OVERRIDE, "message": why });
    json_of(StatusCode::FORBIDDEN, body.to_string().into())
}

/// What the library has a word for, in this API's way.
pub(super) fn refused(refusal: &Refusal) -> Response {
    Dialect::Measurements.speaker().refuse(refusal, "").map(Body::from)
}

/// The request is none, as far as its syntax goes.
pub(super) fn malformed(detail: impl Into<String>) -> Response {
    refused(&Refusal::new(Code::BadRequest, detail))
}

/// The body has more bytes than are taken.
pub(super) fn too_large(most: usize) -> Response {
    refused(&Refusal::new(Code::BodyTooLarge, format!("at most {most} bytes")))
}

/// The store gave no answer, or something broke a bound.
pub(super) fn no_answer(error: &EngineError) -> Response {
    if let EngineError::Limit(limit) = error {
        return malformed(limit.to_string());
    }
    tracing::warn!(%error, "the store gave no answer");
    let detail = "the store gave no answer; retry with the same key";
    refused(&Refusal::new(Code::StoreUnavailable, detail))
}

/// For paths that nobody serves. Who is not known hears that first, as everywhere.
pub(super) async fn no_such_path(State(service): State<Measurements>, head: Parts) -> Response {
    if let Err(unknown) = service.known(&head) {
        return refused(&unknown);
    }
    not_found()
}

/// Nothing has this address.
pub(super) fn not_found() -> Response {
    let body = json!({ "error": "NotFound", "message": "nothing has this address" });
    json_of(StatusCode::NOT_FOUND, body.to_string().into())
}

/// For methods that a path does not have.
pub(super) async fn no_such_method(State(service): State<Measurements>, head: Parts) -> Response {
    if let Err(unknown) = service.known(&head) {
        return refused(&unknown);
    }
    let message = "this address does not take this method; see the Allow header";
    let body = json!({ "error": "MethodNotAllowed", "message": message });
    json_of(StatusCode::METHOD_NOT_ALLOWED, body.to_string().into())
}

/// A JSON response.
pub(super) fn json_of(status: StatusCode, body: Bytes) -> Response {
    let media_type = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, media_type)], body).into_response()
}

fn unprocessable(body: &Value) -> Response {
    json_of(StatusCode::UNPROCESSABLE_ENTITY, body.to_string().into())
}
