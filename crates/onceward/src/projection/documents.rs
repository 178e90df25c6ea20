//! Documents of the engine's store as a view: one commit with the registry, on every store.
//!
//! A document's position is its version, and marks never move back: a deleted document leaves its
//! position.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::decide::Change;
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::Subject;
use onceward_core::record::Body;

use super::fold::Fold;
use super::view::{Entry, View, ViewError, ViewFuture, entry_of};
use crate::engine::{Engine, Seen};
use crate::events::Event;
use crate::handlers::{HandlerError, SeenEvent, Work};
use crate::points::{Point, reach};
use crate::store::Cursor;
use crate::worker::Done;

/// Ids of one page.
const PAGE: usize = 1_000;

/// A view in the engine's store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Documents {
    engine: Engine,
    name: String,
}

impl Documents {
    /// Documents of the view of this name.
    pub fn new(engine: Engine, name: impl Into<String>) -> Self {
        Self { engine, name: name.into() }
    }

    /// The space of a generation's documents.
    #[must_use]
    pub fn space(&self, generation: u64) -> String {
        format!("view.{}@{generation}", self.name)
    }

    fn subject(&self, generation: u64, tenant: &str, id: &str) -> Result<Subject, ViewError> {
        Subject::new(tenant, &self.space(generation), id)
            .map_err(|error| ViewError::Broken(error.to_string()))
    }
}

/// The documents of events, in one look.
async fn see(
    engine: &Engine,
    space: &str,
    events: &[SeenEvent],
) -> Result<Vec<Seen>, HandlerError> {
    let subject = |seen: &SeenEvent| {
        let Event { tenant, aggregate_id, .. } = seen.event();
        Subject::new(tenant, space, aggregate_id)
    };
    let subjects: Result<Vec<_>, _> = events.iter().map(subject).collect();
    Ok(engine.see_many(subjects?).await?.1)
}

/// What an event makes of its document.
fn apply(event: &Event, before: Seen, fold: &dyn Fold) -> Result<Done, HandlerError> {
    let folded = fold.fold(event, before.value.as_deref())?;
    let mut done = Done::new();
    let Some(entry) = entry_of(event, folded) else { return Ok(done) };
    let guard = Guard::new(before.subject, Rule::Above { position: entry.version })?;
    let value = entry.body.map_or(Body::Clear, |body| Body::Set(body[..].into()));
    done.effects().changes.push(Change { guard, value });
    reach(Point::BeforeWrite);
    Ok(done)
}

impl View for Documents {
    fn prepare(&self, _: u64) -> ViewFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn work(&self, generation: u64, fold: Arc<dyn Fold>) -> Work {
        let space: Arc<str> = self.space(generation).into();
        let engine = self.engine.clone();
        Work::in_store_many(move |seen| {
            let (engine, space, fold) = (engine.clone(), space.clone(), fold.clone());
            async move {
                let before = match see(&engine, &space, &seen).await {
                    Ok(before) => before,
                    // One document that can't be read keeps no other from it: each is tried alone.
                    Err(_) if seen.len() > 1 => return Vec::new(),
                    Err(error) => return vec![Err(error)],
                };
                let each = seen.iter().zip(before);
                each.map(|(seen, before)| apply(seen.event(), before, &*fold)).collect()
            }
        })
    }

    fn get<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        id: &'a str,
    ) -> ViewFuture<'a, Option<Entry>> {
        Box::pin(async move {
            let mark = self.engine.mark(&self.subject(generation, tenant, id)?).await?;
            Ok(mark.map(|mark| Entry {
                tenant: tenant.to_owned(),
                id: id.to_owned(),
                version: mark.position,
                body: mark.value.map(|value| Bytes::copy_from_slice(&value)),
            }))
        })
    }

    fn ids<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        after: Option<String>,
    ) -> ViewFuture<'a, (Vec<String>, Option<String>)> {
        Box::pin(async move {
            let space = self.space(generation);
            let after = after.map(Cursor);
            let page = self.engine.documents(tenant, &space, "", after, PAGE).await?;
            let ids = page.0.into_iter().map(|document| document.subject.id().into_owned());
            Ok((ids.collect(), page.1.map(|next| next.0)))
        })
    }

    fn clear<'a>(&'a self, generation: u64, tenants: &'a [String]) -> ViewFuture<'a, ()> {
        Box::pin(async move {
            let space = self.space(generation);
            for tenant in tenants {
                loop {
                    let page = self.engine.documents(tenant, &space, "", None, PAGE).await?;
                    if page.0.is_empty() && page.1.is_none() {
                        break;
                    }
                    let puts: Vec<_> = page
                        .0
                        .into_iter()
                        .map(|document| (document.subject, document.version, None))
                        .collect();
                    if puts.is_empty() {
                        break;
                    }
                    for put in self.engine.put_many(&puts).await {
                        put?;
                    }
                }
            }
            Ok(())
        })
    }
}
