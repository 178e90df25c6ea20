//! The audit as a whole: sealing it into a chain, verifying that chain, dropping what is too old.
//!
//! Entries are written by the batches they describe, and nothing here is in a commit's way: a
//! [`Sealer`] comes later, finds what is not sealed and links it. Seals are documents: per tenant a
//! head and a row of segments, each under a key. What the chain shows and what it can't is said in
//! `onceward_core::seal`. Notes (`audit.replay` and its like) are the engine's; [`LostNotes`]
//! counts those that crashes cost.

mod lost;
mod retain;
mod seal;
mod seals;
mod verify;

pub use lost::LostNotes;
pub use onceward_core::seal::SealKey;
pub use retain::Retained;
pub use seal::{SealReport, Sealer};
pub use verify::{Bad, Verified, verify};
