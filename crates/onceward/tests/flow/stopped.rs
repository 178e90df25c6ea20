//! The registry's server goes away and comes back: a real Postgres, killed and started again.

use std::sync::Arc;
use std::time::Duration;

use onceward::core::key::Subject;
use onceward::engine::{Engine, EngineOptions};
use onceward::handlers::{
    Consumer, ConsumerError, ConsumerOptions, Handler, OnRegistryDown, Spool,
};
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::testing::stream::MemoryEvents;

use super::cluster::Cluster;
use super::world::{PATIENCE, event, handler_options, ledger, ledger_work, quick, until};

struct Stopped {
    engine: Engine,
    log: MemoryEvents,
    name: &'static str,
}

impl Stopped {
    fn consumer(&self, on_registry_down: OnRegistryDown, spool: Option<Spool>) -> Consumer {
        let handler =
            Handler::new(self.engine.clone(), self.name, handler_options(), ledger_work());
        let options = ConsumerOptions { on_registry_down, spool, ..quick() };
        Consumer::start(handler.unwrap(), Arc::new(self.log.clone()), options).unwrap()
    }

    fn push(&self, numbers: std::ops::RangeInclusive<u64>) {
        self.log.push(numbers.map(|number| event(self.name, number)));
    }

    /// Whether the last event has had its effect.
    async fn is_through(&self, engine: &Engine) -> bool {
        let subject = Subject::new("acme", "ledger", self.name).unwrap();
        // A connection of before may give no answer once more.
        let lines = engine.get(&subject).await.ok().flatten();
        lines.is_some_and(|lines| lines.value.ends_with(b"\n20\n"))
    }

    async fn all_is_there_once(&self, consumer: Consumer) {
        until("the rest", || async { consumer.progress().place.segment == 20 }).await;
        consumer.drain(PATIENCE).await.unwrap();
        assert_eq!(ledger(&self.engine, self.name).await, (1..=20).collect::<Vec<_>>());
    }
}

/// All three ways on one server, one after the other: making a server takes seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_a_registry_whose_server_is_killed_and_started_again() {
    let cluster = Cluster::start();
    PostgresStore::migrate(&cluster.url(), PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&cluster.url(), PostgresOptions::default()).await.unwrap();
    // A step whose answer the kill has lost must fail before the consumer's role lapses: without
    // the role nothing is put aside any more, it stays in the log.
    let options = EngineOptions { resend_for: Duration::from_secs(1), ..EngineOptions::default() };
    let engine = Engine::with_options(Arc::new(store), options);
    let on = |name| Stopped { engine: engine.clone(), log: MemoryEvents::new(), name };

    let paused = on("paused");
    paused.push(1..=5);
    let consumer = paused.consumer(OnRegistryDown::Pause, None);
    until("the first five", || async { consumer.counts().done == 5 }).await;
    cluster.kill();
    paused.push(6..=20);
    until("the outage", || async { consumer.progress().trouble.is_some() }).await;
    cluster.restart();
    paused.all_is_there_once(consumer).await;

    let failed = on("failed");
    failed.push(1..=5);
    let mut consumer = failed.consumer(OnRegistryDown::Fail, None);
    until("the first five", || async { consumer.counts().done == 5 }).await;
    cluster.kill();
    failed.push(6..=20);
    let ended = tokio::time::timeout(PATIENCE, consumer.ended()).await.unwrap();
    assert!(matches!(ended, Err(ConsumerError::Registry(_))), "{ended:?}");
    cluster.restart();
    // It is started again as a supervisor does: a connection of before may fail it once more.
    let consumer = loop {
        let mut consumer = failed.consumer(OnRegistryDown::Fail, None);
        tokio::select! {
            ended = consumer.ended() => assert!(ended.is_err()),
            () = until("the rest", || async { failed.is_through(&engine).await }) => break consumer,
        }
    };
    failed.all_is_there_once(consumer).await;

    let aside = on("aside");
    let path = std::env::temp_dir().join(format!("onceward-stopped-{}", std::process::id()));
    let spool = Spool::open(&path).unwrap();
    aside.push(1..=5);
    let consumer = aside.consumer(OnRegistryDown::DeadLetter, Some(spool.clone()));
    until("the first five", || async { consumer.counts().done == 5 }).await;
    cluster.kill();
    aside.push(6..=20);
    // What was read is put aside; what was not yet stays in the log.
    until("the spool", || async { !spool.is_empty() }).await;
    cluster.restart();
    until("taking in", || async { spool.is_empty() && aside.is_through(&engine).await }).await;
    aside.all_is_there_once(consumer).await;
    std::fs::remove_file(&path).unwrap();
    engine.close().await.unwrap();
}
