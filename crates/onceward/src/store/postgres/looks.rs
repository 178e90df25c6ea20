//! Looks that wait together are one call: whatever waits is looked up together, no timer.
//!
//! Rule: each look has its answer for itself: everything in it is of one snapshot, and damage that
//! one meets is not told to its neighbours; when the server refuses them together, each is looked
//! up alone. A look that comes while few are under way goes at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::super::{Loaded, Read, StoreError};
use super::failure::Failure;
use super::open::Pool;
use super::reader;

/// Calls that are worth having under way at once.
pub(super) const LANES: u32 = 2;
/// Reads of one call, unless a single look has more.
const READS_MAX: usize = 256;

type Answer = Result<Loaded, StoreError>;

/// Gathers looks.
pub(super) struct Looks {
    readers: Arc<Pool>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<(Vec<Read>, oneshot::Sender<Answer>)>,
    lanes: u32,
}

impl Looks {
    pub(super) fn new(readers: Arc<Pool>) -> Self {
        Self { readers, queue: Mutex::default() }
    }

    /// Looks things up. Facts come in the order of the reads.
    pub(super) async fn load(self: Arc<Self>, reads: Vec<Read>) -> Answer {
        let (answer, answered) = oneshot::channel();
        let goes = {
            let mut queue = self.locked();
            queue.waiting.push((reads, answer));
            let goes = queue.lanes < LANES;
            queue.lanes += u32::from(goes);
            goes
        };
        if goes {
            // A task of its own, which goes on when the caller's future is dropped.
            tokio::spawn(Lane { looks: self, ended: false }.run());
        }
        let ended = |_| StoreError::NotApplied("the store's task ended early".into());
        answered.await.map_err(ended)?
    }

    /// As many as go together. None when nobody waits: then the lane counts as ended, under the
    /// same lock, so that whoever comes next starts another.
    fn next(&self) -> Vec<(Vec<Read>, oneshot::Sender<Answer>)> {
        let mut queue = self.locked();
        let mut reads = 0;
        let fits = queue.waiting.iter().take_while(|(look, _)| {
            let first = reads == 0;
            reads += look.len().max(1);
            first || reads <= READS_MAX
        });
        let together = fits.count();
        queue.lanes -= u32::from(together == 0);
        queue.waiting.drain(..together).collect()
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        // Whatever is done under the lock is done in one step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that came to nothing, and whether one of its looks may be why.
struct Refused {
    alone: bool,
    error: StoreError,
}

/// One lane. However it ends, another may begin.
struct Lane {
    looks: Arc<Looks>,
    ended: bool,
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.ended {
            self.looks.locked().lanes -= 1;
        }
    }
}

impl Lane {
    async fn run(mut self) {
        loop {
            // Those whom the last call answered ask again together.
            tokio::task::yield_now().await;
            let (looks, askers): (Vec<_>, Vec<_>) = self.looks.next().into_iter().unzip();
            if looks.is_empty() {
                self.ended = true;
                return;
            }
            let answers = match self.together(&looks).await {
                Err(Refused { alone: true, .. }) if looks.len() > 1 => self.each(&looks).await,
                Err(Refused { error, .. }) => vec![Err(error); looks.len()],
                Ok(answers) => answers,
            };
            for (asker, answer) in askers.into_iter().zip(answers) {
                // Whoever has gone away needs no answer.
                let _ = asker.send(answer);
            }
        }
    }

    async fn together(&self, looks: &[Vec<Read>]) -> Result<Vec<Answer>, Refused> {
        let lease = self.looks.readers.lease().await;
        let lease = lease.map_err(|error| Refused { alone: false, error })?;
        reader::load(lease, looks).await.map_err(|failure| Refused {
            alone: matches!(failure, Failure::Rejected { .. }),
            error: failure.into_store_error(),
        })
    }

    /// Looks each up alone; once the server can't be asked, the others need not try.
    async fn each(&self, looks: &[Vec<Read>]) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(looks.len());
        for look in looks {
            match self.together(std::slice::from_ref(look)).await {
                Ok(answer) => answers.extend(answer),
                Err(Refused { alone: true, error }) => answers.push(Err(error)),
                Err(Refused { error, .. }) => {
                    answers.resize(looks.len(), Err(error));
                    break;
                }
            }
        }
        answers
    }
}
