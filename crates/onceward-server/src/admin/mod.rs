//! The control API: claims, permits, jobs, records, audit, health and metrics over HTTP.
//!
//! A worker in any language can use it. Verdicts are answers (200); a refusal is a problem that
//! says what to do. Every decision and every commit is the engine's; this module reads requests,
//! checks tokens and writes answers. The listener's address, TLS and the configuration's file are
//! not its business.

mod answer;
mod audit;
mod auth;
mod claims;
mod fields;
mod health;
mod jobs;
mod lockout;
mod observe;
mod opaque;
mod openapi;
mod params;
mod permits;
mod problem;
mod records;
mod reports;
mod serve;
mod shadow;
#[cfg(test)]
mod tests;
mod views;

pub(crate) use audit::VerifyAnswer;
pub(crate) use auth::{Principal, Principals, Reach};
pub(crate) use auth::{check_strength, new_token, operator};
pub(crate) use health::Health;
pub(crate) use opaque::{Keys, reference};
pub(crate) use openapi::document;
pub(crate) use serve::{serve, serve_router};

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use onceward::audit::SealKey;
use onceward::engine::Engine;
use onceward::http::Door;
use onceward_core::record::Terms;
use onceward_reference::ontology::Workers;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::identity::seal_key;
use crate::masks::Masks;
use crate::metrics::Metrics;
use lockout::Lockouts;
use problem::Problem;

/// Who decides by hand, when the operator's token speaks for someone: for the audit.
pub(crate) const ACTOR_HEADER: &str = "onceward-actor";

/// What the control API stands on.
#[derive(Debug)]
pub(crate) struct AdminOptions {
    /// Does everything.
    pub(crate) engine: Engine,
    /// The store's secret (`identity::Secret`): seals permits.
    pub(crate) secret: [u8; 32],
    /// Who may call.
    pub(crate) principals: Principals,
    /// Shared with the gateway.
    pub(crate) metrics: Arc<Metrics>,
    /// Shared with whoever ends the process.
    pub(crate) health: Arc<Health>,
    /// The gateway's door, where there is one: tells what shadow mode would have done.
    pub(crate) door: Option<Arc<Door>>,
    /// The views of events that this process keeps, where it keeps some.
    pub(crate) views: Option<Workers>,
    /// Whether `/metrics` answers without a token.
    pub(crate) open_metrics: bool,
    /// What the jobs of each queue carry; those of others carry the defaults.
    pub(crate) queues: HashMap<String, Terms>,
}

/// What every handler shares. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct AdminState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: AdminOptions,
    keys: Keys,
    lockouts: Lockouts,
    masks: Masks,
}

impl AdminState {
    /// A state over these.
    pub(crate) fn new(options: AdminOptions) -> Self {
        let keys = Keys::new(&options.secret);
        let routes = options.door.as_ref().map(|door| Masks::of_routes(door.routes()));
        let (lockouts, masks) = (Lockouts::default(), routes.unwrap_or_default());
        Self(Arc::new(Inner { options, keys, lockouts, masks }))
    }

    fn engine(&self) -> &Engine {
        &self.0.options.engine
    }

    fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The key of the audit's chain.
    fn seal_key(&self) -> SealKey {
        seal_key(&self.0.options.secret)
    }

    fn principals(&self) -> &Principals {
        &self.0.options.principals
    }

    fn masks(&self) -> &Masks {
        &self.0.masks
    }

    fn lockouts(&self) -> &Lockouts {
        &self.0.lockouts
    }

    fn metrics(&self) -> &Metrics {
        &self.0.options.metrics
    }

    fn door(&self) -> Option<&Door> {
        self.0.options.door.as_deref()
    }

    fn views(&self) -> Option<&Workers> {
        self.0.options.views.as_ref()
    }

    fn health(&self) -> &Health {
        &self.0.options.health
    }

    /// What a job of this queue carries; none for the defaults.
    fn terms_of(&self, queue: &str) -> Option<Terms> {
        self.0.options.queues.get(queue).copied()
    }

    fn metrics_are_open(&self) -> bool {
        self.0.options.open_metrics
    }

    /// Nothing new is granted while the server drains.
    fn must_grant(&self) -> Result<(), Problem> {
        if self.health().is_draining() { Err(Problem::draining()) } else { Ok(()) }
    }
}

/// The control API as a router.
pub(crate) fn router(state: AdminState) -> Router {
    let (router, _) = described().split_for_parts();
    router
        .fallback(observe::no_such_path)
        .method_not_allowed_fallback(observe::no_such_method)
        .layer(from_fn_with_state(state.clone(), observe::observe))
        .with_state(state)
}

/// Every endpoint with its description.
fn described() -> OpenApiRouter<AdminState> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(claims::claim))
        .routes(routes!(claims::claim_batch))
        .routes(routes!(permits::renew))
        .routes(routes!(permits::complete))
        .routes(routes!(permits::fail))
        .routes(routes!(permits::release))
        .routes(routes!(jobs::enqueue))
        .routes(routes!(jobs::take))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(records::list))
        .routes(routes!(records::show, records::erase))
        .routes(routes!(records::resolve))
        .routes(routes!(records::dead))
        .routes(routes!(records::retry))
        .routes(routes!(records::discard))
        .routes(routes!(records::marks))
        .routes(routes!(records::sweep))
        .routes(routes!(shadow::report))
        .routes(routes!(views::rebuild))
        .routes(routes!(reports::show))
        .routes(routes!(audit::list))
        .routes(routes!(audit::verify))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(openapi::serve))
}
