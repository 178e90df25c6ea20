//! The ids of requests: the client's own where it sends one that can be passed on, else made here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;
use http::request::Parts;

use super::names;
use crate::engine::random_u64;

/// An id that nobody has twice.
pub(super) fn unique_id() -> String {
    // Nobody has it twice: where this process began is random, and it goes on from there. Asking
    // the operating system each time would be two calls per request.
    static BEGUN: OnceLock<(u64, AtomicU64)> = OnceLock::new();
    let (prefix, count) = BEGUN.get_or_init(|| (random_u64(), AtomicU64::new(random_u64())));
    format!("{prefix:016x}{:016x}", count.fetch_add(1, Ordering::Relaxed))
}

/// The request's id (`X-Request-ID`); made, and put there, if it brings none that can be passed on.
/// For servers that answer some requests in front of the layer.
pub fn ensure_request_id(head: &mut Parts) -> String {
    let mut lines = head.headers.get_all(names::X_REQUEST_ID).iter();
    let there = lines.next().and_then(|value| value.to_str().ok());
    let there = there.filter(|id| (1..=128).contains(&id.len())).map(ToString::to_string);
    if let (Some(id), None) = (&there, lines.next()) {
        return id.clone();
    }
    let id = there.unwrap_or_else(unique_id);
    // The only line there is: nobody behind us takes another one for it.
    if let Ok(value) = HeaderValue::from_str(&id) {
        head.headers.insert(names::X_REQUEST_ID, value);
    }
    id
}
