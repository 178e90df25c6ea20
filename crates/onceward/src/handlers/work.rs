//! What a handler does with an event, in one of three ways.
//!
//! Rule: the way says where the effect is, and so what can be promised. In our store, or with the
//! caller's own SQL in it, the effect commits with the registry: once. Elsewhere it happens at
//! least once, each further time under a higher fence and with the same effect key.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use super::HandlerError;
use super::seen::{Attempt, SeenEvent};
use crate::worker::Done;

#[cfg(feature = "sqlite")]
use crate::events::Event;

type Worked = Pin<Box<dyn Future<Output = Result<Done, HandlerError>> + Send>>;
type InStore = Arc<dyn Fn(SeenEvent) -> Worked + Send + Sync>;
pub(super) type WorkedMany = Pin<Box<dyn Future<Output = Vec<Result<Done, HandlerError>>> + Send>>;
pub(super) type InStoreMany = Arc<dyn Fn(Vec<SeenEvent>) -> WorkedMany + Send + Sync>;
type Elsewhere = Arc<dyn Fn(Attempt) -> Worked + Send + Sync>;
#[cfg(feature = "sqlite")]
pub(super) type OwnSql =
    Arc<dyn Fn(&rusqlite::Connection, &Event) -> Result<Done, HandlerError> + Send + Sync>;

/// What a handler does.
#[derive(Clone)]
pub struct Work(pub(super) Way);

#[derive(Clone)]
pub(super) enum Way {
    InStore(InStore),
    InStoreMany(InStoreMany),
    Elsewhere(Elsewhere),
    #[cfg(feature = "sqlite")]
    OwnSql(OwnSql),
}

impl Work {
    /// The whole effect is documents, jobs and audit entries of our store, handed back. It commits
    /// with the registry; no lease is held. The function may run more than once before its one
    /// commit, so it must not act elsewhere.
    pub fn in_store<F, R, D>(work: F) -> Self
    where
        F: Fn(SeenEvent) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, HandlerError>> + Send + 'static,
        D: Into<Done>,
    {
        Self(Way::InStore(Arc::new(move |seen| {
            let worked = work(seen);
            Box::pin(async move { worked.await.map(Into::into) })
        })))
    }

    /// [`Work::in_store`] for events of many aggregates at once: what is handed back are their
    /// ends, in their order; with none at all each comes again alone. One that fails, fails alone;
    /// each has its own commit in the registry, and those commits share transactions. For work that
    /// is cheaper together, such as reads and writes of many documents; none of it should wait for
    /// long, because all wait for all.
    pub fn in_store_many<F, R>(work: F) -> Self
    where
        F: Fn(Vec<SeenEvent>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<Result<Done, HandlerError>>> + Send + 'static,
    {
        Self(Way::InStoreMany(Arc::new(move |seen| Box::pin(work(seen)))))
    }

    /// The effect is elsewhere: a call, a cache, an index. It runs under a lease; hand the fence
    /// and the effect key on to whatever is called. What is handed back commits with the registry.
    pub fn elsewhere<F, R, D>(work: F) -> Self
    where
        F: Fn(Attempt) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, HandlerError>> + Send + 'static,
        D: Into<Done>,
    {
        Self(Way::Elsewhere(Arc::new(move |attempt| {
            let worked = work(attempt);
            Box::pin(async move { worked.await.map(Into::into) })
        })))
    }

    /// The effect is in tables of one's own in the embedded store's file: the function runs on the
    /// writer's connection, in the transaction that records the event. See
    /// [`Engine::run_once_with`](crate::engine::Engine::run_once_with) for what it may do.
    #[cfg(feature = "sqlite")]
    pub fn own_sql<F>(work: F) -> Self
    where
        F: Fn(&rusqlite::Connection, &Event) -> Result<Done, HandlerError> + Send + Sync + 'static,
    {
        Self(Way::OwnSql(Arc::new(work)))
    }
}

impl Way {
    /// What is worked on alone, of what is worked on together otherwise.
    pub(super) fn alone(many: &InStoreMany, seen: SeenEvent) -> Worked {
        let worked = many(vec![seen]);
        let missing = || HandlerError::retryable("the work left out an end");
        Box::pin(async move { worked.await.pop().unwrap_or_else(|| Err(missing())) })
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Way::InStore(_) => "Work::in_store",
            Way::InStoreMany(_) => "Work::in_store_many",
            Way::Elsewhere(_) => "Work::elsewhere",
            #[cfg(feature = "sqlite")]
            Way::OwnSql(_) => "Work::own_sql",
        })
    }
}
