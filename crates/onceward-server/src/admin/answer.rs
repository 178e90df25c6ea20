//! Requests in and answers out: whole bodies within bounds, JSON, and what the log is told.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use onceward_core::key::Key;
use serde::Serialize;

use super::AdminState;
use super::fields::{FromFields, Reading, read_body};
use super::observe::About;
use super::problem::Problem;
use crate::gateway::body::is_late;

/// Bytes of a request's body: room for a batch of a thousand claims.
pub(crate) const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A request's body, whole.
#[derive(Debug)]
pub(crate) struct Whole(Bytes);

impl Whole {
    /// Reads it field by field for a caller with this tenant's token, or the operator's.
    pub(crate) fn read<T: FromFields>(&self, reading: &mut Reading) -> Option<T> {
        read_body(&self.0, reading)
    }

    /// Reads it when nothing beyond its own fields can be wrong.
    pub(crate) fn parse<T: FromFields>(&self, tenant: Option<&str>) -> Result<T, Problem> {
        let mut reading = Reading::of(tenant);
        let body = self.read(&mut reading);
        reading.end(body)
    }

    /// The same, with an empty body standing for an empty object.
    pub(crate) fn parse_or_empty<T: FromFields>(&self, tenant: Option<&str>) -> Result<T, Problem> {
        let given = self.0.iter().any(|byte| !byte.is_ascii_whitespace());
        if given { self.parse(tenant) } else { Self(Bytes::from_static(b"{}")).parse(tenant) }
    }
}

impl FromRequest<AdminState> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &AdminState) -> Result<Self, Problem> {
        whole(request.into_body()).await.map(Self)
    }
}

/// All of a body, within its bounds; how long it may take is the listener's to say.
pub(super) async fn whole(body: Body) -> Result<Bytes, Problem> {
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let detail = format!("the body may have at most {BODY_BYTES_MAX} bytes");
            let title = "The body is too large";
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body.too_large", title, detail))
        }
        Err(error) if is_late(&*error) => {
            let detail = "the body did not arrive in time";
            let title = "The request took too long";
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "request.timeout", title, detail))
        }
        Err(_) => Err(Problem::malformed("the body ended before it was whole")),
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let Ok(text) = serde_json::to_vec(value) else {
        let detail = "the answer can't be written as JSON";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Problem::new(status, "internal", "Something is wrong here", detail).into_response();
    };
    let mut response = (status, Body::from(text)).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Tells the log and the metrics which key an answer is about.
pub(crate) fn about(mut response: Response, key: &Key, verdict: &'static str) -> Response {
    response.extensions_mut().insert(About {
        tenant: Some(key.tenant().into_owned()),
        key_hash: Some(key.hash_hex().to_string()),
        verdict: Some(verdict),
    });
    response
}
