//! Event handlers: one event, at most one effect per handler, in the order of its aggregate.
//!
//! The ledger of effects elsewhere is a plain list: nothing hides a duplicate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use onceward::core::audit::Trace;
use onceward::core::decide::{Resolution, Resolved};
use onceward::core::key::Subject;
use onceward::core::record::OnDead;
use onceward::core::retry::Backoff;
use onceward::engine::Engine;
use onceward::events::Event;
use onceward::handlers::{Handled, Handler, HandlerError, HandlerOptions, Order, Work, read_event};
use onceward::worker::Done;
use support::on::On;

type Ledger = Arc<Mutex<Vec<(String, u64, u64)>>>;

fn event(aggregate: &str, number: u64) -> Event {
    Event {
        tenant: "acme".into(),
        aggregate_id: aggregate.into(),
        event_id: format!("{aggregate}-{number}"),
        sequence_number: number,
        kind: "update".into(),
        payload: format!("{{\"n\":{number}}}").into(),
        correlation_id: Some("c-1".into()),
    }
}

/// Fails are due at once: the tests' clocks stand still.
fn options() -> HandlerOptions {
    let backoff = Backoff { first_ms: 0, max_ms: 0, factor: 1, jitter_percent: 0, attempts: 5 };
    HandlerOptions { backoff, ..HandlerOptions::default() }
}

/// A handler in the store: appends the number to the aggregate's ledger document.
fn in_store(engine: &Engine, options: HandlerOptions) -> Handler {
    let work = Work::in_store(|seen| async move {
        let ledger = seen.read("ledger", &seen.event().aggregate_id).await?;
        let mut lines = ledger.value.as_deref().unwrap_or_default().to_vec();
        lines.extend(format!("{}\n", seen.event().sequence_number).into_bytes());
        let mut done = Done::new();
        done.put(&ledger, lines)?;
        Ok::<_, HandlerError>(done)
    });
    Handler::new(engine.clone(), "instances", options, work).unwrap()
}

async fn ledger(engine: &Engine, aggregate: &str) -> Vec<u64> {
    let subject = Subject::new("acme", "ledger", aggregate).unwrap();
    let document = engine.get(&subject).await.unwrap();
    let text = document.map_or_else(String::new, |d| String::from_utf8(d.value.to_vec()).unwrap());
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// A handler elsewhere: notes effect key, number and fence; fails while it is told to.
fn elsewhere(engine: &Engine, options: HandlerOptions) -> (Handler, Ledger, Arc<AtomicBool>) {
    let (ledger, fails) = (Ledger::default(), Arc::new(AtomicBool::new(false)));
    let (notes, failing) = (ledger.clone(), fails.clone());
    let work = Work::elsewhere(move |attempt| {
        let (notes, failing) = (notes.clone(), failing.clone());
        async move {
            attempt.check()?;
            if failing.load(Ordering::SeqCst) {
                return Err(HandlerError::retryable("the other side is away"));
            }
            let number = attempt.event().sequence_number;
            let line = (attempt.effect_key().to_owned(), number, attempt.fence());
            notes.lock().unwrap().push(line);
            Ok(())
        }
    });
    (Handler::new(engine.clone(), "mail", options, work).unwrap(), ledger, fails)
}

fn numbers(ledger: &Ledger) -> Vec<u64> {
    ledger.lock().unwrap().iter().map(|(_, number, _)| *number).collect()
}

async fn c01_one_event_has_one_effect_whatever_is_redelivered(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let handler = in_store(&engine, options());
    assert_eq!(handler.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    assert_eq!(handler.handle(&event("a", 1)).await.unwrap(), Handled::Duplicate);
    // A process that starts anew knows it too, and another handler has its own effect.
    let again = in_store(&engine, options());
    assert_eq!(again.handle(&event("a", 1)).await.unwrap(), Handled::Duplicate);
    let (other, notes, _) = elsewhere(&engine, options());
    assert_eq!(other.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    assert_eq!(other.handle(&event("a", 1)).await.unwrap(), Handled::Duplicate);
    assert_eq!((ledger(&engine, "a").await, numbers(&notes)), (vec![1], vec![1]));
    let notes = notes.lock().unwrap();
    assert!(notes[0].0.contains("mail") && notes[0].2 > 0, "{notes:?}");
}

async fn c03_c10_shuffled_numbers_take_effect_in_order_and_stale_ones_never(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let handler = in_store(&engine, options());
    let mut waiting = vec![3, 5, 1, 4, 2];
    let mut gaps = 0;
    while !waiting.is_empty() {
        let mut left = Vec::new();
        for number in waiting {
            match handler.handle(&event("a", number)).await.unwrap() {
                Handled::Done => {}
                Handled::Gap { .. } => left.push(number),
                other => panic!("{other:?}"),
            }
        }
        gaps += left.len();
        waiting = left;
    }
    assert_eq!(ledger(&engine, "a").await, [1, 2, 3, 4, 5]);
    assert!(gaps > 0, "some had to wait");
    // Another event that claims a number that was passed is ignored.
    let mut late = event("a", 2);
    late.event_id = "another".into();
    assert_eq!(handler.handle(&late).await.unwrap(), Handled::Stale { current: 5 });
    assert_eq!(ledger(&engine, "a").await, [1, 2, 3, 4, 5]);
}

async fn c09_above_takes_the_newest_and_passes_what_is_older(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let above = HandlerOptions { order: Order::Above, ..options() };
    let handler = in_store(&engine, above);
    assert_eq!(handler.handle(&event("a", 3)).await.unwrap(), Handled::Done);
    assert_eq!(handler.handle(&event("a", 2)).await.unwrap(), Handled::Stale { current: 3 });
    assert_eq!(handler.handle(&event("a", 7)).await.unwrap(), Handled::Done);
    assert_eq!(ledger(&engine, "a").await, [3, 7]);
}

async fn c10_the_same_event_on_two_consumers_one_claim_wins(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let (first, notes, _) = elsewhere(&engine, options());
    let second = first.clone();
    for number in 1..=20 {
        let event = event("a", number);
        let both = join_all([first.handle(&event), second.handle(&event)]).await;
        let both: Vec<_> = both.into_iter().map(Result::unwrap).collect();
        let done = both.iter().filter(|handled| **handled == Handled::Done).count();
        assert_eq!(done, 1, "{both:?}");
    }
    assert_eq!(numbers(&notes), (1..=20).collect::<Vec<_>>());
}

async fn i28_a_lower_number_never_takes_effect_after_a_higher_one(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let stall = Arc::new(tokio::sync::Notify::new());
    let entered = Arc::new(tokio::sync::Notify::new());
    let (gate, bell) = (stall.clone(), entered.clone());
    let slow = Work::in_store(move |seen| {
        let (gate, bell) = (gate.clone(), bell.clone());
        async move {
            let ledger = seen.read("ledger", &seen.event().aggregate_id).await?;
            let stalls = seen.event().sequence_number == 1;
            if stalls {
                bell.notify_one();
                gate.notified().await;
            }
            let mut lines = ledger.value.as_deref().unwrap_or_default().to_vec();
            lines.extend(format!("{}\n", seen.event().sequence_number).into_bytes());
            let mut done = Done::new();
            done.put(&ledger, lines)?;
            Ok::<_, HandlerError>(done)
        }
    });
    let stalled = Handler::new(engine.clone(), "instances", options(), slow).unwrap();
    let late = tokio::spawn(async move { stalled.handle(&event("a", 1)).await.unwrap() });
    entered.notified().await;
    // Another consumer takes over, and goes past it.
    let other = in_store(&engine, options());
    assert_eq!(other.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    assert_eq!(other.handle(&event("a", 2)).await.unwrap(), Handled::Done);
    stall.notify_one();
    assert_eq!(late.await.unwrap(), Handled::Duplicate);
    assert_eq!(ledger(&engine, "a").await, [1, 2]);
}

async fn c08_a_lease_that_runs_out_is_taken_over_under_a_higher_fence(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let held = Arc::new(tokio::sync::Notify::new());
    let entered = Arc::new(tokio::sync::Notify::new());
    let fences = Arc::new(Mutex::new(Vec::new()));
    let (gate, bell, seen) = (held.clone(), entered.clone(), fences.clone());
    let work = move || {
        let (gate, bell, seen) = (gate.clone(), bell.clone(), seen.clone());
        Work::elsewhere(move |attempt| {
            let (gate, bell, seen) = (gate.clone(), bell.clone(), seen.clone());
            async move {
                seen.lock().unwrap().push(attempt.fence());
                if attempt.attempt() == 1 {
                    bell.notify_one();
                    gate.notified().await;
                }
                Ok::<_, HandlerError>(())
            }
        })
    };
    let handler = Handler::new(engine, "mail", options(), work()).unwrap();
    // Another process: where the first attempt lives, nobody takes it over.
    let elsewhere = Engine::new(opened.store.clone());
    let other = Handler::new(elsewhere, "mail", options(), work()).unwrap();
    let first = handler.clone();
    let late = tokio::spawn(async move { first.handle(&event("a", 1)).await.unwrap() });
    entered.notified().await;
    let busy = handler.handle(&event("a", 1)).await.unwrap();
    assert!(matches!(busy, Handled::Busy { .. }), "{busy:?}");
    opened.advance(900_001).await;
    let busy = handler.handle(&event("a", 1)).await.unwrap();
    assert!(matches!(busy, Handled::Busy { .. }), "it is alive here: {busy:?}");
    assert_eq!(other.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    held.notify_one();
    let late = late.await.unwrap();
    assert!(matches!(late, Handled::Busy { .. }), "its completion was refused: {late:?}");
    assert_eq!(handler.handle(&event("a", 1)).await.unwrap(), Handled::Duplicate);
    let fences = fences.lock().unwrap();
    assert!(fences.len() == 2 && fences[0] < fences[1], "{fences:?}");
}

/// Lets an event fail until it is dead.
async fn fail_to_death(handler: &Handler, event: &Event) {
    for attempt in 1..=5 {
        match handler.handle(event).await.unwrap() {
            Handled::Failed { retry_after, .. } => {
                assert!(attempt < 5 && retry_after.is_zero());
            }
            Handled::Dead { error, .. } => {
                assert_eq!((attempt, error.as_str()), (5, "the other side is away"));
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn c10_retries_then_a_dead_letter_that_is_passed(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let (handler, notes, fails) = elsewhere(&engine, options());
    fails.store(true, Ordering::SeqCst);
    fail_to_death(&handler, &event("a", 1)).await;
    fails.store(false, Ordering::SeqCst);
    // C08: the aggregate goes on, and the dead one stays dead when it comes again.
    let dead = handler.handle(&event("a", 1)).await.unwrap();
    assert!(matches!(dead, Handled::Dead { passed: true, .. }), "{dead:?}");
    assert_eq!(handler.handle(&event("a", 2)).await.unwrap(), Handled::Done);
    // The dead letter carries its event.
    let key = handler.key(&event("a", 1)).unwrap();
    let found = engine.look(&key).await.unwrap().unwrap();
    assert_eq!(read_event(&found.payload.unwrap()), Some(event("a", 1)));
    // By hand: it was passed, so it is stale; force runs it, once, and that is audited.
    let by = Trace { actor: Some("ops".into()), ..Trace::default() };
    let rerun = |force| Resolution::Rerun { force };
    let stale = engine.resolve(&key, &rerun(false), &by).await.unwrap();
    assert_eq!(stale, Resolved::Stale { current: 2 });
    assert_eq!(handler.run_retries().await.unwrap(), 0);
    assert_eq!(engine.resolve(&key, &rerun(true), &by).await.unwrap(), Resolved::Ok);
    assert_eq!(handler.run_retries().await.unwrap(), 1);
    assert_eq!(handler.run_retries().await.unwrap(), 0, "the note is gone");
    assert_eq!(numbers(&notes), [2, 1]);
    assert_eq!(handler.handle(&event("a", 3)).await.unwrap(), Handled::Done);
}

async fn c08_a_dead_letter_can_block_its_aggregate_and_is_retried_in_order(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let block = HandlerOptions { on_dead: OnDead::Block, ..options() };
    let (handler, notes, fails) = elsewhere(&engine, block);
    fails.store(true, Ordering::SeqCst);
    fail_to_death(&handler, &event("a", 1)).await;
    fails.store(false, Ordering::SeqCst);
    let dead = handler.handle(&event("a", 1)).await.unwrap();
    assert!(matches!(dead, Handled::Dead { passed: false, .. }), "{dead:?}");
    assert_eq!(handler.handle(&event("a", 2)).await.unwrap(), Handled::Gap { current: 0 });
    assert_eq!(handler.handle(&event("b", 1)).await.unwrap(), Handled::Done, "others go on");
    let key = handler.key(&event("a", 1)).unwrap();
    let rerun = Resolution::Rerun { force: false };
    assert_eq!(engine.resolve(&key, &rerun, &Trace::default()).await.unwrap(), Resolved::Ok);
    assert_eq!(handler.run_retries().await.unwrap(), 1);
    assert_eq!(handler.handle(&event("a", 2)).await.unwrap(), Handled::Done);
    assert_eq!(numbers(&notes), [1, 1, 2], "b's, then a's in order");
}

async fn c06_an_id_with_other_contents_has_no_effect(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let handler = in_store(&engine, options());
    assert_eq!(handler.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    let mut other = event("a", 1);
    other.payload = "{}".into();
    assert_eq!(handler.handle(&other).await.unwrap(), Handled::Mismatch);
    assert_eq!(ledger(&engine, "a").await, [1]);
}

async fn c11_without_the_registry_the_order_alone_keeps_duplicates_out(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let off = HandlerOptions { registry: false, ..options() };
    let handler = in_store(&engine, off.clone());
    for number in [1, 1, 3, 2, 2, 3] {
        let handled = handler.handle(&event("a", number)).await.unwrap();
        let known = matches!(handled, Handled::Done | Handled::Stale { .. } | Handled::Gap { .. });
        assert!(known, "{handled:?}");
    }
    assert_eq!(ledger(&engine, "a").await, [1, 2, 3]);
    let key = handler.key(&event("a", 1)).unwrap();
    assert_eq!(engine.look(&key).await.unwrap(), None, "nothing is registered");
    let (other, notes, fails) = elsewhere(&engine, off);
    assert_eq!(other.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    fails.store(true, Ordering::SeqCst);
    fail_to_death(&other, &event("a", 2)).await;
    fails.store(false, Ordering::SeqCst);
    assert_eq!(other.handle(&event("a", 3)).await.unwrap(), Handled::Done);
    assert_eq!(numbers(&notes), [1, 3]);
}

async fn c10_ids_that_differ_in_case_space_or_special_characters_never_collide(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let handler = in_store(&engine, options());
    let names = [
        "abc", "ABC", "Abc", " abc", "abc ", "a bc", "a:bc", "a%3Abc", "a/bc", "a\\bc", "a\u{0}bc",
        "a\nbc", "é", "e\u{301}", "ａ", "ß", "ss", "%", "%%", "..", "a..b", "'", "\"", "*", "_",
    ];
    for name in names {
        assert_eq!(handler.handle(&event(name, 1)).await.unwrap(), Handled::Done, "{name:?}");
    }
    for name in names {
        assert_eq!(ledger(&engine, name).await, [1], "{name:?}");
    }
}

async fn a_panic_is_a_failure_like_any_other(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let work = Work::in_store(|seen| async move {
        assert!(seen.event().kind != "update", "no updates here");
        Ok::<_, HandlerError>(())
    });
    let handler = Handler::new(engine, "instances", options(), work).unwrap();
    match handler.handle(&event("a", 1)).await.unwrap() {
        Handled::Failed { error, .. } => assert!(error.contains("no updates here"), "{error}"),
        other => panic!("{other:?}"),
    }
}

async fn a_permanent_error_is_a_dead_letter_at_once(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let work =
        Work::in_store(|_| async { Err::<(), _>(HandlerError::permanent("it makes no sense")) });
    let handler = Handler::new(engine, "instances", options(), work).unwrap();
    let dead = handler.handle(&event("a", 1)).await.unwrap();
    assert_eq!(dead, Handled::Dead { error: "it makes no sense".into(), passed: true });
    assert_eq!(handler.counts().dead, 1);
}

async fn i01_many_consumers_with_duplicates_leave_one_effect_each(on: On) {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let tasks = (0..8).map(|_| {
        let handler = in_store(&engine, options());
        tokio::spawn(async move {
            for number in 1..=10 {
                for aggregate in ["a", "b", "c"] {
                    let event = event(aggregate, number);
                    loop {
                        let handled = handler.handle(&event).await.unwrap();
                        if handled.is_final() {
                            break;
                        }
                        // sleeps because another consumer is at the number before it
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    for aggregate in ["a", "b", "c"] {
        assert_eq!(ledger(&engine, aggregate).await, (1..=10).collect::<Vec<_>>());
    }
}

macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        on_each! { @ memory, Memory, $($name),* }
        on_each! { @ sqlite, Sqlite, $($name),* }
        on_each! { @ postgres, Postgres, $($name),* }
    };
    (@ $module:ident, $on:ident, $($name:ident),*) => {
        mod $module {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::On::$on).await;
            })*
        }
    };
}

on_each! {
    c01_one_event_has_one_effect_whatever_is_redelivered,
    c03_c10_shuffled_numbers_take_effect_in_order_and_stale_ones_never,
    c09_above_takes_the_newest_and_passes_what_is_older,
    c10_the_same_event_on_two_consumers_one_claim_wins,
    i28_a_lower_number_never_takes_effect_after_a_higher_one,
    c08_a_lease_that_runs_out_is_taken_over_under_a_higher_fence,
    c10_retries_then_a_dead_letter_that_is_passed,
    c08_a_dead_letter_can_block_its_aggregate_and_is_retried_in_order,
    c06_an_id_with_other_contents_has_no_effect,
    c11_without_the_registry_the_order_alone_keeps_duplicates_out,
    c10_ids_that_differ_in_case_space_or_special_characters_never_collide,
    a_panic_is_a_failure_like_any_other,
    a_permanent_error_is_a_dead_letter_at_once,
    i01_many_consumers_with_duplicates_leave_one_effect_each,
}
