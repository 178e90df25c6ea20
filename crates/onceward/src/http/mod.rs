//! HTTP: a tower layer that gives any service idempotency, in several dialects.
//!
//! Build a [`Door`] from an engine, an [`Identity`] and [`Routes`], and put [`OncewardLayer`]
//! around an axum router or any other service. GET and HEAD are never touched (A04). What a key is
//! unique in: tenant, caller, method, endpoint template, path values, key.

mod admit;
mod body;
mod cache;
mod date;
mod dialect;
mod door;
mod drain;
mod identity;
mod layer;
pub mod names;
mod outcome;
mod policy;
mod refusal;
mod route;

pub use body::{Body, BoxError};
pub use dialect::{Dialect, Speak};
pub use door::{Authorized, Door};
pub use drain::Drain;
pub use identity::{Caller, Identity, looks_like_jwt};
pub use layer::{Attempt, Onceward, OncewardLayer, ServiceError};
pub use outcome::{DamagedResponse, STORED_HEADERS, StoredResponse, may_store};
pub use policy::{IfMatch, MissingKey, Mode, Policy};
pub use refusal::{Code, Conflict, Meaning, Refusal};
pub use route::{Place, Route, Routes};
