//! A tenure: a role that one process has at a time, such as a relay's or a consumer's.
//!
//! Rule: the fence of a tenure is a condition of every write made under it, so a process that was
//! overtaken without noticing changes nothing. The lease only says when someone else may take over.

use std::time::Duration;

use onceward_core::batch::Condition;
use onceward_core::decide::{Claim, Finish, Permit, Verdict};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind};
use onceward_core::limits::LimitError;

use super::millis;
use crate::engine::{Engine, EngineError, STORE_TENANT};
use crate::store::clock::boot_ms;
use crate::worker::lease::{Cut, Lease};

/// The role, held.
pub(crate) struct Tenure {
    engine: Engine,
    permit: Permit,
    lease: Lease,
    third: Duration,
}

/// The answer to asking for a role.
pub(crate) enum Asked {
    /// It is ours.
    Held(Tenure),
    /// Someone else has it; worth asking again after this long.
    Taken(Duration),
}

/// Where a role is kept.
pub(crate) fn role_key(role: &str, name: &str) -> Result<Key, LimitError> {
    Key::new(Kind::Request, STORE_TENANT, role, name)
}

impl Tenure {
    /// Asks for a role.
    pub(crate) async fn ask(
        engine: &Engine,
        (role, name): (&str, &str),
        lease: Duration,
        owner: Option<&str>,
    ) -> Result<Asked, EngineError> {
        let mut claim = Claim::new(role_key(role, name)?, fingerprint_bytes(name.as_bytes()));
        claim.terms.lease_ms = millis(lease);
        claim.owner = owner.map(Into::into);
        let from = boot_ms();
        Ok(match engine.claim(&claim).await? {
            Verdict::Run { permit, .. } => Asked::Held(Self {
                engine: engine.clone(),
                permit,
                lease: Lease::new(from, millis(lease)),
                third: lease / 3,
            }),
            Verdict::Busy { retry_after_ms } => Asked::Taken(Duration::from_millis(retry_after_ms)),
            _ => Asked::Taken(lease),
        })
    }

    /// Rises with every tenure.
    pub(crate) fn fence(&self) -> u64 {
        self.permit.fence.0
    }

    /// What every write under it has to hold.
    pub(crate) fn condition(&self) -> Condition {
        Condition::FenceIs(self.permit.key().clone(), self.permit.fence)
    }

    /// Whether it is over, as far as this process can tell.
    pub(crate) fn is_over(&self) -> bool {
        self.lease.over().is_some()
    }

    /// Renews the lease for as long as it can be; resolves when the role is lost.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::select! {
                _ = self.lease.ended() => return,
                () = tokio::time::sleep(self.third) => {}
            }
            let from = boot_ms();
            match self.engine.renew(&self.permit, None).await {
                Ok(Finish::Ok) => self.lease.renewed(from),
                Err(error) if error.is_retryable() => {}
                Ok(_) | Err(_) => self.lease.end(Cut::Lost),
            }
            if self.is_over() {
                return;
            }
        }
    }

    /// Gives the role back.
    pub(crate) async fn release(self) {
        // One that can't be released ends with its lease.
        let _ = self.engine.release(&self.permit).await;
    }
}
