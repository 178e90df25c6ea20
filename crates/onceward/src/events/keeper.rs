//! The packer's lease: one process packs, so that the others need not try.
//!
//! The lease is a courtesy. Two who pack at once are met by the segment that is created only once;
//! a lease that is lost in silence costs a wasted write, never an event.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::decide::{Claim, Finish, Permit, Verdict};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::record::Terms;

use super::store::{Shared, Stage};
use crate::engine::EngineError;

/// Renewals per lease: two may fail before it runs out.
const RENEWALS: u32 = 3;

impl Shared {
    /// Takes the lease when it is free and keeps it, until the event store is closed.
    pub(super) async fn keep_lease(self: Arc<Self>) {
        let lease = Duration::from_millis(self.options.lease_ms);
        let mut stage = self.stage.subscribe();
        let mut held: Option<Permit> = None;
        while *stage.borrow() < Stage::Noted {
            let nap = match held.take() {
                Some(permit) => {
                    held = self.renewed(permit).await;
                    if held.is_some() { lease / RENEWALS } else { self.options.poll }
                }
                None => match self.taken().await {
                    Ok(Verdict::Run { permit, .. }) => {
                        held = Some(permit);
                        lease / RENEWALS
                    }
                    Ok(Verdict::Busy { retry_after_ms }) => {
                        Duration::from_millis(retry_after_ms).clamp(self.options.poll, lease)
                    }
                    _ => lease / RENEWALS,
                },
            };
            self.leading.send_if_modified(|leading| {
                std::mem::replace(leading, held.is_some()) != held.is_some()
            });
            tokio::select! {
                _ = stage.wait_for(|stage| *stage >= Stage::Noted) => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
        if let Some(permit) = held {
            // One that can't be released runs out.
            let _ = self.engine.release(&permit).await;
        }
        self.leading.send_replace(false);
    }

    async fn taken(&self) -> Result<Verdict, EngineError> {
        let mut claim = Claim::new(self.names.packer()?, fingerprint_bytes(b"packer"));
        claim.terms = Terms { lease_ms: self.options.lease_ms, ..Terms::default() };
        claim.owner = Some(format!("process {}", std::process::id()).into());
        self.engine.claim(&claim).await
    }

    async fn renewed(&self, permit: Permit) -> Option<Permit> {
        match self.engine.renew(&permit, None).await {
            Ok(Finish::Ok) => Some(permit),
            Ok(_) => None,
            // It may still be ours: the next renewal tells, and packing without it is safe.
            Err(_) => Some(permit),
        }
    }
}
