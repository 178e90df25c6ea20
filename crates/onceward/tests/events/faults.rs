//! What the object store and the engine's store do wrong: lost answers, conflicts, ignored
//! conditions, damage, a folder that is not the right one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use onceward::engine::Engine;
use onceward::events::{AppendVerdict, EventStore, EventStoreOptions, EventsError};
use onceward::testing::objects::{FaultyObjects, ObjectFault};

use super::world::{TENANT, World, all, appended, check_order, ids, update};
use crate::support::on::On;

on_stores! {
    i16_one_s_own_success_is_recognised_and_a_conflict_is_tried_again,
    i16_a_start_whose_probe_s_answers_are_lost_is_a_start,
    i16_an_object_store_that_ignores_conditions_is_refused,
    i13_what_was_reserved_and_not_handed_over_is_packed_before_what_follows,
    i18_a_damaged_segment_is_refused_and_named,
    another_folder_than_the_store_s_is_refused,
    the_index_is_made_anew_from_the_segments,
}

async fn over(world: &World, objects: &FaultyObjects) -> Result<EventStore, EventsError> {
    let engine = Engine::new(world.opened.store.clone());
    let inner: Arc<dyn ObjectStore> = Arc::new(objects.clone());
    EventStore::open(engine, inner, EventStoreOptions::default()).await
}

async fn i16_one_s_own_success_is_recognised_and_a_conflict_is_tried_again(on: On) {
    use ObjectFault::{Conflict, Lost, LostAnswer};
    let world = World::new(on).await;
    let objects = FaultyObjects::new(Arc::new(InMemory::new()));
    let store = over(&world, &objects).await.unwrap();
    for (n, faults) in [
        vec![LostAnswer],
        vec![Conflict],
        vec![Lost],
        vec![Conflict, LostAnswer],
        vec![Lost, Conflict, LostAnswer],
    ]
    .into_iter()
    .enumerate()
    {
        objects.script("segments", faults);
        let appends: Vec<_> =
            (0..4).map(|w| update(&format!("a{w}"), &format!("{n}-{w}"), Some(n as u64))).collect();
        join_all(appends.iter().map(|append| appended(&store, append))).await;
        assert_eq!(objects.left(), 0, "every fault was met");
    }
    let events = all(&store).await;
    assert_eq!(events.len(), 20);
    check_order(&events);
}

async fn i16_a_start_whose_probe_s_answers_are_lost_is_a_start(on: On) {
    use ObjectFault::{Conflict, Lost, LostAnswer};
    let world = World::new(on).await;
    for faults in [vec![LostAnswer], vec![Lost, LostAnswer], vec![Conflict, Lost]] {
        let objects = FaultyObjects::new(Arc::new(InMemory::new()));
        objects.script("probes", faults);
        over(&world, &objects).await.unwrap();
        assert_eq!(objects.left(), 0, "every fault was met");
    }
}

async fn i16_an_object_store_that_ignores_conditions_is_refused(on: On) {
    let world = World::new(on).await;
    let objects = FaultyObjects::new(Arc::new(InMemory::new()));
    objects.ignore_conditions();
    let refused = over(&world, &objects).await.unwrap_err();
    assert!(refused.to_string().contains("ignores conditions"), "{refused}");
}

async fn i13_what_was_reserved_and_not_handed_over_is_packed_before_what_follows(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "e1", Some(0))).await;
    let lost = update("a", "e2", Some(1));
    store.reserve_only(&lost).await.unwrap();
    // It has no place yet, so nobody is told that it is there.
    appended(&store, &update("a", "e3", Some(2))).await;
    assert_eq!(ids(&store, "a").await, ["e1", "e2", "e3"]);
    check_order(&all(&store).await);
    // Its writer comes again: the first answer, and only one event.
    let again = store.append(&lost).await.unwrap();
    assert!(matches!(again, AppendVerdict::Again(done) if done.sequence_number == 2), "{again:?}");
    // And one whose writer comes again before anybody has found it.
    let lost = update("b", "f1", Some(0));
    store.reserve_only(&lost).await.unwrap();
    let again = store.append(&lost).await.unwrap();
    assert!(matches!(again, AppendVerdict::Again(done) if done.sequence_number == 1), "{again:?}");
    assert_eq!(ids(&store, "b").await, ["f1"]);
}

async fn i18_a_damaged_segment_is_refused_and_named(on: On) {
    let world = World::new(on).await;
    let options = || EventStoreOptions { cache_bytes: 1, ..EventStoreOptions::default() };
    let store = world.store(options()).await;
    appended(&store, &update("a", "e1", Some(0))).await;
    appended(&store, &update("a", "e2", Some(1))).await;
    store.close().await.unwrap();
    let path = world.folder.join("main/segments/00000000000000000001");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let store = world.store(options()).await;
    let error = store.read_after(Default::default(), 10).await.unwrap_err();
    assert_eq!(error.code(), "events.corrupt");
    assert!(error.to_string().contains("segment 1"), "{error}");
    assert_eq!(
        store.read_aggregate(TENANT, "a", 0, 10).await.unwrap_err().code(),
        "events.corrupt"
    );
    assert_eq!(store.read_aggregate(TENANT, "a", 1, 10).await.unwrap().len(), 1);
}

async fn another_folder_than_the_store_s_is_refused(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "e1", Some(0))).await;
    store.close().await.unwrap();
    std::fs::remove_dir_all(&world.folder).unwrap();
    let refused = world.try_store(EventStoreOptions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("segments/00000000000000000001"), "{refused}");
}

async fn the_index_is_made_anew_from_the_segments(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    for number in 0..30 {
        appended(
            &store,
            &update(&format!("a{}", number % 2), &format!("e{number}"), Some(number / 2)),
        )
        .await;
    }
    store.close().await.unwrap();
    // A store that knows nothing, beside segments that know everything.
    let fresh = World::new(on).await;
    copy(&world.folder, &fresh.folder);
    let store = fresh.store(EventStoreOptions::default()).await;
    assert_eq!(ids(&store, "a0").await.len(), 15);
    let again = store.append(&update("a0", "e0", Some(0))).await.unwrap();
    assert!(matches!(again, AppendVerdict::Again(done) if done.sequence_number == 1), "{again:?}");
    let verdict = store.append(&update("a1", "new", Some(0))).await.unwrap();
    assert_eq!(verdict, AppendVerdict::SequenceMismatch { current: 15 });
    assert_eq!(appended(&store, &update("a1", "new", Some(15))).await.sequence_number, 16);
    check_order(&all(&store).await);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// An append that can't be made durable says so, and is there once it can.
#[tokio::test]
async fn i02_an_append_is_answered_only_when_it_is_durable() {
    let world = World::new(On::Memory).await;
    let objects = FaultyObjects::new(Arc::new(InMemory::new()));
    let inner: Arc<dyn ObjectStore> = Arc::new(objects.clone());
    let options = EventStoreOptions {
        append_wait: Duration::from_millis(50),
        ..EventStoreOptions::default()
    };
    let store = EventStore::open(world.engine(), inner, options).await.unwrap();
    objects.script("segments", [ObjectFault::Lost; 6]);
    let append = update("a", "e1", Some(0));
    let error = store.append(&append).await.unwrap_err();
    assert!(matches!(error, EventsError::NotDurableYet), "{error}");
    assert_eq!(store.read_after(Default::default(), 10).await.unwrap(), []);
    assert_eq!(store.read_aggregate(TENANT, "a", 0, 10).await.unwrap(), []);
    let again = loop {
        match store.append(&append).await {
            Ok(verdict) => break verdict,
            Err(EventsError::NotDurableYet) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(matches!(again, AppendVerdict::Again(done) if done.sequence_number == 1), "{again:?}");
    assert_eq!(all(&store).await.len(), 1);
}
