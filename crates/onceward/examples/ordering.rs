//! Ordering: a late event must not overwrite a newer one.
//!
//! Events of one aggregate arrive shuffled and twice. The guard `next` lets each take effect once
//! and in order; what comes too early waits, what comes too late is stale.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::Arc;

use onceward::core::decide::{Claim, Completion, Effects, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::guard::{Guard, Rule};
use onceward::core::key::{Key, Kind, Subject};
use onceward::engine::{Engine, OnceVerdict};
use onceward::store::memory::MemoryStore;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let aggregate = Subject::new("acme", "handler/search", "mission/7")?;
    let mut waiting: Vec<u64> = vec![2, 1, 2, 4, 3, 1];
    let mut applied = Vec::new();
    while let Some(number) = waiting.first().copied() {
        waiting.remove(0);
        let key = Key::new(Kind::Event, "acme", "search", &format!("event-{number}"))?;
        let mut claim = Claim::new(key, fingerprint_bytes(&number.to_be_bytes()));
        let rule = Rule::Next { position: number };
        claim.guard = Some(Guard::new(aggregate.clone(), rule)?);
        let outcome: Arc<[u8]> = b"indexed"[..].into();
        let digest = fingerprint_bytes(&outcome);
        let completion =
            Completion { outcome, digest, retain_ms: None, effects: Effects::default() };
        let verdict = match engine.run_once(&claim, &completion).await? {
            OnceVerdict::Ran { .. } => {
                applied.push(number);
                "applied"
            }
            OnceVerdict::Not(Verdict::Refused(refusal)) if refusal.why.as_str() == "gap" => {
                waiting.push(number);
                "too early: waits"
            }
            OnceVerdict::Not(Verdict::Replay(_)) => "a duplicate: done already",
            OnceVerdict::Not(other) => other.as_str(),
        };
        println!("event {number}: {verdict}");
    }
    println!("applied in order: {applied:?}");
    Ok(())
}
