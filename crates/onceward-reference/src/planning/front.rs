//! What every request passes first: its ids (A25), `if_match` of the query, and the cache's rule.
//!
//! This stands in front of the layer: `If-Match` must be there before the layer looks for it, and
//! what a first execution has made is only known once the layer has committed it.

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, IF_MATCH};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, StatusCode, Uri};
use onceward::http::{Code, Dialect, Refusal, Served, names};

use super::Planning;
use super::cache::Fresh;
use super::command::BODY_BYTES_MAX;
use super::people;
use crate::ids::ensure_ids;
use crate::percent::decoded;

/// Where collaborators are made: the one write whose body decides which role it takes.
const COLLABORATORS: &str = "/v1/collaborators";

/// Lets a request in, and its answer out.
pub(super) async fn enter(
    State(planning): State<Planning>,
    mut request: Request,
    next: Next,
) -> Response {
    let (_, correlation_id) = ensure_ids(request.headers_mut());
    let writes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if writes && let Err(refusal) = if_match_of_query(&mut request) {
        let (head, body) = request.into_parts();
        if let Some(mut response) = refused(&planning, &head, refusal) {
            response.headers_mut().insert(names::X_CORRELATION_ID, correlation_id);
            // Only a connection whose body was read takes another request.
            if to_bytes(body, BODY_BYTES_MAX).await.is_err() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            return response;
        }
        request = Request::from_parts(head, body);
    }
    let mut response = if writes {
        // In a task of its own: a client that goes away does not take back what is committed, and
        // the cache has to hear of it.
        match tokio::spawn(write(planning, request, next)).await {
            Ok(response) => response,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is going down, and this connection with it.
                Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            },
        }
    } else {
        next.run(request).await
    };
    response.headers_mut().entry(names::X_CORRELATION_ID).or_insert(correlation_id);
    response
}

/// Refuses a write as the layer would, and tells whoever counts and logs. None where the layer has
/// something to say first: that nobody knows who asks, or that there is no such route.
fn refused(planning: &Planning, head: &Parts, refusal: Refusal) -> Option<Response> {
    let caller = planning.identify(head)?;
    let (_, place) = planning.door().routes().find(&head.method, head.uri.path())?;
    let refusal = planning.door().allows(&caller).err().unwrap_or(refusal);
    let id = head.headers.get(names::X_REQUEST_ID);
    let text = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    let said = Dialect::Planning.speaker().refuse(&refusal, text);
    let mut response = said.map(axum::body::Body::from);
    if let Some(id) = id {
        response.headers_mut().insert(names::X_REQUEST_ID, id.clone());
    }
    response.extensions_mut().insert(Served {
        endpoint: place.endpoint,
        tenant: Some(caller.tenant),
        key_hash: None,
        cached: None,
        expired: false,
        verdict: refusal.code.meaning().code,
        reason: None,
    });
    Some(response)
}

/// Runs a write; what it made anew replaces what the cache has.
async fn write(planning: Planning, request: Request, next: Next) -> Response {
    let cache = planning.cache();
    let writing = cache.writing(request.uri().path());
    let (head, body) = request.into_parts();
    let asked = (head.uri.path() == COLLABORATORS).then(|| head.clone());
    let mut response = next.run(Request::from_parts(head, body)).await;
    if let Some(head) = asked
        && response.extensions().get::<Served>().is_some_and(|served| served.verdict == "replay")
    {
        response = people::replayed(&planning, &head, response).await;
    }
    // Refused and replayed writes bring nothing fresh.
    match response.extensions_mut().remove::<Fresh>() {
        Some(fresh) if response.status().is_success() => cache.fill(fresh),
        // It may be committed all the same: nobody knows, so nothing is known of it here.
        _ if response.status().is_server_error() => cache.forget(&writing),
        _ => {}
    }
    drop(writing);
    response
}

/// Takes `if_match` out of the query and says it as `If-Match`. A bare revision is quoted.
fn if_match_of_query(request: &mut Request) -> Result<(), Refusal> {
    let invalid = |detail: &str| Refusal::new(Code::PreconditionInvalid, detail);
    let Some(query) = request.uri().query() else { return Ok(()) };
    let is_ours = |part: &&str| part.split('=').next() == Some("if_match");
    let (ours, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_ours);
    let tag = match ours.as_slice() {
        [] => return Ok(()),
        [one] => one.split_once('=').map_or("", |(_, value)| value),
        _ => return Err(invalid("if_match comes more than once in the query")),
    };
    // As a form would send it.
    let tag = decoded(&tag.replace('+', " ")).ok_or_else(|| invalid("if_match is not a text"))?;
    let bare = !tag.starts_with(['"', '*']) && !tag.starts_with("W/");
    let tag = if bare { format!("\"{tag}\"") } else { tag };
    let tag = HeaderValue::from_str(&tag).map_err(|_| invalid("if_match is not an ETag"))?;
    if request.headers().get(IF_MATCH).is_some_and(|header| *header != tag) {
        return Err(invalid("If-Match and if_match of the query are not the same"));
    }
    let rest = others.join("&");
    let path = request.uri().path();
    let rest = if rest.is_empty() { path.to_string() } else { format!("{path}?{rest}") };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = rest.parse::<PathAndQuery>().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(IF_MATCH, tag);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn entered(uri: &str, header: Option<&str>) -> Result<(String, Option<String>), Code> {
        let mut request = Request::builder().uri(uri);
        if let Some(header) = header {
            request = request.header("if-match", header);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if_match_of_query(&mut request).map_err(|refusal| refusal.code)?;
        let tag = request.headers().get("if-match");
        let tag = tag.map(|tag| tag.to_str().unwrap().to_string());
        Ok((request.uri().to_string(), tag))
    }

    #[test]
    fn if_match_may_come_in_the_query() {
        let said = |uri: &str, tag: Option<&str>| Ok((uri.to_string(), tag.map(Into::into)));
        assert_eq!(entered("/x?if_match=3", None), said("/x", Some("\"3\"")));
        assert_eq!(entered("/x?a=1&if_match=%223%22&b", None), said("/x?a=1&b", Some("\"3\"")));
        assert_eq!(entered("/x?if_match=*", None), said("/x", Some("*")));
        assert_eq!(entered("/x?if_match=3", Some("\"3\"")), said("/x", Some("\"3\"")));
        assert_eq!(entered("/x?a=1", None), said("/x?a=1", None));
        for (uri, header) in [
            ("/x?if_match=3&if_match=3", None),
            ("/x?if_match=3", Some("\"4\"")),
            ("/x?if_match=%zz", None),
        ] {
            assert_eq!(entered(uri, header), Err(Code::PreconditionInvalid), "{uri}");
        }
    }
}
