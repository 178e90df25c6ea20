//! Consumers on the embedded log: offsets, retries, dead letters, taking over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onceward::core::audit::Trace;
use onceward::core::decide::{Resolution, Resolved};
use onceward::core::record::OnDead;
use onceward::core::retry::Backoff;
use onceward::handlers::{Consumer, Handler, HandlerError, HandlerOptions, Work, read_offset};
use onceward::testing::stream::MemoryEvents;

use super::on_both;
use super::world::{PATIENCE, World, event, handler_options, ledger, ledger_work, quick, until};
use crate::support::on::On;

fn handler(world: &World, name: &str) -> Handler {
    Handler::new(world.engine.clone(), name, handler_options(), ledger_work()).unwrap()
}

async fn c01_appended_events_reach_a_handler_once_and_a_restart_goes_on(on: On) {
    let world = World::open(on).await;
    let relay = world.relay();
    let consumer = Consumer::start(handler(&world, "w"), world.log.clone(), quick()).unwrap();
    world.append_all(&["a", "b", "c"], 20).await;
    until("handling", || async { consumer.counts().done == 60 }).await;
    consumer.drain(PATIENCE).await.unwrap();
    let head = world.events.head().await.unwrap();
    let offset = read_offset(&world.engine, "w").await.unwrap().unwrap();
    assert_eq!((offset.place(), offset.events), (head, 60));
    let consumer = Consumer::start(handler(&world, "w"), world.log.clone(), quick()).unwrap();
    world.append("a", 21, "update", "{}").await;
    until("handling", || async { consumer.counts().done == 1 }).await;
    assert_eq!(consumer.counts().duplicates, 0, "the offset was kept");
    consumer.drain(PATIENCE).await.unwrap();
    relay.drain().await.unwrap();
    assert_eq!(ledger(&world.engine, "a").await, (1..=21).collect::<Vec<_>>());
    assert_eq!(ledger(&world.engine, "c").await, (1..=20).collect::<Vec<_>>());
}

async fn i05_a_second_consumer_stands_by_and_takes_over(on: On) {
    let world = World::open(on).await;
    let relay = world.relay();
    let first = Consumer::start(handler(&world, "w"), world.log.clone(), quick()).unwrap();
    until("the first one's role", || async { first.progress().active }).await;
    let second = Consumer::start(handler(&world, "w"), world.log.clone(), quick()).unwrap();
    world.append_all(&["a"], 10).await;
    until("handling", || async { first.counts().done == 10 }).await;
    assert!(!second.progress().active && second.counts().done == 0);
    first.drain(PATIENCE).await.unwrap();
    world.append("a", 11, "update", "{}").await;
    until("taking over", || async { second.counts().done == 1 }).await;
    second.drain(PATIENCE).await.unwrap();
    relay.drain().await.unwrap();
    assert_eq!(ledger(&world.engine, "a").await, (1..=11).collect::<Vec<_>>());
}

async fn c08_a_failing_event_holds_its_aggregate_alone_and_is_named(on: On) {
    let world = World::open(on).await;
    let relay = world.relay();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let work = Work::elsewhere(move |attempt| {
        let bad = attempt.event().event_id == "a-2" && failing.load(Ordering::SeqCst);
        async move { if bad { Err(HandlerError::retryable("not yet")) } else { Ok(()) } }
    });
    let backoff = Backoff { first_ms: 0, max_ms: 0, factor: 1, jitter_percent: 0, attempts: 5 };
    let options = HandlerOptions { backoff, on_dead: OnDead::Block, ..handler_options() };
    let handler = Handler::new(world.engine.clone(), "w", options, work).unwrap();
    let consumer = Consumer::start(handler.clone(), world.log.clone(), quick()).unwrap();
    world.append_all(&["a", "b"], 5).await;
    until("the others", || async { consumer.counts().done == 6 }).await;
    until("a dead letter", || async {
        consumer.progress().held_by.is_some_and(|by| by.contains("dead"))
    })
    .await;
    assert!(consumer.progress().held_by.unwrap().contains("a-2"));
    let key = handler.key(&event("a", 2)).unwrap();
    fails.store(false, Ordering::SeqCst);
    let rerun = Resolution::Rerun { force: false };
    let resolved = world.engine.resolve(&key, &rerun, &Trace::default()).await.unwrap();
    assert_eq!(resolved, Resolved::Ok);
    until("the rest, in order", || async { consumer.counts().done == 10 }).await;
    let head = world.events.head().await.unwrap();
    until("the offset", || async { consumer.progress().place == head }).await;
    consumer.drain(PATIENCE).await.unwrap();
    relay.drain().await.unwrap();
}

async fn c10_a_shuffled_log_with_duplicates_takes_effect_in_order_once(on: On) {
    let world = World::open(on).await;
    let shuffled = MemoryEvents::new();
    // A fixed shuffle of 1..=60 of three aggregates, each event twice.
    let steps = (0..360_u64).map(|step| (step * 97 + 13) % 180);
    let log = steps.map(|at| event(["a", "b", "c"][(at % 3) as usize], at / 3 + 1));
    shuffled.push(log);
    let consumer =
        Consumer::start(handler(&world, "w"), Arc::new(shuffled.clone()), quick()).unwrap();
    until("handling", || async { consumer.progress().place.segment == 360 }).await;
    consumer.drain(PATIENCE).await.unwrap();
    for aggregate in ["a", "b", "c"] {
        let numbers = ledger(&world.engine, aggregate).await;
        assert_eq!(numbers, (1..=60).collect::<Vec<_>>(), "{aggregate}");
    }
}

on_both! {
    c01_appended_events_reach_a_handler_once_and_a_restart_goes_on,
    i05_a_second_consumer_stands_by_and_takes_over,
    c08_a_failing_event_holds_its_aggregate_alone_and_is_named,
    c10_a_shuffled_log_with_duplicates_takes_effect_in_order_once,
}
