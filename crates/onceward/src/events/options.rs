//! What an event store is told, with its defaults and bounds.

use std::time::Duration;

use onceward_core::key::check_part;
use onceward_core::limits::{LimitError, MAX_LEASE_MS, MIN_LEASE_MS, in_range};

/// How an append gets its number (C04).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Allocator {
    /// Reserved atomically in the engine's store; an expected number is checked when it is given.
    #[default]
    Atomic,
    /// The caller names the number that it expects, always.
    Caller,
    /// The highest number that is durable and one more. Appends to one aggregate wait for each
    /// other, and it warns.
    Listing,
}

impl Allocator {
    /// Reads a mode: `atomic` (`postgres`), `caller` (`off`), `listing` (`legacy`, `s3`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "atomic" | "postgres" => Some(Self::Atomic),
            "caller" | "off" => Some(Self::Caller),
            "listing" | "legacy" | "s3" => Some(Self::Listing),
            _ => None,
        }
    }

    /// What someone who runs it should know.
    #[must_use]
    pub const fn warning(self) -> Option<&'static str> {
        match self {
            Self::Listing => Some(
                "event numbers are taken from what is listed (EVENT_STORE_SEQUENCE_ALLOCATOR_MODE \
                 listing, legacy or s3): appends to one aggregate wait for each other; use atomic",
            ),
            Self::Atomic | Self::Caller => None,
        }
    }
}

/// What happens when an event id comes again with another payload (C06).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnMismatch {
    /// It is refused with what differs.
    #[default]
    Error,
    /// Nothing is appended, the first result is answered, and it says what differs.
    Warn,
}

impl OnMismatch {
    /// Reads a mode: `error` or `warn`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "error" => Some(Self::Error),
            "warn" => Some(Self::Warn),
            _ => None,
        }
    }
}

/// What an event store is told.
#[derive(Debug, Clone)]
pub struct EventStoreOptions {
    /// Its name in the engine's store: several may share one. Default: `main`.
    pub name: String,
    /// The space of the marks that count aggregates. Default: `spice_event_registry.write_side`.
    pub allocator_space: String,
    /// How an append gets its number. Default: atomic.
    pub allocator: Allocator,
    /// What happens when an event id comes again with another payload. Default: error.
    pub on_mismatch: OnMismatch,
    /// The packer's lease. Which process packs is a courtesy: the segments stay right without it.
    /// Default: 5 s.
    pub lease_ms: u64,
    /// How long an append waits for another process's packer before this one helps itself.
    /// Default: 100 ms.
    pub patience: Duration,
    /// How often this process looks for what others wrote. Default: 50 ms.
    pub poll: Duration,
    /// How long an append waits until it is durable. Default: 30 s.
    pub append_wait: Duration,
    /// Events of one segment at most. Default: 4,096.
    pub segment_events_max: usize,
    /// Bytes of one segment, about. Default: 8 MiB.
    pub segment_bytes_max: usize,
    /// Segments whose places are not noted in the engine's store yet, at most. Default: 256.
    pub unsettled_max: u64,
    /// Bytes of segments that are kept in memory. Default: 64 MiB.
    pub cache_bytes: usize,
}

impl Default for EventStoreOptions {
    fn default() -> Self {
        Self {
            name: "main".into(),
            allocator_space: "spice_event_registry.write_side".into(),
            allocator: Allocator::Atomic,
            on_mismatch: OnMismatch::Error,
            lease_ms: 5_000,
            patience: Duration::from_millis(100),
            poll: Duration::from_millis(50),
            append_wait: Duration::from_secs(30),
            segment_events_max: 4_096,
            segment_bytes_max: 8 * 1024 * 1024,
            unsettled_max: 256,
            cache_bytes: 64 * 1024 * 1024,
        }
    }
}

/// Bytes of an event store's name at most: it is part of several names.
const MAX_NAME_BYTES: usize = 128;

impl EventStoreOptions {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first that is broken.
    pub fn validate(&self) -> Result<(), LimitError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !self.name.chars().all(plain)
        {
            let bound = format!("1 to {MAX_NAME_BYTES} letters, digits, dots, - and _");
            return Err(LimitError::new("name", format!("{:?}", self.name), bound));
        }
        check_part("allocator_space", &self.allocator_space, 1)?;
        in_range("lease_ms", self.lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)?;
        in_range("segment_events_max", self.segment_events_max as u64, 1, 1 << 20)?;
        in_range("segment_bytes_max", self.segment_bytes_max as u64, 1, 1 << 30)?;
        in_range("unsettled_max", self.unsettled_max, 1, 1 << 20)
    }
}
