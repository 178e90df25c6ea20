//! The one-commit way: look, run the handler, commit key, effects and response together, answer.
//!
//! The handler never runs before the look-up, and nothing is sent before the commit. When another
//! writer moved a document that the handler had read, the handler runs again on what is there then,
//! so that it judges the client's preconditions anew: a lost race is its own 412 or a fresh result,
//! never a lost update. No lease is held: a client that goes away leaves nothing behind.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Request, Response, response};
use http_body::Body as HttpBody;
use onceward_core::decide::{Completion, Effects, Refusal as GuardRefusal, Verdict};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::guard::Misfit;
use onceward_core::note::{Noted, Original};
use onceward_core::outcome_policy::Ending;
use onceward_core::record::Record;
use tower_service::Service;

use super::admit::Admitted;
use super::answer::{correlate, is_stream, mark_anew, said_again, spoken};
use super::body::{Body, BoxError, Buffered, Resumed, buffer};
use super::door::{Door, no_answer};
use super::etag::ETag;
use super::identity::Caller;
use super::names;
use super::outcome::StoredResponse;
use super::policy::Policy;
use super::refusal::{Code, Refusal};
use super::room::Whose;
use super::run::ServiceError;
use super::said::{ends, read_most, said};
use super::writes::{Offer, handed};
use crate::engine::{EngineError, OnceVerdict};

/// How often a handler runs for one request, while others write what it reads.
const RUNS_MAX: u32 = 32;

/// A request on its way through one commit.
pub(super) struct OneCommit<'a> {
    pub(super) door: &'a Door,
    pub(super) policy: &'a Policy,
    /// Which of the door's routes it is.
    pub(super) route: Option<usize>,
    pub(super) admitted: &'a Admitted,
    pub(super) caller: &'a Caller,
}

/// What a handler answered.
struct Answer {
    head: response::Parts,
    body: Given,
    effects: Effects,
    ending: Ending,
}

enum Given {
    Whole(Bytes),
    /// Too large to be held, or a stream.
    Live(Body),
}

impl Given {
    fn whole(&self) -> Option<&Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes),
            Self::Live(_) => None,
        }
    }
}

impl OneCommit<'_> {
    /// Looks, runs, commits.
    pub(super) async fn settle<S, B, R>(
        &self,
        inner: S,
        (head, body): (Parts, Bytes),
    ) -> Result<Response<Body>, Refusal>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: From<Bytes> + Send + 'static,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let looking = self.door.engine.look_before(&self.admitted.claim);
        let known = self.door.in_time(looking).await?;
        if let Some(verdict) = known.map_err(|error| no_answer(&error))? {
            return self.not_run(verdict).await;
        }
        let mut pass = self.door.gates.enter(self.route, &self.admitted.claim)?;
        let mut before: Option<GuardRefusal> = None;
        let mut turn = None;
        for _ in 0..RUNS_MAX {
            let answered = self.run(inner.clone(), (head.clone(), body.clone())).await;
            pass.ended(answered.as_ref().ok().map(|answer| answer.head.status));
            let mut answer = answered?;
            if !answer.ending.is_stored() {
                // Nothing was written, so nothing has happened, whatever went wrong.
                return Ok(answer.into_response());
            }
            match self.together(self.completion(&mut answer)).await? {
                OnceVerdict::Ran { record, was_expired } => {
                    return Ok(self.ran(answer, &record, was_expired).await);
                }
                OnceVerdict::Not(Verdict::Refused(refused)) => {
                    if before.as_ref() == Some(&refused) {
                        // The handler does not look at what is there: its guard is its answer.
                        return self.refused(&head, &refused).await;
                    }
                    // Those who lost take turns, and never wait for two subjects at once.
                    drop(turn);
                    turn = Some(self.door.engine.turn_at(&refused.subject).await);
                    before = Some(refused);
                }
                OnceVerdict::Not(verdict) => return self.not_run(verdict).await,
            }
        }
        let detail = "others wrote the same documents each time; nothing was executed";
        Err(Refusal::new(Code::StoreUnavailable, detail))
    }

    /// Runs the handler once. A panic is an answer too: nothing was written.
    async fn run<S, B, R>(
        &self,
        mut inner: S,
        (mut head, body): (Parts, Bytes),
    ) -> Result<Answer, Refusal>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        B: From<Bytes>,
        R: HttpBody<Data = Bytes> + Unpin + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let claim = &self.admitted.claim;
        let engine = self.door.engine.clone();
        let offer = Offer::new(engine, self.caller.clone(), claim);
        head.extensions.insert(offer.clone());
        if let Ok(key) = HeaderValue::from_str(&self.admitted.key) {
            head.headers.insert(names::IDEMPOTENCY_KEY, key);
        }
        let request_id = head.headers.get(names::X_REQUEST_ID).cloned();
        let correlation_id = head.headers.get(names::X_CORRELATION_ID).cloned();
        let mut share = self.door.gates.answer_share(Whose::of(&claim.key, &claim.trace));
        let work = async {
            std::future::poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
            let response = inner.call(Request::from_parts(head, B::from(body))).await;
            let response: Response<R> = response.map_err(Into::into)?;
            let (head, body) = response.into_parts();
            let body = if is_stream(head.headers.get(CONTENT_TYPE)) {
                Buffered::TooLarge(Bytes::new(), body)
            } else {
                buffer(body, read_most(&head, self.policy), &mut share).await
            };
            Ok::<_, BoxError>((head, body))
        };
        let (mut head, body) = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => return Err(nothing_written(&error)),
            Err(_) => {
                let detail = "the handler broke off; nothing was written, retry with the same key";
                return Err(Refusal::new(Code::UpstreamFailed, detail));
            }
        };
        names::strip_ours(&mut head.headers);
        correlate(&mut head.headers, correlation_id);
        let effects = handed(&mut head.extensions);
        if offer.take_dropped() && head.status.as_u16() < 400 {
            let detail = "the handler prepared writes and did not hand them back: nothing was \
                          written";
            return Err(Refusal::new(Code::UpstreamFailed, detail));
        }
        let body = match body {
            Buffered::Whole(bytes) => match spoken(&mut head, self.policy, request_id.as_ref()) {
                Some(said) => Given::Whole(said),
                None => Given::Whole(share.hold(bytes)),
            },
            Buffered::TooLarge(read, rest) | Buffered::NoRoom(read, rest) => {
                Given::Live(Body::live(Resumed { read: Some(share.hold(read)), rest }))
            }
            Buffered::Broken(error) => return Err(nothing_written(&error)),
        };
        let ending = ends(&said(&head, body.whole().map(|bytes| &**bytes)), self.policy);
        Ok(Answer { head, body, effects, ending })
    }

    /// What is recorded of an answer, with its effects.
    fn completion(&self, answer: &mut Answer) -> Completion {
        let head = &answer.head;
        let further = &self.policy.store_headers;
        let body = self.kept_of(&answer.body).cloned();
        let stored = StoredResponse::of(head.status, &head.headers, further, body);
        let outcome: Arc<[u8]> = stored.encode().into();
        Completion {
            digest: fingerprint_bytes(&outcome),
            outcome,
            retain_ms: Some(self.policy.retained_ms(answer.ending)),
            effects: std::mem::take(&mut answer.effects),
        }
    }

    /// Commits an answer with its effects and the key.
    async fn together(&self, completion: Completion) -> Result<OnceVerdict, Refusal> {
        let committing = self.door.engine.run_once(&self.admitted.claim, &completion);
        let committed = self.door.in_time(committing).await?;
        committed.map_err(|error| match error {
            // What is too large stays so: a retry could only be refused again.
            EngineError::Limit(limit) if limit.is_batch_size() => Refusal::new(
                Code::BodyTooLarge,
                format!("it does not fit into one commit, nothing was written: {limit}"),
            ),
            // The client's part was checked at the door: these bounds are the handler's.
            EngineError::Limit(limit) => Refusal::new(
                Code::UpstreamFailed,
                format!("the handler's writes can't be committed, nothing was written: {limit}"),
            ),
            error => no_answer(&error),
        })
    }

    /// The bytes that are stored of a body: none of one that is too large.
    fn kept_of<'b>(&self, body: &'b Given) -> Option<&'b Bytes> {
        body.whole().filter(|bytes| bytes.len() as u64 <= self.policy.max_stored_bytes)
    }

    async fn ran(&self, answer: Answer, record: &Record, was_expired: bool) -> Response<Body> {
        let is_kept = self.kept_of(&answer.body).is_some();
        let mut response = answer.into_response();
        if !is_kept {
            response.headers_mut().insert(names::STORED, HeaderValue::from_static("false"));
        }
        if was_expired {
            // It is committed: what becomes of the note changes nothing.
            let original = Original::of(record);
            let _ = self.door.note(Noted::Expired, original, self.admitted).await;
            mark_anew(&mut response, self.policy);
        }
        response
    }

    /// The answer of a handler that wrote blindly and lost: recorded, for a retry gets the same.
    async fn refused(
        &self,
        head: &Parts,
        refused: &GuardRefusal,
    ) -> Result<Response<Body>, Refusal> {
        let refusal = match refused.why {
            Misfit::VersionConflict => {
                Refusal::precondition_failed(Some(&ETag::of_version(refused.current)))
            }
            _ => {
                self.door
                    .refuse(Verdict::Refused(refused.clone()), self.admitted, self.policy)
                    .await
            }
        };
        let id = head.headers.get(names::X_REQUEST_ID).and_then(|id| id.to_str().ok());
        let answer = self.policy.dialect.speaker().refuse(&refusal, id.unwrap_or_default());
        let (head, body) = answer.into_parts();
        let ending = ends(&said(&head, Some(&body)), self.policy);
        let body = Given::Whole(body);
        let mut answer = Answer { head, body, effects: Effects::default(), ending };
        if !ending.is_stored() {
            return Ok(answer.into_response());
        }
        match self.together(self.completion(&mut answer)).await? {
            OnceVerdict::Ran { record, was_expired } => {
                Ok(self.ran(answer, &record, was_expired).await)
            }
            OnceVerdict::Not(verdict) => self.not_run(verdict).await,
        }
    }

    /// It did not run: a replay of whoever did, or the refusal that the verdict comes to.
    async fn not_run(&self, verdict: Verdict) -> Result<Response<Body>, Refusal> {
        match verdict {
            Verdict::Replay(stored) => {
                let stored = self.door.replay(&stored, self.admitted).await?;
                said_again(stored, self.door, self.policy, self.admitted)
            }
            Verdict::Mismatch(record) if record.key != self.admitted.claim.key => {
                let detail = "a job or a further key of this request is another one's already; \
                              nothing was written";
                Err(Refusal::new(Code::UpstreamFailed, detail))
            }
            other => Err(self.door.refuse(other, self.admitted, self.policy).await),
        }
    }
}

impl Answer {
    fn into_response(self) -> Response<Body> {
        let body = match self.body {
            Given::Whole(bytes) => Body::from(bytes),
            Given::Live(body) => body,
        };
        Response::from_parts(self.head, body)
    }
}

/// The service failed before anything was committed.
fn nothing_written(error: &BoxError) -> Refusal {
    let code = match error.downcast_ref::<ServiceError>() {
        Some(ServiceError::TimedOut(_)) => Code::UpstreamTimeout,
        _ => Code::UpstreamFailed,
    };
    Refusal::new(code, "the handler gave no whole answer; nothing was written, retry")
}
