//! A custom store: six methods, no policy.
//!
//! This one keeps everything in the oracle's plain maps (`MemoryState`) behind a lock and says
//! aloud what it is asked, which shows how little a store has to know: it loads by key and applies
//! batches under their conditions. A store of your own runs the conformance suite (feature
//! `testing`).
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use onceward::core::batch::{Answer, Batch};
use onceward::core::decide::{Claim, Completion, Effects, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::core::stamp::At;
use onceward::engine::Engine;
use onceward::store::clock::StoreClock;
use onceward::store::memory::MemoryState;
use onceward::store::{
    Capabilities, Committed, Cursor, Durability, List, Loaded, Page, Read, Store, StoreError,
    StoreFuture,
};

/// Says what it is asked.
struct Talking {
    state: Mutex<MemoryState>,
    clock: StoreClock,
}

impl Talking {
    fn unsupported(what: &'static str) -> StoreError {
        StoreError::Unsupported { store: "talking", what }
    }
}

impl Store for Talking {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "talking",
            clock: true,
            group_max: 16,
            lanes: 1,
            gathers: false,
            watch: false,
            lists_are_current: true,
            leases_anew: None,
            durability: Durability::None,
            warnings: Vec::new(),
        }
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(async move {
            println!("  load of {} things", reads.len());
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let facts = reads.iter().map(|read| state.read(read)).collect();
            Ok(Loaded { now: self.clock.now(), facts })
        })
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let now = self.clock.now();
            let answers = state.apply_group(group.iter().map(|batch| &**batch), now);
            for (batch, answer) in group.iter().zip(&answers) {
                let said = match answer {
                    Answer::Applied(_) => "applied",
                    Answer::Refused(_) => "refused",
                    Answer::Contended => "contended",
                };
                let (conditions, writes) = (batch.conditions.len(), batch.writes.len());
                println!("  batch of {conditions} conditions and {writes} writes: {said}");
            }
            Ok(Committed { answers })
        })
    }

    fn list(&self, _: List, _: Option<Cursor>, _: usize) -> StoreFuture<'_, Page> {
        Box::pin(async { Err(Self::unsupported("lists")) })
    }

    fn watch(&self, _: Vec<Key>) -> StoreFuture<'_, ()> {
        Box::pin(async { Err(Self::unsupported("watching")) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let clock = StoreClock::machine(At(0));
    let engine = Engine::new(Arc::new(Talking { state: Mutex::default(), clock }));
    let key = Key::new(Kind::Request, "acme", "POST /payments", "k-1")?;
    let claim = Claim::new(key, fingerprint_bytes(b"pay 5"));

    println!("first claim: one optimistic insert, no read before it");
    let Verdict::Run { permit, .. } = engine.claim(&claim).await? else {
        return Err("the first claim runs".into());
    };
    println!("completion: conditional on the fence {}", permit.fence);
    let outcome: Arc<[u8]> = b"paid"[..].into();
    let digest = fingerprint_bytes(&outcome);
    let completion = Completion { outcome, digest, retain_ms: None, effects: Effects::default() };
    engine.complete(&permit, &completion).await?;
    println!("the same claim again: refused, and the refusal brings the outcome");
    let verdict = engine.claim(&claim).await?;
    println!("verdict: {}", verdict.as_str());
    Ok(())
}
