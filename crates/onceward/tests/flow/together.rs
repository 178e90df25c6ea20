//! Events of many aggregates handled together: what goes wrong with one is nobody else's trouble,
//! and each aggregate keeps its order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use onceward::core::retry::Backoff;
use onceward::engine::Engine;
use onceward::events::Event;
use onceward::handlers::{Consumer, ConsumerOptions, Counts, HandlerError, HandlerOptions, Work};
use onceward::projection::{
    Documents, Entry, Fold, Folded, PostgresIndex, Projection, RedisView, SqliteIndex, Versioned,
    View, ViewError, ViewFuture, versioned_work,
};
use onceward::relay::Log;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

use super::on_both;
use super::world::{World, quick};
use crate::support::on::On;
use crate::support::redis::shared_url;

/// Aggregates, and events of each.
const AGGREGATES: u64 = 40;
const EVENTS: u64 = 3;

/// A name that no other test uses on a shared server.
fn name() -> String {
    static VIEWS: AtomicU64 = AtomicU64::new(0);
    format!("m{}_{}", std::process::id(), VIEWS.fetch_add(1, Ordering::SeqCst))
}

/// A document is the numbers of its events, in the order in which they came. Two events are poison:
/// one is refused for good, one makes the fold panic.
fn numbers(event: &Event, before: Option<&[u8]>) -> Result<Folded, HandlerError> {
    if event.event_id == "x7-2" {
        return Err(HandlerError::permanent("poison"));
    }
    assert_ne!(event.event_id, "x9-2", "poison of another kind");
    let before = String::from_utf8_lossy(before.unwrap_or_default());
    Ok(Folded::Put(format!("{before} {}", event.sequence_number).into()))
}

fn names() -> Vec<String> {
    (0..AGGREGATES).map(|at| format!("x{at}")).collect()
}

/// Appends the events of all and applies them to the first generation.
async fn project_all(world: &World, projection: &Projection) -> Counts {
    let names = names();
    world.append_all(&names.iter().map(String::as_str).collect::<Vec<_>>(), EVENTS).await;
    let relay = world.relay();
    let head = world.events.head().await.unwrap();
    let handler = projection.handler(1).await.unwrap();
    let options = ConsumerOptions { until: Some(head), ..quick() };
    let mut consumer = Consumer::start(handler, world.log.clone(), options).unwrap();
    consumer.ended().await.unwrap();
    relay.drain().await.unwrap();
    consumer.counts()
}

async fn poison_fails_alone(world: &World, view: Arc<dyn View>) {
    let backoff = Backoff { first_ms: 0, max_ms: 0, ..HandlerOptions::default().backoff };
    let options = HandlerOptions { max_attempts: 2, backoff, ..HandlerOptions::default() };
    let projection =
        Projection::new(world.engine.clone(), "numbers", view.clone(), numbers, options);
    let counts = project_all(world, &projection).await;
    assert_eq!((counts.done, counts.dead), (AGGREGATES * EVENTS - 2, 2), "{counts:?}");
    for name in names() {
        let entry = view.get(1, "acme", &name).await.unwrap().unwrap();
        let wanted = if matches!(&*name, "x7" | "x9") { " 1 3" } else { " 1 2 3" };
        let body = String::from_utf8(entry.body.unwrap().to_vec()).unwrap();
        assert_eq!((entry.version, body.as_str()), (EVENTS, wanted), "{name}");
    }
    let log: Arc<dyn Log> = world.log.clone();
    let again = ConsumerOptions { until: Some(log.end().await.unwrap()), ..quick() };
    let handler = projection.handler(1).await.unwrap();
    let mut consumer = Consumer::start(handler, log, again).unwrap();
    consumer.ended().await.unwrap();
    assert_eq!(consumer.counts().done, 0, "nothing is done twice");
    view.clear(1, &["acme".into()]).await.unwrap();
}

async fn c08_c10_poison_among_many_documents_fails_alone(on: On) {
    let world = World::open(on).await;
    let view = Documents::new(world.engine.clone(), "numbers");
    poison_fails_alone(&world, Arc::new(view)).await;
}

on_both! { c08_c10_poison_among_many_documents_fails_alone }

#[tokio::test]
async fn c08_c10_poison_among_many_in_the_full_text_index_fails_alone() {
    let mut world = World::open(On::Memory).await;
    let file = world.folder.join("index.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).unwrap();
    world.events.close().await.unwrap();
    let engine = Engine::new(Arc::new(store));
    world = world.on(engine.clone()).await;
    let index = SqliteIndex::new(engine, &file, "numbers").unwrap();
    poison_fails_alone(&world, Arc::new(index)).await;
}

#[tokio::test]
async fn c08_c10_poison_among_many_in_a_table_elsewhere_fails_alone() {
    let world = World::open(On::Postgres).await;
    let url = std::env::var("ONCEWARD_TEST_POSTGRES_URL").unwrap();
    let index = PostgresIndex::new(url, name()).unwrap();
    poison_fails_alone(&world, Arc::new(index)).await;
}

#[tokio::test]
async fn c08_c10_poison_among_many_in_redis_fails_alone() {
    let world = World::open(On::Sqlite).await;
    let view = RedisView::new(&shared_url(), name()).unwrap();
    poison_fails_alone(&world, Arc::new(view)).await;
}

/// Documents in memory; one of them is damaged and can't be read, nor can any that is read with it.
#[derive(Clone, Default)]
struct OneDamaged(Arc<Mutex<HashMap<String, Entry>>>);

const DAMAGED: &str = "x5";

impl Versioned for OneDamaged {
    fn read<'a>(
        &'a self,
        _: u64,
        ids: &'a [(&'a str, &'a str)],
    ) -> ViewFuture<'a, Vec<Option<Entry>>> {
        Box::pin(async move {
            if ids.iter().any(|(_, id)| *id == DAMAGED) {
                return Err(ViewError::Broken("not what was written".into()));
            }
            let all = self.0.lock().unwrap();
            Ok(ids.iter().map(|(_, id)| all.get(*id).cloned()).collect())
        })
    }

    fn write<'a>(&'a self, _: u64, entries: &'a [Entry]) -> ViewFuture<'a, ()> {
        Box::pin(async move {
            let mut all = self.0.lock().unwrap();
            all.extend(entries.iter().map(|entry| (entry.id.clone(), entry.clone())));
            Ok(())
        })
    }
}

impl View for OneDamaged {
    fn prepare(&self, _: u64) -> ViewFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn work(&self, generation: u64, fold: Arc<dyn Fold>) -> Work {
        versioned_work(Arc::new(self.clone()), generation, fold)
    }

    fn get<'a>(&'a self, _: u64, _: &'a str, id: &'a str) -> ViewFuture<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.0.lock().unwrap().get(id).cloned()) })
    }

    fn ids<'a>(
        &'a self,
        _: u64,
        _: &'a str,
        _: Option<String>,
    ) -> ViewFuture<'a, (Vec<String>, Option<String>)> {
        Box::pin(async move { Ok((self.0.lock().unwrap().keys().cloned().collect(), None)) })
    }

    fn clear<'a>(&'a self, _: u64, _: &'a [String]) -> ViewFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test]
async fn i15_a_document_that_can_not_be_read_keeps_no_other_from_its_events() {
    let world = World::open(On::Memory).await;
    let view = OneDamaged::default();
    let fold = |event: &Event, before: Option<&[u8]>| {
        let before = String::from_utf8_lossy(before.unwrap_or_default());
        Ok(Folded::Put(format!("{before} {}", event.sequence_number).into()))
    };
    let options = HandlerOptions::default();
    let projection =
        Projection::new(world.engine.clone(), "numbers", Arc::new(view.clone()), fold, options);
    let counts = project_all(&world, &projection).await;
    assert_eq!((counts.done, counts.dead), ((AGGREGATES - 1) * EVENTS, EVENTS), "{counts:?}");
    let all = view.0.lock().unwrap();
    assert_eq!(all.len() as u64, AGGREGATES - 1);
    for entry in all.values() {
        assert_eq!(entry.body.as_deref(), Some(&b" 1 2 3"[..]), "{}", entry.id);
    }
}
