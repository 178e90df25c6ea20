//! A world to test in: a store, an event store in a folder, a relay and the embedded log.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward::engine::Engine;
use onceward::events::{Append, AppendVerdict, Event, EventStore, EventStoreOptions, Objects};
use onceward::handlers::{ConsumerOptions, HandlerError, HandlerOptions, Work};
use onceward::projection::Folded;
use onceward::relay::{EmbeddedLog, Relay, RelayOptions};
use onceward::worker::Done;

use crate::support::on::{On, Opened};

/// How long something may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// A store, an event store and the log.
pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) events: EventStore,
    pub(crate) log: Arc<EmbeddedLog>,
    pub(crate) folder: PathBuf,
    _opened: Opened,
}

impl World {
    pub(crate) async fn open(on: On) -> Self {
        let opened = on.open().await;
        let engine = Engine::new(opened.store.clone());
        let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
        let folder =
            std::env::temp_dir().join(format!("onceward-flow-{}-{number}", std::process::id()));
        let objects = Objects::folder(folder.join("events")).unwrap();
        let options = EventStoreOptions::default();
        let events = EventStore::open(engine.clone(), objects, options).await.unwrap();
        let source = Arc::new(events.clone());
        let log = Arc::new(EmbeddedLog::new(engine.clone(), source, "relay").unwrap());
        Self { engine, events, log, folder, _opened: opened }
    }

    /// The same folder, with another engine under a new event store.
    pub(crate) async fn on(mut self, engine: Engine) -> Self {
        let objects = Objects::folder(self.folder.join("other")).unwrap();
        let options = EventStoreOptions::default();
        self.events = EventStore::open(engine.clone(), objects, options).await.unwrap();
        let source = Arc::new(self.events.clone());
        self.log = Arc::new(EmbeddedLog::new(engine.clone(), source, "relay").unwrap());
        self.engine = engine;
        self
    }

    pub(crate) fn relay(&self) -> Relay {
        let source = Arc::new(self.events.clone());
        let bucket = self.events.objects().store().clone();
        let options = RelayOptions::default();
        Relay::start(self.engine.clone(), source, bucket, self.log.clone(), options).unwrap()
    }

    pub(crate) async fn append(&self, aggregate: &str, number: u64, kind: &str, payload: &str) {
        let append = Append {
            tenant: "acme".into(),
            aggregate_id: aggregate.into(),
            event_id: format!("{aggregate}-{number}"),
            kind: kind.into(),
            payload: payload.to_owned().into(),
            expected_seq: Some(number - 1),
            correlation_id: None,
        };
        let verdict = self.events.append(&append).await.unwrap();
        assert!(matches!(verdict, AppendVerdict::Appended(_)), "{verdict:?}");
    }

    /// Appends updates 1 to `last` to each aggregate, one aggregate beside the other.
    pub(crate) async fn append_all(&self, aggregates: &[&str], last: u64) {
        let each = aggregates.iter().map(|aggregate| async move {
            for number in 1..=last {
                let payload = format!("{{\"name\":\"{aggregate} number{number}\"}}");
                self.append(aggregate, number, "update", &payload).await;
            }
        });
        futures_util::future::join_all(each).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until something holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "{what} takes too long");
        // sleeps because what is waited for happens in other tasks that ring for nobody
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn event(aggregate: &str, number: u64) -> Event {
    Event {
        tenant: "acme".into(),
        aggregate_id: aggregate.into(),
        event_id: format!("{aggregate}-{number}"),
        sequence_number: number,
        kind: "update".into(),
        payload: "{}".into(),
        correlation_id: None,
    }
}

pub(crate) fn quick() -> ConsumerOptions {
    ConsumerOptions {
        commit_every: Duration::from_millis(10),
        retries_every: Duration::from_millis(50),
        ..ConsumerOptions::default()
    }
}

pub(crate) fn handler_options() -> HandlerOptions {
    HandlerOptions::default()
}

/// Work in the store: a line per event in the aggregate's ledger document.
pub(crate) fn ledger_work() -> Work {
    Work::in_store(|seen| async move {
        let ledger = seen.read("ledger", &seen.event().aggregate_id).await?;
        let mut lines = ledger.value.as_deref().unwrap_or_default().to_vec();
        lines.extend(format!("{}\n", seen.event().sequence_number).into_bytes());
        let mut done = Done::new();
        done.put(&ledger, lines)?;
        Ok::<_, HandlerError>(done)
    })
}

pub(crate) async fn ledger(engine: &Engine, aggregate: &str) -> Vec<u64> {
    let subject = onceward::core::key::Subject::new("acme", "ledger", aggregate).unwrap();
    let document = engine.get(&subject).await.unwrap();
    let text = document.map_or_else(String::new, |d| String::from_utf8(d.value.to_vec()).unwrap());
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// The view of the tests: a document's content is its last update, a delete removes it.
pub(crate) fn last_update(event: &Event, _: Option<&[u8]>) -> Result<Folded, HandlerError> {
    Ok(match event.kind.as_str() {
        "update" => Folded::Put(event.payload.clone()),
        "delete" => Folded::Delete,
        "nonsense" => return Err(HandlerError::permanent("it makes no sense")),
        _ => Folded::Keep,
    })
}
