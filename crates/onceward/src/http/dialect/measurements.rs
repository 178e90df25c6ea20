//! The measurements dialect: `{"error","message"}`, `X-Idempotency-Key` echoed, waits said twice.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use serde_json::json;

use super::{Speak, json as respond};
use crate::http::names;
use crate::http::refusal::{Code, Refusal};

pub(super) struct Measurements;

static KEY_HEADERS: [HeaderName; 2] = [names::X_IDEMPOTENCY_KEY, names::IDEMPOTENCY_KEY];
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-retry-after");

impl Speak for Measurements {
    fn name(&self) -> &'static str {
        "measurements"
    }

    fn refuse(&self, refusal: &Refusal, _: &str) -> Response<Bytes> {
        let meaning = refusal.code.meaning();
        let (status, error) = match refusal.code {
            Code::PayloadMismatch => (409, "IdempotencyKeyReused"),
            Code::InFlight => (409, "RequestInProgress"),
            Code::KeyInvalid | Code::KeyRequired => (400, "InvalidIdempotencyKey"),
            Code::OutOfOrder => (422, "OutOfOrderTimestamp"),
            Code::StoreUnavailable => (503, "StoreUnavailable"),
            Code::Forbidden => (403, "Forbidden"),
            Code::AuthRequired => (401, "Unauthorized"),
            _ => (meaning.status, meaning.code),
        };
        let mut body = json!({ "error": error, "message": refusal.detail });
        if let Some(pointers) = refusal.conflict.as_ref().and_then(|found| found.pointers.as_ref())
        {
            body["differs"] = json!(pointers);
        }
        let mut response = respond(status, "application/json", refusal, &body);
        if let Some(seconds) = refusal.retry_after_s {
            response.headers_mut().insert(X_RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    fn key_headers(&self) -> &[HeaderName] {
        &KEY_HEADERS
    }

    fn mark_keyed(&self, headers: &mut HeaderMap, key: &str) {
        if let Ok(value) = HeaderValue::from_str(key) {
            headers.insert(names::X_IDEMPOTENCY_KEY, value);
        }
    }

    fn mark_unkeyed(&self, headers: &mut HeaderMap) {
        let warning = "299 - \"no X-Idempotency-Key: a retry of this request may run twice\"";
        headers.insert(http::header::WARNING, HeaderValue::from_static(warning));
    }
}
