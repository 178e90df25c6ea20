//! What surrounds every request: ids, the access line, metrics, and the last word on problems.
//!
//! `X-Request-ID` is made when a client sends none, answered, and stored with what the request
//! does (A25). An id that could not be a header or a log field is not taken over.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue, StatusCode};
use onceward::http::names::{X_CORRELATION_ID, X_REQUEST_ID};

use super::AdminState;
use super::problem::Problem;
use crate::logs::{Access, access};
use crate::metrics::Answered;
use crate::output::hex;

/// Longest id that is taken over from a client.
const ID_BYTES_MAX: usize = 200;
/// What requests for a path or a method that is not there are counted under.
const NO_SUCH_ENDPOINT: &str = "(no such endpoint)";

const ROUTE_UNKNOWN: &str = "route.unknown";
const METHOD_NOT_ALLOWED: &str = "method.not_allowed";

/// The ids of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ids {
    /// `X-Request-ID`.
    pub(crate) request: String,
    /// `X-Correlation-ID`.
    pub(crate) correlation: Option<String>,
}

impl Ids {
    fn of(headers: &HeaderMap) -> Self {
        let id = |name| {
            let value = headers.get(name)?.to_str().ok()?;
            (1..=ID_BYTES_MAX).contains(&value.len()).then(|| value.to_string())
        };
        Self { request: id(X_REQUEST_ID).unwrap_or_else(new_id), correlation: id(X_CORRELATION_ID) }
    }
}

fn new_id() -> String {
    let mut bytes = [0; 16];
    // An id that is not random is still an id; tokens and secrets are made elsewhere.
    let _ = getrandom::fill(&mut bytes);
    hex(&bytes)
}

/// What an answer says about itself, for the access line and the metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    /// Whose key it was.
    pub(crate) tenant: Option<String>,
    /// The key's truncated hash.
    pub(crate) key_hash: Option<String>,
    /// What came of it, in a word.
    pub(crate) verdict: Option<&'static str>,
}

/// Surrounds every request.
pub(crate) async fn observe(
    State(state): State<AdminState>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let _under_way = state.metrics().started();
    let ids = Ids::of(request.headers());
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let endpoint = format!("{} {}", request.method(), path.unwrap_or_default());
    request.extensions_mut().insert(ids.clone());
    let mut response = next.run(request).await;
    let about = response.extensions_mut().remove::<About>().unwrap_or_default();
    let mut verdict = about.verdict.unwrap_or("none");
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        verdict = problem.code();
        if problem.code().starts_with("store.") {
            state.metrics().store_failed(problem.code());
        }
        response = problem.written(&ids.request);
    }
    // Anybody can make up methods and paths: together they have one name.
    let is_ours = ![ROUTE_UNKNOWN, METHOD_NOT_ALLOWED].contains(&verdict);
    let endpoint = state.metrics().endpoint(if is_ours { &endpoint } else { NO_SUCH_ENDPOINT });
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, id) in
        [(X_REQUEST_ID, Some(&ids.request)), (X_CORRELATION_ID, ids.correlation.as_ref())]
    {
        if let Some(value) = id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(name, value);
        }
    }
    let (status, took) = (response.status().as_u16(), started.elapsed());
    state.metrics().answered(&endpoint, Answered { verdict, status, took });
    if let Some(tenant) = &about.tenant {
        state.metrics().of_tenant(tenant, verdict);
    }
    access(&Access {
        tenant: about.tenant.as_deref(),
        key_hash: about.key_hash.as_deref(),
        endpoint: endpoint.name(),
        status,
        replayed: verdict == "replay",
        verdict,
        reason: None,
        cause: None,
        request_id: &ids.request,
        correlation_id: ids.correlation.as_deref(),
        took,
    });
    response
}

/// 404 for a path that is not ours.
pub(crate) async fn no_such_path() -> Problem {
    Problem::absent(ROUTE_UNKNOWN, "there is nothing here; GET /openapi.json tells what there is")
}

/// 405 for a method that the path does not have.
pub(crate) async fn no_such_method() -> Problem {
    let title = "The path has no such method";
    let detail = "GET /openapi.json tells which methods the path has";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, METHOD_NOT_ALLOWED, title, detail)
}
