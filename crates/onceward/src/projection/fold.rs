//! A fold: what an event makes of a document. Pure, so that a view can be made anew and compared.

use bytes::Bytes;

use crate::events::Event;
use crate::handlers::HandlerError;

/// What an event makes of its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Folded {
    /// Nothing: the view is not about such events.
    Keep,
    /// This is its content now.
    Put(Bytes),
    /// It is gone, and no earlier event brings it back.
    Delete,
}

/// What events make of documents.
pub trait Fold: Send + Sync + 'static {
    /// What `event` makes of its aggregate's document, which is `before` now, or none.
    ///
    /// # Errors
    /// When the event makes no sense: it becomes a dead letter of the projection.
    fn fold(&self, event: &Event, before: Option<&[u8]>) -> Result<Folded, HandlerError>;
}

impl<F> Fold for F
where
    F: Fn(&Event, Option<&[u8]>) -> Result<Folded, HandlerError> + Send + Sync + 'static,
{
    fn fold(&self, event: &Event, before: Option<&[u8]>) -> Result<Folded, HandlerError> {
        self(event, before)
    }
}
