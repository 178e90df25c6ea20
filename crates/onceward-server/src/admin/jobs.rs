//! Jobs over the control API: made, taken with a lease, and finished by permit like claims.
//!
//! A job's key is tenant, queue, type and resource (A18); without a resource, the payload's hash
//! stands in its place. A tenant's token takes that tenant's jobs only.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use onceward::engine::{EngineError, STORE_SPACE_PREFIX, Take, Taken};
use onceward::worker::job_key;
use onceward_core::decide::{Enqueue, NewJob};
use onceward_core::fingerprint::content_hash16;
use onceward_core::key::{Key, Kind};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::{Whole as WholeBody, about, json};
use super::auth::Who;
use super::claims::outcome_json;
use super::fields::{LeaseMs, Part, Payload, Reading, Tenant, WaitMs, When, Whole, body};
use super::observe::About;
use super::opaque::{job_parts, reference};
use super::params::Segment;
use super::problem::{Problem, ProblemBody};
use crate::times::rfc3339;

/// Jobs of one take.
const TAKE_MAX: u64 = 1_000;

body! {
    /// A job to be made.
    pub(crate) struct JobBody {
        /// The organisation; a tenant's token may leave it out.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
        tenant: Tenant,
        /// Which queue.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        queue: Part,
        /// What kind of work it is.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        job_type = "type": Part,
        /// What it is about, such as `mission/7@3`. Default: the payload's hash.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
        resource: Option<Part>,
        /// Any JSON; the worker gets it as it is.
        #[schema(value_type = serde_json::Value)]
        payload: Payload,
        /// Not before, as RFC 3339 or milliseconds since 1970, at most ten years ahead. Default: at
        /// once.
        #[schema(value_type = Option<String>)]
        run_at: Option<When>,
        /// 0 (default) to 9; higher ones are taken first.
        #[schema(value_type = Option<u64>, maximum = 9)]
        priority: Option<Whole<0, 9>>,
    }
}

body! {
    /// Which jobs to take.
    pub(crate) struct TakeBody {
        /// Only this tenant's. Default: the token's; the operator takes of all.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
        tenant: Option<Tenant>,
        /// From which queue.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        queue: Part,
        /// How many at most.
        #[schema(value_type = u64, minimum = 1, maximum = 1000)]
        max: Whole<1, TAKE_MAX>,
        /// How long each permit holds without renewal.
        #[schema(value_type = u64, minimum = 100, maximum = 86_400_000)]
        lease_ms: LeaseMs,
        /// Who takes, for people to read.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        owner: Part,
        /// How long to wait when there is none. Default: 0.
        #[schema(value_type = Option<u64>, maximum = 300_000)]
        wait_ms: Option<WaitMs>,
    }
}

/// What became of a job that was to be made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobAnswer {
    /// The reference of its record.
    #[serde(rename = "ref")]
    reference: String,
    /// The key of its record: `tenant:job:queue:type:resource`.
    key: String,
    /// The key to hand on to whatever the job calls: `job:tenant:queue:type:resource`.
    job_key: String,
    /// Whether it was made now; otherwise it is there already.
    made: bool,
    /// Its state.
    state: &'static str,
}

/// A job that was taken.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TakenAnswer {
    /// Proof that you may run it; opaque.
    permit: String,
    /// Rises with every grant of this job.
    fence: u64,
    /// 1 for the first.
    attempt: u32,
    /// When the permit lapses unless it is renewed.
    lease_until: Option<String>,
    /// The reference of its record.
    #[serde(rename = "ref")]
    reference: String,
    /// The key to hand on to whatever the job calls: `job:tenant:queue:type:resource`.
    job_key: String,
    /// Whose it is.
    tenant: String,
    /// The queue that it came from.
    queue: String,
    /// What kind of work it is.
    r#type: String,
    /// What it is about.
    resource: String,
    /// What it was made with.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// `X-Correlation-ID` of what made it, or its request id.
    correlation_id: Option<String>,
}

/// Jobs that were taken.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TakeAnswer {
    /// None when there was nothing to take in time.
    jobs: Vec<TakenAnswer>,
}

/// A queue as a whole.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueAnswer {
    /// Which.
    queue: String,
    /// Whether it gives no jobs.
    paused: bool,
    /// Whether this request changed that.
    changed: bool,
}

/// Makes a job, unless one with its key is there.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", request_body = JobBody,
    responses(
        (status = 201, description = "It was made", body = JobAnswer),
        (status = 200, description = "It was there already", body = JobAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 409, description = "idempotency.payload_mismatch", body = ProblemBody),
    )
)]
pub(crate) async fn enqueue(
    State(state): State<AdminState>,
    who: Who,
    body: WholeBody,
) -> Result<Response, Problem> {
    let mut reading = Reading::of(who.tenant());
    let body: Option<JobBody> = body.read(&mut reading);
    let run_at = body.as_ref().and_then(|body| body.run_at);
    let terms = body.as_ref().and_then(|body| state.terms_of(&body.queue.0));
    let job = body.and_then(|body| new_job(&body, &who, &mut reading));
    let mut job = reading.end(job)?;
    job.terms = terms.unwrap_or(job.terms);
    who.may(&job.key.tenant())?;
    if let Some(when) = run_at {
        job.run_in_ms = when.run_in_ms(state.engine().now().await?)?;
    }
    let answer = |made, state| JobAnswer {
        reference: reference(&job.key),
        key: job.key.to_string(),
        job_key: job_key(&job.key),
        made,
        state,
    };
    let (status, answer) = match state.engine().enqueue(&job).await? {
        Enqueue::Made => (StatusCode::CREATED, answer(true, "pending")),
        Enqueue::There(record) => (StatusCode::OK, answer(false, record.state.as_str())),
        Enqueue::Mismatch(_) => {
            let detail = "a job of this type and resource is there with another payload: name \
                          another resource, such as its version";
            let title = "This key was used with another payload";
            return Err(Problem::conflict("idempotency.payload_mismatch", title, detail));
        }
    };
    let verdict = if answer.made { "made" } else { "there" };
    Ok(about(json(status, &answer), &job.key, verdict))
}

fn new_job(body: &JobBody, who: &Who, reading: &mut Reading) -> Option<NewJob> {
    if body.queue.0.starts_with(STORE_SPACE_PREFIX) {
        reading
            .wrong("/queue", "is the store's own: queues that start with onceward. are kept by it");
        return None;
    }
    let hash;
    let resource = match &body.resource {
        Some(resource) => &resource.0,
        None => {
            hash = content_hash16(&body.payload.canonical);
            &hash
        }
    };
    let within = [body.job_type.0.as_str()];
    let key = Key::within(Kind::Job, &body.tenant.0, &body.queue.0, &within, resource);
    let key = key.map_err(|error| reading.wrong("/resource", error.to_string())).ok()?;
    let payload = body.payload.raw.get().as_bytes().into();
    let mut job = NewJob::new(key, body.payload.body().fingerprint(), payload);
    job.priority = body.priority.map_or(0, |priority| u8::try_from(priority.0).unwrap_or(0));
    job.trace = who.trace();
    Some(job)
}

/// Takes due jobs; waits for one when there is none.
#[utoipa::path(
    post, path = "/v1/jobs/take", tag = "jobs", request_body = TakeBody,
    responses(
        (status = 200, description = "Jobs, each with its permit; none when there was nothing to \
            take in time", body = TakeAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
    )
)]
pub(crate) async fn take(
    State(state): State<AdminState>,
    who: Who,
    body: WholeBody,
) -> Result<Response, Problem> {
    let body: TakeBody = body.parse(None)?;
    let tenant = who.filter(body.tenant.map(|tenant| tenant.0))?;
    if body.queue.0.starts_with(STORE_SPACE_PREFIX) {
        return Err(Problem::field("/queue", "is the store's own: its servers take from it"));
    }
    state.must_grant()?;
    let take = Take {
        queue: body.queue.0,
        owner: body.owner.0,
        max: usize::try_from(body.max.0).unwrap_or(1),
        lease_ms: Some(body.lease_ms.0),
    };
    let wait = Duration::from_millis(body.wait_ms.map_or(0, |wait| wait.0));
    let taken = take_apart(&state, tenant.as_deref(), &take, wait).await?;
    let jobs: Vec<TakenAnswer> = taken.into_iter().map(|taken| taken_json(&state, taken)).collect();
    let verdict = Some(if jobs.is_empty() { "empty" } else { "run" });
    let mut response = json(StatusCode::OK, &TakeAnswer { jobs });
    response.extensions_mut().insert(About { tenant, key_hash: None, verdict });
    Ok(response)
}

/// Takes in a task of its own: a client that goes away must not tear a take apart between its
/// commit and its answer. What such a take got is released.
async fn take_apart(
    state: &AdminState,
    tenant: Option<&str>,
    take: &Take,
    wait: Duration,
) -> Result<Vec<Taken>, Problem> {
    let (state, tenant, take) = (state.clone(), tenant.map(String::from), take.clone());
    let (mut answer, taken) = oneshot::channel();
    tokio::spawn(async move {
        let stop = async {
            tokio::select! {
                () = state.health().drained() => {}
                () = answer.closed() => {}
            }
        };
        let engine = state.engine();
        let taken = engine.take_waiting(tenant.as_deref(), &take, wait, stop).await;
        if let Err(Ok(taken)) = answer.send(taken) {
            let permits: Vec<_> = taken.into_iter().map(|taken| taken.permit).collect();
            // One that can't be released comes back when its lease ends.
            let _ = engine.release_many(&permits).await;
        }
    });
    // Without an answer the task has ended, as it does when the process ends.
    Ok(taken.await.map_err(|_| Problem::draining())??)
}

fn taken_json(state: &AdminState, taken: Taken) -> TakenAnswer {
    let Taken { permit, payload, .. } = taken;
    let key = permit.key();
    let (job_type, resource) = job_parts(key).unwrap_or_default();
    let trace = &permit.record.trace;
    let correlation = trace.correlation_id.as_deref().or(trace.request_id.as_deref());
    TakenAnswer {
        permit: state.keys().permit(key, permit.fence.0),
        fence: permit.fence.0,
        attempt: permit.record.attempt,
        lease_until: permit.record.due_at.map(rfc3339),
        reference: reference(key),
        job_key: job_key(key),
        tenant: key.tenant().into_owned(),
        queue: key.scope().into_owned(),
        r#type: job_type,
        resource,
        payload: outcome_json(&payload),
        correlation_id: correlation.map(String::from),
    }
}

/// Pauses a queue for every process: it gives no jobs until it is resumed.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", tag = "jobs",
    params(("queue" = String, Path, description = "Which queue")),
    responses(
        (status = 200, description = "It is paused", body = QueueAnswer),
        (status = 400, description = "Not a queue's name", body = ProblemBody),
        (status = 403, description = "Not the operator's token", body = ProblemBody),
    )
)]
pub(crate) async fn pause(
    State(state): State<AdminState>,
    who: Who,
    Segment(queue): Segment,
) -> Result<Response, Problem> {
    set_paused(&state, &who, queue, true).await
}

/// Resumes a queue.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", tag = "jobs",
    params(("queue" = String, Path, description = "Which queue")),
    responses(
        (status = 200, description = "It gives jobs again", body = QueueAnswer),
        (status = 400, description = "Not a queue's name", body = ProblemBody),
        (status = 403, description = "Not the operator's token", body = ProblemBody),
    )
)]
pub(crate) async fn resume(
    State(state): State<AdminState>,
    who: Who,
    Segment(queue): Segment,
) -> Result<Response, Problem> {
    set_paused(&state, &who, queue, false).await
}

async fn set_paused(
    state: &AdminState,
    who: &Who,
    queue: String,
    paused: bool,
) -> Result<Response, Problem> {
    who.must_operate()?;
    let changed = state.engine().set_paused(&queue, paused, &who.trace()).await;
    let changed = changed.map_err(|error| match error {
        // The engine keeps a pause under a subject; whoever asks knows it as the queue.
        EngineError::Limit(limit) => {
            Problem::field("/queue", format!("is {}, but must be {}", limit.value, limit.bound))
        }
        error => error.into(),
    })?;
    Ok(json(StatusCode::OK, &QueueAnswer { queue, paused, changed }))
}
