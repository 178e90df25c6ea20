//! One execution under a permit: the handler, its lease's heartbeat, and the record of its end.
//!
//! Whatever happens ends the permit: an answer is recorded before it is sent, one that says that
//! nothing was done gives the key back, and a service that may have had its effect, or says that it
//! failed, ends the lease as unknown. Not responsible for the claim (`layer.rs`) or for one-commit
//! handlers (`once.rs`).

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use onceward_core::decide::{Finish, Permit};
use onceward_core::outcome_policy::Ending;
use onceward_core::record::{OnAbandoned, State};
use tower_service::Service;

use super::answer::{correlate, is_stream, spoken};
use super::body::{Body, BoxError, Buffered, Resumed, buffer};
use super::door::{Door, Lost, decode, not_recorded, replayed};
use super::gates::Pass;
use super::names;
use super::outcome::StoredResponse;
use super::policy::Policy;
use super::refusal::{Code, Refusal};
use super::room::Whose;
use super::said::{ends, read_most, said};
use crate::engine::EngineError;

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
    /// It has answered, but with a head that can't be read: the request is done, and its answer
    /// is not stored.
    #[error("the answer can't be read: {0}")]
    Unreadable(String),
    /// The request's own body broke off on its way to the service: that says nothing about the
    /// service, and no breaker counts it. Only a request without a key is sent on before all of its
    /// body is there.
    #[error("the request's body broke off: {0}")]
    RequestBroken(String),
    /// The service broke off while the client was still to send the rest of its body: it may have
    /// waited for long enough. No breaker counts that either.
    #[error("no answer before the request was whole: {0}")]
    Unfinished(String),
}

/// Marks an answer (in its extensions) that came while the client was still to send the rest of its
/// body: whoever keeps it back can make a service fail, and no breaker counts that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyAnswer;

/// What a handler may know about its attempt; found in the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// Rises with every grant of this key: hand it to whatever you call.
    pub fence: u64,
    /// 1 for the first.
    pub attempt: u32,
}

/// One execution under a permit.
pub(super) struct Run<'a> {
    pub(super) door: &'a Door,
    pub(super) policy: &'a Policy,
    pub(super) permit: &'a Permit,
    /// When it or its last renewal was asked for: the lease began no earlier.
    pub(super) asked: Instant,
    /// What the breaker is told of its end.
    pub(super) pass: Pass,
    /// Whether the service has the request: before, nothing can have happened.
    pub(super) has_begun: bool,
}

impl Run<'_> {
    /// The request as the handler sees it.
    pub(super) fn request<B: From<Bytes>>(
        &self,
        mut head: Parts,
        key: &str,
        body: Bytes,
    ) -> Request<B> {
        let (fence, attempt) = (self.permit.fence.0, self.permit.record.attempt);
        head.headers.insert(names::FENCE, HeaderValue::from(fence));
        head.headers.insert(names::ATTEMPT, HeaderValue::from(attempt));
        if let Ok(key) = HeaderValue::from_str(key) {
            head.headers.insert(names::IDEMPOTENCY_KEY, key);
        }
        let text = self.policy.permit_text.as_ref();
        if let Some(Ok(permit)) = text.map(|text| {
            HeaderValue::from_str(&text.0(self.permit.key(), fence, &self.policy.statuses))
        }) {
            head.headers.insert(names::PERMIT, permit);
        }
        head.extensions.insert(Attempt { fence, attempt });
        Request::from_parts(head, B::from(body))
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.policy.lease_ms)
    }

    /// Runs the handler and records its answer.
    pub(super) async fn serve<S, B, R>(
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
        // A service may be long in taking it: the lease has to hold until it begins, too.
        let ready = self.renewing(std::future::poll_fn(|context| inner.poll_ready(context))).await;
        let ready: Result<(), BoxError> = ready?.map_err(Into::into);
        if let Err(error) = ready {
            return self.failed(&ServiceError::NotSent(error.to_string()).into()).await;
        }
        self.has_begun = true;
        let request_id = request.headers().get(names::X_REQUEST_ID).cloned();
        let correlation_id = request.headers().get(names::X_CORRELATION_ID).cloned();
        let call = inner.call(request);
        let upstream_completes = self.policy.permit_text.is_some();
        let called: Result<Result<Response<R>, BoxError>, Lost> =
            self.renewing(call).await.map(|called| called.map_err(Into::into));
        let response = match called {
            // It may have completed before it answered: then its lease has ended with that.
            Err(Lost::Overtaken) if upstream_completes => return self.recorded_or_lost().await,
            called => called?,
        };
        let response = match response {
            Ok(response) => response,
            Err(error) if upstream_completes => return self.broke_off(&error).await,
            Err(error) => return self.failed(&error).await,
        };
        let (mut head, body) = response.into_parts();
        correlate(&mut head.headers, correlation_id);
        if upstream_completes {
            return self.completed_elsewhere(head, body).await;
        }
        self.answered(head, body, request_id.as_ref()).await
    }

    /// Records the handler's answer, then gives it.
    async fn answered<R>(
        mut self,
        mut head: http::response::Parts,
        body: R,
        request_id: Option<&HeaderValue>,
    ) -> Result<Response<Body>, Lost>
    where
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Into<BoxError>,
    {
        if head.status.is_server_error() {
            self.pass.ended(Some(head.status));
        }
        names::strip_ours(&mut head.headers);
        let most = read_most(&head, self.policy);
        let mut share = self.door.gates.answer_share(self.whose());
        let body = if is_stream(head.headers.get(CONTENT_TYPE)) {
            Buffered::TooLarge(Bytes::new(), body)
        } else {
            self.renewing(buffer(body, most, &mut share)).await?
        };
        match body {
            Buffered::Whole(mut bytes) => {
                self.pass.ended(Some(head.status));
                if let Some(said) = spoken(&mut head, self.policy, request_id) {
                    bytes = said;
                }
                let ending = ends(&said(&head, Some(&bytes)), self.policy);
                let stored = bytes.len() as u64 <= self.policy.max_stored_bytes;
                self.end(&mut head, stored.then(|| bytes.clone()), ending).await?;
                Ok(Response::from_parts(head, Body::from(share.hold(bytes))))
            }
            // It has run: an answer without room is passed on as one that is too large.
            Buffered::TooLarge(read, rest) | Buffered::NoRoom(read, rest) => {
                self.pass.ended(Some(head.status));
                let ending = ends(&said(&head, None), self.policy);
                // Ended, whatever becomes of the stream.
                self.end(&mut head, None, ending).await?;
                let body = Body::live(Resumed { read: Some(share.hold(read)), rest });
                Ok(Response::from_parts(head, body))
            }
            Buffered::Broken(error) => self.failed(&error).await,
        }
    }

    /// Ends the attempt as its answer says, and marks an answer that tells of an end which no
    /// retry will hear of. Without a body, only the fact that it was answered is recorded.
    async fn end(
        &self,
        head: &mut http::response::Parts,
        body: Option<Bytes>,
        ending: Ending,
    ) -> Result<(), Lost> {
        let engine = &self.door.engine;
        let mut is_marked = ending == Ending::Unknown;
        // Whether giving up or giving back succeeds now or the lease runs out: it is the same end.
        match ending {
            Ending::Released => {
                let _ = engine.release(self.permit).await;
            }
            Ending::Unknown => {
                let why = format!("it was answered with {}", head.status.as_u16());
                let _ = engine.abandon(self.permit, &why).await;
            }
            Ending::Success | Ending::Error => {
                is_marked = body.is_none();
                self.record(head, body, ending).await?;
            }
        }
        if is_marked {
            head.headers.insert(names::STORED, HeaderValue::from_static("false"));
        }
        Ok(())
    }

    /// The answer of a handler that completes by itself: what it recorded. What it commits would
    /// have come with a record, so an error without one has done nothing: it is passed on, and the
    /// key is given back. A success without one contradicts itself, and nobody knows what it did.
    async fn completed_elsewhere<R>(
        &mut self,
        mut head: http::response::Parts,
        body: R,
    ) -> Result<Response<Body>, Lost>
    where
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Into<BoxError>,
    {
        self.pass.ended(Some(head.status));
        if let Some(response) = self.recorded().await? {
            return Ok(response);
        }
        if !head.status.is_client_error() && !head.status.is_server_error() {
            return self.success_without_record().await;
        }
        let most = self.policy.max_stored_bytes;
        let mut share = self.door.gates.answer_share(self.whose());
        let body = if is_stream(head.headers.get(CONTENT_TYPE)) {
            Buffered::TooLarge(Bytes::new(), body)
        } else {
            match self.renewing(buffer(body, most, &mut share)).await {
                Err(Lost::Overtaken) => return self.recorded_or_lost().await,
                read => read?,
            }
        };
        let body = match body {
            Buffered::Whole(bytes) => Body::from(share.hold(bytes)),
            Buffered::TooLarge(read, rest) | Buffered::NoRoom(read, rest) => {
                Body::live(Resumed { read: Some(share.hold(read)), rest })
            }
            // Half an error is not known to be one.
            Buffered::Broken(error) => return self.broke_off(&error).await,
        };
        let released = self.door.engine.release(self.permit).await;
        if let Some(response) = self.ended_by_itself(released).await? {
            return Ok(response);
        }
        names::strip_ours(&mut head.headers);
        head.headers.insert(names::STORED, HeaderValue::from_static("false"));
        Ok(Response::from_parts(head, body))
    }

    /// The handler says that it has succeeded and has recorded nothing: whatever it did, it did
    /// outside of the transaction that completes, so the attempt ends as any whose end is unknown.
    async fn success_without_record(&self) -> Result<Response<Body>, Lost> {
        let why = "the upstream answered without completing";
        let abandoned = self.door.engine.abandon(self.permit, why).await;
        if let Some(response) = self.ended_by_itself(abandoned).await? {
            return Ok(response);
        }
        let detail = match self.permit.record.terms.on_abandoned {
            OnAbandoned::Rerun => {
                "the upstream answered without completing; nothing is recorded, and a retry with \
                 the same key runs again"
            }
            OnAbandoned::Hold => {
                "the upstream answered without completing; nothing is recorded, whether it had \
                 its effect is not known, and the key is held until someone resolves it"
            }
        };
        Err(Lost::Refused(Refusal::new(Code::UpstreamFailed, detail)))
    }

    /// What we come too late to end: its transaction was still at the commit, which is the answer,
    /// or it has said itself that it failed, which is none.
    async fn ended_by_itself(
        &self,
        finished: Result<Finish, EngineError>,
    ) -> Result<Option<Response<Body>>, Lost> {
        match finished {
            Ok(Finish::Lost) if !self.failed_by_itself().await? => {
                self.recorded_or_lost().await.map(Some)
            }
            Ok(_) => Ok(None),
            // Nobody knows what it has committed, or will.
            Err(error) => Err(Lost::Refused(not_recorded(&error))),
        }
    }

    /// The handler broke off. What it committed counts; otherwise the permit ends.
    async fn broke_off(&mut self, error: &BoxError) -> Result<Response<Body>, Lost> {
        if let Some(response) = self.recorded().await? {
            return Ok(response);
        }
        let failed = self.failed(error).await;
        // A commit that was on its way ends the permit before we do, and is the answer.
        match self.recorded().await? {
            Some(response) => Ok(response),
            None => failed,
        }
    }

    async fn recorded_or_lost(&self) -> Result<Response<Body>, Lost> {
        self.recorded().await?.ok_or(Lost::Overtaken)
    }

    /// Whether the handler has ended this very permit without an answer.
    async fn failed_by_itself(&self) -> Result<bool, Lost> {
        let unread = |error| Lost::Refused(not_recorded(&error));
        let found = self.door.engine.look(self.permit.key()).await.map_err(unread)?;
        Ok(found.is_some_and(|found| {
            let record = &found.stored.record;
            let ended = matches!(record.state, State::Failed | State::Dead);
            ended && record.last_fence == self.permit.fence
        }))
    }

    /// Whose the answer is.
    fn whose(&self) -> Whose<'_> {
        Whose::of(self.permit.key(), &self.permit.record.trace)
    }

    /// What was recorded under this very permit, if anything.
    async fn recorded(&self) -> Result<Option<Response<Body>>, Lost> {
        let unread = |error| Lost::Refused(not_recorded(&error));
        let found = self.door.engine.look(self.permit.key()).await.map_err(unread)?;
        let Some(stored) = found.map(|found| found.stored) else { return Ok(None) };
        if stored.record.state != State::Done || stored.record.last_fence != self.permit.fence {
            return Ok(None);
        }
        let outcome = stored.outcome.as_deref().unwrap_or_default();
        let response = decode(outcome).and_then(|stored| replayed(stored, self.door, self.whose()));
        Ok(Some(response.map_err(Lost::Refused)?.map(Body::from)))
    }

    async fn record(
        &self,
        head: &http::response::Parts,
        body: Option<Bytes>,
        ending: Ending,
    ) -> Result<(), Lost> {
        let further = &self.policy.store_headers;
        let stored = StoredResponse::of(head.status, &head.headers, further, body);
        self.store(&stored, self.policy.retained_ms(ending)).await
    }

    async fn store(&self, stored: &StoredResponse, retain_ms: u64) -> Result<(), Lost> {
        let lease_ends = self.asked + self.lease();
        self.door.finish(self.permit, stored, retain_ms, lease_ends).await
    }

    /// Awaits something while the lease is renewed, before half of it has passed.
    async fn renewing<F: Future>(&mut self, work: F) -> Result<F::Output, Lost> {
        // Counted from when the lease was asked for, whatever was awaited since.
        let mut next = self.asked + self.lease() / 3;
        tokio::pin!(work);
        loop {
            let cut = tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep_until(next.into()) => false,
                () = self.door.drain.cutting() => true,
            };
            if cut {
                return Err(self.cut().await);
            }
            // A renewal without an answer may have happened; the fence decides at completion.
            let asked = Instant::now();
            match self.door.engine.renew(self.permit, None).await {
                Ok(Finish::Lost) => return Err(Lost::Overtaken),
                Ok(Finish::Ok) => {
                    self.asked = asked;
                    next = asked + self.lease() / 3;
                }
                // Tried again soon: the lease goes on running.
                _ => next = Instant::now() + self.lease() / 12,
            }
        }
    }

    /// The server goes down before the answer came.
    async fn cut(&self) -> Lost {
        if !self.has_begun {
            let _ = self.door.engine.release(self.permit).await;
            let detail = "the server went down before anything was sent; retry with the same key";
            return Lost::Refused(Refusal::new(Code::UpstreamFailed, detail));
        }
        let _ = self.door.engine.abandon(self.permit, "the server went down").await;
        let detail = "the server went down; whether it had its effect is not known";
        Lost::Refused(Refusal::new(Code::UpstreamFailed, detail))
    }

    /// The service failed: given back when nothing was sent, abandoned otherwise.
    async fn failed<T>(&mut self, error: &BoxError) -> Result<T, Lost> {
        self.pass.ended(None);
        let engine = &self.door.engine;
        let (code, detail) = match error.downcast_ref::<ServiceError>() {
            Some(ServiceError::NotSent(_)) => {
                let _ = engine.release(self.permit).await;
                (Code::UpstreamFailed, "nothing was sent; retry with the same key")
            }
            Some(ServiceError::TimedOut(_)) => {
                let _ = engine.abandon(self.permit, "no answer in time").await;
                (Code::UpstreamTimeout, "whether it had its effect is not known")
            }
            // Where the handler records what it answers, an answer tells nothing without a record.
            Some(ServiceError::Unreadable(_)) if self.policy.permit_text.is_none() => {
                let (status, headers) = (StatusCode::BAD_GATEWAY, HeaderMap::new());
                let unread = StoredResponse { status, headers, body: None };
                self.store(&unread, self.policy.retain_ms).await?;
                (
                    Code::UpstreamFailed,
                    "it was answered, but the answer can't be read; it is done, \
                                        and never runs again",
                )
            }
            Some(
                ServiceError::RequestBroken(_)
                | ServiceError::Unfinished(_)
                | ServiceError::Unreadable(_),
            )
            | None => {
                let _ = engine.abandon(self.permit, "no whole answer came").await;
                (Code::UpstreamFailed, "whether it had its effect is not known")
            }
        };
        Err(Lost::Refused(Refusal::new(code, detail)))
    }
}
