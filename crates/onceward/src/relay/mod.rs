//! The relay: publishes every event of the event store to a log, at least once, in order.
//!
//! Rule: only the contiguous acknowledged prefix is checkpointed, so a relay that dies publishes
//! some events again and skips none; an event that comes again has the same id and the same bytes.
//! Two relays at once are safe: one has the role, its fence is part of what it writes, and what an
//! overtaken one still sends is a duplicate that consumers know.
//!
//! [`EmbeddedLog`] is the log without a broker: the event store's own order, up to where the relay
//! has come. It holds no copy of anything.

mod checkpoint;
mod embedded;
mod log;
mod options;
mod recent;
mod run;
mod source;

pub use checkpoint::{Checkpoint, read_checkpoint};
pub use embedded::EmbeddedLog;
pub use log::{Log, LogError, LogFuture, Sink, Source};
pub use options::RelayOptions;
pub use run::{Relay, RelayError, RelayStatus};
