//! The door: what a layer or a gateway needs to protect requests, and how verdicts become answers.
//!
//! Order: authenticate, size and shape and key, rate limit, permission, look-up, breaker and load
//! shedding, claim, handler, complete, answer. Nothing is stored of what is decided before the
//! claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, Version};
use onceward_core::decide::{Claim, Completion, Effects, Finish, Permit, Verdict};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::Key;
use onceward_core::note::{Note, Noted, Original};
use onceward_core::payload::KeptPayload;
use onceward_core::record::{Record, Stored};

use super::admit::Admitted;
use super::authorize::{Authorize, Authorized};
use super::body::{Body, End};
use super::document::policy_document;
use super::drain::Drain;
use super::gates::{DoorLimits, Gates, Pass, no_room};
use super::identity::{Caller, Identity, Unidentified};
use super::names;
use super::outcome::StoredResponse;
use super::policy::Policy;
use super::rate::RateLimit;
use super::refusal::{Code, Refusal};
use super::room::Whose;
use super::route::Routes;
use super::served::Denied;
use super::shadow::{Shadow, ShadowReport};
use super::unprotected::{Unmatched, key_headers};
#[cfg(feature = "redis")]
use crate::cache::RedisCache;
use crate::cache::Replays;
use crate::engine::{Engine, EngineError};
use crate::store::StoreError;

/// First pause before a completion that the store refused is tried again; doubles up to a second.
const COMPLETE_PAUSE: Duration = Duration::from_millis(20);
const COMPLETE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How many doors were made.
static DOORS: AtomicU64 = AtomicU64::new(0);
/// Bytes of the replay cache by default.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// Everything that protection needs. Build one and share it.
pub struct Door {
    pub(super) engine: Engine,
    pub(super) identity: Identity,
    pub(super) routes: Routes,
    pub(super) unmatched: Unmatched,
    pub(super) key_headers: Vec<HeaderName>,
    pub(super) cache: Replays,
    pub(super) authorize: Option<Authorize>,
    pub(super) leaf_key: [u8; 32],
    pub(super) gates: Gates,
    store_within: Duration,
    pub(super) shadow: Shadow,
    pub(super) document: Bytes,
    identity_headers: Option<(HeaderName, HeaderName)>,
    pub(super) drain: Drain,
    hidden_ends: bool,
    /// Tells doors apart.
    id: u64,
}

impl Door {
    /// A door in front of these routes.
    #[must_use]
    pub fn new(engine: Engine, identity: Identity, routes: Routes) -> Self {
        let limits = DoorLimits::default();
        Self {
            gates: Gates::new(&routes, limits),
            store_within: Duration::from_millis(limits.store_within_ms),
            shadow: Shadow::new(&routes, limits.shadow_keys_max),
            document: Bytes::from(policy_document(&routes).to_string()),
            unmatched: Unmatched::default(),
            key_headers: key_headers(&routes),
            engine,
            identity,
            routes,
            cache: Replays::new(CACHE_BYTES),
            authorize: None,
            leaf_key: [0; 32],
            identity_headers: None,
            drain: Drain::new(),
            hidden_ends: false,
            id: DOORS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Bounds what this door holds in memory and lets in at once.
    #[must_use]
    pub fn with_limits(mut self, limits: DoorLimits) -> Self {
        self.gates = Gates::new(&self.routes, limits).with_limit_of(self.gates);
        self.store_within = Duration::from_millis(limits.store_within_ms);
        self.shadow = Shadow::new(&self.routes, limits.shadow_keys_max);
        self
    }

    /// Bounds how often a caller may ask over all routes together, beside what a route's own policy
    /// says. Reads don't pass the door: their handlers ask [`Door::allows`].
    #[must_use]
    pub fn with_rate_limit(mut self, limit: RateLimit) -> Self {
        self.gates.limit_all(limit, DoorLimits::default().rate_callers_max);
        self
    }

    /// What becomes of requests that match no route. Default: they pass. With routes written, to
    /// refuse them is the sure way: who reads a path otherwise than it is read here has nothing to
    /// serve.
    #[must_use]
    pub fn with_unmatched(mut self, unmatched: Unmatched) -> Self {
        self.unmatched = unmatched;
        self
    }

    /// The routes that it stands in front of.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Takes one request off the caller's allowance over all routes together.
    ///
    /// # Errors
    /// When the caller asks too often.
    pub fn allows(&self, caller: &Caller) -> Result<(), Refusal> {
        self.gates.rate_all(caller)
    }

    /// Headers that tell the service tenant and caller as they were identified. What a client sends
    /// in them is removed, on every path. Not for an identity that is read from them.
    #[must_use]
    pub fn with_identity_headers(mut self, tenant: HeaderName, caller: HeaderName) -> Self {
        self.identity_headers = Some((tenant, caller));
        self
    }

    /// What shadow mode would have done so far.
    #[must_use]
    pub fn shadow_report(&self) -> ShadowReport {
        self.shadow.report()
    }

    /// What `/.well-known/idempotency-policy` publishes, as JSON.
    #[must_use]
    pub fn policy_document(&self) -> Bytes {
        self.document.clone()
    }

    /// Keys the hashes of payload leaves. All processes on one store must use the same secret.
    /// Default: no secret, which lets one who reads the store test guesses of values.
    #[must_use]
    pub fn with_secret(mut self, secret: [u8; 32]) -> Self {
        self.leaf_key = secret;
        self
    }

    /// Bounds the replay cache in memory. Default: 64 MiB.
    #[must_use]
    pub fn with_cache_bytes(mut self, bytes: u64) -> Self {
        self.cache.set_bytes(bytes);
        self
    }

    /// Keeps done outcomes in Redis too, for every process on the same store.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn with_redis(mut self, redis: RedisCache) -> Self {
        self.cache.set_redis(redis);
        self
    }

    /// The cache in Redis, if there is one.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn redis(&self) -> Option<&RedisCache> {
        self.cache.redis()
    }

    /// Forgets the outcome of a key in every cache: after it was erased. Other processes notice by
    /// themselves, within [`crate::cache::ERASED_SEEN_WITHIN`].
    pub async fn forget(&self, key: &Key) {
        self.cache.forget(key).await;
    }

    /// Asks before a claim and before a replay whether the caller may do this (B06); a refusal is
    /// passed on and nothing is stored. Without it a replay is as safe as the credential that
    /// identified the caller.
    #[must_use]
    pub fn with_authorize(
        mut self,
        authorize: impl for<'a> Fn(&'a Parts, &'a Caller) -> Authorized<'a> + Send + Sync + 'static,
    ) -> Self {
        self.authorize = Some(Authorize::new(authorize));
        self
    }

    /// Takes an HTTP/2 body that goes silent for a whole one.
    ///
    /// A client that resets its stream without an error goes silent in the middle of its body, and
    /// HTTP libraries take that for the end. So a request over HTTP/2 is claimed only when its body
    /// says that it has ended ([`http_body::Body::is_end_stream`]), as those of hyper and axum do;
    /// any other is refused as broken off. Bodies made from a stream, and those of some middleware
    /// (time-outs, decompression), never say so. Put such middleware behind this layer. Where that
    /// can't be, and something in front refuses half a body, this lets it pass.
    #[must_use]
    pub fn with_hidden_ends(mut self) -> Self {
        self.hidden_ends = true;
        self
    }

    /// Who says where the body of this request ends.
    pub(super) fn end_of(&self, head: &Parts) -> End {
        match head.version == Version::HTTP_2 && !self.hidden_ends {
            true => End::Told,
            false => End::Silent,
        }
    }

    /// Who sends this request; told to the service in the headers that it wants.
    pub(super) fn identify(&self, head: &mut Parts) -> Option<Caller> {
        self.judge(head).ok()
    }

    /// The same, with the reason why nobody can be told.
    pub(super) fn judge(&self, head: &mut Parts) -> Result<Caller, Unidentified> {
        // Identity is looked for once: by the first who asks.
        if let Some(Identified { door, caller }) = head.extensions.get()
            && *door == self.id
        {
            return caller.clone();
        }
        let caller = self.identity.judge(head);
        if let Some((tenant_header, caller_header)) = &self.identity_headers {
            head.headers.remove(tenant_header);
            head.headers.remove(caller_header);
            if let Ok(Caller { tenant, caller }) = &caller {
                let pairs = [(tenant_header, tenant), (caller_header, caller)];
                for (name, text) in pairs {
                    if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
                        head.headers.insert(name.clone(), value);
                    }
                }
            }
            head.extensions.insert(Identified { door: self.id, caller: caller.clone() });
        }
        caller
    }

    /// Whether identity has to be told on every path, protected or not.
    pub(super) fn tells_identity(&self) -> bool {
        self.identity_headers.is_some()
    }

    /// Asks whoever gives permission on this route.
    pub(super) async fn permits(
        &self,
        policy: &Policy,
        head: &Parts,
        caller: &Caller,
    ) -> Result<(), Response<Body>> {
        let Some(authorize) = policy.authorize.as_ref().or(self.authorize.as_ref()) else {
            return Ok(());
        };
        authorize.ask(head, caller).await.map_err(|refused| {
            let mut refused = refused.map(Body::from);
            refused.extensions_mut().insert(Denied);
            refused
        })
    }

    /// Who has to be known for a request without a key: who asks for permission, if anybody does.
    pub(super) fn judge_unkeyed(
        &self,
        policy: &Policy,
        head: &mut Parts,
    ) -> Result<Option<Caller>, Unidentified> {
        match policy.authorize.is_some() || self.authorize.is_some() {
            true => self.judge(head).map(Some),
            false => Ok(None),
        }
    }

    /// What closes this door.
    #[must_use]
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// Leave to claim, or what is there already: what is done is answered however the breaker
    /// stands.
    pub(super) async fn enter(
        &self,
        admitted: &Admitted,
        policy: &Policy,
        route: Option<usize>,
    ) -> Result<Result<Pass, StoredResponse>, Refusal> {
        if !self.gates.looks_first(route, &admitted.claim) {
            // The optimistic claim answers the same as a look would.
            return self.gates.enter(route, &admitted.claim).map(Ok);
        }
        match self.known(admitted, policy).await {
            Some(known) => known.map(Err),
            None => self.gates.enter(route, &admitted.claim).map(Ok),
        }
    }

    /// What a look alone tells, where no claim has to decide: the stored response, or the refusal
    /// that stands. None for what may run, runs, or can't be looked at.
    pub(super) async fn known(
        &self,
        admitted: &Admitted,
        policy: &Policy,
    ) -> Option<Result<StoredResponse, Refusal>> {
        match self.in_time(self.engine.look_before(&admitted.claim)).await {
            Ok(Ok(Some(Verdict::Replay(stored)))) => Some(self.replay(&stored, admitted).await),
            Ok(Ok(Some(verdict)))
                if !matches!(verdict, Verdict::Run { .. } | Verdict::Busy { .. }) =>
            {
                Some(Err(self.refuse(verdict, admitted, policy).await))
            }
            _ => None,
        }
    }

    /// How long a request waits until it may run, or knows that it may not: as long as its route
    /// waits for a duplicate, and as the store may take.
    pub(super) fn claim_within(&self, policy: &Policy) -> Duration {
        self.store_within + Duration::from_millis(policy.wait_ms)
    }

    /// What the store answers, if it does so in time. For what may be dropped half-way.
    pub(super) async fn in_time<T>(
        &self,
        asking: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<Result<T, EngineError>, Refusal> {
        let answered = tokio::time::timeout(self.store_within, asking).await;
        answered.map_err(|_| silent_store())
    }

    /// Claims, waiting for a running duplicate as long as the policy says; the wait ends early when
    /// `gone` resolves or the door closes.
    pub(super) async fn claim(
        &self,
        admitted: &Admitted,
        policy: &Policy,
        gone: impl Future<Output = ()>,
    ) -> Result<Verdict, Refusal> {
        let wait = Duration::from_millis(policy.wait_ms);
        let gone = async {
            tokio::select! {
                () = gone => {}
                () = self.drain.closing() => {}
            }
        };
        let claimed = self.engine.claim_waiting_unless(&admitted.claim, wait, gone).await;
        claimed.map_err(|error| no_answer(&error))
    }

    /// The refusal that a verdict other than run or replay comes to.
    pub(super) async fn refuse(
        &self,
        verdict: Verdict,
        admitted: &Admitted,
        policy: &Policy,
    ) -> Refusal {
        match verdict {
            Verdict::Busy { retry_after_ms } => {
                let detail = "another request with this key is running; retry with the same key";
                // Asking again when the lease ends would be too late for most: it ends earlier.
                Refusal::new(Code::InFlight, detail).after(retry_after_ms.min(2_000))
            }
            Verdict::Mismatch(record) => {
                let original = Original::of(&record);
                match self.note(Noted::Conflict, original, admitted).await {
                    Ok(()) => self.mismatch(&record, admitted, policy).await,
                    Err(refusal) => refusal,
                }
            }
            Verdict::Unknown(_) => Refusal::new(
                Code::OutcomeUnknown,
                "the first request was sent and its outcome is not known; \
                 it stays so until someone resolves it",
            ),
            Verdict::Refused(refusal) => Refusal::new(
                Code::OutOfOrder,
                format!("{}: the subject is at {}", refusal.why.as_str(), refusal.current),
            ),
            Verdict::Dead(_) => {
                Refusal::new(Code::OutcomeUnknown, "every attempt failed; it will not run again")
            }
            Verdict::Run { .. } | Verdict::Replay(_) => {
                Refusal::new(Code::Damaged, "an answer was taken for a refusal")
            }
        }
    }

    async fn mismatch(&self, record: &Record, admitted: &Admitted, policy: &Policy) -> Refusal {
        let mut refusal = Refusal::new(
            Code::PayloadMismatch,
            "send the original payload with this key, or use a new key for a new request",
        );
        // What differs is a courtesy: without it the refusal stands.
        let (now, found) = match self.engine.look_at(&record.key).await {
            Ok((now, found)) => (Some(now), found),
            Err(_) => (self.engine.now_about(), None),
        };
        let kept = found
            .and_then(|found| found.payload)
            .and_then(|bytes| KeptPayload::decode(&bytes).ok())
            .unwrap_or(KeptPayload::None);
        let mut conflict = admitted.conflict((&record.fingerprint, &kept), policy, &self.leaf_key);
        conflict.original_at = record.created_at;
        let end = record.expires_at.unwrap_or(record.updated_at.plus(policy.retain_ms));
        // Rounded up: who comes back then finds it expired.
        conflict.expires_in_s = end.since(now.unwrap_or(record.updated_at)).div_ceil(1_000);
        refusal.conflict = Some(Box::new(conflict));
        refusal
    }

    /// The stored response of a done record, told to the audit.
    pub(super) async fn replay(
        &self,
        stored: &Stored,
        admitted: &Admitted,
    ) -> Result<StoredResponse, Refusal> {
        let outcome = stored.outcome.as_deref().unwrap_or_default();
        let response = decode(outcome)?;
        let original = Original::of(&stored.record);
        self.cache.put(&self.engine, stored, admitted.sight, original.clone());
        self.note(Noted::Replay, original, admitted).await?;
        Ok(response)
    }

    /// Tells the audit what came of a request that wrote nothing of its own (A26, E06).
    pub(super) async fn note(
        &self,
        noted: Noted,
        original: Arc<Original>,
        admitted: &Admitted,
    ) -> Result<(), Refusal> {
        let Claim { fingerprint, trace, .. } = &admitted.claim;
        let note = Note { noted, original, fingerprint: *fingerprint, trace: trace.clone() };
        self.engine.note(note).await.map_err(|error| no_answer(&error))
    }

    /// Records what the handler answered.
    ///
    /// Tried until the lease ends: an answer that was not recorded is never sent.
    pub(super) async fn finish(
        &self,
        permit: &Permit,
        response: &StoredResponse,
        retain_ms: u64,
        lease_ends: Instant,
    ) -> Result<(), Lost> {
        let outcome: Arc<[u8]> = response.encode().into();
        let completion = Completion {
            digest: fingerprint_bytes(&outcome),
            outcome,
            retain_ms: Some(retain_ms),
            effects: Effects::default(),
        };
        let mut pause = COMPLETE_PAUSE;
        loop {
            match self.engine.complete(permit, &completion).await {
                Ok(Finish::Ok | Finish::Dead) => return Ok(()),
                Ok(Finish::Lost | Finish::Refused(_) | Finish::JobMismatch(_)) => {
                    return Err(Lost::Overtaken);
                }
                Err(error) if !error.is_retryable() || Instant::now() + pause > lease_ends => {
                    return Err(Lost::Refused(not_recorded(&error)));
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(COMPLETE_PAUSE_MAX);
        }
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// What a door found out about who sends a request; another one may know callers by other things.
/// Only this file can make one.
#[derive(Clone)]
struct Identified {
    door: u64,
    caller: Result<Caller, Unidentified>,
}

/// Why an answer could not be recorded.
pub(super) enum Lost {
    /// The lease lapsed and someone else was granted: theirs is the answer.
    Overtaken,
    /// The store gives no answer.
    Refused(Refusal),
}

/// Reads a stored response.
pub(super) fn decode(outcome: &[u8]) -> Result<StoredResponse, Refusal> {
    StoredResponse::from_outcome(outcome)
        .map_err(|error| Refusal::new(Code::Damaged, error.to_string()))
}

/// A replayed response, as far as it is the same in every dialect.
pub(super) fn replayed(
    stored: StoredResponse,
    door: &Door,
    whose: Whose<'_>,
) -> Result<Response<Bytes>, Refusal> {
    let Some(body) = stored.body else {
        let detail = "the request was done; its response was not stored, because it was too large, \
                      was streamed, or is not known";
        return Err(Refusal::new(Code::ResponseNotStored, detail));
    };
    // It stays in memory for as long as the client takes to read it.
    let mut share = door.gates.replay_share(whose);
    if !share.grow(body.len() as u64) {
        return Err(no_room());
    }
    let mut response = Response::new(share.hold(body));
    *response.status_mut() = stored.status;
    *response.headers_mut() = stored.headers;
    names::strip_ours(response.headers_mut());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The refusal for a store that says nothing for too long. What was asked may still happen.
pub(super) fn silent_store() -> Refusal {
    let detail = "the store gave no answer in time; retry with the same key";
    Refusal::new(Code::StoreUnavailable, detail)
}

/// The refusal for a store that gives no answer.
pub(super) fn no_answer(error: &EngineError) -> Refusal {
    match error {
        EngineError::Limit(limit) if limit.is_batch_size() => {
            Refusal::new(Code::BodyTooLarge, format!("it does not fit into one commit: {limit}"))
        }
        EngineError::Limit(limit) => Refusal::new(Code::BadRequest, limit.to_string()),
        EngineError::Store(StoreError::Corrupt(_)) => {
            Refusal::new(Code::Damaged, "what is stored for this key is damaged")
        }
        error if error.nothing_done() => {
            Refusal::new(Code::StoreUnavailable, "nothing was executed; retry with the same key")
        }
        _ => Refusal::new(
            Code::StoreUnavailable,
            "the store's answer was lost; retry with the same key",
        ),
    }
}

/// The refusal when the handler has run, and how it ended can't be recorded or read.
pub(super) fn not_recorded(error: &EngineError) -> Refusal {
    match error {
        EngineError::Limit(_) | EngineError::Store(StoreError::Corrupt(_)) => no_answer(error),
        _ => Refusal::new(
            Code::StoreUnavailable,
            "the request has run, but how it ended could not be recorded; retry with the same key",
        ),
    }
}
