//! Problems: every refusal of the control API, as RFC 9457 problem details.
//!
//! A problem travels in the response's extensions and is written out by the outermost layer, which
//! knows the request's id. A detail never repeats a token, a permit or a body.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use onceward::engine::EngineError;
use onceward::http::spread;
use onceward::store::StoreError;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::fields::Reading;

/// When a request that the store gave no answer to is worth repeating, in seconds.
const STORE_RETRY_S: u64 = 1;

/// A field that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FieldError {
    /// JSON pointer to the field; for a parameter, `/` and its name.
    pub(crate) pointer: String,
    /// What is wrong with it, and what it should be.
    pub(crate) message: String,
}

/// Why a request was refused.
#[derive(Debug, Clone)]
pub(crate) struct Problem(Arc<Told>);

#[derive(Debug, Clone)]
struct Told {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    retry_after_s: Option<u64>,
    further: Map<String, Value>,
}

/// A problem as it is sent, for the description of the API.
#[derive(Debug, ToSchema)]
#[schema(as = Problem)]
#[expect(dead_code, reason = "only its schema is used: problems are written member by member")]
pub(crate) struct ProblemBody {
    /// `urn:onceward:problem:` and the code.
    r#type: String,
    /// A few words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What happened and what to do.
    detail: String,
    /// `urn:request:` and this request's id.
    instance: String,
    /// Stable, for programs.
    code: String,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// With `request.invalid`: every field that is wrong.
    errors: Option<Vec<FieldError>>,
    /// With `guard.failed` and `record.stale`: where the subject is.
    current: Option<u64>,
    /// With `idempotency.payload_mismatch`: JSON pointers that differ.
    differs: Option<Vec<String>>,
    /// With it: the same in words for people.
    differs_text: Option<String>,
    /// With `guard.failed`: which verdict a claim would get.
    verdict: Option<String>,
    /// With `record.not_now`: the state that it is in.
    state: Option<String>,
}

impl Problem {
    /// A problem with this status and code.
    pub(crate) fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        let detail = detail.into();
        Self(Arc::new(Told {
            status,
            code,
            title,
            detail,
            retry_after_s: None,
            further: Map::new(),
        }))
    }

    /// With a `Retry-After` of at least this.
    pub(crate) fn after(mut self, seconds: u64) -> Self {
        Arc::make_mut(&mut self.0).retry_after_s = Some(spread(seconds));
        self
    }

    /// With a further member.
    pub(crate) fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        Arc::make_mut(&mut self.0).further.insert(member.into(), value.into());
        self
    }

    /// 400: these fields are wrong, all of them.
    pub(crate) fn invalid(errors: &[FieldError]) -> Self {
        let names: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        let detail = match names[..] {
            // The pointer of the whole body is empty: its message says more.
            [""] => errors[0].message.clone(),
            _ => format!("{} of the request is not as it should be", names.join(", ")),
        };
        let title = "The request is not valid";
        Self::new(StatusCode::BAD_REQUEST, "request.invalid", title, detail)
            .with("errors", json!(errors))
    }

    /// 400: one field is wrong.
    pub(crate) fn field(pointer: &str, message: impl Into<String>) -> Self {
        Self::invalid(&[FieldError { pointer: pointer.into(), message: message.into() }])
    }

    /// 400: it can't be read at all.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        let title = "The request is malformed";
        Self::new(StatusCode::BAD_REQUEST, "request.malformed", title, detail)
    }

    /// 401: nobody can be told who asks.
    pub(crate) fn unauthorized(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "auth.required", "Who are you?", detail)
    }

    /// 403: the token does not allow it.
    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "auth.forbidden", "You may not do this", detail)
    }

    /// 404: there is no such thing.
    pub(crate) fn absent(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, "There is no such thing", detail)
    }

    /// 409: what is there does not allow it.
    pub(crate) fn conflict(
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(StatusCode::CONFLICT, code, title, detail)
    }

    /// 503: the server is about to end and takes nothing new.
    pub(crate) fn draining() -> Self {
        let detail = "the server is draining: it grants nothing new; ask again in a moment";
        let title = "The server is draining";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server.draining", title, detail).after(1)
    }

    /// The stable code.
    pub(crate) fn code(&self) -> &'static str {
        self.0.code
    }

    /// The whole response, for the request with this id.
    pub(crate) fn written(&self, request_id: &str) -> Response {
        let told = &*self.0;
        let mut body = Map::new();
        body.insert("type".into(), json!(format!("urn:onceward:problem:{}", told.code)));
        body.insert("title".into(), json!(told.title));
        body.insert("status".into(), json!(told.status.as_u16()));
        body.insert("detail".into(), json!(told.detail));
        body.insert("instance".into(), json!(format!("urn:request:{request_id}")));
        body.insert("code".into(), json!(told.code));
        body.insert("retryable".into(), json!(told.retry_after_s.is_some()));
        body.extend(told.further.clone());
        let mut response = (told.status, Value::Object(body).to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = told.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if told.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.0.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let unavailable = |code, detail: String| {
            let title = "The store is not available";
            Self::new(StatusCode::SERVICE_UNAVAILABLE, code, title, detail).after(STORE_RETRY_S)
        };
        match &error {
            EngineError::Limit(limit) => {
                let message = format!("is {}, but must be {}", limit.value, limit.bound);
                let pointer = format!("/{}", limit.field.replace(' ', "_"));
                Self::field(if limit.field == "cursor" { "/after" } else { &pointer }, message)
            }
            EngineError::Contended(_) => unavailable("store.contended", error.to_string()),
            EngineError::Store(StoreError::Unknown(_)) => {
                let detail = "the store's answer was lost: it may or may not have happened. \
                              Repeat the very same request";
                unavailable("store.answer_lost", detail.into())
            }
            EngineError::Store(StoreError::Corrupt(_)) => {
                let detail = "what is stored was changed behind our back; look at the server's log";
                tracing::error!(error = %error, "stored data is damaged");
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Self::new(status, "store.corrupt", "Stored data is damaged", detail)
            }
            _ => {
                tracing::warn!(error = %error, "the store gave no answer");
                let detail = "the store gives no answer; nothing was done. Repeat the request";
                unavailable("store.unavailable", detail.into())
            }
        }
    }
}

impl From<Reading> for Problem {
    fn from(reading: Reading) -> Self {
        Self::invalid(&reading.into_errors())
    }
}
