//! The pure heart of Onceward.

pub mod canonical;
pub mod fingerprint;
mod json;
