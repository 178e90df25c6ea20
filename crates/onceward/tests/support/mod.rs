//! What the store tests share: how long a run is, real servers, and broken stores that a suite
//! must notice.

#![allow(dead_code, reason = "each test binary uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at what it did not expect")]

#[cfg(feature = "dynamodb")]
pub(crate) mod dynamodb;
pub(crate) mod mutant;
#[cfg(all(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) mod on;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

/// Steps of a differential run: `ONCEWARD_TEST_STEPS`, or few enough for every day.
pub(crate) fn steps() -> usize {
    number(std::env::var("ONCEWARD_TEST_STEPS"), 2_000).try_into().unwrap()
}

/// The seed of random runs: `ONCEWARD_TEST_SEED`, or always the same.
pub(crate) fn seed() -> u64 {
    number(std::env::var("ONCEWARD_TEST_SEED"), 1)
}

fn number<E>(text: Result<String, E>, default: u64) -> u64 {
    text.map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{text:?} in the environment is not a number"))
    })
}
