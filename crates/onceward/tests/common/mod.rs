//! Short hands that the engine's tests share.
#![allow(dead_code, reason = "each test binary uses some of these")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

use std::sync::Arc;

use onceward::core::Bytes;
use onceward::core::decide::{Claim, Completion, Effects, Permit, Verdict};
use onceward::core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::stamp::At;
use onceward::engine::Engine;
use onceward::store::clock::ManualClock;
use onceward::store::memory::MemoryStore;

pub(crate) const START: At = At(1_700_000_000_000);

pub(crate) fn key(id: &str) -> Key {
    Key::new(Kind::Request, "acme", "POST /payments", id).unwrap()
}

pub(crate) fn job_key(id: &str) -> Key {
    Key::new(Kind::Job, "acme", "mail", id).unwrap()
}

pub(crate) fn subject(id: &str) -> Subject {
    Subject::new("acme", "account", id).unwrap()
}

pub(crate) fn print(payload: &str) -> Fingerprint {
    fingerprint_bytes(payload.as_bytes())
}

pub(crate) fn claim(id: &str, payload: &str) -> Claim {
    let mut claim = Claim::new(key(id), print(payload));
    claim.owner = Some("worker-1".into());
    claim
}

pub(crate) fn bytes(text: &str) -> Bytes {
    text.as_bytes().into()
}

pub(crate) fn outcome(text: &str) -> Completion {
    with_effects(text, Effects::default())
}

pub(crate) fn with_effects(text: &str, effects: Effects) -> Completion {
    let outcome = bytes(text);
    let digest = fingerprint_bytes(&outcome);
    Completion { outcome, digest, retain_ms: None, effects }
}

pub(crate) fn engine() -> (Engine, Arc<MemoryStore>, ManualClock) {
    let (store, clock) = MemoryStore::manual(START);
    let store = Arc::new(store);
    (Engine::new(store.clone()), store, clock)
}

#[track_caller]
pub(crate) fn permit(verdict: Verdict) -> Permit {
    match verdict {
        Verdict::Run { permit, .. } => permit,
        other => panic!("expected run, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn replayed(verdict: Verdict) -> String {
    match verdict {
        Verdict::Replay(stored) => String::from_utf8(stored.outcome.unwrap().to_vec()).unwrap(),
        other => panic!("expected replay, got {other:?}"),
    }
}
