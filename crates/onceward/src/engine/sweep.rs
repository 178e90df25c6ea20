//! The sweep through the engine: page after page of what is past its time, then one audit entry
//! per tenant that lost something.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use onceward_core::audit::Entry;
use onceward_core::decide::{self, Facts, Swept};
use onceward_core::drive::{Drive, End};
use onceward_core::key::Key;
use onceward_core::record::{Record, Stored};
use onceward_core::stamp::At;

use super::{Engine, EngineError};
use crate::store::{Items, List};

/// Records of one page of the sweep.
const PAGE: usize = 256;

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Outcomes that were dropped; their keys are still known.
    pub expired: u64,
    /// Records that were removed.
    pub forgotten: u64,
    /// Held records whose lease ran out: they are unknown now.
    pub unknown: u64,
}

/// What all sweeps of an engine came to so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Sweeps that came to their end.
    pub ended: u64,
    /// Sweeps that broke off.
    pub failed: u64,
    /// What they did, together.
    pub swept: SweepReport,
}

/// Counts sweeps.
#[derive(Default)]
pub(super) struct Sweeps(Mutex<SweepCounts>);

impl Sweeps {
    fn ended(&self, ended: bool, report: &SweepReport) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *if ended { &mut counts.ended } else { &mut counts.failed } += 1;
        counts.swept.add(report);
    }
}

impl SweepReport {
    fn count(&mut self, swept: Swept) {
        match swept {
            Swept::Expired => self.expired += 1,
            Swept::Forgotten => self.forgotten += 1,
            Swept::MarkedUnknown => self.unknown += 1,
            Swept::Left => {}
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, other: &Self) {
        self.expired += other.expired;
        self.forgotten += other.forgotten;
        self.unknown += other.unknown;
    }
}

impl Engine {
    /// Drops outcomes past their retention and keys past their remembrance. Two sweeps at once do
    /// no harm. `progress` hears the totals after each page.
    ///
    /// # Errors
    /// When the store gives no answer; what was swept until then stays swept and is in the audit.
    pub async fn sweep(
        &self,
        mut progress: impl FnMut(&SweepReport),
    ) -> Result<SweepReport, EngineError> {
        self.sweep_telling(|report, _| progress(report)).await
    }

    /// [`Engine::sweep`], whose `progress` also hears the keys whose outcome is gone: for whoever
    /// keeps copies of them.
    ///
    /// # Errors
    /// As [`Engine::sweep`].
    pub async fn sweep_telling(
        &self,
        mut progress: impl FnMut(&SweepReport, Vec<Key>),
    ) -> Result<SweepReport, EngineError> {
        let mut per_tenant: BTreeMap<String, SweepReport> = BTreeMap::new();
        let mut total = SweepReport::default();
        let swept = self.sweep_pages(&mut per_tenant, &mut total, &mut progress).await;
        // The first thing that failed is the one to tell.
        let mut failed = swept.err();
        for (tenant, report) in &per_tenant {
            let mut entry = Entry::new(tenant, "sweep");
            entry.detail = Some(
                format!(
                    "{{\"expired\":{},\"forgotten\":{},\"unknown\":{}}}",
                    report.expired, report.forgotten, report.unknown
                )
                .into(),
            );
            if let Err(error) = self.audit(&entry).await {
                failed.get_or_insert(error);
            }
        }
        self.0.sweeps.ended(failed.is_none(), &total);
        failed.map_or(Ok(total), Err)
    }

    /// What sweeps through this engine came to so far.
    #[must_use]
    pub fn sweep_counts(&self) -> SweepCounts {
        *self.0.sweeps.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn sweep_pages(
        &self,
        per_tenant: &mut BTreeMap<String, SweepReport>,
        total: &mut SweepReport,
        progress: &mut impl FnMut(&SweepReport, Vec<Key>),
    ) -> Result<(), EngineError> {
        let mut after = None;
        loop {
            let page = self.list(List::Sweepable, after, PAGE).await?;
            let Items::Records(records) = page.items else { return Ok(()) };
            let keys: Vec<Key> = records.iter().map(|record| record.key.clone()).collect();
            let mut gone = Vec::new();
            let sweeps = records.into_iter().map(|record| self.sweep_one(record, page.now));
            let mut failed = None;
            for (key, swept) in keys.into_iter().zip(join_all(sweeps).await) {
                let mut one = SweepReport::default();
                match swept {
                    Ok(swept) => one.count(swept),
                    // Its neighbours may have been swept all the same.
                    Err(error) => {
                        failed.get_or_insert(error);
                    }
                }
                if !one.is_empty() {
                    per_tenant.entry(key.tenant_column().to_string()).or_default().add(&one);
                    total.add(&one);
                }
                if one.expired + one.forgotten > 0 {
                    gone.push(key);
                }
            }
            progress(total, gone);
            if let Some(error) = failed {
                return Err(error);
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn sweep_one(&self, record: Record, now: At) -> Result<Swept, EngineError> {
        let key = record.key.clone();
        let mut facts = Facts::at(now);
        facts.learn_record(&key, Some(Stored { record, outcome: None }));
        let decide = |token, facts: &Facts| decide::sweep(&key, token, facts);
        match self.drive(Some(&key), Drive::from(facts), decide).await? {
            End::Answer(swept) | End::Committed { meaning: swept, .. } => Ok(swept),
            End::GaveUp => Ok(Swept::Left),
        }
    }
}
