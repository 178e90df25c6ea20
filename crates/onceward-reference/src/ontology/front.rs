//! What every request passes first: its ids (A25), who asks, how often.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onceward::http::names;
use uuid::Uuid;

use super::Ontology;
use super::problem::{Answer, Problem};

/// Longest id of a request that is passed on.
const ID_BYTES_MAX: usize = 128;

/// Lets a request in, and its answer out.
pub(super) async fn enter(
    State(ontology): State<Ontology>,
    mut request: Request,
    next: Next,
) -> Response {
    let (request_id, correlation_id) = ensure_ids(request.headers_mut());
    let (head, body) = request.into_parts();
    let caller = ontology.identify(&head);
    let mut request = Request::from_parts(head, body);
    let mut response = match caller {
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        None => Problem::unknown_caller().into_response(),
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

/// The ids of a request: its own, and the one that travels on with its events.
fn ensure_ids(headers: &mut HeaderMap) -> (HeaderValue, HeaderValue) {
    let made = || {
        let id = Uuid::now_v7().to_string();
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("none"))
    };
    let request_id = ensure(headers, names::X_REQUEST_ID, made);
    let correlation_id = ensure(headers, names::X_CORRELATION_ID, || request_id.clone());
    (request_id, correlation_id)
}

fn ensure(
    headers: &mut HeaderMap,
    name: HeaderName,
    made: impl FnOnce() -> HeaderValue,
) -> HeaderValue {
    let fits = |value: &&HeaderValue| {
        value.to_str().is_ok_and(|text| (1..=ID_BYTES_MAX).contains(&text.len()))
    };
    if let Some(value) = headers.get(&name).filter(fits) {
        return value.clone();
    }
    let value = made();
    headers.insert(name, value.clone());
    value
}
