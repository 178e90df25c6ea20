//! Proof that the conformance suite can fail: each store bug of the zoo breaks at least one case.
//!
//! So does each mutant. One test and not several: a bug is planted in the whole process.

mod support;

use onceward::core::zoo::{Bug, plant};
use onceward::testing::conformance::{Report, run_all};
use onceward::testing::harness::{Harness, MemoryHarness, PoorHarness};
use support::mutant::{MutantHarness, Mutation};

/// Each bug of the memory store's state, and a case that is there to catch it.
const BUGS: [(Bug, &str); 4] = [
    (Bug::FenceNotMonotonic, "stamps::i05_every_grant_draws_a_higher_fence"),
    (Bug::FencePerRecord, "stamps::i25_stamps_rise_across_deletion"),
    (Bug::TokenIgnored, "tokens::i09_a_put_that_comes_again_changes_nothing"),
    (Bug::GraceCreeps, "marks::i29_grace_does_not_creep"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_bug_breaks_a_case() {
    let harnesses: [&dyn Harness; 2] = [&MemoryHarness::default(), &PoorHarness::default()];
    for harness in harnesses {
        for (bug, case) in BUGS {
            plant(Some(bug));
            let report = run_all(harness).await;
            plant(None);
            let failed = failed(&report);
            println!("{bug:?} breaks {} cases: {failed:?}", failed.len());
            assert!(failed.contains(&case), "{bug:?} must break {case}: {report}");
            assert!(!report.passed.is_empty(), "{bug:?} must not break everything");
        }
        sound(harness).await;
    }
    for mutation in Mutation::BUGS {
        let report = run_all(&MutantHarness::new(mutation)).await;
        let failed = failed(&report);
        println!("{mutation:?} breaks {} cases: {failed:?}", failed.len());
        assert!(!failed.is_empty(), "{mutation:?} is not noticed");
    }
    sound(&MutantHarness::new(Mutation::None)).await;
}

/// Without a bug, nothing fails.
async fn sound(harness: &dyn Harness) {
    let report = run_all(harness).await;
    assert!(report.failed.is_empty(), "without a bug: {report}");
}

fn failed(report: &Report) -> Vec<&'static str> {
    report.failed.iter().map(|(name, _)| *name).collect()
}
