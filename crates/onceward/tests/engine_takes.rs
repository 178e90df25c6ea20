//! Takes commit what was listed and read payloads meanwhile: what has changed since must not show.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use common::*;
use onceward::core::audit::Trace;
use onceward::core::batch::Batch;
use onceward::core::decide::{NewJob, Resolution, Retry};
use onceward::core::key::Key;
use onceward::engine::{Engine, Take, Taken};
use onceward::store::memory::MemoryStore;
use onceward::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreError, StoreFuture,
};

/// Shows the first list and the payloads of that time again and again, once it is told to.
struct Late {
    inner: MemoryStore,
    is_late: AtomicBool,
    listed: Mutex<Option<Page>>,
    loaded: Mutex<Option<Loaded>>,
    refuses_loads: AtomicBool,
}

impl Store for Late {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        let of_payloads = matches!(reads[..], [Read::Record { payload: true, .. }]);
        Box::pin(async move {
            if of_payloads && self.refuses_loads.load(Ordering::SeqCst) {
                return Err(StoreError::NotApplied("not now".into()));
            }
            let late = self.loaded.lock().unwrap().clone();
            match late.filter(|_| of_payloads && self.is_late.swap(false, Ordering::SeqCst)) {
                Some(late) => Ok(late),
                None => self.inner.load(reads).await,
            }
        })
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        self.inner.commit(group)
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            let late = self.listed.lock().unwrap().clone();
            match late.filter(|_| self.is_late.load(Ordering::SeqCst)) {
                Some(late) => Ok(late),
                None => self.inner.list(what, after, limit).await,
            }
        })
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

/// A store that has seen one job of this payload as it was made.
async fn seen(payload: &str) -> (Arc<Late>, Engine) {
    let late = Arc::new(Late {
        inner: MemoryStore::new(),
        is_late: AtomicBool::new(false),
        listed: Mutex::default(),
        loaded: Mutex::default(),
        refuses_loads: AtomicBool::new(false),
    });
    let engine = Engine::new(late.clone());
    engine.enqueue(&job(payload)).await.unwrap();
    let page = engine.list(List::Due { queue: "mail".into() }, None, 9).await.unwrap();
    *late.listed.lock().unwrap() = Some(page);
    let read = Read::Record { key: job_key("7"), payload: true };
    *late.loaded.lock().unwrap() = Some(late.inner.load(vec![read]).await.unwrap());
    (late, engine)
}

fn job(payload: &str) -> NewJob {
    NewJob::new(job_key("7"), print(payload), bytes(payload))
}

async fn take(engine: &Engine) -> Vec<Taken> {
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 9, lease_ms: None };
    engine.take(&take).await.unwrap()
}

#[tokio::test]
async fn a_job_that_was_made_anew_since_it_was_listed_never_runs_with_the_old_payload() {
    let (late, engine) = seen("old").await;
    engine.resolve(&job_key("7"), &Resolution::Erase, &Trace::default()).await.unwrap();
    engine.enqueue(&job("new")).await.unwrap();
    late.is_late.store(true, Ordering::SeqCst);
    assert_eq!(take(&engine).await, [], "the payload is of another job, so it is given back");
    let taken = take(&engine).await;
    assert_eq!(taken.iter().map(|taken| &taken.payload[..]).collect::<Vec<_>>(), [b"new"]);
}

#[tokio::test]
async fn a_job_that_was_tried_since_it_was_listed_is_known_as_tried() {
    let (late, engine) = seen("same").await;
    let taken = take(&engine).await;
    assert!(!taken[0].again);
    engine.fail(&taken[0].permit, "no", Retry::In(0)).await.unwrap();
    late.is_late.store(true, Ordering::SeqCst);
    let taken = take(&engine).await;
    assert!(taken[0].again, "its effect may have happened: the probe must be asked");
}

#[tokio::test]
async fn a_take_whose_payloads_cant_be_read_gives_its_jobs_back() {
    let (late, engine) = seen("same").await;
    late.refuses_loads.store(true, Ordering::SeqCst);
    let take_all = Take { queue: "mail".into(), owner: "w".into(), max: 9, lease_ms: None };
    assert!(engine.take(&take_all).await.is_err());
    late.refuses_loads.store(false, Ordering::SeqCst);
    let taken = take(&engine).await;
    assert_eq!(taken.len(), 1, "no lease is waited for");
}
