//! What a handler's policy is made of, each knob with its default and its bounds.

use std::time::Duration;

use onceward_core::key::check_part;
use onceward_core::limits::{
    LimitError, MAX_ATTEMPTS, MAX_LEASE_MS, MAX_RETAIN_MS, MIN_LEASE_MS, in_range,
};
use onceward_core::record::{OnAbandoned, OnDead, Terms};
use onceward_core::retry::{Backoff, JOB_BACKOFF};

/// Bytes of a handler's name.
pub const MAX_HANDLER_BYTES: usize = 128;

/// The order in which a handler takes the events of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// One after the other, without gaps: an event waits for the one before it.
    #[default]
    Next,
    /// Newest wins: an event is taken when its number is above the last one, and what comes later
    /// with a lower number is passed over. Only for sinks that take the number as their own version
    /// and for events that carry the whole state: a plain effect of a passed event never happens.
    Above,
}

/// What a consumer does while the registry gives no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnRegistryDown {
    /// Waits until it is back.
    #[default]
    Pause,
    /// Ends with the error.
    Fail,
    /// Puts events aside in a spool file and goes on reading for as long as the consumer's role
    /// lasts; then it pauses, and what it has not put aside stays in the log. All is taken in once
    /// the registry is back.
    DeadLetter,
}

impl OnRegistryDown {
    /// The word in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Fail => "fail",
            Self::DeadLetter => "dead_letter",
        }
    }

    /// Reads [`OnRegistryDown::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pause, Self::Fail, Self::DeadLetter].into_iter().find(|one| one.as_str() == text)
    }
}

/// A handler's policy.
#[derive(Debug, Clone)]
pub struct HandlerOptions {
    /// The order within an aggregate. Default: next.
    pub order: Order,
    /// Whether each event is claimed and recorded. Without, a handler runs at least once and only
    /// the order keeps duplicates out. Default: true.
    pub registry: bool,
    /// How long an attempt at an effect elsewhere holds without a heartbeat. Default: 900 s.
    pub lease: Duration,
    /// How often a running attempt renews its lease. Default: 30 s.
    pub heartbeat: Duration,
    /// Attempts before an event is a dead letter. Default: 5.
    pub max_attempts: u32,
    /// How long to wait between attempts. Default: 1 s, doubling, with jitter.
    pub backoff: Backoff,
    /// What the aggregate does after a dead letter: goes on, or waits for a hand. Default: skip.
    pub on_dead: OnDead,
    /// How long a handled event is remembered by its id; its number is remembered for ever.
    /// Default: 7 days.
    pub retain: Duration,
    /// Who runs, for people to read. Default: the process id.
    pub owner: Option<String>,
    /// Whether an effect in our store leaves an audit entry in its commit. A projection leaves
    /// none: the events themselves tell it all. Failures, dead letters and decisions by hand
    /// always do. Default: true.
    pub audited: bool,
}

impl Default for HandlerOptions {
    fn default() -> Self {
        Self {
            order: Order::Next,
            registry: true,
            lease: Duration::from_secs(900),
            heartbeat: Duration::from_secs(30),
            max_attempts: 5,
            backoff: JOB_BACKOFF,
            on_dead: OnDead::Skip,
            retain: Duration::from_secs(7 * 86_400),
            owner: None,
            audited: true,
        }
    }
}

impl HandlerOptions {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that lies outside its bounds.
    pub fn validate(&self) -> Result<(), LimitError> {
        in_range("lease_ms", millis(self.lease), MIN_LEASE_MS, MAX_LEASE_MS)?;
        in_range("retain_ms", millis(self.retain), 1, MAX_RETAIN_MS)?;
        in_range("max_attempts", self.max_attempts.into(), 1, MAX_ATTEMPTS.into())?;
        check_part("owner", self.owner.as_deref().unwrap_or_default(), 0)?;
        let half = millis(self.lease) / 2;
        if self.heartbeat.is_zero() || millis(self.heartbeat) > half {
            let bound = format!("above 0 and at most half of the lease, {half} ms");
            return Err(LimitError::new("heartbeat_ms", millis(self.heartbeat), bound));
        }
        Ok(())
    }

    /// The terms of its records.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            lease_ms: millis(self.lease),
            on_abandoned: OnAbandoned::Rerun,
            retain_ms: millis(self.retain),
            remember_ms: 0,
            max_attempts: self.max_attempts,
            on_dead: self.on_dead,
        }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c08_defaults_are_the_contracts_and_bounds_are_named() {
        let options = HandlerOptions::default();
        assert_eq!(options.lease, Duration::from_secs(900));
        assert_eq!(options.heartbeat, Duration::from_secs(30));
        assert_eq!((options.max_attempts, options.on_dead), (5, OnDead::Skip));
        assert!(options.registry && options.validate().is_ok());
        let late = HandlerOptions { heartbeat: Duration::from_secs(451), ..options.clone() };
        assert_eq!(late.validate().unwrap_err().field, "heartbeat_ms");
        let none = HandlerOptions { max_attempts: 0, ..options };
        assert_eq!(none.validate().unwrap_err().field, "max_attempts");
    }

    #[test]
    fn c10_the_words_for_a_registry_that_is_down_are_read_back() {
        for one in [OnRegistryDown::Pause, OnRegistryDown::Fail, OnRegistryDown::DeadLetter] {
            assert_eq!(OnRegistryDown::parse(one.as_str()), Some(one));
        }
        assert_eq!(OnRegistryDown::parse("retry"), None);
    }
}
