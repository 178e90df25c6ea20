//! The business service as a user runs it: `onceward demo business`, over HTTP, killed and started.
//!
//! A test per sentence of the contract, with its number in its name; which is where is written in
//! `docs/business.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]

mod across;
mod audits;
mod conflicts;
mod domain;
mod gateway;
mod keys;
mod load;
mod monitoring;
mod ops;
#[path = "../support/page.rs"]
mod page;
mod process;
mod schema;
mod sdk;
mod security;
#[path = "../support/service.rs"]
mod service;
mod times;
mod walk;
mod world;
