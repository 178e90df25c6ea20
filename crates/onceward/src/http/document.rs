//! The policy document: what `/.well-known/idempotency-policy` publishes, per route.
//!
//! Made from the policies and dialects that are enforced, so that it can't say something else.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response};
use onceward_core::outcome_policy::{Keep, keep};
use serde_json::{Map, Value, json};

use super::body::Body;
use super::outcome::STORED_HEADERS;
use super::policy::{IfMatch, MissingKey, Mode, Policy};
use super::refusal::{Code, Refusal};
use super::route::Routes;

/// Where it is published.
pub const POLICY_PATH: &str = "/.well-known/idempotency-policy";

/// The document for these routes.
#[must_use]
pub fn policy_document(routes: &Routes) -> Value {
    let mut listed: Vec<Value> =
        routes.list().map(|(endpoint, policy)| route(&endpoint, policy)).collect();
    if listed.is_empty() {
        listed.push(route("POST, PUT, PATCH, DELETE *", routes.unwritten()));
    }
    json!({ "version": 1, "routes": listed })
}

/// The answer that publishes it.
pub(super) fn published(document: Bytes, method: &Method) -> Response<Body> {
    let length = HeaderValue::from(document.len());
    let body = if method == Method::HEAD { Bytes::new() } else { document };
    let mut response = Response::new(Body::from(body));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response.headers_mut().insert(CONTENT_LENGTH, length);
    response
}

fn route(endpoint: &str, policy: &Policy) -> Value {
    let speaker = policy.dialect.speaker();
    let scope: &[&str] =
        if policy.per_caller { &["tenant", "caller", "endpoint"] } else { &["tenant", "endpoint"] };
    let key_headers: Vec<_> =
        speaker.key_headers().iter().map(|name| name.as_str().to_string()).collect();
    json!({
        "match": endpoint,
        "dialect": speaker.name(),
        "mode": match policy.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Off => "off",
        },
        "key": {
            "headers": key_headers,
            "missing": match policy.missing_key {
                MissingKey::Require => "require",
                MissingKey::Derive => "derive",
                MissingKey::Allow => "allow",
            },
            "format": "raw, or a quoted structured-field string; both are one key",
            "characters": "0x21-0x7E",
            "min_length": 1,
            "max_length": 128,
        },
        "scope": scope,
        "retention": {
            "success_s": seconds(policy.retain_ms),
            "error_s": seconds(policy.retain_errors_ms),
            "expired_key_s": seconds(policy.terms().remember_ms),
        },
        "in_flight": { "wait_ms": policy.wait_ms },
        "if_match": match policy.if_match {
            IfMatch::Off => "off",
            IfMatch::Allow => "allow",
            IfMatch::Require => "require",
        },
        "max_request_bytes": policy.max_request_bytes,
        "max_stored_bytes": policy.max_stored_bytes,
        "statuses": statuses(policy),
        "headers": headers(policy),
    })
}

/// A time in seconds: whole where it is, and never another one than is kept.
fn seconds(ms: u64) -> Value {
    match ms % 1_000 {
        0 => json!(ms / 1_000),
        _ => json!(ms as f64 / 1_000.0),
    }
}

/// What a dialect calls a refusal, read from how it says it: a problem's `code`, or an `error` that
/// is a word or has a code. One that says none of them is given the standard word.
fn named(said: &[u8], code: Code) -> String {
    let said: Value = serde_json::from_slice(said).unwrap_or_default();
    let words = [&said["code"], &said["error"]["code"], &said["error"]];
    let word = words.into_iter().find_map(Value::as_str);
    word.unwrap_or(code.meaning().code).to_string()
}

/// Which statuses are stored, and each refusal by its name in the route's dialect, with its status.
fn statuses(policy: &Policy) -> Value {
    let speaker = policy.dialect.speaker();
    let said = |code: Code| {
        let response = speaker.refuse(&Refusal::new(code, ""), "");
        (named(response.body(), code), json!(response.status().as_u16()))
    };
    let refusals: Map<String, Value> = Code::ALL.into_iter().map(said).collect();
    let kept = |wanted: Keep| -> Vec<u16> {
        (400..600).filter(|status| keep(*status) == wanted).collect()
    };
    let never: Vec<Value> = kept(Keep::Never)
        .into_iter()
        .filter(|status| *status < 500)
        .map(|status| json!(status))
        .chain([json!("5xx")])
        .collect();
    json!({ "stored": ["2xx", "3xx", "4xx"], "never_stored": never, "refusals": refusals })
}

fn headers(policy: &Policy) -> Value {
    let speaker = policy.dialect.speaker();
    let named = |mark: &dyn Fn(&mut HeaderMap)| -> Vec<String> {
        let mut headers = HeaderMap::new();
        mark(&mut headers);
        headers.keys().map(|name| name.as_str().to_string()).collect()
    };
    let mut stored: Vec<String> = STORED_HEADERS.iter().map(ToString::to_string).collect();
    stored.extend(policy.store_headers.iter().map(ToString::to_string));
    json!({
        "replay": named(&|headers| speaker.mark_replay(headers)),
        "expired": named(&|headers| speaker.mark_expired(headers)),
        "not_stored": ["idempotency-stored"],
        "stored": stored,
    })
}
