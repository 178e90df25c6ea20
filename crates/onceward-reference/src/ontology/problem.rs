//! Problems: what the ontology service refuses, as RFC 9457 problem details.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use onceward::core::limits::LimitError;
use onceward::engine::EngineError;
use onceward::events::EventsError;
use onceward::http::Refusal;
use onceward::projection::ViewError;
use onceward::store::StoreError;
use serde_json::{Map, Value, json};

use super::Target;

/// What every handler answers.
pub(super) type Answer = Result<Response, Problem>;

/// The one refusal after which the same event id is of no use.
const PAYLOAD_MISMATCH: &str = "events.payload_mismatch";

/// Why a request is refused.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    /// When it is worth sending the same again, where that helps.
    retry_after_s: Option<u64>,
    more: Map<String, Value>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: &str) -> Self {
        let retry_after_s = status.is_server_error().then_some(1);
        Self { status, code, title, detail: detail.into(), retry_after_s, more: Map::new() }
    }

    fn with(mut self, member: &str, value: Value) -> Self {
        self.more.insert(member.into(), value);
        self
    }

    /// Nobody knows who asks.
    pub(super) fn unknown_caller() -> Self {
        let detail = "send the token of a principal as Authorization: Bearer";
        Self::new(StatusCode::UNAUTHORIZED, "auth.required", "Who asks?", detail)
    }

    /// The caller may read, and no more.
    pub(super) fn forbidden() -> Self {
        let detail = "this takes the role editor";
        Self::new(StatusCode::FORBIDDEN, "auth.forbidden", "Not allowed", detail)
    }

    /// The caller asks more often than it may.
    pub(super) fn too_often(refusal: &Refusal) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let detail = "you ask more often than this service allows; send the same again later";
        let mut problem = Self::new(status, "rate.limited", "Too many requests", detail);
        problem.retry_after_s = refusal.retry_after_s;
        problem
    }

    /// There is no such thing in the caller's organisation.
    pub(super) fn not_found() -> Self {
        let detail = "nothing of your organisation has this address";
        Self::new(StatusCode::NOT_FOUND, "events.not_found", "Not found", detail)
    }

    /// A path is there, but not with this method.
    pub(super) fn no_such_method() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let detail = "this address does not take this method; see the Allow header";
        Self::new(status, "request.method_not_allowed", "Method not allowed", detail)
    }

    /// The body is no JSON, or none with one meaning.
    pub(super) fn malformed(detail: &str) -> Self {
        let code = "body.not_canonical";
        Self::new(StatusCode::BAD_REQUEST, code, "The body can't be read", detail)
    }

    /// Members of the body, or of the query, are wrong.
    pub(super) fn invalid(errors: &[(&str, &str)]) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let detail = "correct the fields and send it again";
        let errors = errors
            .iter()
            .map(|(pointer, message)| json!({ "pointer": pointer, "message": message }));
        let errors = errors.collect();
        Self::new(status, "events.validation_failed", "Some fields are not valid", detail)
            .with("errors", errors)
    }

    /// An update or a delete says what it has seen (C05).
    pub(super) fn expected_seq_required() -> Self {
        let detail = "send expected_seq: the sequence_number of the last event that you know of";
        let title = "The expected sequence number is missing";
        Self::new(StatusCode::BAD_REQUEST, "events.expected_seq_required", title, detail)
    }

    /// The aggregate is elsewhere (C05).
    pub(super) fn sequence_mismatch(current: u64) -> Self {
        let detail = format!("the aggregate is at {current}; nothing was appended");
        let title = "The aggregate is not where it was expected to be";
        Self::new(StatusCode::CONFLICT, "events.sequence_mismatch", title, &detail)
            .with("current_seq", current.into())
    }

    /// Nothing follows a delete.
    pub(super) fn deleted(current: u64) -> Self {
        let detail = "the aggregate is deleted; nothing was appended";
        let title = "The aggregate is deleted";
        Self::new(StatusCode::CONFLICT, "events.aggregate_deleted", title, detail)
            .with("current_seq", current.into())
    }

    /// What an aggregate is about does not change.
    pub(super) fn other_target(current: u64, target: Target) -> Self {
        let detail =
            format!("the aggregate is of target {}; nothing was appended", target.as_str());
        let title = "The aggregate is about something else";
        Self::new(StatusCode::CONFLICT, "events.target_mismatch", title, &detail)
            .with("current_seq", current.into())
            .with("target", target.as_str().into())
    }

    /// An event id was used with another payload (C06).
    pub(super) fn payload_mismatch(differs: &[String]) -> Self {
        let detail = "this event_id was used with another payload; nothing was appended";
        let title = "The event id was used before";
        Self::new(StatusCode::CONFLICT, PAYLOAD_MISMATCH, title, detail)
            .with("differs", json!(differs))
    }

    /// What is stored is not what was written: to send the same again is of no use.
    fn corrupt() -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let detail = "what is stored is damaged; whoever runs this service has to restore it";
        let mut problem = Self::new(status, "store.corrupt", "What is stored is damaged", detail);
        problem.retry_after_s = None;
        problem
    }

    fn unavailable(code: &'static str, detail: &str) -> Self {
        let title = "The store gives no answer";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, title, detail)
    }
}

impl From<EventsError> for Problem {
    fn from(error: EventsError) -> Self {
        match error {
            EventsError::Limit(limit) => limit.into(),
            EventsError::Engine(error @ EngineError::Store(StoreError::Corrupt(_))) => error.into(),
            error @ EventsError::Corrupt(_) => {
                tracing::error!(error = %error, code = error.code(), "the event store");
                Self::corrupt()
            }
            error => {
                tracing::warn!(error = %error, code = error.code(), "the event store");
                // Whether it was appended or not: the same command again finds out.
                let detail = "nobody knows yet whether it is done; send the same command again";
                Self::unavailable("store.unavailable", detail)
            }
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Limit(limit) => limit.into(),
            error @ EngineError::Store(StoreError::Corrupt(_)) => {
                tracing::error!(error = %error, "the store");
                Self::corrupt()
            }
            error => {
                tracing::warn!(error = %error, "the store gave no answer");
                Self::unavailable("store.unavailable", "try again")
            }
        }
    }
}

impl From<ViewError> for Problem {
    fn from(error: ViewError) -> Self {
        if let ViewError::Broken(_) = error {
            tracing::error!(error = %error, "the view");
            return Self::corrupt();
        }
        tracing::warn!(error = %error, "the view gave no answer");
        Self::unavailable("view.unavailable", "try again")
    }
}

impl From<LimitError> for Problem {
    fn from(limit: LimitError) -> Self {
        let pointer = format!("/{}", limit.field);
        Self::invalid(&[(&pointer, &limit.to_string())])
    }
}

impl Problem {
    /// What is wrong with an answer of the framework: it knows no problems.
    pub(super) fn of_framework(status: StatusCode) -> Option<Self> {
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let detail = "a command has at most 1 MiB";
                Some(Self::new(status, "body.too_large", "Too large", detail))
            }
            StatusCode::BAD_REQUEST => {
                let detail = "the address or the query can't be read";
                Some(Self::new(status, "request.malformed", "Malformed", detail))
            }
            _ => None,
        }
    }

    /// The answer, with the id of its request.
    pub(super) fn say(self, request_id: &str) -> Response {
        // Whatever else is refused leaves nothing under its event id.
        let key_advice = if self.code == PAYLOAD_MISMATCH { "rotate" } else { "reuse" };
        let mut body = json!({
            "type": format!("urn:onceward:problem:{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "instance": format!("urn:request:{request_id}"),
            "code": self.code,
            "retryable": self.retry_after_s.is_some(),
            "key_advice": key_advice,
        });
        if let Value::Object(members) = &mut body {
            members.extend(self.more);
        }
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Said by `front`, which knows the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// For paths that nobody serves.
pub(super) async fn no_such_path() -> Problem {
    Problem::not_found()
}

/// For methods that a path does not have.
pub(super) async fn no_such_method() -> Problem {
    Problem::no_such_method()
}
