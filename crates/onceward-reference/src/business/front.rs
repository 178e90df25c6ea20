//! What every request passes first: its ids (A25). What follows from a request carries them on.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use onceward::http::names;

use crate::ids::ensure_ids;

/// Lets a request in, and its answer out. A replay tells the ids of the original.
pub(super) async fn enter(mut request: Request, next: Next) -> Response {
    let (_, correlation_id) = ensure_ids(request.headers_mut());
    let mut response = next.run(request).await;
    response.headers_mut().entry(names::X_CORRELATION_ID).or_insert(correlation_id);
    response
}
