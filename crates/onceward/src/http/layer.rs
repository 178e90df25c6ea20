//! The tower layer: protects any service that answers HTTP requests.
//!
//! What is claimed runs in a task of its own, so that a client who goes away does not tear the
//! handler apart between its effect and its record, and a panic is noticed. While it runs, the
//! lease is renewed before half of it has passed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::EXPECT;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body as HttpBody;
use onceward_core::decide::{Claim, Verdict};
use onceward_core::note::{Noted, Original};
use tokio::sync::oneshot;
use tower_layer::Layer;
use tower_service::Service;

use crate::cache::Looked;

use super::admit::{Admitted, Brought, admit, brought, required_if_match};
use super::answer::{for_handler, mark_anew, said_again};
use super::body::{Body, BoxError, Buffered, End, buffer_until, discard};
use super::document::{POLICY_PATH, published};
use super::door::{Door, Lost, decode, silent_store};
use super::ids::{ensure_request_id, unique_id};
use super::names;
use super::once::OneCommit;
use super::pass::{call, mark_request, passed};
use super::policy::{Commits, MissingKey, Mode, Policy};
use super::refusal::{Code, Refusal};
use super::room::Share;
use super::route::Place;
use super::run::{EarlyAnswer, Run, ServiceError};
use super::said::Refused;
use super::served::Served;
use super::shadow::shadow;
use super::spelling::spell_path;
use super::unprotected::{UnprotectedKey, unprotected};
use super::within::{Claimed, within};

/// How long a claim may take before a store that takes no writes is looked at instead.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// Protects services with a [`Door`].
///
/// A protected request reaches the service under the one spelling of its path that its key is made
/// of ([`super::one_spelling`]); as it was sent, it is an extension ([`super::AsSent`]). A router
/// only goes by it when it routes behind the layer: axum's `Router::layer` wraps what is left to do
/// after routing, so that `POST /%70ayments` is a retry of `POST /payments` to the layer, and a 404
/// to the router before it. Put the layer around the router and all into a router of its own:
///
/// ```ignore
/// Router::new().fallback_service(OncewardLayer::new(door).layer(router))
/// ```
///
/// A layer inside another one on the same store lets pass what the outer one has claimed.
#[derive(Debug, Clone)]
pub struct OncewardLayer(Arc<Door>);

impl OncewardLayer {
    /// A layer that lets nobody pass but through this door.
    #[must_use]
    pub fn new(door: Door) -> Self {
        Self::shared(Arc::new(door))
    }

    /// The same, with a door that others look at too: for the report of shadow mode.
    #[must_use]
    pub fn shared(door: Arc<Door>) -> Self {
        Self(door)
    }
}

impl<S> Layer<S> for OncewardLayer {
    type Service = Onceward<S>;

    fn layer(&self, inner: S) -> Onceward<S> {
        Onceward { inner, door: self.0.clone() }
    }
}

/// A protected service.
#[derive(Debug, Clone)]
pub struct Onceward<S> {
    inner: S,
    door: Arc<Door>,
}

impl<S, B, R> Service<Request<B>> for Onceward<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A replay needs no handler: readiness is asked for when one is about to run.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (door, inner) = (self.door.clone(), self.inner.clone());
        Box::pin(async move { Ok(handle(door, inner, request).await) })
    }
}

async fn handle<S, B, R>(door: Arc<Door>, inner: S, request: Request<B>) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (mut head, body) = request.into_parts();
    if let Some(outer) = Claimed::over(&door, &mut head) {
        return within((&door, outer), inner, (head, body)).await;
    }
    names::strip_ours(&mut head.headers);
    let request_id = ensure_request_id(&mut head);
    if head.uri.path() == POLICY_PATH && [Method::GET, Method::HEAD].contains(&head.method) {
        return published(door.policy_document(), &head.method);
    }
    if door.tells_identity() {
        door.identify(&mut head);
    }
    let found = door.routes.find(&head.method, head.uri.path());
    let (policy, place) = match found {
        Some((policy, place)) if policy.mode != Mode::Off => (policy.clone(), place),
        found => {
            let place = found.map(|(_, place)| place);
            return unprotected(&door, inner, (head, body), place.as_ref(), &request_id).await;
        }
    };
    if policy.mode == Mode::Enforce
        && let Some(as_sent) = spell_path(&mut head.uri)
    {
        head.extensions.insert(as_sent);
    }
    let mut served = Served::at(&place.endpoint);
    let mut key = None;
    let result = match policy.mode {
        Mode::Shadow => {
            let at = (&*policy, &place);
            let key = UnprotectedKey::of(&door, &head, Some(&place));
            let mut result = Box::pin(shadow(&door, inner, (head, body), at, &request_id)).await;
            if let (Some(key), Ok(response)) = (key, &mut result) {
                key.mark(response);
            }
            result
        }
        _ => {
            let at = (&policy, place);
            let told = (&*request_id, &mut served, &mut key);
            protect(door, inner, (head, body), at, told).await
        }
    };
    let mut response = match result {
        Ok(response) => {
            served.ended(&response);
            response
        }
        Err(refusal) => {
            served.verdict = refusal.code.meaning().code;
            let speaker = policy.dialect.speaker();
            let mut response = speaker.refuse(&refusal, &request_id).map(Body::from);
            response.extensions_mut().insert(Refused(refusal.code));
            if let Some(key) = &key {
                speaker.mark_keyed(response.headers_mut(), key);
            }
            response
        }
    };
    mark_request(response.headers_mut(), &request_id);
    response.extensions_mut().insert(served);
    response
}

/// The protected way, from the head to the answer.
async fn protect<S, B, R>(
    door: Arc<Door>,
    inner: S,
    (head, body): (Parts, B),
    (policy, place): (&Arc<Policy>, Place),
    (request_id, served, told): (&str, &mut Served, &mut Option<String>),
) -> Result<Response<Body>, Refusal>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Into<BoxError>,
{
    let mut key = brought(&head.headers, policy);
    let unkeyed = matches!((&key, policy.missing_key), (Ok(Brought::Nothing), MissingKey::Allow));
    if unkeyed && policy.commits == Commits::One {
        // Its writes have to be committed under some key; nobody will ever ask for this one.
        key = Ok(Brought::Key(format!("unkeyed-{}", unique_id())));
    } else if unkeyed {
        let at = (&**policy, place.route);
        return without_key(&door, inner, (head, body), at, (request_id, served)).await;
    }
    // Boxed, because the future of all that may happen to a key is large, and what passes without
    // one need not carry it.
    let told = (served, told);
    Box::pin(keyed(door, inner, (head, body), (policy, place), told, (key, unkeyed))).await
}

/// The way of a request that brings no key where none is needed: streamed through, if it is one
/// that the route takes. Leaving the key out is no way around anything else.
async fn without_key<S, B, R>(
    door: &Door,
    inner: S,
    (mut head, body): (Parts, B),
    (policy, route): (&Policy, Option<usize>),
    (request_id, served): (&str, &mut Served),
) -> Result<Response<Body>, Refusal>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Unpin,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    // A bound that nobody wrote is about what is held in memory, and nothing is here.
    if route.is_some() && body.size_hint().lower() > policy.max_request_bytes {
        return Err(too_large(&head, body, policy).await);
    }
    required_if_match(&head, policy)?;
    let asks = door.judge_unkeyed(policy, &mut head).map_err(|unknown| served.nobody(&unknown))?;
    if door.gates.limits_rate(route)
        && let Some(caller) = door.identify(&mut head)
    {
        door.gates.rate(route, &caller)?;
    }
    if let Some(caller) = asks
        && let Err(refused) = door.permits(policy, &head, &caller).await
    {
        return Ok(refused);
    }
    let mut leave = door.gates.enter_unclaimed(route)?;
    let called = call(inner, Request::from_parts(head, body)).await;
    if let Err(error) = &called
        && let Some(ServiceError::RequestBroken(why)) = error.downcast_ref()
    {
        return Err(broke_off(why));
    }
    let is_early = match &called {
        Ok(response) => response.extensions().get::<EarlyAnswer>().is_some(),
        Err(error) => matches!(error.downcast_ref(), Some(ServiceError::Unfinished(_))),
    };
    let mut response = passed(called, request_id);
    // Of half a request the breaker hears nothing: whoever sends it would open it for all.
    if !is_early {
        leave.ended(Some(response.status()));
    }
    if may_have_run(response.status()) {
        policy.dialect.speaker().mark_unkeyed(response.headers_mut());
    }
    Ok(response)
}

/// The protected way of a request whose key is known, or is to be refused.
async fn keyed<S, B, R>(
    door: Arc<Door>,
    inner: S,
    (mut head, body): (Parts, B),
    (policy, place): (&Arc<Policy>, Place),
    (served, told): (&mut Served, &mut Option<String>),
    (key, unkeyed): (Result<Brought, Refusal>, bool),
) -> Result<Response<Body>, Refusal>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Into<BoxError>,
{
    let speaker = policy.dialect.speaker();
    let caller = door.judge(&mut head).map_err(|unknown| served.nobody(&unknown))?;
    if let (Ok(Brought::Key(key)), false) = (&key, unkeyed) {
        // A refusal names the key too, also that of a body which is too large.
        *told = Some(key.clone());
    }
    let share = door.gates.body_share(&caller.tenant);
    let body = whole_body((&head, door.end_of(&head)), body, policy, share).await?;
    served.tenant = Some(caller.tenant.clone());
    let key = key?;
    let mut admitted = admit(&head, &body, (policy, &place), &caller, key)?;
    served.claims(&admitted.claim.key);
    door.gates.rate(place.route, &caller)?;
    let key = admitted.key.clone();
    let mark = |mut response: Response<Body>| {
        if !unkeyed {
            speaker.mark_keyed(response.headers_mut(), &key);
        } else if may_have_run(response.status()) {
            speaker.mark_unkeyed(response.headers_mut());
        }
        response
    };
    if let Err(refused) = door.permits(policy, &head, &caller).await {
        return Ok(mark(refused));
    }
    let Claim { key: record, fingerprint, .. } = &admitted.claim;
    let looked = door.cache.look(&door.engine, record, fingerprint).await;
    served.cached = Some(matches!(looked, Looked::Hit(..)));
    let response = match looked {
        Looked::Hit(outcome, original) => {
            let stored = decode(&outcome)?;
            door.note(Noted::Replay, original, &admitted).await?;
            said_again(stored, &door, policy, &admitted)?
        }
        Looked::Miss(sight) => {
            admitted.sight = sight;
            admitted.keep_payload(policy, &door.leaf_key);
            let mut head = for_handler(head, policy, &caller);
            Claimed::by(&mut head, &door, (&admitted, policy.commits));
            match policy.commits {
                Commits::Two => {
                    let at = (policy.clone(), place.route);
                    // Boxed: a replay need not carry it.
                    Box::pin(settle(door, inner, (head, body), at, admitted)).await?
                }
                Commits::One => {
                    let (door, admitted) = (&*door, &admitted);
                    let (caller, route) = (&caller, place.route);
                    let _entered = door.drain.enter().ok_or_else(going_down)?;
                    let once = OneCommit { door, policy, route, admitted, caller };
                    Box::pin(once.settle(inner, (head, body))).await?
                }
            }
        }
    };
    Ok(mark(response))
}

/// Whether a request that was answered so may have had an effect. These say that it was not even
/// looked at (RFC 9110, sections 15.5.2, 15.5.4 and 15.5.14): nothing to warn of.
fn may_have_run(status: StatusCode) -> bool {
    let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::PAYLOAD_TOO_LARGE];
    !refused.contains(&status)
}

/// The body of a request, within its bound.
async fn whole_body<B>(
    (head, end): (&Parts, End),
    body: B,
    policy: &Policy,
    mut share: Share,
) -> Result<Bytes, Refusal>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    match buffer_until(end, body, policy.max_request_bytes, &mut share).await {
        Buffered::Whole(body) => {
            if head.version == Version::HTTP_2 {
                // Some clients that give up end their stream and reset it in one breath. The server
                // looks for a reset whenever we wait, and drops this request.
                tokio::task::yield_now().await;
            }
            Ok(share.hold(body))
        }
        Buffered::TooLarge(_, rest) => Err(too_large(head, rest, policy).await),
        Buffered::NoRoom(..) => {
            let detail = "too many bytes of requests are held already; retry with the same key";
            Err(Refusal::new(Code::Shed, detail))
        }
        Buffered::Broken(error) => Err(broke_off(&error)),
    }
}

/// Refuses a body that is larger than the policy allows.
async fn too_large<B>(head: &Parts, rest: B, policy: &Policy) -> Refusal
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    // A client that is still sending would not hear us; one that asked first waits.
    if !head.headers.contains_key(EXPECT) {
        discard(rest).await;
    }
    Refusal::new(Code::BodyTooLarge, format!("at most {} bytes", policy.max_request_bytes))
}

pub(super) fn broke_off(why: &impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::BadRequest, format!("the body broke off: {why}"))
}

/// Claims, then runs or replays, in a task of its own: it goes on when the client goes away.
///
/// The claim is in it too: one whose future is dropped half-way could leave a grant that nobody
/// holds. A client that left before the grant has it released; later its work goes on. So does it
/// with one whom a silent store kept waiting for too long: that is answered here, and the claim is
/// settled behind it.
async fn settle<S, B, R>(
    door: Arc<Door>,
    inner: S,
    (head, body): (Parts, Bytes),
    (policy, route): (Arc<Policy>, Option<usize>),
    admitted: Admitted,
) -> Result<Response<Body>, Refusal>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Send + 'static,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Into<BoxError>,
{
    let entered = door.drain.enter().ok_or_else(going_down)?;
    let (mut answer, heard) = oneshot::channel();
    let (judged, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(admitted));
    let waiting = Waiting {
        door: door.clone(),
        policy: policy.clone(),
        admitted: admitted.clone(),
        judged: judged.clone(),
    };
    tokio::spawn(async move {
        let (door, policy, admitted, judged) = (&door, &policy, &admitted, &judged);
        let settling = Settling { door, policy, route, admitted, judged };
        let result = settling.settle(inner, (head, body), &mut answer).await;
        // Nobody may be there to hear it; the record is.
        let _ = answer.send(result);
        drop(entered);
    });
    waiting.answer(heard).await
}

/// One who waits for what becomes of a claim.
struct Waiting {
    door: Arc<Door>,
    policy: Arc<Policy>,
    admitted: Arc<Admitted>,
    /// Set once the store has judged the claim, or who waits for that has given up: by the first.
    judged: Arc<AtomicBool>,
}

impl Waiting {
    /// The answer. A store that takes no writes keeps nobody from what is done: that is replayed
    /// from a look, and only who would have to run hears that the store is silent.
    async fn answer(
        &self,
        mut heard: oneshot::Receiver<Result<Response<Body>, Refusal>>,
    ) -> Result<Response<Body>, Refusal> {
        let within = self.door.claim_within(&self.policy);
        let soon = LOOK_AFTER.min(within);
        let mut answered = tokio::time::timeout(soon, &mut heard).await;
        if answered.is_err() && !self.judged.load(Ordering::Acquire) {
            if self.door.engine.late().is_some()
                && let Some(known) = self.known().await
            {
                return known;
            }
            answered = tokio::time::timeout(within - soon, &mut heard).await;
        }
        let answered = match answered {
            Ok(answered) => answered,
            Err(_) if self.judged.load(Ordering::Acquire) => heard.await,
            Err(_) => match self.known().await {
                Some(known) => return known,
                // Nobody has judged it so far: what is granted from now on runs no more.
                None if !self.judged.swap(true, Ordering::AcqRel) => return Err(silent_store()),
                None => heard.await,
            },
        };
        let detail = "the server broke off; retry with the same key";
        answered.unwrap_or_else(|_| Err(Refusal::new(Code::UpstreamFailed, detail)))
    }

    async fn known(&self) -> Option<Result<Response<Body>, Refusal>> {
        let Self { door, policy, admitted, .. } = self;
        let known = door.known(admitted, policy).await?;
        Some(known.and_then(|stored| said_again(stored, door, policy, admitted)))
    }
}

/// A request on its way from the claim to the answer.
struct Settling<'a> {
    door: &'a Arc<Door>,
    policy: &'a Policy,
    route: Option<usize>,
    admitted: &'a Admitted,
    judged: &'a AtomicBool,
}

impl Settling<'_> {
    async fn settle<S, B, R>(
        &self,
        inner: S,
        (head, body): (Parts, Bytes),
        answer: &mut oneshot::Sender<Result<Response<Body>, Refusal>>,
    ) -> Result<Response<Body>, Refusal>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        B: From<Bytes>,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let Self { door, policy, route, admitted, judged } = *self;
        let pass = match door.enter(admitted, policy, route).await? {
            Ok(pass) => pass,
            Err(stored) => return said_again(stored, door, policy, admitted),
        };
        // The lease began no earlier than we asked for it.
        let asked = Instant::now();
        let claimed = door.claim(admitted, policy, answer.closed()).await;
        let given_up = judged.swap(true, Ordering::AcqRel);
        let verdict = match claimed {
            Ok(verdict) => verdict,
            Err(refusal) => {
                // What is done can be read from a store that takes no writes.
                let known = door.known(admitted, policy).await;
                let stored = known.unwrap_or(Err(refusal))?;
                return said_again(stored, door, policy, admitted);
            }
        };
        let (permit, was_expired) = match verdict {
            Verdict::Run { permit, was_expired } => (permit, was_expired),
            Verdict::Replay(stored) => {
                let stored = door.replay(&stored, admitted).await?;
                return said_again(stored, door, policy, admitted);
            }
            other => return Err(door.refuse(other, admitted, policy).await),
        };
        if given_up || answer.is_closed() {
            let _ = door.engine.release(&permit).await;
            return Err(Refusal::new(Code::BadRequest, "the client left before it began"));
        }
        let alive = door.engine.alive_here(&permit);
        let run = Run { door, policy, permit: &permit, asked, pass, has_begun: false };
        let request = run.request(head, &admitted.key, body);
        // A panic of the handler ends only its attempt.
        let ran = std::panic::AssertUnwindSafe(run.serve(inner, request)).catch_unwind().await;
        drop(alive);
        let mut response = match ran {
            Ok(Ok(response)) => response,
            Ok(Err(Lost::Refused(refusal))) => return Err(refusal),
            Ok(Err(Lost::Overtaken)) => return self.overtaken().await,
            Err(_) => {
                let _ = door.engine.abandon(&permit, "the handler panicked").await;
                let detail = "the handler broke off; whether it had its effect is not known";
                return Err(Refusal::new(Code::UpstreamFailed, detail));
            }
        };
        if was_expired {
            // It has run and is recorded: what becomes of the note changes nothing.
            let _ = door.note(Noted::Expired, Original::of(&permit.record), admitted).await;
            mark_anew(&mut response, policy);
        }
        Ok(response)
    }

    /// The lease ran out and someone else was granted: theirs is the answer.
    async fn overtaken(&self) -> Result<Response<Body>, Refusal> {
        let Self { door, policy, admitted, .. } = *self;
        match door.claim(admitted, policy, std::future::pending()).await? {
            Verdict::Replay(stored) => {
                let stored = door.replay(&stored, admitted).await?;
                said_again(stored, door, policy, admitted)
            }
            // Whoever overtook us has it in hand; a fresh grant is not ours to use here.
            Verdict::Run { permit, .. } => {
                let _ = door.engine.release(&permit).await;
                let detail = "the lease of this request ran out; retry with the same key";
                Err(Refusal::new(Code::InFlight, detail))
            }
            other => Err(door.refuse(other, admitted, policy).await),
        }
    }
}

fn going_down() -> Refusal {
    Refusal::new(Code::Shed, "this server is going down; retry with the same key")
}
