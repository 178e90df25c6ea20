//! The policy document: what `/.well-known/idempotency-policy` publishes, per route.
//!
//! Made from the policies and dialects that are enforced, so that it can't say something else.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response};
use onceward_core::outcome_policy::{Ending, Said};
use onceward_core::record::OnAbandoned;
use serde_json::{Map, Value, json};

use super::body::Body;
use super::outcome::STORED_HEADERS;
use super::policy::{Commits, IfMatch, MissingKey, Mode, Policy};
use super::refusal::{Code, Refusal};
use super::route::Routes;
use super::said::ends;

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
        "on_abandoned": match policy.on_abandoned {
            OnAbandoned::Rerun => "rerun",
            OnAbandoned::Hold => "hold",
        },
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
    let refusals: Map<String, Value> =
        Code::ALL.into_iter().filter(|code| code.is_of_routes()).map(said).collect();
    let mut classes = classes(policy);
    classes.insert("refusals".into(), Value::Object(refusals));
    Value::Object(classes)
}

/// Statuses by what becomes of the key. A number goes before the class that it is in.
fn classes(policy: &Policy) -> Map<String, Value> {
    // A handler that records what it answers has done nothing where it recorded nothing.
    let is_certain = policy.permit_text.is_some() || policy.commits == Commits::One;
    let of_failures = if is_certain { Ending::Released } else { Ending::Unknown };
    let ending = |status, retry_after| match ends(
        &Said { status, retry_after, ..Said::default() },
        policy,
    ) {
        Ending::Unknown => of_failures,
        ending => ending,
    };
    let errors = |is: &dyn Fn(u16) -> bool| -> Vec<Value> {
        (400..600).filter(|status| is(*status)).map(|status| json!(status)).collect()
    };
    let ending_so = |wanted| {
        let is_class = wanted == of_failures;
        let is = |status| ending(status, false) == wanted && !(is_class && status >= 500);
        let class = is_class.then(|| json!("5xx"));
        errors(&is).into_iter().chain(class).collect::<Vec<_>>()
    };
    let stored = errors(&|status| status >= 500 && ending(status, false).is_stored());
    let later = errors(&|status| {
        ending(status, true) == Ending::Released && ending(status, false) != Ending::Released
    });
    let classes = [
        ("stored", [vec![json!("2xx"), json!("3xx"), json!("4xx")], stored].concat()),
        ("released", ending_so(Ending::Released)),
        ("released_with_retry_after", later),
        ("unknown_end", ending_so(Ending::Unknown)),
    ];
    classes.into_iter().map(|(name, list)| (name.into(), Value::from(list))).collect()
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
