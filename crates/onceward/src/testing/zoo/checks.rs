//! Checks for bugs that no schedule is needed for: keys, fingerprints, what is stored, waiters.
//!
//! Each says what broke, or nothing. They use the real core and the real engine.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::decide::{self, Claim, Completion, Effects, Facts, Step, Verdict};
use onceward_core::fingerprint::{Fingerprint, FingerprintBuilder, fingerprint_bytes};
use onceward_core::key::{Key, Kind};
use onceward_core::outcome_policy::{Ending, Said, Statuses, ending};
use onceward_core::stamp::{At, Token};

use crate::engine::Engine;
use crate::store::memory::{MemoryState, MemoryStore};
use crate::testing::sim::Violation;

/// Waiters that are registered and cancelled.
const WAITERS: usize = 5;
/// Turns of the runtime that a waiter may take to come or go.
const TURNS: u32 = 10_000;

type Checked = Result<Option<Violation>, String>;

pub(super) fn tenants_are_apart() -> Checked {
    let of = |tenant| Key::new(Kind::Request, tenant, "orders", "1").map_err(|e| e.to_string());
    let (own, other) = (of("acme")?, of("globex")?);
    let verdict = after_done(&own, other, fingerprint_bytes(b"other"))?;
    Ok(broken(!matches!(verdict, Seen::Runs), "a01", "another tenant's key was met"))
}

pub(super) fn paths_are_apart() -> Checked {
    let of = |path| {
        Key::within(Kind::Request, "acme", "orders", &[path], "1").map_err(|e| e.to_string())
    };
    let verdict = after_done(&of("7")?, of("8")?, fingerprint_bytes(b"other"))?;
    Ok(broken(!matches!(verdict, Seen::Runs), "a01", "the same id on another path was met"))
}

pub(super) fn another_path_is_a_mismatch() -> Checked {
    let key = Key::new(Kind::Request, "acme", "orders", "1").map_err(|e| e.to_string())?;
    let seen = after_done(&key, key.clone(), fingerprint("/v1/orders/8"))?;
    Ok(broken(!matches!(seen, Seen::Mismatch), "a09", "another path was taken for a retry"))
}

pub(super) fn retryable_answers_are_not_stored() -> Checked {
    let mut passing = [408, 425, 429, 500, 502, 503, 504].into_iter();
    let stored = passing.any(|status| ends(status, false).is_stored());
    Ok(broken(stored, "ruling 4", "an answer that says \"not now\" was stored"))
}

/// What an answer comes to, on a route that moves no status.
fn ends(status: u16, retry_after: bool) -> Ending {
    ending(&Said { status, retry_after, ..Said::default() }, &Statuses::default())
}

pub(super) fn cancelled_waiters_leave() -> Checked {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let left = runtime.map_err(|error| error.to_string())?.block_on(waiters_left())?;
    Ok(broken(left > 0, "i19", "cancelled waiters are still registered"))
}

enum Seen {
    Runs,
    Mismatch,
    Else,
}

/// How a second claim is answered after a first one is done.
fn after_done(first: &Key, second: Key, other: Fingerprint) -> Result<Seen, String> {
    let mut state = MemoryState::default();
    let now = At(1_000);
    let claim = Claim::new(first.clone(), fingerprint("/v1/orders/7"));
    let completion = Completion {
        outcome: b"done".as_slice().into(),
        digest: fingerprint_bytes(b"done"),
        retain_ms: None,
        effects: Effects::default(),
    };
    let Step::Commit(batch, _) = decide::run_once(&claim, &completion, Token(1), &Facts::at(now))
    else {
        return Err("a first claim did not run".into());
    };
    state.apply(&batch, now);
    let claim = Claim::new(second, other);
    let mut facts = Facts::at(now);
    let Step::Commit(batch, _) = decide::claim(&claim, Token(2), &facts) else {
        return Err("a claim looked before it wrote".into());
    };
    match state.apply(&batch, now) {
        onceward_core::batch::Answer::Refused(refused) => facts.learn(&batch, refused),
        _ => return Ok(Seen::Runs),
    }
    Ok(match decide::claim(&claim, Token(3), &facts) {
        Step::Answer(Verdict::Mismatch(_)) => Seen::Mismatch,
        _ => Seen::Else,
    })
}

fn fingerprint(path: &str) -> Fingerprint {
    let parts = FingerprintBuilder::new().part("method", b"POST");
    parts.part("path", path.as_bytes()).part("query", b"").finish()
}

/// Waiters that are left after all were cancelled.
async fn waiters_left() -> Result<usize, String> {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let key = Key::new(Kind::Request, "acme", "orders", "1").map_err(|e| e.to_string())?;
    let claim = Claim::new(key, fingerprint_bytes(b"payload"));
    engine.claim(&claim).await.map_err(|error| error.to_string())?;
    let waiting = (0..WAITERS).map(|_| {
        let (engine, claim) = (engine.clone(), claim.clone());
        tokio::spawn(async move { engine.claim_waiting(&claim, Duration::from_secs(60)).await })
    });
    let waiting: Vec<_> = waiting.collect();
    for _ in 0..TURNS {
        if engine.waiting() == WAITERS {
            break;
        }
        tokio::task::yield_now().await;
    }
    if engine.waiting() != WAITERS {
        return Err(format!("{} of {WAITERS} waiters came", engine.waiting()));
    }
    for waiter in &waiting {
        waiter.abort();
    }
    for waiter in waiting {
        // Cancelled, as asked.
        drop(waiter.await);
    }
    Ok(engine.waiting())
}

pub(super) fn broken(is: bool, invariant: &'static str, what: &str) -> Option<Violation> {
    is.then(|| Violation { invariant, what: what.to_owned() })
}
