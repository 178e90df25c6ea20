//! The measurements service as a user runs it: `onceward demo measurements`, over HTTP, killed and
//! started again.
//!
//! One test per sentence of the contract, with its number in its name; where the others are tested
//! is written in `docs/measurements.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]

mod audits;
mod backfill;
mod batches;
mod crash;
mod duplicates;
mod keys;
mod order;
#[path = "../support/page.rs"]
mod page;
mod process;
mod races;
#[path = "../support/service.rs"]
mod service;
mod switches;
mod walk;
mod world;
