//! Lost answers, failures and delays at every step of every operation, on every store.
//!
//! Each operation runs once per fault on the commit that it makes; afterwards the store must show
//! that it happened exactly once, or, when it answered that nothing was done, not at all.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;
mod support;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use onceward::core::audit::Trace;
use onceward::core::decide::{Change, Effects, NewJob, Resolution, Retry, Verdict};
use onceward::core::guard::{Guard, Rule};
use onceward::core::record::{Body, OnAbandoned, State};
use onceward::engine::{Engine, EngineError, EngineOptions, Take};
use onceward::store::{Items, List, Store};
use onceward::testing::faulty::{Fault, FaultPlan, FaultyStore, Method};
use onceward::testing::harness::{Harness, MemoryHarness, PoorHarness};

/// What an operation is called on: prepared without faults.
struct Bench {
    store: Arc<FaultyStore>,
    engine: Engine,
}

impl Bench {
    async fn new(harness: &dyn Harness) -> Self {
        let inner = harness.open().await.unwrap();
        let store = Arc::new(FaultyStore::new(inner, FaultPlan::Quiet));
        let options = EngineOptions {
            resend_pause: Duration::from_millis(1),
            resend_for: Duration::from_secs(5),
            contended_for: Duration::from_secs(5),
            ..EngineOptions::default()
        };
        Self { engine: Engine::with_options(store.clone(), options), store }
    }

    /// The next commit suffers this fault.
    fn fault(&self, fault: Fault) {
        self.store.set_plan(FaultPlan::Named(vec![(Method::Commit, fault)]));
    }

    /// Lets everything that waits in the server arrive, however late.
    async fn heal(&self, harness: &dyn Harness) {
        self.store.set_plan(FaultPlan::Quiet);
        self.store.release_delayed().await;
        harness.settle().await.unwrap();
    }

    async fn state(&self, id: &str) -> Option<State> {
        let found = self.engine.look(&key(id)).await.unwrap();
        found.map(|found| found.stored.record.state)
    }

    async fn audited(&self, action: &str) -> usize {
        let what = List::Audit(onceward::store::AuditFilter {
            action: Some(action.into()),
            ..Default::default()
        });
        match self.engine.list(what, None, 100).await.unwrap().items {
            Items::Audit(entries) => entries.len(),
            other => panic!("{other:?}"),
        }
    }
}

/// Whether the operation must have been done: certain, or excluded by its answer.
fn settled<T>(result: &Result<T, EngineError>, fault: Fault) -> bool {
    match (result, fault) {
        (Ok(_), _) => true,
        (Err(error), Fault::Before) => {
            assert!(error.nothing_done(), "{error}");
            false
        }
        (Err(error), fault) => panic!("{fault:?}: {error}"),
    }
}

const FAULTS: [Fault; 7] = [
    Fault::None,
    Fault::Before,
    Fault::After,
    Fault::Lost(Duration::from_millis(1)),
    Fault::Delayed(1),
    Fault::Delayed(1_000_000),
    Fault::Contended(0),
];

async fn claims_and_completions(harness: &dyn Harness) {
    for fault in FAULTS {
        let bench = Bench::new(harness).await;
        let (engine, request) = (&bench.engine, claim("k", "p"));
        bench.fault(fault);
        let claimed = engine.claim(&request).await;
        let granted = settled(&claimed, fault);
        bench.heal(harness).await;
        if !granted {
            // i27: "nothing was done" must stay true however late things arrive.
            assert_eq!(bench.state("k").await, None, "claim {fault:?}");
            continue;
        }
        let held = permit(claimed.unwrap());
        let busy = engine.claim(&request).await.unwrap();
        assert!(matches!(busy, Verdict::Busy { .. }), "claim {fault:?}: {busy:?}");

        bench.fault(fault);
        let renewed = settled(&engine.renew(&held, None).await, fault);
        bench.heal(harness).await;
        let _ = renewed;

        bench.fault(fault);
        let completed = settled(&engine.complete(&held, &outcome("once")).await, fault);
        bench.heal(harness).await;
        let expected = if completed { State::Done } else { State::Running };
        assert_eq!(bench.state("k").await, Some(expected), "complete {fault:?}");
        assert_eq!(bench.audited("request.done").await, usize::from(completed));
        if completed {
            assert_eq!(replayed(engine.claim(&request).await.unwrap()), "once");
        }
    }
}

async fn one_commits(harness: &dyn Harness) {
    for fault in FAULTS {
        let bench = Bench::new(harness).await;
        let effects = Effects {
            changes: vec![Change {
                guard: Guard::new(subject("s"), Rule::Exactly { expected: 0 }).unwrap(),
                value: Body::Set(bytes("v1")),
            }],
            jobs: vec![NewJob::new(job_key("j"), print("j"), bytes("j"))],
            ..Effects::default()
        };
        bench.fault(fault);
        let ran = bench.engine.run_once(&claim("k", "p"), &with_effects("once", effects)).await;
        let ran = settled(&ran, fault);
        bench.heal(harness).await;
        // i11: all of it or none.
        assert_eq!(bench.state("k").await, ran.then_some(State::Done), "{fault:?}");
        let document = bench.engine.get(&subject("s")).await.unwrap();
        assert_eq!(document.map(|document| document.version), ran.then_some(1), "{fault:?}");
        assert_eq!(bench.engine.look(&job_key("j")).await.unwrap().is_some(), ran, "{fault:?}");
        assert_eq!(bench.audited("request.done").await, usize::from(ran), "{fault:?}");
        assert_eq!(bench.audited("job.enqueued").await, usize::from(ran), "{fault:?}");
    }
}

async fn ends_of_a_permit(harness: &dyn Harness) {
    for fault in FAULTS {
        let bench = Bench::new(harness).await;
        let engine = &bench.engine;
        let held = permit(engine.claim(&claim("r", "p")).await.unwrap());
        bench.fault(fault);
        let released = settled(&engine.release(&held).await, fault);
        bench.heal(harness).await;
        let expected = if released { None } else { Some(State::Running) };
        assert_eq!(bench.state("r").await, expected, "release {fault:?}");

        let held = permit(engine.claim(&claim("f", "p")).await.unwrap());
        bench.fault(fault);
        let failed = settled(&engine.fail(&held, "no", Retry::In(0)).await, fault);
        bench.heal(harness).await;
        let expected = if failed { State::Failed } else { State::Running };
        assert_eq!(bench.state("f").await, Some(expected), "fail {fault:?}");
        assert_eq!(bench.audited("request.failed").await, usize::from(failed), "{fault:?}");

        let mut hold = claim("u", "p");
        hold.terms.on_abandoned = OnAbandoned::Hold;
        let held = permit(engine.claim(&hold).await.unwrap());
        engine.abandon(&held, "gone").await.unwrap();
        let by_hand = Resolution::Done { outcome: (bytes("by hand"), print("by hand")) };
        bench.fault(fault);
        let resolved = engine.resolve(&key("u"), &by_hand, &Trace::default()).await;
        let resolved = settled(&resolved, fault);
        bench.heal(harness).await;
        let expected = if resolved { State::Done } else { State::Unknown };
        assert_eq!(bench.state("u").await, Some(expected), "resolve {fault:?}");
    }
}

async fn jobs_and_documents(harness: &dyn Harness) {
    for fault in FAULTS {
        let bench = Bench::new(harness).await;
        let engine = &bench.engine;
        let job = NewJob::new(job_key("j"), print("j"), bytes("j"));
        bench.fault(fault);
        let made = settled(&engine.enqueue(&job).await, fault);
        bench.heal(harness).await;
        assert_eq!(bench.audited("job.enqueued").await, usize::from(made), "{fault:?}");
        engine.enqueue(&job).await.unwrap();
        harness.settle().await.unwrap();

        let take = Take { queue: "mail".into(), owner: "w".into(), max: 9, lease_ms: None };
        bench.fault(fault);
        let taken = engine.take(&take).await;
        let took = settled(&taken, fault);
        bench.heal(harness).await;
        let record = engine.look(&job.key).await.unwrap().unwrap().stored.record;
        assert_eq!(record.attempt, u32::from(took), "take {fault:?}");
        if took {
            let taken = taken.unwrap();
            assert_eq!(taken.len(), 1, "take {fault:?}");
            assert_eq!(record.fence, Some(taken[0].permit.fence), "take {fault:?}");
        }

        bench.fault(fault);
        let put = settled(&engine.put(&subject("d"), 0, Some(bytes("v"))).await, fault);
        bench.heal(harness).await;
        let mark = engine.mark(&subject("d")).await.unwrap();
        assert_eq!(mark.map(|mark| mark.position), put.then_some(1), "put {fault:?}");
    }
}

/// i09 and i27: each operation × each fault, on one kind of store.
async fn every_operation_survives_every_fault(harness: &dyn Harness) {
    claims_and_completions(harness).await;
    one_commits(harness).await;
    ends_of_a_permit(harness).await;
    jobs_and_documents(harness).await;
}

#[tokio::test]
async fn i09_i27_lost_and_late_answers_on_memory() {
    every_operation_survives_every_fault(&MemoryHarness::default()).await;
}

#[tokio::test]
async fn i09_i27_lost_and_late_answers_on_poor() {
    every_operation_survives_every_fault(&PoorHarness::exact()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn i09_i27_lost_and_late_answers_on_sqlite() {
    every_operation_survives_every_fault(&support::sqlite::SqliteHarness::default()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn i09_i27_lost_and_late_answers_on_postgres() {
    every_operation_survives_every_fault(&support::postgres::PostgresHarness::default()).await;
}

#[cfg(feature = "dynamodb")]
#[tokio::test]
async fn i09_i27_lost_and_late_answers_on_dynamodb() {
    every_operation_survives_every_fault(&support::dynamodb::DynamoDbHarness::default()).await;
}

#[tokio::test]
async fn a13_a_store_that_fails_before_the_claim_says_that_nothing_was_done() {
    let bench = Bench::new(&MemoryHarness::default()).await;
    bench.fault(Fault::Before);
    let error = bench.engine.claim(&claim("k", "p")).await.unwrap_err();
    assert!(error.nothing_done() && error.is_retryable());
    assert_eq!(error.code(), "store.unavailable");
    permit(bench.engine.claim(&claim("k", "p")).await.unwrap());
}

#[tokio::test]
async fn i07_a_renewal_without_an_answer_is_an_error_that_says_unknown() {
    let inner = MemoryHarness::default().open().await.unwrap();
    let faults = vec![(Method::Commit, Fault::Lost(Duration::ZERO)); 1_000];
    let store = Arc::new(FaultyStore::new(inner, FaultPlan::Quiet));
    let options = EngineOptions {
        resend_pause: Duration::from_millis(1),
        resend_for: Duration::from_millis(20),
        ..EngineOptions::default()
    };
    let engine = Engine::with_options(store.clone(), options);
    let held = permit(engine.claim(&claim("k", "p")).await.unwrap());
    store.set_plan(FaultPlan::Named(faults));
    let error = engine.renew(&held, None).await.unwrap_err();
    assert!(!error.nothing_done(), "{error}: the holder must stop before its next effect");
    let closed: Arc<dyn Store> = store;
    drop(closed);
}

#[tokio::test]
async fn a_sweep_that_fails_for_one_record_counts_its_neighbours() {
    // A store without groups, so that a fault meets one record alone.
    let harness = PoorHarness::exact();
    let bench = Bench::new(&harness).await;
    for id in ["a", "b", "c"] {
        bench.engine.run_once(&claim(id, "p"), &outcome("done")).await.unwrap();
    }
    assert!(harness.advance(86_400_000).await.unwrap());
    harness.settle().await.unwrap();
    bench.fault(Fault::Before);
    let mut heard = 0;
    let swept = bench.engine.sweep(|report| heard = report.expired).await;
    assert!(swept.unwrap_err().nothing_done());
    assert_eq!(heard, 2);
    harness.settle().await.unwrap();
    let what = List::Audit(onceward::store::AuditFilter {
        action: Some("sweep".into()),
        ..Default::default()
    });
    let Items::Audit(entries) = bench.engine.list(what, None, 9).await.unwrap().items else {
        panic!("the audit was asked for");
    };
    let details: Vec<_> =
        entries.iter().filter_map(|entry| entry.entry.detail.as_deref()).collect();
    assert_eq!(details, [r#"{"expired":2,"forgotten":0,"unknown":0}"#]);
}
