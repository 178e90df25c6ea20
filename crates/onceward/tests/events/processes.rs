//! Several event stores on one folder and one store, each with an engine of its own, as several
//! processes have: who packs does not matter.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use onceward::events::{AppendVerdict, EventStore, EventStoreOptions};
use onceward::testing::objects::{FaultyObjects, ObjectFault};

use super::world::{TENANT, World, all, appended, check_order, ids, shared, update};
use crate::support::on::On;

on_stores! {
    a_closed_store_goes_on_where_it_was,
    i12_writers_of_several_processes_keep_one_order,
    i05_a_packer_that_lost_its_lease_harms_nobody,
    i05_a_packer_frozen_before_its_write_harms_nobody,
    what_one_process_has_answered_is_seen_by_the_others_at_once,
}

async fn a_closed_store_goes_on_where_it_was(on: On) {
    let world = World::new(on).await;
    for number in 0..5 {
        let store = world.store(EventStoreOptions::default()).await;
        appended(&store, &update("a", &format!("e{number}"), Some(number))).await;
        // What is reserved only is not lost, either.
        store
            .reserve_only(&update(&format!("b{number}"), &format!("b{number}"), Some(0)))
            .await
            .unwrap();
        store.close().await.unwrap();
        let refused = store.append(&update("a", "late", None)).await.unwrap_err();
        assert_eq!(refused.code(), "events.closed");
    }
    let store = world.store(EventStoreOptions::default()).await;
    assert_eq!(ids(&store, "a").await.len(), 5);
    for number in 0..5 {
        let again =
            store.append(&update(&format!("b{number}"), &format!("b{number}"), Some(0))).await;
        assert!(matches!(again.unwrap(), AppendVerdict::Again(_)));
    }
    check_order(&all(&store).await);
}

async fn i12_writers_of_several_processes_keep_one_order(on: On) {
    let world = shared(World::new(on).await);
    let options = || EventStoreOptions {
        patience: Duration::ZERO,
        poll: Duration::from_millis(5),
        segment_events_max: 3,
        ..EventStoreOptions::default()
    };
    let mut stores = Vec::new();
    for _ in 0..3 {
        stores.push(world.store(options()).await);
    }
    // Every process writes every aggregate; whoever loses a number takes the next.
    let writer = |process: usize, aggregate: usize| {
        let store = &stores[process];
        async move {
            let mut expected = 0;
            for n in 0..8 {
                let id = format!("{process}-{aggregate}-{n}");
                loop {
                    let append = update(&format!("a{aggregate}"), &id, Some(expected));
                    match store.append(&append).await.unwrap() {
                        AppendVerdict::SequenceMismatch { current } => expected = current,
                        AppendVerdict::Appended(done) => {
                            expected = done.sequence_number;
                            break;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    };
    let writers = (0..3).flat_map(|process| (0..4).map(move |aggregate| (process, aggregate)));
    join_all(writers.map(|(process, aggregate)| writer(process, aggregate))).await;
    for store in &stores {
        let events = all(store).await;
        assert_eq!(events.len(), 3 * 4 * 8);
        check_order(&events);
        for aggregate in 0..4 {
            assert_eq!(ids(store, &format!("a{aggregate}")).await.len(), 24);
        }
    }
    for store in &stores {
        store.close().await.unwrap();
    }
}

/// Of one who does not wait for others to pack.
fn options() -> EventStoreOptions {
    EventStoreOptions {
        patience: Duration::ZERO,
        poll: Duration::from_millis(5),
        ..EventStoreOptions::default()
    }
}

async fn i05_a_packer_that_lost_its_lease_harms_nobody(on: On) {
    let world = World::new(on).await;
    let first = world.store(options()).await;
    appended(&first, &update("a", "e1", Some(0))).await;
    // By the store's clock its lease is long over; it has not noticed, and goes on.
    world.opened.advance(60_000).await;
    let second = world.store(options()).await;
    appended(&second, &update("a", "e2", Some(1))).await;
    appended(&first, &update("a", "e3", Some(2))).await;
    appended(&second, &update("b", "f1", Some(0))).await;
    appended(&first, &update("b", "f2", Some(1))).await;
    for store in [&first, &second] {
        assert_eq!(ids(store, "a").await, ["e1", "e2", "e3"]);
        assert_eq!(ids(store, "b").await, ["f1", "f2"]);
        check_order(&all(store).await);
    }
}

/// The worst moment for a packer to freeze: it has decided what the next segment holds, and its
/// write arrives when others have packed the same events, and later ones, long since.
async fn i05_a_packer_frozen_before_its_write_harms_nobody(on: On) {
    let world = World::new(on).await;
    let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let frozen = FaultyObjects::new(bucket.clone());
    let zombie: Arc<dyn ObjectStore> = Arc::new(frozen.clone());
    let zombie = EventStore::open(world.engine(), zombie, options()).await.unwrap();
    appended(&zombie, &update("a", "e1", Some(0))).await;
    frozen.script("segments", [ObjectFault::Held]);
    let late = update("a", "e2", Some(1));
    let waiting = tokio::spawn({
        let (zombie, late) = (zombie.clone(), late.clone());
        async move { zombie.append(&late).await }
    });
    while frozen.left() > 0 {
        tokio::task::yield_now().await;
    }
    // Its lease is over. Another finds what it has reserved, packs it, and goes on.
    world.opened.advance(60_000).await;
    let other = EventStore::open(world.engine(), bucket.clone(), options()).await.unwrap();
    let packed = appended(&other, &update("a", "e3", Some(2))).await;
    appended(&other, &update("b", "f1", Some(0))).await;
    assert_eq!(ids(&other, "a").await, ["e1", "e2", "e3"]);
    frozen.let_go();
    let AppendVerdict::Appended(answer) = waiting.await.unwrap().unwrap() else { panic!("e2") };
    assert_eq!(answer.sequence_number, 2);
    assert!(answer.place < packed.place, "where the other has put it");
    // It has learnt what the others wrote, and packs behind it.
    appended(&zombie, &update("b", "f2", Some(1))).await;
    let fresh = EventStore::open(world.engine(), bucket, options()).await.unwrap();
    for store in [&zombie, &other, &fresh] {
        assert_eq!(ids(store, "a").await, ["e1", "e2", "e3"]);
        assert_eq!(ids(store, "b").await, ["f1", "f2"]);
        let events = all(store).await;
        assert_eq!(events.len(), 5, "each event lies in one segment");
        check_order(&events);
    }
}

async fn what_one_process_has_answered_is_seen_by_the_others_at_once(on: On) {
    let world = World::new(on).await;
    let first = world.store(EventStoreOptions::default()).await;
    let second = world.store(EventStoreOptions::default()).await;
    for number in 0..10 {
        let (writer, reader) = if number % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let append = update("a", &format!("e{number}"), Some(number));
        let done = appended(writer, &append).await;
        assert_eq!(reader.head().await.unwrap(), done.place);
        let read = reader.read_aggregate(TENANT, "a", number, 10).await.unwrap();
        assert_eq!(read.len(), 1, "event {number}");
        assert_eq!(reader.find(TENANT, &append.event_id).await.unwrap().unwrap().0, done.place);
    }
}
