//! Header names of our own, and which of them nobody else may set.

use http::{HeaderMap, HeaderName};

/// The key.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The key in the measurements dialect.
pub const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");
/// This request's id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The id that travels from request to job.
pub const X_CORRELATION_ID: HeaderName = HeaderName::from_static("x-correlation-id");
/// Marks a replay.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Marks a response that no retry will get: it could not be stored, or tells of an unknown end.
pub const STORED: HeaderName = HeaderName::from_static("idempotency-stored");
/// Marks the answer to a request whose key no route protects.
pub const PROTECTED: HeaderName = HeaderName::from_static("idempotency-protected");
/// Marks a replay in the business dialect.
pub const X_REPLAY: HeaderName = HeaderName::from_static("x-idempotency-replay");
/// Marks a conflict in the business dialect.
pub const X_CONFLICT: HeaderName = HeaderName::from_static("x-idempotency-conflict");
/// Marks an execution whose key had expired, in the business dialect.
pub const X_EXPIRED: HeaderName = HeaderName::from_static("x-idempotency-expired");
/// The fence, for handlers and upstreams.
pub const FENCE: HeaderName = HeaderName::from_static("onceward-fence");
/// The attempt, for handlers and upstreams.
pub const ATTEMPT: HeaderName = HeaderName::from_static("onceward-attempt");

/// The permit, for upstreams that complete requests themselves.
pub const PERMIT: HeaderName = HeaderName::from_static("onceward-permit");

/// Whether only we may set a header.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    const OURS: [&str; 7] = [
        "idempotency-protected",
        "idempotency-replayed",
        "idempotency-stored",
        "x-idempotency-replay",
        "x-idempotency-conflict",
        "x-idempotency-expired",
        "x-duplicate-of",
    ];
    name.starts_with("onceward-") || OURS.contains(&name)
}

/// Removes headers that only we may set, as a client or an upstream may have sent them; also where
/// they are spelled with `_`, which many read as `-`.
pub fn strip_ours(headers: &mut HeaderMap) {
    let is_said = |name: &&HeaderName| match name.as_str() {
        text if text.contains('_') => is_ours(&text.replace('_', "-")),
        text => is_ours(text),
    };
    let ours: Vec<_> = headers.keys().filter(is_said).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}
