//! The registry down for a while, in each of the three modes (C10).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onceward::core::batch::Batch;
use onceward::core::key::Key;
use onceward::engine::{Engine, EngineOptions};
use onceward::handlers::{
    Consumer, ConsumerError, ConsumerOptions, Handler, OnRegistryDown, Spool,
};
use onceward::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreError, StoreFuture,
};
use onceward::testing::stream::MemoryEvents;

use super::on_both;
use super::world::{PATIENCE, event, handler_options, ledger, ledger_work, quick, until};
use crate::support::on::{On, Opened};

/// A store that can be cut off.
struct Cut {
    inner: Arc<dyn Store>,
    down: Arc<AtomicBool>,
}

impl Cut {
    fn or<'a, T: 'a>(&'a self, answer: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        if self.down.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::NotApplied("the store is cut off".into())) });
        }
        answer
    }
}

impl Store for Cut {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.or(self.inner.load(reads))
    }
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        self.or(self.inner.commit(group))
    }
    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.or(self.inner.list(what, after, limit))
    }
    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }
    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

struct Outage {
    engine: Engine,
    down: Arc<AtomicBool>,
    log: MemoryEvents,
    opened: Opened,
}

impl Outage {
    async fn begin(on: On) -> Self {
        let opened = on.open().await;
        let down = Arc::new(AtomicBool::new(false));
        let store = Arc::new(Cut { inner: opened.store.clone(), down: down.clone() });
        let engine = Engine::with_options(store, EngineOptions::default());
        let log = MemoryEvents::new();
        log.push((1..=5).map(|number| event("a", number)));
        Self { engine, down, log, opened }
    }

    fn consumer(&self, options: ConsumerOptions) -> Consumer {
        let handler =
            Handler::new(self.engine.clone(), "w", handler_options(), ledger_work()).unwrap();
        Consumer::start(handler, Arc::new(self.log.clone()), options).unwrap()
    }

    async fn all_is_there_once(&self, consumer: Consumer) {
        until("the rest", || async { consumer.progress().place.segment == 20 }).await;
        consumer.drain(PATIENCE).await.unwrap();
        assert_eq!(ledger(&self.engine, "a").await, (1..=20).collect::<Vec<_>>());
    }
}

async fn c10_registry_down_pause_waits_and_goes_on(on: On) {
    let outage = Outage::begin(on).await;
    let consumer = outage.consumer(quick());
    until("the first five", || async { consumer.counts().done == 5 }).await;
    outage.down.store(true, Ordering::SeqCst);
    outage.log.push((6..=20).map(|number| event("a", number)));
    until("the outage", || async { consumer.progress().trouble.is_some() }).await;
    assert_eq!(consumer.counts().done, 5);
    outage.down.store(false, Ordering::SeqCst);
    outage.all_is_there_once(consumer).await;
}

async fn c10_registry_down_fail_ends_with_the_error_and_a_restart_goes_on(on: On) {
    let outage = Outage::begin(on).await;
    let fail = ConsumerOptions { on_registry_down: OnRegistryDown::Fail, ..quick() };
    let mut consumer = outage.consumer(fail.clone());
    until("the first five", || async { consumer.counts().done == 5 }).await;
    outage.down.store(true, Ordering::SeqCst);
    outage.log.push((6..=20).map(|number| event("a", number)));
    let ended = tokio::time::timeout(PATIENCE, consumer.ended()).await.unwrap();
    assert!(matches!(ended, Err(ConsumerError::Registry(_))), "{ended:?}");
    outage.down.store(false, Ordering::SeqCst);
    // Its role could not be given back; it ends with its lease.
    outage.opened.advance(5_001).await;
    let consumer = outage.consumer(fail);
    outage.all_is_there_once(consumer).await;
}

async fn c10_registry_down_dead_letter_spools_and_takes_in(on: On) {
    let outage = Outage::begin(on).await;
    let name = format!("onceward-outage-{}-{on:?}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let spool = Spool::open(&path).unwrap();
    let aside = ConsumerOptions {
        on_registry_down: OnRegistryDown::DeadLetter,
        spool: Some(spool.clone()),
        ..quick()
    };
    let consumer = outage.consumer(aside);
    until("the first five", || async { consumer.counts().done == 5 }).await;
    outage.down.store(true, Ordering::SeqCst);
    outage.log.push((6..=20).map(|number| event("a", number)));
    until("the spool", || async { spool.events().await.unwrap().len() >= 15 }).await;
    let aside: Vec<_> = spool.events().await.unwrap().iter().map(|e| e.sequence_number).collect();
    assert_eq!(aside, (6..=20).collect::<Vec<_>>(), "on disk, in order");
    assert_eq!(consumer.counts().done, 5);
    outage.down.store(false, Ordering::SeqCst);
    until("taking in", || async { spool.is_empty() && consumer.counts().done == 20 }).await;
    outage.all_is_there_once(consumer).await;
    std::fs::remove_file(&path).unwrap();
}

on_both! {
    c10_registry_down_pause_waits_and_goes_on,
    c10_registry_down_fail_ends_with_the_error_and_a_restart_goes_on,
    c10_registry_down_dead_letter_spools_and_takes_in,
}
