//! Decisions by hand: what must not be forgotten or passed over.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use common::*;
use onceward::core::audit::Trace;
use onceward::core::decide::{
    Change, Effects, Finish, JobOrder, NewJob, Resolution, Resolved, Retry, Verdict,
};
use onceward::core::guard::{Guard, Rule};
use onceward::core::key::Key;
use onceward::core::record::{Body, OnAbandoned, State};
use onceward::engine::{Engine, EngineError, Take, Taken};
use onceward::store::{AuditFilter, Items, List};

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

#[tokio::test]
async fn every_decision_by_hand_names_who_made_it() {
    for how in endings() {
        let engine = three_jobs().await;
        let by = Trace { actor: Some("ada".into()), ..Trace::default() };
        assert_eq!(engine.resolve(&job_key("1"), &how, &by).await.unwrap(), Resolved::Ok);
        let what = List::Audit(AuditFilter::default());
        let Items::Audit(entries) = engine.list(what, None, 100).await.unwrap().items else {
            panic!("the audit was asked for");
        };
        let last = &entries.last().unwrap().entry;
        assert_eq!(last.trace.actor.as_deref(), Some("ada"), "{how:?}: {last:?}");
    }
}

#[tokio::test]
async fn i28_nobody_moves_the_counters_of_jobs_by_hand() {
    let engine = three_jobs().await;
    let order = JobOrder::new(&job_key("1"), "subject").unwrap();
    for (subject, at) in [(&order.done, 0), (&order.tail, 3)] {
        let refused = engine.put(subject, at, Some(bytes("mine"))).await.unwrap_err();
        let EngineError::Limit(limit) = &refused else { panic!("{refused:?}") };
        assert_eq!(limit.field, "space");
        assert!(refused.to_string().contains("kept by the queues"), "{refused}");
        let guard = Guard::new(subject.clone(), Rule::Exactly { expected: at }).unwrap();
        let changes = vec![Change { guard, value: Body::Set(bytes("mine")) }];
        let done = with_effects("done", Effects { changes, ..Effects::default() });
        let refused = engine.run_once(&claim("k", "p"), &done).await.unwrap_err();
        assert!(refused.to_string().contains("kept by the queues"), "{refused}");
    }
    assert_eq!(take(&engine).await[0].permit.key(), &job_key("1"), "in order");
}
