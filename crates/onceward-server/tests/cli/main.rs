//! The binary as a user runs it, on databases that the library made.
//!
//! Each file is one group of commands; `sample` makes the database and runs the binary.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers may fail the test")]

mod bad_input;
mod bench;
mod config;
mod jobs;
mod keys;
mod operations;
mod sample;
