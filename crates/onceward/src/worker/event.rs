//! What a worker says about what it does: events for whoever listens, and counts of them.
//!
//! A listener is called in line and must be quick. Payloads and raw keys are not in an event's
//! text; the key is there for those who may see it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward_core::decide::Permit;
use onceward_core::key::Key;

use super::lease::Cut;
use crate::engine::Engine;

/// A step of an attempt that needs its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The lease was to be renewed.
    Renew,
    /// The outcome was to be recorded.
    Complete,
    /// The failure was to be recorded.
    Fail,
}

impl Step {
    /// The word in the audit.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Complete => "complete",
            Self::Fail => "fail",
        }
    }
}

/// What happened to an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// It was taken; its handler starts.
    Taken,
    /// Its handler has returned; nothing is recorded yet.
    Returned,
    /// It is done, and that is recorded.
    Done,
    /// It failed and is tried again.
    Failed {
        /// Why.
        error: String,
        /// After how long.
        again_in: Duration,
    },
    /// It is poison: a dead letter.
    Dead {
        /// Why.
        error: String,
    },
    /// Its handler broke off, and the job is one that is held then: a person decides.
    Unknown {
        /// How.
        error: String,
    },
    /// Its handler was cut.
    Cut(Cut),
    /// The store refused a step of it, because another attempt was granted: the typed error that a
    /// late worker gets.
    Refused(Step),
    /// It handed in writes over documents that others changed meanwhile: the handler runs again.
    Overtaken,
}

/// One event of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Whose job.
    pub key: Key,
    /// Of which attempt.
    pub fence: u64,
    /// Its number.
    pub attempt: u32,
    /// What.
    pub happened: Happened,
}

/// How often each thing has happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that were started.
    pub taken: u64,
    /// Jobs that are done.
    pub done: u64,
    /// Attempts that failed and are tried again.
    pub failed: u64,
    /// Jobs that are dead letters now.
    pub dead: u64,
    /// Jobs that wait for a person: nobody knows what their handlers did.
    pub unknown: u64,
    /// Handlers that were cut.
    pub cut: u64,
    /// Steps of late attempts that were refused.
    pub refused: u64,
    /// Handlers that ran again because others wrote first.
    pub overtaken: u64,
}

pub(crate) type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Counts, and tells those who listen.
#[derive(Clone, Default)]
pub(crate) struct Observer(Arc<Inner>);

#[derive(Default)]
struct Inner {
    listeners: Vec<Listener>,
    taken: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    dead: AtomicU64,
    unknown: AtomicU64,
    cut: AtomicU64,
    refused: AtomicU64,
    overtaken: AtomicU64,
}

impl Observer {
    pub(crate) fn new(listeners: Vec<Listener>) -> Self {
        Self(Arc::new(Inner { listeners, ..Inner::default() }))
    }

    pub(crate) fn tell(&self, permit: &Permit, happened: Happened) {
        let counter = match &happened {
            Happened::Taken => Some(&self.0.taken),
            Happened::Returned => None,
            Happened::Done => Some(&self.0.done),
            Happened::Failed { .. } => Some(&self.0.failed),
            Happened::Dead { .. } => Some(&self.0.dead),
            Happened::Unknown { .. } => Some(&self.0.unknown),
            Happened::Cut(_) => Some(&self.0.cut),
            Happened::Refused(_) => Some(&self.0.refused),
            Happened::Overtaken => Some(&self.0.overtaken),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if self.0.listeners.is_empty() {
            return;
        }
        let event = Event {
            key: permit.key().clone(),
            fence: permit.fence.0,
            attempt: permit.record.attempt,
            happened,
        };
        self.0.listeners.iter().for_each(|listener| listener(&event));
    }

    /// A step of a late attempt was refused: told, and recorded in the audit as well as it can be.
    pub(crate) async fn refused(&self, engine: &Engine, permit: &Permit, step: Step) {
        self.tell(permit, Happened::Refused(step));
        let _ = engine.note_refused(permit, step.as_str()).await;
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            taken: of(&self.0.taken),
            done: of(&self.0.done),
            failed: of(&self.0.failed),
            dead: of(&self.0.dead),
            unknown: of(&self.0.unknown),
            cut: of(&self.0.cut),
            refused: of(&self.0.refused),
            overtaken: of(&self.0.overtaken),
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
