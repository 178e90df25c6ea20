//! One spelling per path, before anything looks at it: the router, rules about roles, caches.
//!
//! The layer gives a protected request's path its one spelling, but a router has chosen its handler
//! by then, and what stands in front of the layer has looked. Here that comes first, and reads have
//! it too.

use axum::Router;
use axum::extract::Request;
use axum::middleware::map_request;
use onceward::http::spell_path;

/// The same service, whose routes and layers see every path in its one spelling.
pub(crate) fn spelled(service: Router) -> Router {
    // A layer of the router itself would come after its routing.
    Router::new().fallback_service(service).layer(map_request(in_one_spelling))
}

async fn in_one_spelling(mut request: Request) -> Request {
    spell_path(request.uri_mut());
    request
}
