//! A command: one write of one aggregate, with all that has to be committed with it.
//!
//! A handler loads what it changes, which checks the client's preconditions (B02, A24), changes it,
//! and saves it under the name of an action. Saving writes the document, its audit entry and the
//! jobs that follow (A21); answering hands all of it to the layer, which commits it together with
//! the key and the response, or runs the handler again when someone else was first. Nothing is
//! written by anything in this file.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::IntoResponse;
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use onceward::core::decide::NewJob;
use onceward::http::{Caller, Preconditions, Refusal, Seen, Versioned, Writes};
use serde_json::{Value, json};

use super::cache::Fresh;
use super::jobs::{self, Delta};
use super::problem::{Answer, FieldError, Problem};
use super::resource::{Kind, Resource};
use crate::members::Members;

/// Largest body of a request.
pub(super) const BODY_BYTES_MAX: usize = 256 * 1024;

/// Counts what a project or a mission holds, and guards it: whoever adds, removes or closes moves
/// this document, so that of two that don't go together one sees the other.
const CONTENTS: &str = "planning.contents";

/// A write on its way to its commit.
pub(super) struct Command {
    writes: Writes,
    preconditions: Preconditions,
    /// What the client sent.
    pub(super) body: Members,
    expected_version: Option<u64>,
}

/// What a project or a mission holds.
pub(super) struct Contents {
    seen: Seen,
    pub(super) count: u64,
}

impl Command {
    /// Who asks.
    pub(super) fn caller(&self) -> &Caller {
        self.writes.caller()
    }

    /// A document of the caller's organisation.
    pub(super) async fn see(&self, space: &str, id: &str) -> Result<Seen, Problem> {
        Ok(self.writes.read(space, id).await?)
    }

    /// A resource that is only looked at. An id that none can have is one that nothing has.
    pub(super) async fn find(&self, kind: Kind, id: &str) -> Result<Option<Resource>, Problem> {
        if self.writes.subject(kind.space(), id).is_err() {
            return Ok(None);
        }
        let seen = self.see(kind.space(), id).await?;
        Ok(Resource::of_seen(kind, id, &seen))
    }

    /// A resource that is to be changed. It must be what the client has seen.
    pub(super) async fn load(&self, kind: Kind, id: &str) -> Result<Resource, Problem> {
        let resource = self.find(kind, id).await?.ok_or_else(Problem::not_found)?;
        self.preconditions.check_write(Some(&resource.tag()))?;
        match self.expected_version {
            Some(expected) if expected != resource.version => {
                Err(Refusal::version_mismatch(resource.version).into())
            }
            _ => Ok(resource),
        }
    }

    /// Insists that the client says which version it has seen, in one of the two ways.
    pub(super) fn must_expect_a_version(&self) -> Result<(), Problem> {
        if self.expected_version.is_none() {
            self.preconditions.require_if_match()?;
        }
        Ok(())
    }

    /// Writes a resource over the version that it was loaded at, with its audit entry and jobs.
    pub(super) fn save(&mut self, resource: &mut Resource, action: &str) -> Result<(), Problem> {
        let version = self.put(&self.seen_as(resource)?, resource.bytes())?;
        self.record(resource, version, action, false)?;
        resource.version = version;
        Ok(())
    }

    /// Deletes a resource; answers the version that this makes. The resource keeps its last one,
    /// for the answer.
    pub(super) fn remove(&mut self, resource: &Resource) -> Result<u64, Problem> {
        let version = self.writes.delete(&self.seen_as(resource)?)?;
        self.record(resource, version, "delete", true)?;
        Ok(version)
    }

    /// Writes a document that belongs to the aggregate.
    pub(super) fn put(&mut self, seen: &Seen, value: Vec<u8>) -> Result<u64, Problem> {
        Ok(self.writes.put(seen, value)?)
    }

    /// Lists a resource under its parent.
    pub(super) async fn link(&mut self, space: &str, id: &str) -> Result<(), Problem> {
        let seen = self.see(space, id).await?;
        self.put(&seen, b"{}".to_vec()).map(drop)
    }

    /// Lists it there no more.
    pub(super) async fn unlink(&mut self, space: &str, id: &str) -> Result<(), Problem> {
        let seen = self.see(space, id).await?;
        self.writes.delete(&seen)?;
        Ok(())
    }

    /// What a project or mission holds.
    pub(super) async fn contents(&self, kind: Kind, id: &str) -> Result<Contents, Problem> {
        let seen = self.see(CONTENTS, &holder(kind, id)).await?;
        let value = seen.value.as_deref().unwrap_or_default();
        let value = serde_json::from_slice(value).unwrap_or(Value::Null);
        let count = value["count"].as_u64().unwrap_or_default();
        Ok(Contents { seen, count })
    }

    /// A project or mission that something is done in, with what it holds. The guard is read first:
    /// what is read after it can only be newer, so that the guard refuses when it was too old.
    pub(super) async fn parent(
        &self,
        kind: Kind,
        id: &str,
    ) -> Result<Option<(Resource, Contents)>, Problem> {
        // As for `find`: what has no room for its guard was never made.
        if self.writes.subject(CONTENTS, &holder(kind, id)).is_err() {
            return Ok(None);
        }
        let contents = self.contents(kind, id).await?;
        Ok(self.find(kind, id).await?.map(|parent| (parent, contents)))
    }

    /// Says what it holds now. Saying the same again keeps others out until this commit.
    pub(super) fn now_holds(&mut self, contents: &Contents, count: u64) -> Result<(), Problem> {
        let value = json!({ "count": count }).to_string().into_bytes();
        self.put(&contents.seen, value).map(drop)
    }

    /// Lets the summary of a project follow the write that made this version of a resource.
    pub(super) fn count(
        &mut self,
        project_id: &str,
        (resource, version): (&Resource, u64),
        delta: &Delta,
    ) -> Result<(), Problem> {
        let job = jobs::count(self.caller(), project_id, (resource, version), delta)?;
        self.enqueue(job);
        Ok(())
    }

    /// The answer, to be committed with everything: a created resource. There was nothing before,
    /// and whoever has seen something there is told so.
    pub(super) fn created(self, resource: &Resource) -> Answer {
        self.preconditions.check_write(None)?;
        if self.expected_version.is_some_and(|expected| expected != 0) {
            return Err(Refusal::version_mismatch(0).into());
        }
        self.answer(StatusCode::CREATED, resource)
    }

    /// The answer, to be committed with everything: a changed resource.
    pub(super) fn changed(self, resource: &Resource) -> Answer {
        self.answer(StatusCode::OK, resource)
    }

    /// The answer, to be committed with everything: the last body of a deleted resource.
    pub(super) fn deleted(self, resource: &Resource) -> Answer {
        let body = Versioned::tagged(resource.tag(), axum::Json(resource.body()));
        let mut response = body.into_response();
        response.extensions_mut().insert(Fresh::gone(self.caller(), resource));
        Ok(self.writes.answer(response))
    }

    fn answer(self, status: StatusCode, resource: &Resource) -> Answer {
        let body = Versioned::tagged(resource.tag(), axum::Json(resource.body()));
        let mut response = (status, body).into_response();
        let path = resource.kind.path(&resource.id);
        if status == StatusCode::CREATED
            && let Ok(location) = HeaderValue::from_str(&path)
        {
            response.headers_mut().insert(LOCATION, location);
        }
        // Only a first execution brings this past the layer: a replay is told from the record.
        response.extensions_mut().insert(Fresh::new(self.caller(), resource));
        Ok(self.writes.answer(response))
    }

    /// The document that a resource was loaded from, as its write expects it.
    fn seen_as(&self, resource: &Resource) -> Result<Seen, Problem> {
        let subject = self.writes.subject(resource.kind.space(), &resource.id)?;
        Ok(Seen { subject, version: resource.version, value: None })
    }

    /// The audit entry of a write (A26, B09) and the jobs that follow it.
    fn record(
        &mut self,
        resource: &Resource,
        version: u64,
        action: &str,
        gone: bool,
    ) -> Result<(), Problem> {
        let action = format!("{}.{action}", resource.kind.word());
        let mut entry = self.writes.entry(&action);
        entry.subject = Some(resource.subject().into());
        // What is made has no revision before.
        entry.version_before = Some(resource.version).filter(|version| *version > 0);
        entry.version_after = Some(version);
        entry.detail = Some(self.writes.endpoint().into());
        self.writes.audit(entry);
        for job in jobs::following(self.caller(), resource, version, &action, gone)? {
            self.enqueue(job);
        }
        Ok(())
    }

    /// Lets a job follow; the audit says which write, of which resource and version, it follows.
    fn enqueue(&mut self, mut job: NewJob) {
        job.about = Some(format!("{} → {}", self.writes.endpoint(), job.key.id()).into());
        self.writes.enqueue(job);
    }
}

impl<S: Send + Sync> FromRequest<S> for Command {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (mut head, body) = request.into_parts();
        let writes = Writes::from_request_parts(&mut head, state).await?;
        let preconditions = Preconditions::from_request_parts(&mut head, state).await?;
        let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
        let body = body.map_err(|error| Problem::malformed(error.to_string()))?;
        let body = object(&body)?;
        let expected_version = expected_version(&body)?;
        Ok(Self { writes, preconditions, body, expected_version })
    }
}

/// Under which id it is kept what a project or mission holds.
fn holder(kind: Kind, id: &str) -> String {
    format!("{}/{id}", kind.word())
}

/// The members of a body; none when it is empty.
fn object(body: &[u8]) -> Result<Members, Problem> {
    if body.is_empty() {
        return Ok(Members::default());
    }
    match Members::read(body) {
        Ok(Some(members)) => Ok(members),
        Ok(None) => {
            let (pointer, message) = (String::new(), "must be a JSON object".to_string());
            Err(Problem::invalid(vec![FieldError { pointer, message }]))
        }
        Err(error) => Err(Problem::malformed(error.to_string())),
    }
}

fn expected_version(body: &Members) -> Result<Option<u64>, Problem> {
    let Some(value) = body.get("expected_version") else { return Ok(None) };
    // 1 and 1.0 are one number.
    let whole = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    match value.as_u64().or(whole.map(|number| number as u64)) {
        Some(version) => Ok(Some(version)),
        None => {
            let error = FieldError::new("expected_version", "must be a whole number");
            Err(Problem::invalid(vec![error]))
        }
    }
}
