//! What the planning suite asks of a running service beyond plain calls.

use serde_json::{Value, json};

pub(crate) use super::service::*;

impl Service {
    /// On an empty store.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_named("planning", test, &[])
    }

    /// A project of demo-a.
    pub(crate) async fn project(&self) -> Answer {
        let made = post("/v1/projects").json(&json!({ "name": "Bridge" })).send(self).await;
        made.must_be(201)
    }

    /// A mission of demo-a in a new project.
    pub(crate) async fn mission(&self) -> Answer {
        let project = self.project().await.id();
        self.mission_in(&project).await
    }

    /// A mission of demo-a.
    pub(crate) async fn mission_in(&self, project: &str) -> Answer {
        let body = json!({
            "title": "Ferry", "starts_at": "2030-01-01T08:00:00Z",
            "ends_at": "2030-01-01T18:00:00Z",
        });
        let path = format!("/v1/projects/{project}/missions");
        post(&path).json(&body).send(self).await.must_be(201)
    }

    /// A collaborator of demo-a's organisation.
    pub(crate) async fn collaborator(&self) -> String {
        let body = json!({ "name": "Ada", "role": "viewer" });
        post("/v1/collaborators").json(&body).send(self).await.must_be(201).id()
    }

    /// Asks for an assignment from one hour to another.
    pub(crate) async fn assign(&self, mission: &str, who: &str, hours: (u8, u8)) -> Answer {
        let body = json!({
            "collaborator_id": who, "starts_at": hour(hours.0), "ends_at": hour(hours.1),
        });
        post(&format!("/v1/missions/{mission}/assignments")).json(&body).send(self).await
    }

    /// The summary of a project, once it is as expected: jobs may lag.
    pub(crate) async fn summary_becomes(&self, project: &str, expected: &Value) {
        let path = format!("/v1/projects/{project}/summary");
        eventually(&format!("{path} = {expected}"), async || {
            get(&path).send(self).await.json() == *expected
        })
        .await;
    }
}

/// An hour of one day.
pub(crate) fn hour(hour: u8) -> String {
    format!("2030-01-01T{hour:02}:00:00Z")
}
