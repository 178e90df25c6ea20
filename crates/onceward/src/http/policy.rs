//! What a route allows: every knob of the HTTP layer, with its default.
//!
//! A policy is data. It is checked once, when the layer is built, and what a record needs of it
//! travels with the record as its terms.

use std::fmt;
use std::sync::Arc;

use http::HeaderName;
use onceward_core::diff::default_mask;
use onceward_core::fingerprint::FingerprintPolicy;
use onceward_core::key::Key;
use onceward_core::limits::{LimitError, in_range};
use onceward_core::outcome_policy::{Ending, Statuses};
use onceward_core::payload::KeepPayload;
use onceward_core::record::{OnAbandoned, Terms};

use super::authorize::Authorize;
use super::breaker::BreakerPolicy;
use super::dialect::Dialect;
use super::outcome::may_store;
use super::rate::RateLimit;

/// Longest time an expired key is remembered by default: seven days.
const REMEMBER_MS_MAX: u64 = 7 * 86_400_000;
/// Largest body that may be buffered, whatever a policy says.
const BUFFER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Largest response that can be stored: it has to fit into a batch with everything beside it.
const STORED_BYTES_MAX: u64 = 1024 * 1024 + 512 * 1024;
/// Longest time a duplicate may wait.
const WAIT_MS_MAX: u64 = 60_000;

/// What happens when a request brings no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKey {
    /// It is refused.
    #[default]
    Require,
    /// A key is derived from tenant, route and payload.
    Derive,
    /// It is processed without protection.
    Allow,
}

/// What `If-Match` means to the layer. Matching itself is the handler's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfMatch {
    /// It is not looked at.
    Off,
    /// It may be there.
    #[default]
    Allow,
    /// It must be there.
    Require,
}

/// How many commits a first execution takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Commits {
    /// A claim before the handler and a completion after it: for effects anywhere.
    #[default]
    Two,
    /// One, after the handler: only for handlers whose whole effect is what they hand back as
    /// [`Writes`](super::Writes). Of two duplicates at once both may compute, and one commits.
    One,
}

/// Whether a route is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Yes.
    #[default]
    Enforce,
    /// No; what would have been done is reported, from memory of its own.
    Shadow,
    /// No.
    Off,
}

/// What a route allows.
#[derive(Debug, Clone)]
pub struct Policy {
    /// How verdicts are said. Default: standard.
    pub dialect: Dialect,
    /// Whether the route is protected. Default: enforce.
    pub mode: Mode,
    /// What happens without a key. Default: require.
    pub missing_key: MissingKey,
    /// Whether keys of two callers of one tenant are apart. Default: true.
    pub per_caller: bool,
    /// What counts as the same payload. Default: JSON as JSON, arrays ordered, nothing ignored.
    pub fingerprint: FingerprintPolicy,
    /// How long a success is kept. Default: 24 h.
    pub retain_ms: u64,
    /// How long a final error is kept. Default: 4 h.
    pub retain_errors_ms: u64,
    /// How long an expired key is still known. Default: as long as `retain_ms`, at most 7 d.
    pub remember_ms: Option<u64>,
    /// How long a duplicate waits for a running request. Default: 2 s.
    pub wait_ms: u64,
    /// How long a claim holds without renewal; it is renewed before half of it. Default: 30 s.
    pub lease_ms: u64,
    /// What happens when nobody knows how an attempt ended: its lease ran out, no whole answer
    /// came, or one of 408 or 5xx. Default: rerun.
    pub on_abandoned: OnAbandoned,
    /// How many commits a first execution takes. Default: two.
    pub commits: Commits,
    /// What `If-Match` means. Default: allow.
    pub if_match: IfMatch,
    /// Whether `W/"x"` and `"x-gzip"` count as the tag `"x"` that we minted: for services behind a
    /// proxy that compresses. Default: false.
    pub altered_etags: bool,
    /// Largest request body. Default: 8 MiB.
    pub max_request_bytes: u64,
    /// Largest response body that is stored. Default: 1 MiB.
    pub max_stored_bytes: u64,
    /// Response headers that are stored beside the fixed ones. Default: none.
    pub store_headers: Vec<HeaderName>,
    /// What is kept of a payload, to explain a mismatch with; of one over 1 MiB never more than
    /// hashes. Default: a keyed hash per leaf.
    pub keep_payload: KeepPayload,
    /// Statuses that are stored or released against the rule. Default: none; where no routes are
    /// written, 404 and 405 are released unless they are named here.
    pub statuses: Statuses,
    /// Fields whose values are never shown. Default: password, token, secret, card_number, cvc.
    pub mask: Vec<String>,
    /// How often a caller may ask. Default: as often as it likes.
    pub rate_limit: Option<RateLimit>,
    /// When failures in a row stop requests for a while. Default: never.
    pub breaker: Option<BreakerPolicy>,
    /// Who is asked before a claim and before a replay. Default: whom the door asks, if anybody.
    pub authorize: Option<Authorize>,
    /// How a permit is written for a handler that completes the request itself, in its own
    /// transaction. What is recorded then is the answer. Default: the layer completes.
    pub permit_text: Option<PermitText>,
}

type WritePermit = dyn Fn(&Key, u64, &Statuses) -> String + Send + Sync;

/// Writes the permit of a key and a fence, with the statuses that its route moves, as the text that
/// a handler gets. Cheap to clone.
#[derive(Clone)]
pub struct PermitText(pub Arc<WritePermit>);

impl fmt::Debug for PermitText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitText")
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            dialect: Dialect::Standard,
            mode: Mode::Enforce,
            missing_key: MissingKey::Require,
            per_caller: true,
            fingerprint: FingerprintPolicy::default(),
            retain_ms: 24 * 3_600_000,
            retain_errors_ms: 4 * 3_600_000,
            remember_ms: None,
            wait_ms: 2_000,
            lease_ms: 30_000,
            on_abandoned: OnAbandoned::Rerun,
            commits: Commits::Two,
            if_match: IfMatch::Allow,
            altered_etags: false,
            max_request_bytes: 8 * 1024 * 1024,
            max_stored_bytes: 1024 * 1024,
            store_headers: Vec::new(),
            keep_payload: KeepPayload::Hashed,
            statuses: Statuses::default(),
            mask: default_mask(),
            rate_limit: None,
            breaker: None,
            authorize: None,
            permit_text: None,
        }
    }
}

impl Policy {
    /// The policy of routes that nobody wrote: a key is welcome, not required.
    #[must_use]
    pub fn unwritten() -> Self {
        Self { missing_key: MissingKey::Allow, ..Self::default() }
    }

    /// What a record of this route carries.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            lease_ms: self.lease_ms,
            on_abandoned: self.on_abandoned,
            retain_ms: self.retain_ms,
            remember_ms: self.remember_ms.unwrap_or(self.retain_ms.min(REMEMBER_MS_MAX)),
            ..Terms::default()
        }
    }

    /// The policy where no routes are written: a path that nothing serves says so with 404 or 405,
    /// perhaps only until what serves it is deployed.
    pub(super) fn of_any_path(mut self) -> Self {
        let moved = &mut self.statuses;
        for status in [404, 405] {
            if !moved.stored.contains(&status) && !moved.released.contains(&status) {
                moved.released.push(status);
            }
        }
        self
    }

    /// How long an answer that ends so is kept.
    pub(super) const fn retained_ms(&self, ending: Ending) -> u64 {
        match ending {
            Ending::Success => self.retain_ms,
            Ending::Error | Ending::Released | Ending::Unknown => self.retain_errors_ms,
        }
    }

    /// Checks every bound, and the rules between fields.
    ///
    /// # Errors
    /// The first field that breaks one.
    pub fn validate(&self) -> Result<(), LimitError> {
        self.terms().validate()?;
        if self.commits == Commits::One && self.mode != Mode::Enforce {
            // Nobody would commit what its handlers hand back.
            return Err(LimitError::new(
                "mode",
                format!("{:?}", self.mode),
                "enforce with one commit",
            ));
        }
        in_range("retain_errors", self.retain_errors_ms, 1, self.retain_ms)?;
        in_range("wait", self.wait_ms, 0, WAIT_MS_MAX)?;
        in_range("max_request_bytes", self.max_request_bytes, 0, BUFFER_BYTES_MAX)?;
        in_range("max_stored_bytes", self.max_stored_bytes, 0, STORED_BYTES_MAX)?;
        if let Some(breaker) = &self.breaker {
            breaker.validate()?;
        }
        self.statuses.validate()?;
        // A retry that comes after the outcome is gone would run again.
        let retries_ms = onceward_core::retry::CLIENT_BACKOFF.total_ms_max();
        // One commit holds no lease: there is none to wait for.
        let lease_ms = if self.commits == Commits::One { 0 } else { self.lease_ms };
        let least = retries_ms.saturating_add(lease_ms).saturating_add(self.wait_ms);
        let kept = [("retain", self.retain_ms), ("retain_errors", self.retain_errors_ms)];
        for (field, kept_ms) in kept {
            if kept_ms < least {
                let bound = format!("at least {least} ms: attempts × back-off + lease + wait");
                return Err(LimitError::new(field, kept_ms, bound));
            }
        }
        if let Some(name) = self.store_headers.iter().find(|name| !may_store(name)) {
            let bound = "nothing of one connection, one client or one moment: never stored are \
                         set-cookie, date, hop-by-hop and rate-limit headers and our own";
            return Err(LimitError::new("store_headers", name, bound));
        }
        Ok(())
    }
}
