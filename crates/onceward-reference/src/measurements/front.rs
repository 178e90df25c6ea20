//! What every request passes first: its ids, and what has to be said and written of answers that
//! the layer gives by itself.
//!
//! A replay, a key that was used for something else or is being used, and what can't be read as a
//! key or as JSON never reach a handler; they are attempts all the same, so their audit entries are
//! written here, before the answer goes (D07). What a request carried is noted while the layer
//! reads it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use futures_util::TryStreamExt;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use onceward::core::audit::Entry;
use onceward::http::{Caller, Code, Served, names};

use super::answer::{self, IN_PROGRESS, INVALID, KEY_INVALID, KEY_REUSED, X_DUPLICATE_OF};
use super::attempt::{Action, Attempt};
use super::batch::{items, of_batch, trace, written};
use super::cached::compared;
use super::measurement::Submitted;
use super::submit::Came;
use super::{BATCH, BATCH_BYTES_MAX, Happened, Measurements, SINGLE};
use crate::ids::ensure_ids;
use crate::percent::decoded;

/// What the layer has read of a body so far, for as long as it fits.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<Bytes>>>);

impl Noted {
    /// The same body, noted while it is read. Chunks are shared, not copied.
    fn of(&self, body: Body) -> Body {
        let (noted, mut bytes) = (self.clone(), 0);
        Body::from_stream(body.into_data_stream().inspect_ok(move |chunk| {
            bytes += chunk.len();
            if bytes <= BATCH_BYTES_MAX {
                noted.0.lock().unwrap_or_else(PoisonError::into_inner).push(chunk.clone());
            }
        }))
    }

    fn whole(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).concat()
    }
}

/// Lets a request in, and its answer out.
pub(super) async fn enter(
    State(service): State<Measurements>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let (_, correlation_id) = ensure_ids(request.headers_mut());
    if request.method() != Method::POST {
        let mut response = next.run(request).await;
        response.headers_mut().entry(names::X_CORRELATION_ID).or_insert(correlation_id);
        return response;
    }
    let noted = Noted::default();
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head.clone(), noted.of(body));
    let response = next.run(request).await;
    let mut response = told(&service, &head, &noted, (response, began)).await;
    response.headers_mut().entry(names::X_CORRELATION_ID).or_insert(correlation_id);
    response
}

/// Writes and counts what no handler has, and names the measurement that was known.
async fn told(
    service: &Measurements,
    head: &Parts,
    noted: &Noted,
    (mut response, began): (Response, Instant),
) -> Response {
    let Some(served) = response.extensions().get::<Served>().cloned() else { return response };
    if let Some(hit) = served.cached {
        service.observe(&Happened::Looked { hit });
    }
    let caller = service.identify(head);
    // Of a body that is too large nothing was read, however much of it has come.
    let is_too_large = response.status() == StatusCode::PAYLOAD_TOO_LARGE;
    let body = if is_too_large { Vec::new() } else { noted.whole() };
    if let (Some((action, reason, error)), Some(caller)) =
        (unheard(service, &served, response.status(), caller.as_ref()), caller)
    {
        let entries = entries(&served, (head, &caller), &body, (action, reason));
        let count = entries.len();
        if let Err(failed) = written(service.engine(), &caller.tenant, entries).await {
            return answer::no_answer(&failed);
        }
        let took = began.elapsed();
        for _ in 0..count {
            service.observe(&Happened::Attempt { action, error, took });
        }
        if served.cached == Some(true) {
            response = compared(service, &served, (head, &caller), response).await;
        }
    }
    if let Some(came) = response.extensions_mut().remove::<Came>() {
        let Came { action, error, duplicate_of } = came;
        service.observe(&Happened::Attempt { action, error, took: began.elapsed() });
        name_duplicate(&mut response, duplicate_of);
    } else if served.verdict == "replay"
        && served.endpoint == SINGLE
        && matches!(response.status().as_u16(), 200 | 409)
    {
        // A recorded 200 or 409 of a single measurement says that it was known. The body is the
        // one that it was said of, or this were no replay.
        let id = Submitted::of_json(&body).and_then(|sent| sent.id());
        name_duplicate(&mut response, id);
    }
    response
}

/// What came of an attempt that the layer answered by itself, and why; none when there is nothing
/// to be written of it.
fn unheard(
    service: &Measurements,
    served: &Served,
    status: StatusCode,
    caller: Option<&Caller>,
) -> Option<(Action, &'static str, Option<&'static str>)> {
    let is = |code: Code| served.verdict == code.meaning().code;
    let refused = |error| (Action::Rejected, error, Some(error));
    // Judged before the rate limit, which bounds what is written of it.
    let allowed = || caller.is_some_and(|caller| service.door().allows(caller).is_ok());
    match served.verdict {
        "replay" => Some((Action::Duplicate, "the request was replayed", None)),
        _ if is(Code::PayloadMismatch) => Some(refused(KEY_REUSED)),
        _ if is(Code::InFlight) => Some(refused(IN_PROGRESS)),
        _ if is(Code::KeyInvalid) => allowed().then(|| refused(KEY_INVALID)),
        _ if is(Code::BodyNotCanonical) => allowed().then(|| refused(INVALID)),
        // Words of the library's, which the answer names as well.
        _ if is(Code::BodyTooLarge) => allowed().then(|| refused(served.verdict)),
        // The handler's, which has read what came without a key; the layer has asked how often.
        "none" if status == StatusCode::PAYLOAD_TOO_LARGE => {
            Some(refused(Code::BodyTooLarge.meaning().code))
        }
        _ if is(Code::ResponseNotStored) || is(Code::OutcomeUnknown) => {
            Some(refused(served.verdict))
        }
        _ => None,
    }
}

fn name_duplicate(response: &mut Response, id: Option<String>) {
    let Some(id) = id else { return };
    // A header is ASCII; whatever is not is spelled as in an address.
    let spelled: String = id
        .bytes()
        .map(|byte| match byte {
            b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    if let Ok(value) = HeaderValue::from_str(&spelled) {
        response.headers_mut().insert(X_DUPLICATE_OF, value);
    }
}

/// The entries of a request that no handler saw.
fn entries(
    served: &Served,
    (head, caller): (&Parts, &Caller),
    body: &[u8],
    (action, reason): (Action, &str),
) -> Vec<Entry> {
    let trace = trace(head, caller);
    let entry = |sent: Option<&Submitted<'_>>, user_id: &str| {
        let id = sent.and_then(Submitted::id);
        let payload = sent.and_then(Submitted::audited);
        let read = sent.and_then(|sent| sent.read(Some(user_id)).ok());
        let attempt = Attempt {
            user_id,
            id: id.as_deref(),
            action,
            reason: Some(reason),
            payload: payload.as_deref(),
            payload_hash: read.map(|read| read.payload.fingerprint().to_string()),
        };
        attempt.entry(&caller.tenant, &trace)
    };
    if served.endpoint == BATCH {
        let Ok(items) = items(body) else {
            return vec![of_batch(&caller.tenant, &trace, (action, reason))];
        };
        let sent = items.into_iter().filter_map(|item| Submitted::of_json(item.get().as_bytes()));
        return sent.map(|sent| entry(Some(&sent), &sent.user_id().unwrap_or_default())).collect();
    }
    let sent = Submitted::of_json(body);
    vec![entry(sent.as_ref(), &user_of(head.uri.path()).unwrap_or_default())]
}

/// The user of a single measurement's path.
fn user_of(path: &str) -> Option<String> {
    decoded(path.strip_prefix("/v1/users/")?.strip_suffix("/measurements")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_read_off_the_path() {
        let user = |path: &str| user_of(path);
        assert_eq!(user("/v1/users/u%2F1/measurements").as_deref(), Some("u/1"));
        assert_eq!(user("/v1/users/é/measurements").as_deref(), Some("é"));
        assert_eq!(user("/v1/users/%zz/measurements"), None);
        assert_eq!(user("/v1/measurements/batch"), None);
    }

    #[test]
    fn a_duplicate_is_named_in_ascii() {
        let mut response = Response::new(Body::empty());
        name_duplicate(&mut response, Some("mé 1".into()));
        assert_eq!(response.headers()[X_DUPLICATE_OF], "m%C3%A9 1");
    }
}
