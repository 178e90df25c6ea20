//! The relay's knobs (C07), each with its default and its bounds.

use std::time::Duration;

use onceward_core::key::check_part;
use onceward_core::limits::{LimitError, MAX_LEASE_MS, MIN_LEASE_MS, in_range};

use crate::handlers::millis;

/// Events of one batch at most.
const BATCH_MAX: u64 = 10_000;
/// Ids that are remembered at most.
const DEDUP_MAX: u64 = 10_000_000;

/// How a relay works.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// Names the relay: its role and its checkpoint. Default: `relay`.
    pub name: String,
    /// How far back a relay that starts looks for events that its predecessor did not publish.
    /// Default: 600 s.
    pub lookback: Duration,
    /// How many events it looks at there, at most. Default: 50.
    pub lookback_max: usize,
    /// Ids of published events that are kept in memory, so that they are not sent again. Default:
    /// 10,000.
    pub dedup_max: usize,
    /// Ids of published events that are kept in the checkpoint. Default: 2,000.
    pub dedup_checkpoint_max: usize,
    /// Events that are read at once. Default: 200.
    pub batch_size: usize,
    /// Events that are sent before their acknowledgements are waited for. Default: the batch size.
    pub flush_batch_size: Option<usize>,
    /// How long acknowledgements are waited for before events are sent again. Default: 10 s.
    pub flush_timeout: Duration,
    /// How often whoever runs it says how it is doing. Default: 30 s.
    pub metrics_every: Duration,
    /// How often the checkpoint is written at most. Default: 200 ms.
    pub checkpoint_every: Duration,
    /// How long the role holds without renewal. Default: 5 s.
    pub lease: Duration,
    /// Who runs it, for people to read. Default: none.
    pub owner: Option<String>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            name: "relay".into(),
            lookback: Duration::from_secs(600),
            lookback_max: 50,
            dedup_max: 10_000,
            dedup_checkpoint_max: 2_000,
            batch_size: 200,
            flush_batch_size: None,
            flush_timeout: Duration::from_secs(10),
            metrics_every: Duration::from_secs(30),
            checkpoint_every: Duration::from_millis(200),
            lease: Duration::from_secs(5),
            owner: None,
        }
    }
}

impl RelayOptions {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that lies outside its bounds.
    pub fn validate(&self) -> Result<(), LimitError> {
        let name = self.name.as_bytes();
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        if name.is_empty() || name.len() > 64 || !name.iter().all(plain) {
            let bound = "1 to 64 letters, digits, `-`, `_` or `.`: it is part of an object's name";
            return Err(LimitError::new("relay", format!("{:?}", self.name), bound));
        }
        in_range("lookback_max", self.lookback_max as u64, 0, BATCH_MAX)?;
        in_range("dedup_max", self.dedup_max as u64, 0, DEDUP_MAX)?;
        in_range("dedup_checkpoint_max", self.dedup_checkpoint_max as u64, 0, BATCH_MAX)?;
        in_range("batch_size", self.batch_size as u64, 1, BATCH_MAX)?;
        in_range("flush_batch_size", self.flush() as u64, 1, BATCH_MAX)?;
        in_range("lease_ms", millis(self.lease), MIN_LEASE_MS, MAX_LEASE_MS)?;
        for (field, time) in
            [("flush_timeout", self.flush_timeout), ("metrics_every", self.metrics_every)]
        {
            in_range(field, millis(time), 1, MAX_LEASE_MS)?;
        }
        check_part("owner", self.owner.as_deref().unwrap_or_default(), 0)
    }

    /// Events of one flush.
    pub(super) fn flush(&self) -> usize {
        self.flush_batch_size.unwrap_or(self.batch_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c07_defaults_are_the_seeds_and_a_bad_one_is_named() {
        let options = RelayOptions::default();
        assert_eq!((options.lookback, options.lookback_max), (Duration::from_secs(600), 50));
        assert_eq!((options.dedup_max, options.dedup_checkpoint_max), (10_000, 2_000));
        assert_eq!((options.batch_size, options.flush()), (200, 200));
        assert_eq!(options.flush_timeout, Duration::from_secs(10));
        assert_eq!(options.metrics_every, Duration::from_secs(30));
        assert_eq!(options.lease, Duration::from_secs(5));
        options.validate().unwrap();
        let bad = RelayOptions { batch_size: 0, ..options.clone() };
        assert_eq!(bad.validate().unwrap_err().field, "batch_size");
        let bad = RelayOptions { name: "a/b".into(), ..options };
        assert_eq!(bad.validate().unwrap_err().field, "relay");
    }
}
