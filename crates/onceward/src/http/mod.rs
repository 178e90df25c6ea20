//! HTTP: a tower layer that gives any service idempotency, in several dialects.
//!
//! Build a [`Door`] from an engine, an [`Identity`] and [`Routes`], and put [`OncewardLayer`]
//! around an axum router or any other service. GET and HEAD are never touched (A04). What a key is
//! unique in: tenant, caller, method, endpoint template, path values, key.

mod admit;
mod authorize;
mod body;
mod breaker;
mod cache;
mod date;
mod dialect;
mod document;
mod door;
mod gates;
mod identity;
mod layer;
pub mod names;
mod outcome;
mod policy;
mod rate;
mod refusal;
mod route;
mod shadow;

pub use authorize::{Authorize, Authorized};
pub use body::{Body, BoxError};
pub use breaker::BreakerPolicy;
pub use dialect::{Dialect, Speak};
pub use document::{POLICY_PATH, policy_document};
pub use door::Door;
pub use gates::DoorLimits;
pub use identity::{Caller, Identity, looks_like_jwt};
pub use layer::{Attempt, Onceward, OncewardLayer, ServiceError};
pub use outcome::{DamagedResponse, STORED_HEADERS, StoredResponse, may_store};
pub use policy::{IfMatch, MissingKey, Mode, Policy};
pub use rate::RateLimit;
pub use refusal::{Code, Conflict, Meaning, Refusal};
pub use route::{Place, Route, Routes};
pub use shadow::{ShadowReport, ShadowRoute};
