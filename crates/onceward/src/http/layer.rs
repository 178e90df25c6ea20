//! The tower layer: protects any service that answers HTTP requests.
//!
//! What is claimed runs in a task of its own, so that a client who goes away does not tear the
//! handler apart between its effect and its record, and a panic is noticed. While it runs, the
//! lease is renewed before half of it has passed.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use http_body::Body as HttpBody;
use onceward_core::decide::{Finish, Permit, Verdict};
use tower_layer::Layer;
use tower_service::Service;

use super::admit::{Admitted, Brought, admit, brought};
use super::body::{Body, BoxError, Buffered, Resumed, buffer};
use super::document::{POLICY_PATH, published};
use super::door::{Door, Lost, decode, replayed};
use super::gates::Pass;
use super::names;
use super::outcome::StoredResponse;
use super::policy::{MissingKey, Mode, Policy};
use super::refusal::{Code, Refusal};
use super::route::Place;
use super::shadow::shadow;

/// What a service's error means for the effect of its request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Nothing was sent: the key is given back.
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// It took too long; whether it had its effect is not known.
    #[error("no answer in time: {0}")]
    TimedOut(String),
}

/// What a handler may know about its attempt; found in the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Rises with every grant of this key: hand it to whatever you call.
    pub fence: u64,
    /// 1 for the first.
    pub attempt: u32,
}

/// Protects services with a [`Door`].
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
    names::strip_ours(&mut head.headers);
    let request_id = ensure_request_id(&mut head);
    if head.uri.path() == POLICY_PATH && [Method::GET, Method::HEAD].contains(&head.method) {
        return published(door.policy_document(), &head.method);
    }
    if door.tells_identity() {
        door.identify(&mut head);
    }
    let found = door.routes.find(&head.method, head.uri.path());
    let found = found.filter(|(policy, _)| policy.mode != Mode::Off);
    let Some((policy, place)) = found.map(|(policy, place)| (policy.clone(), place)) else {
        return pass(inner, Request::from_parts(head, body), &request_id).await;
    };
    let result = match policy.mode {
        Mode::Shadow => shadow(&door, inner, (head, body), &policy, &place).await,
        _ => protect(door, inner, (head, body), &policy, place).await,
    };
    let mut response = match result {
        Ok(response) => response,
        Err(refusal) => policy.dialect.speaker().refuse(&refusal, &request_id).map(Body::from),
    };
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(names::X_REQUEST_ID, value);
    }
    response
}

/// The protected way, from the head to the answer.
async fn protect<S, B, R>(
    door: Arc<Door>,
    inner: S,
    (mut head, body): (Parts, B),
    policy: &Policy,
    place: Place,
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
    let key = brought(&head.headers, policy);
    if let (Ok(Brought::Nothing), MissingKey::Allow) = (&key, policy.missing_key) {
        let mut leave = door.gates.enter_unclaimed(place.route)?;
        let mut response = pass(inner, Request::from_parts(head, body), "").await;
        leave.ended(Some(response.status()));
        speaker.mark_unkeyed(response.headers_mut());
        return Ok(response);
    }
    let caller = door.identify(&mut head).ok_or_else(|| {
        Refusal::new(Code::AuthRequired, "a claim needs to know who makes it: send credentials")
    })?;
    let body = match buffer(body, policy.max_request_bytes).await {
        Buffered::Whole(body) => body,
        Buffered::TooLarge(..) => {
            let detail = format!("at most {} bytes", policy.max_request_bytes);
            return Err(Refusal::new(Code::BodyTooLarge, detail));
        }
        Buffered::Broken(error) => {
            return Err(Refusal::new(Code::BadRequest, format!("the body broke off: {error}")));
        }
    };
    let mut admitted = admit(&head, &body, (policy, &place), &caller, key?)?;
    door.gates.rate(place.route, &caller)?;
    if let Err(refused) = door.permits(policy, &head, &caller).await {
        return Ok(refused.map(Body::from));
    }
    let mut response = match door.cache.get(&admitted.claim.key, &admitted.claim.fingerprint) {
        Some(outcome) => said_again(decode(&outcome)?, policy)?,
        None => {
            admitted.keep_payload(policy, &door.leaf_key);
            settle(door, inner, (head, body), (policy, place.route), &admitted).await?
        }
    };
    speaker.mark_keyed(response.headers_mut(), &admitted.key);
    Ok(response)
}

/// Claims, then runs or replays.
async fn settle<S, B, R>(
    door: Arc<Door>,
    inner: S,
    (head, body): (Parts, Bytes),
    (policy, route): (&Policy, Option<usize>),
    admitted: &Admitted,
) -> Result<Response<Body>, Refusal>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Send + 'static,
    R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    R::Error: Into<BoxError>,
{
    let pass = match door.enter(admitted, policy, route).await? {
        Ok(pass) => pass,
        Err(stored) => return said_again(stored, policy),
    };
    // The lease began no earlier than we asked for it.
    let asked = Instant::now();
    let (permit, was_expired) = match door.claim(admitted, policy).await? {
        Verdict::Run { permit, was_expired } => (permit, was_expired),
        Verdict::Replay(stored) => return said_again(door.replay(&stored)?, policy),
        other => return Err(door.refuse(other, admitted, policy).await),
    };
    let (door_too, policy_too) = (door.clone(), policy.clone());
    let run = Run { door: door_too, policy: policy_too, permit: permit.clone(), asked, pass };
    let request = run.request(head, &admitted.key, body);
    // A task of its own: it goes on when the client goes away, and a panic ends only it.
    let ran = tokio::spawn(async move { run.serve(inner, request).await }).await;
    let mut response = match ran {
        Ok(Ok(response)) => response,
        Ok(Err(Lost::Refused(refusal))) => return Err(refusal),
        Ok(Err(Lost::Overtaken)) => match door.claim(admitted, policy).await? {
            Verdict::Replay(stored) => return said_again(door.replay(&stored)?, policy),
            // Whoever overtook us has it in hand; a fresh grant is not ours to use here.
            Verdict::Run { permit, .. } => {
                let _ = door.engine.abandon(&permit, "taken by mistake").await;
                let detail = "the lease of this request ran out; retry with the same key";
                return Err(Refusal::new(Code::InFlight, detail));
            }
            other => return Err(door.refuse(other, admitted, policy).await),
        },
        Err(_) => {
            let _ = door.engine.abandon(&permit, "the handler panicked").await;
            let detail = "the handler broke off; whether it had its effect is not known";
            return Err(Refusal::new(Code::UpstreamFailed, detail));
        }
    };
    if was_expired {
        policy.dialect.speaker().mark_expired(response.headers_mut());
    }
    Ok(response)
}

/// One execution under a permit.
struct Run {
    door: Arc<Door>,
    policy: Policy,
    permit: Permit,
    asked: Instant,
    pass: Pass,
}

impl Run {
    /// The request as the handler sees it.
    fn request<B: From<Bytes>>(&self, mut head: Parts, key: &str, body: Bytes) -> Request<B> {
        let (fence, attempt) = (self.permit.fence.0, self.permit.record.attempt);
        head.headers.insert(names::FENCE, HeaderValue::from(fence));
        head.headers.insert(names::ATTEMPT, HeaderValue::from(attempt));
        if let Ok(key) = HeaderValue::from_str(key) {
            head.headers.insert(names::IDEMPOTENCY_KEY, key);
        }
        head.extensions.insert(Attempt { fence, attempt });
        Request::from_parts(head, B::from(body))
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.policy.lease_ms)
    }

    async fn serve<S, B, R>(
        mut self,
        mut inner: S,
        request: Request<B>,
    ) -> Result<Response<Body>, Lost>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let ready = std::future::poll_fn(|context| inner.poll_ready(context)).await;
        let ready: Result<(), BoxError> = ready.map_err(Into::into);
        if let Err(error) = ready {
            return self.failed(&ServiceError::NotSent(error.to_string()).into()).await;
        }
        let call = inner.call(request);
        let response: Result<Response<R>, BoxError> =
            self.renewing(call).await?.map_err(Into::into);
        let response = match response {
            Ok(response) => response,
            Err(error) => return self.failed(&error).await,
        };
        let (mut head, body) = response.into_parts();
        if head.status.is_server_error() {
            self.pass.ended(Some(head.status));
        }
        names::strip_ours(&mut head.headers);
        let most = self.policy.max_stored_bytes;
        let body = if is_stream(head.headers.get(CONTENT_TYPE)) {
            Buffered::TooLarge(Bytes::new(), body)
        } else {
            self.renewing(buffer(body, most)).await?
        };
        match body {
            Buffered::Whole(bytes) => {
                self.pass.ended(Some(head.status));
                self.record(&head, Some(bytes.clone())).await?;
                Ok(Response::from_parts(head, Body::from(bytes)))
            }
            Buffered::TooLarge(read, rest) => {
                self.pass.ended(Some(head.status));
                // Done, whatever becomes of the stream: it never runs again.
                self.record(&head, None).await?;
                head.headers.insert(names::STORED, HeaderValue::from_static("false"));
                let body = Body::live(Resumed { read: Some(read), rest });
                Ok(Response::from_parts(head, body))
            }
            Buffered::Broken(error) => self.failed(&error).await,
        }
    }

    async fn record(&self, head: &http::response::Parts, body: Option<Bytes>) -> Result<(), Lost> {
        let further = &self.policy.store_headers;
        let stored = StoredResponse::of(head.status, &head.headers, further, body);
        let lease_ends = self.asked + self.lease();
        self.door.finish(&self.permit, &stored, &self.policy, lease_ends).await
    }

    /// Awaits something while the lease is renewed, before half of it has passed.
    async fn renewing<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let pause = self.lease() / 3;
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(pause) => {}
            }
            // A renewal without an answer may have happened; the fence decides at completion.
            if let Ok(Finish::Lost) = self.door.engine.renew(&self.permit, None).await {
                return Err(Lost::Overtaken);
            }
        }
    }

    /// The service failed: given back when nothing was sent, abandoned otherwise.
    async fn failed<T>(&mut self, error: &BoxError) -> Result<T, Lost> {
        self.pass.ended(None);
        let engine = &self.door.engine;
        let (code, detail) = match error.downcast_ref::<ServiceError>() {
            Some(ServiceError::NotSent(_)) => {
                let _ = engine.release(&self.permit).await;
                (Code::UpstreamFailed, "nothing was sent; retry with the same key")
            }
            Some(ServiceError::TimedOut(_)) => {
                let _ = engine.abandon(&self.permit, "no answer in time").await;
                (Code::UpstreamTimeout, "whether it had its effect is not known")
            }
            None => {
                let _ = engine.abandon(&self.permit, "no whole answer came").await;
                (Code::UpstreamFailed, "whether it had its effect is not known")
            }
        };
        Err(Lost::Refused(Refusal::new(code, detail)))
    }
}

/// A replay, marked as the dialect marks it.
fn said_again(stored: StoredResponse, policy: &Policy) -> Result<Response<Body>, Refusal> {
    let mut response = replayed(stored)?;
    policy.dialect.speaker().mark_replay(response.headers_mut());
    Ok(response.map(Body::from))
}

/// The unprotected way: streamed through.
pub(super) async fn pass<S, B, R>(
    mut inner: S,
    request: Request<B>,
    request_id: &str,
) -> Response<Body>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let ready = std::future::poll_fn(|context| inner.poll_ready(context)).await;
    let ready: Result<(), BoxError> = ready.map_err(Into::into);
    let result: Result<Response<R>, BoxError> = match ready {
        Ok(()) => inner.call(request).await.map_err(Into::into),
        Err(error) => Err(error),
    };
    match result {
        Ok(response) => {
            let mut response = response.map(Body::live);
            names::strip_ours(response.headers_mut());
            response
        }
        Err(error) => {
            let code = match error.downcast_ref::<ServiceError>() {
                Some(ServiceError::TimedOut(_)) => Code::UpstreamTimeout,
                _ => Code::UpstreamFailed,
            };
            let refusal = Refusal::new(code, "the service gave no whole answer");
            super::dialect::Dialect::Standard.speaker().refuse(&refusal, request_id).map(Body::from)
        }
    }
}

fn is_stream(content_type: Option<&HeaderValue>) -> bool {
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// The request's id; made if it brings none that can be passed on.
fn ensure_request_id(head: &mut Parts) -> String {
    let there = head.headers.get(names::X_REQUEST_ID).and_then(|value| value.to_str().ok());
    if let Some(id) = there.filter(|id| (1..=128).contains(&id.len())) {
        return id.to_string();
    }
    let id = format!("{:016x}{:016x}", crate::engine::random_u64(), crate::engine::random_u64());
    if let Ok(value) = HeaderValue::from_str(&id) {
        head.headers.insert(names::X_REQUEST_ID, value);
    }
    id
}
