//! Proof that the conformance suite can fail: each store bug of the zoo breaks a case,
//! each mutant does, and there is no case that none of them breaks.
//!
//! One test and not several: a bug is planted in the whole process.

#![allow(clippy::print_stdout, reason = "says which bug breaks what")]

mod support;

use std::collections::BTreeSet;

use onceward::core::zoo::{Bug, plant};
use onceward::testing::conformance::{CASES, Report, run_all};
use onceward::testing::harness::{Harness, MemoryHarness, PoorHarness};
use support::mutant::{MutantHarness, Mutation};
use tokio::task::JoinSet;

/// Each bug of the memory store's state, and a case that is there to catch it.
const BUGS: [(Bug, &str); 4] = [
    (Bug::FenceNotMonotonic, "stamps::i05_every_grant_draws_a_higher_fence"),
    (Bug::FencePerRecord, "stamps::i25_stamps_rise_across_deletion"),
    (Bug::TokenIgnored, "tokens::i09_a_put_that_comes_again_changes_nothing"),
    (Bug::GraceCreeps, "marks::i29_grace_does_not_creep"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_bug_breaks_a_case_and_each_case_is_broken() {
    let mut broken = BTreeSet::new();
    let harnesses: [&dyn Harness; 2] = [&MemoryHarness::default(), &PoorHarness::default()];
    for harness in harnesses {
        for (bug, case) in BUGS {
            plant(Some(bug));
            let report = run_all(harness).await;
            plant(None);
            let failed = failed(&report);
            println!("{bug:?} breaks {} cases: {failed:?}", failed.len());
            assert!(failed.contains(&case), "{bug:?} must break {case}: {report}");
            broken.extend(failed);
        }
        sound(harness).await;
    }
    let mut runs = JoinSet::new();
    for &mutation in Mutation::BUGS {
        runs.spawn(async move { (mutation, run_all(&MutantHarness::new(mutation)).await) });
    }
    while let Some(run) = runs.join_next().await {
        let (mutation, report) = run.unwrap();
        let failed = failed(&report);
        println!("{mutation:?} breaks {} cases: {failed:?}", failed.len());
        assert!(!failed.is_empty(), "{mutation:?} is not noticed");
        broken.extend(failed);
    }
    sound(&MutantHarness::new(Mutation::None)).await;
    let never: Vec<_> = CASES.iter().filter(|case| !broken.contains(case.name)).collect();
    assert!(never.is_empty(), "cases that nothing breaks show nothing: {never:?}");
}

/// Without a bug, nothing fails.
async fn sound(harness: &dyn Harness) {
    let report = run_all(harness).await;
    assert!(report.failed.is_empty(), "without a bug: {report}");
}

fn failed(report: &Report) -> Vec<&'static str> {
    report.failed.iter().map(|(name, _)| *name).collect()
}
