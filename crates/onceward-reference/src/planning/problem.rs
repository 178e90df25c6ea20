//! Problems: what a handler of the planning service refuses, as RFC 9457 problem details (B08).
//!
//! A handler's own problem names a code of this service; what the library refuses keeps the
//! library's. [`say`] writes either down with the id of its request. Which of them are recorded
//! under the key is the layer's to decide, by their status.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use onceward::core::limits::LimitError;
use onceward::core::outcome_policy::key_advice;
use onceward::engine::EngineError;
use onceward::http::{Code, Dialect, Refusal, names};
use serde_json::{Value, json};

use super::Planning;

/// What every handler answers.
pub(super) type Answer = Result<Response, Problem>;

/// Why a handler refuses.
#[derive(Debug, Clone)]
pub(super) enum Problem {
    /// For a reason that the library has a word for.
    Refused(Box<Refusal>),
    /// For a reason of this service.
    Own(Box<Own>),
}

/// A problem of this service.
#[derive(Debug, Clone)]
pub(super) struct Own {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    errors: Vec<FieldError>,
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldError {
    /// Where, as a JSON pointer.
    pub(super) pointer: String,
    /// What it must be.
    pub(super) message: String,
}

impl FieldError {
    /// A member of the body.
    pub(super) fn new(member: &str, message: &str) -> Self {
        let escaped = member.replace('~', "~0").replace('/', "~1");
        Self { pointer: format!("/{escaped}"), message: message.into() }
    }
}

impl Problem {
    fn own(status: StatusCode, code: &'static str, title: &'static str, detail: &str) -> Self {
        let detail = detail.to_string();
        Self::Own(Box::new(Own { status, code, title, detail, errors: Vec::new() }))
    }

    /// There is no such thing in the caller's organisation.
    pub(super) fn not_found() -> Self {
        let detail = "nothing of your organisation has this address";
        Self::own(StatusCode::NOT_FOUND, "planning.not_found", "Not found", detail)
    }

    /// Fields of the body are wrong.
    pub(super) fn invalid(errors: Vec<FieldError>) -> Self {
        let title = "Some fields are not valid";
        let detail = "correct them and send it with a new key";
        Self::Own(Box::new(Own {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            code: "planning.validation_failed",
            title,
            detail: detail.into(),
            errors,
        }))
    }

    /// The request is none, as far as its syntax goes.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Refusal::new(Code::BadRequest, detail).into()
    }

    /// The caller's role is not enough.
    pub(super) fn forbidden(detail: &str) -> Self {
        Refusal::new(Code::Forbidden, detail).into()
    }

    /// The state of things does not allow it.
    pub(super) fn conflict(code: &'static str, title: &'static str, detail: &str) -> Self {
        Self::own(StatusCode::CONFLICT, code, title, detail)
    }

    /// The collaborator is taken at that time.
    pub(super) fn assignment_conflict(other: &str) -> Self {
        let detail = format!("assignment {other} overlaps with it; choose another time");
        let title = "The collaborator is taken at that time";
        Self::conflict("planning.assignment_conflict", title, &detail)
    }

    /// A locked or archived mission stays as it is.
    pub(super) fn mission_locked(state: &str) -> Self {
        let detail = format!("the mission is {state}");
        let title = "The mission can't be edited";
        Self::conflict("planning.mission_locked", title, &detail)
    }

    /// There is no such transition from here.
    pub(super) fn transition_invalid(action: &str, state: &str) -> Self {
        let detail = format!("{action} is not possible from {state}");
        Self::conflict("planning.transition_invalid", "There is no such transition", &detail)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Limit(limit) => limit.into(),
            error => {
                tracing::warn!(error = %error, "the store gave no answer");
                let detail = "the store gave no answer; retry with the same key";
                Refusal::new(Code::StoreUnavailable, detail).into()
            }
        }
    }
}

impl From<LimitError> for Problem {
    fn from(limit: LimitError) -> Self {
        Self::malformed(limit.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(refusal) => refusal.into_response(),
            Self::Own(own) => {
                let mut response = own.status.into_response();
                response.extensions_mut().insert(own);
                response
            }
        }
    }
}

/// For paths that nobody serves. Who is not known hears that first, as everywhere.
pub(super) async fn no_such_path(State(planning): State<Planning>, head: Parts) -> Problem {
    planning.known(&head).err().unwrap_or_else(Problem::not_found)
}

/// For methods that a path does not have.
pub(super) async fn no_such_method(State(planning): State<Planning>, head: Parts) -> Problem {
    if let Err(unknown) = planning.known(&head) {
        return unknown;
    }
    let detail = "this address does not take this method; see the Allow header";
    let title = "Method not allowed";
    Problem::own(StatusCode::METHOD_NOT_ALLOWED, "request.method_not_allowed", title, detail)
}

/// Writes problems down, and lets every answer carry the correlation id that is stored with it.
pub(super) async fn say(request: Request, next: Next) -> Response {
    let id = request.headers().get(names::X_REQUEST_ID).cloned();
    let correlation_id = request.headers().get(names::X_CORRELATION_ID).cloned();
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    let mut response = next.run(request).await;
    let instance = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    if let Some(own) = response.extensions_mut().remove::<Box<Own>>() {
        let body = own.body(instance).to_string();
        let headers = response.headers_mut();
        let media_type = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, media_type);
        headers.remove(CONTENT_LENGTH);
        *response.body_mut() = body.into();
    } else if reads && let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        // The layer says refusals of protected requests; reads don't pass it.
        let said = Dialect::Planning.speaker().refuse(&refusal, instance);
        response = said.map(axum::body::Body::from);
    }
    if let Some(id) = correlation_id {
        response.headers_mut().insert(names::X_CORRELATION_ID, id);
    }
    response
}

impl Own {
    fn body(&self, instance: &str) -> Value {
        let mut body = json!({
            "type": format!("urn:onceward:problem:{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "instance": format!("urn:request:{instance}"),
            "code": self.code,
            "retryable": false,
            "key_advice": key_advice(self.status.as_u16()).as_str(),
        });
        if !self.errors.is_empty() {
            let errors = self.errors.iter();
            body["errors"] = errors
                .map(|error| json!({ "pointer": error.pointer, "message": error.message }))
                .collect();
        }
        body
    }
}

#[cfg(test)]
impl Problem {
    /// Which fields are wrong.
    pub(super) fn pointers(&self) -> Vec<String> {
        match self {
            Self::Own(own) => own.errors.iter().map(|error| error.pointer.clone()).collect(),
            Self::Refused(_) => Vec::new(),
        }
    }
}
