//! The keeper: renews the leases of all jobs that run, before half of each has passed.
//!
//! One task for a whole worker. A renewal that is refused, or has no answer in time, ends the
//! holder's right to act; a slow one never holds up the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use onceward_core::decide::{Finish, Permit};
use tokio::sync::Notify;

use super::event::{Observer, Step};
use super::lease::{Cut, Lease};
use crate::engine::Engine;
use crate::store::clock::boot_ms;

/// Longest and shortest pause between two looks at the leases.
const LOOK_MAX: Duration = Duration::from_secs(1);
const LOOK_MIN: Duration = Duration::from_millis(5);

/// Everything that is held now.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    held: Mutex<HashMap<u64, Arc<Held>>>,
    next: AtomicU64,
    shortest_ms: AtomicU64,
    /// Rung when a shorter lease than any before has come: the keeper has to look more often.
    shorter: Arc<Notify>,
}

/// One attempt whose lease is kept.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) permit: Permit,
    pub(crate) lease: Lease,
    renewing: AtomicBool,
    /// Its outcome is being recorded: nothing is renewed, and a late refusal means nothing.
    pub(crate) finishing: AtomicBool,
}

/// Keeps a lease until it is dropped.
#[derive(Debug)]
pub(crate) struct Keep {
    keeper: Arc<Keeper>,
    id: u64,
    pub(crate) held: Arc<Held>,
}

impl Keeper {
    pub(crate) fn new() -> Self {
        Self { shortest_ms: AtomicU64::new(u64::MAX), ..Self::default() }
    }

    /// Keeps the lease of an attempt that was taken by a call made at `from`.
    pub(crate) fn keep(self: &Arc<Self>, permit: Permit, from: u64) -> Keep {
        let lease_ms = permit.record.terms.lease_ms;
        if self.shortest_ms.fetch_min(lease_ms, Ordering::Relaxed) > lease_ms {
            self.shorter.notify_one();
        }
        let lease = Lease::new(from, lease_ms);
        let held = Arc::new(Held {
            permit,
            lease,
            renewing: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.locked().insert(id, held.clone());
        Keep { keeper: self.clone(), id, held }
    }

    /// Ends every holder's right to act. Says how many there were.
    pub(crate) fn cut_all(&self, why: Cut) -> usize {
        let held = self.locked();
        held.values().for_each(|held| held.lease.end(why));
        held.len()
    }

    /// Renews until everything is let go and the keeper is given up.
    pub(crate) async fn run(keeper: std::sync::Weak<Self>, engine: Engine, observer: Observer) {
        let mut renewals = FuturesUnordered::new();
        loop {
            let (pause, shorter) = {
                let Some(keeper) = keeper.upgrade() else { return };
                for held in keeper.due() {
                    renewals.push(renew(held, &engine, &observer));
                }
                (keeper.pause(), keeper.shorter.clone())
            };
            let nap = tokio::time::sleep(pause);
            tokio::pin!(nap);
            loop {
                tokio::select! {
                    () = &mut nap => break,
                    () = shorter.notified() => break,
                    Some(()) = renewals.next(), if !renewals.is_empty() => {}
                }
            }
        }
    }

    /// Those whose renewal is due. Those whose time is over are ended on the way.
    fn due(&self) -> Vec<Arc<Held>> {
        let now = boot_ms();
        let held = self.locked();
        let due = held.values().filter(|held| {
            !held.finishing.load(Ordering::SeqCst)
                && held.lease.over().is_none()
                && now >= held.lease.renew_at()
                && !held.renewing.swap(true, Ordering::SeqCst)
        });
        due.cloned().collect()
    }

    /// A renewal must start between a third and half of the shortest lease.
    fn pause(&self) -> Duration {
        let shortest = self.shortest_ms.load(Ordering::Relaxed);
        Duration::from_millis(shortest / 16).clamp(LOOK_MIN, LOOK_MAX)
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<u64, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.keeper.locked().remove(&self.id);
    }
}

async fn renew(held: Arc<Held>, engine: &Engine, observer: &Observer) {
    let from = boot_ms();
    let renewed = engine.renew(&held.permit, None).await;
    held.renewing.store(false, Ordering::SeqCst);
    match renewed {
        Ok(Finish::Ok) => held.lease.renewed(from),
        // What the store gave no answer to was not refused; the next look tries again, until the
        // time is over.
        Err(error) if error.is_retryable() => {}
        // Its holder has finished meanwhile: there was nothing left to renew.
        Ok(_) if held.finishing.load(Ordering::SeqCst) => {}
        Ok(_) => {
            held.lease.end(Cut::Lost);
            observer.refused(engine, &held.permit, Step::Renew).await;
        }
        Err(_) => held.lease.end(Cut::Lapsed),
    }
}
