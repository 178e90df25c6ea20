//! Health, readiness and metrics: the truth about the store, durability and draining.
//!
//! `/healthz` says how the process is and is 200 as long as it can say so. `/readyz` says whether
//! to send work here: it reads from the store, within a short time, and is 503 when that fails or
//! the server drains. When the latest commit failed it writes too: a store that can only be read
//! (a full disk) takes no work, and nothing else would find out that it is well again.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use onceward::engine::STORE_TENANT;
use onceward::http::spread;
use onceward::store::Durability;
use onceward_core::key::Subject;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::json;
use super::auth::Who;
use super::problem::{Problem, ProblemBody};
use crate::cache::SharedCache;

/// How long the store may take to answer before it counts as down.
const STORE_WITHIN: Duration = Duration::from_secs(1);

/// What is known of the process beside the store: shared by everyone who serves.
#[derive(Debug)]
pub(crate) struct Health {
    draining: watch::Sender<bool>,
    warnings: Mutex<BTreeSet<String>>,
}

impl Default for Health {
    fn default() -> Self {
        Self { draining: watch::Sender::new(false), warnings: Mutex::default() }
    }
}

impl Health {
    /// From now on nothing new is granted, and waits end.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// Whether the server drains.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Resolves when the server drains.
    pub(crate) async fn drained(&self) {
        let mut draining = self.draining.subscribe();
        // The sender lives as long as we do, so this ends only when it drains.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    /// Shows a warning from now on: a setting that is weaker than people expect.
    pub(crate) fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).insert(warning.into());
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthAnswer {
    /// `ok`, `degraded` (the store gives no answer, or has an alarm) or `draining`.
    status: &'static str,
    /// Which store.
    store: &'static str,
    /// `up` or `down`, as of this request.
    store_status: &'static str,
    /// Why the store is down; absent while it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<String>,
    /// `redis`, when several processes share a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<&'static str>,
    /// `up` or `down`, as of this request. A cache that is down costs time and nothing else, so the
    /// server stays ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_status: Option<&'static str>,
    /// What survives a power loss: `full`, `weak (…)` or `none (memory)`.
    durability: String,
    /// What is damaged or was lost, and settings that are weaker than people expect.
    warnings: Vec<String>,
    /// The version of the program.
    version: &'static str,
}

/// How the process is.
#[utoipa::path(
    get, path = "/healthz", tag = "server", security(()),
    responses((status = 200, description = "How it is", body = HealthAnswer))
)]
pub(crate) async fn healthz(State(state): State<AdminState>) -> Response {
    json(StatusCode::OK, &look(&state).await)
}

/// Whether to send work here.
#[utoipa::path(
    get, path = "/readyz", tag = "server", security(()),
    responses(
        (status = 200, description = "Yes", body = HealthAnswer),
        (status = 503, description = "No: the store is down, or the server drains",
            body = HealthAnswer),
    )
)]
pub(crate) async fn readyz(State(state): State<AdminState>) -> Response {
    let answer = look(&state).await;
    // A store with an alarm still answers.
    let ready = answer.status != "draining" && answer.store_error.is_none();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json(status, &answer);
    if !ready {
        response.headers_mut().insert(http::header::RETRY_AFTER, spread(1).into());
    }
    response
}

/// Everything that is counted, in Prometheus' text form.
#[utoipa::path(
    get, path = "/metrics", tag = "server",
    responses(
        (
            status = 200, description = "The metrics", body = String,
            content_type = "application/openmetrics-text"
        ),
        (status = 401, description = "No token", body = ProblemBody),
        (status = 403, description = "Not the operator's token", body = ProblemBody),
    )
)]
pub(crate) async fn metrics(
    State(state): State<AdminState>,
    request: Request,
) -> Result<Response, Problem> {
    if !state.metrics_are_open() {
        let (mut head, _) = request.into_parts();
        Who::from_request_parts(&mut head, &state).await?.must_operate()?;
    }
    if let Some(cache) = SharedCache::of(state.door()) {
        state.metrics().shared_cache(cache.stats());
    }
    let engine = state.engine();
    state.metrics().swept(engine.sweep_counts());
    let text = state.metrics().text(engine.waiting(), engine.note_counts());
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, media_type)], text).into_response())
}

async fn look(state: &AdminState) -> HealthAnswer {
    let capabilities = state.engine().capabilities();
    let shared = SharedCache::of(state.door());
    let cached = async {
        match &shared {
            Some(cache) => Some(cache.is_up().await),
            None => None,
        }
    };
    let (down, cache_up) = tokio::join!(trouble(state), cached);
    let up = down.is_none();
    let word = |up| if up { "up" } else { "down" };
    let standing = state.engine().standing();
    let alarmed = !standing.alarms.is_empty();
    let mut warnings = standing.alarms;
    warnings.extend(standing.warnings);
    warnings.extend(state.health().warnings());
    warnings.extend(capabilities.warnings.iter().cloned());
    match &capabilities.durability {
        Durability::Full => {}
        weak => warnings.push(format!("durability is {weak}: a power loss loses answered work")),
    }
    HealthAnswer {
        status: match (state.health().is_draining(), up && !alarmed) {
            (true, _) => "draining",
            (false, true) => "ok",
            (false, false) => "degraded",
        },
        store: capabilities.name,
        store_status: word(up),
        store_error: down,
        cache: shared.map(|_| "redis"),
        cache_status: cache_up.map(word),
        durability: capabilities.durability.to_string(),
        warnings,
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Why the store does not take work; none when it does.
async fn trouble(state: &AdminState) -> Option<String> {
    let looked = tokio::time::timeout(STORE_WITHIN, async {
        let subject = Subject::new(STORE_TENANT, "onceward.health", "probe")?;
        // It may or may not be there: what counts is that the store answers.
        state.engine().mark(&subject).await?;
        match state.engine().trouble() {
            None => Ok(()),
            Some(_) => state.engine().writes().await,
        }
    });
    let failed = |code: &'static str, why: String| {
        state.metrics().store_failed(code);
        Some(why)
    };
    match looked.await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => failed(error.code(), error.to_string()),
        Err(_) => {
            let late = format!("no answer within {} s", STORE_WITHIN.as_secs());
            failed("store.timeout", state.engine().trouble().unwrap_or(late))
        }
    }
}
