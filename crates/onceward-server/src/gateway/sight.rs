//! What is counted and logged of a request: how it ended, how long it took, never what it carried.
//!
//! The layer says of every protected request what came of it ([`Served`]). A request that it only
//! passed on is counted, under one name if no route is its own, and logged only when its upstream
//! failed it; but of a key that no route protects each path is told once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::{HeaderMap, Response};
use onceward::http::{Served, UnprotectedKey, names};

use super::trouble::Trouble;
use crate::logs::{Access, access};
use crate::metrics::{Answered, Endpoint, InFlight, Metrics};

/// What requests that no route is for are counted and logged under.
const UNPROTECTED: &str = "unprotected";
/// Paths that are remembered: nobody fills memory or log with made-up ones.
const PATHS_TOLD_MAX: usize = 1_000;

/// The paths whose unprotected keys were told of.
#[derive(Default)]
struct Told(Mutex<HashSet<String>>);

impl Told {
    /// Counts a key that no route protects, and tells of each path once.
    fn tell(&self, metrics: &Metrics, key: &UnprotectedKey) {
        metrics.unprotected_key();
        let endpoint = &key.endpoint;
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= PATHS_TOLD_MAX || !told.insert(endpoint.clone()) {
            return;
        }
        let is_last = told.len() == PATHS_TOLD_MAX;
        drop(told);
        tracing::warn!(endpoint, "a key came where no route protects: a retry runs again there");
        if is_last {
            let further = "onceward_unprotected_keys_total counts further ones";
            tracing::warn!("keys came to {PATHS_TOLD_MAX} paths that no route protects; {further}");
        }
    }
}

/// Counts and logs requests.
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    passed: Endpoint,
    hint: Arc<Hint>,
    told: Arc<Told>,
}

/// What is said once, when a request was refused because nobody could be told from it.
#[derive(Default)]
struct Hint {
    words: Option<&'static str>,
    told: AtomicBool,
}

impl Hint {
    fn tell(&self) {
        if let Some(words) = self.words
            && !self.told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{words}");
        }
    }
}

/// A request under way.
pub(crate) struct Seen {
    metrics: Arc<Metrics>,
    passed: Endpoint,
    hint: Arc<Hint>,
    told: Arc<Told>,
    started: Instant,
    correlation_id: Option<String>,
    trouble: Trouble,
    _in_flight: InFlight,
}

impl Watch {
    /// Over these metrics.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        let passed = metrics.endpoint(UNPROTECTED);
        Self { metrics, passed, hint: Arc::default(), told: Arc::default() }
    }

    /// The same, saying this once when nobody could be told from a request.
    pub(crate) fn hinting(self, words: &'static str) -> Self {
        Self { hint: Arc::new(Hint { words: Some(words), ..Hint::default() }), ..self }
    }

    /// A request begins.
    pub(crate) fn begin(&self, headers: &HeaderMap) -> Seen {
        let id = headers.get(names::X_CORRELATION_ID).and_then(|id| id.to_str().ok());
        Seen {
            metrics: self.metrics.clone(),
            passed: self.passed.clone(),
            hint: self.hint.clone(),
            told: self.told.clone(),
            started: Instant::now(),
            correlation_id: id.map(str::to_string),
            trouble: Trouble::default(),
            _in_flight: self.metrics.started(),
        }
    }
}

impl Seen {
    /// Where whoever carries it notes what goes wrong.
    pub(crate) fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    /// Its answer is about to be sent.
    pub(crate) fn answered<B>(self, response: &Response<B>) {
        if let Some(key) = response.extensions().get() {
            self.told.tell(&self.metrics, key);
        }
        let (status, took) = (response.status().as_u16(), self.started.elapsed());
        let request_id = response.headers().get(names::X_REQUEST_ID);
        self.trouble.answered(request_id);
        let request_id = request_id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        let line = Access {
            tenant: None,
            key_hash: None,
            endpoint: UNPROTECTED,
            status,
            replayed: false,
            verdict: if status == 504 { "upstream.timeout" } else { "upstream.failed" },
            reason: None,
            cause: self.trouble.cause().filter(|_| matches!(status, 502 | 504)),
            request_id,
            correlation_id: self.correlation_id.as_deref(),
            took,
        };
        let Some(served) = response.extensions().get::<Served>() else {
            if line.cause.is_some() {
                access(&line);
            }
            let answered = Answered { verdict: "none", status, took };
            return self.metrics.answered(&self.passed, answered);
        };
        let endpoint = self.metrics.endpoint(&served.endpoint);
        let verdict = served.verdict;
        self.metrics.answered(&endpoint, Answered { verdict, status, took });
        match verdict {
            "rate.limited" => self.metrics.rate_limited(&endpoint),
            "circuit.open" => self.metrics.circuit_refused(&endpoint),
            "store.unavailable" => self.metrics.store_failed("store.unavailable"),
            "store.corrupt" => {
                self.metrics.store_failed("store.corrupt");
                let (endpoint, key_hash) = (&*served.endpoint, served.key_hash.as_deref());
                tracing::error!(endpoint, key_hash, "what is stored for a key is damaged");
            }
            "auth.required" if served.reason.is_none() => self.hint.tell(),
            _ => {}
        }
        if served.expired {
            self.metrics.expired(&endpoint);
        }
        if verdict == "none" {
            // No key was involved: nothing to tell of but a failure, and there may be very many.
            if line.cause.is_some() {
                access(&Access { endpoint: &served.endpoint, ..line });
            }
            return;
        }
        if let Some(hit) = served.cached {
            self.metrics.cache(hit);
        }
        if let Some(tenant) = &served.tenant {
            self.metrics.of_tenant(tenant, verdict);
        }
        access(&Access {
            tenant: served.tenant.as_deref(),
            key_hash: served.key_hash.as_deref(),
            endpoint: &served.endpoint,
            replayed: verdict == "replay",
            verdict,
            reason: served.reason,
            ..line
        });
    }
}
