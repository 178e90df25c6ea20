//! `POST /v1/measurements/batch`: many measurements of many users, each with its own status (D08).
//!
//! Grouped by user, sorted by time; all users are looked at together and their commits share the
//! store's groups. A batch is not one commit: what was accepted stays so when the rest fails, and
//! whoever sends it again is told `duplicate` of it.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::StatusCode;
use http::request::Parts;
use onceward::core::audit::Trace;
use onceward::core::decide::Effects;
use onceward::core::limits::MAX_BATCH_WRITES;
use onceward::engine::{Engine, EngineError};
use onceward::http::{Caller, names};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::{self, INVALID, OUT_OF_ORDER};
use super::attempt::{Action, Attempt};
use super::fold::{Folding, Item, OfUser, Settled, Sight};
use super::measurement::{FieldError, Submitted};
use super::rules::{Judged, Rules};
use super::settle::Context;
use super::submit::insists;
use super::{BATCH_BYTES_MAX, Happened, Measurements, Settings};
use crate::instant;

/// Measurements of one batch at most.
pub const BATCH_ITEMS_MAX: usize = 10_000;
/// Subjects that are looked at together.
const LOOK_SUBJECTS: usize = 512;
/// Looks, and the commits that follow from them, that go on at once.
const LOOKS_AT_ONCE: usize = 8;
/// Whom the audit names for an item that names nobody, and for a batch that can't be read.
const UNREAD: &str = "";

/// A batch as it comes.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    measurements: Vec<&'a RawValue>,
}

/// One line of the answer.
#[derive(Serialize)]
struct Line {
    index: usize,
    user_id: Option<String>,
    measurement_id: Option<String>,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resubmit_after: Option<String>,
}

#[derive(Serialize)]
struct Answer {
    results: Vec<Line>,
    suggested_retry_order: Vec<usize>,
}

/// An item that can't be read.
struct Unreadable {
    index: usize,
    user_id: Option<String>,
    id: Option<String>,
    payload: Option<Box<RawValue>>,
    errors: Vec<FieldError>,
}

/// A batch, grouped.
struct Plan {
    /// Of each item in the order of the request: user, id and instant, as far as they are known.
    told: Vec<(Option<String>, Option<String>, Option<u64>)>,
    users: Vec<OfUser>,
    unreadable: Vec<Unreadable>,
}

/// The handler.
pub(super) async fn submit(State(service): State<Measurements>, request: Request) -> Response {
    let began = Instant::now();
    let (head, body) = request.into_parts();
    let caller = match service.submitter(&head) {
        Ok(caller) => caller,
        Err(refusal) => return answer::refused(&refusal),
    };
    let Ok(body) = to_bytes(body, BATCH_BYTES_MAX).await else {
        return answer::too_large(BATCH_BYTES_MAX);
    };
    let trace = trace(&head, &caller);
    let context = Context { tenant: &caller.tenant, trace: &trace, settings: service.settings() };
    let plan = match items(&body) {
        Ok(items) => Plan::of(&items),
        Err(error) => return none_of_it(&service, context, began, error).await,
    };
    let forced = insists(&head.headers);
    if forced && let Err(why) = service.may_override(&caller) {
        let told = plan.refused(context, answer::OVERRIDE);
        return match written(service.engine(), context.tenant, told).await {
            Ok(()) => answer::override_not_allowed(why),
            Err(error) => answer::no_answer(&error),
        };
    }
    match run(&service, context, plan, forced).await {
        Ok(answered) => {
            let body = serde_json::to_vec(&answered).unwrap_or_default();
            let mut response = answer::json_of(StatusCode::OK, body.into());
            if let Some(id) = head.headers.get(names::X_CORRELATION_ID) {
                response.headers_mut().insert(names::X_CORRELATION_ID, id.clone());
            }
            response
        }
        Err(error) => answer::no_answer(&error),
    }
}

/// The items of a batch.
///
/// # Errors
/// Why none of them is looked at.
pub(super) fn items(body: &[u8]) -> Result<Vec<&RawValue>, FieldError> {
    let read = serde_json::from_slice::<Body<'_>>(body);
    let Body { measurements } = read
        .map_err(|_| FieldError::new("body", "must be a JSON object with the list measurements"))?;
    if measurements.len() > BATCH_ITEMS_MAX {
        let message = format!("must be at most {BATCH_ITEMS_MAX}");
        return Err(FieldError::new("measurements", &message));
    }
    Ok(measurements)
}

/// Refuses a batch of which no item is looked at: an attempt all the same (D07).
async fn none_of_it(
    service: &Measurements,
    context: Context<'_>,
    began: Instant,
    error: FieldError,
) -> Response {
    let errors = [error];
    let reason = format!("{INVALID}: {}", FieldError::sentence(&errors));
    let entry = of_batch(context.tenant, context.trace, (Action::Rejected, &reason));
    if let Err(error) = service.engine().audit(&entry).await {
        return answer::no_answer(&error);
    }
    let (action, error, took) = (Action::Rejected, Some(INVALID), began.elapsed());
    service.observe(&Happened::Attempt { action, error, took });
    answer::invalid(&errors, None)
}

/// The entry of a batch as such, about nobody: of what was in it nothing is known.
pub(super) fn of_batch(
    tenant: &str,
    trace: &Trace,
    (action, reason): (Action, &str),
) -> onceward::core::audit::Entry {
    let (user_id, reason) = (UNREAD, Some(reason));
    let attempt = Attempt { user_id, id: None, action, reason, payload: None, payload_hash: None };
    attempt.entry(tenant, trace)
}

/// Who asks and under which ids.
pub(super) fn trace(head: &Parts, caller: &Caller) -> Trace {
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).map(Into::into);
    Trace {
        actor: Some(caller.caller.as_str().into()),
        request_id: text(names::X_REQUEST_ID),
        correlation_id: text(names::X_CORRELATION_ID),
    }
}

/// Writes attempts that no other commit carries, before their answer goes.
pub(super) async fn written(
    engine: &Engine,
    tenant: &str,
    entries: Vec<onceward::core::audit::Entry>,
) -> Result<(), EngineError> {
    let chunks = entries.chunks(MAX_BATCH_WRITES).map(|chunk| async move {
        let effects = Effects { audit: chunk.to_vec(), ..Effects::default() };
        engine.write(tenant, &effects).await.map(drop)
    });
    try_join_all(chunks).await.map(drop)
}

/// Commits everything; what came of each item, in the order of the request.
async fn run(
    service: &Measurements,
    context: Context<'_>,
    plan: Plan,
    forced: bool,
) -> Result<Answer, EngineError> {
    let Plan { told, users, unreadable } = plan;
    let settings = context.settings;
    let folding = Folding {
        engine: service.engine(),
        context,
        fail_fast: settings.fail_fast,
        began: Instant::now(),
    };
    let entries = unreadable.iter().map(|item| item.entry(context)).collect();
    written(service.engine(), context.tenant, entries).await?;
    let rules = |user: &str| Rules::of(settings, context.tenant, user, forced);
    let settled = settle_all(&folding, users, &rules).await?;
    let mut lines: Vec<Option<Line>> = told.iter().map(|_| None).collect();
    for item in &unreadable {
        lines[item.index] = Some(item.line());
        service.observe(&Happened::Attempt {
            action: Action::Rejected,
            error: Some(INVALID),
            took: folding.began.elapsed(),
        });
    }
    for item in settled {
        service.observe(&item.happened);
        lines[item.index] = Some(item.line(&told[item.index], settings));
    }
    service.observe(&Happened::Batch { items: told.len() });
    let results: Vec<Line> = lines.into_iter().flatten().collect();
    let refused = results.iter().filter(|line| matches!(line.status, "rejected" | "skipped"));
    let mut suggested_retry_order: Vec<usize> = refused.map(|line| line.index).collect();
    // By time, as a batch is applied; what has no readable time comes last.
    suggested_retry_order.sort_by_key(|index| (told[*index].2.unwrap_or(u64::MAX), *index));
    Ok(Answer { results, suggested_retry_order })
}

/// Looks at users together, folds each, and commits: some looks at once, so that commits of many
/// users wait together and share groups.
pub(super) async fn settle_all(
    folding: &Folding<'_>,
    users: Vec<OfUser>,
    rules: &(impl Fn(&str) -> Rules + Sync),
) -> Result<Vec<Settled>, EngineError> {
    let looks = parts(users).into_iter().map(|part| async move {
        let mut subjects = Vec::new();
        for user in &part {
            subjects.extend(user.subjects(folding.context.tenant)?);
        }
        let (now, seen) = folding.engine.see_many(subjects).await?;
        let mut seen = seen.into_iter();
        let mut settling = Vec::with_capacity(part.len());
        for user in part {
            let sight = Sight::of(now.0, &mut seen, user.items.len());
            let missing = "by a store that answers less than it was asked";
            let sight = sight.ok_or(EngineError::Contended(missing))?;
            let rules = rules(&user.user_id);
            settling.push(async move { folding.settle(&rules, user, sight).await });
        }
        Ok::<_, EngineError>(
            try_join_all(settling).await?.into_iter().flatten().collect::<Vec<_>>(),
        )
    });
    let looks: Vec<_> = looks.collect();
    let settled: Vec<Vec<Settled>> =
        stream::iter(looks).buffer_unordered(LOOKS_AT_ONCE).try_collect().await?;
    Ok(settled.into_iter().flatten().collect())
}

/// Users that are looked at together.
fn parts(users: Vec<OfUser>) -> Vec<Vec<OfUser>> {
    let mut parts: Vec<Vec<OfUser>> = Vec::new();
    let mut room = 0;
    for user in users {
        let needed = user.items.len() + 1;
        if needed > room {
            parts.push(Vec::new());
            room = LOOK_SUBJECTS;
        }
        room = room.saturating_sub(needed);
        if let Some(part) = parts.last_mut() {
            part.push(user);
        }
    }
    parts
}

impl Plan {
    fn of(items: &[&RawValue]) -> Self {
        let mut told = Vec::with_capacity(items.len());
        let mut by_user: BTreeMap<String, Vec<Item>> = BTreeMap::new();
        let mut unreadable = Vec::new();
        for (index, raw) in items.iter().enumerate() {
            let submitted = Submitted::of_json(raw.get().as_bytes());
            let (submitted, wrong) = match submitted {
                Some(submitted) => (submitted, None),
                None => {
                    let error = FieldError::new("item", "must be a JSON object without repetition");
                    (Submitted::default(), Some(vec![error]))
                }
            };
            let payload = submitted.audited();
            let read = wrong.map_or_else(|| submitted.read(None), Err);
            let (user_id, id, at_ms) = (submitted.user_id(), submitted.id(), submitted.at_ms());
            told.push((user_id.clone(), id.clone(), at_ms));
            match read {
                Ok(measurement) => {
                    let items = by_user.entry(measurement.user_id.clone()).or_default();
                    items.push(Item { index, measurement, payload });
                }
                Err(errors) => {
                    unreadable.push(Unreadable { index, user_id, id, payload, errors });
                }
            }
        }
        let users = by_user.into_iter().map(|(user_id, mut items)| {
            items.sort_by_key(|item| (item.measurement.payload.at_ms, item.index));
            OfUser { user_id, items }
        });
        Self { told, users: users.collect(), unreadable }
    }

    /// The entries of a batch that is refused as a whole.
    fn refused(&self, context: Context<'_>, error: &str) -> Vec<onceward::core::audit::Entry> {
        let known = self.users.iter().flat_map(|user| &user.items).map(|item| Attempt {
            user_id: &item.measurement.user_id,
            id: Some(&item.measurement.id),
            action: Action::Rejected,
            reason: Some(error),
            payload: item.payload.as_deref(),
            payload_hash: Some(item.measurement.payload.fingerprint().to_string()),
        });
        let known = known.map(|attempt| attempt.entry(context.tenant, context.trace));
        known.chain(self.unreadable.iter().map(|item| item.entry(context))).collect()
    }
}

impl Unreadable {
    fn entry(&self, context: Context<'_>) -> onceward::core::audit::Entry {
        let reason = format!("{INVALID}: {}", FieldError::sentence(&self.errors));
        let attempt = Attempt {
            user_id: self.user_id.as_deref().unwrap_or(UNREAD),
            id: self.id.as_deref(),
            action: Action::Rejected,
            reason: Some(&reason),
            payload: self.payload.as_deref(),
            payload_hash: None,
        };
        attempt.entry(context.tenant, context.trace)
    }

    fn line(&self) -> Line {
        Line {
            index: self.index,
            user_id: self.user_id.clone(),
            measurement_id: self.id.clone(),
            status: "rejected",
            error: Some(INVALID),
            message: Some(FieldError::sentence(&self.errors)),
            resubmit_after: None,
        }
    }
}

impl Settled {
    fn line(
        &self,
        told: &(Option<String>, Option<String>, Option<u64>),
        settings: &Settings,
    ) -> Line {
        let status = match self.judged {
            Judged::Accepted(_) => "accepted",
            Judged::Duplicate(_) => "duplicate",
            Judged::Skipped => "skipped",
            Judged::Conflict(_) | Judged::OutOfOrder { .. } | Judged::Future => "rejected",
        };
        let why = answer::why(&self.judged);
        let resubmit_after = match self.judged {
            Judged::OutOfOrder { last_ms } => {
                Some(answer::resubmit_after(last_ms, settings.grace_s.saturating_mul(1_000)))
            }
            _ => None,
        };
        let message = match (&self.judged, why) {
            (Judged::OutOfOrder { last_ms }, Some((_, message))) => {
                Some(format!("{message}: {}", instant::shown(*last_ms)))
            }
            (Judged::Skipped, _) => Some("an earlier one of this user was out of order".into()),
            (_, why) => why.map(|(_, message)| message.to_string()),
        };
        let error = match self.judged {
            Judged::Skipped => Some(OUT_OF_ORDER),
            _ => why.map(|(error, _)| error),
        };
        Line {
            index: self.index,
            user_id: told.0.clone(),
            measurement_id: told.1.clone(),
            status,
            error,
            message,
            resubmit_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(items: &serde_json::Value) -> Plan {
        let json = items.to_string();
        Plan::of(&serde_json::from_str::<Vec<&RawValue>>(&json).unwrap())
    }

    #[test]
    fn d08_a_batch_is_grouped_by_user_and_sorted_by_time() {
        let item = |user: &str, id: &str, minute: u32| {
            json!({
                "user_id": user, "measurement_id": id, "weight": 80, "unit": "kg",
                "timestamp": format!("2025-09-15T10:{minute:02}:00Z"), "source": "scale",
            })
        };
        let plan = plan(&json!([
            item("b", "1", 5), item("a", "2", 9), item("b", "3", 1), 7, item("b", "4", 5),
            { "user_id": "a", "measurement_id": "x" },
        ]));
        let order: Vec<(&str, Vec<usize>)> = plan
            .users
            .iter()
            .map(|user| (&*user.user_id, user.items.iter().map(|item| item.index).collect()))
            .collect();
        assert_eq!(order, [("a", vec![1]), ("b", vec![2, 0, 4])]);
        let unreadable: Vec<usize> = plan.unreadable.iter().map(|item| item.index).collect();
        assert_eq!(unreadable, [3, 5]);
        assert_eq!(plan.told.len(), 6);
    }

    #[test]
    fn users_share_looks_within_their_bound() {
        let user = |items: usize| {
            let item = |index| {
                let json = r#"{"user_id":"u","measurement_id":"m","weight":1,"unit":"kg",
                    "timestamp":"2025-09-15T10:00:00Z","source":"s"}"#;
                let measurement = Submitted::of_json(json.as_bytes()).unwrap().read(None).unwrap();
                Item { index, measurement, payload: None }
            };
            OfUser { user_id: "u".into(), items: (0..items).map(item).collect() }
        };
        let parts = parts(vec![user(300), user(200), user(20), user(1_000), user(1)]);
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        assert_eq!(sizes, [2, 1, 1, 1]);
    }
}
