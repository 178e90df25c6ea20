//! The public test kit for stores: what every store must do, and what goes wrong around it.
//!
//! [`conformance`] has a case per sentence of the store contract, [`differential`] drives a store
//! and the memory oracle with the same random steps, [`faulty`] injects faults into any store, and
//! [`poor`] is a store that can do as little as the contract allows. A [`harness`] says how a store
//! is opened. Nothing here reads the environment: seeds and step counts are passed in.

pub mod conformance;
pub mod differential;
pub mod faulty;
pub mod harness;
pub mod poor;
pub mod random;
