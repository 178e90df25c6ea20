//! Dialects: one engine, several ways to say its verdicts over HTTP.
//!
//! A dialect turns a refusal into a response and marks replays. It decides nothing. A new one is a
//! page of code that implements [`Speak`].

mod business;
mod measurements;
mod planning;
mod standard;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::Value;

use super::names;
use super::refusal::Refusal;

/// How verdicts are said.
#[derive(Clone, Default)]
pub enum Dialect {
    /// RFC 9457 problems and the IETF draft's statuses.
    #[default]
    Standard,
    /// As the planning API says it.
    Planning,
    /// As the measurements API says it.
    Measurements,
    /// As the business API says it.
    Business,
    /// As you say it.
    Custom(Arc<dyn Speak>),
}

static STANDARD_KEY_HEADERS: [HeaderName; 1] = [names::IDEMPOTENCY_KEY];

/// What a dialect says.
pub trait Speak: Send + Sync {
    /// Its name in policies and documents.
    fn name(&self) -> &'static str;

    /// The response to a refused request; `instance` is this request's id.
    fn refuse(&self, refusal: &Refusal, instance: &str) -> Response<Bytes>;

    /// Headers that may carry the key.
    fn key_headers(&self) -> &[HeaderName] {
        &STANDARD_KEY_HEADERS
    }

    /// Whether `If-Match` takes strong tags only, and `*` or a weak one is malformed.
    fn strict_tags(&self) -> bool {
        false
    }

    /// Marks a replayed response.
    fn mark_replay(&self, headers: &mut HeaderMap) {
        headers.insert(names::REPLAYED, HeaderValue::from_static("true"));
    }

    /// Marks the response of an execution whose key had an expired record.
    fn mark_expired(&self, headers: &mut HeaderMap) {
        let _ = headers;
    }

    /// Marks every response to a request that carried this key.
    fn mark_keyed(&self, headers: &mut HeaderMap, key: &str) {
        let _ = (headers, key);
    }

    /// Marks the response to a request that was processed without a key.
    fn mark_unkeyed(&self, headers: &mut HeaderMap) {
        let _ = headers;
    }
}

impl Dialect {
    /// What speaks it.
    #[must_use]
    pub fn speaker(&self) -> &dyn Speak {
        match self {
            Self::Standard => &standard::Standard,
            Self::Planning => &planning::Planning,
            Self::Measurements => &measurements::Measurements,
            Self::Business => &business::Business,
            Self::Custom(speaker) => &**speaker,
        }
    }

    /// The dialect of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Standard, Self::Planning, Self::Measurements, Self::Business]
            .into_iter()
            .find(|dialect| dialect.speaker().name() == name)
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.speaker().name())
    }
}

/// How a token is asked for, and what was wrong with the one that came (RFC 6750, section 3).
fn challenge(bad_token: Option<&str>) -> HeaderValue {
    let told = bad_token.map(|wrong| {
        HeaderValue::try_from(format!(
            "Bearer error=\"invalid_token\", error_description=\"{wrong}\""
        ))
    });
    told.and_then(Result::ok).unwrap_or(HeaderValue::from_static("Bearer"))
}

/// A JSON response that no cache keeps, with `Retry-After` where the refusal has one.
fn json(status: u16, media_type: &'static str, refusal: &Refusal, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = refusal.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == 401 {
        headers.insert(http::header::WWW_AUTHENTICATE, challenge(refusal.bad_token));
    }
    response
}
