//! The public test kit: what every store must do, what goes wrong around it, what proves the
//! engine.
//!
//! [`conformance`] has a case per sentence of the store contract, [`differential`] drives a store
//! and the memory oracle with the same random steps, [`faulty`] injects faults into any store,
//! [`objects`] into any object store, and [`poor`] is a store that can do as little as the contract
//! allows. A [`harness`] says how a store is opened. [`sim`] runs many workers with every fault on
//! one thread, from a seed; [`zoo`] plants bugs that it must catch; [`workload`] drives any store
//! through the real engine and audits what is left; [`crash`] runs your handler in a real process
//! and kills it, and [`points`] are the places where an event's course can be stopped; [`stream`]
//! has an event store and a broker in memory.
//! Nothing here reads the environment: seeds and counts are passed in.

pub mod conformance;
pub mod crash;
pub mod differential;
pub mod faulty;
pub mod harness;
pub mod objects;
pub mod points;
pub mod poor;
pub mod random;
pub mod sim;
pub mod stream;
pub mod workload;
pub mod zoo;
