//! Shadow mode: reports what would have been done, and does nothing of it.
//!
//! It judges from a bounded memory of its own and never touches the store; every request goes on to
//! the service as it came. What it says is close, not exact: it knows one process, and forgets. The
//! rate limits of its routes are counted, since nobody else takes from them; those over all routes,
//! the breaker and whoever gives permission are not asked.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body as HttpBody, SizeHint};
use onceward_core::decide::Claim;
use onceward_core::fingerprint::Fingerprint;
use onceward_core::key::Key;
use onceward_core::outcome_policy::Ending;
use onceward_core::record::OnAbandoned;
use quick_cache::unsync::Cache;
use tower_service::Service;

use super::admit::{Admitted, Brought, admit, brought, required_if_match};
use super::body::{Body, BoxError, Buffered, buffer_until};
use super::door::Door;
use super::identity::Caller;
use super::pass::pass;
use super::policy::{MissingKey, Mode, Policy};
use super::refusal::{Code, Refusal};
use super::room::Share;
use super::route::{Place, Routes};
use super::said::{ends, said};

/// What shadow mode would have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Would {
    /// Run it.
    Run,
    /// Replay the first answer.
    Replay,
    /// Let it pass without a key.
    Pass,
    /// Refuse it.
    Refuse(Code),
    /// Nobody can say: the length of the body was not known.
    Unseen,
}

impl Would {
    fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Replay => "replay",
            Self::Pass => "pass",
            Self::Refuse(code) => code.meaning().code,
            Self::Unseen => "unseen",
        }
    }
}

/// Shadow mode: the request goes on as it came, and what would have been done is counted.
pub(super) async fn shadow<S, B, R>(
    door: &Door,
    inner: S,
    (mut head, body): (Parts, B),
    (policy, place): (&Policy, &Place),
    request_id: &str,
) -> Result<Response<Body>, Refusal>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + From<Bytes> + Unpin,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let caller = door.identify(&mut head);
    let tenant = caller.as_ref().map_or("", |caller| &*caller.tenant);
    let mut share = door.gates.body_share(tenant);
    let told = body.size_hint();
    let key = brought(&head.headers, policy);
    let unkeyed = matches!((&key, policy.missing_key), (Ok(Brought::Nothing), MissingKey::Allow));
    let would = if unkeyed {
        Some(unkeyed_would(door, &head, told.lower(), (policy, place), caller.as_ref()))
    } else {
        unread_would(&told, policy, caller.is_some(), &mut share)
    };
    let (Some(caller), None) = (caller, would) else {
        door.shadow.count(place.route, would.unwrap_or(Would::Refuse(Code::AuthRequired)));
        return Ok(pass(inner, Request::from_parts(head, body), request_id).await);
    };
    let end = door.end_of(&head);
    let body = match buffer_until(end, body, policy.max_request_bytes, &mut share).await {
        Buffered::Whole(body) => share.hold(body),
        // Its length was known: the client went away in the middle of it.
        Buffered::TooLarge(..) | Buffered::NoRoom(..) | Buffered::Broken(_) => {
            return Err(Refusal::new(Code::BadRequest, "the body broke off"));
        }
    };
    let admitted = key.and_then(|key| {
        let admitted = admit(&head, &body, (policy, place), &caller, key)?;
        door.gates.rate_route(place.route, &caller)?;
        Ok(admitted)
    });
    let (would, run) = match admitted {
        Err(refusal) => (Would::Refuse(refusal.code), None),
        Ok(Admitted { claim, .. }) => match door.shadow.judge(&claim, Instant::now()) {
            Would::Run => (Would::Run, Some(ShadowRun::new(&door.shadow, &claim))),
            other => (other, None),
        },
    };
    door.shadow.count(place.route, would);
    let response = pass(inner, Request::from_parts(head, B::from(body)), request_id).await;
    let (head, body) = response.into_parts();
    if let Some(run) = run {
        // Of what is passed on as it comes, the head has to do.
        run.ended(policy, ends(&said(&head, None), policy), Instant::now());
    }
    Ok(Response::from_parts(head, body))
}

/// What would be done with a request that brings no key where none is needed.
fn unkeyed_would(
    door: &Door,
    head: &Parts,
    told_bytes: u64,
    (policy, place): (&Policy, &Place),
    caller: Option<&Caller>,
) -> Would {
    if place.route.is_some() && told_bytes > policy.max_request_bytes {
        return Would::Refuse(Code::BodyTooLarge);
    }
    let allowed = required_if_match(head, policy).and_then(|()| match caller {
        Some(caller) => door.gates.rate_route(place.route, caller),
        None => Ok(()),
    });
    allowed.map_or_else(|refusal| Would::Refuse(refusal.code), |()| Would::Pass)
}

/// What is known of a request before its body is read; none when it has to be.
fn unread_would(
    told: &SizeHint,
    policy: &Policy,
    is_known: bool,
    share: &mut Share,
) -> Option<Would> {
    if !is_known {
        return Some(Would::Refuse(Code::AuthRequired));
    }
    // Only a body of known length can be looked at and still be passed on whole.
    match told.exact() {
        _ if told.lower() > policy.max_request_bytes => Some(Would::Refuse(Code::BodyTooLarge)),
        None => Some(Would::Unseen),
        // What others hold already counts here too; enforced, it would be shed.
        Some(bytes) if !share.reserve(bytes) => Some(Would::Refuse(Code::Shed)),
        Some(_) => None,
    }
}

/// Something that runs under shadow mode; forgotten when nobody says how it ended.
struct ShadowRun<'s> {
    shadow: &'s Shadow,
    key: Option<Key>,
}

impl<'s> ShadowRun<'s> {
    /// The run of a claim that was judged so.
    fn new(shadow: &'s Shadow, claim: &Claim) -> Self {
        Self { shadow, key: Some(claim.key.clone()) }
    }

    /// It was answered.
    fn ended(mut self, policy: &Policy, ending: Ending, now: Instant) {
        let for_ms = |ms| now.checked_add(Duration::from_millis(ms)).map(Kept::Until);
        let kept = match (ending, policy.on_abandoned) {
            (Ending::Success | Ending::Error, _) => for_ms(policy.retained_ms(ending)),
            (Ending::Unknown, OnAbandoned::Hold) => Some(Kept::Held),
            (Ending::Unknown, OnAbandoned::Rerun) | (Ending::Released, _) => None,
        };
        if let Some(key) = self.key.take() {
            self.shadow.ended(&key, kept);
        }
    }
}

impl Drop for ShadowRun<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.shadow.ended(&key, None);
        }
    }
}

/// What shadow mode would have done so far, per route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShadowReport {
    /// Routes in shadow mode, in their order.
    pub routes: Vec<ShadowRoute>,
    /// Keys that were forgotten for want of memory: their retries count as `run`.
    pub forgotten: u64,
}

/// What shadow mode would have done on one route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShadowRoute {
    /// Method and template; `*` for routes that nobody wrote.
    pub endpoint: String,
    /// How often each verdict: `run`, `replay`, `pass` (no key, and none needed), `unseen` (a body
    /// of unknown length), or the code of a refusal.
    pub verdicts: BTreeMap<&'static str, u64>,
}

/// The memory.
pub(super) struct Shadow(Mutex<Memory>);

struct Memory {
    keys: Cache<Key, Remembered>,
    /// By route; the last one is for routes that nobody wrote.
    counts: Vec<(String, bool, BTreeMap<&'static str, u64>)>,
    remembered: u64,
}

#[derive(Clone, Copy)]
struct Remembered {
    fingerprint: Fingerprint,
    kept: Kept,
}

/// How a key would be kept.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    /// Its request runs.
    Running,
    /// Its answer would be stored.
    Until(Instant),
    /// Nobody knows how it ended, and it would wait for a person.
    Held,
}

impl Shadow {
    /// A memory of at most `keys_max` keys.
    pub(super) fn new(routes: &Routes, keys_max: usize) -> Self {
        let mut counts: Vec<_> = routes
            .list()
            .map(|(endpoint, policy)| (endpoint, policy.mode == Mode::Shadow, BTreeMap::new()))
            .collect();
        let unwritten = counts.is_empty() && routes.unwritten().mode == Mode::Shadow;
        counts.push(("*".into(), unwritten, BTreeMap::new()));
        Self(Mutex::new(Memory { keys: Cache::new(keys_max), counts, remembered: 0 }))
    }

    /// Judges a claim that would be made now.
    fn judge(&self, claim: &Claim, now: Instant) -> Would {
        let mut memory = self.lock();
        let found = memory.keys.get(&claim.key).copied();
        let is_live = |known: &Remembered| !matches!(known.kept, Kept::Until(at) if at <= now);
        let known = found.filter(is_live);
        match known {
            Some(known) if known.fingerprint != claim.fingerprint => {
                Would::Refuse(Code::PayloadMismatch)
            }
            Some(Remembered { kept: Kept::Running, .. }) => Would::Refuse(Code::InFlight),
            Some(Remembered { kept: Kept::Held, .. }) => Would::Refuse(Code::OutcomeUnknown),
            Some(_) => Would::Replay,
            None => {
                let running = Remembered { fingerprint: claim.fingerprint, kept: Kept::Running };
                memory.keys.insert(claim.key.clone(), running);
                memory.remembered += u64::from(found.is_none());
                Would::Run
            }
        }
    }

    /// What ran has ended: remembered as long as it would be kept, or forgotten, as when nobody
    /// heard how.
    fn ended(&self, key: &Key, kept: Option<Kept>) {
        let mut memory = self.lock();
        let Some(kept) = kept else {
            if memory.keys.remove(key).is_some() {
                memory.remembered = memory.remembered.saturating_sub(1);
            }
            return;
        };
        if let Some(mut known) = memory.keys.get_mut(key) {
            known.kept = kept;
        }
    }

    /// Counts a verdict.
    fn count(&self, route: Option<usize>, would: Would) {
        let mut memory = self.lock();
        let last = memory.counts.len() - 1;
        let (_, _, verdicts) = &mut memory.counts[route.unwrap_or(last).min(last)];
        *verdicts.entry(would.as_str()).or_default() += 1;
    }

    /// What would have been done so far.
    pub(super) fn report(&self) -> ShadowReport {
        let memory = self.lock();
        let shadowed = memory.counts.iter().filter(|(_, shadowed, _)| *shadowed);
        let routes = shadowed.map(|(endpoint, _, verdicts)| ShadowRoute {
            endpoint: endpoint.clone(),
            verdicts: verdicts.clone(),
        });
        let forgotten = memory.remembered.saturating_sub(memory.keys.len() as u64);
        ShadowReport { routes: routes.collect(), forgotten }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
