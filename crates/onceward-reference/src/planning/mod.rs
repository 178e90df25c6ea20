//! The planning service: projects, missions, assignments and collaborators of organisations.
//!
//! Written as a user of the library writes one. Every write is one commit of document, record,
//! audit entry and jobs; whatever is derived (summaries, notifications, search) follows by jobs and
//! may lag. Nothing is read or written across organisations.
//!
//! | file | what |
//! |---|---|
//! | `projects`, `missions`, `assignments`, `people` | the handlers of writes: start reading here |
//! | `command`, `resource`, `fields`, `id`, `calendar` | what they share: load, check, save |
//! | `jobs`, `derived/` | what follows a write, and what workers make of it |
//! | `reads`, `audit` | what is read |
//! | `front`, `cache`, `problem` | what every request passes; how refusals are said |

mod assignments;
mod audit;
mod cache;
mod calendar;
mod command;
mod derived;
mod fields;
mod front;
mod id;
mod jobs;
mod missions;
mod people;
mod problem;
mod projects;
mod reads;
mod resource;

pub use jobs::{NOTIFICATIONS, SEARCH, SUMMARY};

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, patch, post};
use http::Method;
use http::request::Parts;
use onceward::core::limits::LimitError;
use onceward::engine::{Engine, EngineError};
use onceward::http::{
    Authorized, BreakerPolicy, Caller, Code, Commits, Dialect, Door, Identity, IfMatch,
    OncewardLayer, Policy, RateLimit, Refusal, Route, Routes, names,
};
use onceward::worker::{Builder, Context, JobError, Worker};

use crate::principals::{self, Principal, Role};
use crate::spelled::spelled;
use cache::ResponseCache;
use problem::Problem;

/// Requests per second and caller, and how many of them may come at once.
const RATE: (u32, u32) = (1_000, 2_000);

/// How often what is past its time is dropped (A12).
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);

/// Every write, and whether it must say which version it has seen.
const WRITES: [(&str, IfMatch); 20] = [
    ("POST /v1/projects", IfMatch::Allow),
    ("PATCH /v1/projects/{id}", IfMatch::Require),
    ("DELETE /v1/projects/{id}", IfMatch::Require),
    ("POST /v1/projects/{id}/archive", IfMatch::Require),
    ("POST /v1/projects/{id}/unarchive", IfMatch::Require),
    ("POST /v1/projects/{project_id}/missions", IfMatch::Allow),
    ("PATCH /v1/missions/{id}", IfMatch::Require),
    ("PUT /v1/missions/{id}", IfMatch::Require),
    ("DELETE /v1/missions/{id}", IfMatch::Require),
    ("POST /v1/missions/{id}/plan", IfMatch::Require),
    ("POST /v1/missions/{id}/lock", IfMatch::Require),
    ("POST /v1/missions/{id}/archive", IfMatch::Require),
    ("POST /v1/missions/{id}/unarchive", IfMatch::Require),
    ("POST /v1/missions/{mission_id}/assignments", IfMatch::Allow),
    ("PATCH /v1/assignments/{id}", IfMatch::Require),
    ("DELETE /v1/assignments/{id}", IfMatch::Require),
    // A move may name the version in its body instead.
    ("POST /v1/assignments/{id}/move", IfMatch::Allow),
    ("POST /v1/collaborators", IfMatch::Allow),
    ("PATCH /v1/collaborators/{id}", IfMatch::Require),
    ("PATCH /v1/organization", IfMatch::Require),
];

/// What the service is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who may call. Default: the demo principals.
    pub principals: Vec<Principal>,
    /// Resources that the response cache keeps; 0 switches it off, which is right when other
    /// processes write to the same store. Default: 0.
    pub cached_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { principals: principals::demo(), cached_max: 0 }
    }
}

/// The planning service on a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Planning(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    door: Arc<Door>,
    identity: Identity,
    cache: ResponseCache,
}

impl Planning {
    /// The service, with the organisations and collaborators of its principals.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn open(engine: Engine, options: Options) -> Result<Self, EngineError> {
        people::settle(&engine, &options.principals).await?;
        let identity = principals::identity(options.principals);
        let door = door(&engine, &identity)?;
        let cache = ResponseCache::new(options.cached_max);
        Ok(Self(Arc::new(Inner { engine, door: Arc::new(door), identity, cache })))
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
            .route("/v1/organization", get(reads::organization).patch(people::patch_organization))
            .route("/v1/projects", get(reads::projects).post(projects::create))
            .route(
                "/v1/projects/{id}",
                get(reads::project).patch(projects::patch).delete(projects::delete),
            )
            .route("/v1/projects/{id}/archive", post(projects::archive))
            .route("/v1/projects/{id}/unarchive", post(projects::unarchive))
            .route(
                "/v1/projects/{id}/missions",
                get(reads::missions_of_project).post(missions::create),
            )
            .route("/v1/projects/{id}/summary", get(derived::summary::show))
            .route(
                "/v1/missions/{id}",
                get(reads::mission)
                    .patch(missions::patch)
                    .put(missions::put)
                    .delete(missions::delete),
            )
            .route("/v1/missions/{id}/plan", post(missions::plan))
            .route("/v1/missions/{id}/lock", post(missions::lock))
            .route("/v1/missions/{id}/archive", post(missions::archive))
            .route("/v1/missions/{id}/unarchive", post(missions::unarchive))
            .route(
                "/v1/missions/{id}/assignments",
                get(reads::assignments_of_mission).post(assignments::create),
            )
            .route(
                "/v1/assignments/{id}",
                get(reads::assignment).patch(assignments::patch).delete(assignments::delete),
            )
            .route("/v1/assignments/{id}/move", post(assignments::move_to))
            .route("/v1/collaborators", get(reads::collaborators).post(people::create_collaborator))
            .route(
                "/v1/collaborators/{id}",
                patch(people::patch_collaborator).get(reads::collaborator),
            )
            .route("/v1/notifications", get(derived::notifications::list))
            .route("/v1/search", get(derived::search::search))
            .route("/v1/audit", get(audit::list))
            .fallback(problem::no_such_path)
            .method_not_allowed_fallback(problem::no_such_method)
            .with_state(self.clone())
            .layer(from_fn(problem::say))
            .layer(OncewardLayer::shared(self.0.door.clone()))
            .layer(from_fn_with_state(self.clone(), front::enter));
        spelled(service)
    }

    /// A worker for what follows its writes, to be started; any number may run, in any process. It
    /// also sweeps the store: once an hour among all of them.
    pub fn worker(&self) -> Builder {
        Worker::builder(self.engine().clone())
            .queue(SUMMARY)
            .handler(derived::summary::add)
            .queue(NOTIFICATIONS)
            .handler(derived::notifications::tell)
            .queue(SEARCH)
            .handler(derived::search::index)
            .every(SWEEP_EVERY, "sweep", |job: Context| async move {
                job.engine().sweep(|_| {}).await?;
                Ok::<_, JobError>(())
            })
    }

    fn identify(&self, head: &Parts) -> Option<Caller> {
        self.0.identity.identify(head)
    }

    /// Who asks where the layer does not insist on knowing.
    fn known(&self, head: &Parts) -> Result<Caller, Problem> {
        let detail = "send Authorization: Bearer with a token that is known here";
        let unknown = || Refusal::new(Code::AuthRequired, detail).into();
        self.identify(head).ok_or_else(unknown)
    }

    fn cache(&self) -> &ResponseCache {
        &self.0.cache
    }
}

/// The door: who asks, how often, in which role, and what each route allows.
fn door(engine: &Engine, identity: &Identity) -> Result<Door, LimitError> {
    let policy = |if_match| Policy {
        dialect: Dialect::Planning,
        commits: Commits::One,
        if_match,
        max_request_bytes: command::BODY_BYTES_MAX as u64,
        breaker: Some(BreakerPolicy::default()),
        ..Policy::default()
    };
    let routes = WRITES.iter().map(|(route, if_match)| Route::new(route, policy(*if_match)));
    let routes = Routes::written(routes.collect::<Result<_, _>>()?);
    let roles = engine.clone();
    let (count, burst) = RATE;
    Ok(Door::new(engine.clone(), identity.clone(), routes)
        .with_rate_limit(RateLimit::new(count, 1_000, burst)?)
        .with_authorize(move |head, caller| may_write(roles.clone(), head, caller)))
}

/// Whether a caller may send this write now, be it the first time or a replay (B06).
fn may_write<'a>(engine: Engine, head: &'a Parts, caller: &'a Caller) -> Authorized<'a> {
    Box::pin(async move {
        let gives_roles =
            head.method == Method::PATCH && head.uri.path().starts_with("/v1/collaborators/");
        let least = if gives_roles { Role::Admin } else { Role::Editor };
        let refusal = match people::role(&engine, caller).await {
            Ok(Some(role)) if role >= least => return Ok(()),
            Ok(_) => {
                Refusal::new(Code::Forbidden, format!("this takes the role {}", least.as_str()))
            }
            Err(_) => {
                let detail = "nothing was executed; retry with the same key";
                Refusal::new(Code::StoreUnavailable, detail)
            }
        };
        let id = head.headers.get(names::X_REQUEST_ID).and_then(|id| id.to_str().ok());
        Err(Dialect::Planning.speaker().refuse(&refusal, id.unwrap_or_default()))
    })
}
