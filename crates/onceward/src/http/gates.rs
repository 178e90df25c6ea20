//! Gates before a claim: rate limit, circuit breaker, load shedding.
//!
//! They refuse before the store is touched, so that nothing is recorded of what they refuse (A15,
//! A16). This file brings them the time and gives back what was taken, whatever happens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::StatusCode;
use onceward_core::decide::Claim;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::breaker::{Breaker, Ended, Leave};
use super::crowd::{Crowd, Within};
use super::identity::Caller;
use super::policy::Policy;
use super::rate::{Limiter, RateLimit};
use super::refusal::{Code, Refusal};
use super::room::{Room, Share, Whose};
use super::route::Routes;

/// Bounds of a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DoorLimits {
    /// Protected requests at once, those that wait included. Default: 100,000.
    pub in_flight_max: usize,
    /// The same of one tenant. Default: 10,000.
    pub tenant_in_flight_max: usize,
    /// Bytes of protected requests that are held in memory, all together; a tenant has at most half
    /// of that beside its first. Default: 256 MiB.
    pub body_bytes_max: u64,
    /// Bytes of first answers to them that are held in memory, all together; a tenant has at most
    /// half of that beside its first, and one caller of many in it three quarters of the half.
    /// They are held until the client has taken them: a server should cut who does not. Default:
    /// 256 MiB.
    pub answer_bytes_max: u64,
    /// The same of replays, so that neither is in the other's way. Default: 256 MiB.
    pub replay_bytes_max: u64,
    /// How long a request waits for the store, beside its route's `wait`. Default: 3 s.
    pub store_within_ms: u64,
    /// Callers that one rate limit remembers. Default: 100,000.
    pub rate_callers_max: usize,
    /// Keys that shadow mode remembers. Default: 100,000.
    pub shadow_keys_max: usize,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self {
            in_flight_max: 100_000,
            tenant_in_flight_max: 10_000,
            body_bytes_max: 256 << 20,
            answer_bytes_max: 256 << 20,
            replay_bytes_max: 256 << 20,
            store_within_ms: 3_000,
            rate_callers_max: 100_000,
            shadow_keys_max: 100_000,
        }
    }
}

/// The gates of every route.
pub(super) struct Gates {
    written: Vec<Gate>,
    unwritten: Gate,
    /// The limit over all routes together.
    limiter: Option<Limiter>,
    in_flight: Arc<Semaphore>,
    crowd: Arc<Crowd>,
    bodies: Arc<Room>,
    answers: Arc<Room>,
    replays: Arc<Room>,
    since: Instant,
}

/// The gate of one route.
struct Gate {
    limiter: Option<Limiter>,
    breaker: Option<Arc<Mutex<Breaker>>>,
}

impl Gates {
    /// Gates for these routes.
    pub(super) fn new(routes: &Routes, limits: DoorLimits) -> Self {
        let gate = |policy: &Policy| Gate {
            limiter: policy.rate_limit.map(|limit| Limiter::new(limit, limits.rate_callers_max)),
            breaker: policy.breaker.map(|policy| Arc::new(Mutex::new(Breaker::new(policy)))),
        };
        Self {
            written: routes.list().map(|(_, policy)| gate(policy)).collect(),
            unwritten: gate(routes.unwritten()),
            limiter: None,
            in_flight: Arc::new(Semaphore::new(limits.in_flight_max.min(Semaphore::MAX_PERMITS))),
            crowd: Crowd::new(limits.tenant_in_flight_max),
            bodies: Room::new(limits.body_bytes_max),
            answers: Room::new(limits.answer_bytes_max),
            replays: Room::new(limits.replay_bytes_max),
            since: Instant::now(),
        }
    }

    /// A share of the room for requests' bodies, with nothing in it yet.
    pub(super) fn body_share(&self, tenant: &str) -> Share {
        Share::of(&self.bodies, Whose::tenant(tenant))
    }

    /// A share of the room for first answers, with nothing in it yet.
    pub(super) fn answer_share(&self, whose: Whose<'_>) -> Share {
        Share::of(&self.answers, whose)
    }

    /// A share of the room for replays, with nothing in it yet.
    pub(super) fn replay_share(&self, whose: Whose<'_>) -> Share {
        Share::of(&self.replays, whose)
    }

    /// With a limit over all routes together.
    pub(super) fn limit_all(&mut self, limit: RateLimit, callers_max: usize) {
        self.limiter = Some(Limiter::new(limit, callers_max));
    }

    /// With the limit over all routes that others had.
    pub(super) fn with_limit_of(mut self, others: Self) -> Self {
        self.limiter = others.limiter;
        self
    }

    /// Whether callers have an allowance at all.
    pub(super) fn limits_rate(&self, route: Option<usize>) -> bool {
        self.limiter.is_some() || self.gate(route).limiter.is_some()
    }

    /// Takes one request off the caller's allowances.
    pub(super) fn rate(&self, route: Option<usize>, caller: &Caller) -> Result<(), Refusal> {
        self.rate_all(caller)?;
        self.rate_route(route, caller)
    }

    /// As [`Gates::rate`], of what this route alone allows: for routes that take from nobody else.
    pub(super) fn rate_route(&self, route: Option<usize>, caller: &Caller) -> Result<(), Refusal> {
        self.ask(self.gate(route).limiter.as_ref(), caller)
    }

    /// Takes one request off the allowance over all routes together.
    pub(super) fn rate_all(&self, caller: &Caller) -> Result<(), Refusal> {
        self.ask(self.limiter.as_ref(), caller)
    }

    fn ask(&self, limiter: Option<&Limiter>, caller: &Caller) -> Result<(), Refusal> {
        let Some(limiter) = limiter else { return Ok(()) };
        let now_ns = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        limiter.ask(caller, now_ns).map_err(|wait_ns| {
            let detail = "you ask more often than this route allows; retry with the same key";
            Refusal::new(Code::RateLimited, detail).after(wait_ns.div_ceil(1_000_000))
        })
    }

    /// Whether a look at what is there must come before [`Gates::enter`]: a request that is done is
    /// answered however the breaker stands and however full it is.
    pub(super) fn looks_first(&self, route: Option<usize>, claim: &Claim) -> bool {
        let breaker = self.gate(route).breaker.as_ref();
        breaker.is_some_and(|breaker| !lock(breaker).is_closed())
            || self.in_flight.available_permits() == 0
            || self.answers.is_full(Whose::of(&claim.key, &claim.trace))
            || self.crowd.is_full(claim.key.tenant_column())
    }

    /// Leave to claim and run.
    pub(super) fn enter(&self, route: Option<usize>, claim: &Claim) -> Result<Pass, Refusal> {
        let trial = self.try_breaker(route)?;
        let within = self.crowd.enter(claim.key.tenant_column()).ok_or_else(|| {
            let detail = "your organisation has too many requests under way; retry with the same \
                          key";
            Refusal::new(Code::RateLimited, detail)
        })?;
        let slot = self.in_flight.clone().try_acquire_owned().map_err(|_| {
            Refusal::new(Code::Shed, "too many requests at once; retry with the same key")
        })?;
        if self.answers.is_full(Whose::of(&claim.key, &claim.trace)) {
            // Its answer could not be kept: better not to begin.
            return Err(no_room());
        }
        Ok(Pass { trial, _slot: Some((slot, within)) })
    }

    /// Leave to run without a claim: the breaker alone is asked.
    pub(super) fn enter_unclaimed(&self, route: Option<usize>) -> Result<Pass, Refusal> {
        Ok(Pass { trial: self.try_breaker(route)?, _slot: None })
    }

    fn try_breaker(&self, route: Option<usize>) -> Result<Option<Trial>, Refusal> {
        let Some(breaker) = &self.gate(route).breaker else { return Ok(None) };
        let leave = lock(breaker).ask(self.now_ms()).map_err(|wait_ms| {
            let detail = "the service has failed time after time and is left alone for a while; \
                          nothing was executed";
            Refusal::new(Code::CircuitOpen, detail).after(wait_ms)
        })?;
        Ok(Some(Trial { breaker: breaker.clone(), leave: Some(leave), since: self.since }))
    }

    fn gate(&self, route: Option<usize>) -> &Gate {
        route.and_then(|route| self.written.get(route)).unwrap_or(&self.unwritten)
    }

    fn now_ms(&self) -> u64 {
        elapsed_ms(self.since)
    }
}

/// There is no room for another answer.
pub(super) fn no_room() -> Refusal {
    let detail = "too many bytes of answers are held already; retry with the same key";
    Refusal::new(Code::Shed, detail)
}

/// Leave to run, given back when it is dropped.
pub(super) struct Pass {
    trial: Option<Trial>,
    _slot: Option<(OwnedSemaphorePermit, Within)>,
}

impl Pass {
    /// The service answered, or it gave no whole answer.
    pub(super) fn ended(&mut self, status: Option<StatusCode>) {
        if let Some(mut trial) = self.trial.take() {
            let well = status.is_some_and(|status| !status.is_server_error());
            trial.tell(if well { Ended::Well } else { Ended::Badly });
        }
    }
}

struct Trial {
    breaker: Arc<Mutex<Breaker>>,
    leave: Option<Leave>,
    since: Instant,
}

impl Trial {
    fn tell(&mut self, ended: Ended) {
        if let Some(leave) = self.leave.take() {
            lock(&self.breaker).tell(leave, ended, elapsed_ms(self.since));
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // A handler that panics has failed; one that never ran says nothing.
        self.tell(if std::thread::panicking() { Ended::Badly } else { Ended::Unused });
    }
}

fn lock(breaker: &Mutex<Breaker>) -> std::sync::MutexGuard<'_, Breaker> {
    breaker.lock().unwrap_or_else(PoisonError::into_inner)
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
