//! The planning dialect: the standard one with the planning API's statuses, codes and aliases.

use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::standard::problem;
use super::{Speak, json as respond};
use crate::http::refusal::{Code, Refusal};

pub(super) struct Planning;

impl Speak for Planning {
    fn name(&self) -> &'static str {
        "planning"
    }

    fn refuse(&self, refusal: &Refusal, instance: &str) -> Response<Bytes> {
        let meaning = refusal.code.meaning();
        let (status, code, alias) = match refusal.code {
            Code::PayloadMismatch => {
                (409, meaning.code, Some("planning.idempotency_replay_conflict"))
            }
            Code::KeyInvalid => {
                (meaning.status, meaning.code, Some("planning.idempotency_key_invalid"))
            }
            Code::PreconditionRequired => (428, "planning.concurrency_etag_required", None),
            Code::PreconditionFailed => (412, "planning.concurrency_mismatch", None),
            Code::PreconditionInvalid => (400, "planning.concurrency_etag_invalid", None),
            _ => (meaning.status, meaning.code, None),
        };
        let mut body = problem(refusal, status, code, instance);
        if let Some(alias) = alias {
            body.insert("alias".into(), json!(alias));
        }
        if refusal.code == Code::PreconditionFailed {
            // Where nothing is, that is said: the member is always there.
            body.entry("current_revision").or_insert(Value::Null);
        }
        respond(status, "application/problem+json", refusal, &Value::Object(body))
    }

    fn strict_tags(&self) -> bool {
        true
    }
}
