//! `POST /v1/users/{user_id}/measurements`: one measurement, one commit.
//!
//! The handler looks, judges, and hands back document, key, last timestamp and audit entry with its
//! answer; the layer commits them with the request's key. When someone else was first, it runs
//! again on what is there then.

use axum::body::to_bytes;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName};
use onceward::core::decide::Effects;
use onceward::core::limits::LimitError;
use onceward::engine::EngineError;
use onceward::http::{Writes, names};

use super::answer::{self, INVALID, OVERRIDE};
use super::attempt::{Action, Attempt};
use super::batch::trace;
use super::measurement::{FieldError, Measurement, Submitted, last_of};
use super::reads::User;
use super::rules::{Judged, Rules};
use super::settle::{Context, Verdict, span};
use super::{Measurements, SINGLE_BYTES_MAX};

const X_FORCE_OVERRIDE: HeaderName = HeaderName::from_static("x-force-override");

/// What came of a single measurement: in the extensions of its answer, for the front to tell once
/// it is committed.
#[derive(Debug, Clone)]
pub(super) struct Came {
    pub(super) action: Action,
    pub(super) error: Option<&'static str>,
    /// The id that was known before.
    pub(super) duplicate_of: Option<String>,
}

/// Whether the client insists on a timestamp that is out of order.
pub(super) fn insists(headers: &HeaderMap) -> bool {
    let value = headers.get(X_FORCE_OVERRIDE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}

/// The handler.
pub(super) async fn submit(
    State(service): State<Measurements>,
    User(user_id): User,
    request: Request,
) -> Response {
    let (mut head, body) = request.into_parts();
    let mut writes = match Writes::from_request_parts(&mut head, &()).await {
        Ok(writes) => writes,
        Err(refusal) => return refusal.into_response(),
    };
    let Ok(body) = to_bytes(body, SINGLE_BYTES_MAX).await else {
        return answer::too_large(SINGLE_BYTES_MAX);
    };
    let caller = writes.caller().clone();
    let trace = trace(&head, &caller);
    let context = Context { tenant: &caller.tenant, trace: &trace, settings: service.settings() };
    let submitted = Submitted::of_json(&body);
    let not_json = || vec![FieldError::new("body", "must be a JSON object without repetition")];
    let read = submitted.as_ref().ok_or_else(not_json).and_then(|sent| sent.read(Some(&user_id)));
    let submitted = submitted.unwrap_or_default();
    let mut response = match read {
        Ok(measurement) => {
            let forced = insists(&head.headers);
            if forced && let Err(why) = service.may_override(&caller) {
                return not_allowed(&service, context, (&measurement, &submitted), why).await;
            }
            let sent = (&measurement, &submitted);
            match settle(&service, context, sent, forced, &mut writes).await {
                Ok(response) => response,
                Err(error) => {
                    // What was prepared so far goes with no answer.
                    *writes.effects() = Effects::default();
                    answer::no_answer(&error)
                }
            }
        }
        Err(errors) => {
            let id = submitted.id();
            let payload = submitted.audited();
            let reason = format!("{INVALID}: {}", FieldError::sentence(&errors));
            let attempt = Attempt {
                user_id: &user_id,
                id: id.as_deref(),
                action: Action::Rejected,
                reason: Some(&reason),
                payload: payload.as_deref(),
                payload_hash: None,
            };
            writes.audit(attempt.entry(context.tenant, context.trace));
            came(answer::invalid(&errors, id.as_deref()), Action::Rejected, Some(INVALID), None)
        }
    };
    if let Some(id) = head.headers.get(names::X_CORRELATION_ID) {
        response.headers_mut().insert(names::X_CORRELATION_ID, id.clone());
    }
    writes.answer(response)
}

/// Looks, judges, and prepares what is to be committed.
async fn settle(
    service: &Measurements,
    context: Context<'_>,
    (measurement, submitted): (&Measurement, &Submitted<'_>),
    forced: bool,
    writes: &mut Writes,
) -> Result<Response, EngineError> {
    let rules = Rules::of(context.settings, context.tenant, &measurement.user_id, forced);
    let subjects =
        vec![last_of(context.tenant, &measurement.user_id)?, measurement.subject(context.tenant)?];
    let (now, seen) = service.engine().see_many(subjects).await?;
    let [last, document] = &seen[..] else {
        return Err(EngineError::Contended("by a store that answers less than it was asked"));
    };
    let judged = rules.judge(measurement, document.value.as_ref(), last.version, now.0);
    let payload = submitted.audited();
    let verdict =
        Verdict { measurement, payload: payload.as_deref(), rules: &rules, judged: &judged };
    let kept = verdict.add(writes.effects(), context, (document, now.0))?;
    if kept.is_some() {
        let at_ms = measurement.payload.at_ms;
        let moved = span(context.tenant, &measurement.user_id, &rules, (at_ms, at_ms))?;
        writes.effects().spans.push(moved);
    }
    let known = matches!(judged, Judged::Duplicate(_) | Judged::Conflict(_));
    let response = match (&judged, kept) {
        (Judged::Accepted(_), Some(result)) => answer::kept(&result),
        (Judged::Duplicate(result), _) => answer::known(result),
        (Judged::Conflict(original), _) => answer::conflict(measurement, original),
        (Judged::OutOfOrder { last_ms }, _) => {
            answer::out_of_order(measurement, *last_ms, rules.grace_ms)
        }
        (Judged::Future, _) => answer::future(measurement, now.0),
        (Judged::Accepted(_) | Judged::Skipped, _) => {
            let broken = LimitError::new("measurement", "not kept", "one that is judged alone");
            return Err(broken.into());
        }
    };
    let error = answer::why(&judged).map(|(error, _)| error);
    let duplicate_of = known.then(|| measurement.id.clone());
    Ok(came(response, judged.action(), error, duplicate_of))
}

/// Refuses an override. Nothing is recorded under the request's key, so that the same request may
/// come again; that it was tried is in the audit before it is answered.
async fn not_allowed(
    service: &Measurements,
    context: Context<'_>,
    (measurement, submitted): (&Measurement, &Submitted<'_>),
    why: &str,
) -> Response {
    let payload = submitted.audited();
    let reason = format!("{OVERRIDE}: {why}");
    let attempt = Attempt {
        user_id: &measurement.user_id,
        id: Some(&measurement.id),
        action: Action::Rejected,
        reason: Some(&reason),
        payload: payload.as_deref(),
        payload_hash: Some(measurement.payload.fingerprint().to_string()),
    };
    let entry = attempt.entry(context.tenant, context.trace);
    match service.engine().audit(&entry).await {
        Ok(()) => came(answer::override_not_allowed(why), Action::Rejected, Some(OVERRIDE), None),
        Err(error) => answer::no_answer(&error),
    }
}

fn came(
    mut response: Response,
    action: Action,
    error: Option<&'static str>,
    duplicate_of: Option<String>,
) -> Response {
    response.extensions_mut().insert(Came { action, error, duplicate_of });
    response
}
