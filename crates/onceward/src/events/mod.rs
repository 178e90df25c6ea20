//! Events, once and in order: an append-only event store on object storage, and what reads it.
//!
//! An event belongs to an aggregate of a tenant and has its number there; every event has one place
//! in the total order that readers follow. An event that has a place never changes.

mod event;

pub use event::{Event, Place};
