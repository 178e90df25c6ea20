//! The ontology service: commands in, events, and what follows from them.
//!
//! A command becomes one event of an aggregate, once and under the number that it expects; relay,
//! instance worker, ontology worker and projection worker make views of the events. The event store
//! is the truth: every view can be made anew from it. Nothing is read or written across
//! organisations.
//!
//! | file | what |
//! |---|---|
//! | `commands` | a command becomes an event: start reading here |
//! | `workers` | the views and their fold |
//! | `reads` | what is read |
//! | `settings` | every knob, by its variable |
//! | `front`, `problem` | what every request passes; how refusals are said |

mod commands;
mod front;
mod problem;
mod reads;
mod settings;
mod workers;

pub use settings::{SettingError, Settings};
pub use workers::{Merge, Running, SearchIn, Workers};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use http::request::Parts;
use onceward::core::limits::LimitError;
use onceward::engine::Engine;
use onceward::events::{EventStore, EventsError, Objects};
use onceward::http::{Caller, Door, Identity, RateLimit, Routes};
use onceward::projection::ViewError;
use onceward::worker::{Builder, Context, JobError, Worker};

use crate::principals::{self, Principal, Role};
use crate::spelled::spelled;
use problem::Problem;

/// Requests of a caller per second, and at once.
const RATE: (u32, u32) = (1_000, 2_000);
/// How often what is past its time is dropped.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);

/// What a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A thing.
    Instance,
    /// A kind of things.
    Class,
}

impl Target {
    /// The word in commands.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Class => "class",
        }
    }

    /// Reads [`Target::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Instance, Self::Class].into_iter().find(|target| target.as_str() == text)
    }

    /// The kind of an event: what it is about, and what happened to it.
    #[must_use]
    pub fn join(self, kind: &str) -> String {
        format!("{}.{kind}", self.as_str())
    }

    /// Reads [`Target::join`] back.
    #[must_use]
    pub fn split(kind: &str) -> Option<(Self, &str)> {
        let (target, kind) = kind.split_once('.')?;
        Some((Self::parse(target)?, kind))
    }
}

/// What the service is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who may call. Default: the demo principals.
    pub principals: Vec<Principal>,
    /// Every knob.
    pub settings: Settings,
    /// Where the search index is kept. Default: documents of the engine's store.
    pub search_in: SearchIn,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            principals: principals::demo(),
            settings: Settings::default(),
            search_in: SearchIn::Documents,
        }
    }
}

/// Why the service can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The event store can't.
    #[error(transparent)]
    Events(#[from] EventsError),
    /// A view can't.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A bound is broken.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// The ontology service on a store. Cheap to clone.
#[derive(Clone)]
pub struct Ontology(Arc<Inner>);

struct Inner {
    events: EventStore,
    workers: Workers,
    identity: Identity,
    /// Counts how often callers ask. Nothing else goes through it: the event id is the key.
    door: Door,
    principals: Vec<Principal>,
}

impl Ontology {
    /// The service, with its events in `objects`.
    ///
    /// # Errors
    /// When the event store can't be opened or a view does not fit.
    pub async fn open(
        engine: Engine,
        objects: Objects,
        options: Options,
    ) -> Result<Self, OpenError> {
        let events = EventStore::open(engine, objects, options.settings.event_store()).await?;
        let workers = Workers::new(events.clone(), options.settings, &options.search_in)?;
        workers.prepare().await?;
        let identity = principals::identity(options.principals.clone());
        let routes = Routes::written(Vec::new());
        let (count, burst) = RATE;
        let door = Door::new(events.engine().clone(), identity.clone(), routes)
            .with_rate_limit(RateLimit::new(count, 1_000, burst)?);
        let principals = options.principals;
        Ok(Self(Arc::new(Inner { events, workers, identity, door, principals })))
    }

    /// The event store.
    #[must_use]
    pub fn events(&self) -> &EventStore {
        &self.0.events
    }

    /// What follows the events, to be started.
    #[must_use]
    pub fn workers(&self) -> &Workers {
        &self.0.workers
    }

    /// The service as a router.
    pub fn router(&self) -> Router {
        let service = Router::new()
            .route("/v1/commands", post(commands::command))
            .route("/v1/aggregates/{id}/events", get(reads::events))
            .route("/v1/instances/{id}", get(reads::instance))
            .route("/v1/classes/{id}", get(reads::class))
            .route("/v1/search", get(reads::search))
            .fallback(problem::no_such_path)
            .method_not_allowed_fallback(problem::no_such_method)
            .layer(DefaultBodyLimit::max(commands::BODY_BYTES_MAX))
            .with_state(self.clone())
            .layer(from_fn_with_state(self.clone(), front::enter));
        spelled(service)
    }

    /// A worker that sweeps the store, to be started: once an hour among all processes on it.
    pub fn worker(&self) -> Builder {
        let engine = self.events().engine().clone();
        Worker::builder(engine).every(SWEEP_EVERY, "sweep", |job: Context| async move {
            job.engine().sweep(|_| {}).await?;
            Ok::<_, JobError>(())
        })
    }

    /// Who asks, when the caller is known and does not ask too often.
    fn admit(&self, head: &Parts) -> Result<Caller, Problem> {
        let caller = self.0.identity.identify(head).ok_or_else(Problem::unknown_caller)?;
        self.0.door.allows(&caller).map_err(|refusal| Problem::too_often(&refusal))?;
        Ok(caller)
    }

    fn may_write(&self, caller: &Caller) -> bool {
        let known = self
            .0
            .principals
            .iter()
            .find(|known| known.organisation == caller.tenant && known.actor == caller.caller);
        known.is_some_and(|known| known.role >= Role::Editor)
    }
}
