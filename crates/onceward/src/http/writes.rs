//! What a one-commit handler reads and hands back: documents, jobs, audit entries.
//!
//! [`Writes`] exists only inside a request that the layer protects under
//! [`Commits::One`](super::Commits::One): no route without protection can have a handler that
//! believes it wrote something. Nothing is written by it; the layer commits what is handed back,
//! together with the key and the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Extensions, Response};
use onceward_core::audit::{Entry, Trace};
use onceward_core::decide::{Claim, Effects, NewJob};
use onceward_core::key::Subject;
use onceward_core::record::Body;
use onceward_core::text::escape;
use onceward_core::{Bytes, Text};

use super::door::no_answer;
use super::etag::ETag;
use super::identity::Caller;
use super::refusal::{Code, Refusal};
use crate::engine::Engine;
pub use crate::engine::Seen;

impl Seen {
    /// The tag of what is there, for [`Preconditions`](super::Preconditions).
    #[must_use]
    pub fn tag(&self) -> Option<ETag> {
        self.value.as_ref().map(|_| ETag::of_version(self.version))
    }
}

/// A representation with its tag. As a response of an axum handler it carries the `ETag` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The tag.
    pub tag: ETag,
    /// The representation.
    pub body: T,
}

impl<T> Versioned<T> {
    /// The representation of a document at this version.
    pub fn new(version: u64, body: T) -> Self {
        Self { tag: ETag::of_version(version), body }
    }

    /// A representation with a tag of your own making.
    pub fn tagged(tag: ETag, body: T) -> Self {
        Self { tag, body }
    }
}

/// The writes of one request.
///
/// ```
/// use http::Response;
/// use onceward::http::{Refusal, Writes};
///
/// async fn put_note(mut writes: Writes, text: &str) -> Result<Response<u64>, Refusal> {
///     let seen = writes.read("notes", "1").await?;
///     // If someone else writes the note before we commit, the handler runs again.
///     let version = writes.put(&seen, text.as_bytes())?;
///     Ok(writes.attach(Response::new(version)))
/// }
/// ```
#[derive(Debug)]
pub struct Writes {
    offer: Offer,
    effects: Effects,
}

/// What the layer puts into a request for its handler.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    engine: Engine,
    caller: Caller,
    about: Arc<About>,
    /// Writes were dropped instead of handed back.
    dropped: Arc<AtomicBool>,
}

/// What the audit is told of a request.
#[derive(Debug)]
struct About {
    endpoint: String,
    key_hash: Text,
    payload_hash: Text,
    trace: Trace,
}

/// What a handler handed back, in the extensions of its response.
#[derive(Debug, Clone)]
struct Handed(Effects);

impl Offer {
    pub(super) fn new(engine: Engine, caller: Caller, claim: &Claim) -> Self {
        let about = About {
            endpoint: claim.key.scope().into_owned(),
            key_hash: claim.key.hash_hex().clone(),
            payload_hash: claim.fingerprint.to_string().into(),
            trace: claim.trace.clone(),
        };
        Self { engine, caller, about: Arc::new(about), dropped: Arc::default() }
    }

    /// Whether a handler prepared writes and lost them; asked once.
    pub(super) fn take_dropped(&self) -> bool {
        self.dropped.swap(false, Ordering::Relaxed)
    }
}

/// What a handler handed back with its response.
pub(super) fn handed(extensions: &mut Extensions) -> Effects {
    extensions.remove::<Handed>().map(|handed| handed.0).unwrap_or_default()
}

impl Writes {
    /// The writes of a request, if the layer protects it under one commit.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        let offer = extensions.get::<Offer>()?.clone();
        Some(Self { offer, effects: Effects::default() })
    }

    /// Who asks.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.offer.caller
    }

    /// Method and template of the route.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.offer.about.endpoint
    }

    /// A subject of the caller's tenant.
    ///
    /// # Errors
    /// When a part breaks its bound.
    pub fn subject(&self, space: &str, id: &str) -> Result<Subject, Refusal> {
        Subject::new(&self.offer.caller.tenant, space, id).map_err(|error| bad(&error))
    }

    /// A document of the caller's tenant, with the version that a write of it expects.
    ///
    /// # Errors
    /// When the store gives no answer, or the id breaks its bound.
    pub async fn read(&self, space: &str, id: &str) -> Result<Seen, Refusal> {
        let subject = self.subject(space, id)?;
        self.offer.engine.see(subject).await.map_err(|error| no_answer(&error))
    }

    /// Writes a document over what was seen; answers its new version. When someone else was first
    /// the handler runs again, with what is there then.
    ///
    /// # Errors
    /// When the version can't rise any more.
    pub fn put(&mut self, seen: &Seen, value: impl Into<Bytes>) -> Result<u64, Refusal> {
        self.change(seen, Body::Set(value.into()))
    }

    /// Deletes a document over what was seen. Its version stays and rises, so that whoever saw the
    /// old one can't write it again.
    ///
    /// # Errors
    /// When the version can't rise any more.
    pub fn delete(&mut self, seen: &Seen) -> Result<u64, Refusal> {
        self.change(seen, Body::Clear)
    }

    /// Makes a job with the commit.
    pub fn enqueue(&mut self, job: NewJob) {
        self.effects.jobs.push(job);
    }

    /// An audit entry of the caller's tenant with the ids of this request and the hashes of its key
    /// and payload, to be filled in.
    #[must_use]
    pub fn entry(&self, action: &str) -> Entry {
        let about = &*self.offer.about;
        let mut entry = Entry::new(&escape(&self.offer.caller.tenant), action);
        entry.key_hash = Some(about.key_hash.clone());
        entry.payload_hash = Some(about.payload_hash.clone());
        entry.trace = about.trace.clone();
        entry
    }

    /// Writes an audit entry with the commit.
    pub fn audit(&mut self, entry: Entry) {
        self.effects.audit.push(entry);
    }

    /// Everything so far, for what has no method of its own: marks, guards, ordered jobs.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// Hands everything back with the response. It is committed when the response is one that is
    /// stored: 2xx, 3xx and final 4xx, but never 401, 403, 408, 425, 429, 5xx, or a 409 or 423 that
    /// asks for a retry, unless the route says so.
    #[must_use]
    pub fn attach<B>(mut self, mut response: Response<B>) -> Response<B> {
        let effects = std::mem::take(&mut self.effects);
        response.extensions_mut().insert(Handed(effects));
        response
    }

    fn change(&mut self, seen: &Seen, value: Body) -> Result<u64, Refusal> {
        let (change, version) = seen.change(value).map_err(|error| bad(&error))?;
        self.effects.changes.push(change);
        Ok(version)
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        if !self.effects.is_empty() {
            self.offer.dropped.store(true, Ordering::Relaxed);
        }
    }
}

fn bad(error: &onceward_core::limits::LimitError) -> Refusal {
    Refusal::new(Code::BadRequest, error.to_string())
}
