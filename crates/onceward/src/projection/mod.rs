//! Projections: views that are a fold of the log, and nothing else.
//!
//! A [`Projection`] is a pure [`Fold`] and a [`View`] that keeps what it makes. Documents are named
//! by their aggregate and carry its number as their version, so that a late write never overwrites
//! a newer one and a deleted document is not brought back. A view has generations (`search@7`): a
//! rebuild makes the next one from zero and swaps; [`Projection::verify`] folds the log anew and
//! compares.
//!
//! | view | where | with the registry |
//! |---|---|---|
//! | [`Documents`] | documents of the engine's store | one commit |
//! | `SqliteIndex` | full-text index in the embedded store's file | one commit |
//! | `PostgresIndex` | a table with a text index | versioned write, then the registry |
//! | `RedisView` | hashes in Redis | versioned write, then the registry |
//!
//! An index elsewhere (OpenSearch) implements [`Versioned`]: writes and deletes by version, where a
//! delete is remembered for as long as its generation lives.

mod documents;
mod fold;
mod generation;
#[cfg(feature = "client")]
mod http_call;
#[cfg(feature = "postgres")]
mod postgres_index;
mod project;
#[cfg(feature = "redis")]
mod redis_view;
#[cfg(feature = "sqlite")]
mod sqlite_index;
mod verify;
mod view;
mod words;

pub use documents::Documents;
pub use fold::{Fold, Folded};
pub use generation::Generation;
#[cfg(feature = "client")]
pub use http_call::http_call;
#[cfg(feature = "postgres")]
pub use postgres_index::PostgresIndex;
pub use project::{Projecting, Projection, ProjectionError, Rebuilt};
#[cfg(feature = "redis")]
pub use redis_view::RedisView;
#[cfg(feature = "sqlite")]
pub use sqlite_index::SqliteIndex;
pub use verify::{Difference, Verified};
pub use view::{Entry, Versioned, View, ViewError, ViewFuture, versioned_work};
pub use words::{words_of_json, words_of_text};
