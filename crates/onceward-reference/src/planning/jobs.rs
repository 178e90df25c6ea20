//! The outbox of the planning service: which jobs follow a write, and how they are named.
//!
//! A job is made in the commit of the write that it follows (A21) and names resource and version
//! (`mission/7@3`), so that the same write never makes it twice and the next write makes another.
//! Jobs of one subject run in the order of their writes where that matters.

use std::collections::BTreeMap;

use jiff::Timestamp;
use onceward::core::decide::NewJob;
use onceward::core::limits::LimitError;
use onceward::core::record::Terms;
use onceward::http::Caller;
use onceward::worker::{Context, Job, JobError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::resource::{Kind, Resource};

/// Keeps the summaries of projects.
pub const SUMMARY: &str = "planning.summary";
/// Tells the organisation what happened.
pub const NOTIFICATIONS: &str = "planning.notifications";
/// Keeps the words that resources are found by.
pub const SEARCH: &str = "planning.search";

/// How long a worker may hold a job without renewing.
const LEASE_MS: u64 = 5_000;

/// How a write changes the counts of its project.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Delta {
    pub(super) missions: i64,
    pub(super) assignments: i64,
    pub(super) by_state: BTreeMap<String, i64>,
}

impl Delta {
    /// A mission goes from a state to another; none is before it was made and after its end.
    pub(super) fn mission(from: Option<&str>, to: Option<&str>) -> Self {
        let mut delta = Self::default();
        for (state, change) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                delta.missions += change;
                *delta.by_state.entry(state.into()).or_default() += change;
            }
        }
        delta
    }

    /// Assignments come or go.
    pub(super) fn assignments(change: i64) -> Self {
        Self { assignments: change, ..Self::default() }
    }
}

/// What the job that counts is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Count {
    pub(super) project_id: String,
    pub(super) delta: Delta,
}

/// What the job that notifies is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Notify {
    /// The notification's own id; it rises with time.
    pub(super) id: String,
    pub(super) at: String,
    pub(super) action: String,
    /// Resource and version.
    pub(super) resource: String,
    pub(super) actor: String,
}

/// What the job that indexes is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Index {
    /// `mission/7`.
    pub(super) resource: String,
    pub(super) version: u64,
    /// Its name or title; none when it is gone.
    pub(super) text: Option<String>,
}

/// The jobs that follow every write of a resource, which makes `version`.
pub(super) fn following(
    caller: &Caller,
    resource: &Resource,
    version: u64,
    action: &str,
    gone: bool,
) -> Result<Vec<NewJob>, LimitError> {
    let named = format!("{}@{version}", resource.subject());
    let mut jobs = Vec::new();
    if matches!(resource.kind, Kind::Project | Kind::Mission | Kind::Assignment) {
        let payload = Notify {
            id: Uuid::now_v7().to_string(),
            at: Timestamp::now().to_string(),
            action: action.into(),
            resource: named.clone(),
            actor: caller.caller.clone(),
        };
        jobs.push(job(caller, (NOTIFICATIONS, "notify"), &named, &payload, None)?);
    }
    let text = match resource.kind {
        Kind::Project | Kind::Collaborator => resource.text("name"),
        Kind::Mission => resource.text("title"),
        Kind::Organization | Kind::Assignment => return Ok(jobs),
    };
    let text = (!gone).then_some(text);
    let payload = Index { resource: resource.subject(), version, text };
    // A later name must not be overwritten by an earlier one.
    let order = Some(payload.resource.clone());
    jobs.push(job(caller, (SEARCH, "index"), &named, &payload, order.as_deref())?);
    Ok(jobs)
}

/// The job that counts a change of a project's contents.
pub(super) fn count(
    caller: &Caller,
    project_id: &str,
    (resource, version): (&Resource, u64),
    delta: &Delta,
) -> Result<NewJob, LimitError> {
    // What leaves one project and joins another is counted in both.
    let job_type = if delta.missions + delta.assignments < 0 { "leave" } else { "count" };
    let named = format!("{}@{version}", resource.subject());
    let payload = Count { project_id: project_id.into(), delta: delta.clone() };
    // Two at once would only be in each other's way.
    job(caller, (SUMMARY, job_type), &named, &payload, Some(project_id))
}

fn job(
    caller: &Caller,
    (queue, job_type): (&str, &str),
    resource: &str,
    payload: &impl Serialize,
    order: Option<&str>,
) -> Result<NewJob, LimitError> {
    let job = Job::new(&caller.tenant, queue, job_type)
        .resource(resource)
        .payload(json!(payload).to_string().into_bytes())
        .terms(Terms { lease_ms: LEASE_MS, ..Terms::job() });
    match order {
        Some(subject) => job.subject(subject).build(),
        None => job.build(),
    }
}

/// What a job was told. One that says nothing readable never will.
pub(super) fn told<T: DeserializeOwned>(job: &Context) -> Result<T, JobError> {
    serde_json::from_slice(job.payload()).map_err(JobError::permanent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;

    #[test]
    fn a18_a_job_is_named_by_organisation_queue_type_resource_and_version() {
        let caller = Caller { tenant: "org".into(), caller: "ada".into() };
        let mut fields = Members::default();
        fields.set("title", "Plan B");
        let mission = Resource::new(Kind::Mission, "7", fields);
        let jobs = following(&caller, &mission, 3, "mission.update", false).unwrap();
        let keys: Vec<String> = jobs.iter().map(|job| job.key.to_string()).collect();
        assert_eq!(
            keys,
            [
                "org:job:planning.notifications:notify:mission/7@3",
                "org:job:planning.search:index:mission/7@3"
            ]
        );
        assert!(jobs.iter().all(|job| job.terms.lease_ms == 5_000));
    }

    #[test]
    fn a_delta_counts_what_changes() {
        let moved = Delta::mission(Some("draft"), Some("planned"));
        assert_eq!(
            (moved.missions, moved.by_state["draft"], moved.by_state["planned"]),
            (0, -1, 1)
        );
        assert_eq!(Delta::mission(None, Some("draft")).missions, 1);
        assert_eq!(Delta::mission(Some("draft"), None).missions, -1);
    }
}
