//! Problems: what a handler of the business service refuses, as `{"error":{"code","message",
//! "details"}}`.
//!
//! A handler's own problem is written down here; what the library refuses is said by the route's
//! dialect. Which of them are recorded under the key is the layer's to decide, by their status.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use onceward::core::limits::LimitError;
use onceward::engine::EngineError;
use onceward::http::{Code, Dialect, Refusal};
use serde_json::{Value, json};

use super::Business;

/// What every handler answers.
pub(super) type Answer = Result<Response, Problem>;

/// Why a handler refuses.
#[derive(Debug)]
pub(super) enum Problem {
    /// For a reason that the library has a word for.
    Refused(Box<Refusal>),
    /// For a reason of this service.
    Own { status: StatusCode, code: &'static str, message: &'static str, details: Value },
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldError {
    /// Where, as a dotted path.
    pub(super) path: String,
    /// What it must be.
    pub(super) message: &'static str,
}

impl FieldError {
    pub(super) fn new(path: String, message: &'static str) -> Self {
        Self { path, message }
    }
}

impl Problem {
    /// There is no such thing in the caller's organisation.
    pub(super) fn not_found() -> Self {
        let message = "nothing of your organisation has this address";
        Self::Own { status: StatusCode::NOT_FOUND, code: "NOT_FOUND", message, details: json!({}) }
    }

    /// Fields of the body are wrong.
    pub(super) fn invalid(errors: &[FieldError]) -> Self {
        let errors = errors.iter();
        let errors: Vec<Value> =
            errors.map(|error| json!({ "path": error.path, "message": error.message })).collect();
        Self::Own {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            code: "VALIDATION_FAILED",
            message: "Some fields are not valid: correct them and send the request with a new key",
            details: json!({ "errors": errors }),
        }
    }

    /// A payment link is not open any more.
    pub(super) fn link_closed(state: &str) -> Self {
        Self::Own {
            status: StatusCode::CONFLICT,
            code: "PAYMENT_LINK_CLOSED",
            message: "The payment link is not open",
            details: json!({ "state": state }),
        }
    }

    /// The refusal as a read answers it: no layer says it there.
    pub(super) fn of_read(refusal: &Refusal) -> Response {
        Dialect::Business.speaker().refuse(refusal, "").map(axum::body::Body::from)
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
        Refusal::new(Code::BadRequest, limit.to_string()).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        match self {
            Self::Refused(refusal) => refusal.into_response(),
            Self::Own { status, code, message, details } => {
                let error = json!({ "code": code, "message": message, "details": details });
                (status, axum::Json(json!({ "error": error }))).into_response()
            }
        }
    }
}

/// For paths that nobody serves. Who is not known hears that first, as everywhere.
pub(super) async fn no_such_path(State(business): State<Business>, head: Parts) -> Response {
    match business.known(&head) {
        Ok(_) => Problem::not_found().into_response(),
        Err(unknown) => Problem::of_read(&unknown),
    }
}

/// For methods that a path does not have.
pub(super) async fn no_such_method(State(business): State<Business>, head: Parts) -> Response {
    let problem = Problem::Own {
        status: StatusCode::METHOD_NOT_ALLOWED,
        code: "METHOD_NOT_ALLOWED",
        message: "this address does not take this method; see the Allow header",
        details: json!({}),
    };
    match business.known(&head) {
        Ok(_) => problem.into_response(),
        Err(unknown) => Problem::of_read(&unknown),
    }
}
