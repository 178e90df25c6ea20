//! The business dialect: `{"error":{"code","message","details"}}`, conflicts with a readable diff.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use onceward_core::diff::{Change, differs_text};
use serde_json::{Value, json};

use super::{Speak, json as respond};
use crate::http::date::rfc3339;
use crate::http::names;
use crate::http::refusal::{Code, Conflict, Refusal};

pub(super) struct Business;

impl Speak for Business {
    fn name(&self) -> &'static str {
        "business"
    }

    fn refuse(&self, refusal: &Refusal, _: &str) -> Response<Bytes> {
        let meaning = refusal.code.meaning();
        let (status, code) = match refusal.code {
            Code::PayloadMismatch => (409, "IDEMPOTENCY_CONFLICT".into()),
            Code::InFlight => (409, "IDEMPOTENCY_IN_PROGRESS".into()),
            Code::OutcomeUnknown => (409, "IDEMPOTENCY_OUTCOME_UNKNOWN".into()),
            Code::KeyInvalid | Code::KeyRequired => (400, "IDEMPOTENCY_KEY_INVALID".into()),
            Code::StoreUnavailable => (503, "STORE_UNAVAILABLE".into()),
            _ => (meaning.status, meaning.code.to_uppercase().replace('.', "_")),
        };
        let (message, details) = match &refusal.conflict {
            Some(conflict) => (
                "Request body differs from original request with same idempotency key",
                conflict_details(conflict),
            ),
            None => (refusal.detail.as_str(), plain_details(refusal)),
        };
        let body = json!({ "error": { "code": code, "message": message, "details": details } });
        let mut response = respond(status, "application/json", refusal, &body);
        if refusal.code == Code::PayloadMismatch {
            let value = HeaderValue::from_static("body-mismatch");
            response.headers_mut().insert(names::X_CONFLICT, value);
        }
        response
    }

    fn mark_replay(&self, headers: &mut HeaderMap) {
        headers.insert(names::X_REPLAY, HeaderValue::from_static("true"));
    }

    fn mark_expired(&self, headers: &mut HeaderMap) {
        headers.insert(names::X_EXPIRED, HeaderValue::from_static("true"));
    }
}

/// What a program needs to know of any other refusal.
fn plain_details(refusal: &Refusal) -> Value {
    let mut details = json!({});
    if let Some(seconds) = refusal.retry_after_s {
        details["retry_after"] = json!(seconds);
    }
    details
}

fn conflict_details(conflict: &Conflict) -> Value {
    let mut summary: Vec<String> = match (&conflict.changes, &conflict.pointers) {
        (Some(diff), _) => diff.changes.iter().map(line).collect(),
        // Two bodies of other media types may be the same in all that can be named.
        (None, Some(pointers)) if *pointers != [""] => {
            pointers.iter().map(|pointer| dotted(pointer)).collect()
        }
        (None, _) => Vec::new(),
    };
    if conflict.changes.as_ref().is_some_and(|diff| diff.truncated) {
        summary.push("(more changes are not shown)".into());
    }
    if summary.is_empty() {
        summary.push(match &conflict.words {
            Some(words) => format!("({words})"),
            None => "(what differs is not known)".into(),
        });
    }
    json!({
        "original_key": conflict.key,
        "current_hash": conflict.current_hash,
        "original_hash": conflict.original_hash,
        "diff_summary": summary,
        "original_timestamp": rfc3339(conflict.original_at),
        "retry_after": conflict.expires_in_s,
    })
}

/// `customer_info.phone: '+1' → '+2'`
fn line(change: &Change) -> String {
    if change.old.is_none() && change.new.is_none() {
        // It has no values to show.
        return dotted(&change.pointer);
    }
    let side = |value: &Option<String>| value.as_deref().map_or("(absent)".into(), quoted);
    format!("{}: {} → {}", dotted(&change.pointer), side(&change.old), side(&change.new))
}

/// A JSON text as people read it: strings in single quotes, everything else as it is.
fn quoted(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(Value::String(text)) => format!("'{text}'"),
        _ => json.to_string(),
    }
}

/// A JSON pointer as a dotted path; what is none in words.
fn dotted(pointer: &str) -> String {
    if pointer.starts_with('?') {
        return differs_text(&[pointer.to_owned()]);
    }
    let parts = pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~"));
    let path = parts.collect::<Vec<_>>().join(".");
    if path.is_empty() { "(body)".into() } else { path }
}
