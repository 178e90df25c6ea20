//! Every store against the memory oracle, in the same random steps (i17).
//!
//! `ONCEWARD_TEST_STEPS` and `ONCEWARD_TEST_SEED` make it longer or another run.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may stop at what it did not expect, and says what it did"
)]

mod support;

use onceward::testing::differential::{Summary, run};
use onceward::testing::harness::{Harness, MemoryHarness, PoorHarness};
use support::mutant::{MutantHarness, Mutation};

/// Runs a store and shows what the run was worth.
async fn agrees(name: &str, harness: &dyn Harness) -> Summary {
    let (seed, steps) = (support::seed(), support::steps());
    println!("{name}: seed {seed}, {steps} steps");
    let summary = run(harness, seed, steps).await.unwrap_or_else(|d| panic!("{name}: {d}"));
    println!("{name}: {summary:?}");
    assert_eq!(summary.steps, steps);
    let enough = steps / 100;
    let counts = [summary.applied, summary.refused, summary.again, summary.lists, summary.listed];
    assert!(counts.iter().all(|count| *count >= enough), "too little happened: {summary:?}");
    summary
}

#[tokio::test]
async fn i17_memory_agrees_with_the_oracle() {
    let summary = agrees("memory", &MemoryHarness::default()).await;
    assert!(summary.groups > summary.steps / 100, "{summary:?}");
}

#[tokio::test]
async fn i17_poor_agrees_with_the_oracle() {
    let summary = agrees("poor", &PoorHarness::exact()).await;
    assert_eq!(summary.groups, 0);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn i17_sqlite_agrees_with_the_oracle() {
    let summary = agrees("sqlite", &support::sqlite::SqliteHarness::default()).await;
    assert!(summary.reopened > 0, "{summary:?}");
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn i17_postgres_agrees_with_the_oracle() {
    let summary = agrees("postgres", &support::postgres::PostgresHarness::default()).await;
    assert!(summary.reopened > 0, "{summary:?}");
}

#[cfg(feature = "dynamodb")]
#[tokio::test]
async fn i17_dynamodb_agrees_with_the_oracle() {
    let summary = agrees("dynamodb", &support::dynamodb::DynamoDbHarness::default()).await;
    assert!(summary.reopened > 0 && summary.groups == 0, "{summary:?}");
}

#[tokio::test]
async fn i17_a_broken_store_is_noticed() {
    // Enough for the rarest one under any seed; a run ends where it notices.
    let (seed, steps) = (support::seed(), 20_000);
    let sound = MutantHarness::new(Mutation::None);
    run(&sound, seed, 2_000).await.unwrap_or_else(|divergence| panic!("{divergence}"));
    for &mutation in Mutation::BUGS {
        if !mutation.shows_in_random_steps() {
            continue;
        }
        match run(&MutantHarness::new(mutation), seed, steps).await {
            Err(divergence) => {
                println!("{mutation:?} noticed at step {}: {}", divergence.number, divergence.why);
            }
            Ok(summary) => panic!("seed {seed}: {mutation:?} is not noticed: {summary:?}"),
        }
    }
}

#[tokio::test]
async fn i23_the_same_seed_takes_the_same_steps() {
    let harness = MemoryHarness::default();
    let one = run(&harness, 7, 500).await.unwrap();
    let two = run(&harness, 7, 500).await.unwrap();
    let other = run(&harness, 8, 500).await.unwrap();
    assert_eq!(one, two);
    assert_ne!(one, other);
}
