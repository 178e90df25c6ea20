//! The pure heart of Onceward.
