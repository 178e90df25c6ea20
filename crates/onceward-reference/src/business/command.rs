//! A command: one write of one resource, with all that has to be committed with it.
//!
//! A handler checks the body, makes or loads what it changes, and answers with it. Answering hands
//! document, audit entry and jobs to the layer, which commits them together with the key and the
//! response, or runs the handler again when someone else was first. Nothing is written in this
//! file.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::IntoResponse;
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use onceward::core::decide::NewJob;
use onceward::http::{Caller, Code, Refusal, Seen, Writes};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::problem::{Answer, FieldError, Problem};
use super::resource::{Kind, Resource};
use crate::members::Members;

/// Largest body of a request: kept with its record, so that a conflict can be explained.
pub(super) const BODY_BYTES_MAX: usize = 256 * 1024;

/// A write on its way to its commit.
pub(super) struct Command {
    writes: Writes,
    /// What the client sent, to be looked at.
    pub(super) body: Map<String, Value>,
    /// The same, to be kept.
    sent: Members,
}

impl Command {
    /// Who asks.
    pub(super) fn caller(&self) -> &Caller {
        self.writes.caller()
    }

    /// A new resource with the fields of the body, and an id of its own.
    pub(super) fn make(&self, kind: Kind) -> Resource {
        Resource::new(kind, &Uuid::now_v7().to_string(), 0, &self.sent)
    }

    /// The resource under this id with the fields of the body, whether it is there or not.
    pub(super) async fn replace(&self, kind: Kind, id: &str) -> Result<Resource, Problem> {
        let seen = self.see(kind, id).await?;
        Ok(Resource::new(kind, id, seen.version, &self.sent))
    }

    /// A resource that is to be changed.
    pub(super) async fn load(&self, kind: Kind, id: &str) -> Result<Resource, Problem> {
        let seen = self.see(kind, id).await?;
        Resource::of_seen(kind, id, &seen).ok_or_else(Problem::not_found)
    }

    /// Lets a job follow.
    pub(super) fn enqueue(&mut self, mut job: NewJob) {
        job.about = Some(format!("{} → {}", self.writes.endpoint(), job.key.id()).into());
        self.writes.enqueue(job);
    }

    /// Writes a resource over the version that it was loaded at, with its audit entry, and answers
    /// with it: 201 when this made it.
    pub(super) fn save(mut self, mut resource: Resource, action: &str) -> Answer {
        let subject = self.writes.subject(resource.kind.space(), &resource.id)?;
        let seen = Seen { subject, version: resource.version, value: None };
        let version = self.writes.put(&seen, resource.bytes())?;
        let mut entry = self.writes.entry(&format!("{}.{action}", resource.kind.word()));
        entry.subject = Some(resource.subject().into());
        // What is made has no version before.
        entry.version_before = Some(resource.version).filter(|version| *version > 0);
        entry.version_after = Some(version);
        entry.detail = Some(self.writes.endpoint().into());
        self.writes.audit(entry);
        let made = resource.version == 0;
        resource.version = version;
        let status = if made { StatusCode::CREATED } else { StatusCode::OK };
        let mut response = (status, axum::Json(resource.body())).into_response();
        let path = resource.kind.path(&resource.id);
        if let (true, Ok(location)) = (made, HeaderValue::from_str(&path)) {
            response.headers_mut().insert(LOCATION, location);
        }
        Ok(self.writes.answer(response))
    }

    async fn see(&self, kind: Kind, id: &str) -> Result<Seen, Problem> {
        Ok(self.writes.read(kind.space(), id).await?)
    }
}

impl<S: Send + Sync> FromRequest<S> for Command {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (mut head, body) = request.into_parts();
        let writes = Writes::from_request_parts(&mut head, state).await?;
        let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
        let body = body.map_err(|error| Refusal::new(Code::BadRequest, error.to_string()))?;
        let (body, sent) = object(&body)?;
        Ok(Self { writes, body, sent })
    }
}

/// The members of a body, read and as they were sent; none when it is empty.
fn object(body: &[u8]) -> Result<(Map<String, Value>, Members), Problem> {
    if body.is_empty() {
        return Ok((Map::new(), Members::default()));
    }
    let message = match (Members::read(body), serde_json::from_slice(body)) {
        (Ok(Some(sent)), Ok(Value::Object(members))) => return Ok((members, sent)),
        (Ok(Some(_)), _) => "is nested too deeply",
        (Ok(None), _) => "must be a JSON object",
        (Err(_), _) => "is not JSON, or has more than one meaning",
    };
    Err(Problem::invalid(&[FieldError::new("(body)".into(), message)]))
}
