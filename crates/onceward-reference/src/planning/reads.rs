//! Reads: one resource with its ETag (B01), or a page of a list. Nothing here writes (A04).
//!
//! Reads don't pass the layer, so who asks, how often and in which role is looked at here.

use axum::extract::{FromRequestParts, Query, State};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use onceward::core::key::Subject;
use onceward::http::{Caller, ETag, Preconditions, Versioned};
use onceward::store::Cursor;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Planning;
use super::id::Id;
use super::problem::{Answer, Problem};
use super::resource::{Kind, Resource, subject};
use super::{assignments, missions, people};
use crate::paging::{self, shown};
use crate::principals::Role;

/// Tells that an answer came from the response cache.
const X_CACHE: HeaderName = HeaderName::from_static("x-cache");

/// Someone who may read.
pub(super) struct Reader {
    pub(super) caller: Caller,
    role: Role,
}

impl Reader {
    /// Insists on an admin.
    pub(super) fn must_be_admin(&self) -> Result<(), Problem> {
        match self.role {
            Role::Admin => Ok(()),
            Role::Viewer | Role::Editor => Err(Problem::forbidden("this takes an admin")),
        }
    }

    pub(super) fn tenant(&self) -> &str {
        &self.caller.tenant
    }
}

impl FromRequestParts<Planning> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, planning: &Planning) -> Result<Self, Problem> {
        let caller = planning.known(head)?;
        planning.door().allows(&caller)?;
        match people::role(planning.engine(), &caller).await? {
            Some(role) => Ok(Self { caller, role }),
            None => Err(Problem::forbidden("you are no collaborator of this organisation")),
        }
    }
}

/// Which page of a list.
pub(super) struct Page {
    pub(super) after: Option<Cursor>,
    pub(super) limit: usize,
}

#[derive(Deserialize)]
struct PageQuery {
    after: Option<String>,
    limit: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<PageQuery>::from_request_parts(head, state).await;
        let Query(query) = query.map_err(|error| Problem::malformed(error.body_text()))?;
        let page = paging::Page::read(query.after.as_deref(), query.limit.as_deref());
        let paging::Page { after, limit } = page.map_err(Problem::malformed)?;
        Ok(Self { after, limit })
    }
}

/// A page as it is shown.
pub(super) fn page<T: Serialize>(
    items: &[T],
    next: Option<&Cursor>,
    preconditions: &Preconditions,
) -> Answer {
    tagged(&Shown { items, next: next.map(shown) }, preconditions)
}

/// A page of a list.
#[derive(Serialize)]
struct Shown<'a, T> {
    items: &'a [T],
    next: Option<String>,
}

/// A representation that has no version of its own: its tag is made from its bytes.
pub(super) fn tagged(body: &impl Serialize, preconditions: &Preconditions) -> Answer {
    let bytes = serde_json::to_vec(body).map_err(|error| Problem::malformed(error.to_string()))?;
    let hash = Sha256::digest(&bytes);
    let hash: String = hash[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = ETag::strong(&hash).map_err(|error| Problem::malformed(error.to_string()))?;
    let json = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(Versioned::tagged(tag, ([json], bytes)).for_read(preconditions)?)
}

/// `GET /v1/organization`.
pub(super) async fn organization(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
) -> Answer {
    let id = reader.tenant().to_string();
    show(&planning, &reader, &preconditions, (Kind::Organization, &id)).await
}

/// `GET /v1/projects/{id}`.
pub(super) async fn project(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    Id(id): Id,
) -> Answer {
    show(&planning, &reader, &preconditions, (Kind::Project, &id)).await
}

/// `GET /v1/missions/{id}`.
pub(super) async fn mission(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    Id(id): Id,
) -> Answer {
    show(&planning, &reader, &preconditions, (Kind::Mission, &id)).await
}

/// `GET /v1/assignments/{id}`.
pub(super) async fn assignment(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    Id(id): Id,
) -> Answer {
    show(&planning, &reader, &preconditions, (Kind::Assignment, &id)).await
}

/// `GET /v1/collaborators/{id}`.
pub(super) async fn collaborator(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    Id(id): Id,
) -> Answer {
    show(&planning, &reader, &preconditions, (Kind::Collaborator, &id)).await
}

async fn show(
    planning: &Planning,
    reader: &Reader,
    preconditions: &Preconditions,
    (kind, id): (Kind, &str),
) -> Answer {
    let json = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(kept) = planning.cache().get(reader.tenant(), &kind.path(id))
        && let Some(body) = kept.body
    {
        let hit = (X_CACHE, HeaderValue::from_static("hit"));
        return Ok(Versioned::new(kept.version, ([json, hit], body)).for_read(preconditions)?);
    }
    let resource = find(planning, reader, kind, id).await?.ok_or_else(Problem::not_found)?;
    let body = resource.body().bytes();
    Ok(Versioned::tagged(resource.tag(), ([json], body)).for_read(preconditions)?)
}

/// A resource of the reader's organisation. An id that none can have is one that nothing has.
pub(super) async fn find(
    planning: &Planning,
    reader: &Reader,
    kind: Kind,
    id: &str,
) -> Result<Option<Resource>, Problem> {
    let Ok(subject) = subject(reader.tenant(), kind, id) else { return Ok(None) };
    let found = planning.engine().get(&subject).await?;
    Ok(found.and_then(|found| Resource::of_document(kind, &found)))
}

/// `GET /v1/projects`.
pub(super) async fn projects(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    page: Page,
) -> Answer {
    list(&planning, &reader, &preconditions, page, Kind::Project).await
}

/// `GET /v1/collaborators`.
pub(super) async fn collaborators(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    page: Page,
) -> Answer {
    list(&planning, &reader, &preconditions, page, Kind::Collaborator).await
}

async fn list(
    planning: &Planning,
    reader: &Reader,
    preconditions: &Preconditions,
    mut wanted: Page,
    kind: Kind,
) -> Answer {
    let mut items = Vec::new();
    loop {
        let left = wanted.limit - items.len();
        let (engine, tenant) = (planning.engine(), reader.tenant());
        let found = engine.documents(tenant, kind.space(), "", wanted.after, left).await?;
        let resources = found.0.iter().filter_map(|found| Resource::of_document(kind, found));
        items.extend(resources.map(|resource| resource.body()));
        wanted.after = found.1;
        // Deleted ones leave gaps in what the store lists.
        if wanted.after.is_none() || items.len() >= wanted.limit {
            return page(&items, wanted.after.as_ref(), preconditions);
        }
    }
}

/// `GET /v1/projects/{project_id}/missions`.
pub(super) async fn missions_of_project(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    page: Page,
    Id(id): Id,
) -> Answer {
    find(&planning, &reader, Kind::Project, &id).await?.ok_or_else(Problem::not_found)?;
    let of = (missions::OF_PROJECT, id.as_str(), Kind::Mission);
    list_below(&planning, &reader, &preconditions, page, of).await
}

/// `GET /v1/missions/{mission_id}/assignments`.
pub(super) async fn assignments_of_mission(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    page: Page,
    Id(id): Id,
) -> Answer {
    find(&planning, &reader, Kind::Mission, &id).await?.ok_or_else(Problem::not_found)?;
    let of = (assignments::OF_MISSION, id.as_str(), Kind::Assignment);
    list_below(&planning, &reader, &preconditions, page, of).await
}

async fn list_below(
    planning: &Planning,
    reader: &Reader,
    preconditions: &Preconditions,
    mut wanted: Page,
    (space, parent, kind): (&str, &str, Kind),
) -> Answer {
    let (engine, tenant, prefix) = (planning.engine(), reader.tenant(), format!("{parent}/"));
    let mut items = Vec::new();
    loop {
        let left = wanted.limit - items.len();
        let links = engine.documents(tenant, space, &prefix, wanted.after, left).await?;
        let below = links.0.iter().map(|link| {
            let id = link.subject.id();
            subject(tenant, kind, id.strip_prefix(&prefix).unwrap_or_default())
        });
        let below = below.collect::<Result<Vec<Subject>, _>>()?;
        let found = engine.get_many(&below).await?;
        let resources =
            found.iter().flatten().filter_map(|found| Resource::of_document(kind, found));
        items.extend(resources.map(|resource| resource.body()));
        wanted.after = links.1;
        if wanted.after.is_none() || items.len() >= wanted.limit {
            return page(&items, wanted.after.as_ref(), preconditions);
        }
    }
}
