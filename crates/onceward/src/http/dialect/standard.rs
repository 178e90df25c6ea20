//! The standard dialect: RFC 9457 problem details, statuses of the IETF Idempotency-Key draft.

use bytes::Bytes;
use http::Response;
use serde_json::{Map, Value, json};

use super::{Speak, json as respond};
use crate::http::refusal::{Code, Refusal};

pub(super) struct Standard;

impl Speak for Standard {
    fn name(&self) -> &'static str {
        "standard"
    }

    fn refuse(&self, refusal: &Refusal, instance: &str) -> Response<Bytes> {
        let status = refusal.code.meaning().status;
        let body = problem(refusal, status, refusal.code.meaning().code, instance);
        respond(status, "application/problem+json", refusal, &Value::Object(body))
    }
}

/// The members of a problem.
pub(super) fn problem(
    refusal: &Refusal,
    status: u16,
    code: &str,
    instance: &str,
) -> Map<String, Value> {
    let meaning = refusal.code.meaning();
    let mut body = Map::new();
    body.insert("type".into(), json!(format!("urn:onceward:problem:{code}")));
    body.insert("title".into(), json!(meaning.title));
    body.insert("status".into(), json!(status));
    body.insert("detail".into(), json!(refusal.detail));
    body.insert("instance".into(), json!(format!("urn:request:{instance}")));
    body.insert("code".into(), json!(code));
    body.insert("retryable".into(), json!(meaning.retryable));
    body.insert("key_advice".into(), json!(meaning.key_advice.as_str()));
    if let Some(conflict) = &refusal.conflict {
        let differs = conflict.pointers.as_ref().map(|pointers| json!(pointers));
        let words = conflict.words.as_ref().map(|words| json!(words));
        let named = [("differs", differs), ("differs_text", words)];
        let told = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        body.extend(told);
    }
    match (&refusal.current, refusal.code) {
        (Some(current), Code::VersionMismatch) => {
            // A version is a number to whoever sent one in a body.
            let version = current.parse::<u64>().map_or(json!(current), |version| json!(version));
            body.insert("current_version".into(), version);
        }
        (Some(current), _) => {
            body.insert("current_revision".into(), json!(current));
        }
        (None, _) => {}
    }
    body
}
