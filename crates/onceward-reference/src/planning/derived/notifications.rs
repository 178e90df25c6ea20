//! `GET /v1/notifications`: what happened in the organisation, oldest first.

use axum::extract::State;
use onceward::engine::Document;
use onceward::http::Preconditions;
use onceward::worker::{Context, Done, JobError};
use serde_json::{Value, json};

use crate::planning::Planning;
use crate::planning::jobs::{Notify, told};
use crate::planning::problem::Answer;
use crate::planning::reads::{Page, Reader, page};

const NOTIFICATIONS: &str = "planning.notification";

/// Tells of a write, in one commit with the end of its job.
pub(in crate::planning) async fn tell(job: Context) -> Result<Done, JobError> {
    let notify: Notify = told(&job)?;
    let seen = job.read(NOTIFICATIONS, &notify.id).await?;
    let notification = json!({
        "id": notify.id,
        "at": notify.at,
        "action": notify.action,
        "resource": notify.resource,
        "actor": notify.actor,
        "correlation_id": job.correlation_id(),
    });
    let mut done = Done::new();
    done.put(&seen, notification.to_string().into_bytes())?;
    Ok(done)
}

/// Lists the notifications that jobs have made so far.
pub(in crate::planning) async fn list(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    wanted: Page,
) -> Answer {
    let (engine, tenant) = (planning.engine(), reader.tenant());
    let found = engine.documents(tenant, NOTIFICATIONS, "", wanted.after, wanted.limit).await?;
    let told = |found: &Document| serde_json::from_slice(&found.value).ok();
    let items: Vec<Value> = found.0.iter().filter_map(told).collect();
    page(&items, found.1.as_ref(), &preconditions)
}
