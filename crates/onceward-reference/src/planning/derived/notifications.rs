//! `GET /v1/notifications`: what happened in the organisation, oldest first.

use axum::extract::State;
use onceward::http::Preconditions;
use serde_json::Value;

use crate::planning::Planning;
use crate::planning::problem::Answer;
use crate::planning::reads::{Page, Reader, page};

const NOTIFICATIONS: &str = "planning.notification";

/// Lists the notifications that jobs have made so far.
pub(in crate::planning) async fn list(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    wanted: Page,
) -> Answer {
    let (engine, tenant) = (planning.engine(), reader.tenant());
    let found = engine.documents(tenant, NOTIFICATIONS, "", wanted.after, wanted.limit).await?;
    let items =
        found.0.iter().filter_map(|found| serde_json::from_slice::<Value>(&found.value).ok());
    page(items.collect(), found.1.as_ref(), &preconditions)
}
