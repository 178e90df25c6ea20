//! What came of a protected request, for whoever counts and logs: found in the answer's extensions.

use http::Response;
use onceward_core::Text;
use onceward_core::key::Key;

use super::identity::Unidentified;
use super::refusal::{Code, Refusal};

/// What came of a protected request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Method and template of the route.
    pub endpoint: String,
    /// Whose it was, once that was known.
    pub tenant: Option<String>,
    /// A truncated hash of the key, once there was one; never the key.
    pub key_hash: Option<Text>,
    /// Whether the answer was in the replay cache; none where that was not looked at.
    pub cached: Option<bool>,
    /// Whether it ran although its key had been used before: the outcome had expired.
    pub expired: bool,
    /// `run`, `replay`, `none` where no key was involved, or the code of the refusal.
    pub verdict: &'static str,
    /// What was wrong with the caller's token, where that is why it was refused; never the token.
    pub reason: Option<&'static str>,
}

/// Marks an answer that was given before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Again;

/// Marks the answer of an execution whose key had an expired record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anew;

/// Marks the answer of whoever gives permission, to one who has none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Denied;

impl Served {
    pub(super) fn at(endpoint: &str) -> Self {
        let endpoint = endpoint.into();
        let (tenant, key_hash, cached, reason) = (None, None, None, None);
        Self { endpoint, tenant, key_hash, cached, expired: false, verdict: "none", reason }
    }

    pub(super) fn claims(&mut self, key: &Key) {
        self.key_hash = Some(key.hash_hex().clone());
    }

    /// Refuses whoever can't be told, and keeps why.
    pub(super) fn nobody(&mut self, unknown: &Unidentified) -> Refusal {
        self.reason = unknown.token;
        Refusal::unidentified(unknown)
    }

    pub(super) fn ended<B>(&mut self, response: &Response<B>) {
        self.expired = response.extensions().get::<Anew>().is_some();
        if response.extensions().get::<Denied>().is_some() {
            self.verdict = Code::Forbidden.meaning().code;
            return;
        }
        self.verdict = match (response.extensions().get::<Again>(), &self.key_hash) {
            (Some(_), _) => "replay",
            (None, Some(_)) => "run",
            (None, None) => "none",
        };
    }
}
