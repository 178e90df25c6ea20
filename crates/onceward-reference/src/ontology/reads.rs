//! What is read: the events of an aggregate, instances and classes, and the search.
//!
//! Events are there as soon as their command is answered; instances, classes and the search follow
//! by workers and may lag.

use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use onceward::events::Event;
use onceward::http::Caller;
use onceward::store::Cursor;
use serde::Deserialize;
use serde_json::json;

use super::commands::AGGREGATE_ID_BYTES_MAX;
use super::problem::{Answer, Problem};
use super::workers::Workers;
use super::{Ontology, Target};
use crate::members::Members;
use crate::paging::{self, Page};

/// Items of a page: default and most.
const PAGE: (usize, usize) = (100, 1_000);

/// What a list is asked with.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    after: Option<String>,
    limit: Option<String>,
    q: Option<String>,
}

impl Asked {
    fn limit(&self) -> Result<usize, Problem> {
        let Some(limit) = &self.limit else { return Ok(PAGE.0) };
        let limit = limit.parse().ok().filter(|limit| (1..=PAGE.1).contains(limit));
        limit.ok_or_else(|| Problem::invalid(&[("/limit", "must be from 1 to 1000")]))
    }
}

/// `GET /v1/aggregates/{id}/events`.
pub(super) async fn events(
    State(ontology): State<Ontology>,
    caller: Extension<Caller>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
) -> Answer {
    let limit = asked.limit()?;
    let after = match &asked.after {
        None => 0,
        Some(after) => after.parse::<u64>().map_err(|_| {
            Problem::invalid(&[("/after", "must be what a page ended with as next")])
        })?,
    };
    let found = ontology.events().read_aggregate(&caller.tenant, &id, after, limit + 1).await?;
    let next = (found.len() > limit).then(|| found[limit - 1].1.sequence_number.to_string());
    let items: Vec<_> = found.iter().take(limit).map(|(_, event)| shown(event)).collect();
    // Payloads stand here as they were sent, so the page is put together as a text.
    let page = format!("{{\"items\":[{}],\"next\":{}}}", items.join(","), json!(next));
    Ok((StatusCode::OK, [(CONTENT_TYPE, "application/json")], page).into_response())
}

/// An event as it is shown.
fn shown(event: &Event) -> String {
    let (target, kind) =
        Target::split(&event.kind).unwrap_or((Target::Instance, event.kind.as_str()));
    let head = json!({
        "event_id": event.event_id,
        "aggregate_id": event.aggregate_id,
        "sequence_number": event.sequence_number,
        "kind": kind,
        "target": target.as_str(),
        "correlation_id": event.correlation_id,
    });
    let mut text = head.to_string();
    text.pop();
    text.push_str(",\"payload\":");
    // Only JSON is ever appended here.
    text.push_str(std::str::from_utf8(&event.payload).unwrap_or("null"));
    text.push('}');
    text
}

/// `GET /v1/instances/{id}`.
pub(super) async fn instance(
    State(ontology): State<Ontology>,
    caller: Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    document(&ontology, Workers::INSTANCES, &caller, &id).await
}

/// `GET /v1/classes/{id}`.
pub(super) async fn class(
    State(ontology): State<Ontology>,
    caller: Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    document(&ontology, Workers::CLASSES, &caller, &id).await
}

async fn document(ontology: &Ontology, view: &str, caller: &Caller, id: &str) -> Answer {
    // An id that none can have is one that nothing has.
    if id.len() > AGGREGATE_ID_BYTES_MAX {
        return Err(Problem::not_found());
    }
    let found = ontology.workers().document(view, &caller.tenant, id).await?;
    let Some((version, body)) = found else { return Err(Problem::not_found()) };
    let mut members = Members::read(&body).ok().flatten().unwrap_or_default();
    members.set("id", id);
    members.set("sequence_number", version);
    Ok(Json(members).into_response())
}

/// `GET /v1/search?q=`.
pub(super) async fn search(
    State(ontology): State<Ontology>,
    caller: Extension<Caller>,
    Query(asked): Query<Asked>,
) -> Answer {
    let page = Page::read(asked.after.as_deref(), asked.limit.as_deref());
    let Page { after, limit } = page.map_err(|why| Problem::invalid(&[("", &why)]))?;
    let text = asked.q.as_deref().unwrap_or_default();
    let after = after.as_ref().map(|after| after.0.as_str());
    let mut found = ontology.workers().search(&caller.tenant, text, after, limit + 1).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(id, _)| paging::shown(&Cursor(id.clone())));
    let items =
        found.into_iter().map(|(id, number)| json!({ "id": id, "sequence_number": number }));
    let items: Vec<_> = items.collect();
    Ok(Json(json!({ "items": items, "next": next })).into_response())
}
