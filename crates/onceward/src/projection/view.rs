//! Views: where documents of a projection are kept, one set per generation.
//!
//! Rule: a document is written only over a lower version, and a deleted one keeps its version. A
//! view in our store commits with the registry; one elsewhere is written before the event is
//! recorded and checks versions by itself, so that what comes twice or late changes nothing.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::fold::{Fold, Folded};
use crate::engine::EngineError;
use crate::events::Event;
use crate::handlers::{HandlerError, Work};
use crate::points::{Point, reach};
use crate::worker::Done;

/// What methods of a view return.
pub type ViewFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ViewError>> + Send + 'a>>;

/// Why a view gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// It may work later.
    #[error("the view gives no answer: {0}")]
    Unavailable(String),
    /// It will not work like this.
    #[error("the view: {0}")]
    Broken(String),
}

impl From<EngineError> for ViewError {
    fn from(error: EngineError) -> Self {
        if error.is_retryable() {
            Self::Unavailable(error.to_string())
        } else {
            Self::Broken(error.to_string())
        }
    }
}

impl From<ViewError> for HandlerError {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::Unavailable(_) => Self::retryable(error),
            ViewError::Broken(_) => Self::permanent(error),
        }
    }
}

/// A document of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whose.
    pub tenant: String,
    /// Which: the aggregate's id.
    pub id: String,
    /// The number of the event that made it so.
    pub version: u64,
    /// Its content; none when it is deleted.
    pub body: Option<Bytes>,
}

/// Where a projection keeps its documents.
pub trait View: Send + Sync + 'static {
    /// Makes a generation ready to be written. May be called again.
    fn prepare(&self, generation: u64) -> ViewFuture<'_, ()>;

    /// How events are applied to a generation.
    fn work(&self, generation: u64, fold: Arc<dyn Fold>) -> Work;

    /// A document, or what is remembered of a deleted one.
    fn get<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        id: &'a str,
    ) -> ViewFuture<'a, Option<Entry>>;

    /// Ids of a tenant's documents that are not deleted, in an order of the view's own. The mark is
    /// where the next page goes on.
    fn ids<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        after: Option<String>,
    ) -> ViewFuture<'a, (Vec<String>, Option<String>)>;

    /// Drops what a generation holds of these tenants: nobody reads it any more.
    fn clear<'a>(&'a self, generation: u64, tenants: &'a [String]) -> ViewFuture<'a, ()>;
}

/// A view elsewhere that keeps versions by itself. What OpenSearch does with external versions.
pub trait Versioned: Send + Sync + 'static {
    /// A document, or what is remembered of a deleted one.
    fn read<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        id: &'a str,
    ) -> ViewFuture<'a, Option<Entry>>;

    /// Writes a document, or remembers that it is deleted, unless it has that version or a higher
    /// one. Writing it twice is the same as once.
    fn write(&self, generation: u64, entry: Entry) -> ViewFuture<'_, ()>;
}

/// How events are applied to a view elsewhere: read, fold, write by version. No lease is held
/// meanwhile: the version keeps out what comes twice or late, and the commit that records the event
/// is the claim, so a process that dies here leaves nothing to wait for.
pub fn versioned_work<V: Versioned>(view: Arc<V>, generation: u64, fold: Arc<dyn Fold>) -> Work {
    Work::in_store(move |seen| {
        let (view, fold) = (view.clone(), fold.clone());
        async move {
            let event = seen.event();
            let before = view.read(generation, &event.tenant, &event.aggregate_id).await?;
            if before.as_ref().is_some_and(|before| before.version >= event.sequence_number) {
                // An earlier attempt wrote it, and was not recorded.
                return Ok(Done::new());
            }
            let body = before.as_ref().and_then(|before| before.body.as_deref());
            let folded = fold.fold(event, body)?;
            if let Some(entry) = entry_of(event, folded) {
                reach(Point::BeforeWrite);
                view.write(generation, entry).await?;
                reach(Point::AfterWrite);
            }
            Ok::<_, HandlerError>(Done::new())
        }
    })
}

/// The document that a fold leaves, if it changes it.
pub(super) fn entry_of(event: &Event, folded: Folded) -> Option<Entry> {
    let body = match folded {
        Folded::Keep => return None,
        Folded::Put(body) => Some(body),
        Folded::Delete => None,
    };
    Some(Entry {
        tenant: event.tenant.clone(),
        id: event.aggregate_id.clone(),
        version: event.sequence_number,
        body,
    })
}
