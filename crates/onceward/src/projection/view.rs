//! Views: where documents of a projection are kept, one set per generation.
//!
//! Rule: a document is written only over a lower version, and a deleted one keeps its version. A
//! view in our store commits with the registry; one elsewhere is written before the event is
//! recorded and checks versions by itself, so that what comes twice or late changes nothing.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;

use super::fold::{Fold, Folded};
use crate::engine::EngineError;
use crate::events::Event;
use crate::handlers::{HandlerError, SeenEvent, Work};
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
    /// Documents of a generation by tenant and id, or what is remembered of deleted ones, in the
    /// order asked for.
    fn read<'a>(
        &'a self,
        generation: u64,
        ids: &'a [(&'a str, &'a str)],
    ) -> ViewFuture<'a, Vec<Option<Entry>>>;

    /// Writes documents, or remembers that they are deleted, each unless it has that version or a
    /// higher one. Writing twice is the same as once. No document comes twice in one call.
    fn write<'a>(&'a self, generation: u64, entries: &'a [Entry]) -> ViewFuture<'a, ()>;
}

/// How events are applied to a view elsewhere: read, fold, write by version, many together. No
/// lease is held meanwhile: the version keeps out what comes twice or late, and the commit that
/// records an event is the claim, so a process that dies here leaves nothing to wait for.
pub fn versioned_work<V: Versioned>(view: Arc<V>, generation: u64, fold: Arc<dyn Fold>) -> Work {
    Work::in_store_many(move |seen| {
        let (view, fold) = (view.clone(), fold.clone());
        async move {
            let names = |seen: &SeenEvent| {
                let Event { tenant, aggregate_id, .. } = seen.event();
                (tenant.clone(), aggregate_id.clone())
            };
            let names: Vec<_> = seen.iter().map(names).collect();
            let ids: Vec<_> = names.iter().map(|(t, id)| (t.as_str(), id.as_str())).collect();
            let before = match view.read(generation, &ids).await {
                Ok(before) => before,
                // One document that can't be read keeps no other from it: each is tried alone.
                Err(_) if seen.len() > 1 => return Vec::new(),
                Err(error) => return vec![Err(error.into())],
            };
            let each = seen.iter().zip(before);
            let made: Vec<_> = each
                .map(|(seen, before)| entry_over(seen.event(), before.as_ref(), &*fold))
                .collect();
            let entries: Vec<_> = made.iter().flatten().flatten().cloned().collect();
            let written = write_all(&*view, generation, entries).await;
            let mut written = written.into_iter();
            let end = |made: Result<Option<Entry>, HandlerError>| {
                if made?.is_some() {
                    let missing = || Err(ViewError::Unavailable("no answer".into()));
                    written.next().unwrap_or_else(missing)?;
                }
                Ok(Done::new())
            };
            made.into_iter().map(end).collect()
        }
    })
}

/// Writes documents together; when that fails, each alone, so that one that can't be written keeps
/// no other from it.
async fn write_all<V: Versioned>(
    view: &V,
    generation: u64,
    entries: Vec<Entry>,
) -> Vec<Result<(), ViewError>> {
    if entries.is_empty() {
        return Vec::new();
    }
    reach(Point::BeforeWrite);
    let written = view.write(generation, &entries).await;
    reach(Point::AfterWrite);
    if written.is_err() && entries.len() > 1 {
        let alone = entries.chunks(1).map(|entry| view.write(generation, entry));
        return join_all(alone).await;
    }
    vec![written; entries.len()]
}

/// The document that an event makes of what is there, if it changes it.
fn entry_over(
    event: &Event,
    before: Option<&Entry>,
    fold: &dyn Fold,
) -> Result<Option<Entry>, HandlerError> {
    if before.is_some_and(|before| before.version >= event.sequence_number) {
        // An earlier attempt wrote it, and was not recorded.
        return Ok(None);
    }
    let folded = fold.fold(event, before.and_then(|before| before.body.as_deref()))?;
    Ok(entry_of(event, folded))
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
