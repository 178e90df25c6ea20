//! The event store on every store: numbers, repetitions, restarts, faults of the object store.
//!
//! The interleavings are forced where they matter; nothing waits for time to pass.

#[macro_use]
mod support;
#[path = "events/appends.rs"]
mod appends;
#[path = "events/batches.rs"]
mod batches;
#[path = "events/faults.rs"]
mod faults;
#[path = "events/processes.rs"]
mod processes;
#[path = "events/world.rs"]
mod world;
