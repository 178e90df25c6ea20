//! Records, dead letters and marks: looked at, resolved by hand, erased, swept.
//!
//! A tenant's token sees and touches that tenant's records only; a reference to another's is
//! refused before the store is asked, so it tells nothing.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use onceward::engine::STORE_SPACE_PREFIX;
use onceward::store::{Cursor, Items, List};
use onceward_core::decide::{Resolution, Resolved};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Mark, State as RecordState};
use onceward_core::text::escape;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json as value};
use utoipa::ToSchema;

use super::AdminState;
use super::answer::{Whole, about, json};
use super::auth::Who;
use super::claims::SUBJECTS;
use super::fields::{Field, Json, Reading, body};
use super::opaque::{cursor, read_reference, reference};
use super::params::{Limit, Segment, params};
use super::permits::OUTCOME_BYTES_MAX;
use super::problem::{Problem, ProblemBody};
use crate::cache::{self, SharedCache};
use crate::commands::keys::{Wanted, find, found_json, record_json};
use crate::times::rfc3339;

/// Looks that one page of marks takes at most. The store's own are passed over, and an event store
/// has very many of them: who asks goes on where the page ended.
const MARK_LOOKS_MAX: usize = 16;

params! {
    /// Which records.
    pub(crate) struct RecordsParams {
        /// Only this tenant's. Default: the token's; the operator sees all.
        tenant: Option<String>,
        /// Only of this kind: request, job, event, append.
        #[param(value_type = Option<String>)]
        kind: Option<Kind>,
        /// Only of this scope: endpoint, queue, handler.
        scope: Option<String>,
        /// Only in this state by the store's clock.
        #[param(value_type = Option<String>)]
        state: Option<RecordState>,
        /// Goes on after a page: the cursor that it ended with.
        #[param(value_type = Option<String>)]
        after: Option<Cursor>,
        /// How many at most. Default: 100.
        #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
        limit: Limit,
    }
}

params! {
    /// Which dead letters.
    pub(crate) struct DeadParams {
        /// Only this tenant's. Default: the token's; the operator sees all.
        tenant: Option<String>,
        /// Only of this scope: endpoint, queue, handler.
        scope: Option<String>,
        /// Goes on after a page: the cursor that it ended with.
        #[param(value_type = Option<String>)]
        after: Option<Cursor>,
        /// How many at most. Default: 100.
        #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
        limit: Limit,
    }
}

params! {
    /// Which marks.
    pub(crate) struct MarksParams {
        /// Only this tenant's. Default: the token's; the operator sees all.
        tenant: Option<String>,
        /// Only subjects of guards that start so.
        subject: Option<String>,
        /// Goes on after a page: the cursor that it ended with.
        #[param(value_type = Option<String>)]
        after: Option<Cursor>,
        /// How many at most. Default: 100.
        #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
        limit: Limit,
    }
}

body! {
    /// A decision by hand.
    pub(crate) struct ResolveBody {
        /// `rerun`: it may run again. `done`: it happened. `dead`: it never will.
        #[schema(value_type = String)]
        resolve_as = "as": ResolveAs,
        /// With `done`: the outcome to replay. Default: null.
        #[schema(value_type = serde_json::Value, required = false)]
        outcome: Option<Json>,
        /// With `dead`: why. Default: "resolved by hand".
        reason: Option<String>,
        /// With `rerun`: also when its subject has moved past it; a claim is to be made without its
        /// guard then. Default: false.
        force: Option<bool>,
    }
}

body! {
    /// How to retry a dead letter.
    pub(crate) struct RetryBody {
        /// Also when its subject has moved past it; a claim is to be made without its guard then.
        /// Default: false.
        force: Option<bool>,
    }
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResolveAs {
    Rerun,
    Done,
    Dead,
}

impl Field for ResolveAs {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        match raw.get() {
            "\"rerun\"" => Some(Self::Rerun),
            "\"done\"" => Some(Self::Done),
            "\"dead\"" => Some(Self::Dead),
            _ => {
                reading.wrong(pointer, "must be rerun, done or dead");
                None
            }
        }
    }
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PageAnswer {
    /// What was found. Records have `ref`, which `/v1/records/{ref}` takes, and `key_hash`, under
    /// which audit and log know their key.
    #[schema(value_type = Vec<Object>)]
    pub(crate) items: Vec<Value>,
    /// Where the next page starts; null when this was the last.
    pub(crate) next: Option<String>,
}

/// What a decision by hand came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResolvedAnswer {
    /// The reference of the record.
    #[serde(rename = "ref")]
    reference: String,
    /// `rerun`, `done`, `dead`, `discarded` or `erased`.
    resolved: &'static str,
}

/// What a sweep did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SweepAnswer {
    /// Outcomes that were dropped; their keys are still known.
    expired: u64,
    /// Records that were removed.
    forgotten: u64,
    /// Held records whose lease ran out: they are unknown now.
    unknown: u64,
}

/// Lists records in the order of their keys.
#[utoipa::path(
    get, path = "/v1/records", operation_id = "list_records", tag = "records",
    params(RecordsParams),
    responses(
        (status = 200, description = "A page", body = PageAnswer),
        (status = 400, description = "Every bad parameter", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn list(
    State(state): State<AdminState>,
    who: Who,
    params: RecordsParams,
) -> Result<Response, Problem> {
    let wanted = Wanted {
        tenant: who.filter(params.tenant)?,
        kind: params.kind,
        scope: params.scope,
        state: params.state,
        limit: params.limit.or_default(),
        after: params.after,
    };
    page_of_records(&state, wanted).await
}

/// Lists dead letters: records that no attempt is left for.
#[utoipa::path(
    get, path = "/v1/dead", tag = "records", params(DeadParams),
    responses(
        (status = 200, description = "A page", body = PageAnswer),
        (status = 400, description = "Every bad parameter", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn dead(
    State(state): State<AdminState>,
    who: Who,
    params: DeadParams,
) -> Result<Response, Problem> {
    let wanted = Wanted {
        tenant: who.filter(params.tenant)?,
        kind: None,
        scope: params.scope,
        state: Some(RecordState::Dead),
        limit: params.limit.or_default(),
        after: params.after,
    };
    page_of_records(&state, wanted).await
}

async fn page_of_records(state: &AdminState, wanted: Wanted) -> Result<Response, Problem> {
    let engine = state.engine();
    let list = |what, after, limit| async move {
        engine.list(what, after, limit).await.map_err(Problem::from)
    };
    let found = find(list, &wanted).await?;
    let items = found.records.iter().map(|record| record_json(record, found.now)).collect();
    let next = found.next.as_ref().map(cursor);
    Ok(json(StatusCode::OK, &PageAnswer { items, next }))
}

/// Shows everything that is known of one record: outcome and payload with masked values hidden.
#[utoipa::path(
    get, path = "/v1/records/{ref}", operation_id = "show_record", tag = "records",
    params(("ref" = String, Path, description = "A record's ref, or its key, percent-encoded")),
    responses(
        (status = 200, description = "The record", body = Object),
        (status = 403, description = "Another tenant's", body = ProblemBody),
        (status = 404, description = "record.absent", body = ProblemBody),
    )
)]
pub(crate) async fn show(
    State(state): State<AdminState>,
    who: Who,
    Segment(text): Segment,
) -> Result<Response, Problem> {
    let key = referred(&text, &who)?;
    let (now, found) = state.engine().look_at(&key).await?;
    let found = found.ok_or_else(absent)?;
    let record = found_json(&found, now, state.masks().of(&key));
    Ok(about(json(StatusCode::OK, &record), &key, "shown"))
}

/// Decides by hand about a record that nobody may run.
#[utoipa::path(
    post, path = "/v1/records/{ref}/resolve", tag = "records", request_body = ResolveBody,
    params(("ref" = String, Path, description = "A record's ref, or its key, percent-encoded")),
    responses(
        (status = 200, description = "It is as you said", body = ResolvedAnswer),
        (status = 400, description = "Every bad field", body = ProblemBody),
        (status = 404, description = "record.absent", body = ProblemBody),
        (status = 409, description = "record.not_now, or record.stale with `current`",
            body = ProblemBody),
    )
)]
pub(crate) async fn resolve(
    State(state): State<AdminState>,
    who: Who,
    Segment(text): Segment,
    body: Whole,
) -> Result<Response, Problem> {
    let key = referred(&text, &who)?;
    let mut reading = Reading::default();
    let body: Option<ResolveBody> = body.read(&mut reading);
    let decided = body.and_then(|body| body.resolution(&mut reading));
    let (resolution, word) = reading.end(decided)?;
    decide(&state, &who, &key, &resolution, word).await
}

/// Forgets a key with its outcome and payload. The audit keeps a note, without the key.
#[utoipa::path(
    delete, path = "/v1/records/{ref}", tag = "records",
    params(("ref" = String, Path, description = "A record's ref, or its key, percent-encoded")),
    responses(
        (status = 200, description = "It is forgotten", body = ResolvedAnswer),
        (status = 404, description = "record.absent", body = ProblemBody),
        (status = 409, description = "record.not_now: someone runs it", body = ProblemBody),
    )
)]
pub(crate) async fn erase(
    State(state): State<AdminState>,
    who: Who,
    Segment(text): Segment,
) -> Result<Response, Problem> {
    let key = referred(&text, &who)?;
    let erased = decide(&state, &who, &key, &Resolution::Erase, "erased").await;
    // Whatever the answer: one that was lost may have been a yes.
    if let Some(door) = state.door() {
        door.forget(&key).await;
    }
    erased
}

/// Lets a dead letter run again.
#[utoipa::path(
    post, path = "/v1/dead/{ref}/retry", tag = "records",
    request_body(content = Option<RetryBody>),
    params(("ref" = String, Path, description = "A record's ref, or its key, percent-encoded")),
    responses(
        (status = 200, description = "It may run again", body = ResolvedAnswer),
        (status = 404, description = "record.absent", body = ProblemBody),
        (status = 409, description = "record.not_now: it is not dead; record.stale with `current`",
            body = ProblemBody),
    )
)]
pub(crate) async fn retry(
    State(state): State<AdminState>,
    who: Who,
    Segment(text): Segment,
    body: Whole,
) -> Result<Response, Problem> {
    let key = referred(&text, &who)?;
    let body: RetryBody = body.parse_or_empty(None)?;
    let (now, found) = state.engine().look_at(&key).await?;
    let is = found.ok_or_else(absent)?.stored.record.state_at(now);
    if is != RecordState::Dead {
        return Err(not_now(is));
    }
    let force = body.force.unwrap_or(false);
    decide(&state, &who, &key, &Resolution::Rerun { force }, "rerun").await
}

/// Drops a dead letter for good. The audit keeps a note, without the key.
#[utoipa::path(
    post, path = "/v1/dead/{ref}/discard", tag = "records",
    params(("ref" = String, Path, description = "A record's ref, or its key, percent-encoded")),
    responses(
        (status = 200, description = "It is gone", body = ResolvedAnswer),
        (status = 404, description = "record.absent", body = ProblemBody),
        (status = 409, description = "record.not_now: it is not dead", body = ProblemBody),
    )
)]
pub(crate) async fn discard(
    State(state): State<AdminState>,
    who: Who,
    Segment(text): Segment,
) -> Result<Response, Problem> {
    let key = referred(&text, &who)?;
    decide(&state, &who, &key, &Resolution::Discard, "discarded").await
}

/// Lists marks in the order of tenant and name: where subjects are. A page may hold fewer than were
/// asked for, or none, and still have a next one.
#[utoipa::path(
    get, path = "/v1/marks", tag = "records", params(MarksParams),
    responses(
        (status = 200, description = "A page", body = PageAnswer),
        (status = 400, description = "Every bad parameter", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn marks(
    State(state): State<AdminState>,
    who: Who,
    params: MarksParams,
) -> Result<Response, Problem> {
    let tenant = who.filter(params.tenant)?.map(|tenant| escape(&tenant).into_owned());
    let prefix = params.subject.map(|subject| format!("{SUBJECTS}:{}", escape(&subject)));
    let what = List::Marks { tenant, prefix: prefix.unwrap_or_default() };
    let limit = usize::from(params.limit.or_default());
    let (mut items, mut next) = (Vec::new(), params.after);
    for _ in 0..MARK_LOOKS_MAX {
        let page = state.engine().list(what.clone(), next, limit - items.len()).await?;
        let Items::Marks(marks) = page.items else { return Err(absent()) };
        // The store's own documents, its secret among them, are nobody's business.
        let shown = marks.iter().filter(|(s, _)| !s.space().starts_with(STORE_SPACE_PREFIX));
        items.extend(shown.map(|(subject, mark)| mark_json(subject, mark)));
        next = page.next;
        if next.is_none() || items.len() == limit {
            break;
        }
    }
    let next = next.as_ref().map(cursor);
    Ok(json(StatusCode::OK, &PageAnswer { items, next }))
}

fn mark_json(subject: &Subject, mark: &Mark) -> Value {
    value!({
        "tenant": subject.tenant(),
        "space": subject.space(),
        "subject": subject.id(),
        "position": mark.position,
        "document": mark.value.is_some(),
        "updated_at": rfc3339(mark.updated_at),
    })
}

/// Drops outcomes past their retention and keys past their remembrance.
#[utoipa::path(
    post, path = "/v1/sweep", tag = "records",
    responses(
        (status = 200, description = "What was swept", body = SweepAnswer),
        (status = 403, description = "Not the operator's token", body = ProblemBody),
    )
)]
pub(crate) async fn sweep(State(state): State<AdminState>, who: Who) -> Result<Response, Problem> {
    who.must_operate()?;
    let shared = SharedCache::of(state.door());
    let report = cache::sweep(state.engine(), shared.as_ref(), |_| {}).await?;
    let answer = SweepAnswer {
        expired: report.expired,
        forgotten: report.forgotten,
        unknown: report.unknown,
    };
    Ok(json(StatusCode::OK, &answer))
}

impl ResolveBody {
    /// One field that does not belong to the decision is an error, not ignored.
    fn resolution(self, reading: &mut Reading) -> Option<(Resolution, &'static str)> {
        let to = self.resolve_as;
        let mut fits = true;
        for (stray, pointer, with) in [
            (self.outcome.is_some() && to != ResolveAs::Done, "/outcome", "done"),
            (self.reason.is_some() && to != ResolveAs::Dead, "/reason", "dead"),
            (self.force.is_some() && to != ResolveAs::Rerun, "/force", "rerun"),
        ] {
            if stray {
                reading.wrong(pointer, format!("goes with \"as\": \"{with}\" only"));
                fits = false;
            }
        }
        let outcome = self.outcome.as_ref().map_or("null", |outcome| outcome.0.get());
        if outcome.len() > OUTCOME_BYTES_MAX {
            let bytes = outcome.len();
            let message = format!("is {bytes} bytes, but must be at most {OUTCOME_BYTES_MAX}");
            reading.wrong("/outcome", message);
            fits = false;
        }
        let decided = match to {
            ResolveAs::Rerun => (Resolution::Rerun { force: self.force.unwrap_or(false) }, "rerun"),
            ResolveAs::Done => {
                let digest = fingerprint_bytes(outcome.as_bytes());
                (Resolution::Done { outcome: (outcome.as_bytes().into(), digest) }, "done")
            }
            ResolveAs::Dead => {
                let reason = self.reason.unwrap_or_else(|| "resolved by hand".into());
                (Resolution::Dead { reason }, "dead")
            }
        };
        fits.then_some(decided)
    }
}

fn referred(text: &str, who: &Who) -> Result<Key, Problem> {
    let message = "is neither a record's ref nor its key: tenant:kind:scope:id";
    let key = read_reference(text).ok_or_else(|| Problem::field("/ref", message))?;
    who.may(&key.tenant())?;
    Ok(key)
}

async fn decide(
    state: &AdminState,
    who: &Who,
    key: &Key,
    resolution: &Resolution,
    word: &'static str,
) -> Result<Response, Problem> {
    match state.engine().resolve(key, resolution, &who.trace()).await? {
        Resolved::Ok => {
            let answer = ResolvedAnswer { reference: reference(key), resolved: word };
            Ok(about(json(StatusCode::OK, &answer), key, word))
        }
        Resolved::Absent => Err(absent()),
        Resolved::NotNow(record) => Err(not_now(record.state)),
        Resolved::Stale { current } => {
            let detail = format!(
                "its subject has passed it and is at {current}: to run it all the same, outside \
                 the order, send \"force\": true"
            );
            let title = "Its subject has passed it";
            Err(Problem::conflict("record.stale", title, detail).with("current", current))
        }
    }
}

fn absent() -> Problem {
    Problem::absent("record.absent", "there is no such record; GET /v1/records lists them")
}

fn not_now(state: RecordState) -> Problem {
    let detail = match state {
        RecordState::Running => "it is running: wait until its lease ends".into(),
        RecordState::Done | RecordState::Expired => {
            "it has its outcome, which is final; it can only be erased".into()
        }
        state => format!("it is {}, which does not allow this; nothing changed", state.as_str()),
    };
    let title = "The record does not allow it now";
    Problem::conflict("record.not_now", title, detail).with("state", state.as_str())
}
