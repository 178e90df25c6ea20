//! HTTP: a tower layer that gives any service idempotency, in several dialects.
//!
//! Build a [`Door`] from an engine, an [`Identity`] and [`Routes`], and put [`OncewardLayer`]
//! around an axum router or any other service. GET and HEAD are never touched (A04). What a key is
//! unique in: tenant, caller, method, endpoint template, path values, key.
//!
//! A path has one spelling ([`one_spelling`]): permission is asked for it, and the service gets it.
//! A router has to stand behind the layer for that; see [`OncewardLayer`].
//!
//! A handler whose whole effect is in our store takes [`Writes`] and hands them back with its
//! answer: under [`Commits::One`] key, effects and response are one commit. [`Preconditions`] and
//! [`Versioned`] speak ETags.

mod admit;
mod answer;
mod authorize;
#[cfg(feature = "axum")]
mod axum;
mod body;
pub(crate) mod breaker;
mod crowd;
mod date;
mod dialect;
mod document;
mod door;
mod drain;
mod etag;
mod gates;
mod identity;
mod ids;
mod layer;
pub mod names;
mod once;
mod outcome;
mod pass;
mod policy;
mod preconditions;
mod rate;
mod refusal;
mod room;
mod route;
mod run;
mod said;
mod served;
mod shadow;
mod spelling;
mod template;
mod unprotected;
mod within;
mod writes;

pub use authorize::{Authorize, Authorized};
pub use body::{Body, BoxError};
pub use breaker::BreakerPolicy;
pub use dialect::{Dialect, Speak};
pub use document::{POLICY_PATH, policy_document};
pub use door::Door;
pub use drain::Drain;
pub use etag::{ETag, NotTags, TAGS_MAX, Tags};
pub use gates::DoorLimits;
pub use identity::{Caller, Identity, Unidentified, is_carried, looks_like_jwt};
pub use ids::ensure_request_id;
pub use layer::{Onceward, OncewardLayer};
pub use outcome::{DamagedResponse, STORED_HEADERS, StoredResponse, may_store};
pub use policy::{Commits, IfMatch, MissingKey, Mode, PermitText, Policy};
pub use preconditions::{Preconditions, ReadCheck, TagRules};
pub use rate::RateLimit;
pub use refusal::{Code, Conflict, Meaning, Refusal, spread};
pub use route::{Place, Route, Routes};
pub use run::{Attempt, EarlyAnswer, ServiceError};
pub use served::Served;
pub use shadow::{ShadowReport, ShadowRoute};
pub use spelling::{AsSent, one_spelling, spell_path};
pub use unprotected::{Unmatched, UnprotectedKey};
pub use writes::{Seen, Versioned, Writes};
