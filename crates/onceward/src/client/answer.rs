//! An answer of the server, whole.

use bytes::Bytes;
use http::header::ETAG;
use http::{HeaderMap, StatusCode};
use onceward_core::outcome_policy::{KeyAdvice, key_advice};
use serde::de::DeserializeOwned;

use super::conflict::advice_in;
use super::error::ClientError;

/// The final answer to a call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its bytes.
    pub body: Bytes,
    /// The key that every try carried.
    pub key: Option<String>,
    /// How many tries it took.
    pub attempts: u32,
}

impl Answer {
    /// Whether the server had answered this before: the effect is from then.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        let marks = ["idempotency-replayed", "x-idempotency-replay"];
        marks.iter().any(|name| self.headers.get(*name).is_some_and(|value| value == "true"))
            || self.headers.contains_key("x-duplicate-of")
    }

    /// The tag of what was read or written, for the next `If-Match`.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        self.headers.get(ETAG)?.to_str().ok()
    }

    /// Which key the next request should carry: what the server advises, or what its status means.
    #[must_use]
    pub fn key_advice(&self) -> KeyAdvice {
        advice_in(&self.body).unwrap_or_else(|| key_advice(self.status.as_u16()))
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is not JSON of that form.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| ClientError::Body(error.to_string()))
    }
}
