//! The engine: the only loop of load → decide → commit.
//!
//! Every operation is a pure decision of `onceward_core`, driven against a store: batches go out in
//! groups, lost answers are settled by sending the same batch again, waiters are bounded. HTTP,
//! workers, relays and projections call the engine; nobody else commits.
//!
//! Verdicts are answers. An [`EngineError`] means that there is none.

mod alive;
#[cfg(feature = "events")]
mod appends;
mod behind;
mod claims;
mod documents;
mod erasures;
mod error;
mod fair;
mod handed;
mod hands;
mod heard;
mod jobs;
mod lines;
mod look;
mod notes;
mod options;
mod owed;
#[cfg(feature = "sqlite")]
mod own;
#[cfg(feature = "postgres")]
mod own_transaction;
mod queues;
mod scheduler;
mod sight;
mod sweep;
mod trouble;
mod turns;
mod wait;

pub use alive::AliveHere;
#[cfg(feature = "events")]
pub(crate) use appends::Waiting;
pub use claims::OnceVerdict;
pub use documents::{Document, Put, Seen, Turn};
#[cfg(feature = "http")]
pub(crate) use erasures::{ERASURES_MARKS, erasures_mark, erasures_subject};
pub use error::EngineError;
pub use jobs::{Pick, Picker, Take, Taken};
pub use notes::{NoteCounts, NoteWriting};
pub use options::EngineOptions;
pub(crate) use owed::OWED;
#[cfg(feature = "sqlite")]
pub use own::OwnSqlError;
#[cfg(feature = "postgres")]
pub use own_transaction::{Begun, Open};
pub use queues::{STORE_SPACE_PREFIX, STORE_TENANT};
pub use sweep::{SweepCounts, SweepReport};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onceward_core::batch::{Answer, Applied, Batch, Refused};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use onceward_core::decide::Completion;
use onceward_core::decide::{Clock, Facts, Look, Step};
use onceward_core::drive::{Drive, End, Heard, Move};
use onceward_core::key::Key;
use onceward_core::record::State;
use onceward_core::stamp::Token;

use crate::store::{Capabilities, Fact, Loaded, Read, Standing, Store, StoreError};
use heard::Clockwork;
use scheduler::Scheduler;
use sight::Sightings;
use turns::Turns;
use wait::Waiters;

/// Longest pause before a batch is sent again after a lost answer.
const RESEND_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs operations against a store. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    capabilities: Capabilities,
    scheduler: Scheduler,
    waiters: Arc<Waiters>,
    sightings: Sightings,
    alive: Arc<alive::Alive>,
    turns: Turns,
    #[cfg(feature = "events")]
    reached: appends::Reached,
    places: jobs::Places,
    hands: hands::Hands,
    ahead: hands::Ahead,
    rounds: Arc<fair::Rounds>,
    notes: notes::Notes,
    sweeps: sweep::Sweeps,
    options: EngineOptions,
    tokens: Tokens,
    heard: Clockwork,
}

impl Engine {
    /// An engine with default options. Must be called within a tokio runtime.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_options(store, EngineOptions::default())
    }

    /// An engine with these options. Must be called within a tokio runtime.
    #[must_use]
    pub fn with_options(store: Arc<dyn Store>, options: EngineOptions) -> Self {
        let waiters = Arc::new(Waiters::new(options.waiters_per_key_max, options.waiters_max));
        let rounds = Arc::<fair::Rounds>::default();
        let scheduler = Scheduler::start(
            store.clone(),
            (waiters.clone(), rounds.clone()),
            options.batches_waiting_max,
            options.contended_for,
        );
        Self(Arc::new(Inner {
            capabilities: store.capabilities(),
            store,
            scheduler,
            waiters,
            sightings: Sightings::default(),
            alive: Arc::default(),
            turns: Turns::default(),
            #[cfg(feature = "events")]
            reached: appends::Reached::default(),
            places: jobs::Places::default(),
            hands: hands::Hands::default(),
            ahead: hands::Ahead::default(),
            rounds,
            notes: notes::Notes::default(),
            sweeps: sweep::Sweeps::default(),
            options,
            tokens: Tokens::new(),
            heard: Clockwork::default(),
        }))
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    /// How the store is now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.0.store.standing()
    }

    /// Whether both work on one store, as far as this process can tell: what one of them has
    /// claimed, the other one finds.
    #[cfg(feature = "http")]
    pub(crate) fn shares_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.store, &other.0.store)
    }

    /// How many callers wait for a key that someone else runs.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiters.count()
    }

    /// Takes no further work, commits what waits, and closes the store.
    ///
    /// # Errors
    /// When the store can't be closed.
    pub async fn close(&self) -> Result<(), EngineError> {
        self.close_notes().await;
        self.0.scheduler.close();
        self.0.scheduler.drained().await;
        Ok(self.0.store.close().await?)
    }

    /// Drives one operation to its end. `key` is the record that it is about.
    async fn drive<T, A>(
        &self,
        key: Option<&Key>,
        mut drive: Drive<T>,
        mut decide: impl FnMut(Token, &Facts) -> Step<T, A>,
    ) -> Result<End<T, A>, EngineError> {
        loop {
            self.watch_lease(key, &mut drive.facts);
            match drive.next(decide(self.0.tokens.next(), &drive.facts)) {
                Move::End(End::GaveUp) => return Err(EngineError::Contended("time after time")),
                Move::End(end) => return Ok(end),
                Move::Look(looks) => self.look_up(&looks, &mut drive.facts).await?,
                Move::Commit(batch) => {
                    let answer = self.commit(batch, &drive).await?;
                    match drive.answered(answer) {
                        Heard::Committed { meaning, batch, applied } => {
                            return Ok(End::Committed { meaning, batch, applied });
                        }
                        Heard::DecideAgain => {}
                        Heard::SendAgain(_) => {
                            return Err(EngineError::Contended("for as long as it was tried"));
                        }
                    }
                }
            }
        }
    }

    /// Commits a batch; after a lost answer the same batch is sent again until its time is over.
    async fn commit<T>(
        &self,
        mut batch: Arc<Batch>,
        drive: &Drive<T>,
    ) -> Result<Answer, EngineError> {
        let mut lost: Option<(Instant, Duration)> = None;
        loop {
            let asked = Instant::now();
            let answer = self.0.scheduler.submit(batch).await;
            match &answer {
                Ok(Answer::Applied(Applied { now, again: false, .. }))
                | Ok(Answer::Refused(Refused { now, .. })) => self.0.heard.note(asked, *now),
                _ => {}
            }
            let error = match answer {
                // The first try may still hold the row: that settles nothing.
                Ok(Answer::Contended) if lost.is_some() => "a row is held".to_string(),
                Ok(answer) => return Ok(answer),
                // After a first lost answer every later failure speaks only of the later try.
                Err(error) if lost.is_some() || matches!(error, StoreError::Unknown(_)) => {
                    error.to_string()
                }
                Err(error) => return Err(error.into()),
            };
            let (until, pause) = lost.unwrap_or_else(|| {
                let until = later(Instant::now(), self.0.options.resend_for);
                (until, self.0.options.resend_pause)
            });
            if later(Instant::now(), pause) > until {
                return Err(StoreError::Unknown(error).into());
            }
            let Some(again) = drive.lost() else {
                return Err(StoreError::NotApplied(error).into());
            };
            batch = again;
            tokio::time::sleep(pause).await;
            lost = Some((until, (pause * 2).min(RESEND_PAUSE_MAX)));
        }
    }

    async fn look_up(&self, looks: &[Look], facts: &mut Facts) -> Result<(), EngineError> {
        let loaded = self.load_looks(looks.iter()).await?;
        facts.now = loaded.now;
        learn_looks(looks, &mut loaded.facts.into_iter(), facts)
    }

    async fn load_looks(&self, looks: impl Iterator<Item = &Look>) -> Result<Loaded, EngineError> {
        let reads = looks.map(|look| match look {
            Look::Record(key) => Read::Record { key: key.clone(), payload: false },
            Look::Mark(subject) => Read::Mark(subject.clone()),
        });
        let reads = reads.collect();
        let asked = Instant::now();
        let loaded = self.0.store.load(reads).await?;
        self.0.heard.note(asked, loaded.now);
        Ok(loaded)
    }

    /// How the lease of a running record is judged, where the store's clock alone does not say: one
    /// whose attempt is alive here goes on. One that was granted before the machine was started
    /// again is counted from the first opening after it. Without a clock it is counted for as long
    /// as its rev has been seen unchanged.
    fn watch_lease(&self, key: Option<&Key>, facts: &mut Facts) {
        let capabilities = &self.0.capabilities;
        let there = key.and_then(|key| facts.record(key)).flatten().map(|stored| &stored.record);
        let running = there.filter(|record| record.state == State::Running);
        let watched = match running {
            Some(record) if self.0.alive.has(record) => Some(0),
            Some(record) if !capabilities.clock => {
                Some(self.0.sightings.note(&record.key, record.rev))
            }
            Some(record) => {
                let anew = capabilities.leases_anew.filter(|anew| record.rev <= anew.upto);
                anew.map(|anew| facts.now.0.saturating_sub(anew.since.0))
            }
            None if !capabilities.clock => {
                if let Some(record) = there {
                    self.0.sightings.forget(&record.key);
                }
                Some(0)
            }
            _ => None,
        };
        facts.clock = watched.map_or(Clock::Store, |unchanged_ms| Clock::Watched { unchanged_ms });
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.0.capabilities.name).finish_non_exhaustive()
    }
}

/// Notes what was found, in the order in which it was looked for.
fn learn_looks(
    looks: &[Look],
    found: &mut impl Iterator<Item = Fact>,
    facts: &mut Facts,
) -> Result<(), EngineError> {
    for look in looks {
        match (look, found.next()) {
            (Look::Record(key), Some(Fact::Record(found))) => {
                facts.learn_record(key, found.map(|found| found.stored));
            }
            (Look::Mark(subject), Some(Fact::Mark(mark))) => {
                facts.learn_position(subject, mark.map_or(0, |mark| mark.position));
            }
            _ => {
                let why = "the store answered another read than was asked";
                return Err(StoreError::Corrupt(why.into()).into());
            }
        }
    }
    Ok(())
}

/// What stands in for an outcome until the caller's work has made it.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn blank_completion() -> Completion {
    Completion::new(b"".as_slice().into())
}

/// `now` and a while; as good as never when that can't be told.
fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or(now + Duration::from_secs(30 * 365 * 86_400))
}

/// Tokens: a random start per engine and a counter, so that no two batches anywhere share one.
struct Tokens {
    prefix: u64,
    counter: AtomicU64,
}

impl Tokens {
    fn new() -> Self {
        Self { prefix: random_u64(), counter: AtomicU64::new(random_u64()) }
    }

    fn next(&self) -> Token {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed);
        Token(u128::from(self.prefix) << 64 | u128::from(counter))
    }
}

/// A random number from the operating system.
pub(crate) fn random_u64() -> u64 {
    #[expect(clippy::expect_used, reason = "without randomness two processes could share a token")]
    getrandom::u64().expect("the operating system gives random numbers")
}
