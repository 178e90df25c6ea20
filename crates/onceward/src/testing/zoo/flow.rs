//! Checks for bugs between the event store and a view: what is skipped, changed or taken for done.
//!
//! Real relays, consumers and engines over an event store and a broker in memory; a process that
//! ends is a task that is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use object_store::memory::InMemory;

use crate::engine::Engine;
use crate::events::Event;
use crate::handlers::{
    Consumer, ConsumerOptions, Handler, HandlerError, HandlerOptions, Work, read_offset,
};
use crate::relay::{Relay, RelayOptions};
use crate::store::memory::MemoryStore;
use crate::testing::sim::Violation;
use crate::testing::stream::{Ack, MemoryEvents};

type Checked = Result<Option<Violation>, String>;

/// Events of a check.
const EVENTS: u64 = 20;
/// How long something that should happen may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long something that should not happen is waited for.
const SOON: Duration = Duration::from_millis(150);

/// i14: a relay that dies before its sink has acknowledged skips nothing.
pub(super) fn nothing_is_skipped() -> Checked {
    block_on(async {
        let world = World::new();
        world.log.script([Ack::Refused; 100]);
        let first = world.relay()?;
        // Until it has tried; whatever it checkpointed by then counts.
        wait(SOON, || first.status().held_by.is_some()).await;
        drop(first);
        // sleeps because a task that is dropped ends without a word
        tokio::time::sleep(SOON).await;
        let log = MemoryEvents::new();
        let next = World { log: log.clone(), ..world };
        let relay = next.relay()?;
        wait(PATIENCE.min(SOON * 20), || log.all().len() as u64 >= EVENTS).await;
        relay.drain().await.map_err(|error| error.to_string())?;
        let skipped = log.all().len() as u64 != EVENTS;
        Ok(broken(skipped, "i14", "events were never published"))
    })
}

/// i14: an event that is sent again has the same id and the same bytes.
pub(super) fn what_is_sent_again_is_the_same() -> Checked {
    block_on(async {
        let world = World::new();
        world.log.script([Ack::Lost]);
        let relay = world.relay()?;
        wait(PATIENCE, || relay.status().published >= EVENTS).await;
        relay.drain().await.map_err(|error| error.to_string())?;
        let (sent, wanted) = (world.log.all(), world.source.all());
        if sent.len() < wanted.len() * 2 {
            return Err("nothing was sent again".into());
        }
        let other = sent.iter().any(|event| !wanted.contains(event));
        Ok(broken(other, "i14", "an event that was sent again is another one"))
    })
}

/// i15: a consumer that dies before a view is written does not count its events as done.
pub(super) fn every_event_reaches_the_view() -> Checked {
    block_on(async {
        let world = World::new();
        let stuck = Work::in_store(|_| std::future::pending::<Result<(), HandlerError>>());
        let consumer = world.consumer(stuck)?;
        let begun = Instant::now();
        while begun.elapsed() < SOON {
            let offset = read_offset(&world.engine, "view").await;
            if offset.map_err(|error| error.to_string())?.is_some() {
                break;
            }
            // sleeps because an offset that should not move rings for nobody
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        consumer.drain(Duration::ZERO).await.map_err(|error| error.to_string())?;
        let written = Arc::new(AtomicU64::new(0));
        let count = written.clone();
        let work = Work::in_store(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, HandlerError>(()))
        });
        let consumer = world.consumer(work)?;
        wait(SOON * 20, || consumer.counts().done >= EVENTS).await;
        let missing = consumer.counts().done != EVENTS;
        consumer.drain(PATIENCE).await.map_err(|error| error.to_string())?;
        Ok(broken(missing, "i15", "events were taken for done before the view was written"))
    })
}

struct World {
    engine: Engine,
    source: MemoryEvents,
    log: MemoryEvents,
    bucket: Arc<dyn ObjectStore>,
}

impl World {
    fn new() -> Self {
        let source = MemoryEvents::new();
        source.push((1..=EVENTS).map(event));
        Self {
            engine: Engine::new(Arc::new(MemoryStore::new())),
            source,
            log: MemoryEvents::new(),
            bucket: Arc::new(InMemory::new()),
        }
    }

    fn relay(&self) -> Result<Relay, String> {
        let options = RelayOptions {
            lease: Duration::from_millis(100),
            checkpoint_every: Duration::ZERO,
            ..RelayOptions::default()
        };
        let (source, sink) = (Arc::new(self.source.clone()), Arc::new(self.log.clone()));
        Relay::start(self.engine.clone(), source, self.bucket.clone(), sink, options)
            .map_err(|error| error.to_string())
    }

    fn consumer(&self, work: Work) -> Result<Consumer, String> {
        let said = |error: onceward_core::limits::LimitError| error.to_string();
        let handler = Handler::new(self.engine.clone(), "view", HandlerOptions::default(), work);
        let options = ConsumerOptions {
            lease: Duration::from_millis(100),
            commit_every: Duration::ZERO,
            ..ConsumerOptions::default()
        };
        let log = Arc::new(self.source.clone());
        Consumer::start(handler.map_err(said)?, log, options).map_err(said)
    }
}

fn event(number: u64) -> Event {
    Event {
        tenant: "acme".into(),
        aggregate_id: "a".into(),
        event_id: format!("e{number}"),
        sequence_number: number,
        kind: "update".into(),
        payload: bytes::Bytes::from(number.to_string()),
        correlation_id: None,
    }
}

async fn wait(most: Duration, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() && begun.elapsed() < most {
        // sleeps because what is waited for happens in tasks that ring for nobody
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn block_on(check: impl Future<Output = Checked>) -> Checked {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_time().build();
    runtime.map_err(|error| error.to_string())?.block_on(check)
}

fn broken(is: bool, invariant: &'static str, what: &str) -> Option<Violation> {
    is.then(|| Violation { invariant, what: what.to_owned() })
}
