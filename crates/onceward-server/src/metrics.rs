//! Metrics in Prometheus form, names `onceward_*`: shared by the gateway and the control API.
//!
//! Labels are endpoint, verdict, status and store, the tenant only if asked for; never a key. The
//! number of endpoints and tenants is bounded: what comes after is counted as `other`, so that no
//! caller can make the process remember names without end.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use onceward::engine::{NoteCounts, SweepCounts};
use onceward::store::Store;
use onceward::store::timed::{Ended, Operation, Timed};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::cache::Stats;

/// Distinct endpoints, and distinct tenants, that are counted on their own.
const NAMES_MAX: usize = 1_000;
/// What is counted for those beyond.
const OTHER: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    endpoint: Name,
    verdict: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    endpoint: Name,
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointLabels {
    endpoint: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    store: &'static str,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabels {
    tenant: Name,
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    store: &'static str,
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SweptLabels {
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LostLabels {
    why: &'static str,
}

type Name = Arc<String>;

/// Names as they are counted, looked up for every request.
type Names = RwLock<HashMap<String, Name>>;

/// What an answered request is counted as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    /// The verdict, or a word for how it was refused; `none` where no key was involved.
    pub(crate) verdict: &'static str,
    /// The status that was sent.
    pub(crate) status: u16,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Everything that is counted. Share one.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: RwLock<Registry>,
    store: &'static str,
    per_tenant: bool,
    names: Names,
    tenants: Names,
    requests: Family<RequestLabels, Counter>,
    claims: Family<VerdictLabels, Counter>,
    replays: Family<EndpointLabels, Counter>,
    conflicts: Family<EndpointLabels, Counter>,
    expired: Family<EndpointLabels, Counter>,
    key_errors: Family<EndpointLabels, Counter>,
    unprotected_keys: Counter,
    rate_limited: Family<EndpointLabels, Counter>,
    seconds: Family<EndpointLabels, Histogram, fn() -> Histogram>,
    circuit_refused: Family<EndpointLabels, Counter>,
    store_errors: Family<StoreLabels, Counter>,
    store_seconds: Family<OperationLabels, Histogram, fn() -> Histogram>,
    sweeps: Counter,
    sweep_errors: Counter,
    swept: Family<SweptLabels, Counter>,
    of_tenants: Family<TenantLabels, Counter>,
    in_flight: Gauge,
    waiters: Gauge,
    cache_hits: Counter,
    cache_misses: Counter,
    notes_written: Counter,
    notes_lost: Family<LostLabels, Counter>,
    notes_waiting: Gauge,
    audit_sealed: Counter,
    audit_dropped: Counter,
    shared: Mutex<SharedCounters>,
}

/// What the shared cache counts for itself, taken over when somebody asks.
#[derive(Debug, Default)]
struct SharedCounters {
    last: Stats,
    hits: Counter,
    misses: Counter,
    errors: Counter,
    refused: Counter,
    stale: Counter,
    fills: Counter,
}

/// An endpoint by its name in metrics. Cheap to clone; look it up once per route.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint(EndpointLabels);

impl Endpoint {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.0.endpoint
    }
}

/// A request under way. Dropping it takes it off the gauge.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// From a tenth of a millisecond to some seconds.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.5, 14))
}

impl Metrics {
    /// For this store; with a counter per tenant only if that was asked for.
    pub(crate) fn new(store: &'static str, per_tenant: bool) -> Self {
        let mut metrics = Self {
            registry: RwLock::new(Registry::with_prefix("onceward")),
            store,
            per_tenant,
            names: Names::default(),
            tenants: Names::default(),
            requests: Family::default(),
            claims: Family::default(),
            replays: Family::default(),
            conflicts: Family::default(),
            expired: Family::default(),
            key_errors: Family::default(),
            unprotected_keys: Counter::default(),
            rate_limited: Family::default(),
            seconds: Family::new_with_constructor(latency as fn() -> Histogram),
            circuit_refused: Family::default(),
            store_errors: Family::default(),
            store_seconds: Family::new_with_constructor(latency as fn() -> Histogram),
            sweeps: Counter::default(),
            sweep_errors: Counter::default(),
            swept: Family::default(),
            of_tenants: Family::default(),
            in_flight: Gauge::default(),
            waiters: Gauge::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            notes_written: Counter::default(),
            notes_lost: Family::default(),
            notes_waiting: Gauge::default(),
            audit_sealed: Counter::default(),
            audit_dropped: Counter::default(),
            shared: Mutex::default(),
        };
        metrics.register();
        drop(metrics.store_errors.get_or_create(&StoreLabels { store, code: "store.unavailable" }));
        metrics
    }

    fn register(&mut self) {
        let registry = self.registry.get_mut().unwrap_or_else(PoisonError::into_inner);
        registry.register("requests", "Answered requests", self.requests.clone());
        registry.register("claims", "Claims by verdict", self.claims.clone());
        registry.register("replays", "Answers that were replayed", self.replays.clone());
        let help = "Keys that came with another payload, or lost a race";
        registry.register("conflicts", help, self.conflicts.clone());
        let help = "Requests that ran although their key was used before: it had expired";
        registry.register("expired", help, self.expired.clone());
        let help = "Requests whose key is missing or not valid";
        registry.register("key_errors", help, self.key_errors.clone());
        let help = "Requests with a key that no route protects";
        registry.register("unprotected_keys", help, self.unprotected_keys.clone());
        let help = "Requests refused by the rate limit";
        registry.register("rate_limited", help, self.rate_limited.clone());
        let help = "Seconds from the request's head to the answer's";
        registry.register("request_seconds", help, self.seconds.clone());
        let help = "Requests refused by an open circuit breaker";
        registry.register("circuit_refused", help, self.circuit_refused.clone());
        let help = "Operations that the store gave no answer to";
        registry.register("store_errors", help, self.store_errors.clone());
        let help = "Seconds that an operation of the store took: load is a look-up";
        registry.register("store_seconds", help, self.store_seconds.clone());
        registry.register("sweeps", "Sweeps that came to their end", self.sweeps.clone());
        registry.register("sweep_errors", "Sweeps that broke off", self.sweep_errors.clone());
        registry.register("swept", "Records that sweeps changed", self.swept.clone());
        if self.per_tenant {
            let help = "Answered requests by tenant";
            registry.register("tenant_requests", help, self.of_tenants.clone());
        }
        registry.register("in_flight", "Requests under way", self.in_flight.clone());
        registry.register("waiters", "Who waits for a key or a job", self.waiters.clone());
        registry.register("cache_hits", "Replays from a cache", self.cache_hits.clone());
        registry.register("cache_misses", "Look-ups not in a cache", self.cache_misses.clone());
        let shared = self.shared.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (name, help, counter) in [
            ("redis_hits", "Replays from Redis", &shared.hits),
            ("redis_misses", "Look-ups that Redis had no value for", &shared.misses),
            ("redis_errors", "Questions to Redis without an answer", &shared.errors),
            ("redis_refused", "Values in Redis that were damaged or foreign", &shared.refused),
            ("redis_stale", "Values in Redis that were expired or erased", &shared.stale),
            ("redis_fills", "Outcomes that were kept in Redis", &shared.fills),
        ] {
            registry.register(name, help, counter.clone());
        }
        let help = "Audit entries about replays, conflicts and expiries that were written";
        registry.register("audit_notes", help, self.notes_written.clone());
        let help = "Audit entries about replays, conflicts and expiries that were lost";
        registry.register("audit_notes_lost", help, self.notes_lost.clone());
        let help = "Audit entries in memory: what a crash of the process would lose";
        registry.register("audit_notes_waiting", help, self.notes_waiting.clone());
        let help = "Audit entries that this process sealed";
        registry.register("audit_sealed", help, self.audit_sealed.clone());
        let help = "Audit entries that this process dropped, past their retention";
        registry.register("audit_dropped", help, self.audit_dropped.clone());
    }

    /// Adds what a service counts for itself, under names of its own.
    pub(crate) fn add(&self, register: impl Fn(&mut Registry)) {
        register(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The endpoint of this name: a route's template, never a concrete path. What is counted of it
    /// begins at 0, or whoever looks at increases would miss the first.
    pub(crate) fn endpoint(&self, name: &str) -> Endpoint {
        let (endpoint, is_new) = known(&self.names, name);
        let labels = EndpointLabels { endpoint };
        if is_new {
            for counter in [&self.replays, &self.conflicts, &self.expired, &self.key_errors] {
                drop(counter.get_or_create(&labels));
            }
        }
        Endpoint(labels)
    }

    /// Counts a request as under way until the answer is dropped.
    pub(crate) fn started(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, endpoint: &Endpoint, answered: Answered) {
        let Answered { verdict, status, took } = answered;
        let labels = RequestLabels { endpoint: endpoint.0.endpoint.clone(), verdict, status };
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&endpoint.0).observe(took.as_secs_f64());
        self.came_to(endpoint, verdict);
    }

    /// Counts what a key came to, for those that are looked at by themselves.
    pub(crate) fn came_to(&self, endpoint: &Endpoint, verdict: &str) {
        match verdict {
            "replay" => self.replays.get_or_create(&endpoint.0).inc(),
            "mismatch" | "version_conflict" | "stale" | "idempotency.payload_mismatch" => {
                self.conflicts.get_or_create(&endpoint.0).inc()
            }
            "idempotency.key_invalid" | "idempotency.key_required" => {
                self.key_errors.get_or_create(&endpoint.0).inc()
            }
            _ => 0,
        };
    }

    /// Counts a claim's verdict.
    pub(crate) fn claimed(&self, endpoint: &Endpoint, verdict: &'static str) {
        let labels = VerdictLabels { endpoint: endpoint.0.endpoint.clone(), verdict };
        self.claims.get_or_create(&labels).inc();
    }

    /// Counts a request for its tenant, if that was asked for.
    pub(crate) fn of_tenant(&self, tenant: &str, verdict: &'static str) {
        if self.per_tenant {
            let labels = TenantLabels { tenant: known(&self.tenants, tenant).0, verdict };
            self.of_tenants.get_or_create(&labels).inc();
        }
    }

    /// Counts a request that ran because its key had expired.
    pub(crate) fn expired(&self, endpoint: &Endpoint) {
        self.expired.get_or_create(&endpoint.0).inc();
    }

    /// A store whose operations are measured here.
    pub(crate) fn watching(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let histogram = |operation: Operation| {
            let labels = OperationLabels { store: self.store, operation: operation.as_str() };
            self.store_seconds.get_or_create(&labels).clone()
        };
        let [load, commit, list] = Operation::ALL.map(histogram);
        Timed::new(store, move |ended: Ended<'_>| {
            let histogram = match ended.operation {
                Operation::Load => &load,
                Operation::Commit => &commit,
                Operation::List => &list,
            };
            histogram.observe(ended.took.as_secs_f64());
        })
    }

    /// Takes over what sweeps came to so far.
    pub(crate) fn swept(&self, counts: SweepCounts) {
        self.sweeps.inner().store(counts.ended, Ordering::Relaxed);
        self.sweep_errors.inner().store(counts.failed, Ordering::Relaxed);
        let swept = counts.swept;
        for (what, count) in
            [("expired", swept.expired), ("forgotten", swept.forgotten), ("unknown", swept.unknown)]
        {
            let counter = self.swept.get_or_create(&SweptLabels { what });
            counter.inner().store(count, Ordering::Relaxed);
        }
    }

    /// Counts a request with a key that no route protects.
    pub(crate) fn unprotected_key(&self) {
        self.unprotected_keys.inc();
    }

    /// Counts a request that the rate limit refused.
    pub(crate) fn rate_limited(&self, endpoint: &Endpoint) {
        self.rate_limited.get_or_create(&endpoint.0).inc();
    }

    /// Counts a request that an open circuit breaker refused.
    pub(crate) fn circuit_refused(&self, endpoint: &Endpoint) {
        self.circuit_refused.get_or_create(&endpoint.0).inc();
    }

    /// Counts an operation that the store gave no answer to.
    pub(crate) fn store_failed(&self, code: &'static str) {
        self.store_errors.get_or_create(&StoreLabels { store: self.store, code }).inc();
    }

    /// Counts audit entries that were sealed.
    pub(crate) fn audit_sealed(&self, count: u64) {
        self.audit_sealed.inc_by(count);
    }

    /// Counts audit entries that retention dropped.
    pub(crate) fn audit_dropped(&self, count: u64) {
        self.audit_dropped.inc_by(count);
    }

    /// Counts notes that dead processes lost, at most.
    pub(crate) fn notes_lost_by_crashes(&self, at_most: u64) {
        self.notes_lost.get_or_create(&LostLabels { why: "crash" }).inc_by(at_most);
    }

    /// Counts a look into the replay cache.
    pub(crate) fn cache(&self, hit: bool) {
        if hit {
            self.cache_hits.inc()
        } else {
            self.cache_misses.inc()
        };
    }

    /// Takes over what the shared cache has counted so far.
    pub(crate) fn shared_cache(&self, stats: Stats) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(&mut shared.last, stats);
        for (counter, before, now) in [
            (&shared.hits, last.hits, stats.hits),
            (&shared.misses, last.misses, stats.misses),
            (&shared.errors, last.errors, stats.errors),
            (&shared.refused, last.refused, stats.refused),
            (&shared.stale, last.stale, stats.stale),
            (&shared.fills, last.fills, stats.fills),
        ] {
            counter.inc_by(now.saturating_sub(before));
        }
    }

    /// Everything, as text; `waiting` and `notes` are read off the engine at this moment.
    pub(crate) fn text(&self, waiting: usize, notes: NoteCounts) -> String {
        for (why, lost) in [("overflow", notes.overflowed), ("store", notes.failed)] {
            let counter = self.notes_lost.get_or_create(&LostLabels { why });
            counter.inner().store(lost, Ordering::Relaxed);
        }
        self.notes_lost_by_crashes(0);
        self.notes_written.inner().store(notes.written, Ordering::Relaxed);
        self.notes_waiting.set(i64::try_from(notes.waiting).unwrap_or(i64::MAX));
        self.waiters.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing into a string can't fail.
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        let _ = encode(&mut text, &registry);
        text
    }
}

/// A name as it is counted, and whether it comes for the first time.
fn known(names: &Names, name: &str) -> (Name, bool) {
    if let Some(known) = names.read().unwrap_or_else(PoisonError::into_inner).get(name) {
        return (known.clone(), false);
    }
    let mut names = names.write().unwrap_or_else(PoisonError::into_inner);
    let kept = if names.len() < NAMES_MAX { name } else { OTHER };
    if let Some(known) = names.get(kept) {
        return (known.clone(), false);
    }
    let counted = Arc::new(kept.to_string());
    names.insert(kept.to_string(), counted.clone());
    (counted, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_in_the_text() {
        let metrics = Metrics::new("sqlite", false);
        let endpoint = metrics.endpoint("POST /v1/claims");
        let took = Duration::from_millis(3);
        metrics.answered(&endpoint, Answered { verdict: "replay", status: 200, took });
        metrics.claimed(&endpoint, "replay");
        metrics.store_failed("store.unavailable");
        metrics.circuit_refused(&endpoint);
        metrics.rate_limited(&endpoint);
        metrics.cache(true);
        metrics.cache(false);
        metrics.cache(true);
        metrics.of_tenant("acme", "replay");
        let under_way = metrics.started();
        metrics.notes_lost_by_crashes(6);
        let notes = NoteCounts { written: 5, waiting: 2, overflowed: 3, failed: 4 };
        let text = metrics.text(7, notes);
        let labels = r#"endpoint="POST /v1/claims""#;
        for line in [
            format!(r#"onceward_requests_total{{{labels},verdict="replay",status="200"}} 1"#),
            format!(r#"onceward_claims_total{{{labels},verdict="replay"}} 1"#),
            format!("onceward_replays_total{{{labels}}} 1"),
            format!("onceward_request_seconds_count{{{labels}}} 1"),
            format!("onceward_circuit_refused_total{{{labels}}} 1"),
            r#"onceward_store_errors_total{store="sqlite",code="store.unavailable"} 1"#.into(),
            format!("onceward_rate_limited_total{{{labels}}} 1"),
            "onceward_cache_hits_total 2".into(),
            "onceward_cache_misses_total 1".into(),
            "onceward_in_flight 1".into(),
            "onceward_waiters 7".into(),
            "onceward_audit_notes_total 5".into(),
            "onceward_audit_notes_waiting 2".into(),
            r#"onceward_audit_notes_lost_total{why="overflow"} 3"#.into(),
            r#"onceward_audit_notes_lost_total{why="store"} 4"#.into(),
            r#"onceward_audit_notes_lost_total{why="crash"} 6"#.into(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("acme"), "tenants only when asked for");
        drop(under_way);
        assert!(metrics.text(0, NoteCounts::default()).contains("onceward_in_flight 0"));
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let metrics = Metrics::new("memory", true);
        for n in 0..2 * NAMES_MAX {
            metrics.of_tenant(&format!("t{n}"), "run");
        }
        let text = metrics.text(0, NoteCounts::default());
        assert_eq!(text.matches("onceward_tenant_requests_total{").count(), NAMES_MAX + 1);
        assert!(text.contains(r#"tenant="other",verdict="run"} 1000"#));
        assert_eq!(metrics.endpoint("a").name(), "a");
    }
}
