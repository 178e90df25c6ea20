//! The pure heart of Onceward.

pub mod canonical;
pub mod diff;
pub mod fingerprint;
pub mod header_key;
mod json;
pub mod outcome_policy;
pub mod payload;
pub mod retry;
