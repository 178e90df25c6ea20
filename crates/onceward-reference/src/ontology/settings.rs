//! The service's settings, under the names and with the defaults that its operators know (C11).
//!
//! Nothing here reads the environment: whoever runs the service hands over a way to look a variable
//! up. A value that makes no sense is an error that names its variable.

use std::path::PathBuf;
use std::time::Duration;

use onceward::events::{Allocator, EventStoreOptions, OnMismatch};
use onceward::handlers::{HandlerOptions, OnRegistryDown};
use onceward::relay::RelayOptions;

/// Bounds of numbers that count something.
const COUNT: (u64, u64) = (1, 10_000);
/// Bounds of sizes that may be nothing.
const SIZE: (u64, u64) = (0, 10_000);
/// Bounds of the ids that a relay remembers in memory.
const DEDUP: (u64, u64) = (0, 10_000_000);
/// Bounds of times: a day at most.
const SECONDS: (u64, u64) = (1, 86_400);
/// Bounds of attempts.
const ATTEMPTS: (u64, u64) = (1, 1_000);

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {value:?}, but must be {bound}")]
pub struct SettingError {
    /// Which variable.
    pub variable: &'static str,
    /// What it says.
    pub value: String,
    /// What it must be.
    pub bound: String,
}

/// All settings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether handled events are registered. Default: true.
    pub registry: bool,
    /// Lease of an attempt. Default: 900 s.
    pub lease: Duration,
    /// Heartbeat of an attempt. Default: 30 s.
    pub heartbeat: Duration,
    /// Who works, for people to read. Default: none.
    pub owner: Option<String>,
    /// What consumers do while the registry gives no answer. Default: pause.
    pub on_registry_down: OnRegistryDown,
    /// Where workers put events aside under `dead_letter`, a file each; whoever runs them says so.
    /// Default: none.
    pub spool_folder: Option<PathBuf>,
    /// Attempts of the instance worker. Default: 5.
    pub instance_attempts: u32,
    /// Attempts of the ontology worker. Default: 5.
    pub ontology_attempts: u32,
    /// Attempts of the projection worker. Default: 5.
    pub projection_attempts: u32,
    /// The relay's knobs.
    pub relay: RelayOptions,
    /// What happens when an event id comes again with another payload. Default: error.
    pub on_mismatch: OnMismatch,
    /// How events get their numbers. Default: atomic.
    pub allocator: Allocator,
    /// Where the allocator's rows are: schema and prefix. Default:
    /// `spice_event_registry.write_side`.
    pub allocator_space: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            registry: true,
            lease: Duration::from_secs(900),
            heartbeat: Duration::from_secs(30),
            owner: None,
            on_registry_down: OnRegistryDown::Pause,
            spool_folder: None,
            instance_attempts: 5,
            ontology_attempts: 5,
            projection_attempts: 5,
            relay: RelayOptions::default(),
            on_mismatch: OnMismatch::Error,
            allocator: Allocator::Atomic,
            allocator_space: "spice_event_registry.write_side".into(),
        }
    }
}

impl Settings {
    /// Every variable that is read.
    pub const VARIABLES: [&'static str; 20] = [
        "ENABLE_PROCESSED_EVENT_REGISTRY",
        "PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS",
        "PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS",
        "PROCESSED_EVENT_OWNER",
        "PROCESSED_EVENT_ON_REGISTRY_DOWN",
        "INSTANCE_WORKER_MAX_RETRY_ATTEMPTS",
        "ONTOLOGY_WORKER_MAX_RETRY_ATTEMPTS",
        "PROJECTION_WORKER_MAX_RETRIES",
        "EVENT_PUBLISHER_LOOKBACK_SECONDS",
        "EVENT_PUBLISHER_LOOKBACK_MAX_KEYS",
        "EVENT_PUBLISHER_DEDUP_MAX_EVENTS",
        "EVENT_PUBLISHER_DEDUP_CHECKPOINT_MAX_EVENTS",
        "EVENT_PUBLISHER_BATCH_SIZE",
        "EVENT_PUBLISHER_KAFKA_FLUSH_BATCH_SIZE",
        "EVENT_PUBLISHER_KAFKA_FLUSH_TIMEOUT_SECONDS",
        "EVENT_PUBLISHER_METRICS_LOG_INTERVAL_SECONDS",
        "EVENT_STORE_IDEMPOTENCY_MISMATCH_MODE",
        "EVENT_STORE_SEQUENCE_ALLOCATOR_MODE",
        "EVENT_STORE_SEQUENCE_SCHEMA",
        "EVENT_STORE_SEQUENCE_HANDLER_PREFIX",
    ];

    /// Reads the settings.
    ///
    /// # Errors
    /// The first variable that makes no sense.
    pub fn read(look: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let read = Reader { look: &look };
        let mut settings = Self::default();
        settings.registry = read.flag("ENABLE_PROCESSED_EVENT_REGISTRY", settings.registry)?;
        read.seconds("PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS", SECONDS, &mut settings.lease)?;
        let heartbeat = "PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS";
        read.seconds(heartbeat, SECONDS, &mut settings.heartbeat)?;
        if settings.heartbeat * 2 > settings.lease {
            let bound = format!(
                "at most half of PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS, {}",
                settings.lease.as_secs() / 2
            );
            let value = settings.heartbeat.as_secs().to_string();
            return Err(SettingError { variable: heartbeat, value, bound });
        }
        settings.owner = read.text("PROCESSED_EVENT_OWNER", 1..=256)?;
        let words = "pause, fail or dead_letter";
        if let Some(mode) =
            read.word("PROCESSED_EVENT_ON_REGISTRY_DOWN", words, OnRegistryDown::parse)?
        {
            settings.on_registry_down = mode;
        }
        for (variable, attempts) in [
            ("INSTANCE_WORKER_MAX_RETRY_ATTEMPTS", &mut settings.instance_attempts),
            ("ONTOLOGY_WORKER_MAX_RETRY_ATTEMPTS", &mut settings.ontology_attempts),
            ("PROJECTION_WORKER_MAX_RETRIES", &mut settings.projection_attempts),
        ] {
            if let Some(number) = read.number(variable, ATTEMPTS)? {
                *attempts = u32::try_from(number).unwrap_or(u32::MAX);
            }
        }
        settings.read_relay(&read)?;
        settings.read_event_store(&read)?;
        settings.relay.owner.clone_from(&settings.owner);
        Ok(settings)
    }

    fn read_relay(&mut self, read: &Reader<'_>) -> Result<(), SettingError> {
        let relay = &mut self.relay;
        read.seconds("EVENT_PUBLISHER_LOOKBACK_SECONDS", (0, SECONDS.1), &mut relay.lookback)?;
        read.size("EVENT_PUBLISHER_LOOKBACK_MAX_KEYS", SIZE, &mut relay.lookback_max)?;
        read.size("EVENT_PUBLISHER_DEDUP_MAX_EVENTS", DEDUP, &mut relay.dedup_max)?;
        let kept = "EVENT_PUBLISHER_DEDUP_CHECKPOINT_MAX_EVENTS";
        read.size(kept, SIZE, &mut relay.dedup_checkpoint_max)?;
        read.size("EVENT_PUBLISHER_BATCH_SIZE", COUNT, &mut relay.batch_size)?;
        let flush = read.number("EVENT_PUBLISHER_KAFKA_FLUSH_BATCH_SIZE", COUNT)?;
        relay.flush_batch_size = flush.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let timeout = "EVENT_PUBLISHER_KAFKA_FLUSH_TIMEOUT_SECONDS";
        read.seconds(timeout, SECONDS, &mut relay.flush_timeout)?;
        let metrics = "EVENT_PUBLISHER_METRICS_LOG_INTERVAL_SECONDS";
        read.seconds(metrics, SECONDS, &mut relay.metrics_every)
    }

    fn read_event_store(&mut self, read: &Reader<'_>) -> Result<(), SettingError> {
        let mismatch = "EVENT_STORE_IDEMPOTENCY_MISMATCH_MODE";
        if let Some(mode) = read.word(mismatch, "error or warn", OnMismatch::parse)? {
            self.on_mismatch = mode;
        }
        let words = "postgres or atomic, off or caller, legacy, s3 or listing";
        let allocator = "EVENT_STORE_SEQUENCE_ALLOCATOR_MODE";
        if let Some(mode) = read.word(allocator, words, Allocator::parse)? {
            self.allocator = mode;
        }
        let schema = read.text("EVENT_STORE_SEQUENCE_SCHEMA", 1..=128)?;
        let prefix = read.text("EVENT_STORE_SEQUENCE_HANDLER_PREFIX", 1..=128)?;
        let schema = schema.as_deref().unwrap_or("spice_event_registry");
        let prefix = prefix.as_deref().unwrap_or("write_side");
        self.allocator_space = format!("{schema}.{prefix}");
        Ok(())
    }

    /// What the event store is told.
    #[must_use]
    pub fn event_store(&self) -> EventStoreOptions {
        EventStoreOptions {
            name: "ontology".into(),
            allocator: self.allocator,
            allocator_space: self.allocator_space.clone(),
            on_mismatch: self.on_mismatch,
            ..EventStoreOptions::default()
        }
    }

    /// A handler's policy.
    #[must_use]
    pub fn handler(&self, max_attempts: u32) -> HandlerOptions {
        HandlerOptions {
            registry: self.registry,
            lease: self.lease,
            heartbeat: self.heartbeat,
            owner: self.owner.clone(),
            max_attempts,
            ..HandlerOptions::default()
        }
    }

    /// What someone who runs it should know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.registry {
            warnings.push(
                "the registry of processed events is switched off \
                 (ENABLE_PROCESSED_EVENT_REGISTRY): handlers run at least once, and only the \
                 order of an aggregate's numbers keeps duplicates out"
                    .into(),
            );
        }
        warnings.extend(self.allocator.warning().map(str::to_owned));
        warnings
    }
}

struct Reader<'l> {
    look: &'l dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn flag(&self, variable: &'static str, default: bool) -> Result<bool, SettingError> {
        let parse = |text: &str| match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        };
        Ok(self.word(variable, "true or false", parse)?.unwrap_or(default))
    }

    fn word<T>(
        &self,
        variable: &'static str,
        words: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingError> {
        let Some(value) = (self.look)(variable) else { return Ok(None) };
        match parse(value.trim()) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(SettingError { variable, value, bound: words.into() }),
        }
    }

    fn text(
        &self,
        variable: &'static str,
        bytes: std::ops::RangeInclusive<usize>,
    ) -> Result<Option<String>, SettingError> {
        let words = format!("{} to {} bytes", bytes.start(), bytes.end());
        self.word(variable, &words, |text| bytes.contains(&text.len()).then(|| text.to_owned()))
    }

    fn number(
        &self,
        variable: &'static str,
        (low, high): (u64, u64),
    ) -> Result<Option<u64>, SettingError> {
        let words = format!("a whole number from {low} to {high}");
        let within = |number: &u64| (low..=high).contains(number);
        self.word(variable, &words, |text| text.parse().ok().filter(within))
    }

    fn size(
        &self,
        variable: &'static str,
        bounds: (u64, u64),
        into: &mut usize,
    ) -> Result<(), SettingError> {
        if let Some(number) = self.number(variable, bounds)? {
            *into = usize::try_from(number).unwrap_or(usize::MAX);
        }
        Ok(())
    }

    fn seconds(
        &self,
        variable: &'static str,
        bounds: (u64, u64),
        into: &mut Duration,
    ) -> Result<(), SettingError> {
        if let Some(number) = self.number(variable, bounds)? {
            *into = Duration::from_secs(number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Settings, SettingError> {
        Settings::read(|name| {
            set.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn c11_without_variables_the_defaults_hold() {
        let settings = read(&[]).unwrap();
        assert!(settings.registry && settings.warnings().is_empty());
        assert_eq!(settings.lease, Duration::from_secs(900));
        assert_eq!(settings.heartbeat, Duration::from_secs(30));
        assert_eq!(settings.owner, None);
        let attempts = (settings.instance_attempts, settings.ontology_attempts);
        assert_eq!((attempts, settings.projection_attempts), ((5, 5), 5));
        assert_eq!(settings.relay.batch_size, 200);
        assert_eq!(settings.relay.flush_batch_size, None);
        assert_eq!(settings.on_mismatch, OnMismatch::Error);
        assert_eq!(settings.allocator, Allocator::Atomic);
        assert_eq!(settings.allocator_space, "spice_event_registry.write_side");
    }

    #[test]
    fn c11_every_variable_is_read() {
        let settings = read(&[
            ("ENABLE_PROCESSED_EVENT_REGISTRY", "false"),
            ("PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS", "60"),
            ("PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS", "7"),
            ("PROCESSED_EVENT_OWNER", "me"),
            ("PROCESSED_EVENT_ON_REGISTRY_DOWN", "fail"),
            ("INSTANCE_WORKER_MAX_RETRY_ATTEMPTS", "1"),
            ("ONTOLOGY_WORKER_MAX_RETRY_ATTEMPTS", "2"),
            ("PROJECTION_WORKER_MAX_RETRIES", "3"),
            ("EVENT_PUBLISHER_LOOKBACK_SECONDS", "4"),
            ("EVENT_PUBLISHER_LOOKBACK_MAX_KEYS", "5"),
            ("EVENT_PUBLISHER_DEDUP_MAX_EVENTS", "6"),
            ("EVENT_PUBLISHER_DEDUP_CHECKPOINT_MAX_EVENTS", "7"),
            ("EVENT_PUBLISHER_BATCH_SIZE", "8"),
            ("EVENT_PUBLISHER_KAFKA_FLUSH_BATCH_SIZE", "9"),
            ("EVENT_PUBLISHER_KAFKA_FLUSH_TIMEOUT_SECONDS", "10"),
            ("EVENT_PUBLISHER_METRICS_LOG_INTERVAL_SECONDS", "11"),
            ("EVENT_STORE_IDEMPOTENCY_MISMATCH_MODE", "warn"),
            ("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE", "s3"),
            ("EVENT_STORE_SEQUENCE_SCHEMA", "mine"),
            ("EVENT_STORE_SEQUENCE_HANDLER_PREFIX", "side"),
        ])
        .unwrap();
        assert_eq!(settings.warnings().len(), 2);
        assert_eq!((settings.lease.as_secs(), settings.heartbeat.as_secs()), (60, 7));
        assert_eq!(settings.relay.owner.as_deref(), Some("me"));
        assert_eq!(settings.on_registry_down, OnRegistryDown::Fail);
        let attempts = (settings.instance_attempts, settings.ontology_attempts);
        assert_eq!((attempts, settings.projection_attempts), ((1, 2), 3));
        let relay = &settings.relay;
        assert_eq!((relay.lookback.as_secs(), relay.lookback_max), (4, 5));
        assert_eq!((relay.dedup_max, relay.dedup_checkpoint_max), (6, 7));
        assert_eq!((relay.batch_size, relay.flush_batch_size), (8, Some(9)));
        assert_eq!((relay.flush_timeout.as_secs(), relay.metrics_every.as_secs()), (10, 11));
        assert_eq!(settings.on_mismatch, OnMismatch::Warn);
        assert_eq!(settings.allocator, Allocator::Listing);
        assert_eq!(settings.event_store().allocator_space, "mine.side");
    }

    #[test]
    fn c11_a_value_that_makes_no_sense_is_an_error_that_names_its_variable() {
        for variable in Settings::VARIABLES {
            for value in ["", "nonsense \u{0}".repeat(40).as_str()] {
                let error = read(&[(variable, value)]).unwrap_err();
                assert_eq!(error.variable, variable);
                assert!(error.to_string().contains(variable), "{error}");
            }
        }
        let late = [("PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS", "451")];
        let error = read(&late).unwrap_err();
        assert_eq!(error.variable, "PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS");
    }
}
