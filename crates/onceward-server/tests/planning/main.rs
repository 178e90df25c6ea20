//! The planning service as a user runs it: `onceward demo planning`, over HTTP, killed and started.
//!
//! One test per sentence of the contract that speaks of HTTP, with its number in its name; where
//! the others are tested is written in `docs/planning.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]

mod audits;
mod crash;
mod keys;
mod missions;
#[path = "../support/page.rs"]
mod page;
mod process;
mod races;
mod reads;
mod roles;
mod security;
#[path = "../support/service.rs"]
mod service;
mod versions;
mod walk;
mod world;
