//! What the measurements service counts (D09), as `onceward_measurements_*`.
//!
//! Rates follow from counters: duplicates of attempts, refusals by their name, hits of looks.

use std::path::{Path, PathBuf};

use onceward_reference::measurements::{Action, Happened, REFUSALS};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    error: &'static str,
}

/// Everything that is counted.
#[derive(Debug)]
pub(super) struct Counted {
    attempts: Family<ActionLabels, Counter>,
    refused: Family<ErrorLabels, Counter>,
    conflict_seconds: Histogram,
    audit_entries: Counter,
    batches: Counter,
    batch_items: Counter,
    cache_hits: Counter,
    cache_misses: Counter,
    compared: Counter,
    different: Counter,
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            attempts: Family::default(),
            refused: Family::default(),
            // From a tenth of a millisecond to some seconds.
            conflict_seconds: Histogram::new(exponential_buckets(0.000_1, 2.5, 14)),
            audit_entries: Counter::default(),
            batches: Counter::default(),
            batch_items: Counter::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            compared: Counter::default(),
            different: Counter::default(),
        }
    }
}

impl Counted {
    /// Counts what happened.
    pub(super) fn note(&self, happened: &Happened) {
        match happened {
            Happened::Attempt { action, error, took } => {
                let labels = ActionLabels { action: action.as_str() };
                self.attempts.get_or_create(&labels).inc();
                self.audit_entries.inc();
                if let Some(error) = *error {
                    self.refused.get_or_create(&ErrorLabels { error }).inc();
                }
                let known = *action == Action::Duplicate || *error == Some("DuplicateMeasurement");
                if known || *error == Some("OutOfOrderTimestamp") {
                    self.conflict_seconds.observe(took.as_secs_f64());
                }
            }
            Happened::Batch { items } => {
                self.batches.inc();
                self.batch_items.inc_by(*items as u64);
            }
            Happened::Looked { hit: true } => {
                self.cache_hits.inc();
            }
            Happened::Looked { hit: false } => {
                self.cache_misses.inc();
            }
            Happened::Compared { same } => {
                self.compared.inc();
                if !same {
                    self.different.inc();
                }
            }
        }
    }

    /// Shows everything; the store's size too, where it is a file.
    pub(super) fn register(&self, registry: &mut Registry, file: Option<PathBuf>) {
        // Rules about rates see nothing of a series before its first case, so all are there.
        for action in Action::ALL {
            drop(self.attempts.get_or_create(&ActionLabels { action: action.as_str() }));
        }
        for error in REFUSALS {
            drop(self.refused.get_or_create(&ErrorLabels { error }));
        }
        let help = "Measurements that were submitted, by what came of them";
        registry.register("measurements_attempts", help, self.attempts.clone());
        let help = "Measurements that were refused, by the name of the refusal";
        registry.register("measurements_refused", help, self.refused.clone());
        let help = "Seconds from the arrival of a duplicate or late measurement to its answer";
        let seconds = self.conflict_seconds.clone();
        registry.register("measurements_conflict_seconds", help, seconds);
        for (name, help, counter) in [
            ("audit_entries", "Audit entries about attempts", &self.audit_entries),
            ("batches", "Batches that came to their end", &self.batches),
            ("batch_items", "Measurements in them", &self.batch_items),
            ("cache_hits", "Request keys found in the replay cache", &self.cache_hits),
            ("cache_misses", "Request keys not found in the replay cache", &self.cache_misses),
            ("cache_compared", "Answers from the cache compared with the store", &self.compared),
            ("cache_differences", "Such answers that the store tells differently", &self.different),
        ] {
            registry.register(format!("measurements_{name}"), help, counter.clone());
        }
        if let Some(file) = file {
            registry.register_collector(Box::new(StoreSize(file)));
        }
    }
}

/// The size of the store's file and of its log, looked up when somebody asks.
#[derive(Debug)]
struct StoreSize(PathBuf);

impl Collector for StoreSize {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        // Where it is, SQLite keeps what was committed last in a file beside.
        let mut log = self.0.clone().into_os_string();
        log.push("-wal");
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
        let bytes = size(&self.0) + size(Path::new(&log));
        let gauge = ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX));
        let help = "Bytes of the store's file and of its write-ahead log";
        let name = "measurements_store_bytes";
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use std::time::Duration;

    #[test]
    fn d09_what_is_in_the_log_counts_as_the_stores() {
        let name = format!("onceward-store-bytes-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let log = file.with_extension("db-wal");
        let file = file.with_extension("db");
        std::fs::write(&file, [0; 7]).unwrap();
        std::fs::write(&log, [0; 5]).unwrap();
        let mut registry = Registry::with_prefix("onceward");
        Counted::default().register(&mut registry, Some(file.clone()));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("onceward_measurements_store_bytes 12\n"), "{text}");
        std::fs::remove_file(file).unwrap();
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn d09_every_series_is_there_before_its_first_case() {
        let mut registry = Registry::with_prefix("onceward");
        Counted::default().register(&mut registry, None);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"onceward_measurements_attempts_total{action="duplicate"} 0"#,
            r#"onceward_measurements_attempts_total{action="skipped"} 0"#,
            r#"onceward_measurements_refused_total{error="DuplicateMeasurement"} 0"#,
            r#"onceward_measurements_refused_total{error="body.too_large"} 0"#,
            r#"onceward_measurements_refused_total{error="idempotency.outcome_unknown"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn d09_what_happened_is_in_the_text() {
        let counted = Counted::default();
        let mut registry = Registry::with_prefix("onceward");
        counted.register(&mut registry, Some("/nowhere".into()));
        let attempt = |action, error| Happened::Attempt { action, error, took: Duration::ZERO };
        counted.note(&attempt(Action::Accepted, None));
        counted.note(&attempt(Action::Duplicate, None));
        counted.note(&attempt(Action::Rejected, Some("OutOfOrderTimestamp")));
        counted.note(&Happened::Batch { items: 7 });
        counted.note(&Happened::Looked { hit: true });
        counted.note(&Happened::Compared { same: false });
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"onceward_measurements_attempts_total{action="accepted"} 1"#,
            r#"onceward_measurements_attempts_total{action="duplicate"} 1"#,
            r#"onceward_measurements_refused_total{error="OutOfOrderTimestamp"} 1"#,
            "onceward_measurements_conflict_seconds_count 2",
            "onceward_measurements_audit_entries_total 3",
            "onceward_measurements_batches_total 1",
            "onceward_measurements_batch_items_total 7",
            "onceward_measurements_cache_hits_total 1",
            "onceward_measurements_cache_misses_total 0",
            "onceward_measurements_cache_differences_total 1",
            "onceward_measurements_store_bytes 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
