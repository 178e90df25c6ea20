//! A store that tells how long each of its operations took: for metrics.
//!
//! Everything is the inner store's. An operation is told about when it ends, whatever it came to;
//! one that is dropped on the way is not. Watching is not told about: it takes as long as nothing
//! happens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::batch::{Answer, Batch};
use onceward_core::key::Key;

use super::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Standing, Store, StoreError,
    StoreFuture,
};

/// What a store was asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Look something up.
    Load,
    /// Apply a group of batches.
    Commit,
    /// List a page.
    List,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 3] = [Self::Load, Self::Commit, Self::List];

    /// The word in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Commit => "commit",
            Self::List => "list",
        }
    }
}

/// An operation that came to its end.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'e> {
    /// What was asked for.
    pub operation: Operation,
    /// How long it took.
    pub took: Duration,
    /// Why it failed, if it did.
    pub error: Option<&'e StoreError>,
}

type Told = dyn Fn(Ended<'_>) + Send + Sync;

/// A store whose operations are told about.
#[derive(Clone)]
pub struct Timed {
    store: Arc<dyn Store>,
    told: Arc<Told>,
}

impl Timed {
    /// Tells of everything that this store does. `told` is called where the answer is waited for,
    /// so it must be quick.
    pub fn new(
        store: Arc<dyn Store>,
        told: impl Fn(Ended<'_>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { store, told: Arc::new(told) })
    }

    fn timed<'a, T: 'a>(
        &'a self,
        operation: Operation,
        work: StoreFuture<'a, T>,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let started = Instant::now();
            let result = work.await;
            let (took, error) = (started.elapsed(), result.as_ref().err());
            (self.told)(Ended { operation, took, error });
            result
        })
    }
}

#[deny(clippy::missing_trait_methods)]
impl Store for Timed {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.timed(Operation::Load, self.store.load(reads))
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        self.timed(Operation::Commit, self.store.commit(group))
    }

    fn commit_one(self: Arc<Self>, batch: Arc<Batch>) -> StoreFuture<'static, Answer> {
        let started = Instant::now();
        let work = self.store.clone().commit_one(batch);
        Box::pin(async move {
            let result = work.await;
            let (took, error) = (started.elapsed(), result.as_ref().err());
            (self.told)(Ended { operation: Operation::Commit, took, error });
            result
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.timed(Operation::List, self.store.list(what, after, limit))
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.store.watch(keys)
    }

    #[cfg(feature = "sqlite")]
    fn commit_own(&self, group: Vec<Arc<dyn super::sqlite::OwnSql>>) -> StoreFuture<'_, Committed> {
        self.timed(Operation::Commit, self.store.commit_own(group))
    }

    fn scrub(&self) -> StoreFuture<'_, bool> {
        self.store.scrub()
    }

    fn standing(&self) -> Standing {
        self.store.standing()
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.store.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;
    use std::sync::Mutex;

    #[tokio::test]
    async fn every_operation_is_told_with_how_it_ended() {
        let heard: Arc<Mutex<Vec<(Operation, bool)>>> = Arc::default();
        let told = heard.clone();
        let store = Timed::new(Arc::new(MemoryStore::new()), move |ended: Ended<'_>| {
            told.lock().unwrap().push((ended.operation, ended.error.is_none()));
        });
        store.load(Vec::new()).await.unwrap();
        store.list(List::Sweepable, None, 1).await.unwrap();
        store.list(List::Sweepable, Some(Cursor("nonsense".into())), 1).await.unwrap_err();
        store.commit(Vec::new()).await.unwrap();
        let expected = [
            (Operation::Load, true),
            (Operation::List, true),
            (Operation::List, false),
            (Operation::Commit, true),
        ];
        assert_eq!(*heard.lock().unwrap(), expected);
    }
}
