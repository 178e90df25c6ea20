//! Batches handed one by one to a store that makes its groups by itself.
//!
//! Whoever commits waits for the store's own answer, with no task of ours in between: two hops
//! fewer for each batch. What holds for groups holds here: a batch that met a held row comes again
//! after a while, and a grant whose caller has gone away before it heard of it is released.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use onceward_core::batch::{Answer, Batch};

use super::later;
use super::scheduler::{CONTENDED_PAUSE, CONTENDED_PAUSE_MAX, Shared};
use crate::store::{StoreError, StoreFuture};

/// A batch that is in the store's hands until its answer is heard. Counts as under way.
pub(super) struct Handed {
    shared: Arc<Shared>,
    batch: Arc<Batch>,
    /// None once the answer is heard.
    commit: Option<StoreFuture<'static, Answer>>,
    /// Whether its caller has gone away.
    orphaned: bool,
}

impl Handed {
    /// Hands a batch in that is counted already.
    pub(super) fn new(shared: Arc<Shared>, batch: Arc<Batch>) -> Self {
        let commit = Some(shared.commit_one(batch.clone()));
        Self { shared, batch, commit, orphaned: false }
    }

    /// Waits for the answer.
    pub(super) async fn answer(&mut self) -> Result<Answer, StoreError> {
        let mut contended: Option<(Instant, Duration)> = None;
        loop {
            let answer = match self.commit.as_mut() {
                Some(commit) => AssertUnwindSafe(commit).catch_unwind().await,
                None => Ok(Err(StoreError::Unknown("nothing was handed in".into()))),
            };
            self.commit = None;
            let answer = answer.unwrap_or_else(|_| {
                Err(StoreError::Unknown("the store panicked while it committed".into()))
            });
            self.shared.heard(&self.batch, &answer);
            if !matches!(answer, Ok(Answer::Contended)) {
                return answer;
            }
            let now = Instant::now();
            let (until, pause) = contended
                .unwrap_or_else(|| (later(now, self.shared.contended_for()), CONTENDED_PAUSE));
            if now + pause > until {
                return answer;
            }
            tokio::time::sleep(pause).await;
            contended = Some((until, (pause * 2).min(CONTENDED_PAUSE_MAX)));
            self.commit = Some(self.shared.commit_one(self.batch.clone()));
        }
    }

    /// Waits for an answer that nobody else will hear, and releases what it grants.
    pub(super) async fn finish(mut self) {
        if let Ok(Answer::Applied(applied)) = self.answer().await {
            // The release is counted before this one is counted out: nothing slips between.
            self.shared.release_orphan(&self.batch, applied);
        }
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        // One that was left twice had a runtime that is ending: its lease ends by itself.
        let Some(commit) = self.commit.take().filter(|_| !self.orphaned) else {
            return self.shared.delivered(1);
        };
        let (shared, batch) = (self.shared.clone(), self.batch.clone());
        let left = Self { shared, batch, commit: Some(commit), orphaned: true };
        self.shared.spawn(left.finish());
    }
}
