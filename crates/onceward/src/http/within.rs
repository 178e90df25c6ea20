//! A layer inside a layer on the same store: the outer one has claimed the request, under the very
//! key that the inner one would claim, so that it would wait for itself.
//!
//! The inner one lets such a request pass as it is, fence and permit included, and its answer is
//! the outer one's to judge. What the inner route asks for beside a key (permission, a rate, a
//! precondition) still holds, unless it is the same door, which has asked already. Layers on
//! different stores know nothing of each other: each claims.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::admit::required_if_match;
use super::body::{Body, BoxError};
use super::door::Door;
use super::names;
use super::pass::{call, failed};
use super::policy::{Mode, Policy};
use super::refusal::{Code, Refusal};
use super::route::Place;
use super::said::Refused;
use super::spelling::one_spelling;

/// The claims that a request is under, outermost first. Only this file can make one.
#[derive(Clone, Default)]
pub(super) struct Claimed(Vec<One>);

/// A claim of a door, and the request that it was made for.
#[derive(Clone)]
struct One {
    door: Arc<Door>,
    method: Method,
    path: String,
    key: String,
}

impl Claimed {
    /// Notes that this door claims the request, under this key of the client's.
    pub(super) fn by(head: &mut Parts, door: &Arc<Door>, key: &str) {
        let (method, path) = (head.method.clone(), one_spelling(head.uri.path()).into_owned());
        let claims = head.extensions.get_or_insert_default::<Self>();
        claims.0.push(One { door: door.clone(), method, path, key: key.into() });
    }

    /// Whether this request was claimed on the door's store already, and by whom. A handler may
    /// make further requests out of its own, extensions and all: those are claimed as others are.
    pub(super) fn over<B>(door: &Arc<Door>, request: &Request<B>) -> Option<Outer> {
        let Self(claims) = request.extensions().get()?;
        let path = one_spelling(request.uri().path());
        let key = request.headers().get(names::IDEMPOTENCY_KEY)?.as_bytes();
        let same = claims.iter().filter(|one| {
            one.method == *request.method() && one.path == *path && one.key.as_bytes() == key
        });
        let mut doors = same.map(|one| &one.door);
        if doors.clone().any(|outer| Arc::ptr_eq(outer, door)) {
            return Some(Outer::Itself);
        }
        doors.any(|outer| outer.engine.shares_store(&door.engine)).then_some(Outer::Another)
    }
}

/// Who has claimed a request on a door's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outer {
    /// The door itself, in a layer further out.
    Itself,
    /// Another one.
    Another,
}

/// Lets a claimed request pass.
pub(super) async fn within<S, B, R>(
    (door, outer): (&Door, Outer),
    inner: S,
    request: Request<B>,
) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (mut head, body) = request.into_parts();
    let found = door.routes.find(&head.method, head.uri.path());
    if let Some((policy, place)) = found.filter(|(policy, _)| policy.mode == Mode::Enforce)
        && outer == Outer::Another
        && let Err(refused) = asked(door, &mut head, policy, &place).await
    {
        return refused;
    }
    match call(inner, Request::from_parts(head, body)).await {
        Ok(response) => response.map(Body::live),
        Err(error) => refused(&Policy::default(), &failed(&error)),
    }
}

/// What a route asks for beside a key.
async fn asked(
    door: &Door,
    head: &mut Parts,
    policy: &Policy,
    place: &Place,
) -> Result<(), Response<Body>> {
    let said = |refusal| refused(policy, &refusal);
    let nobody = || Refusal::new(Code::AuthRequired, "send credentials");
    let caller = door.identify(head).ok_or_else(nobody).map_err(said)?;
    required_if_match(head, policy).map_err(said)?;
    door.gates.rate(place.route, &caller).map_err(said)?;
    door.permits(policy, head, &caller).await.map_err(|answer| answer.map(Body::from))
}

fn refused(policy: &Policy, refusal: &Refusal) -> Response<Body> {
    let mut response = policy.dialect.speaker().refuse(refusal, "").map(Body::from);
    response.extensions_mut().insert(Refused(refusal.code));
    response
}
