//! What an answer says of the end of its request: status, `Retry-After`, and a problem's word on
//! whether a retry may succeed. The facts are gathered here; what they come to is decided by
//! `onceward_core::outcome_policy`.

use std::collections::HashSet;
use std::sync::LazyLock;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::response;
use onceward_core::outcome_policy::{Ending, PROBLEM_BYTES_MAX, Said, ending};
use serde_json::Value;

use super::answer::is_media_type;
use super::dialect::Dialect;
use super::policy::{Commits, Policy};
use super::refusal::{Code, Refusal};

/// Marks an answer (in its extensions) as a refusal of a layer, whatever dialect said it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused(pub(super) Code);

/// What may be read of an answer, as far as it has come: a body that is not all there says nothing.
pub(super) fn said(head: &response::Parts, body: Option<&[u8]>) -> Said {
    let status = head.status.as_u16();
    let mut said = Said {
        status,
        retry_after: head.headers.contains_key(RETRY_AFTER),
        retryable: false,
        refusal: head.extensions.get::<Refused>().is_some_and(|by| !by.0.is_outcome()),
    };
    let body = body.filter(|body| body.len() <= PROBLEM_BYTES_MAX && is_telling(head));
    // What nobody here can read may ask for a retry: a handler that runs again can say so again.
    said.retryable = is_telling(head) && is_encoded(head);
    if let Some(Value::Object(problem)) = body.and_then(|body| serde_json::from_slice(body).ok()) {
        said.retryable |= problem.get("retryable") == Some(&Value::Bool(true));
        let text = |name| problem.get(name).and_then(Value::as_str).unwrap_or_default();
        said.refusal |= is_ours(text("type"), text("code"));
    }
    said
}

/// How an answer ends its attempt under this policy. Where nothing can have happened without a
/// record, whatever is not stored is released.
pub(super) fn ends(said: &Said, policy: &Policy) -> Ending {
    let ending = ending(said, &policy.statuses);
    match policy.commits {
        Commits::One if !ending.is_stored() => Ending::Released,
        _ => ending,
    }
}

/// How much of an answer is read before it is passed on: what may be stored, or a problem that may
/// say whether its status is final.
pub(super) fn read_most(head: &response::Parts, policy: &Policy) -> u64 {
    let problem = if is_telling(head) { PROBLEM_BYTES_MAX as u64 } else { 0 };
    policy.max_stored_bytes.max(problem)
}

/// Whether a body may say more of the end than the status: a problem (RFC 9457) with a 4xx. Those
/// with a 5xx say that something went wrong, which is what counts.
fn is_telling(head: &response::Parts) -> bool {
    let is_problem = is_media_type(head.headers.get(CONTENT_TYPE), "application/problem+json");
    head.status.is_client_error() && is_problem
}

/// Whether a body comes in an encoding, so that it can't be read here.
fn is_encoded(head: &response::Parts) -> bool {
    let mut lines = head.headers.get_all(CONTENT_ENCODING).iter();
    lines.any(|line| !line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}

/// Whether a problem is one that another gateway of ours refused a request with, unjudged. Its type
/// is a URN, or a page, that ends in the code.
fn is_ours(type_uri: &str, code: &str) -> bool {
    static UNJUDGED: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let codes = Code::ALL.into_iter().filter(|code| !code.is_outcome());
        let said = codes.flat_map(|code| {
            [Dialect::Standard, Dialect::Planning].map(|dialect| {
                let said = dialect.speaker().refuse(&Refusal::new(code, ""), "");
                let said: Value = serde_json::from_slice(said.body()).unwrap_or_default();
                said["code"].as_str().unwrap_or_default().to_string()
            })
        });
        said.collect()
    });
    let named = type_uri.strip_suffix(code).is_some_and(|before| before.ends_with([':', '/']));
    named && UNJUDGED.contains(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;

    fn answer(status: u16, media_type: &str, body: &str) -> Said {
        let answer = Response::builder().status(status).header(CONTENT_TYPE, media_type);
        let (head, ()) = answer.body(()).unwrap().into_parts();
        said(&head, Some(body.as_bytes()))
    }

    const PROBLEM: &str = "application/problem+json";

    #[test]
    fn h3_a_problem_says_whether_a_retry_may_succeed() {
        let yes = r#"{"retryable":true}"#;
        for (said, expected) in [
            (answer(409, PROBLEM, yes), true),
            (answer(423, "Application/Problem+JSON; charset=utf-8", yes), true),
            (answer(409, "application/json", yes), false),
            (answer(409, PROBLEM, r#"{"retryable":"true"}"#), false),
            (answer(409, PROBLEM, r#"{"a":{"retryable":true}}"#), false),
            (answer(409, PROBLEM, r#"[{"retryable":true}]"#), false),
            (answer(409, PROBLEM, "{"), false),
            (answer(502, PROBLEM, yes), false),
        ] {
            assert_eq!(said.retryable, expected, "{said:?}");
        }
        let long = |bytes: usize| {
            let rest = "x".repeat(bytes - r#"{"retryable":true,"a":""}"#.len());
            answer(409, PROBLEM, &format!(r#"{{"retryable":true,"a":"{rest}"}}"#)).retryable
        };
        assert!(long(PROBLEM_BYTES_MAX) && !long(PROBLEM_BYTES_MAX + 1));
    }

    #[test]
    fn h3_refusals_of_another_gateway_are_known_by_type_and_code() {
        let ours = |type_uri: &str, code: &str| {
            let body = serde_json::json!({ "type": type_uri, "code": code });
            answer(409, PROBLEM, &body.to_string()).refusal
        };
        let unknown = "idempotency.outcome_unknown";
        assert!(ours("urn:onceward:problem:idempotency.outcome_unknown", unknown));
        assert!(ours("https://docs.example/problems/idempotency.outcome_unknown", unknown));
        let etag = "planning.concurrency_etag_required";
        assert!(ours(&format!("urn:onceward:problem:{etag}"), etag));
        assert!(!ours("about:blank", unknown));
        assert!(!ours("urn:onceward:problem:other", unknown));
        assert!(!ours("", ""));
        // These are what came of the request.
        for judged in ["precondition.failed", "concurrency.version_mismatch", "a.b"] {
            assert!(!ours(&format!("urn:onceward:problem:{judged}"), judged), "{judged}");
        }
    }

    #[test]
    fn h3_a_problem_that_can_not_be_read_may_ask_for_a_retry() {
        let retryable = |status: u16, media_type: &str, encodings: &[&str]| {
            let mut answer = Response::builder().status(status).header(CONTENT_TYPE, media_type);
            for encoding in encodings {
                answer = answer.header(CONTENT_ENCODING, *encoding);
            }
            let (head, ()) = answer.body(()).unwrap().into_parts();
            let said = said(&head, Some(b"\x1f\x8b"));
            (said.retryable, ends(&said, &Policy::default()).is_stored())
        };
        for encodings in [&["gzip"][..], &["identity", "br"], &["identity, gzip"]] {
            assert_eq!(retryable(409, PROBLEM, encodings), (true, false), "{encodings:?}");
            assert_eq!(retryable(423, PROBLEM, encodings), (true, false), "{encodings:?}");
        }
        assert_eq!(retryable(409, PROBLEM, &["Identity"]), (false, true));
        assert_eq!(retryable(409, PROBLEM, &[]), (false, true));
        assert_eq!(retryable(409, "application/json", &["gzip"]), (false, true));
        assert!(retryable(422, PROBLEM, &["gzip"]).1, "no retry changes it");
    }
}
