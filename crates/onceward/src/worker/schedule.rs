//! Recurring work: once per period among all processes on one store.
//!
//! Each period has a job of its own, whose resource is the number of the period by the store's
//! clock. Every process makes it; the first one does, the others find it there. So a run has a
//! lease, a fence, retries, and audit entries like any other job.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::limits::{LimitError, MAX_RETAIN_MS, in_range};
use onceward_core::record::Terms;
use onceward_core::stamp::At;

use super::taker::Handler;
use super::{Core, Job};
use crate::engine::{EngineError, STORE_TENANT};

/// The queue of recurring work.
pub const SCHEDULE_QUEUE: &str = "onceward.schedule";

/// Shortest period: below, the next one would start before the job of the last was committed.
const PERIOD_MIN: Duration = Duration::from_millis(100);
/// Pause after the store gave no answer.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Recurring {
    pub(super) name: String,
    pub(super) period: Duration,
    pub(super) run: Handler,
}

impl Recurring {
    pub(super) fn validate(&self) -> Result<(), LimitError> {
        let most = MAX_RETAIN_MS / 4;
        let least = u64::try_from(PERIOD_MIN.as_millis()).unwrap_or(u64::MAX);
        in_range("period", self.period_ms(), least, most)?;
        onceward_core::key::check_part("name", &self.name, 1)
    }

    fn period_ms(&self) -> u64 {
        u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Makes the job of the period that `now` lies in. Answers when the next one starts.
    async fn enqueue(&self, core: &Core, now: At) -> Result<Duration, EngineError> {
        let period_ms = self.period_ms();
        let number = now.0 / period_ms;
        let mut terms = Terms::job();
        // Known for longer than its period lasts, or a process could make it a second time.
        terms.retain_ms = terms.retain_ms.max(period_ms.saturating_mul(2));
        let job = Job::new(STORE_TENANT, SCHEDULE_QUEUE, &self.name).terms(terms);
        core.engine.enqueue(&job.resource(number.to_string()).build()?).await?;
        let next = number.saturating_add(1).saturating_mul(period_ms);
        Ok(Duration::from_millis(At(next).since(now).max(1)))
    }
}

/// Makes the jobs of something that recurs, until told to stop.
pub(super) async fn enqueue_each(core: Arc<Core>, each: Recurring) {
    while !core.stop.is_said() {
        let made = match core.engine.now().await {
            Ok(now) => each.enqueue(&core, now).await,
            Err(error) => Err(error),
        };
        tokio::select! {
            () = tokio::time::sleep(made.unwrap_or(PAUSE)) => {}
            () = core.stop.heard() => {}
        }
    }
}
