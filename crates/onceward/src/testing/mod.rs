//! The public test kit: what proves the engine and its stores.
//!
//! [`sim`] runs many workers with every fault on one thread, from a seed. Nothing here reads the
//! environment: seeds and counts are passed in.

pub mod random;
pub mod sim;
pub mod zoo;
