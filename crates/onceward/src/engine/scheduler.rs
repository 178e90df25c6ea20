//! The group scheduler: batches that wait together share one durable transaction.
//!
//! Whatever waits is the group, once everyone who can run has asked. No two batches of a group, or
//! of groups under way at once, touch the same record or mark: the later one waits in `lines`. A
//! few that come while a group is under way go with those whom it answers. A batch that met a row
//! held by someone's open transaction leaves its group and comes again after a while. A grant
//! whose caller has gone away before it heard of it is released at once. A lane that ends, or a
//! store that panics, leaves nobody waiting. A store that gathers by itself is handed each batch as
//! it comes (`handed`).

use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use onceward_core::batch::{Answer, Applied, Batch, Write};
use onceward_core::decide::{self, Facts, Permit, Step};
use onceward_core::record::FenceWrite;
use onceward_core::stamp::Token;
use onceward_core::zoo::{Bug, planted};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::fair::Rounds;
use super::handed::Handed;
use super::later;
use super::lines::Lines;
use super::trouble::Trouble;
use super::wait::Waiters;
use crate::store::{Store, StoreError, StoreFuture};

/// First pause before a contended batch is tried again; doubles up to [`CONTENDED_PAUSE_MAX`].
pub(super) const CONTENDED_PAUSE: Duration = Duration::from_millis(2);
pub(super) const CONTENDED_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Batches that are worth a call: each of more costs hardly less. Halves and parts of a group are
/// counted from here.
const WORTH_A_CALL: usize = 64;
/// The part of those that is worth a lane of its own while another is at work, in eighths: less
/// than half, so that two halves go side by side though they are never quite equal.
const WORTH_A_LANE: usize = 3;
/// How long fewer than that wait for the lane at work, after the last of them came: it may hang on
/// a broken connection.
const PATIENCE: Duration = Duration::from_millis(20);

type Reply = oneshot::Sender<Result<Answer, StoreError>>;

/// Hands batches to the store in groups.
pub(super) struct Scheduler {
    shared: Arc<Shared>,
}

/// What the scheduler, its lanes and batches under way share.
pub(super) struct Shared {
    store: Arc<dyn Store>,
    /// Whether the store gathers by itself.
    gathers: bool,
    runtime: Handle,
    waiters: Arc<Waiters>,
    rounds: Arc<Rounds>,
    queue: Mutex<Queue>,
    wake: Notify,
    idle: Notify,
    hasher: RandomState,
    trouble: Trouble,
    group_max: usize,
    waiting_max: usize,
    contended_for: Duration,
}

#[derive(Default)]
struct Queue {
    waiting: Lines<Waiting>,
    /// Batches under way, or asleep because a row was held.
    under_way: usize,
    /// Lanes that still run.
    lanes: usize,
    /// Lanes whose group is under way, or is being answered.
    committing: usize,
    closed: bool,
}

struct Waiting {
    batch: Arc<Batch>,
    /// Hashes of the rows that it touches; a collision only makes it wait.
    rows: Vec<u64>,
    reply: Option<Reply>,
    contended: Option<(Instant, Duration)>,
}

impl Queue {
    fn add(&mut self, mut waiting: Waiting) {
        let rows = std::mem::take(&mut waiting.rows);
        let alone = planted(Bug::OneKeyTwiceInGroup);
        self.waiting.push(waiting, if alone { Vec::new() } else { rows });
    }
}

impl Scheduler {
    /// Starts the lanes on the current runtime.
    pub(super) fn start(
        store: Arc<dyn Store>,
        (waiters, rounds): (Arc<Waiters>, Arc<Rounds>),
        waiting_max: usize,
        contended_for: Duration,
    ) -> Self {
        let capabilities = store.capabilities();
        let shared = Arc::new(Shared {
            store,
            gathers: capabilities.gathers,
            runtime: Handle::current(),
            waiters,
            rounds,
            queue: Mutex::default(),
            wake: Notify::new(),
            idle: Notify::new(),
            hasher: RandomState::new(),
            trouble: Trouble::new(if capabilities.gathers { 1 } else { capabilities.lanes }),
            group_max: capabilities.group_max.max(1),
            waiting_max,
            contended_for,
        });
        let lanes = if capabilities.gathers { 0 } else { capabilities.lanes.max(1) };
        shared.locked().lanes = lanes;
        for place in 0..lanes {
            let running = Lane { shared: shared.clone(), place };
            tokio::spawn(async move { running.run().await });
        }
        Self { shared }
    }

    /// Commits a batch in the next group that it fits in.
    ///
    /// The batch is queued before this returns, so that callers who make several futures at once
    /// have them in one group; the answer comes when the future is awaited.
    pub(super) fn submit(
        &self,
        batch: Arc<Batch>,
    ) -> impl Future<Output = Result<Answer, StoreError>> + use<> {
        let entered = self.shared.enter(batch);
        async move {
            match entered? {
                Entered::Handed(mut handed) => handed.answer().await,
                Entered::Queued(mut pending) => {
                    let answer = (&mut pending.received).await;
                    pending.heard = true;
                    let ended = |_| Err(StoreError::Unknown("the commit lane ended".into()));
                    answer.unwrap_or_else(ended)
                }
            }
        }
    }

    /// How the latest commit ended.
    pub(super) fn trouble(&self) -> &Trouble {
        &self.shared.trouble
    }

    /// Takes no further batches; those that wait are still committed.
    pub(super) fn close(&self) {
        self.shared.locked().closed = true;
        // One lane wakes and hands the bell on when it ends.
        self.shared.wake.notify_one();
    }

    /// Resolves when nothing waits and nothing is under way.
    pub(super) async fn drained(&self) {
        loop {
            let idle = self.shared.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            {
                let queue = self.shared.locked();
                if queue.waiting.is_empty() && queue.under_way == 0 {
                    return;
                }
            }
            idle.await;
        }
    }
}

/// A batch that was taken: by the store itself, or into the queue of the lanes.
enum Entered {
    Handed(Handed),
    Queued(Pending),
}

/// An answer that is waited for. Dropped before it was heard, it releases what was granted.
struct Pending {
    received: oneshot::Receiver<Result<Answer, StoreError>>,
    batch: Arc<Batch>,
    shared: Arc<Shared>,
    heard: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.heard {
            return;
        }
        // From here on the lane sees that nobody listens; what it sent before is ours to release.
        self.received.close();
        if let Ok(Ok(Answer::Applied(applied))) = self.received.try_recv() {
            self.shared.release_orphan(&self.batch, applied);
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn enter(self: &Arc<Self>, batch: Arc<Batch>) -> Result<Entered, StoreError> {
        batch.validate()?;
        let rows = if self.gathers { Vec::new() } else { self.rows(&batch) };
        let mut queue = self.locked();
        if queue.closed {
            return Err(StoreError::NotApplied("the engine is closed".into()));
        }
        let waiting = if self.gathers { queue.under_way } else { queue.waiting.len() };
        if waiting >= self.waiting_max {
            return Err(StoreError::NotApplied(format!("{waiting} batches are waiting already")));
        }
        if self.gathers {
            self.count_handed(&mut queue);
            drop(queue);
            return Ok(Entered::Handed(Handed::new(self.clone(), batch)));
        }
        let (reply, received) = oneshot::channel();
        queue.add(Waiting { batch: batch.clone(), rows, reply: Some(reply), contended: None });
        drop(queue);
        self.wake.notify_one();
        Ok(Entered::Queued(Pending { received, batch, shared: self.clone(), heard: false }))
    }

    /// Counts a batch that the store itself is handed.
    fn count_handed(&self, queue: &mut Queue) {
        if queue.under_way == 0 {
            self.trouble.waits(0);
        }
        queue.under_way += 1;
    }

    /// Hands one batch to the store.
    pub(super) fn commit_one(&self, batch: Arc<Batch>) -> StoreFuture<'static, Answer> {
        self.store.clone().commit_one(batch)
    }

    /// How long a batch is tried that meets a held row.
    pub(super) fn contended_for(&self) -> Duration {
        self.contended_for
    }

    /// Lets something run that nobody waits for.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Notes the answer to a batch that was handed in, and wakes who waits for what it did.
    pub(super) fn heard(&self, batch: &Batch, answer: &Result<Answer, StoreError>) {
        // It answers: the others wait since now.
        self.trouble.waits(0);
        self.trouble.note(answer.as_ref().map(std::slice::from_ref));
        if let Ok(Answer::Applied(_)) = answer {
            self.rounds.note(batch);
            self.waiters.wake(batch);
        }
    }

    fn rows(&self, batch: &Batch) -> Vec<u64> {
        let mut rows: Vec<u64> = batch.keys().map(|key| self.hasher.hash_one(key)).collect();
        rows.extend(batch.subjects().map(|subject| self.hasher.hash_one(subject)));
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when those who wait to run have run, as long as more batches come from them: the
    /// callers that a group answered ask again together, and the first of them would else have the
    /// next commit for itself while all others wait for it.
    async fn gathered(&self) {
        let mut before = 0;
        loop {
            let ready = self.locked().waiting.ready();
            if ready == before || ready >= self.group_max {
                return;
            }
            before = ready;
            tokio::task::yield_now().await;
        }
    }

    /// Takes a group whose rows nobody else is at. Order is kept per row. Who is `patient` leaves a
    /// few to a lane that is at work.
    fn next_group(&self, patient: bool) -> Vec<Waiting> {
        let mut queue = self.locked();
        if patient && self.holds_back(&queue) {
            return Vec::new();
        }
        let share = self.share(&queue);
        let mut group = Vec::new();
        while group.len() < share
            && let Some((mut next, rows)) = queue.waiting.pop()
        {
            next.rows = rows;
            group.push(next);
        }
        queue.under_way += group.len();
        queue.committing += usize::from(!group.is_empty());
        if queue.waiting.has_ready() {
            // Another lane may find something that fits beside this group.
            self.wake.notify_one();
        }
        group
    }

    /// How many a group takes: with very many waiting and other lanes idle, each has its part, so
    /// that one works while the other is written. Few are not cut off: a call costs the same for
    /// few as for many.
    fn share(&self, queue: &Queue) -> usize {
        let idle = queue.lanes.saturating_sub(queue.committing).max(1);
        let part = queue.waiting.ready().div_ceil(idle);
        let half = self.group_max.min(WORTH_A_CALL).div_ceil(2);
        if part < half { self.group_max } else { part.min(self.group_max) }
    }

    /// Whether those who may go are left to the lane that is at work: few of them would pay a whole
    /// call, and wait for the same disk, where a moment later they share one with all whom that
    /// lane answers.
    fn holds_back(&self, queue: &Queue) -> bool {
        let worth_it = self.group_max.min(WORTH_A_CALL) * WORTH_A_LANE / 8;
        queue.committing > 0 && queue.waiting.ready() < worth_it
    }

    fn finished(&self, group: &[Waiting]) {
        let mut queue = self.locked();
        for waiting in group {
            queue.waiting.leave(&waiting.rows);
        }
        drop(queue);
        // What was passed over because of these rows may go now.
        self.wake.notify_one();
    }

    /// Answers a batch. `false` when it sleeps and will come again.
    fn deliver(self: &Arc<Self>, mut waiting: Waiting, answer: Result<Answer, StoreError>) -> bool {
        if let Ok(Answer::Applied(_)) = &answer {
            self.rounds.note(&waiting.batch);
            self.waiters.wake(&waiting.batch);
        }
        if let Ok(Answer::Contended) = &answer
            && self.try_later(&mut waiting)
        {
            return false;
        }
        if let Some(reply) = waiting.reply.take()
            && let Err(Ok(Answer::Applied(applied))) = reply.send(answer)
        {
            self.release_orphan(&waiting.batch, applied);
        }
        true
    }

    /// Puts a contended batch back after a pause. `false` when its time is over.
    fn try_later(self: &Arc<Self>, waiting: &mut Waiting) -> bool {
        let now = Instant::now();
        let (until, pause) =
            waiting.contended.unwrap_or_else(|| (later(now, self.contended_for), CONTENDED_PAUSE));
        let nobody_listens = waiting.reply.as_ref().is_some_and(oneshot::Sender::is_closed);
        if now + pause > until || nobody_listens {
            return false;
        }
        let again = Waiting {
            batch: waiting.batch.clone(),
            rows: std::mem::take(&mut waiting.rows),
            reply: waiting.reply.take(),
            contended: Some((until, (pause * 2).min(CONTENDED_PAUSE_MAX))),
        };
        let shared = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            {
                let mut queue = shared.locked();
                queue.add(again);
                queue.under_way -= 1;
            }
            shared.wake.notify_one();
        });
        true
    }

    /// A grant that nobody will use: its caller went away while it was committed, so nothing was
    /// done under it.
    pub(super) fn release_orphan(self: &Arc<Self>, batch: &Batch, applied: Applied) {
        let Some(draft) = batch.writes.iter().find_map(|write| match write {
            Write::Put(draft) if draft.fence == FenceWrite::Grant => Some(draft),
            _ => None,
        }) else {
            return;
        };
        let Some((rev, Some(fence))) = applied.first else { return };
        if draft.record.attempt_id.is_some() {
            // Its caller may have come again under the same name and been handed this very permit.
            return;
        }
        let mut record = draft.resolve(batch.token, applied.now, rev.0);
        record.fence = Some(fence);
        record.last_fence = fence;
        let Some(permit) = Permit::of(record) else { return };
        let token = Token(batch.token.0 ^ u128::MAX);
        if let Step::Commit(release, _) = decide::release(&permit, token, &Facts::default()) {
            let release = Arc::new(release);
            if self.gathers {
                self.count_handed(&mut self.locked());
                return self.spawn(Handed::new(self.clone(), release).finish());
            }
            let rows = self.rows(&release);
            let waiting = Waiting { batch: release, rows, reply: None, contended: None };
            let mut queue = self.locked();
            if queue.lanes > 0 {
                queue.add(waiting);
            }
            drop(queue);
            self.wake.notify_one();
        }
    }
}

impl Shared {
    /// Counts a delivered group out, after orphans were queued: nothing slips between.
    pub(super) fn delivered(&self, count: usize) {
        let mut queue = self.locked();
        queue.under_way -= count;
        if self.gathers && queue.under_way == 0 {
            self.trouble.rests(0);
        }
        if queue.under_way == 0 && queue.waiting.is_empty() {
            self.idle.notify_waiters();
            if queue.closed {
                self.wake.notify_one();
            }
        }
    }
}

/// One lane: commits group after group.
struct Lane {
    shared: Arc<Shared>,
    place: usize,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut queue = self.shared.locked();
        queue.lanes -= 1;
        if queue.lanes == 0 {
            // The runtime ends, or all is done: whoever still waits hears that the lane ended.
            queue.closed = true;
            queue.under_way = 0;
            queue.waiting.clear();
            self.shared.idle.notify_waiters();
        }
    }
}

impl Lane {
    async fn run(&self) {
        let shared = &self.shared;
        let mut patient = true;
        loop {
            let notified = shared.wake.notified();
            shared.gathered().await;
            let group = shared.next_group(patient);
            patient = true;
            if group.is_empty() {
                let (ended, held_back) = {
                    let queue = shared.locked();
                    let empty = queue.waiting.is_empty() && queue.under_way == 0;
                    (queue.closed && empty, queue.waiting.has_ready())
                };
                if ended {
                    // The other lanes sleep on the same bell.
                    shared.wake.notify_one();
                    return;
                }
                if held_back {
                    patient = tokio::time::timeout(PATIENCE, notified).await.is_ok();
                } else {
                    notified.await;
                }
                continue;
            }
            let batches = group.iter().map(|waiting| waiting.batch.clone()).collect();
            shared.trouble.waits(self.place);
            let commit = AssertUnwindSafe(shared.store.commit(batches)).catch_unwind();
            let result = commit.await.unwrap_or_else(|_| {
                Err(StoreError::Unknown("the store panicked while it committed".into()))
            });
            shared.trouble.rests(self.place);
            shared.finished(&group);
            shared.trouble.note(result.as_ref().map(|committed| &committed.answers[..]));
            let mut answers = match result {
                Ok(committed) => committed.answers.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error); group.len()],
            }
            .into_iter();
            let mut ended = 0;
            for waiting in group {
                let missing = || Err(StoreError::Unknown("the store left out an answer".into()));
                ended +=
                    usize::from(shared.deliver(waiting, answers.next().unwrap_or_else(missing)));
            }
            // Before this lane looks again, so that it does not hold itself back.
            shared.locked().committing -= 1;
            shared.delivered(ended);
        }
    }
}
