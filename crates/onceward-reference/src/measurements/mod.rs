//! The measurements service: weights of users, each once and in the order of their timestamps.
//!
//! Written as a user of the library writes one. A measurement is a document that its id is guarded
//! by, created in one commit with the user's last timestamp, the key of the id and the audit entry;
//! a request's own key rides in the same commit, or around a whole batch.
//!
//! | file | what |
//! |---|---|
//! | `measurement`, `weight`, `instant` | what is submitted, and its normal form |
//! | `rules` | what becomes of it, judged from what is there: start reading here |
//! | `settle`, `attempt` | what is committed, and what the audit keeps |
//! | `submit`, `batch`, `fold`, `backfill` | one at a time, many at once, and what came before |
//! | `reads`, `audit` | what is read |
//! | `front`, `cached`, `answer` | what every request passes; how answers are said |
//! | `observe` | who hears of attempts, to count them |

mod answer;
mod attempt;
mod audit;
mod backfill;
mod batch;
mod cached;
mod fold;
mod front;
mod measurement;
mod observe;
mod reads;
mod rules;
mod settle;
mod submit;
mod weight;

pub use answer::REFUSALS;
pub use attempt::Action;
pub use backfill::{BackfillReport, Line, backfill};
pub use batch::BATCH_ITEMS_MAX;
pub use observe::{Happened, Observer};

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use http::request::Parts;
use onceward::core::limits::LimitError;
use onceward::core::payload::KeepPayload;
use onceward::engine::{Engine, EngineError};
use onceward::http::{
    Authorized, Caller, Code, Commits, Dialect, Door, Identity, MissingKey, OncewardLayer, Policy,
    RateLimit, Refusal, Route, Routes,
};
use onceward::worker::{Builder, Context as JobContext, JobError, Worker};

use crate::principals::{self, Principal, Role};
use crate::spelled::spelled;

/// Requests per second and caller, and how many of them may come at once.
const RATE: (u32, u32) = (1_000, 2_000);
/// How often what is past its time is dropped.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
/// A day.
pub(crate) const DAY_MS: u64 = 86_400_000;
/// Largest body of a single measurement.
const SINGLE_BYTES_MAX: usize = 64 * 1024;
/// Largest body of a batch: room for 10,000 measurements.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Largest answer to a batch that is stored; beyond it a retry is told that it was not.
const BATCH_STORED_BYTES_MAX: u64 = 1024 * 1024 + 512 * 1024;

/// The routes of writes.
pub(crate) const SINGLE: &str = "POST /v1/users/{user_id}/measurements";
pub(crate) const BATCH: &str = "POST /v1/measurements/batch";

/// What is enforced, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Whether a measurement id counts once. Default: true.
    pub idempotency: bool,
    /// How long the key of a measurement id is kept, in days. Default: 7.
    pub idempotency_days: u32,
    /// Whether timestamps of a user have to be in order. Default: true.
    pub ordering: bool,
    /// How many seconds a timestamp may lie behind the last one. Default: 300.
    pub grace_s: u64,
    /// Whether a batch stops at a user's first timestamp out of order. Default: false.
    pub fail_fast: bool,
    /// Whether admins may override the order. Default: false.
    pub allow_override: bool,
    /// For how many of a hundred users anything is enforced. Default: 100.
    pub rollout_percent: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            idempotency: true,
            idempotency_days: 7,
            ordering: true,
            grace_s: 300,
            fail_fast: false,
            allow_override: false,
            rollout_percent: 100,
        }
    }
}

/// What the service is told.
#[derive(Clone)]
pub struct Options {
    /// Who may call. Default: the demo principals.
    pub principals: Vec<Principal>,
    /// What is enforced. Default: everything.
    pub settings: Settings,
    /// Requests per second and caller, and how many of them may come at once; none: no bound.
    /// Default: 1,000 and 2,000.
    pub rate: Option<(u32, u32)>,
    /// Who hears of every attempt. Default: nobody.
    pub observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Self {
        let settings = Settings::default();
        Self { principals: principals::demo(), settings, rate: Some(RATE), observer: None }
    }
}

/// The measurements service on a store. Cheap to clone.
#[derive(Clone)]
pub struct Measurements(Arc<Inner>);

struct Inner {
    engine: Engine,
    door: Arc<Door>,
    identity: Identity,
    roles: Arc<Roles>,
    settings: Settings,
    observer: Option<Observer>,
}

/// The roles of actors, by organisation.
type Roles = HashMap<(String, String), Role>;

impl Measurements {
    /// The service.
    ///
    /// # Errors
    /// When a bound is broken.
    pub fn open(engine: Engine, options: Options) -> Result<Self, EngineError> {
        let Options { principals, settings, rate, observer } = options;
        let roles = principals
            .iter()
            .map(|known| ((known.organisation.clone(), known.actor.clone()), known.role));
        let roles: Arc<Roles> = Arc::new(roles.collect());
        let identity = principals::identity(principals);
        let door = Arc::new(door(&engine, &identity, (roles.clone(), rate))?);
        Ok(Self(Arc::new(Inner { engine, door, identity, roles, settings, observer })))
    }

    /// What it stands on.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The door that its writes pass.
    #[must_use]
    pub fn door(&self) -> &Arc<Door> {
        &self.0.door
    }

    /// The service as a router.
    pub fn router(&self) -> Router {
        let service = Router::new()
            .route("/v1/users/{user_id}/measurements", get(reads::list).post(submit::submit))
            .route("/v1/users/{user_id}/audit", get(audit::list))
            .route("/v1/measurements/batch", post(batch::submit))
            .fallback(answer::no_such_path)
            .method_not_allowed_fallback(answer::no_such_method)
            .with_state(self.clone())
            .layer(OncewardLayer::shared(self.0.door.clone()))
            .layer(from_fn_with_state(self.clone(), front::enter));
        spelled(service)
    }

    /// A worker that sweeps the store, to be started; once an hour among all of them.
    pub fn worker(&self) -> Builder {
        Worker::builder(self.engine().clone()).every(
            SWEEP_EVERY,
            "sweep",
            |job: JobContext| async move {
                job.engine().sweep(|_| {}).await?;
                Ok::<_, JobError>(())
            },
        )
    }

    fn settings(&self) -> &Settings {
        &self.0.settings
    }

    fn identify(&self, head: &Parts) -> Option<Caller> {
        self.0.identity.identify(head)
    }

    /// Whether a caller may insist on a measurement that is out of order (D04).
    fn may_override(&self, caller: &Caller) -> Result<(), &'static str> {
        if !self.settings().allow_override {
            return Err("overrides are switched off here (ALLOW_TIMESTAMP_OVERRIDE)");
        }
        match role(&self.0.roles, caller) {
            Some(Role::Admin) => Ok(()),
            _ => Err("an override takes the role admin"),
        }
    }

    /// Who reads: the layer has not looked at that, nor at how often.
    fn admit(&self, head: &Parts) -> Result<Caller, Refusal> {
        let caller = self.known(head)?;
        self.door().allows(&caller)?;
        Ok(caller)
    }

    /// Who submits. Without a key the layer has not asked who that is and in which role; it has
    /// taken the request off the caller's allowance, which is not done twice.
    fn submitter(&self, head: &Parts) -> Result<Caller, Refusal> {
        if let Some(caller) = head.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let caller = self.known(head)?;
        may_submit(&self.0.roles, &caller)?;
        Ok(caller)
    }

    /// Who asks where the layer does not insist on knowing.
    fn known(&self, head: &Parts) -> Result<Caller, Refusal> {
        let detail = "send Authorization: Bearer with a token that is known here";
        self.identify(head).ok_or_else(|| Refusal::new(Code::AuthRequired, detail))
    }

    fn observe(&self, happened: &Happened) {
        if let Some(Observer(observer)) = &self.0.observer {
            observer(happened);
        }
    }
}

fn role(roles: &Roles, caller: &Caller) -> Option<Role> {
    roles.get(&(caller.tenant.clone(), caller.caller.clone())).copied()
}

/// Whether a caller may submit.
fn may_submit(roles: &Roles, caller: &Caller) -> Result<(), Refusal> {
    match role(roles, caller) {
        Some(role) if role >= Role::Editor => Ok(()),
        _ => Err(Refusal::new(Code::Forbidden, "this takes the role editor")),
    }
}

/// The door: who asks, how often, in which role, and what each route allows (D06).
fn door(
    engine: &Engine,
    identity: &Identity,
    (roles, rate): (Arc<Roles>, Option<(u32, u32)>),
) -> Result<Door, LimitError> {
    let single = Policy {
        dialect: Dialect::Measurements,
        missing_key: MissingKey::Allow,
        commits: Commits::One,
        retain_ms: DAY_MS,
        retain_errors_ms: DAY_MS,
        max_request_bytes: SINGLE_BYTES_MAX as u64,
        keep_payload: KeepPayload::Full,
        ..Policy::default()
    };
    // A batch is many commits: its key is claimed before them and completed after them. Every
    // measurement of it is guarded by its own id, so that running it again does no harm. Its
    // payload may be large, and what differs between two batches is of no use.
    let batch = Policy {
        commits: Commits::Two,
        max_request_bytes: BATCH_BYTES_MAX as u64,
        max_stored_bytes: BATCH_STORED_BYTES_MAX,
        keep_payload: KeepPayload::None,
        ..single.clone()
    };
    let routes = vec![Route::new(SINGLE, single)?, Route::new(BATCH, batch)?];
    let mut door = Door::new(engine.clone(), identity.clone(), Routes::written(routes));
    if let Some((count, burst)) = rate {
        door = door.with_rate_limit(RateLimit::new(count, 1_000, burst)?);
    }
    Ok(door.with_authorize(move |_, caller| {
        let allowed = may_submit(&roles, caller);
        let allowed =
            allowed.map_err(|refusal| Dialect::Measurements.speaker().refuse(&refusal, ""));
        Box::pin(std::future::ready(allowed)) as Authorized<'_>
    }))
}
