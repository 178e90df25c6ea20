//! Durability: answers are held until the log that has what they tell is on the disk.
//!
//! The writer commits without waiting for the disk (`synchronous=NORMAL`) and hands its answers to
//! this thread, which syncs the log and lets them go while the writer applies the next group.
//! Nobody hears of a commit that a power loss could take back: neither who made it, nor who was
//! refused because of it, nor a reader. That is what `synchronous=FULL` promises, without a writer
//! that waits. Checkpoints sync by themselves, in SQLite's own order.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use onceward_core::batch;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::super::{Committed, Loaded, Page, StoreError};
use super::inbox::Message;

/// Brings the log to the disk: what was written before it began is there when it ends.
pub(super) type Disk = dyn Fn() -> io::Result<()> + Send;

/// Answers that are not told by the thread that syncs.
const MANY: usize = 4;

type Reply<T> = (oneshot::Sender<Result<T, StoreError>>, Result<T, StoreError>);

/// An answer and where it goes.
pub(super) enum Answer {
    Commit(Reply<Committed>),
    One(Reply<batch::Answer>),
    Load(Reply<Loaded>),
    List(Reply<Page>),
}

/// Numbers the commits and holds what may not be told yet.
#[derive(Debug, Default)]
pub(super) struct Sync {
    /// The last commit that was begun: whatever a reader sees is not newer than this.
    begun: AtomicU64,
    /// The last commit that is in the log, or failed.
    written: AtomicU64,
    /// The last commit that is on the disk.
    durable: AtomicU64,
    /// How long the latest sync took, in nanoseconds; 0 if there was none.
    took: AtomicU64,
    held: Mutex<Held>,
    filled: Condvar,
    /// Where whoever commits waits for answers.
    runtime: OnceLock<Handle>,
}

#[derive(Default)]
struct Held {
    /// Answers, each with the commit that has to be durable before it is told.
    answers: Vec<(u64, Answer)>,
    /// Threads that may still hand in answers.
    producers: usize,
    /// The last commit that was in the log when the latest sync began.
    covered: u64,
    /// Whom to tell when the next one begins.
    waiting: Option<Sender<Message>>,
    /// Why nothing can be made durable any more.
    broken: Option<String>,
}

impl Sync {
    /// Lets every answer go at once: someone asked for less durability, or nothing is written.
    pub(super) fn hold_nothing(&self) {
        self.durable.store(u64::MAX, Ordering::Release);
    }

    /// Notes where answers are waited for, at the first call. Not a runtime that works only while
    /// somebody waits in it.
    pub(super) fn answer_here(&self) {
        if self.runtime.get().is_none()
            && let Ok(here) = Handle::try_current()
            && here.runtime_flavor() == RuntimeFlavor::MultiThread
        {
            self.runtime.get_or_init(|| here);
        }
    }

    /// A commit begins. To be called before it can be seen.
    pub(super) fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// A commit has ended, well or badly. To be called before its answers are handed in.
    pub(super) fn end(&self, commit: u64) {
        self.written.store(commit, Ordering::Release);
    }

    /// The last commit that anyone may have seen by now.
    pub(super) fn seen(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Lets answers go once a commit is durable: at once, if it is.
    pub(super) fn tell(&self, commit: u64, answers: impl Iterator<Item = Answer>) {
        if self.durable.load(Ordering::Acquire) >= commit {
            return Told(answers.collect()).send(self.runtime.get());
        }
        let mut held = self.locked();
        held.answers.extend(answers.map(|answer| (commit, answer)));
        drop(held);
        self.filled.notify_one();
    }

    /// The last commit that can't be taken back any more; where less was asked for, the last that
    /// has begun, before which all its names were known. `None` once the disk has failed.
    pub(super) fn settled(&self) -> Option<u64> {
        let durable = self.durable.load(Ordering::Acquire).min(self.seen());
        self.locked().broken.is_none().then_some(durable)
    }

    /// Whether a commit waits for its sync to begin: the next one would only wait with it, so its
    /// writer may as well gather more, and is told ([`Message::Syncing`]) when that sync begins.
    /// One commit is made while the one before it is synced, and is in the log when that ends.
    pub(super) fn is_busy(&self, writer: &Sender<Message>) -> bool {
        let mut held = self.locked();
        let waits = !held.answers.is_empty() && self.written.load(Ordering::Acquire) > held.covered;
        let busy = held.broken.is_none() && waits;
        if busy && held.waiting.is_none() {
            held.waiting = Some(writer.clone());
        }
        busy
    }

    /// Whether the disk has nothing to do although the transaction that began at `begun` has been
    /// open for as long as a sync takes. Shorter ones are not worth the pages of a commit of their
    /// own; twice as long, and callers gather in one group again.
    pub(super) fn lacks_work(&self, begun: Instant) -> bool {
        let took = self.took.load(Ordering::Relaxed);
        let idle = self.durable.load(Ordering::Acquire) >= self.written.load(Ordering::Acquire);
        took > 0 && idle && begun.elapsed() >= Duration::from_nanos(took)
    }

    /// Nothing is made durable from now on, and why: the first reason counts.
    pub(super) fn give_up(&self, why: String) {
        self.locked().broken.get_or_insert(why);
    }

    /// The last commit that is on the disk.
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Why nothing can be committed any more, if so.
    pub(super) fn broken(&self) -> Option<String> {
        self.locked().broken.clone()
    }

    /// Counts a thread that hands in answers. Undone by [`Sync::leave`].
    pub(super) fn join(&self) {
        self.locked().producers += 1;
    }

    /// A thread hands in no further answers.
    pub(super) fn leave(&self) {
        self.locked().producers -= 1;
        self.filled.notify_one();
    }

    /// The thread: syncs the log whenever an answer waits for it, until no more can come.
    pub(super) fn run(&self, log: &Disk) {
        let mut answers = Vec::new();
        while self.take(&mut answers) {
            // Whatever was written before the sync begins is durable after it.
            let written = self.written.load(Ordering::Acquire);
            let mut broken = self.begins(written);
            // Not tried again: a disk that lost what it was given may say yes the next time.
            if broken.is_none() {
                let begun = Instant::now();
                match log() {
                    Ok(()) => {
                        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                        self.took.store(took.max(1), Ordering::Relaxed);
                        self.durable.store(written, Ordering::Release);
                    }
                    Err(error) => {
                        broken = Some(format!(
                            "the log can't be synced: {error}; close the store and look at the disk"
                        ));
                    }
                }
                if let Some(why) = &broken {
                    self.give_up(why.clone());
                }
            }
            let mut early = Vec::new();
            let mut told = Told(Vec::with_capacity(answers.len()));
            for (commit, answer) in answers.drain(..) {
                match &broken {
                    Some(why) => answer.fail(why),
                    None if commit <= written => told.0.push(answer),
                    None => early.push((commit, answer)),
                }
            }
            told.send(self.runtime.get());
            // What waits for a commit that has not ended: its writer hands in more soon.
            self.locked().answers.append(&mut early);
        }
    }

    /// A sync of what is written begins, unless the disk has failed before, and how.
    fn begins(&self, written: u64) -> Option<String> {
        let mut held = self.locked();
        held.covered = written;
        if let Some(writer) = held.waiting.take() {
            // A writer that is gone has nothing left to commit.
            let _ = writer.send(Message::Syncing);
        }
        held.broken.clone()
    }

    /// Waits until an answer can be told. False when none can come any more.
    fn take(&self, answers: &mut Vec<(u64, Answer)>) -> bool {
        let mut held = self.locked();
        loop {
            let written = self.written.load(Ordering::Acquire);
            if held.answers.iter().any(|(commit, _)| *commit <= written) {
                answers.append(&mut held.answers);
                return true;
            }
            if held.producers == 0 {
                return false;
            }
            held = self.filled.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers that may be told: at the latest when this is dropped.
struct Told(Vec<Answer>);

impl Told {
    /// Tells all. Waking a task costs least where the tasks are: many are told by one of their own
    /// kind, so that the disk gets its next sync at once.
    fn send(self, runtime: Option<&Handle>) {
        if let (MANY.., Some(runtime)) = (self.0.len(), runtime) {
            runtime.spawn(async move { drop(self) });
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Answer::send);
    }
}

impl Answer {
    /// Tells it. Whoever asked may have gone away meanwhile.
    fn send(self) {
        match self {
            Self::Commit((to, answer)) => drop(to.send(answer)),
            Self::One((to, answer)) => drop(to.send(answer)),
            Self::Load((to, answer)) => drop(to.send(answer)),
            Self::List((to, answer)) => drop(to.send(answer)),
        }
    }

    /// Tells that nothing can be made durable: a commit may or may not be there.
    fn fail(self, why: &str) {
        let (unknown, nothing) =
            (StoreError::Unknown(why.into()), StoreError::NotApplied(why.into()));
        match self {
            Self::Commit((to, Ok(_))) => drop(to.send(Err(unknown))),
            Self::One((to, Ok(_))) => drop(to.send(Err(unknown))),
            Self::Load((to, Ok(_))) => drop(to.send(Err(nothing))),
            Self::List((to, Ok(_))) => drop(to.send(Err(nothing))),
            failed => failed.send(),
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("producers", &self.producers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
