//! What a handler gets: the job, proof of its right to act, and eyes on the store.
//!
//! Nothing here writes. What a handler wants written it hands back; what it does elsewhere it does
//! under [`Context::effect_key`] and [`Context::fence`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use onceward_core::Bytes;
use onceward_core::audit::{Entry, Trace};
use onceward_core::decide::Permit;
use onceward_core::key::{Key, Subject};

use super::done::JobError;
use super::job::job_key;
use super::keeper::Held;
use super::lease::LeaseLost;
use crate::engine::{Engine, Seen};

/// One attempt at one job. Cheap to clone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    engine: Engine,
    held: Arc<Held>,
    payload: Bytes,
    again: bool,
}

impl Context {
    pub(crate) fn new(engine: Engine, held: Arc<Held>, payload: Bytes, again: bool) -> Self {
        Self(Arc::new(Inner { engine, held, payload, again }))
    }

    /// What the job was made with.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// Whose job it is.
    #[must_use]
    pub fn tenant(&self) -> Cow<'_, str> {
        self.key().tenant()
    }

    /// The queue that it came from.
    #[must_use]
    pub fn queue(&self) -> Cow<'_, str> {
        self.key().scope()
    }

    /// What kind of work it is.
    #[must_use]
    pub fn job_type(&self) -> Cow<'_, str> {
        self.key().within_parts().next().unwrap_or_default()
    }

    /// What it is about.
    #[must_use]
    pub fn resource(&self) -> Cow<'_, str> {
        self.key().id()
    }

    /// The job's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.permit().key()
    }

    /// Rises with every attempt at this job. Hand it to whatever you call: what refuses a lower one
    /// is safe from an attempt that was overtaken.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.permit().fence.0
    }

    /// The same on every attempt at this job. Hand it as the idempotency key to whatever you call:
    /// what accepts it does the work once.
    #[must_use]
    pub fn effect_key(&self) -> String {
        job_key(self.key())
    }

    /// The number of this attempt, 1 for the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.permit().record.attempt
    }

    /// Whether an earlier attempt was granted: its effect may have happened.
    #[must_use]
    pub fn is_again(&self) -> bool {
        self.0.again
    }

    /// Why the last attempt failed, if it said so.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.permit().record.error.as_deref()
    }

    /// Who made the job and under which ids.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.permit().record.trace
    }

    /// `X-Correlation-ID` for whatever is called: the job's, or the id of the request that made it.
    #[must_use]
    pub fn correlation_id(&self) -> Option<&str> {
        let trace = self.trace();
        trace.correlation_id.as_deref().or(trace.request_id.as_deref())
    }

    /// The engine, for looks.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Proof of the right to act.
    #[must_use]
    pub fn permit(&self) -> &Permit {
        &self.0.held.permit
    }

    /// Whether this attempt may still act. To be asked right before an effect elsewhere, above all
    /// by work that runs outside the handler's own future and so is not cut with it.
    ///
    /// # Errors
    /// When the lease was lost or has run out.
    pub fn check(&self) -> Result<(), LeaseLost> {
        let fence = self.fence();
        self.0.held.lease.over().map_or(Ok(()), |why| Err(LeaseLost { fence, why }))
    }

    /// Resolves when this attempt may not act any more, for work outside the handler's own future.
    pub async fn cut(&self) -> LeaseLost {
        LeaseLost { fence: self.fence(), why: self.0.held.lease.ended().await }
    }

    /// A document of the job's tenant, with the version that a write of it expects.
    ///
    /// # Errors
    /// When the store gives no answer, or a part breaks its bound.
    pub async fn read(&self, space: &str, id: &str) -> Result<Seen, JobError> {
        let subject = Subject::new(&self.tenant(), space, id)?;
        Ok(self.engine().see(subject).await?)
    }

    /// An audit entry of the job's tenant with its ids, to be filled in and handed back.
    #[must_use]
    pub fn entry(&self, action: &str) -> Entry {
        let mut entry = Entry::new(self.key().tenant_column(), action);
        entry.trace = self.trace().clone();
        entry.fence = Some(self.fence());
        entry
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("key_hash", &self.key().hash_hex())
            .field("attempt", &self.attempt())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}
