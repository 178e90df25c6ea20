//! Missions: made in a project, and led through their life cycle (B07).
//!
//! draft → planned → locked; each of them can be archived, and unarchived to what it was. A locked
//! or archived mission is not edited, and neither are its assignments.

use uuid::Uuid;

use super::command::Command;
use super::fields::{self, ARCHIVED_FROM};
use super::id::Id;
use super::jobs::Delta;
use super::problem::{Answer, Problem};
use super::projects::is_archived;
use super::resource::{Kind, Resource, given};

/// Lists the missions of a project: `{project_id}/{mission_id}`.
pub(super) const OF_PROJECT: &str = "planning.missions_of_project";

/// `POST /v1/projects/{project_id}/missions`.
pub(super) async fn create(Id(project_id): Id, mut command: Command) -> Answer {
    let project = command.parent(Kind::Project, &project_id).await?;
    let (project, contents) = project.ok_or_else(Problem::not_found)?;
    if is_archived(&project) {
        let detail = "unarchive it first";
        let title = "The project is archived";
        return Err(Problem::conflict("planning.project_archived", title, detail));
    }
    let id = Uuid::now_v7().to_string();
    let sent = Resource::new(Kind::Mission, &id, given(Kind::Mission, &command.body));
    let mut mission = sent.clone();
    mission.set("state", "draft");
    mission.set("project_id", project_id.as_str());
    mission.fields.remove(ARCHIVED_FROM);
    fields::check_made(&sent, &mission)?;
    fields::check(&mission)?;
    command.now_holds(&contents, contents.count + 1)?;
    command.link(OF_PROJECT, &format!("{project_id}/{id}")).await?;
    command.save(&mut mission, "create")?;
    let version = mission.version;
    command.count(&project_id, (&mission, version), &Delta::mission(None, Some("draft")))?;
    command.created(&mission)
}

/// `PATCH /v1/missions/{id}`.
pub(super) async fn patch(Id(id): Id, mut command: Command) -> Answer {
    let before = command.load(Kind::Mission, &id).await?;
    let mut mission = before.clone();
    mission.merge(&command.body);
    update(&before, &mission)?;
    command.save(&mut mission, "update")?;
    command.changed(&mission)
}

/// `PUT /v1/missions/{id}`: what is not in the body goes, but for what the service keeps.
pub(super) async fn put(Id(id): Id, mut command: Command) -> Answer {
    let before = command.load(Kind::Mission, &id).await?;
    let mut mission = Resource { fields: given(Kind::Mission, &command.body), ..before.clone() };
    for (name, _) in fields::by_command(Kind::Mission) {
        if let (Some(kept), false) = (before.fields.get(name), mission.fields.contains(name)) {
            mission.set(name, kept);
        }
    }
    update(&before, &mission)?;
    command.save(&mut mission, "replace")?;
    command.changed(&mission)
}

fn update(before: &Resource, mission: &Resource) -> Result<(), Problem> {
    must_be_editable(before)?;
    fields::check_unchanged(before, mission)?;
    fields::check(mission)
}

/// `DELETE /v1/missions/{id}`.
pub(super) async fn delete(Id(id): Id, mut command: Command) -> Answer {
    let mission = command.load(Kind::Mission, &id).await?;
    must_be_editable(&mission)?;
    let contents = command.contents(Kind::Mission, &id).await?;
    if contents.count > 0 {
        let detail = format!("it has {} assignments: delete them first", contents.count);
        let title = "The mission has assignments";
        return Err(Problem::conflict("planning.mission_not_empty", title, &detail));
    }
    command.now_holds(&contents, 0)?;
    let project_id = mission.text("project_id");
    let siblings = command.contents(Kind::Project, &project_id).await?;
    command.now_holds(&siblings, siblings.count.saturating_sub(1))?;
    command.unlink(OF_PROJECT, &format!("{project_id}/{id}")).await?;
    let version = command.remove(&mission)?;
    let delta = Delta::mission(Some(&mission.text("state")), None);
    command.count(&project_id, (&mission, version), &delta)?;
    command.deleted(&mission)
}

/// `POST /v1/missions/{id}/plan`.
pub(super) async fn plan(id: Id, command: Command) -> Answer {
    transition(id, command, "plan").await
}

/// `POST /v1/missions/{id}/lock`.
pub(super) async fn lock(id: Id, command: Command) -> Answer {
    transition(id, command, "lock").await
}

/// `POST /v1/missions/{id}/archive`.
pub(super) async fn archive(id: Id, command: Command) -> Answer {
    transition(id, command, "archive").await
}

/// `POST /v1/missions/{id}/unarchive`.
pub(super) async fn unarchive(id: Id, command: Command) -> Answer {
    transition(id, command, "unarchive").await
}

async fn transition(Id(id): Id, mut command: Command, action: &str) -> Answer {
    let mut mission = command.load(Kind::Mission, &id).await?;
    let from = mission.text("state");
    let to = match (action, from.as_str()) {
        ("plan", "draft") => "planned".to_string(),
        ("lock", "planned") => "locked".to_string(),
        ("archive", "draft" | "planned" | "locked") => "archived".to_string(),
        ("unarchive", "archived") => mission.text(ARCHIVED_FROM),
        _ => return Err(Problem::transition_invalid(action, &from)),
    };
    mission.fields.remove(ARCHIVED_FROM);
    if action == "archive" {
        mission.set(ARCHIVED_FROM, from.as_str());
    }
    mission.set("state", to.as_str());
    // An assignment that is being written at this moment looks again.
    let contents = command.contents(Kind::Mission, &id).await?;
    command.now_holds(&contents, contents.count)?;
    command.save(&mut mission, action)?;
    let delta = Delta::mission(Some(&from), Some(&to));
    command.count(&mission.text("project_id"), (&mission, mission.version), &delta)?;
    command.changed(&mission)
}

/// Refuses what a locked or archived mission does not allow.
pub(super) fn must_be_editable(mission: &Resource) -> Result<(), Problem> {
    match mission.text("state").as_str() {
        state @ ("locked" | "archived") => Err(Problem::mission_locked(state)),
        _ => Ok(()),
    }
}
