//! Events, once and in order: an append-only event store on object storage, and what reads it.
//!
//! An event belongs to an aggregate of a tenant and has its number there; every event has one place
//! in the total order that readers follow. An event that has a place never changes.
//!
//! An append reserves its numbers through the engine, in one commit that also keeps the events'
//! bytes (the intent). The packer writes what waits into the next **segment**, an object that is
//! created only if it is not there, and only then the append is answered. The segments are the
//! truth: the engine's store tells quickly where an event lies, and can be made anew from them.

mod alarms;
mod append;
mod cache;
mod error;
mod event;
mod keeper;
mod names;
mod objects;
mod options;
mod packer;
mod read;
mod segment;
mod settle;
mod space;
mod store;

pub use append::{Append, AppendMany, AppendVerdict, Appended, ManyVerdict, NewEvent};
pub use error::EventsError;
pub use event::{Event, Place};
pub use objects::Objects;
pub use options::{Allocator, EventStoreOptions, OnMismatch};
pub use read::Stream;
pub use store::EventStore;
