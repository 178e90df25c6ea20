//! The organisation and its collaborators, whose roles say what each may do.
//!
//! Roles are looked up at every request, also before a replay (B06): whoever loses one loses it at
//! once. Only an admin gives roles away.

use axum::body::{Body, to_bytes};
use axum::response::Response;
use http::request::Parts;
use http::response;
use onceward::engine::{Engine, EngineError};
use onceward::http::{Caller, Code, Dialect, Refusal, Served, names};
use serde_json::json;
use uuid::Uuid;

use super::Planning;
use super::command::{BODY_BYTES_MAX, Command};
use super::derived::search;
use super::fields;
use super::id::Id;
use super::problem::{Answer, Problem};
use super::resource::{Kind, Resource, given, subject};
use crate::members::Members;
use crate::principals::{Principal, Role};

/// `POST /v1/collaborators`.
pub(super) async fn create_collaborator(mut command: Command) -> Answer {
    let id = Uuid::now_v7().to_string();
    let mut collaborator =
        Resource::new(Kind::Collaborator, &id, given(Kind::Collaborator, &command.body));
    if !collaborator.fields.contains("role") {
        collaborator.set("role", Role::Viewer.as_str());
    }
    fields::check(&collaborator)?;
    if collaborator.text("role") == Role::Admin.as_str() {
        let own = command.find(Kind::Collaborator, &command.caller().caller).await?;
        if own.is_none_or(|own| own.text("role") != Role::Admin.as_str()) {
            return Err(Problem::forbidden("only an admin makes an admin"));
        }
    }
    command.save(&mut collaborator, "create")?;
    command.created(&collaborator)
}

/// The answer to a collaborator that was made before. The door lets editors make collaborators;
/// that one of them became an admin is only seen here, and it is shown to admins alone (B06).
pub(super) async fn replayed(planning: &Planning, head: &Parts, response: Response) -> Response {
    let (answered, body) = response.into_parts();
    // It has a few members more than what was sent. What can't be read might be an admin.
    let body = to_bytes(body, 2 * BODY_BYTES_MAX).await.unwrap_or_default();
    let made = Members::read(&body).ok().flatten();
    if made.is_none_or(|made| made.text("role") == Role::Admin.as_str()) {
        let role = match planning.identify(head) {
            Some(caller) => role(planning.engine(), &caller).await.ok().flatten(),
            None => None,
        };
        if role != Some(Role::Admin) {
            return withheld(answered);
        }
    }
    Response::from_parts(answered, body.into())
}

/// The refusal in the place of an answer that is not shown: nothing of it but the ids of this
/// request, and what is counted and logged.
fn withheld(mut answered: response::Parts) -> Response {
    let id = answered.headers.remove(names::X_REQUEST_ID);
    let text = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    let refusal = Refusal::new(Code::Forbidden, "only an admin makes an admin");
    let mut response = Dialect::Planning.speaker().refuse(&refusal, text).map(Body::from);
    if let Some(id) = id {
        response.headers_mut().insert(names::X_REQUEST_ID, id);
    }
    if let Some(mut served) = answered.extensions.remove::<Served>() {
        served.verdict = refusal.code.meaning().code;
        response.extensions_mut().insert(served);
    }
    response
}

/// `PATCH /v1/collaborators/{id}`. The door has made sure that an admin asks.
pub(super) async fn patch_collaborator(Id(id): Id, mut command: Command) -> Answer {
    let mut collaborator = command.load(Kind::Collaborator, &id).await?;
    collaborator.merge(&command.body);
    fields::check(&collaborator)?;
    command.save(&mut collaborator, "update")?;
    command.changed(&collaborator)
}

/// `PATCH /v1/organization`.
pub(super) async fn patch_organization(mut command: Command) -> Answer {
    let id = command.caller().tenant.clone();
    let mut organization = command.load(Kind::Organization, &id).await?;
    organization.merge(&command.body);
    fields::check(&organization)?;
    command.save(&mut organization, "update")?;
    command.changed(&organization)
}

/// The role that a caller has now; none when it is no collaborator.
pub(super) async fn role(engine: &Engine, caller: &Caller) -> Result<Option<Role>, EngineError> {
    let subject = subject(&caller.tenant, Kind::Collaborator, &caller.caller)?;
    let found = engine.get(&subject).await?;
    let found = found.and_then(|found| Resource::of_document(Kind::Collaborator, &found));
    Ok(found.and_then(|collaborator| Role::parse(&collaborator.text("role"))))
}

/// Makes the organisations and collaborators of the configuration that are not there yet. What is
/// there stays as it is: a role that was taken is not given back by a restart.
pub(super) async fn settle(engine: &Engine, principals: &[Principal]) -> Result<(), EngineError> {
    for principal in principals {
        let Principal { organisation, actor, role, .. } = principal;
        let named = json!({ "name": "Demo organisation" });
        let person = json!({ "name": actor, "role": role.as_str() });
        let documents = [
            (subject(organisation, Kind::Organization, organisation)?, named),
            (subject(organisation, Kind::Collaborator, actor)?, person),
        ];
        for (subject, value) in documents {
            // A conflict means that it is there: nothing to do.
            engine.put(&subject, 0, Some(value.to_string().into_bytes().into())).await?;
        }
        file(engine, organisation, actor).await?;
    }
    Ok(())
}

/// Lets a collaborator of the configuration be found, as those are that someone makes. Looked for
/// at every start: the last one may have ended in between.
async fn file(engine: &Engine, organisation: &str, actor: &str) -> Result<(), EngineError> {
    let found = engine.get(&subject(organisation, Kind::Collaborator, actor)?).await?;
    let found = found.and_then(|found| Resource::of_document(Kind::Collaborator, &found));
    match found {
        Some(person) => search::file(engine, organisation, &person, &person.text("name")).await,
        None => Ok(()),
    }
}
