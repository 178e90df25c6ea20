//! What a server does by itself, beside answering: sealing the audit and dropping what is too old.
//!
//! Several processes on one store may do so at once. What fails is logged and comes again; nothing
//! here is in a request's way.

use std::sync::Arc;
use std::time::Duration;

use onceward::audit::{SealKey, SealReport, Sealer};
use onceward::engine::{Engine, EngineError};
use onceward::store::StoreError;
use tokio::task::JoinHandle;

use crate::metrics::Metrics;

/// How often what is not sealed is looked for: entries are sealed within seconds.
const SEAL_EVERY: Duration = Duration::from_secs(1);

/// Tasks that end when this is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep(Vec<JoinHandle<()>>);

impl Upkeep {
    /// Seals the audit from now on; every `look_every`, drops entries older than `retain`.
    pub(crate) fn of_audit(
        engine: &Engine,
        key: SealKey,
        metrics: &Arc<Metrics>,
        (retain, look_every): (Duration, Duration),
    ) -> Self {
        let sealer = Sealer::new(engine.clone(), key);
        let (seals, drops) = (sealer.clone(), sealer);
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
        Self(vec![tokio::spawn(seal), tokio::spawn(drop)])
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
        self.0.iter().for_each(JoinHandle::abort);
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
