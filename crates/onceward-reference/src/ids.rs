//! The ids of a request (A25): its own, and the one that travels on with what follows from it.

use http::{HeaderMap, HeaderName, HeaderValue};
use onceward::http::names;
use uuid::Uuid;

/// Longest id that is passed on.
const ID_BYTES_MAX: usize = 128;

/// `X-Request-ID` and `X-Correlation-ID` of a request; made if it brings none that fit.
pub(crate) fn ensure_ids(headers: &mut HeaderMap) -> (HeaderValue, HeaderValue) {
    let made = || {
        let id = Uuid::now_v7().to_string();
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("none"))
    };
    let request_id = ensure(headers, names::X_REQUEST_ID, made);
    let correlation_id = ensure(headers, names::X_CORRELATION_ID, || request_id.clone());
    (request_id, correlation_id)
}

fn ensure(
    headers: &mut HeaderMap,
    name: HeaderName,
    made: impl FnOnce() -> HeaderValue,
) -> HeaderValue {
    let fits = |value: &&HeaderValue| {
        value.to_str().is_ok_and(|text| (1..=ID_BYTES_MAX).contains(&text.len()))
    };
    if let Some(value) = headers.get(&name).filter(fits) {
        return value.clone();
    }
    let value = made();
    headers.insert(name, value.clone());
    value
}
