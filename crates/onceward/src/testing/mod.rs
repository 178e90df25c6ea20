//! The public test kit: what proves the engine and its stores.
//!
//! [`sim`] runs many workers with every fault on one thread, from a seed. [`zoo`] proves that it
//! catches planted bugs. [`workload`] drives any store through the real engine and audits what is
//! left. Nothing here reads the environment: seeds and counts are passed in.

pub mod random;
pub mod sim;
pub mod workload;
pub mod zoo;
