//! What both ways of running a handler share: the head that it gets, and how answers are said.
//!
//! Only form lives here: a replay is marked and a handler's refusal is said in the route's dialect.
//! Whether there is an answer at all is decided by the two ways, `layer` and `once`.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, response};

use super::admit::Admitted;
use super::body::Body;
use super::door::{Door, replayed};
use super::identity::Caller;
use super::names;
use super::outcome::StoredResponse;
use super::policy::Policy;
use super::preconditions::TagRules;
use super::refusal::Refusal;
use super::room::Whose;
use super::said::Refused;
use super::served::{Again, Anew};

/// The head with what extractors look for.
pub(super) fn for_handler(mut head: Parts, policy: &Policy, caller: &Caller) -> Parts {
    let strict = policy.dialect.speaker().strict_tags();
    head.extensions.insert(TagRules { strict, altered: policy.altered_etags });
    head.extensions.insert(caller.clone());
    head
}

/// A replay, marked as the dialect marks it.
pub(super) fn said_again(
    stored: StoredResponse,
    door: &Door,
    policy: &Policy,
    admitted: &Admitted,
) -> Result<Response<Body>, Refusal> {
    let whose = Whose::of(&admitted.claim.key, &admitted.claim.trace);
    let mut response = replayed(stored, door, whose)?;
    policy.dialect.speaker().mark_replay(response.headers_mut());
    response.extensions_mut().insert(Again);
    Ok(response.map(Body::from))
}

/// Marks the answer of an execution whose key had an expired record.
pub(super) fn mark_anew(response: &mut Response<Body>, policy: &Policy) {
    policy.dialect.speaker().mark_expired(response.headers_mut());
    response.extensions_mut().insert(Anew);
}

/// A handler's refusal, said again in the route's dialect: its new body.
pub(super) fn spoken(
    head: &mut response::Parts,
    policy: &Policy,
    request_id: Option<&HeaderValue>,
) -> Option<Bytes> {
    let refusal = head.extensions.remove::<Refusal>()?;
    let id = request_id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    let (said, body) = policy.dialect.speaker().refuse(&refusal, id).into_parts();
    head.status = said.status;
    // What the refusal brings replaces what the first saying brought; the length is another now.
    head.headers.remove(CONTENT_LENGTH);
    head.headers.extend(said.headers);
    head.extensions.insert(Refused(refusal.code));
    Some(body)
}

/// Gives an answer the correlation id of its request, unless it names one: a replay tells the
/// original's, whether or not the handler repeats it (A08, A25).
pub(super) fn correlate(headers: &mut HeaderMap, of_request: Option<HeaderValue>) {
    if let Some(id) = of_request {
        headers.entry(names::X_CORRELATION_ID).or_insert(id);
    }
}

/// Whether a response never ends by itself. Media types are compared without regard to case (RFC
/// 9110, section 8.3.1).
pub(super) fn is_stream(content_type: Option<&HeaderValue>) -> bool {
    const STREAMS: [&str; 2] = ["text/event-stream", "multipart/x-mixed-replace"];
    STREAMS.iter().any(|name| is_media_type(content_type, name))
}

/// Whether a content has this media type, whatever its parameters.
pub(super) fn is_media_type(content_type: Option<&HeaderValue>, name: &str) -> bool {
    let Some(value) = content_type.map(HeaderValue::as_bytes) else { return false };
    let named = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    named.eq_ignore_ascii_case(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_known_by_their_media_type_in_any_spelling() {
        for (media_type, expected) in [
            ("text/event-stream", true),
            ("Text/Event-Stream;charset=utf-8", true),
            ("multipart/x-mixed-replace; boundary=b", true),
            ("application/x-ndjson", false),
            ("application/json", false),
            ("text/event-streams", false),
            ("", false),
        ] {
            let value = HeaderValue::from_static(media_type);
            assert_eq!(is_stream(Some(&value)), expected, "{media_type}");
        }
        assert!(!is_stream(None));
    }
}
