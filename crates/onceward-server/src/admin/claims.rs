//! `POST /v1/claims` and its batch: may this run? Verdicts are answers, always 200.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::join_all;
use http::StatusCode;
use onceward::engine::{Engine, EngineError, STORE_SPACE_PREFIX, STORE_TENANT};
use onceward_core::canonical::Arrays;
use onceward_core::decide::{Claim, Verdict};
use onceward_core::diff::{DifferingPointers, differing_pointers, differs_text};
use onceward_core::fingerprint::FingerprintBuilder;
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::note::{Note, Noted, Original};
use onceward_core::payload::{KeepPayload, KeptPayload};
use onceward_core::record::{OnAbandoned, Record};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::{Whole, about, json};
use super::auth::Who;
use super::fields::{
    Expected, Field, Fields, FromFields, LeaseMs, Part, Payload, Position, Reading, Tenant, WaitMs,
    body, read_object,
};
use super::observe::About;
use super::opaque::reference;
use super::problem::{Problem, ProblemBody};
use crate::times::rfc3339;

/// Claims of one batch.
pub(crate) const CLAIMS_MAX: usize = 1_000;
/// How long a claim may take before a store that takes no writes is looked at instead.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The space of the subjects that guards name.
pub(crate) const SUBJECTS: &str = "subjects";

body! {
    /// A request to run.
    pub(crate) struct ClaimBody checked by one_payload {
        /// The organisation; a tenant's token may leave it out.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
        tenant: Tenant,
        /// What the id is unique in: endpoint, handler, …
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        scope: Part,
        /// The key's id. Tenant, scope and id have at most 2,560 bytes together, escaped: `%`, `:`
        /// and control characters count three.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        id: Part,
        /// What is to be done, as JSON: the same id with another payload is a mismatch. Either this
        /// or `fingerprint`.
        #[schema(value_type = serde_json::Value, required = false)]
        payload: Option<Payload>,
        /// The caller's own hash of what is to be done, in place of `payload`.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
        fingerprint: Option<Part>,
        /// How long the permit holds without renewal.
        #[schema(value_type = u64, minimum = 100, maximum = 86_400_000)]
        lease_ms: LeaseMs,
        /// Who asks, for people to read.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        owner: Part,
        /// The order that the claim must keep.
        guard: Option<GuardBody>,
        /// How long to wait for the outcome while someone else runs. Default: 0.
        #[schema(value_type = Option<u64>, maximum = 300_000)]
        wait_ms: Option<WaitMs>,
        /// What happens when the lease runs out: `rerun` (default) or `hold`.
        #[schema(value_type = Option<String>)]
        on_abandoned: Option<Abandoned>,
        /// The caller's name for this claim: repeated, it returns the same permit.
        #[schema(value_type = Option<String>, min_length = 1, max_length = 512)]
        attempt_id: Option<Part>,
    }
}

body! {
    /// A rule about a subject; exactly one of `above`, `next`, `exactly` and `not_before`.
    pub(crate) struct GuardBody checked by one_rule {
        /// Whose position is asked for. A subject starts at 0.
        #[schema(value_type = String, min_length = 1, max_length = 512)]
        subject: Part,
        /// The claim's own position: the subject is below it, and moves to it.
        #[schema(value_type = Option<u64>)]
        above: Option<Position>,
        /// The claim's own position: the subject is one below it, and moves to it.
        #[schema(value_type = Option<u64>)]
        next: Option<Position>,
        /// The position it expects to find; the subject moves to one more.
        #[schema(value_type = Option<u64>)]
        exactly: Option<Expected>,
        /// The claim's own time in milliseconds; the subject moves to the maximum.
        #[schema(value_type = Option<u64>)]
        not_before: Option<Position>,
        /// With `not_before`: how far it may lie behind the subject. Default: 0.
        #[schema(value_type = Option<u64>)]
        grace_ms: Option<Position>,
    }
}

/// What is to be done is said once.
fn one_payload(fields: &Fields<'_>, reading: &mut Reading) {
    match (fields.has_any("payload"), fields.has("fingerprint")) {
        (true, true) => {
            fields.wrong("fingerprint", "goes without a payload: send one of them", reading);
        }
        (false, false) => {
            fields.wrong("payload", "is required, or a fingerprint in its place", reading);
        }
        _ => {}
    }
}

/// A guard has one rule.
fn one_rule(fields: &Fields<'_>, reading: &mut Reading) {
    let rules = ["above", "next", "exactly", "not_before"];
    if rules.iter().filter(|rule| fields.has(rule)).count() != 1 {
        let message = "must have exactly one of above, next, exactly and not_before";
        fields.wrong("", message, reading);
    }
    if fields.has("grace_ms") && !fields.has("not_before") {
        fields.wrong("grace_ms", "goes with not_before only", reading);
    }
}

/// Claims, in order; a key may occur twice.
#[derive(Debug, ToSchema)]
pub(crate) struct BatchBody {
    /// At most 1,000.
    #[schema(max_items = 1000)]
    claims: Vec<ClaimBody>,
}

/// What happens to a lapsed lease.
#[derive(Debug)]
pub(crate) struct Abandoned(OnAbandoned);

impl Field for Abandoned {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        match raw.get() {
            "\"rerun\"" => Some(Self(OnAbandoned::Rerun)),
            "\"hold\"" => Some(Self(OnAbandoned::Hold)),
            _ => {
                reading.wrong(pointer, "must be rerun or hold");
                None
            }
        }
    }
}

impl FromFields for BatchBody {
    fn from_fields(fields: &mut Fields<'_>, reading: &mut Reading) -> Option<Self> {
        let claims = fields.take::<Claims>("claims", reading);
        fields.end(&["claims"], reading);
        claims.map(|Claims(claims)| Self { claims })
    }
}

struct Claims(Vec<ClaimBody>);

impl Field for Claims {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(raw.get()) else {
            reading.wrong(pointer, "must be an array of claims");
            return None;
        };
        if items.len() > CLAIMS_MAX {
            let message = format!("has {} items, but must have at most {CLAIMS_MAX}", items.len());
            reading.wrong(pointer, message);
            return None;
        }
        let mut claims = Some(Vec::with_capacity(items.len()));
        for (at, item) in items.into_iter().enumerate() {
            let read = read_object(item, &format!("{pointer}/{at}"), reading);
            claims = claims.zip(read).map(|(mut claims, claim)| {
                claims.push(claim);
                claims
            });
        }
        claims.map(Self)
    }
}

/// The answer to a claim: a verdict and what belongs to it.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerdictAnswer {
    /// `run`, `replay`, `mismatch`, `busy`, `stale`, `gap`, `version_conflict`, `out_of_order`,
    /// `dead` or `unknown`; in a batch also `error`, with `code`.
    verdict: &'static str,
    /// The reference of the record.
    #[serde(rename = "ref")]
    reference: String,
    /// `run`: proof that you may; opaque.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<String>,
    /// `run`: rises with every grant of this key; hand it to whatever you call.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// `run`: 1 for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// `run`: when the permit lapses unless it is renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// `run`: the key had an outcome whose retention is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    was_expired: Option<bool>,
    /// `replay`: what was given to complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    outcome: Option<Box<RawValue>>,
    /// `mismatch`: JSON pointers that differ, when they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<Vec<String>>,
    /// `mismatch`: the same in words for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs_text: Option<String>,
    /// `busy`: when it is worth asking again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// `stale`, `gap`, `version_conflict`, `out_of_order`: where the subject is.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<u64>,
    /// `dead`: why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// In a batch, in place of a verdict: why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
}

/// The answers to a batch of claims.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    /// One per claim, in their order.
    verdicts: Vec<VerdictAnswer>,
}

/// Asks to run.
#[utoipa::path(
    post, path = "/v1/claims", tag = "claims", request_body = ClaimBody,
    responses(
        (status = 200, description = "The verdict", body = VerdictAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn claim(
    State(state): State<AdminState>,
    who: Who,
    body: Whole,
) -> Result<Response, Problem> {
    let mut reading = Reading::of(who.tenant());
    let body: Option<ClaimBody> = body.read(&mut reading);
    let asked = body.and_then(|body| Asked::new(body, "", &who, &state, &mut reading));
    let asked = reading.end(asked)?;
    who.may(&asked.claim.key.tenant())?;
    state.must_grant()?;
    let asked = [asked];
    let mut verdicts = ask(&state, &asked).await?;
    let [asked] = asked;
    let verdict = verdicts.pop().ok_or_else(Problem::draining)??;
    asked.must_not_drain(&verdict, &state)?;
    let word = verdict.as_str();
    let answer = asked.answer(verdict, (&state, "POST /v1/claims")).await?;
    Ok(about(json(StatusCode::OK, &answer), &asked.claim.key, word))
}

/// The endpoint of many claims, as the metrics name it.
const BATCH: &str = "POST /v1/claims/batch";

/// Asks for many at once, in one commit where the store has groups.
#[utoipa::path(
    post, path = "/v1/claims/batch", tag = "claims", request_body = BatchBody,
    responses(
        (status = 200, description = "One verdict per claim, in order", body = BatchAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn claim_batch(
    State(state): State<AdminState>,
    who: Who,
    body: Whole,
) -> Result<Response, Problem> {
    let mut reading = Reading::of(who.tenant());
    let body: Option<BatchBody> = body.read(&mut reading);
    let asked: Option<Vec<Asked>> = body.and_then(|body| {
        let claims = body.claims.into_iter().enumerate();
        let asked = claims.map(|(at, claim)| {
            Asked::new(claim, &format!("/claims/{at}"), &who, &state, &mut reading)
        });
        // Every claim is read before the first bad one ends it.
        asked.collect::<Vec<_>>().into_iter().collect()
    });
    let asked = reading.end(asked)?;
    for one in &asked {
        who.may(&one.claim.key.tenant())?;
    }
    state.must_grant()?;
    let verdicts = ask(&state, &asked).await?;
    let verdicts: Vec<Result<Verdict, Problem>> =
        verdicts.into_iter().map(|verdict| verdict.map_err(Problem::from)).collect();
    let mut answers = Vec::with_capacity(asked.len());
    let failed = verdicts.iter().all(Result::is_err);
    for (one, verdict) in asked.iter().zip(verdicts) {
        answers.push(match verdict {
            Ok(verdict) => one.answer(verdict, (&state, BATCH)).await?,
            // Nothing was granted at all: that is no answer.
            Err(problem) if failed => return Err(problem),
            Err(problem) => VerdictAnswer {
                verdict: "error",
                reference: reference(&one.claim.key),
                code: Some(problem.code()),
                ..VerdictAnswer::default()
            },
        });
    }
    let mut response = json(StatusCode::OK, &BatchAnswer { verdicts: answers });
    let tenant = asked.first().map(|one| one.claim.key.tenant().into_owned());
    response.extensions_mut().insert(About { tenant, key_hash: None, verdict: Some("batch") });
    Ok(response)
}

/// Makes claims, in a task of their own: a client that goes away must not tear one apart between
/// its commit and its answer. A grant that nobody hears of is released; under an `attempt_id` it
/// stays, because the client may have asked again already and hold the same permit.
async fn ask(
    state: &AdminState,
    asked: &[Asked],
) -> Result<Vec<Result<Verdict, EngineError>>, Problem> {
    let claims: Vec<_> = asked.iter().map(|one| (one.claim.clone(), one.wait)).collect();
    let (mut answer, heard) = oneshot::channel();
    let state = state.clone();
    tokio::spawn(async move {
        let engine = state.engine();
        let verdicts = {
            let stop = async {
                tokio::select! {
                    () = state.health().drained() => {}
                    () = answer.closed() => {}
                }
            };
            let stop = stop.boxed().shared();
            // In their order: of two with one key the first is the first to be asked.
            let all = claims.iter().map(|(claim, wait)| {
                or_look(engine, claim, engine.claim_waiting_unless(claim, *wait, stop.clone()))
            });
            join_all(all).await
        };
        let Err(unheard) = answer.send(verdicts) else { return };
        let granted = claims.iter().zip(unheard).filter_map(|((claim, _), verdict)| {
            let Ok(Verdict::Run { permit, .. }) = verdict else { return None };
            claim.attempt_id.is_none().then_some(permit)
        });
        // One that can't be released comes back when its lease ends.
        let _ = engine.release_many(&granted.collect::<Vec<_>>()).await;
    });
    // Without an answer the task has ended, as it does when the process ends.
    heard.await.map_err(|_| Problem::draining())
}

/// The verdict of a claim; while the store takes no writes, what a look tells of what is done.
async fn or_look(
    engine: &Engine,
    claim: &Claim,
    claiming: impl Future<Output = Result<Verdict, EngineError>>,
) -> Result<Verdict, EngineError> {
    tokio::pin!(claiming);
    let in_time = tokio::time::timeout(LOOK_AFTER, &mut claiming).await;
    let late = match in_time {
        Ok(Ok(verdict)) => return Ok(verdict),
        Ok(Err(error)) => Some(error),
        Err(_) => None,
    };
    if (late.is_some() || engine.late().is_some())
        && let Ok(Some(verdict @ Verdict::Replay(_))) = engine.look_before(claim).await
    {
        return Ok(verdict);
    }
    match late {
        Some(error) => Err(error),
        None => claiming.await,
    }
}

/// A claim that may be made.
struct Asked {
    claim: Claim,
    wait: Duration,
    /// To explain a mismatch with.
    payload: Option<Payload>,
}

impl Asked {
    fn new(
        body: ClaimBody,
        at: &str,
        who: &Who,
        state: &AdminState,
        reading: &mut Reading,
    ) -> Option<Self> {
        let tenant = body.tenant.0;
        // Whoever had one of these would stop the store's own workers.
        let is_ours = tenant == STORE_TENANT && body.scope.0.starts_with(STORE_SPACE_PREFIX);
        if is_ours {
            let message = "is the store's own: scopes of tenant onceward that start with onceward. \
                           are kept by it";
            reading.wrong(format!("{at}/scope"), message);
        }
        let guard = match &body.guard {
            Some(guard) => guard.rule(&tenant, &format!("{at}/guard"), reading).map(Some),
            None => Some(None),
        };
        let fingerprint = match (&body.payload, &body.fingerprint) {
            (Some(payload), _) => Some(payload.body().fingerprint()),
            (None, Some(hash)) => {
                Some(FingerprintBuilder::new().part("fingerprint", hash.0.as_bytes()).finish())
            }
            // Noted by `one_payload`.
            (None, None) => None,
        };
        let key = Key::new(Kind::Request, &tenant, &body.scope.0, &body.id.0);
        let key = key.map_err(|error| reading.wrong(format!("{at}/id"), error.to_string())).ok();
        let mut claim = Claim::new(key?, fingerprint?);
        claim.terms.lease_ms = body.lease_ms.0;
        claim.terms.on_abandoned = body.on_abandoned.map_or(OnAbandoned::Rerun, |how| how.0);
        claim.owner = Some(body.owner.0.into());
        claim.attempt_id = body.attempt_id.map(|id| id.0.into());
        claim.guard = guard?;
        claim.trace = who.trace();
        claim.payload = body.payload.as_ref().and_then(|payload| {
            let leaves = &state.keys().leaves;
            let kept = KeptPayload::keep(&payload.body(), KeepPayload::Hashed, leaves).ok()?;
            Some(kept.encode().into())
        });
        let wait = Duration::from_millis(body.wait_ms.map_or(0, |wait| wait.0));
        (!is_ours).then_some(Self { claim, wait, payload: body.payload })
    }

    /// A wait that the drain cut short has found out nothing.
    fn must_not_drain(&self, verdict: &Verdict, state: &AdminState) -> Result<(), Problem> {
        match verdict {
            Verdict::Busy { .. } if !self.wait.is_zero() => state.must_grant(),
            _ => Ok(()),
        }
    }

    /// What is said of a verdict, counted as one of this endpoint's.
    async fn answer(
        &self,
        verdict: Verdict,
        (state, endpoint): (&AdminState, &str),
    ) -> Result<VerdictAnswer, Problem> {
        let key = &self.claim.key;
        let mut answer = VerdictAnswer {
            verdict: verdict.as_str(),
            reference: reference(key),
            ..VerdictAnswer::default()
        };
        let is_one_of_many = endpoint == BATCH;
        let endpoint = state.metrics().endpoint(endpoint);
        state.metrics().claimed(&endpoint, answer.verdict);
        if is_one_of_many {
            // Of a single claim, its request's count tells.
            state.metrics().came_to(&endpoint, answer.verdict);
        }
        match verdict {
            Verdict::Run { permit, was_expired } => {
                if was_expired {
                    state.metrics().expired(&endpoint);
                    // It is granted: what becomes of the note changes nothing.
                    let _ = self.note(Noted::Expired, &permit.record, state).await;
                }
                answer.permit = Some(state.keys().permit(permit.key(), permit.fence.0));
                answer.fence = Some(permit.fence.0);
                answer.attempt = Some(permit.record.attempt);
                answer.lease_until = permit.record.due_at.map(rfc3339);
                answer.was_expired = was_expired.then_some(true);
            }
            Verdict::Replay(stored) => {
                self.note(Noted::Replay, &stored.record, state).await?;
                answer.outcome = stored.outcome.as_deref().map(outcome_json);
            }
            Verdict::Mismatch(record) => {
                self.note(Noted::Conflict, &record, state).await?;
                answer.differs = self.differs(state).await?;
                answer.differs_text = answer.differs.as_deref().map(differs_text);
            }
            Verdict::Busy { retry_after_ms } => answer.retry_after_ms = Some(retry_after_ms),
            Verdict::Refused(refusal) => answer.current = Some(refusal.current),
            Verdict::Dead(record) => answer.error = record.error.as_deref().map(String::from),
            Verdict::Unknown(_) => {}
        }
        Ok(answer)
    }

    /// Tells the audit what came of a claim that wrote nothing of its own.
    async fn note(&self, noted: Noted, record: &Record, state: &AdminState) -> Result<(), Problem> {
        let (original, trace) = (Original::of(record), self.claim.trace.clone());
        let note = Note { noted, original, fingerprint: self.claim.fingerprint, trace };
        Ok(state.engine().note(note).await?)
    }

    /// Where this payload differs from the first one; none when one of them is not known.
    async fn differs(&self, state: &AdminState) -> Result<Option<Vec<String>>, Problem> {
        let Some(payload) = &self.payload else { return Ok(None) };
        let found = state.engine().look(&self.claim.key).await?;
        let kept = found.and_then(|found| KeptPayload::decode(&found.payload?).ok());
        let Some(kept) = kept else { return Ok(None) };
        let leaves = &state.keys().leaves;
        let differing = differing_pointers(&kept, &payload.body(), Arrays::Ordered, leaves);
        Ok(differing.ok().flatten().and_then(DifferingPointers::named))
    }
}

impl GuardBody {
    fn rule(&self, tenant: &str, at: &str, reading: &mut Reading) -> Option<Guard> {
        let grace_ms = self.grace_ms.map_or(0, |grace| grace.0);
        let rules: Vec<Rule> = [
            self.above.map(|n| Rule::Above { position: n.0 }),
            self.next.map(|n| Rule::Next { position: n.0 }),
            self.exactly.map(|n| Rule::Exactly { expected: n.0 }),
            self.not_before.map(|n| Rule::NotBefore { at: n.0, grace_ms }),
        ]
        .into_iter()
        .flatten()
        .collect();
        // More or less than one was noted by `one_rule`.
        let [rule] = rules[..] else { return None };
        let subject = Subject::new(tenant, SUBJECTS, &self.subject.0);
        let subject = subject
            .map_err(|error| reading.wrong(format!("{at}/subject"), error.to_string()))
            .ok()?;
        let guard = Guard::new(subject, rule);
        guard
            .map_err(|error| {
                let message = format!("is {}, but must be {}", error.value, error.bound);
                reading.wrong(format!("{at}/{}", error.field), message);
            })
            .ok()
    }
}

/// An outcome as JSON: what was given, or, when it came from elsewhere, as text or hexadecimal.
pub(crate) fn outcome_json(bytes: &[u8]) -> Box<RawValue> {
    let text = std::str::from_utf8(bytes);
    if let Some(raw) = text.ok().and_then(|text| RawValue::from_string(text.into()).ok()) {
        return raw;
    }
    let value = match text {
        Ok(text) => serde_json::value::to_raw_value(text),
        Err(_) => serde_json::value::to_raw_value(&serde_json::json!({
            "hex": crate::output::hex(bytes),
        })),
    };
    value.unwrap_or_default()
}
