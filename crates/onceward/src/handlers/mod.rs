//! Event handlers: one event, at most one effect per handler, in the order of its aggregate.
//!
//! ```
//! use onceward::engine::Engine;
//! use onceward::events::Event;
//! use onceward::handlers::{Handled, Handler, HandlerError, HandlerOptions, Work};
//! use onceward::worker::Done;
//!
//! # async fn example(engine: Engine, event: Event) -> Result<(), Box<dyn std::error::Error>> {
//! // The whole effect is in our store: it commits together with the registry, once.
//! let work = Work::in_store(|seen| async move {
//!     let document = seen.read("instances", &seen.event().aggregate_id).await?;
//!     let mut done = Done::new();
//!     done.put(&document, seen.event().payload.to_vec())?;
//!     Ok::<_, HandlerError>(done)
//! });
//! let handler = Handler::new(engine, "instances", HandlerOptions::default(), work)?;
//! assert_eq!(handler.handle(&event).await?, Handled::Done);
//! assert_eq!(handler.handle(&event).await?, Handled::Duplicate);
//! # Ok(())
//! # }
//! ```
//!
//! Rule: the registry is the engine. Its key is tenant + handler + event id; the order is a guard
//! on the mark of handler × aggregate, checked at the claim and again in the commit that records
//! the event as done. An effect elsewhere runs under a lease, with a fence and an effect key; it
//! happens at least once and is recorded once. A [`Consumer`] feeds a handler from a log.

mod consumer;
mod handler;
mod holding;
mod leased;
mod letter;
mod many;
mod offset;
mod options;
mod retries;
mod seen;
mod spool;
mod tenure;
mod window;
mod work;

pub use consumer::{Consumer, ConsumerError, ConsumerOptions, Progress};
pub use handler::{Counts, Handled, Handler};
pub use letter::{read_event, write_event};
pub use offset::{Offset, read_offset};
pub use options::{HandlerOptions, MAX_HANDLER_BYTES, OnRegistryDown, Order};
pub use retries::RETRIES;
pub use seen::{Attempt, SeenEvent};
pub use spool::{Spool, SpoolError};
pub use work::Work;

pub(crate) use handler::order_space;
pub(crate) use options::millis;
pub(crate) use retries::leave_note;
pub(crate) use tenure::{Asked, Tenure, role_key};

/// Why a handler had no effect, and what follows from it: as for jobs.
pub use crate::worker::JobError as HandlerError;
