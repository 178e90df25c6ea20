//! The unprotected way: requests are streamed through, and what a service says is marked with their
//! ids. Nothing is claimed and nothing recorded; what may not be said by others is removed. What is
//! said of a key that comes this way is `unprotected.rs`'s.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::body::{Body, BoxError};
use super::dialect::Dialect;
use super::layer::broke_off;
use super::names;
use super::refusal::{Code, Refusal};
use super::run::ServiceError;

/// The unprotected way: streamed through.
pub(super) async fn pass<S, B, R>(inner: S, request: Request<B>, request_id: &str) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    passed(call(inner, request).await, request_id)
}

pub(super) async fn call<S, B, R>(
    mut inner: S,
    request: Request<B>,
) -> Result<Response<R>, BoxError>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
{
    std::future::poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
    inner.call(request).await.map_err(Into::into)
}

/// What a service said to a request that is not protected.
pub(super) fn passed<R>(called: Result<Response<R>, BoxError>, request_id: &str) -> Response<Body>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    match called {
        Ok(response) => {
            if let Some(refusal) = response.extensions().get::<Refusal>() {
                return unrouted(refusal, request_id);
            }
            let mut response = response.map(Body::live);
            names::strip_ours(response.headers_mut());
            mark_request(response.headers_mut(), request_id);
            response
        }
        Err(error) => unrouted(&failed(&error), request_id),
    }
}

/// The refusal that a service's error comes to, where nothing is claimed.
pub(super) fn failed(error: &BoxError) -> Refusal {
    match error.downcast_ref::<ServiceError>() {
        Some(ServiceError::RequestBroken(why)) => broke_off(why),
        Some(ServiceError::NotSent(_)) => Refusal::new(Code::UpstreamFailed, "nothing was sent"),
        Some(ServiceError::TimedOut(_)) => Refusal::new(Code::UpstreamTimeout, "no answer in time"),
        Some(ServiceError::Unfinished(_)) | None => {
            Refusal::new(Code::UpstreamFailed, "the service gave no whole answer")
        }
        Some(ServiceError::Unreadable(_)) => {
            Refusal::new(Code::UpstreamFailed, "the service's answer can't be read")
        }
    }
}

/// A refusal where no route says how: no dialect of its own, but the problem names this request.
pub(super) fn unrouted(refusal: &Refusal, request_id: &str) -> Response<Body> {
    let mut response = Dialect::Standard.speaker().refuse(refusal, request_id);
    mark_request(response.headers_mut(), request_id);
    response.map(Body::from)
}

pub(super) fn mark_request(headers: &mut HeaderMap, request_id: &str) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        headers.insert(names::X_REQUEST_ID, value);
    }
}
