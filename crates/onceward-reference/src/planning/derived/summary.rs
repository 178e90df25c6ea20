//! `GET /v1/projects/{id}/summary`: how many missions and assignments a project has.
//!
//! Each write of a mission or assignment is followed by a job that brings its difference. A job
//! that ran twice would show at once, so this is also what the crash tests look at.

use std::collections::BTreeMap;

use axum::extract::State;
use onceward::core::key::Subject;
use onceward::http::Preconditions;
use onceward::worker::{Context, Done, JobError};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::planning::Planning;
use crate::planning::id::Id;
use crate::planning::jobs::{Count, Delta, told};
use crate::planning::problem::{Answer, Problem};
use crate::planning::reads::{Reader, find, tagged};
use crate::planning::resource::Kind;

const SUMMARIES: &str = "planning.summary";

/// How many of each a project has.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Summary {
    missions: i64,
    assignments: i64,
    by_state: BTreeMap<String, i64>,
}

impl Summary {
    fn of(value: Option<&[u8]>) -> Self {
        value.and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default()
    }

    fn add(&mut self, delta: &Delta) {
        self.missions += delta.missions;
        self.assignments += delta.assignments;
        for (state, change) in &delta.by_state {
            *self.by_state.entry(state.clone()).or_default() += change;
        }
        self.by_state.retain(|_, count| *count != 0);
    }
}

/// Adds what a write changed, in one commit with the end of its job.
pub(in crate::planning) async fn add(job: Context) -> Result<Done, JobError> {
    let count: Count = told(&job)?;
    let seen = job.read(SUMMARIES, &count.project_id).await?;
    let mut summary = Summary::of(seen.value.as_deref());
    summary.add(&count.delta);
    let mut done = Done::new();
    done.put(&seen, json!(summary).to_string().into_bytes())?;
    Ok(done)
}

/// Shows the summary of a project as far as the jobs have come.
pub(in crate::planning) async fn show(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    Id(id): Id,
) -> Answer {
    find(&planning, &reader, Kind::Project, &id).await?.ok_or_else(Problem::not_found)?;
    let subject = Subject::new(reader.tenant(), SUMMARIES, &id)?;
    let found = planning.engine().get(&subject).await?;
    let summary = Summary::of(found.as_ref().map(|found| &*found.value));
    tagged(&json!(summary), &preconditions)
}
