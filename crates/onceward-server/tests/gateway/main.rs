//! The gateway as a user runs it: the real binary, real connections, a real API behind it.
//!
//! `suite` is one table of cases that runs against the gateway and against an axum server inside
//! the tower layer: both must behave the same. The other files are about what only a process with
//! sockets has: framing, time-outs, signals, crashes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helpers may fail the test"
)]

mod audit;
mod budgets;
mod by_hand;
mod cases;
mod client;
mod clients;
mod crash;
mod damage;
mod ends;
mod examples;
mod few_files;
mod files;
mod forms;
mod frames;
mod frozen;
mod full_disk;
mod masks;
mod peers;
#[cfg(feature = "postgres")]
mod postgres;
mod process;
mod read_only;
#[path = "../../../onceward/tests/support/redis.rs"]
mod redis_server;
mod resets;
mod routes;
mod servers;
mod settings;
mod shared;
mod signals;
mod strict;
mod suite;
mod target;
mod upstream;
mod vectors;
mod ways;
mod who;
mod wire;
