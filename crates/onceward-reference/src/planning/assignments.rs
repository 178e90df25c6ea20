//! Assignments: a collaborator's time for a mission; never two at once for one collaborator.

use uuid::Uuid;

use super::calendar::Calendar;
use super::command::{Command, Contents};
use super::fields;
use super::id::Id;
use super::jobs::Delta;
use super::missions::must_be_editable;
use super::problem::{Answer, FieldError, Problem};
use super::resource::{Kind, Resource, given};
use crate::members::Members;

/// Lists the assignments of a mission: `{mission_id}/{assignment_id}`.
pub(super) const OF_MISSION: &str = "planning.assignments_of_mission";

/// `POST /v1/missions/{mission_id}/assignments`.
pub(super) async fn create(Id(mission_id): Id, mut command: Command) -> Answer {
    let (mission, contents) = open_mission(&command, &mission_id).await?;
    let id = Uuid::now_v7().to_string();
    let sent = Resource::new(Kind::Assignment, &id, given(Kind::Assignment, &command.body));
    let mut assignment = sent.clone();
    assignment.set("mission_id", mission_id.as_str());
    fields::check_made(&sent, &assignment)?;
    check(&command, &assignment).await?;
    reschedule(&mut command, None, Some(&assignment)).await?;
    command.now_holds(&contents, contents.count + 1)?;
    command.link(OF_MISSION, &format!("{mission_id}/{id}")).await?;
    command.save(&mut assignment, "create")?;
    let project_id = &mission.text("project_id");
    command.count(project_id, (&assignment, assignment.version), &Delta::assignments(1))?;
    command.created(&assignment)
}

/// `PATCH /v1/assignments/{id}`.
pub(super) async fn patch(Id(id): Id, mut command: Command) -> Answer {
    let before = command.load(Kind::Assignment, &id).await?;
    let (_, contents) = open_mission(&command, &before.text("mission_id")).await?;
    let mut assignment = before.clone();
    assignment.merge(&command.body);
    fields::check_unchanged(&before, &assignment)?;
    check(&command, &assignment).await?;
    reschedule(&mut command, Some(&before), Some(&assignment)).await?;
    // The mission must still be open when this is committed.
    command.now_holds(&contents, contents.count)?;
    command.save(&mut assignment, "update")?;
    command.changed(&assignment)
}

/// `POST /v1/assignments/{id}/move`: another time, and perhaps another mission.
pub(super) async fn move_to(Id(id): Id, mut command: Command) -> Answer {
    command.must_expect_a_version()?;
    let before = command.load(Kind::Assignment, &id).await?;
    let asked = asked_for(&command.body)?;
    let (left, leaving) = open_mission(&command, &before.text("mission_id")).await?;
    let other = asked.contains("mission_id").then(|| asked.text("mission_id"));
    let other = other.filter(|other| *other != left.id);
    let joining = match &other {
        Some(other) => {
            let found = command.parent(Kind::Mission, other).await?;
            let (mission, contents) = found.ok_or_else(|| unknown("mission_id"))?;
            must_be_editable(&mission)?;
            Some((mission, contents))
        }
        None => None,
    };
    let joined = joining.as_ref().map_or(&left, |(mission, _)| mission);
    let mut assignment = before.clone();
    assignment.merge(&asked);
    assignment.set("mission_id", joined.id.as_str());
    check(&command, &assignment).await?;
    reschedule(&mut command, Some(&before), Some(&assignment)).await?;
    if let Some((_, joining)) = &joining {
        command.now_holds(&leaving, leaving.count.saturating_sub(1))?;
        command.now_holds(joining, joining.count + 1)?;
        command.unlink(OF_MISSION, &format!("{}/{id}", left.id)).await?;
        command.link(OF_MISSION, &format!("{}/{id}", joined.id)).await?;
    } else {
        command.now_holds(&leaving, leaving.count)?;
    }
    command.save(&mut assignment, "move")?;
    let (from, to) = (&left.text("project_id"), &joined.text("project_id"));
    if from != to {
        let version = assignment.version;
        command.count(from, (&assignment, version), &Delta::assignments(-1))?;
        command.count(to, (&assignment, version), &Delta::assignments(1))?;
    }
    command.changed(&assignment)
}

/// `DELETE /v1/assignments/{id}`.
pub(super) async fn delete(Id(id): Id, mut command: Command) -> Answer {
    let assignment = command.load(Kind::Assignment, &id).await?;
    let (mission, contents) = open_mission(&command, &assignment.text("mission_id")).await?;
    reschedule(&mut command, Some(&assignment), None).await?;
    command.now_holds(&contents, contents.count.saturating_sub(1))?;
    command.unlink(OF_MISSION, &format!("{}/{id}", mission.id)).await?;
    let version = command.remove(&assignment)?;
    let project_id = &mission.text("project_id");
    command.count(project_id, (&assignment, version), &Delta::assignments(-1))?;
    command.deleted(&assignment)
}

/// The mission of an assignment, which must be open, and what it holds.
async fn open_mission(command: &Command, id: &str) -> Result<(Resource, Contents), Problem> {
    let found = command.parent(Kind::Mission, id).await?;
    let (mission, contents) = found.ok_or_else(Problem::not_found)?;
    must_be_editable(&mission)?;
    Ok((mission, contents))
}

/// Its fields, and that its collaborator is one.
async fn check(command: &Command, assignment: &Resource) -> Result<(), Problem> {
    fields::check(assignment)?;
    let collaborator = &assignment.text("collaborator_id");
    match command.find(Kind::Collaborator, collaborator).await? {
        Some(_) => Ok(()),
        None => Err(unknown("collaborator_id")),
    }
}

/// What a move says; its times are required.
fn asked_for(body: &Members) -> Result<Members, Problem> {
    let mut asked = body.only(&["starts_at", "ends_at", "mission_id"]);
    if asked.get("mission_id").is_some_and(|id| id.is_null()) {
        asked.remove("mission_id");
    }
    let missing = |name: &&str| asked.get(name).is_none_or(|value| value.is_null());
    let mut errors: Vec<_> = ["starts_at", "ends_at"]
        .iter()
        .filter(|name| missing(name))
        .map(|name| FieldError::new(name, "is required"))
        .collect();
    if asked.get("mission_id").is_some_and(|id| !id.is_string()) {
        errors.push(FieldError::new("mission_id", "must be the id of a mission"));
    }
    if errors.is_empty() { Ok(asked) } else { Err(Problem::invalid(errors)) }
}

/// Frees the time of what was and takes the time of what is to be. Calendars of two collaborators
/// are two documents; one of a single collaborator is written once.
async fn reschedule(
    command: &mut Command,
    before: Option<&Resource>,
    after: Option<&Resource>,
) -> Result<(), Problem> {
    let whose = |assignment: &Resource| assignment.text("collaborator_id");
    if let Some(after) = after {
        let mut calendar = Calendar::read(command, &whose(after)).await?;
        calendar.free(after);
        calendar.take(after)?;
        calendar.save(command)?;
    }
    if let Some(before) = before
        && after.is_none_or(|after| whose(after) != whose(before))
    {
        let mut calendar = Calendar::read(command, &whose(before)).await?;
        calendar.free(before);
        calendar.save(command)?;
    }
    Ok(())
}

fn unknown(member: &str) -> Problem {
    Problem::invalid(vec![FieldError::new(member, "names nothing of your organisation")])
}
