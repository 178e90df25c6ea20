//! What shadow mode would have done, for the operator who thinks about enforcing a route.
//!
//! The counts are this process' own, from its start; nothing of them is stored.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::json;
use super::auth::Who;
use super::problem::{Problem, ProblemBody};

/// What shadow mode would have done since the start of the process.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShadowAnswer {
    /// Routes in shadow mode.
    routes: Vec<ShadowRouteAnswer>,
    /// Keys that were forgotten for want of memory: their retries count as `run`.
    forgotten: u64,
}

/// What it would have done on one route.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShadowRouteAnswer {
    /// Method and template; `*` where no routes are written.
    endpoint: String,
    /// How often: `run`, `replay`, `pass`, `unseen`, or the code of a refusal.
    verdicts: BTreeMap<&'static str, u64>,
}

/// Tells what routes in shadow mode would have done.
#[utoipa::path(
    get, path = "/v1/shadow", tag = "server",
    responses(
        (status = 200, description = "The counts of this process", body = ShadowAnswer),
        (status = 403, description = "Not the operator's token", body = ProblemBody),
    )
)]
pub(crate) async fn report(State(state): State<AdminState>, who: Who) -> Result<Response, Problem> {
    who.must_operate()?;
    let report = state.door().map(onceward::http::Door::shadow_report).unwrap_or_default();
    let routes = report.routes.into_iter();
    let routes = routes
        .map(|route| ShadowRouteAnswer { endpoint: route.endpoint, verdicts: route.verdicts });
    let answer = ShadowAnswer { routes: routes.collect(), forgotten: report.forgotten };
    Ok(json(StatusCode::OK, &answer))
}
