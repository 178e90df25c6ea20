//! Health, readiness and metrics: the truth about the store, durability and draining.
//!
//! `/healthz` says how the process is and is 200 as long as it can say so. `/readyz` says whether
//! to send requests here: it reads from the store, within a short time, and is 503 when that fails
//! or the server drains. A store that can only be read (a full disk, a writer that is locked out)
//! is told as degraded: what is done is replayed from it, and everything else refused as it should
//! be. When the latest commit failed, health writes too: nothing else would find out that all is
//! well again.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use onceward::engine::STORE_TENANT;
use onceward::http::spread;
use onceward::store::{Durability, Standing};
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
    /// `ok`, `degraded` (the store takes no writes or gives no answer, or something stored is
    /// damaged) or `draining`.
    status: &'static str,
    /// Which store.
    store: &'static str,
    /// `up` or `down`, as of this request: whether it takes work.
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
    /// `checked`, or `checking` while the names of all keys are still compared with what the store
    /// knows of them.
    names: &'static str,
    /// What someone should know or do, a sentence each: what is damaged first, then settings that
    /// are weaker than people expect.
    warnings: Vec<String>,
    /// The version of the program.
    version: &'static str,
    /// Whether the store can be read.
    #[serde(skip)]
    readable: bool,
}

/// The status of a server that grants nothing any more.
const DRAINING: &str = "draining";

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
        (status = 200, description = "Yes: what is done is replayed, even while it is degraded",
            body = HealthAnswer),
        (status = 503, description = "No: the store can't be read, or the server drains",
            body = HealthAnswer),
    )
)]
pub(crate) async fn readyz(State(state): State<AdminState>) -> Response {
    let answer = look(&state).await;
    let ready = answer.readable && answer.status != DRAINING;
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
    let (store, cache_up) = tokio::join!(store_answers(state), cached);
    let mut standing = state.engine().standing();
    if let Some(views) = state.views() {
        standing.alarms.extend(views.events().alarms());
    }
    let (readable, trouble) = match store {
        StoreAnswer::Takes => (true, None),
        StoreAnswer::ReadOnly(why) => (true, Some(why)),
        StoreAnswer::Silent(why) => (false, Some(why)),
    };
    let word = |up| if up { "up" } else { "down" };
    HealthAnswer {
        status: match (state.health().is_draining(), &trouble, &standing.alarms[..]) {
            (true, ..) => DRAINING,
            (false, None, []) => "ok",
            _ => "degraded",
        },
        store: capabilities.name,
        store_status: word(trouble.is_none()),
        store_error: trouble,
        cache: shared.map(|_| "redis"),
        cache_status: cache_up.map(word),
        durability: capabilities.durability.to_string(),
        names: standing.names.as_str(),
        warnings: warnings(state, standing),
        version: env!("CARGO_PKG_VERSION"),
        readable,
    }
}

/// Everything that someone should know: what is damaged comes first.
fn warnings(state: &AdminState, standing: Standing) -> Vec<String> {
    let capabilities = state.engine().capabilities();
    let mut warnings = standing.alarms;
    warnings.extend(standing.warnings);
    warnings.extend(state.health().warnings());
    warnings.extend(capabilities.warnings.iter().cloned());
    match &capabilities.durability {
        Durability::Full => {}
        weak => warnings.push(format!("durability is {weak}: a power loss loses answered work")),
    }
    warnings
}

/// What the store does when it is asked.
enum StoreAnswer {
    /// It takes work.
    Takes,
    /// It can be read, but not written to, and why.
    ReadOnly(String),
    /// It can't be read, and why.
    Silent(String),
}

async fn store_answers(state: &AdminState) -> StoreAnswer {
    let (engine, metrics) = (state.engine(), state.metrics());
    let subject = Subject::new(STORE_TENANT, "onceward.health", "probe");
    let read = async {
        // It may or may not be there: what counts is that the store answers.
        engine.mark(&subject?).await
    };
    let silent = format!("no answer within {} s", STORE_WITHIN.as_secs());
    match tokio::time::timeout(STORE_WITHIN, read).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            metrics.store_failed(error.code());
            return StoreAnswer::Silent(error.to_string());
        }
        Err(_) => {
            metrics.store_failed("store.timeout");
            return StoreAnswer::Silent(engine.trouble().unwrap_or(silent));
        }
    }
    if let Some(late) = engine.late() {
        metrics.store_failed("store.timeout");
        let waited = late.as_secs_f64();
        return StoreAnswer::ReadOnly(format!(
            "a commit has waited for {waited:.1} s: the store \
             can be read, but takes no writes"
        ));
    }
    let Some(why) = engine.trouble() else { return StoreAnswer::Takes };
    match tokio::time::timeout(STORE_WITHIN, engine.writes()).await {
        Ok(Ok(())) => StoreAnswer::Takes,
        Ok(Err(error)) => {
            metrics.store_failed(error.code());
            StoreAnswer::ReadOnly(error.to_string())
        }
        Err(_) => {
            metrics.store_failed("store.timeout");
            StoreAnswer::ReadOnly(why)
        }
    }
}
