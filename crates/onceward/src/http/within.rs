//! A layer inside a layer on the same store: the outer one has claimed the request, under the very
//! key that the inner one would claim, so that it would wait for itself.
//!
//! The inner one lets such a request pass as it is, fence and permit included, and its answer is
//! the outer one's to judge. What the inner route asks for beside a key (permission, a rate, a
//! precondition) still holds, unless it is the same door, which has asked already. Layers on
//! different stores know nothing of each other: each claims, and so does one that would claim
//! another key. Where two would end the same key in another number of commits, the handler can't
//! have what both of them promise: that is refused.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body as HttpBody;
use tower_service::Service;

use onceward_core::key::Key;

use super::admit::{Admitted, record_key, required_if_match};
use super::body::{Body, BoxError};
use super::door::Door;
use super::names;
use super::pass::{call, failed};
use super::policy::{Commits, Mode, Policy};
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
    record: Key,
    commits: Commits,
}

impl Claimed {
    /// Notes that this door claims the request, in this many commits.
    pub(super) fn by(
        head: &mut Parts,
        door: &Arc<Door>,
        (admitted, commits): (&Admitted, Commits),
    ) {
        let (method, path) = (head.method.clone(), one_spelling(head.uri.path()).into_owned());
        let (key, record) = (admitted.key.clone(), admitted.claim.key.clone());
        let claims = head.extensions.get_or_insert_default::<Self>();
        claims.0.push(One { door: door.clone(), method, path, key, record, commits });
    }

    /// Whether this request was claimed on the door's store already, and by whom. A handler may
    /// make further requests out of its own, extensions and all: those are claimed as others are.
    pub(super) fn over(door: &Arc<Door>, head: &mut Parts) -> Option<Outer> {
        let Self(claims) = head.extensions.get()?;
        let path = one_spelling(head.uri.path());
        let key = head.headers.get(names::IDEMPOTENCY_KEY)?.as_bytes();
        let mut same: Vec<_> = claims
            .iter()
            .filter(|one| one.method == head.method && one.path == *path)
            .filter(|one| one.key.as_bytes() == key)
            .cloned()
            .collect();
        if same.iter().any(|one| Arc::ptr_eq(&one.door, door)) {
            return Some(Outer::Itself);
        }
        same.retain(|one| one.door.engine.shares_store(&door.engine));
        let One { key, .. } = same.first()?;
        let found = door.routes.find(&head.method, head.uri.path());
        let Some((policy, place)) = found.filter(|(policy, _)| policy.mode == Mode::Enforce) else {
            // It claims nothing here.
            return Some(Outer::Another);
        };
        // Who can't be told, or sends no key that is one, is refused on the usual way.
        let caller = door.identify(head)?;
        let record = record_key((policy, &place), &caller, key).ok()?;
        let outer = same.iter().find(|one| one.record == record)?;
        Some(if outer.commits == policy.commits { Outer::Another } else { Outer::Unlike })
    }
}

/// Who has claimed a request on a door's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outer {
    /// The door itself, in a layer further out.
    Itself,
    /// Another one.
    Another,
    /// Another one, in another number of commits.
    Unlike,
}

/// Lets a claimed request pass.
pub(super) async fn within<S, B, R>(
    (door, outer): (&Door, Outer),
    inner: S,
    (mut head, body): (Parts, B),
) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let found = door.routes.find(&head.method, head.uri.path());
    if let Some((policy, place)) = found.filter(|(policy, _)| policy.mode == Mode::Enforce)
        && outer != Outer::Itself
        && let Err(refused) = asked((door, outer), &mut head, policy, &place).await
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
    (door, outer): (&Door, Outer),
    head: &mut Parts,
    policy: &Policy,
    place: &Place,
) -> Result<(), Response<Body>> {
    let said = |refusal| refused(policy, &refusal);
    if outer == Outer::Unlike {
        // Released wherever it is judged: nothing has run.
        let detail = "two layers on one store hold this key in another number of commits, so the \
                      handler was not run; give both the same `commits`, or leave one out";
        return Err(said(Refusal::new(Code::InFlight, detail)));
    }
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
