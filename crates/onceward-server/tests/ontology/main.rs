//! The ontology service as a user runs it: `onceward demo ontology`, over HTTP, killed and started.
//!
//! One test per sentence of the contract that speaks of HTTP, with its number in its name; where
//! the others are tested is written in `docs/events.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]

mod commands;
mod crash;
mod damage;
mod flow;
mod killed;
#[path = "../support/service.rs"]
mod service;
mod settings;
mod streams;
mod views;
mod world;
