//! One event at a time: its number, its repetition, its place.

use std::collections::HashSet;

use futures_util::future::join_all;
use onceward::core::key::Subject;
use onceward::engine::STORE_TENANT;
use onceward::events::{Allocator, AppendVerdict, EventStoreOptions, OnMismatch, Place};

use super::world::{TENANT, World, all, appended, check_order, ids, update};
use crate::support::on::On;

on_stores! {
    c02_an_event_is_read_as_it_was_written,
    c05_only_the_expected_number_appends,
    c06_the_same_event_again_is_the_first_answer,
    c06_another_payload_is_refused_with_what_differs,
    c06_in_warn_mode_another_payload_is_accepted_and_nothing_happens,
    c04_without_an_expected_number_the_next_one_is_reserved,
    c04_in_caller_mode_the_number_must_be_expected,
    c04_in_listing_mode_the_next_durable_number_is_taken,
    c11_events_are_counted_in_one_space_for_good,
    c10_aggregate_ids_are_compared_byte_for_byte,
    i12_of_many_racers_for_one_number_one_wins,
    i12_many_writers_leave_every_aggregate_without_gaps,
    a01_tenants_never_see_each_other,
    a_reader_is_woken_by_an_append,
    streams_are_listed_with_their_last_numbers,
}

async fn c02_an_event_is_read_as_it_was_written(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    assert_eq!(store.head().await.unwrap(), Place::default());
    assert_eq!(store.read_after(Place::default(), 10).await.unwrap(), []);
    let append = update("a", "e1", Some(0));
    let done = appended(&store, &append).await;
    assert_eq!((done.sequence_number, done.place), (1, Place { segment: 1, offset: 0 }));
    assert_eq!(store.head().await.unwrap(), done.place);
    let read = store.read_after(Place::default(), 10).await.unwrap();
    let [(place, event)] = read.as_slice() else { panic!("{read:?}") };
    assert_eq!(*place, done.place);
    assert_eq!(event.payload, append.payload);
    assert_eq!((event.tenant.as_str(), event.aggregate_id.as_str()), (TENANT, "a"));
    assert_eq!((event.event_id.as_str(), event.kind.as_str()), ("e1", "update"));
    assert_eq!(event.correlation_id.as_deref(), Some("c-e1"));
    assert_eq!(store.find(TENANT, "e1").await.unwrap(), Some(read[0].clone()));
    assert_eq!(store.read_after(done.place, 10).await.unwrap(), []);
    assert_eq!(store.read_aggregate(TENANT, "a", 0, 10).await.unwrap(), read);
    assert_eq!(store.read_aggregate(TENANT, "a", 1, 10).await.unwrap(), []);
    assert_eq!(store.read_aggregate(TENANT, "none", 0, 10).await.unwrap(), []);
}

async fn c05_only_the_expected_number_appends(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "e1", Some(0))).await;
    for (id, expected) in [("x1", 0), ("x2", 2), ("x3", u64::MAX)] {
        let verdict = store.append(&update("a", id, Some(expected))).await.unwrap();
        assert_eq!(verdict, AppendVerdict::SequenceMismatch { current: 1 }, "{expected}");
    }
    assert_eq!(ids(&store, "a").await, ["e1"]);
    // A refused event left nothing under its id.
    assert_eq!(appended(&store, &update("a", "x1", Some(1))).await.sequence_number, 2);
}

async fn c06_the_same_event_again_is_the_first_answer(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    let mut append = update("a", "e1", Some(0));
    let first = appended(&store, &append).await;
    appended(&store, &update("a", "e2", Some(1))).await;
    // Another spelling of the same JSON, another expectation, another correlation: the same event.
    append.payload = "{ \"of\" :\"e1\" }".into();
    append.correlation_id = None;
    for expected in [Some(0), Some(2), None] {
        append.expected_seq = expected;
        assert_eq!(store.append(&append).await.unwrap(), AppendVerdict::Again(first));
    }
    assert_eq!(ids(&store, "a").await, ["e1", "e2"]);
    assert_eq!(all(&store).await.len(), 2);
}

async fn c06_another_payload_is_refused_with_what_differs(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "e1", Some(0))).await;
    let mut other = update("a", "e1", Some(1));
    other.payload = r#"{"of":"another","more":1}"#.into();
    let differs = |verdict| match verdict {
        AppendVerdict::Mismatch { differs } => differs,
        other => panic!("{other:?}"),
    };
    let mut found = differs(store.append(&other).await.unwrap());
    found.sort();
    assert_eq!(found, ["/payload/more", "/payload/of"]);
    let mut other = update("b", "e1", Some(0));
    assert_eq!(differs(store.append(&other).await.unwrap()), ["/aggregate_id"]);
    other.aggregate_id = "a".into();
    other.kind = "delete".into();
    assert_eq!(differs(store.append(&other).await.unwrap()), ["/kind"]);
    assert_eq!(all(&store).await.len(), 1);
}

async fn c06_in_warn_mode_another_payload_is_accepted_and_nothing_happens(on: On) {
    let world = World::new(on).await;
    let options = EventStoreOptions { on_mismatch: OnMismatch::Warn, ..Default::default() };
    let store = world.store(options).await;
    let first = appended(&store, &update("a", "e1", Some(0))).await;
    let mut other = update("a", "e1", Some(1));
    other.payload = r#"{"of":"another"}"#.into();
    let differs = vec!["/payload/of".to_owned()];
    let verdict = store.append(&other).await.unwrap();
    assert_eq!(verdict, AppendVerdict::Ignored { first, differs });
    assert_eq!(all(&store).await[0].1.payload, update("a", "e1", None).payload);
}

async fn c04_without_an_expected_number_the_next_one_is_reserved(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    let appends: Vec<_> = (0..40).map(|n| update("a", &format!("e{n}"), None)).collect();
    let done = join_all(appends.iter().map(|append| appended(&store, append))).await;
    let numbers: HashSet<_> = done.iter().map(|done| done.sequence_number).collect();
    assert_eq!(numbers, (1..=40).collect());
    check_order(&all(&store).await);
}

async fn c04_in_caller_mode_the_number_must_be_expected(on: On) {
    let world = World::new(on).await;
    let options = EventStoreOptions { allocator: Allocator::Caller, ..Default::default() };
    let store = world.store(options).await;
    let verdict = store.append(&update("a", "e1", None)).await.unwrap();
    assert_eq!(verdict, AppendVerdict::ExpectedSeqRequired);
    assert_eq!(appended(&store, &update("a", "e1", Some(0))).await.sequence_number, 1);
}

async fn c04_in_listing_mode_the_next_durable_number_is_taken(on: On) {
    let world = World::new(on).await;
    let options = EventStoreOptions { allocator: Allocator::Listing, ..Default::default() };
    let store = world.store(options).await;
    assert!(store.warnings()[0].contains("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE"));
    let appends: Vec<_> = (0..8).map(|n| update("a", &format!("e{n}"), None)).collect();
    let done = join_all(appends.iter().map(|append| appended(&store, append))).await;
    let numbers: HashSet<_> = done.iter().map(|done| done.sequence_number).collect();
    assert_eq!(numbers, (1..=8).collect());
    let verdict = store.append(&update("a", "x", Some(3))).await.unwrap();
    assert_eq!(verdict, AppendVerdict::SequenceMismatch { current: 8 });
}

async fn c11_events_are_counted_in_one_space_for_good(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "e1", Some(0))).await;
    store.close().await.unwrap();
    let elsewhere = EventStoreOptions { allocator_space: "other".into(), ..Default::default() };
    // Remembered; and by a store of an earlier build not remembered, but seen.
    let kept = Subject::new(STORE_TENANT, "onceward.allocator", "main").unwrap();
    for remembered in [true, false] {
        let refused = world.try_store(elsewhere.clone()).await.err().unwrap();
        assert_eq!(
            (refused.code(), refused.is_retryable()),
            ("events.open", false),
            "{remembered}"
        );
        assert!(refused.to_string().contains("EVENT_STORE_SEQUENCE_SCHEMA"), "{refused}");
        if remembered {
            let version = world.engine().see(kept.clone()).await.unwrap().version;
            world.engine().put(&kept, version, None).await.unwrap();
        }
    }
    let store = world.store(EventStoreOptions::default()).await;
    appended(&store, &update("a", "e2", Some(1))).await;
    assert_eq!(ids(&store, "a").await, ["e1", "e2"]);
}

async fn c10_aggregate_ids_are_compared_byte_for_byte(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    let odd =
        ["a", "A", "a ", " a", "a\t", "ä", "a\u{308}", "a:b", "a%3Ab", "a/b", "a\\b", "\u{0}"];
    for (n, id) in odd.iter().enumerate() {
        let done = appended(&store, &update(id, &format!("e{n}"), Some(0))).await;
        assert_eq!(done.sequence_number, 1, "{id:?}");
    }
    for (n, id) in odd.iter().enumerate() {
        assert_eq!(ids(&store, id).await, [format!("e{n}")], "{id:?}");
    }
    let long = "x".repeat(480);
    assert_eq!(appended(&store, &update(&long, "long", Some(0))).await.sequence_number, 1);
    let error = store.append(&update(&"x".repeat(481), "e", Some(0))).await.unwrap_err();
    assert_eq!(error.code(), "limit");
}

async fn i12_of_many_racers_for_one_number_one_wins(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    for round in 0..4 {
        let appends: Vec<_> =
            (0..64).map(|n| update("a", &format!("r{round}-{n}"), Some(round))).collect();
        let verdicts = join_all(appends.iter().map(|append| store.append(append))).await;
        let won = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, Ok(AppendVerdict::Appended(_))))
            .count();
        let lost = verdicts
            .iter()
            .filter(|verdict| {
                let Ok(AppendVerdict::SequenceMismatch { current }) = verdict else { return false };
                *current == round + 1
            })
            .count();
        assert_eq!((won, lost), (1, 63), "{verdicts:?}");
    }
    assert_eq!(ids(&store, "a").await.len(), 4);
}

async fn i12_many_writers_leave_every_aggregate_without_gaps(on: On) {
    const WRITERS: usize = 16;
    const EVENTS: u64 = 25;
    let world = World::new(on).await;
    // Small segments and a small cache: many are written, and read again from the folder.
    let options = EventStoreOptions { segment_events_max: 5, cache_bytes: 1, ..Default::default() };
    let store = world.store(options).await;
    let writer = |w: usize| {
        let store = &store;
        async move {
            for number in 0..EVENTS {
                let append = update(&format!("a{w}"), &format!("{w}-{number}"), Some(number));
                assert_eq!(appended(store, &append).await.sequence_number, number + 1);
            }
        }
    };
    join_all((0..WRITERS).map(writer)).await;
    let events = all(&store).await;
    assert_eq!(events.len(), WRITERS * EVENTS as usize);
    check_order(&events);
    for w in 0..WRITERS {
        let expected: Vec<_> = (0..EVENTS).map(|number| format!("{w}-{number}")).collect();
        assert_eq!(ids(&store, &format!("a{w}")).await, expected);
    }
}

async fn a01_tenants_never_see_each_other(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    let ours = update("a", "e1", Some(0));
    let mut theirs = ours.clone();
    theirs.tenant = "globex".into();
    theirs.payload = r#"{"secret":1}"#.into();
    appended(&store, &ours).await;
    assert_eq!(appended(&store, &theirs).await.sequence_number, 1);
    assert_eq!(ids(&store, "a").await, ["e1"]);
    let read = store.read_aggregate("globex", "a", 0, 10).await.unwrap();
    assert_eq!(read[0].1.payload, theirs.payload);
    assert_eq!(store.find("initech", "e1").await.unwrap(), None);
    assert!(store.streams("initech", None, 10).await.unwrap().is_empty());
}

async fn a_reader_is_woken_by_an_append(on: On) {
    let world = World::new(on).await;
    let options = EventStoreOptions {
        // Longer than any test: only the append itself can wake it.
        poll: std::time::Duration::from_secs(600),
        ..Default::default()
    };
    let store = world.store(options).await;
    let first = appended(&store, &update("a", "e1", Some(0))).await;
    store.wait_after(Place::default()).await;
    let (next, done) = (update("a", "e2", Some(1)), store.wait_after(first.place));
    futures_util::join!(appended(&store, &next), done);
    assert_eq!(store.read_after(first.place, 10).await.unwrap().len(), 1);
}

async fn streams_are_listed_with_their_last_numbers(on: On) {
    let world = World::new(on).await;
    let store = world.store(EventStoreOptions::default()).await;
    for (id, count) in [("b:1", 2), ("a", 1), ("c", 3)] {
        for number in 0..count {
            appended(&store, &update(id, &format!("{id}-{number}"), Some(number))).await;
        }
    }
    let listed = store.streams(TENANT, None, 2).await.unwrap();
    let shown: Vec<_> = listed.iter().map(|one| (one.aggregate_id.as_str(), one.last)).collect();
    assert_eq!(shown, [("a", 1), ("b:1", 2)]);
    let rest = store.streams(TENANT, Some("b:1"), 2).await.unwrap();
    let shown: Vec<_> = rest.iter().map(|one| (one.aggregate_id.as_str(), one.last)).collect();
    assert_eq!(shown, [("c", 3)]);
}
