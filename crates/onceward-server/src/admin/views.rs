//! Views of events, made anew by the server that holds their store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use onceward::relay::Log;
use serde::Serialize;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::json;
use super::auth::Who;
use super::params::Segment;
use super::problem::{Problem, ProblemBody};

/// What a rebuild came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RebuiltAnswer {
    /// Which view.
    view: String,
    /// The generation that is live now.
    generation: u64,
    /// Events that it was made from.
    events: u64,
}

/// Makes the next generation of a view from zero, and swaps it in.
#[utoipa::path(
    post, path = "/v1/views/{view}/rebuild", tag = "server",
    params(("view" = String, Path, description = "Which view")),
    responses(
        (status = 200, description = "The generation that is live now", body = RebuiltAnswer),
        (status = 403, description = "Not the operator's token", body = ProblemBody),
        (status = 404, description = "No such view", body = ProblemBody),
        (status = 409, description = "This server keeps no views", body = ProblemBody),
        (status = 503, description = "Something gave no answer", body = ProblemBody),
    )
)]
pub(crate) async fn rebuild(
    State(state): State<AdminState>,
    who: Who,
    Segment(view): Segment,
) -> Result<Response, Problem> {
    who.must_operate()?;
    let none = || {
        let detail = "this server keeps no views of events; ask the one that does";
        Problem::conflict("view.none", "There are no views here", detail)
    };
    let absent = || Problem::absent("view.absent", "there is no view of this name");
    let workers = state.views().ok_or_else(none)?.clone();
    let projection = workers.projection(&view).ok_or_else(absent)?.clone();
    // In a task of its own: who asked may go away, a rebuild goes on.
    let rebuilding = tokio::spawn(async move {
        let log: Arc<dyn Log> = workers.log().clone();
        let options = workers.consumer(projection.name());
        let options = options.map_err(|error| error.to_string())?;
        let rebuilt = projection.rebuild(log, options, |_, _| {}).await;
        rebuilt.map_err(|error| error.to_string())
    });
    let ended = rebuilding.await.unwrap_or_else(|error| Err(error.to_string()));
    let rebuilt = ended.map_err(|why| {
        let (status, title) = (StatusCode::SERVICE_UNAVAILABLE, "The view was not made anew");
        Problem::new(status, "view.not_rebuilt", title, why).after(1)
    })?;
    let (generation, events) = (rebuilt.generation, rebuilt.events);
    Ok(json(StatusCode::OK, &RebuiltAnswer { view, generation, events }))
}
