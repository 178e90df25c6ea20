//! The workload: many workers through the real engine against any store, then an audit.
//!
//! Workers claim, take effect, hand in, fail, vanish, commit at once, make and take jobs, sweep.
//! Each has an engine of its own, as if it were a process, and all of them meet the faults of a
//! plan. Effects go to a plain append list. Afterwards everything is brought to rest without
//! faults, and what was acknowledged, replayed and done is compared with what is there.
//!
//! What each worker does follows from the seed; how the workers interleave does not.

mod book;

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::Bytes;
use onceward_core::decide::{
    Change, Claim, Completion, Effects, Finish, JobOrder, NewJob, Permit, Resolution, Retry,
    Verdict,
};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::{Body, State, Terms};

use super::faulty::{FaultPlan, FaultyStore};
use super::harness::Harness;
use super::random::Random;
use super::sim::Violation;
use crate::engine::{Engine, EngineError, EngineOptions, OnceVerdict, Take};
use crate::store::Store;
use book::Book;

pub use book::WorkloadReport;

const TENANT: &str = "workload";
const QUEUE: &str = "work";
/// How often a clock that tests move is moved.
const TICK: Duration = Duration::from_millis(5);
/// How long everything may take to come to rest, in leases.
const REST_LEASES: u32 = 200;

/// How much is done.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Determines what each worker does.
    pub seed: u64,
    /// Workers at once.
    pub workers: usize,
    /// Keys of each kind: leased, committed at once, jobs.
    pub keys: usize,
    /// What each worker does, one after the other.
    pub rounds: usize,
    /// The lease of everything.
    pub lease_ms: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Self { seed: 1, workers: 6, keys: 12, rounds: 40, lease_ms: 150 }
    }
}

/// Runs a workload against a fresh store of the harness, under a plan of faults, and audits it.
///
/// # Errors
/// The first invariant that is broken.
pub async fn run(
    harness: &dyn Harness,
    faults: FaultPlan,
    workload: &Workload,
) -> Result<WorkloadReport, Violation> {
    let store = harness.open().await.map_err(|error| stuck(&error))?;
    let store = Arc::new(FaultyStore::new(store, faults));
    tokio::select! {
        audited = run_on(harness, store, workload) => audited,
        () = tick(harness) => Err(stuck(&"its clock can't be moved")),
    }
}

/// Lets a store's clock that tests move go with real time.
async fn tick(harness: &dyn Harness) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        match harness.advance(TICK.as_millis().try_into().unwrap_or(u64::MAX)).await {
            Ok(true) => {}
            // It runs by itself.
            Ok(false) => std::future::pending().await,
            Err(_) => return,
        }
    }
}

async fn run_on(
    harness: &dyn Harness,
    store: Arc<FaultyStore>,
    workload: &Workload,
) -> Result<WorkloadReport, Violation> {
    let names = Names::new(workload).map_err(|error| stuck(&error))?;
    let shared = Arc::new(Shared { names, book: Book::default(), lease_ms: workload.lease_ms });
    let worker = |index: usize, store: Arc<dyn Store>| Worker {
        index,
        engine: Engine::with_options(store, options()),
        shared: shared.clone(),
        random: Random::new(workload.seed.wrapping_add(index as u64 * 7_919)),
    };
    let tasks: Vec<_> = (0..workload.workers)
        .map(|index| tokio::spawn(worker(index, store.clone()).run(workload.rounds)))
        .collect();
    for task in tasks {
        task.await.map_err(|error| stuck(&error))?;
    }
    store.set_plan(FaultPlan::Quiet);
    store.release_delayed().await;
    let mut healer = worker(workload.workers, store.inner().clone());
    healer.heal().await?;
    harness.settle().await.map_err(|error| stuck(&error))?;
    book::audit(&healer.engine, &shared.names, &shared.book).await
}

/// Retries end soon: a test has no time to wait for a store that is gone.
fn options() -> EngineOptions {
    EngineOptions {
        resend_for: Duration::from_millis(400),
        resend_pause: Duration::from_millis(1),
        contended_for: Duration::from_millis(100),
        poll_first: Duration::from_millis(2),
        poll_max: Duration::from_millis(20),
        ..EngineOptions::default()
    }
}

/// Everything that has a name.
struct Names {
    leased: Vec<Key>,
    once: Vec<Key>,
    jobs: Vec<Key>,
    order: JobOrder,
    document: Subject,
}

impl Names {
    fn new(workload: &Workload) -> Result<Self, LimitError> {
        let of = |kind, scope: &str| -> Result<Vec<Key>, LimitError> {
            (0..workload.keys).map(|id| Key::new(kind, TENANT, scope, &id.to_string())).collect()
        };
        let jobs = of(Kind::Job, QUEUE)?;
        let any = Key::new(Kind::Job, TENANT, QUEUE, "any")?;
        Ok(Self {
            leased: of(Kind::Request, "leased")?,
            once: of(Kind::Request, "once")?,
            order: JobOrder::new(&any, "subject")?,
            jobs,
            document: Subject::new(TENANT, "documents", "1")?,
        })
    }
}

struct Shared {
    names: Names,
    book: Book,
    lease_ms: u64,
}

struct Worker {
    index: usize,
    engine: Engine,
    shared: Arc<Shared>,
    random: Random,
}

impl Worker {
    async fn run(mut self, rounds: usize) {
        for _ in 0..rounds {
            // An error is no answer: what it left behind is found by whoever comes next.
            let ended = match self.random.below(20) {
                0..8 => self.leased().await,
                8..14 => self.once().await,
                14..16 => self.enqueue().await,
                16..19 => self.take().await.map(drop),
                _ => self.engine.sweep(|_| ()).await.map(drop),
            };
            if ended.is_err() {
                self.shared.book.failed();
            }
        }
    }

    fn claim(&self, key: &Key) -> Claim {
        let mut claim = Claim::new(key.clone(), fingerprint_bytes(key.name_column().as_bytes()));
        claim.terms = self.terms();
        claim.owner = Some(format!("worker {}", self.index).into());
        claim
    }

    fn terms(&self) -> Terms {
        Terms { lease_ms: self.shared.lease_ms, ..Terms::default() }
    }

    /// An outcome that no other attempt has.
    fn outcome(&mut self) -> Bytes {
        format!("worker {} says {}", self.index, self.random.number()).into_bytes().into()
    }

    async fn leased(&mut self) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        let key = &shared.names.leased[self.random.index(shared.names.leased.len())];
        let claim = self.claim(key);
        let wait = Duration::from_millis(self.random.pick([0, 0, 5]));
        let asked = self.engine.claim_waiting(&claim, wait);
        let verdict = match self.random.below(8) {
            // The caller goes away in the middle: what it was granted is released.
            0 => match tokio::time::timeout(Duration::from_micros(50), asked).await {
                Ok(verdict) => verdict?,
                Err(_) => return Ok(()),
            },
            _ => asked.await?,
        };
        match verdict {
            Verdict::Run { permit, .. } => self.hold(permit).await,
            Verdict::Replay(stored) => {
                shared.book.replayed(key, stored.outcome);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What a permit's holder does with it.
    async fn hold(&mut self, permit: Permit) -> Result<(), EngineError> {
        let granted = Instant::now();
        self.shared.book.granted(&permit, self.index);
        match self.random.below(20) {
            // Vanishes.
            0 => return Ok(()),
            1 => return self.engine.release(&permit).await.map(drop),
            // Without a good answer the authority has ended.
            2 | 3 if self.engine.renew(&permit, None).await? != Finish::Ok => return Ok(()),
            _ if granted.elapsed() >= Duration::from_millis(self.shared.lease_ms) => return Ok(()),
            _ => {}
        }
        self.shared.book.effect(&permit);
        match self.random.below(20) {
            0 => Ok(()),
            1 => self.engine.fail(&permit, "it broke", Retry::In(1)).await.map(drop),
            2 => self.engine.abandon(&permit, "cut off").await.map(drop),
            _ => self.complete(&permit).await,
        }
    }

    async fn complete(&mut self, permit: &Permit) -> Result<(), EngineError> {
        let completion = completion(self.outcome(), Effects::default());
        let finish = self.engine.complete(permit, &completion).await?;
        if finish == Finish::Ok {
            self.shared.book.acknowledged(permit.key(), completion.outcome);
        }
        Ok(())
    }

    /// One commit: the key, its outcome, and one more version of the shared document.
    async fn once(&mut self) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        let key = &shared.names.once[self.random.index(shared.names.once.len())];
        self.once_for(key).await.map(drop)
    }

    async fn once_for(&mut self, key: &Key) -> Result<bool, EngineError> {
        let shared = self.shared.clone();
        let document = &shared.names.document;
        let expected = self.engine.mark(document).await?.map_or(0, |mark| mark.position);
        let outcome = self.outcome();
        let guard = Guard { subject: document.clone(), rule: Rule::Exactly { expected } };
        let mut effects = Effects::default();
        effects.changes.push(Change { guard, value: Body::Set(outcome.clone()) });
        let completion = completion(outcome, effects);
        Ok(match self.engine.run_once(&self.claim(key), &completion).await? {
            OnceVerdict::Ran { .. } => {
                shared.book.acknowledged(key, completion.outcome);
                true
            }
            OnceVerdict::Not(Verdict::Replay(stored)) => {
                shared.book.replayed(key, stored.outcome);
                true
            }
            OnceVerdict::Not(_) => false,
        })
    }

    async fn enqueue(&mut self) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        let key = &shared.names.jobs[self.random.index(shared.names.jobs.len())];
        let payload = key.name_column().as_bytes();
        let mut job = NewJob::new(key.clone(), fingerprint_bytes(payload), payload.into());
        job.terms = self.terms();
        job.order = Some(shared.names.order.clone());
        self.engine.enqueue(&job).await?;
        shared.book.made(key);
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, EngineError> {
        let take = Take {
            queue: QUEUE.into(),
            owner: format!("worker {}", self.index),
            max: 1 + self.random.index(2),
            lease_ms: None,
        };
        let taken = self.engine.take(&take).await?;
        let count = taken.len();
        for job in taken {
            self.hold(job.permit).await?;
        }
        Ok(count)
    }

    /// Brings every key to rest.
    async fn heal(&mut self) -> Result<(), Violation> {
        let shared = self.shared.clone();
        let rest = Duration::from_millis(shared.lease_ms) * REST_LEASES;
        let deadline = Instant::now() + rest;
        for key in &shared.names.leased {
            while !self.heal_leased(key, rest).await.map_err(|error| stuck(&error))? {
                in_time(deadline, key)?;
            }
        }
        for key in &shared.names.once {
            while !self.once_for(key).await.map_err(|error| stuck(&error))? {
                in_time(deadline, key)?;
            }
        }
        for key in shared.book.jobs() {
            while !self.job_ended(&key).await.map_err(|error| stuck(&error))? {
                in_time(deadline, &key)?;
                let due = self.take().await.map_err(|error| stuck(&error))?;
                if due == 0 {
                    // sleeps because only time ends the lease of a worker that vanished
                    tokio::time::sleep(Duration::from_millis(shared.lease_ms / 8)).await;
                }
            }
        }
        Ok(())
    }

    async fn heal_leased(&mut self, key: &Key, wait: Duration) -> Result<bool, EngineError> {
        let claim = self.claim(key);
        match self.engine.claim_waiting(&claim, wait).await? {
            Verdict::Run { permit, .. } => {
                self.shared.book.granted(&permit, self.index);
                self.shared.book.effect(&permit);
                self.complete(&permit).await?;
                Ok(true)
            }
            Verdict::Replay(stored) => {
                self.shared.book.replayed(key, stored.outcome);
                Ok(true)
            }
            Verdict::Unknown(_) => {
                let rerun = Resolution::Rerun { force: false };
                self.engine.resolve(key, &rerun, &Default::default()).await?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    async fn job_ended(&self, key: &Key) -> Result<bool, EngineError> {
        let found = self.engine.look(key).await?;
        Ok(found.is_some_and(|found| found.stored.record.state == State::Done))
    }
}

fn completion(outcome: Bytes, effects: Effects) -> Completion {
    let digest = fingerprint_bytes(&outcome);
    Completion { outcome, digest, retain_ms: None, effects }
}

fn in_time(deadline: Instant, key: &Key) -> Result<(), Violation> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(Violation { invariant: "i22", what: format!("{key} did not come to rest") })
}

fn stuck(error: &dyn std::fmt::Display) -> Violation {
    Violation {
        invariant: "i22",
        what: format!("the workload could not be brought to rest: {error}"),
    }
}
