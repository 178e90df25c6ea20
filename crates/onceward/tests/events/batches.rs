//! Several events in one append: repeated whole, as a prefix, with one more, in another order, and
//! with another writer's events in between.

use onceward::events::{EventStore, EventStoreOptions, ManyVerdict};

use super::world::{World, all, appended, check_order, ids, update, updates};
use crate::support::on::On;

on_stores! {
    c06_a_batch_is_appended_whole_or_not_at_all,
    c06_a_batch_again_is_the_first_answer_also_after_others,
    c06_the_start_of_a_batch_again_is_its_first_answer,
    c06_a_batch_with_one_more_event_is_refused,
    c06_events_of_two_appends_are_one_batch_only_if_they_are_one_run,
    c06_a_batch_with_a_changed_event_is_refused_and_names_it,
    c06_a_batch_with_an_id_twice_breaks_a_bound,
}

/// The numbers of a batch's events, and whether it had been appended before.
async fn numbers(store: &EventStore, ids: &[&str], expected: Option<u64>) -> (bool, Vec<u64>) {
    let verdict = store.append_many(&updates("a", ids, expected)).await.unwrap();
    let (again, done) = match verdict {
        ManyVerdict::Appended(done) => (false, done),
        ManyVerdict::Again(done) => (true, done),
        other => panic!("{ids:?}: {other:?}"),
    };
    (again, done.iter().map(|done| done.sequence_number).collect())
}

async fn c06_a_batch_is_appended_whole_or_not_at_all(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    assert_eq!(numbers(&store, &["x", "y", "z"], Some(0)).await, (false, vec![1, 2, 3]));
    let verdict = store.append_many(&updates("a", &["p", "q"], Some(1))).await.unwrap();
    assert_eq!(verdict, ManyVerdict::SequenceMismatch { current: 3 });
    assert_eq!(numbers(&store, &["p", "q"], None).await, (false, vec![4, 5]));
    assert_eq!(ids(&store, "a").await, ["x", "y", "z", "p", "q"]);
    check_order(&all(&store).await);
}

async fn c06_a_batch_again_is_the_first_answer_also_after_others(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    numbers(&store, &["x", "y"], Some(0)).await;
    assert_eq!(numbers(&store, &["x", "y"], Some(0)).await, (true, vec![1, 2]));
    appended(&store, &update("a", "other", Some(2))).await;
    assert_eq!(numbers(&store, &["x", "y"], Some(0)).await, (true, vec![1, 2]));
    assert_eq!(numbers(&store, &["x", "y"], None).await, (true, vec![1, 2]));
    assert_eq!(all(&store).await.len(), 3);
}

async fn c06_the_start_of_a_batch_again_is_its_first_answer(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    numbers(&store, &["x", "y", "z"], Some(0)).await;
    assert_eq!(numbers(&store, &["x"], Some(0)).await, (true, vec![1]));
    assert_eq!(numbers(&store, &["x", "y"], Some(0)).await, (true, vec![1, 2]));
    assert_eq!(numbers(&store, &["y", "z"], Some(1)).await, (true, vec![2, 3]));
    assert_eq!(all(&store).await.len(), 3);
}

async fn c06_a_batch_with_one_more_event_is_refused(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    numbers(&store, &["x", "y"], Some(0)).await;
    for expected in [Some(0), Some(2), None] {
        let verdict = store.append_many(&updates("a", &["x", "y", "z"], expected)).await.unwrap();
        assert_eq!(verdict, ManyVerdict::Mixed { there: vec![(0, 1), (1, 2)] });
    }
    let verdict = store.append_many(&updates("a", &["w", "x"], Some(2))).await.unwrap();
    assert_eq!(verdict, ManyVerdict::Mixed { there: vec![(1, 1)] });
    let verdict = store.append_many(&updates("a", &["y", "x"], Some(0))).await.unwrap();
    assert_eq!(verdict, ManyVerdict::Mixed { there: vec![(0, 2), (1, 1)] });
    assert_eq!(ids(&store, "a").await, ["x", "y"]);
    // Nothing is left of what was refused: its ids are free.
    assert_eq!(numbers(&store, &["z", "w"], Some(2)).await, (false, vec![3, 4]));
}

async fn c06_events_of_two_appends_are_one_batch_only_if_they_are_one_run(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "x", Some(0))).await;
    appended(&store, &update("a", "y", Some(1))).await;
    appended(&store, &update("a", "between", Some(2))).await;
    appended(&store, &update("a", "z", Some(3))).await;
    assert_eq!(numbers(&store, &["x", "y"], Some(0)).await, (true, vec![1, 2]));
    let verdict = store.append_many(&updates("a", &["y", "z"], Some(1))).await.unwrap();
    assert_eq!(verdict, ManyVerdict::Mixed { there: vec![(0, 2), (1, 4)] });
}

async fn c06_a_batch_with_a_changed_event_is_refused_and_names_it(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    numbers(&store, &["x", "y"], Some(0)).await;
    let mut changed = updates("a", &["x", "y"], Some(0));
    changed.events[1].payload = r#"{"of":"else"}"#.into();
    let verdict = store.append_many(&changed).await.unwrap();
    let differs = vec!["/payload/of".to_owned()];
    assert_eq!(verdict, ManyVerdict::Mismatch { index: 1, differs });
}

async fn c06_a_batch_with_an_id_twice_breaks_a_bound(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    let error = store.append_many(&updates("a", &["x", "x"], Some(0))).await.unwrap_err();
    assert_eq!(error.code(), "limit");
    let none = store.append_many(&updates("a", &[], Some(0))).await.unwrap_err();
    assert_eq!(none.code(), "limit");
    assert!(all(&store).await.is_empty());
}
