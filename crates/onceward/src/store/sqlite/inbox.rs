//! What the writer is told: calls that wait for it, and what is asked for beside them.
//!
//! Nothing is done here; a call that is taken is answered by whoever takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use onceward_core::batch::{Answer, Batch};
use tokio::sync::oneshot;

use super::super::{Committed, StoreError};
use super::own::OwnSql;
use super::{Shared, sync};

/// How long whoever erases waits for those who keep the log from being cut.
pub(super) const SCRUB_WITHIN: Duration = Duration::from_secs(10);
/// How long the writer waits for them at a time, and how long it works meanwhile.
pub(super) const SCRUB_PATIENCE: Duration = Duration::from_millis(25);
/// How often it is tried while somebody waits, after the second time: the writer is kept from its
/// work meanwhile.
const SCRUB_SOON: Duration = Duration::from_millis(250);
/// How often it is tried when nobody waits any more.
const SCRUB_AGAIN: Duration = Duration::from_secs(1);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What is asked for, and where its answer goes.
pub(super) enum Call {
    /// Batches that came together.
    Group { group: Vec<Arc<Batch>>, reply: Reply<Committed> },
    /// A batch.
    One { batch: Arc<Batch>, reply: Reply<Answer> },
    /// The caller's own SQL and the batches that it makes, each on its own.
    Own { group: Vec<Arc<dyn OwnSql>>, reply: Reply<Committed> },
}

impl Call {
    /// How many answers it takes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Group { group, .. } => group.len(),
            Self::Own { group, .. } => group.len(),
            Self::One { .. } => 1,
        }
    }

    /// Its answer, made of the next of all answers.
    pub(super) fn answered(self, answers: &mut impl Iterator<Item = Answer>) -> sync::Answer {
        let missing = || StoreError::Unknown("the writer left out an answer".into());
        let count = self.len();
        match self {
            Self::Group { reply, .. } | Self::Own { reply, .. } => {
                let answers = answers.take(count).collect();
                sync::Answer::Commit((reply, Ok(Committed { answers })))
            }
            Self::One { reply, .. } => {
                sync::Answer::One((reply, answers.next().ok_or_else(missing)))
            }
        }
    }

    /// Tells that it failed. Whoever asked may have gone away meanwhile.
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Group { reply, .. } | Self::Own { reply, .. } => drop(reply.send(Err(error))),
            Self::One { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// What the writer is told.
pub(super) enum Message {
    Commit(Call),
    /// A sync of the log begins; said when the writer asked for it.
    Syncing,
    /// What the database has reached is to be taken down ([`Log::take`]).
    Note,
    /// What was deleted so far is to be nowhere in the log.
    Scrub(oneshot::Sender<bool>),
    Stop,
}

/// What the writer does next.
pub(super) enum Work {
    Call(Call),
    /// Look after the log: someone has asked for it, or it is time to.
    Tend,
}

/// What is asked for beside calls.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) note: bool,
    /// Who waits until what they have erased is nowhere in the log, and until when.
    pub(super) scrubs: Vec<(oneshot::Sender<bool>, Instant)>,
    /// When the log is to be cut, for them or after them.
    pub(super) scrub_at: Option<Instant>,
    /// Whether that was tried in vain since it was asked for.
    tried: bool,
}

/// Calls that wait.
pub(super) struct Inbox {
    pub(super) messages: Receiver<Message>,
    /// Where whoever syncs the log tells that it begins.
    pub(super) own: Sender<Message>,
    pub(super) shared: Arc<Shared>,
    pub(super) asked: Asked,
    pub(super) stopped: bool,
}

/// Tells a call that nothing was done, and why.
pub(super) fn not_applied(call: Call, why: &impl std::fmt::Display) {
    call.fail(StoreError::NotApplied(why.to_string()));
}

impl Work {
    pub(super) fn call(self) -> Option<Call> {
        match self {
            Self::Call(call) => Some(call),
            Self::Tend => None,
        }
    }

    /// Nothing comes of it.
    pub(super) fn refuse(self, why: &impl std::fmt::Display) {
        if let Self::Call(call) = self {
            not_applied(call, why);
        }
    }
}

/// Somebody who has waited in vain.
pub(super) struct Late(#[expect(dead_code, reason = "dropped, it tells")] oneshot::Sender<bool>);

impl Asked {
    fn scrub(&mut self, reply: oneshot::Sender<bool>) {
        let now = Instant::now();
        self.scrubs.push((reply, now + SCRUB_WITHIN));
        self.scrub_at = Some(now);
        self.tried = false;
    }

    /// What is asked for could not be done: the log is cut later, and a note is asked for again by
    /// who wants it. Answers those who have waited long
    /// enough: they hear so when that is dropped.
    pub(super) fn put_off(&mut self) -> Vec<Late> {
        let now = Instant::now();
        let late = self.scrubs.extract_if(.., |(_, until)| *until <= now);
        let late = late.map(|(reply, _)| Late(reply)).collect();
        self.note = false;
        let again = match (self.scrubs.is_empty(), self.tried) {
            (true, _) => SCRUB_AGAIN,
            (false, false) => SCRUB_PATIENCE,
            (false, true) => SCRUB_SOON,
        };
        self.tried = true;
        self.scrub_at = self.scrub_at.map(|_| now + again);
        late
    }

    /// The log was cut: tells all who wait for it.
    pub(super) fn scrubbed(&mut self) {
        self.scrub_at = None;
        for (reply, _) in self.scrubs.drain(..) {
            // Whoever asked may have gone away meanwhile.
            let _ = reply.send(true);
        }
    }

    /// Whether there is something to do now.
    fn is_due(&self) -> bool {
        self.note || self.scrub_at.is_some_and(|at| at <= Instant::now())
    }
}

impl Inbox {
    /// Waits for something to do. None when there is nothing to come.
    pub(super) fn next(&mut self) -> Option<Work> {
        while !self.stopped {
            if self.asked.is_due() {
                return Some(Work::Tend);
            }
            let message = match self.asked.scrub_at {
                None => self.messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    self.messages.recv_timeout(at.saturating_duration_since(Instant::now()))
                }
            };
            match message {
                Ok(message) => {
                    if let Some(call) = self.hear(message) {
                        return Some(Work::Call(call));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.stopped = true,
            }
        }
        None
    }

    /// Takes a message in; answers the call, if it is one.
    fn hear(&mut self, message: Message) -> Option<Call> {
        match message {
            Message::Commit(call) => return Some(self.take(call)),
            Message::Note => self.asked.note = true,
            Message::Scrub(reply) => self.asked.scrub(reply),
            Message::Syncing => {}
            Message::Stop => self.stopped = true,
        }
        None
    }

    /// Adds all calls that wait: what has just failed for one would fail for each of them, and
    /// perhaps take as long.
    pub(super) fn add_all(&mut self, calls: &mut Vec<Call>) {
        while let Ok(message) = self.messages.try_recv() {
            calls.extend(self.hear(message));
        }
    }

    /// A further call for the open transaction: one that waits, or one that comes as long as the
    /// commit would only wait for another.
    pub(super) fn more(&mut self) -> Option<Call> {
        while !self.stopped {
            let message = match self.messages.try_recv() {
                Err(_) if !self.shared.sync.is_busy(&self.own) => return None,
                Err(_) => self.messages.recv().unwrap_or(Message::Stop),
                Ok(message) => message,
            };
            if let Some(call) = self.hear(message) {
                return Some(call);
            }
        }
        None
    }

    /// Counts a call as one that waits no longer.
    fn take(&self, call: Call) -> Call {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_what_could_not_be_done_is_not_due_again_at_once() {
        let mut asked = Asked { note: true, ..Asked::default() };
        assert!(asked.is_due());
        drop(asked.put_off());
        assert!(!asked.is_due() && asked.scrub_at.is_none());
    }

    #[test]
    fn m6_while_somebody_waits_the_writer_mostly_works() {
        let mut asked = Asked::default();
        for _ in 0..2 {
            let (reply, _answer) = oneshot::channel();
            asked.scrub(reply);
            let mut pauses = Vec::new();
            for _ in 0..3 {
                let now = Instant::now();
                assert_eq!(asked.put_off().len(), 0);
                pauses.push(asked.scrub_at.unwrap().duration_since(now));
            }
            assert!(pauses[0] >= SCRUB_PATIENCE && pauses[0] < SCRUB_SOON, "{pauses:?}");
            assert!(pauses[1..].iter().all(|pause| *pause >= SCRUB_SOON), "{pauses:?}");
            assert!(pauses[2] < SCRUB_AGAIN, "{pauses:?}");
        }
    }
}
