//! Extractors and responders for axum handlers: [`Preconditions`], [`Writes`], [`Versioned`], and a
//! [`Refusal`] as a handler's error.
//!
//! Only translation lives here. A refusal becomes a problem of the standard dialect; the layer,
//! which knows the route, says it again in the route's own.

use axum_core::body::Body;
use axum_core::extract::FromRequestParts;
use axum_core::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::ETAG;
use http::request::Parts;

use super::dialect::Dialect;
use super::identity::Caller;
use super::preconditions::{Preconditions, ReadCheck, TagRules};
use super::refusal::{Code, Refusal};
use super::writes::{Versioned, Writes};

impl<S: Send + Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Refusal;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let rules = head.extensions.get::<TagRules>().copied().unwrap_or_default();
        Self::read(&head.method, &head.headers, rules)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Writes {
    type Rejection = Refusal;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Self::of(&head.extensions).ok_or_else(|| {
            Refusal::new(
                Code::UpstreamFailed,
                "the handler hands back writes, but its route is not under Commits::One; \
                 nothing was written",
            )
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, Refusal> {
        head.extensions.get::<Self>().cloned().ok_or_else(|| {
            Refusal::new(Code::AuthRequired, "the layer has not identified a caller here")
        })
    }
}

impl Writes {
    /// Hands everything back with a response: [`Writes::attach`] for whatever axum can answer.
    #[must_use]
    pub fn answer(self, response: impl IntoResponse) -> Response {
        self.attach(response.into_response())
    }
}

impl<T: IntoResponse> Versioned<T> {
    /// The answer to a read: the representation, or 304 when the client has it already.
    ///
    /// # Errors
    /// When the request's `If-Match` does not hold.
    pub fn for_read(self, preconditions: &Preconditions) -> Result<Response, Refusal> {
        match preconditions.check_read(Some(&self.tag))? {
            ReadCheck::Send => Ok(self.into_response()),
            ReadCheck::NotModified => {
                Ok(Versioned { tag: self.tag, body: StatusCode::NOT_MODIFIED }.into_response())
            }
        }
    }
}

impl<T: IntoResponse> IntoResponse for Versioned<T> {
    fn into_response(self) -> Response {
        let mut response = self.body.into_response();
        response.headers_mut().insert(ETAG, self.tag.header_value());
        response
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Dialect::Standard.speaker().refuse(&self, "").map(Body::from);
        response.extensions_mut().insert(self);
        response
    }
}
