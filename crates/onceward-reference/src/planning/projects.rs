//! Projects: made, changed, archived, and deleted when they hold no mission.

use uuid::Uuid;

use super::command::Command;
use super::fields;
use super::id::Id;
use super::problem::{Answer, Problem};
use super::resource::{Kind, Resource, given};

/// `POST /v1/projects`.
pub(super) async fn create(mut command: Command) -> Answer {
    let id = Uuid::now_v7().to_string();
    let sent = Resource::new(Kind::Project, &id, given(Kind::Project, &command.body));
    let mut project = sent.clone();
    project.set("archived", false);
    fields::check_made(&sent, &project)?;
    fields::check(&project)?;
    command.save(&mut project, "create")?;
    command.created(&project)
}

/// `PATCH /v1/projects/{id}`.
pub(super) async fn patch(Id(id): Id, mut command: Command) -> Answer {
    let before = command.load(Kind::Project, &id).await?;
    let mut project = before.clone();
    project.merge(&command.body);
    fields::check_unchanged(&before, &project)?;
    fields::check(&project)?;
    command.save(&mut project, "update")?;
    command.changed(&project)
}

/// `POST /v1/projects/{id}/archive`.
pub(super) async fn archive(id: Id, command: Command) -> Answer {
    set_archived(id, command, true).await
}

/// `POST /v1/projects/{id}/unarchive`.
pub(super) async fn unarchive(id: Id, command: Command) -> Answer {
    set_archived(id, command, false).await
}

async fn set_archived(Id(id): Id, mut command: Command, archived: bool) -> Answer {
    let mut project = command.load(Kind::Project, &id).await?;
    let (action, state) =
        if archived { ("archive", "archived") } else { ("unarchive", "not archived") };
    if is_archived(&project) == archived {
        return Err(Problem::transition_invalid(action, state));
    }
    project.set("archived", archived);
    // A mission that is being made at this moment looks again.
    let contents = command.contents(Kind::Project, &id).await?;
    command.now_holds(&contents, contents.count)?;
    command.save(&mut project, action)?;
    command.changed(&project)
}

/// `DELETE /v1/projects/{id}`.
pub(super) async fn delete(Id(id): Id, mut command: Command) -> Answer {
    let project = command.load(Kind::Project, &id).await?;
    let contents = command.contents(Kind::Project, &id).await?;
    if contents.count > 0 {
        let detail = format!("it has {} missions: delete them first", contents.count);
        let title = "The project has missions";
        return Err(Problem::conflict("planning.project_not_empty", title, &detail));
    }
    command.now_holds(&contents, 0)?;
    command.remove(&project)?;
    command.deleted(&project)
}

/// Whether it takes no new missions.
pub(super) fn is_archived(project: &Resource) -> bool {
    project.fields.get("archived").is_some_and(|archived| archived == true)
}
