//! Relays: everything is published, in order, and only what is acknowledged is checkpointed.

use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use onceward::engine::Engine;
use onceward::handlers::{Consumer, Handler};
use onceward::relay::{Relay, RelayOptions, read_checkpoint};
use onceward::store::memory::MemoryStore;
use onceward::testing::stream::{Ack, MemoryEvents};

use super::world::{PATIENCE, event, handler_options, ledger, ledger_work, quick, until};

struct Relays {
    engine: Engine,
    source: MemoryEvents,
    broker: MemoryEvents,
    bucket: Arc<dyn ObjectStore>,
}

impl Relays {
    fn new(events: u64) -> Self {
        let source = MemoryEvents::new();
        source.push((1..=events).map(|number| event("a", number)));
        Self {
            engine: Engine::new(Arc::new(MemoryStore::new())),
            source,
            broker: MemoryEvents::new(),
            bucket: Arc::new(InMemory::new()),
        }
    }

    fn options() -> RelayOptions {
        RelayOptions {
            checkpoint_every: Duration::ZERO,
            lease: Duration::from_millis(300),
            ..RelayOptions::default()
        }
    }

    fn start(&self, options: RelayOptions) -> Relay {
        let (source, broker) = (Arc::new(self.source.clone()), Arc::new(self.broker.clone()));
        Relay::start(self.engine.clone(), source, self.bucket.clone(), broker, options).unwrap()
    }

    async fn published(&self, relay: &Relay, events: u64) {
        until("publishing", || async { relay.status().acknowledged.segment >= events }).await;
    }
}

#[tokio::test]
async fn c02_everything_is_published_in_order_and_a_restart_goes_on() {
    let relays = Relays::new(500);
    let relay = relays.start(Relays::options());
    relays.published(&relay, 500).await;
    relay.drain().await.unwrap();
    assert_eq!(relays.broker.all(), relays.source.all());
    relays.source.push((501..=510).map(|number| event("a", number)));
    let relay = relays.start(Relays::options());
    relays.published(&relay, 510).await;
    assert_eq!(relay.status().published, 10, "what the checkpoint covers is not sent again");
    relay.drain().await.unwrap();
    assert_eq!(relays.broker.all(), relays.source.all());
}

#[tokio::test]
async fn c07_the_checkpoint_tells_what_holds_the_very_first_event_back() {
    let relays = Relays::new(3);
    relays.broker.script(std::iter::repeat_n(Ack::Refused, 5));
    let relay = relays.start(Relays::options());
    let held_by = || async {
        let checkpoint = read_checkpoint(&relays.bucket, "relay").await.unwrap();
        checkpoint.and_then(|checkpoint| checkpoint.held_by)
    };
    let named = |by: String| by.contains("event a-1");
    until("its name", || async { held_by().await.is_some_and(named) }).await;
    relays.published(&relay, 3).await;
    relay.drain().await.unwrap();
    assert_eq!(held_by().await, None);
}

#[tokio::test]
async fn i14_only_the_contiguous_acknowledged_prefix_is_checkpointed() {
    let relays = Relays::new(10);
    // Events 1, 3, 5, 7, 9 are acknowledged at first, then nothing for a while.
    let refused = std::iter::repeat_n(Ack::Refused, 5);
    relays.broker.script(std::iter::once(Ack::Half).chain(refused));
    let relay = relays.start(Relays::options());
    until("the first try", || async { relay.status().held_by.is_some() }).await;
    let held = relay.status();
    assert_eq!(held.acknowledged.segment, 1, "{held:?}");
    assert!(held.held_by.unwrap().contains("event a-2"), "it says by name what holds it back");
    until("a checkpoint", || async {
        read_checkpoint(&relays.bucket, "relay").await.unwrap().is_some()
    })
    .await;
    let checkpoint = read_checkpoint(&relays.bucket, "relay").await.unwrap().unwrap();
    assert_eq!(checkpoint.place().segment, 1);
    relays.published(&relay, 10).await;
    let status = relay.status();
    relay.drain().await.unwrap();
    assert!(status.spared >= 4, "what was acknowledged behind the gap is not sent again");
    assert_eq!(status.held_by, None);
    let mut sent = relays.broker.all();
    sent.sort_by_key(|event| event.sequence_number);
    assert_eq!(sent, relays.source.all(), "each once, same id, same bytes");
}

#[tokio::test]
async fn c10_published_twice_after_a_checkpoint_rollback_effects_happen_once() {
    let relays = Relays::new(50);
    let relay = relays.start(Relays::options());
    relays.published(&relay, 50).await;
    relay.drain().await.unwrap();
    // The bucket is set back to before the first checkpoint.
    let listed = relays.bucket.list(Some(&Path::from("relay")));
    let objects: Vec<_> = futures_util::StreamExt::collect(listed).await;
    assert!(!objects.is_empty());
    for object in objects {
        relays.bucket.delete(&object.unwrap().location).await.unwrap();
    }
    let relay = relays.start(Relays::options());
    relays.published(&relay, 50).await;
    relay.drain().await.unwrap();
    assert_eq!(relays.broker.all().len(), 100, "everything was published twice");
    let handler = Handler::new(relays.engine.clone(), "w", handler_options(), ledger_work());
    let log = Arc::new(relays.broker.clone());
    let consumer = Consumer::start(handler.unwrap(), log, quick()).unwrap();
    until("consuming", || async { consumer.progress().place.segment == 100 }).await;
    let counts = consumer.counts();
    consumer.drain(PATIENCE).await.unwrap();
    assert_eq!((counts.done, counts.duplicates), (50, 50), "{counts:?}");
    assert_eq!(ledger(&relays.engine, "a").await, (1..=50).collect::<Vec<_>>());
}

#[tokio::test]
async fn i14_two_relays_at_once_publish_everything_and_one_takes_over() {
    let relays = Relays::new(200);
    let (first, second) = (relays.start(Relays::options()), relays.start(Relays::options()));
    until("publishing", || async { relays.broker.all().len() >= 200 }).await;
    assert!(first.status().active != second.status().active, "one has the role");
    let (active, standby) = if first.status().active { (first, second) } else { (second, first) };
    active.drain().await.unwrap();
    relays.source.push((201..=220).map(|number| event("a", number)));
    relays.published(&standby, 220).await;
    standby.drain().await.unwrap();
    let mut numbers: Vec<_> =
        relays.broker.all().iter().map(|event| event.sequence_number).collect();
    numbers.dedup();
    assert_eq!(numbers, (1..=220).collect::<Vec<_>>());
}

#[tokio::test]
async fn i14_a_lost_acknowledgement_is_sent_again_with_the_same_id_and_bytes() {
    let relays = Relays::new(30);
    relays.broker.script([Ack::Lost, Ack::Lost]);
    let relay = relays.start(Relays::options());
    relays.published(&relay, 30).await;
    assert!(relay.status().resent >= 30);
    relay.drain().await.unwrap();
    let source = relays.source.all();
    assert!(relays.broker.all().iter().all(|event| source.contains(event)));
    assert_eq!(relays.broker.all().len(), 90);
}

#[tokio::test]
async fn c07_a_damaged_checkpoint_means_duplicates_never_a_skip() {
    let relays = Relays::new(20);
    let relay = relays.start(Relays::options());
    relays.published(&relay, 20).await;
    relay.drain().await.unwrap();
    let last = read_checkpoint(&relays.bucket, "relay").await.unwrap().unwrap();
    let path = Path::from(format!("relay/relay/{:020}", last.number));
    relays.bucket.put(&path, PutPayload::from_static(b"cut")).await.unwrap();
    relays.source.push([event("a", 21)]);
    let relay = relays.start(Relays::options());
    relays.published(&relay, 21).await;
    relay.drain().await.unwrap();
    let sent = relays.broker.all();
    assert!(relays.source.all().iter().all(|event| sent.contains(event)), "none is missing");
}
