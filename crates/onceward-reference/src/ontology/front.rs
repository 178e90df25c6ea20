//! What every request passes first: its ids (A25), who asks, how often.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use onceward::http::names;

use super::Ontology;
use super::problem::{Answer, Problem};
use crate::ids::ensure_ids;

/// Lets a request in, and its answer out.
pub(super) async fn enter(
    State(ontology): State<Ontology>,
    mut request: Request,
    next: Next,
) -> Response {
    let (request_id, correlation_id) = ensure_ids(request.headers_mut());
    let (head, body) = request.into_parts();
    let caller = ontology.admit(&head);
    let mut request = Request::from_parts(head, body);
    let mut response = match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    };
    let problem = response.extensions_mut().remove::<Problem>();
    let problem = problem.or_else(|| Problem::of_framework(response.status()));
    if let Some(problem) = problem {
        let allow = response.headers_mut().remove(http::header::ALLOW);
        response = problem.say(request_id.to_str().unwrap_or_default());
        if let Some(allow) = allow {
            response.headers_mut().insert(http::header::ALLOW, allow);
        }
    }
    let headers = response.headers_mut();
    headers.insert(names::X_REQUEST_ID, request_id);
    headers.entry(names::X_CORRELATION_ID).or_insert(correlation_id);
    response
}

/// Runs to its end even when whoever asked has gone away.
pub(super) async fn in_own_task(run: impl Future<Output = Answer> + Send + 'static) -> Answer {
    match tokio::spawn(run).await {
        Ok(answer) => answer,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going down, and this connection with it.
            Err(_) => Ok(StatusCode::SERVICE_UNAVAILABLE.into_response()),
        },
    }
}
