//! The load: keys that look like UUIDs but are made from a number, and outcomes of 1 KB.
//!
//! The same keys and bytes go to the engine and to the baselines.

use std::sync::atomic::{AtomicU64, Ordering};

use onceward_core::Bytes;
use onceward_core::decide::{Claim, Completion, Effects};
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::key::{Key, Kind};
use onceward_core::limits::LimitError;

/// Bytes of an outcome.
pub(crate) const OUTCOME_BYTES: usize = 1_024;

const SCOPE: &str = "POST /v1/payments";

/// A supply of keys of one tenant, each used once.
#[derive(Debug)]
pub(crate) struct Keys {
    tenant: String,
    seed: u64,
    made: AtomicU64,
}

impl Keys {
    /// Keys of a tenant; another seed gives other keys.
    pub(crate) fn new(tenant: &str, seed: u64) -> Self {
        Self { tenant: tenant.into(), seed, made: AtomicU64::new(0) }
    }

    /// The same keys, of which the first `count` count as drawn.
    pub(crate) fn with_drawn(self, count: u64) -> Self {
        Self { made: AtomicU64::new(count), ..self }
    }

    /// The number of the next key.
    pub(crate) fn draw(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// How many were drawn.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// The id of the key with this number: in the form of a UUID, in no order.
    pub(crate) fn id(&self, number: u64) -> String {
        let high = mixed(self.seed ^ mixed(number));
        let low = mixed(high);
        let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
        let (d, e) = (low >> 48 & 0x3fff | 0x8000, low & 0xffff_ffff_ffff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{e:012x}")
    }

    /// The key with this number.
    pub(crate) fn key(&self, number: u64) -> Result<Key, LimitError> {
        Key::new(Kind::Request, &self.tenant, SCOPE, &self.id(number))
    }
}

/// What every request brings.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    fingerprint: Fingerprint,
    /// The outcome of each.
    pub(crate) completion: Completion,
}

impl Work {
    /// Requests with outcomes of [`OUTCOME_BYTES`].
    pub(crate) fn new() -> Self {
        let outcome: Bytes = outcome().into();
        Self {
            fingerprint: fingerprint_bytes(b"the same payload for every request"),
            completion: Completion {
                digest: fingerprint_bytes(&outcome),
                outcome,
                retain_ms: None,
                effects: Effects::default(),
            },
        }
    }

    /// The claim on a key.
    pub(crate) fn claim(&self, key: Key) -> Claim {
        let mut claim = Claim::new(key, self.fingerprint);
        claim.owner = Some("bench".into());
        claim
    }
}

/// The bytes of an outcome: they don't repeat, so nothing can shorten them.
pub(crate) fn outcome() -> Vec<u8> {
    let mut state = 7;
    std::iter::repeat_with(|| {
        state = mixed(state);
        state.to_le_bytes()
    })
    .flatten()
    .take(OUTCOME_BYTES)
    .collect()
}

/// One step of SplitMix64: small, fast, and every number leads to another.
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mix = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_look_like_uuids_and_come_again() {
        let keys = Keys::new("t", 1);
        assert_eq!(keys.id(5), keys.id(5));
        assert_eq!(keys.id(5).len(), 36);
        let many: std::collections::HashSet<_> = (0..10_000).map(|n| keys.id(n)).collect();
        assert_eq!(many.len(), 10_000);
        assert_ne!(keys.id(5), Keys::new("t", 2).id(5));
        assert_eq!(outcome().len(), OUTCOME_BYTES);
    }
}
