//! Decisions by hand: what must not be forgotten or passed over.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use common::*;
use onceward::core::audit::Trace;
use onceward::core::decide::{Finish, JobOrder, NewJob, Resolution, Resolved, Retry, Verdict};
use onceward::core::key::Key;
use onceward::core::record::{OnAbandoned, State};
use onceward::engine::{Engine, Take, Taken};

fn ordered(id: &str) -> NewJob {
    let mut job = NewJob::new(job_key(id), print(id), bytes(id));
    job.order = Some(JobOrder::new(&job.key, "subject").unwrap());
    job
}

async fn three_jobs() -> Engine {
    let (engine, ..) = engine();
    for id in ["1", "2", "3"] {
        engine.enqueue(&ordered(id)).await.unwrap();
    }
    engine
}

async fn take(engine: &Engine) -> Vec<Taken> {
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 9, lease_ms: None };
    engine.take(&take).await.unwrap()
}

async fn resolve(engine: &Engine, key: &Key, how: &Resolution) -> Resolved {
    engine.resolve(key, how, &Trace::default()).await.unwrap()
}

fn endings() -> [Resolution; 3] {
    [
        Resolution::Done { outcome: (bytes("sent"), print("sent")) },
        Resolution::Dead { reason: "hopeless".into() },
        Resolution::Erase,
    ]
}

#[tokio::test]
async fn i28_an_ordered_job_is_not_passed_over_before_its_turn() {
    for how in endings() {
        let engine = three_jobs().await;
        let early = resolve(&engine, &job_key("2"), &how).await;
        assert!(matches!(early, Resolved::NotNow(_)), "{how:?}: {early:?}");
        // The first one still has its turn.
        let taken = take(&engine).await;
        assert_eq!(taken.len(), 1, "{how:?}");
        assert_eq!(taken[0].permit.key(), &job_key("1"));
    }
}

#[tokio::test]
async fn i22_an_ordered_job_that_is_ended_by_hand_lets_the_next_one_run() {
    for how in endings() {
        let engine = three_jobs().await;
        assert_eq!(resolve(&engine, &job_key("1"), &how).await, Resolved::Ok, "{how:?}");
        let taken = take(&engine).await;
        assert_eq!(taken.len(), 1, "{how:?}: the second job's turn has come");
        assert_eq!(taken[0].permit.key(), &job_key("2"));
        assert_eq!(engine.complete(&taken[0].permit, &outcome("sent")).await.unwrap(), Finish::Ok);
        assert_eq!(take(&engine).await.len(), 1, "{how:?}: and then the third");
    }
}

#[tokio::test]
async fn a_rerun_by_hand_that_is_released_does_not_forget_its_payload() {
    let (engine, _, clock) = engine();
    let mut held = claim("k", "payload");
    held.terms.on_abandoned = OnAbandoned::Hold;
    permit(engine.claim(&held).await.unwrap());
    clock.advance(30_000);
    // Its owner vanished, perhaps after its effect.
    assert_eq!(engine.claim(&held).await.unwrap().as_str(), "unknown");
    let rerun = Resolution::Rerun { force: false };
    assert_eq!(resolve(&engine, &key("k"), &rerun).await, Resolved::Ok);
    let again = permit(engine.claim(&held).await.unwrap());
    assert_eq!(engine.release(&again).await.unwrap(), Finish::Ok);
    let other = engine.claim(&claim("k", "another payload")).await.unwrap();
    assert!(matches!(other, Verdict::Mismatch(_)), "{other:?}");
    let found = engine.look(&key("k")).await.unwrap().unwrap();
    assert_eq!(found.stored.record.state, State::Failed);
    assert_eq!(engine.fail(&again, "late", Retry::Never).await.unwrap(), Finish::Lost);
}
