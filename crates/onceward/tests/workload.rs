//! The workload on every store, calm and under faults: the real engine, many workers, the audit.
#![allow(clippy::panic, reason = "a test that can't go on fails")]

mod support;

use onceward::testing::faulty::FaultPlan;
use onceward::testing::harness::{Harness, MemoryHarness, PoorHarness};
use onceward::testing::workload::{Workload, run};

/// One call in seven suffers a fault.
const PER_MILLE: u64 = 150;

async fn under_faults(harness: &dyn Harness, seeds: u64) {
    let first = support::seed();
    for seed in first..first + seeds {
        let workload = Workload { seed, ..Workload::default() };
        let faults = FaultPlan::Seeded { seed, per_mille: PER_MILLE };
        let report = run(harness, faults, &workload).await.unwrap_or_else(|violation| {
            panic!("seed {seed}: {}: {}", violation.invariant, violation.what)
        });
        assert_eq!(report.in_transaction, workload.keys as u64, "{report:?}");
        assert!(report.effects >= workload.keys, "{report:?}");
        assert!(report.replayed > 0 && report.failed > 0 && report.jobs > 0, "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_i02_i03_i06_i11_i22_i28_hold_without_faults() {
    let workload = Workload::default();
    let harness = MemoryHarness::default();
    let report = run(&harness, FaultPlan::Quiet, &workload)
        .await
        .unwrap_or_else(|violation| panic!("{}: {}", violation.invariant, violation.what));
    assert_eq!(report.failed, 0, "{report:?}");
    assert!(report.effects >= workload.keys && report.replayed > 0, "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_i02_i03_i06_i11_i22_i28_hold_under_faults_on_memory() {
    under_faults(&MemoryHarness::default(), 6).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_i02_i03_i06_i11_i22_i28_hold_under_faults_on_poor() {
    under_faults(&PoorHarness::default(), 3).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_i02_i03_i06_i11_i22_i28_hold_under_faults_on_sqlite() {
    under_faults(&support::sqlite::SqliteHarness::default(), 3).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_i02_i03_i06_i11_i22_i28_hold_under_faults_on_postgres() {
    under_faults(&support::postgres::PostgresHarness::default(), 3).await;
}

#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_i02_i03_i06_i11_i22_i28_hold_under_faults_on_dynamodb() {
    under_faults(&support::dynamodb::DynamoDbHarness::default(), 2).await;
}
