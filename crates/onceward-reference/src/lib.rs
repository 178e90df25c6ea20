//! Small real services on Onceward: what one reads to learn it, and what its contract tests drive.
//!
//! A service here uses the library as any user would: no store is touched but through the engine.
//! Listeners, flags and files are the binary's business, not this crate's.

pub mod business;
pub mod csv;
mod ids;
mod instant;
pub mod measurements;
mod members;
pub mod ontology;
mod paging;
mod percent;
pub mod planning;
pub mod principals;
mod spelled;
