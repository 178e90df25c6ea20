//! Requests that no route protects: what is said of a key that does nothing there, and which of
//! them don't pass at all.
//!
//! A key that is not looked at is worse than none: its sender believes in it. The answer says so,
//! and whoever counts and logs finds [`UnprotectedKey`] among its extensions. A route in shadow
//! mode, or one that is off, protects nothing either; but it matches, so nothing is refused there.

use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::body::{Body, BoxError, discard};
use super::door::Door;
use super::names;
use super::pass::{pass, unrouted};
use super::refusal::{Code, Refusal};
use super::route::{Place, Routes, bounded};
use super::served::Served;
use super::spelling::one_spelling;

/// What metrics call the requests that no route protects.
const UNPROTECTED: &str = "unprotected";

/// What becomes of a request that matches no route, where routes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unmatched {
    /// It passes unprotected.
    #[default]
    Pass,
    /// It passes, unless it has a key and is no GET, HEAD, OPTIONS or TRACE: that is 400
    /// `idempotency.unprotected`.
    RefuseKeyed,
    /// It is 404 `route.unmatched`, unless it is a GET, HEAD or OPTIONS.
    Refuse,
}

/// Marks the answer to a request whose key no route protects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnprotectedKey {
    /// Method and template of the route that matches and does not protect; where none does, method
    /// and path, a long one cut.
    pub endpoint: String,
}

/// The headers in which a key may come, on any of these routes.
pub(super) fn key_headers(routes: &Routes) -> Vec<HeaderName> {
    let mut headers = vec![names::IDEMPOTENCY_KEY];
    let written = routes.list().map(|(_, policy)| policy);
    for policy in written.chain([routes.unwritten()]) {
        for name in policy.dialect.speaker().key_headers() {
            if !headers.contains(name) {
                headers.push(name.clone());
            }
        }
    }
    headers
}

impl UnprotectedKey {
    /// What a request that is not protected says with its key, if it brings one.
    pub(super) fn of(door: &Door, head: &Parts, place: Option<&Place>) -> Option<Self> {
        let is_keyed = || door.key_headers.iter().any(|name| head.headers.contains_key(name));
        if is_safe(&head.method) || !is_keyed() {
            return None;
        }
        let endpoint = match place {
            Some(place) => place.endpoint.clone(),
            None => bounded(&format!("{} {}", head.method, one_spelling(head.uri.path()))),
        };
        Some(Self { endpoint })
    }

    /// Says so on the answer.
    pub(super) fn mark(self, response: &mut Response<Body>) {
        response.headers_mut().insert(names::PROTECTED, HeaderValue::from_static("none"));
        response.extensions_mut().insert(self);
    }
}

/// The way of a request that no route protects: passed on, or refused where the door says so.
pub(super) async fn unprotected<S, B, R>(
    door: &Door,
    inner: S,
    (head, body): (Parts, B),
    place: Option<&Place>,
    request_id: &str,
) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Unpin,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let key = UnprotectedKey::of(door, &head, place);
    let refused = match place {
        Some(_) => None,
        // Without routes nothing is written that could be missed.
        None if door.routes.list().next().is_none() => None,
        None => refused(door.unmatched, &head.method, key.is_some()),
    };
    let mut response = match refused {
        Some(refusal) => {
            // A client that is still sending would not hear us; one that asked first waits.
            if !head.headers.contains_key(EXPECT) {
                discard(body).await;
            }
            let mut response = unrouted(&refusal, request_id);
            let verdict = refusal.code.meaning().code;
            response.extensions_mut().insert(Served { verdict, ..Served::at(UNPROTECTED) });
            response
        }
        None => pass(inner, Request::from_parts(head, body), request_id).await,
    };
    if let Some(key) = key {
        key.mark(&mut response);
    }
    response
}

/// Whether a method writes nothing (RFC 9110 section 9.2.1), so that a key on it promises nothing.
fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// Why a request that matches no route may not pass.
fn refused(unmatched: Unmatched, method: &Method, is_keyed: bool) -> Option<Refusal> {
    let is_read = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    match unmatched {
        Unmatched::RefuseKeyed if is_keyed => Some(Refusal::new(
            Code::Unprotected,
            "no route is there for this method and path, so the key would protect nothing: check \
             both, or send it without a key",
        )),
        Unmatched::Refuse if !is_read => Some(Refusal::new(
            Code::RouteUnmatched,
            "no route is there for this method and path, and nothing passes without one: check \
             both",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r07_what_matches_no_route_is_refused_as_the_door_says() {
        use Unmatched::{Pass, Refuse, RefuseKeyed};
        for (unmatched, method, is_keyed, expected) in [
            (Pass, Method::POST, true, None),
            (RefuseKeyed, Method::POST, true, Some(Code::Unprotected)),
            (RefuseKeyed, Method::POST, false, None),
            (Refuse, Method::POST, true, Some(Code::RouteUnmatched)),
            (Refuse, Method::DELETE, false, Some(Code::RouteUnmatched)),
            (Refuse, Method::TRACE, false, Some(Code::RouteUnmatched)),
            (Refuse, Method::GET, false, None),
            (Refuse, Method::HEAD, false, None),
            (Refuse, Method::OPTIONS, false, None),
        ] {
            let code = refused(unmatched, &method, is_keyed).map(|refusal| refusal.code);
            assert_eq!(code, expected, "{unmatched:?} {method} {is_keyed}");
        }
    }
}
