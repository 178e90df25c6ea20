//! A handler: claims an event under its order, runs the work, and records how it ended.
//!
//! Rule: whatever is delivered, how often and in which order, an event's effect is recorded once,
//! and never after that of a higher number. Work in our store needs no claim of its own: the commit
//! that brings the effect is the claim. A failed attempt is recorded and tried again after a while;
//! the last one leaves a dead letter that carries the event.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
#[cfg(feature = "sqlite")]
use onceward_core::decide::Completion;
use onceward_core::decide::{Claim, Effects, Finish, Refusal, Retry, Verdict};
use onceward_core::fingerprint::FingerprintBuilder;
use onceward_core::guard::{Guard, Misfit, Rule};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::{LimitError, MAX_POSITION, in_range};
use onceward_core::record::OnDead;
use onceward_core::retry::Backoff;
use onceward_core::zoo::{Bug, planted};
#[cfg(feature = "sqlite")]
use rusqlite::Connection;

use super::letter::write_event;
use super::options::{HandlerOptions, MAX_HANDLER_BYTES, Order};
use super::seen::{SeenEvent, trace};
use super::work::{Way, Work};
use super::{HandlerError, millis};
#[cfg(feature = "sqlite")]
use crate::engine::OwnSqlError;
use crate::engine::{Engine, EngineError, OnceVerdict, random_u64};
use crate::events::Event;
use crate::points::{Point, reach};
use crate::worker::Done;

/// How often work in our store runs again because others wrote what it writes.
pub(super) const OVERTAKEN_MAX: u32 = 32;
/// Lease of a claim that is only made to record a failure: a process killed in between holds up
/// its aggregate for this long.
const FAILING_LEASE_MS: u64 = 5_000;
/// Aggregates whose position is remembered, to save a look; then all are forgotten.
const POSITIONS_MAX: usize = 65_536;

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// Its effect is there, and that is recorded.
    Done,
    /// It had been done before.
    Duplicate,
    /// The aggregate has passed its number: it has no effect any more.
    Stale {
        /// The last number.
        current: u64,
    },
    /// A lower number of its aggregate has to come first.
    Gap {
        /// The last number.
        current: u64,
    },
    /// Someone else is at it, or its next attempt is not due.
    Busy {
        /// When it is worth asking again.
        retry_after: Duration,
    },
    /// This attempt failed; that is recorded.
    Failed {
        /// Why.
        error: String,
        /// When the next one is due.
        retry_after: Duration,
    },
    /// It is a dead letter.
    Dead {
        /// Why.
        error: String,
        /// Whether its aggregate goes on without it.
        passed: bool,
    },
    /// Its id was used by an event with other contents: this one has no effect.
    Mismatch,
}

impl Handled {
    /// Whether nothing more is to be done about it.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Done | Self::Duplicate | Self::Stale { .. } | Self::Mismatch => true,
            Self::Dead { passed, .. } => *passed,
            Self::Gap { .. } | Self::Busy { .. } | Self::Failed { .. } => false,
        }
    }
}

/// How often each thing has happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Effects that were recorded.
    pub done: u64,
    /// Events that had been done before.
    pub duplicates: u64,
    /// Events whose number was passed.
    pub stale: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Events that became dead letters.
    pub dead: u64,
    /// Events whose id was used with other contents.
    pub mismatches: u64,
}

/// One handler. Cheap to clone.
#[derive(Clone)]
pub struct Handler(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) engine: Engine,
    pub(super) name: String,
    pub(super) options: HandlerOptions,
    pub(super) work: Work,
    space: String,
    positions: Mutex<HashMap<Subject, u64>>,
    /// Attempts at events while the registry is switched off.
    tries: Mutex<HashMap<Key, u32>>,
    counters: [AtomicU64; 6],
}

impl Handler {
    /// A handler of this name: what it did is kept under it.
    ///
    /// # Errors
    /// When name or options break their bounds.
    pub fn new(
        engine: Engine,
        name: impl Into<String>,
        options: HandlerOptions,
        work: Work,
    ) -> Result<Self, LimitError> {
        let name = name.into();
        options.validate()?;
        if name.is_empty() || name.len() > MAX_HANDLER_BYTES {
            let bound = format!("1 to {MAX_HANDLER_BYTES} bytes");
            return Err(LimitError::new("handler", format!("{} bytes", name.len()), bound));
        }
        Ok(Self(Arc::new(Inner {
            engine,
            space: order_space(&name),
            name,
            options,
            work,
            positions: Mutex::default(),
            tries: Mutex::default(),
            counters: Default::default(),
        })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its policy.
    #[must_use]
    pub fn options(&self) -> &HandlerOptions {
        &self.0.options
    }

    /// The engine that it works with.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let [done, duplicates, stale, failed, dead, mismatches] =
            [0, 1, 2, 3, 4, 5].map(|of: usize| self.0.counters[of].load(Ordering::Relaxed));
        Counts { done, duplicates, stale, failed, dead, mismatches }
    }

    /// The registry's key of an event.
    ///
    /// # Errors
    /// When a part breaks its bound.
    pub fn key(&self, event: &Event) -> Result<Key, LimitError> {
        Key::new(Kind::Event, &event.tenant, &self.0.name, &event.event_id)
    }

    /// The mark that keeps the order of an aggregate: its position is the last number handled.
    ///
    /// # Errors
    /// When a part breaks its bound.
    pub fn subject(&self, tenant: &str, aggregate_id: &str) -> Result<Subject, LimitError> {
        Subject::new(tenant, &self.0.space, aggregate_id)
    }

    /// Handles an event that was delivered, for the first time or again, in or out of order.
    ///
    /// # Errors
    /// When the registry gives no answer: the event may or may not be done, and is to be delivered
    /// again.
    pub async fn handle(&self, event: &Event) -> Result<Handled, EngineError> {
        self.handle_shared(Arc::new(event.clone())).await
    }

    pub(super) async fn handle_shared(&self, event: Arc<Event>) -> Result<Handled, EngineError> {
        let claim = self.claim(&event)?;
        self.run(event, claim).await
    }

    /// Handles an event whose claim is made: as [`Handler::handle`] makes it, or without an order.
    pub(super) async fn run(
        &self,
        event: Arc<Event>,
        claim: Claim,
    ) -> Result<Handled, EngineError> {
        let inner = &self.0;
        let handled = match (&inner.work.0, inner.options.registry) {
            (Way::InStore(work), true) => {
                let work = |seen| work(seen);
                self.in_store(&event, &claim, work).await
            }
            (Way::InStoreMany(work), true) => {
                self.in_store(&event, &claim, |seen| Way::alone(work, seen)).await
            }
            (Way::Elsewhere(work), true) => {
                let work = |attempt| work(attempt);
                self.elsewhere(&event, claim.clone(), work).await
            }
            #[cfg(feature = "sqlite")]
            (Way::OwnSql(work), registry) => {
                self.own_sql(&event, &claim, work.clone(), registry).await
            }
            (_, false) => self.unregistered(&event, &claim).await,
        }?;
        self.note(&claim, &handled);
        Ok(handled)
    }

    /// The claim of an event under its order.
    pub(super) fn claim(&self, event: &Event) -> Result<Claim, LimitError> {
        let fingerprint = FingerprintBuilder::new()
            .part("aggregate_id", event.aggregate_id.as_bytes())
            .part("sequence_number", &event.sequence_number.to_be_bytes())
            .part("kind", event.kind.as_bytes())
            .part("payload", &event.payload)
            .finish();
        let mut claim = Claim::new(self.key(event)?, fingerprint);
        claim.terms = self.0.options.terms();
        claim.owner = self.0.options.owner.as_deref().map(Into::into);
        claim.trace = trace(event);
        claim.audited = self.0.options.audited;
        let position = event.sequence_number;
        // The first is 1: an event before it would be taken for one that was handled long ago.
        in_range("sequence_number", position, 1, MAX_POSITION)?;
        let rule = match self.0.options.order {
            Order::Next if planted(Bug::AboveForPlainEffect) => Rule::Above { position },
            Order::Next => Rule::Next { position },
            Order::Above => Rule::Above { position },
        };
        claim.guard = Some(Guard::new(self.subject(&event.tenant, &event.aggregate_id)?, rule)?);
        Ok(claim)
    }

    async fn in_store<F>(
        &self,
        event: &Arc<Event>,
        claim: &Claim,
        work: impl Fn(SeenEvent) -> F,
    ) -> Result<Handled, EngineError>
    where
        F: Future<Output = Result<Done, HandlerError>>,
    {
        let engine = &self.0.engine;
        if !self.comes_next(claim)
            && let Some(Some(verdict)) = engine.stand(&[claim]).await?.pop()
        {
            return Ok(answered(verdict));
        }
        for _ in 0..OVERTAKEN_MAX {
            reach(Point::BeforeEffect);
            let seen = SeenEvent { engine: engine.clone(), event: event.clone() };
            let done = match caught(work(seen)).await {
                Ok(done) => done,
                Err(error) => return self.failed(event, claim, error).await,
            };
            reach(Point::AfterEffect);
            reach(Point::BeforeDone);
            let verdict = match engine.run_once(claim, &done.into_completion()).await {
                Ok(OnceVerdict::Ran { .. }) => return Ok(Handled::Done),
                Ok(OnceVerdict::Not(verdict)) => verdict,
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    return self.failed(event, claim, HandlerError::permanent(error)).await;
                }
            };
            if !self.overtaken(claim, &verdict) {
                return Ok(answered(verdict));
            }
        }
        let why = format!("others wrote first {OVERTAKEN_MAX} times in a row");
        self.failed(event, claim, HandlerError::Retryable(why)).await
    }

    #[cfg(feature = "sqlite")]
    async fn own_sql<W>(
        &self,
        event: &Arc<Event>,
        claim: &Claim,
        work: Arc<W>,
        registry: bool,
    ) -> Result<Handled, EngineError>
    where
        W: Fn(&Connection, &Event) -> Result<Done, HandlerError> + Send + Sync + ?Sized + 'static,
    {
        let mut claim = claim.clone();
        if !registry {
            // The order alone counts: no two deliveries share a key, and none is kept.
            let once = format!("{:016x}", random_u64());
            claim.key =
                Key::within(Kind::Event, &event.tenant, &self.0.name, &[&once], &event.event_id)?;
            claim.terms.retain_ms = 1;
        }
        reach(Point::BeforeEffect);
        let run = with_event(work, event.clone());
        let error = match ran_own(self.0.engine.run_once_with(&claim, run).await)? {
            Ok(handled) => return Ok(handled),
            Err(error) => error,
        };
        if registry {
            return self.failed(event, &claim, error).await;
        }
        self.failed_unregistered(&claim, &error).await
    }

    /// With the registry switched off: at least once, kept in order by the mark alone.
    async fn unregistered(
        &self,
        event: &Arc<Event>,
        claim: &Claim,
    ) -> Result<Handled, EngineError> {
        let engine = &self.0.engine;
        let Some(guard) = &claim.guard else { return Ok(Handled::Stale { current: 0 }) };
        let seen = SeenEvent { engine: engine.clone(), event: event.clone() };
        for _ in 0..OVERTAKEN_MAX {
            let current = engine.mark(&guard.subject).await?.map_or(0, |mark| mark.position);
            if let Err(why) = guard.rule.judge(current) {
                return Ok(misfit(why, current));
            }
            reach(Point::BeforeEffect);
            let worked = match &self.0.work.0 {
                Way::InStore(work) => caught(work(seen.clone())).await,
                Way::InStoreMany(work) => caught(Way::alone(work, seen.clone())).await,
                Way::Elsewhere(work) => {
                    let effect_key = claim.key.to_string().into();
                    let attempt = super::Attempt { seen: seen.clone(), held: None, effect_key };
                    caught(work(attempt)).await
                }
                #[cfg(feature = "sqlite")]
                Way::OwnSql(_) => Ok(Done::new()),
            };
            reach(Point::AfterEffect);
            let done = match worked {
                Ok(done) => done,
                Err(error) => return self.failed_unregistered(claim, &error).await,
            };
            reach(Point::BeforeDone);
            let effects = done.into_completion().effects;
            match engine.apply(guard, &effects, &claim.trace).await? {
                None => return Ok(Handled::Done),
                Some(verdict) if self.overtaken(claim, &verdict) => {}
                Some(verdict) => return Ok(answered(verdict)),
            }
        }
        let why = format!("others wrote first {OVERTAKEN_MAX} times in a row");
        self.failed_unregistered(claim, &HandlerError::Retryable(why)).await
    }

    /// Whether a verdict is about a document that others wrote meanwhile: the work has to see that
    /// first.
    pub(super) fn overtaken(&self, claim: &Claim, verdict: &Verdict) -> bool {
        let own = |refusal: &Refusal| {
            claim.guard.as_ref().is_some_and(|guard| guard.subject == refusal.subject)
        };
        matches!(verdict, Verdict::Refused(refusal) if !own(refusal))
    }

    /// Records a failed attempt of work that held no lease.
    pub(super) async fn failed(
        &self,
        event: &Event,
        claim: &Claim,
        error: HandlerError,
    ) -> Result<Handled, EngineError> {
        let mut claim = claim.clone();
        claim.terms.lease_ms = FAILING_LEASE_MS;
        claim.payload = Some(write_event(event).into());
        let permit = match self.0.engine.claim(&claim).await? {
            Verdict::Run { permit, .. } => permit,
            verdict => return Ok(answered(verdict)),
        };
        self.record_failure(&permit, &error).await
    }

    /// Records a failed attempt under its permit.
    pub(super) async fn record_failure(
        &self,
        permit: &onceward_core::decide::Permit,
        error: &HandlerError,
    ) -> Result<Handled, EngineError> {
        let engine = &self.0.engine;
        let retry = match error {
            HandlerError::Permanent(_) => Retry::Never,
            HandlerError::RunIn { after, .. } => Retry::In(millis(*after)),
            HandlerError::RunAt { at, .. } => Retry::In(at.since(engine.now().await?)),
            HandlerError::Retryable(_) => Retry::In(self.delay_ms(permit.record.attempt)),
        };
        let passed = permit.record.terms.on_dead == OnDead::Skip;
        let error = error.to_string();
        Ok(match (engine.fail(permit, &error, retry).await?, retry) {
            (Finish::Dead, _) | (Finish::Ok, Retry::Never) => Handled::Dead { error, passed },
            (Finish::Ok, Retry::In(ms)) => {
                Handled::Failed { error, retry_after: Duration::from_millis(ms) }
            }
            // Someone else was granted meanwhile: what becomes of it is theirs to say.
            _ => Handled::Busy { retry_after: Duration::from_millis(1) },
        })
    }

    /// Counts a failure that no registry records; after the last one the aggregate goes on, or
    /// waits.
    async fn failed_unregistered(
        &self,
        claim: &Claim,
        error: &HandlerError,
    ) -> Result<Handled, EngineError> {
        let tries = {
            let mut tries = self.0.tries.lock().unwrap_or_else(PoisonError::into_inner);
            let count = tries.entry(claim.key.clone()).or_insert(0);
            *count += 1;
            *count
        };
        let last = tries >= self.0.options.max_attempts;
        if !last && !matches!(error, HandlerError::Permanent(_)) {
            let retry_after = Duration::from_millis(self.delay_ms(tries));
            return Ok(Handled::Failed { error: error.to_string(), retry_after });
        }
        let passed = self.0.options.on_dead == OnDead::Skip;
        if passed && let Some(guard) = &claim.guard {
            use onceward_core::audit::Entry;
            let mut entry = Entry::about(&claim.key, "dead", &claim.fingerprint, &claim.trace);
            entry.detail = Some(format!("passed without a registry: {error}").into());
            let effects = Effects { audit: vec![entry], ..Effects::default() };
            if let Some(verdict) = self.0.engine.apply(guard, &effects, &claim.trace).await? {
                return Ok(answered(verdict));
            }
        }
        self.0.tries.lock().unwrap_or_else(PoisonError::into_inner).remove(&claim.key);
        Ok(Handled::Dead { error: error.to_string(), passed })
    }

    fn delay_ms(&self, attempt: u32) -> u64 {
        // Whether there is another attempt is for the record's terms to say.
        let backoff = Backoff { attempts: u32::MAX, ..self.0.options.backoff };
        backoff.delay_ms(attempt, random_u64()).unwrap_or(backoff.max_ms)
    }

    /// Whether this process saw its aggregate right before this event: no look is needed then.
    pub(super) fn comes_next(&self, claim: &Claim) -> bool {
        let Some(Guard { subject, rule: Rule::Next { position } }) = &claim.guard else {
            return false;
        };
        let positions = self.0.positions.lock().unwrap_or_else(PoisonError::into_inner);
        positions.get(subject).is_some_and(|at| at + 1 == *position)
    }

    pub(super) fn note(&self, claim: &Claim, handled: &Handled) {
        let counter = match handled {
            Handled::Done => 0,
            Handled::Duplicate => 1,
            Handled::Stale { .. } => 2,
            Handled::Failed { .. } => 3,
            Handled::Dead { .. } => 4,
            Handled::Mismatch => 5,
            Handled::Gap { .. } | Handled::Busy { .. } => return,
        };
        self.0.counters[counter].fetch_add(1, Ordering::Relaxed);
        let Some(guard) = claim.guard.as_ref().filter(|_| counter == 0) else { return };
        let mut positions = self.0.positions.lock().unwrap_or_else(PoisonError::into_inner);
        if positions.len() >= POSITIONS_MAX {
            positions.clear();
        }
        positions.insert(guard.subject.clone(), guard.rule.moves_to());
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("name", &self.0.name)
            .field("work", &self.0.work)
            .finish_non_exhaustive()
    }
}

/// The caller's own SQL for one event, as the writer runs it.
#[cfg(feature = "sqlite")]
pub(super) fn with_event<W>(
    work: Arc<W>,
    event: Arc<Event>,
) -> impl FnMut(&Connection) -> Result<Completion, HandlerError> + Send + 'static
where
    W: Fn(&Connection, &Event) -> Result<Done, HandlerError> + Send + Sync + ?Sized + 'static,
{
    move |connection| {
        let done = work(connection, &event)?;
        reach(Point::AfterEffect);
        reach(Point::BeforeDone);
        Ok(done.into_completion())
    }
}

/// What came of the caller's own SQL: its end, or why the work failed.
#[cfg(feature = "sqlite")]
pub(super) fn ran_own(
    ended: Result<OnceVerdict, OwnSqlError<HandlerError>>,
) -> Result<Result<Handled, HandlerError>, EngineError> {
    Ok(match ended {
        Ok(OnceVerdict::Ran { .. }) => Ok(Handled::Done),
        Ok(OnceVerdict::Not(verdict)) => Ok(answered(verdict)),
        Err(OwnSqlError::Engine(error)) if error.is_retryable() => return Err(error),
        Err(OwnSqlError::Engine(error)) => Err(HandlerError::permanent(error)),
        Err(OwnSqlError::Caller(error)) => Err(error),
        Err(error @ OwnSqlError::Panicked(_)) => Err(HandlerError::retryable(error)),
    })
}

/// The space of the marks that keep the order of a handler's aggregates.
pub(crate) fn order_space(handler: &str) -> String {
    format!("handled.{handler}")
}

/// A verdict that is no grant, as what became of the event.
pub(super) fn answered(verdict: Verdict) -> Handled {
    match verdict {
        Verdict::Replay(_) => Handled::Duplicate,
        Verdict::Mismatch(_) => Handled::Mismatch,
        Verdict::Refused(refusal) => misfit(refusal.why, refusal.current),
        Verdict::Busy { retry_after_ms } => {
            Handled::Busy { retry_after: Duration::from_millis(retry_after_ms) }
        }
        Verdict::Dead(record) | Verdict::Unknown(record) => Handled::Dead {
            error: record.error.as_deref().unwrap_or("no reason was recorded").to_owned(),
            passed: record.terms.on_dead == OnDead::Skip,
        },
        Verdict::Run { .. } => Handled::Busy { retry_after: Duration::from_millis(1) },
    }
}

fn misfit(why: Misfit, current: u64) -> Handled {
    match why {
        Misfit::Gap => Handled::Gap { current },
        Misfit::Stale | Misfit::VersionConflict | Misfit::OutOfOrder => Handled::Stale { current },
    }
}

/// The work's end; a panic is a failure like any other.
pub(super) async fn caught(
    work: impl Future<Output = Result<Done, HandlerError>>,
) -> Result<Done, HandlerError> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("without a message");
        Err(HandlerError::Retryable(format!("the handler panicked: {said}")))
    })
}
