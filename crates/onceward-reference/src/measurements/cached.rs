//! Whether the replay cache and the store tell the same (D09): the store is the truth, and a cache
//! that differs from it is a fault to be heard of. Looked at with every answer from the cache: it
//! has an audit entry to write anyway.

use axum::body::{Body, to_bytes};
use axum::response::Response;
use http::request::Parts;
use onceward::core::key::{Key, Kind};
use onceward::http::{Caller, Served, StoredResponse, names, one_spelling};

use super::{BATCH, BATCH_BYTES_MAX, Happened, Measurements};

/// Compares an answer from the cache with the store's; gives the answer back.
pub(super) async fn compared(
    service: &Measurements,
    served: &Served,
    (head, caller): (&Parts, &Caller),
    response: Response,
) -> Response {
    let (answer, body) = response.into_parts();
    let key = answer.headers.get(names::X_IDEMPOTENCY_KEY).and_then(|key| key.to_str().ok());
    let key = key.and_then(|key| record_key(served, head, caller, key));
    // It is in memory: it came from the cache.
    let Ok(body) = to_bytes(body, BATCH_BYTES_MAX).await else {
        return Response::from_parts(answer, Body::empty());
    };
    if let Some(key) = key
        && let Ok(Some(found)) = service.engine().look(&key).await
    {
        let stored = found.stored.outcome.and_then(|it| StoredResponse::from_outcome(&it).ok());
        let same = stored.is_some_and(|stored| {
            stored.status == answer.status && stored.body.as_ref() == Some(&body)
        });
        service.observe(&Happened::Compared { same });
    }
    Response::from_parts(answer, Body::from(body))
}

/// The key of a request's record.
fn record_key(served: &Served, head: &Parts, caller: &Caller, key: &str) -> Option<Key> {
    let path = one_spelling(head.uri.path());
    let mut within = vec![caller.caller.as_str()];
    if served.endpoint != BATCH {
        within.push(path.strip_prefix("/v1/users/")?.strip_suffix("/measurements")?);
    }
    Key::within(Kind::Request, &caller.tenant, &served.endpoint, &within, key).ok()
}
