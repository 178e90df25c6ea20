//! The workload against the memory store: the real engine, many workers, then the audit.

use std::sync::Arc;

use onceward::store::memory::MemoryStore;
use onceward::testing::workload::{Workload, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_to_i06_hold_on_the_memory_store() {
    for seed in 1..=5 {
        let store = Arc::new(MemoryStore::new());
        let workload = Workload { seed, ..Workload::default() };
        let report = run(store.clone(), store, &workload).await.unwrap_or_else(|violation| {
            panic!("seed {seed}: {}: {}", violation.invariant, violation.what)
        });
        assert_eq!(report.in_transaction, workload.keys as u64, "{report:?}");
        assert!(report.effects >= workload.keys && report.jobs > 0, "{report:?}");
        assert!(report.replayed > 0 && report.failed == 0, "{report:?}");
    }
}
