//! `POST /v1/permits/…`: what a permit's holder does. Each is conditional on the fence.
//!
//! A permit that was overtaken, or is finished, is `permit.lost`. Completing again with the same
//! outcome is fine: the first answer may have been lost.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use onceward_core::Bytes;
use onceward_core::decide::{Completion, Finish, Permit, Retry};
use onceward_core::key::{Key, Kind};
use onceward_core::limits::MAX_BATCH_BYTES;
use onceward_core::retry::JOB_BACKOFF;
use onceward_core::stamp::Fence;
use serde::Serialize;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::{Whole, about, json};
use super::auth::Who;
use super::fields::{Fields, FromFields, Json, LeaseMs, PermitText, Reading, RetainMs, When, body};
use super::problem::{Problem, ProblemBody};
use crate::times::rfc3339;

/// Bytes of an outcome: room is left in its batch for what goes with it.
pub(crate) const OUTCOME_BYTES_MAX: usize = MAX_BATCH_BYTES / 2;

body! {
    /// A renewal.
    pub(crate) struct RenewBody {
        /// As the claim gave it.
        #[schema(value_type = String)]
        permit: PermitText,
        /// The lease, from now.
        #[schema(value_type = u64, minimum = 100, maximum = 86_400_000)]
        lease_ms: LeaseMs,
    }
}

body! {
    /// A completion.
    pub(crate) struct CompleteBody {
        /// As the claim gave it.
        #[schema(value_type = String)]
        permit: PermitText,
        /// Any JSON; it is replayed as it is.
        #[schema(value_type = serde_json::Value)]
        outcome: Json,
        /// How long to keep the outcome. Default: 24 h.
        #[schema(value_type = Option<u64>, minimum = 1)]
        retain_ms: Option<RetainMs>,
    }
}

body! {
    /// A failed attempt.
    pub(crate) struct FailBody checked by retry_alone {
        /// As the claim gave it.
        #[schema(value_type = String)]
        permit: PermitText,
        /// Why, for people to read.
        error: String,
        /// Whether another attempt may follow; otherwise it is dead.
        retry: bool,
        /// When, as RFC 3339 or milliseconds since 1970, at most ten years ahead. Default: at once;
        /// a job after 1, 2, 4, … seconds and up to half of that at random.
        #[schema(value_type = Option<String>)]
        run_at: Option<When>,
    }
}

body! {
    /// A release.
    pub(crate) struct ReleaseBody {
        /// As the claim gave it.
        #[schema(value_type = String)]
        permit: PermitText,
    }
}

/// How a record stands after what its holder did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FinishAnswer {
    /// `running`, `done`, `failed`, `dead` or `released`.
    state: &'static str,
    /// After a renewal: when the permit lapses unless it is renewed again.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
}

/// Starts the lease anew.
#[utoipa::path(
    post, path = "/v1/permits/renew", tag = "permits", request_body = RenewBody,
    responses(
        (status = 200, description = "The permit holds on", body = FinishAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 409, description = "permit.lost: stop at once", body = ProblemBody),
    )
)]
pub(crate) async fn renew(
    State(state): State<AdminState>,
    who: Who,
    body: Whole,
) -> Result<Response, Problem> {
    let (held, body) = held(&state, &who, &body, |body: &RenewBody| &body.permit).await?;
    let permit = held.permit.as_ref().ok_or_else(lost)?;
    let lease_ms = body.lease_ms.0;
    let finish = state.engine().renew(permit, Some(lease_ms)).await?;
    finished(&state, permit, "renew", finish).await?;
    // From before the renewal, so that the holder never believes in more time than it has.
    let lease_until = Some(rfc3339(held.now.plus(lease_ms)));
    Ok(held.answer(&FinishAnswer { state: "running", lease_until }))
}

/// Records the outcome.
#[utoipa::path(
    post, path = "/v1/permits/complete", tag = "permits", request_body = CompleteBody,
    responses(
        (status = 200, description = "It is done, now or before", body = FinishAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 409, description = "permit.lost, or guard.failed with `current`; the key is \
            released then", body = ProblemBody),
    )
)]
pub(crate) async fn complete(
    State(state): State<AdminState>,
    who: Who,
    body: Whole,
) -> Result<Response, Problem> {
    let (held, body) = held(&state, &who, &body, |body: &CompleteBody| &body.permit).await?;
    let outcome: Bytes = body.outcome.0.get().as_bytes().into();
    if outcome.len() > OUTCOME_BYTES_MAX {
        let bytes = outcome.len();
        let message = format!("is {bytes} bytes, but must be at most {OUTCOME_BYTES_MAX}");
        return Err(Problem::field("/outcome", message));
    }
    let mut completion = Completion::new(outcome);
    completion.retain_ms = body.retain_ms.map(|retain| retain.0);
    let permit = held.permit.as_ref().ok_or_else(lost)?;
    let finish = state.engine().complete(permit, &completion).await?;
    finished(&state, permit, "complete", finish).await?;
    Ok(held.answer(&FinishAnswer { state: "done", lease_until: None }))
}

/// Records a failed attempt.
#[utoipa::path(
    post, path = "/v1/permits/fail", tag = "permits", request_body = FailBody,
    responses(
        (status = 200, description = "It is failed, or dead", body = FinishAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 409, description = "permit.lost", body = ProblemBody),
    )
)]
pub(crate) async fn fail(
    State(state): State<AdminState>,
    who: Who,
    body: Whole,
) -> Result<Response, Problem> {
    let (held, body) = held(&state, &who, &body, |body: &FailBody| &body.permit).await?;
    let permit = held.permit.as_ref().ok_or_else(lost)?;
    let retry = match (body.retry, body.run_at) {
        (false, _) => Retry::Never,
        (true, Some(when)) => Retry::In(when.run_in_ms(held.now)?),
        (true, None) => Retry::In(next_attempt_ms(permit)),
    };
    let finish = state.engine().fail(permit, &body.error, retry).await?;
    let is_now = if finish == Finish::Dead { "dead" } else { "failed" };
    finished(&state, permit, "fail", finish).await?;
    Ok(held.answer(&FinishAnswer { state: is_now, lease_until: None }))
}

/// Gives the permit back: nothing was done under it.
#[utoipa::path(
    post, path = "/v1/permits/release", tag = "permits", request_body = ReleaseBody,
    responses(
        (status = 200, description = "The key is as it was", body = FinishAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 409, description = "permit.lost", body = ProblemBody),
    )
)]
pub(crate) async fn release(
    State(state): State<AdminState>,
    who: Who,
    body: Whole,
) -> Result<Response, Problem> {
    let (held, _) = held(&state, &who, &body, |body: &ReleaseBody| &body.permit).await?;
    let permit = held.permit.as_ref().ok_or_else(lost)?;
    let finish = state.engine().release(permit).await?;
    finished(&state, permit, "release", finish).await?;
    Ok(held.answer(&FinishAnswer { state: "released", lease_until: None }))
}

/// A time for the next attempt goes with one.
fn retry_alone(fields: &Fields<'_>, reading: &mut Reading) {
    if fields.has("run_at") && fields.is("retry", "false") {
        fields.wrong("run_at", "goes with \"retry\": true only", reading);
    }
}

/// A permit as it was shown, with the record that is there.
struct Held {
    key: Key,
    now: onceward_core::stamp::At,
    /// None when there is no record any more. Whether the fence is still the record's own is
    /// decided by the engine, in the commit.
    permit: Option<Permit>,
}

impl Held {
    fn answer(&self, answer: &FinishAnswer) -> Response {
        about(json(StatusCode::OK, answer), &self.key, answer.state)
    }
}

async fn held<T: FromFields>(
    state: &AdminState,
    who: &Who,
    body: &Whole,
    permit: impl Fn(&T) -> &PermitText,
) -> Result<(Held, T), Problem> {
    let mut reading = Reading::with_permits(state);
    let body: Option<T> = body.read(&mut reading);
    let body = reading.end(body)?;
    let shown = permit(&body).0.clone();
    who.may(&shown.key.tenant())?;
    let (now, found) = state.engine().look_at(&shown.key).await?;
    let permit = found
        .map(|found| Permit { fence: Fence(shown.fence), record: Box::new(found.stored.record) });
    Ok((Held { key: shown.key, now, permit }, body))
}

fn lost() -> Problem {
    let detail = "the permit is not valid any more: it lapsed and someone else was granted, or it \
                  is finished. Stop, and claim again if there is more to do";
    Problem::conflict("permit.lost", "The permit is lost", detail)
}

/// What came of a step. A late worker's is recorded in the audit, as well as it can be.
async fn finished(
    state: &AdminState,
    permit: &Permit,
    step: &str,
    finish: Finish,
) -> Result<(), Problem> {
    match finish {
        Finish::Ok | Finish::Dead => Ok(()),
        Finish::Lost => {
            if permit.key().kind() == Kind::Job {
                let _ = state.engine().note_refused(permit, step).await;
            }
            Err(lost())
        }
        Finish::Refused(refusal) => {
            let detail = format!(
                "the subject is at {}, where the guard refuses ({}); nothing was recorded and the \
                 key is released",
                refusal.current,
                refusal.why.as_str()
            );
            let title = "The guard refuses";
            Err(Problem::conflict("guard.failed", title, detail)
                .with("current", refusal.current)
                .with("verdict", refusal.why.as_str()))
        }
        Finish::JobMismatch(_) => {
            let detail = "a job that follows has a key that was used with another payload";
            let title = "This key was used with another payload";
            Err(Problem::conflict("idempotency.payload_mismatch", title, detail))
        }
    }
}

/// A20: jobs wait longer each time; others may be tried again at once.
fn next_attempt_ms(permit: &Permit) -> u64 {
    if permit.key().kind() != Kind::Job {
        return 0;
    }
    let random = getrandom::u64().unwrap_or_default();
    // The number of attempts is the record's own business; the pause stops growing at the last.
    let attempt = permit.record.attempt.clamp(1, JOB_BACKOFF.attempts - 1);
    JOB_BACKOFF.delay_ms(attempt, random).unwrap_or(JOB_BACKOFF.max_ms)
}
