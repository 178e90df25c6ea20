//! What a server does by itself, beside answering: sealing the audit, dropping what is too old,
//! counting what crashes have cost it, telling what becomes of the store.
//!
//! Several processes on one store may do so at once. What fails is logged and comes again; nothing
//! here is in a request's way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward::audit::{LostNotes, SealKey, SealReport, Sealer};
use onceward::engine::{Engine, EngineError};
use onceward::store::{Standing, StoreError};
use tokio::task::JoinHandle;

use crate::metrics::Metrics;
use crate::open::is_alone;

/// How often what is not sealed is looked for: entries are sealed within seconds.
const SEAL_EVERY: Duration = Duration::from_secs(1);

/// How often notes are looked for that dead processes owed, and how long a process has to be silent
/// about what it owes to count as dead: one that lives says so several times a second.
const LOST_EVERY: Duration = Duration::from_secs(30);
const SILENT_FOR: Duration = Duration::from_secs(60);

/// How often the store is asked how it is.
const STANDING_EVERY: Duration = Duration::from_secs(1);

/// How long a server that ends may take to seal its last entries.
const LAST_SEALS_WITHIN: Duration = Duration::from_secs(5);

/// Tasks that end when this is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    tasks: Vec<JoinHandle<()>>,
    sealer: Sealer,
    told: Arc<Told>,
}

impl Upkeep {
    /// Seals the audit from now on; every `look_every`, drops entries older than `retain`.
    pub(crate) fn of_audit(
        engine: &Engine,
        key: SealKey,
        metrics: &Arc<Metrics>,
        (retain, look_every): (Duration, Duration),
    ) -> Self {
        let sealer = Sealer::new(engine.clone(), key);
        let (seals, drops) = (sealer.clone(), sealer.clone());
        let (counts, counted) = (metrics.clone(), metrics.clone());
        let seal = async move {
            if can_seal(&seals).await {
                seals.run(SEAL_EVERY, |report| sealed(&counts, report)).await;
            }
        };
        let keep_ms = u64::try_from(retain.as_millis()).unwrap_or(u64::MAX);
        let drop = async move {
            loop {
                tokio::time::sleep(look_every).await;
                match drops.retain(keep_ms, |_| ()).await {
                    Ok(retained) => counted.audit_dropped(retained.dropped),
                    Err(error) => tracing::warn!(%error, "audit retention broke off"),
                }
            }
        };
        let lost = count_lost(LostNotes::new(engine.clone()), is_alone(engine), metrics.clone());
        let told = Arc::new(Told::default());
        let (looks, looked) = (told.clone(), engine.clone());
        let standing = async move {
            loop {
                looks.look(&looked);
                tokio::time::sleep(STANDING_EVERY).await;
            }
        };
        let tasks = vec![
            tokio::spawn(seal),
            tokio::spawn(drop),
            tokio::spawn(lost),
            tokio::spawn(standing),
        ];
        Self { tasks, sealer, told }
    }

    /// Seals what was written last, once nothing more is: whoever changes it afterwards is found.
    /// What can't be sealed in time is sealed by the next process.
    pub(crate) async fn finish(mut self, engine: &Engine) {
        let between = tokio::time::timeout(LAST_SEALS_WITHIN, self.sealer.between_passes()).await;
        for task in std::mem::take(&mut self.tasks) {
            // One that is at work ends at its next pause; the store is not closed under it.
            task.abort();
            let _ = task.await;
        }
        drop(between);
        self.told.look(engine);
        engine.flush_notes().await;
        let last = async {
            while matches!(self.sealer.pass().await, Ok(SealReport { more: true, .. })) {}
        };
        if tokio::time::timeout(LAST_SEALS_WITHIN, last).await.is_err() {
            tracing::warn!("the last entries of the audit are not sealed yet");
        }
    }
}

/// What was logged of how the store is: each sentence once for as long as it holds.
#[derive(Debug, Default)]
struct Told(Mutex<Standing>);

impl Told {
    fn look(&self, engine: &Engine) {
        let now = engine.standing();
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for alarm in now.alarms.iter().filter(|alarm| !told.alarms.contains(alarm)) {
            tracing::error!("{alarm}");
        }
        for warning in now.warnings.iter().filter(|warning| !told.warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        *told = now;
    }
}

/// Counts what dead processes owed the audit. Where no other process can have the store open, those
/// before this one are dead already.
async fn count_lost(mut lost: LostNotes, alone: bool, metrics: Arc<Metrics>) {
    let mut patience = if alone { Duration::ZERO } else { SILENT_FOR };
    loop {
        match lost.pass(patience).await {
            Ok(0) => patience = SILENT_FOR,
            Ok(at_most) => {
                metrics.notes_lost_by_crashes(at_most);
                tracing::warn!(at_most, "a process died before it had written notes to the audit");
            }
            Err(error) => tracing::warn!(%error, "lost notes could not be counted; tried again"),
        }
        tokio::time::sleep(LOST_EVERY).await;
    }
}

/// Whether the store can be sealed at all; says so once if it can't.
async fn can_seal(sealer: &Sealer) -> bool {
    match sealer.pass().await {
        Err(EngineError::Store(StoreError::Unsupported { .. })) => {
            tracing::warn!("this store lists no settled audit entries: the audit is not sealed");
            false
        }
        _ => true,
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn sealed(metrics: &Metrics, report: Result<SealReport, EngineError>) {
    match report {
        Ok(SealReport { sealed, broken, .. }) => {
            metrics.audit_sealed(sealed);
            if broken > 0 {
                tracing::error!(
                    tenants = broken,
                    "seals of the audit are broken: run `onceward audit verify`"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "the audit could not be sealed; it is tried again"),
    }
}
