//! Onceward: every effect once, always forward.
//!
//! One engine settles retries, duplicates, reorderings and lost updates for requests, jobs and
//! event streams. Start with [`engine::Engine`] over a [`store::Store`].

pub mod audit;
#[cfg(feature = "http")]
pub mod cache;
#[cfg(feature = "client")]
pub mod client;
pub mod engine;
#[cfg(feature = "events")]
pub mod events;
#[cfg(feature = "events")]
pub mod handlers;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "events", feature = "sqlite"))]
mod points;
#[cfg(feature = "events")]
pub mod projection;
#[cfg(feature = "events")]
pub mod relay;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod worker;

pub use onceward_core as core;
