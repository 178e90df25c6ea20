//! The pure heart of Onceward.

pub mod canonical;
pub mod diff;
pub mod fingerprint;
mod json;
pub mod payload;
