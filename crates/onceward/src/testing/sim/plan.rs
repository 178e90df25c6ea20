//! The plan of one schedule: who is there, what they want, and what goes wrong.
//!
//! A plan is drawn from the seed before the first step. Names, keys and payloads are made once per
//! simulator and shared by all its schedules, so that a schedule costs few allocations.

use onceward_core::decide::JobOrder;
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::{OnAbandoned, OnDead, Terms};
use onceward_core::zoo::{Bug, planted};
use onceward_core::{Bytes, Text};

use crate::testing::random::Random;

/// What a schedule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Leases for an effect elsewhere.
    Leases,
    /// Leases and single commits under `exactly` and `above`.
    Guarded,
    /// Single commits with a document and an outbox job.
    Once,
    /// Jobs, ordered or not.
    Jobs,
    /// Events under `next`.
    Events,
    /// Leases that are held when abandoned, and hands that resolve them.
    Held,
    /// Short retention, many sweeps.
    Retention,
    /// Measurements under `not_before`.
    Times,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 8] = [
        Self::Leases,
        Self::Guarded,
        Self::Once,
        Self::Jobs,
        Self::Events,
        Self::Held,
        Self::Retention,
        Self::Times,
    ];
}

/// Requests, events, jobs and outbox jobs, in this order, so that an index tells the kind.
pub(super) const REQUESTS: usize = 4;
pub(super) const EVENTS: usize = 3;
pub(super) const JOBS: usize = 3;
pub(super) const FIRST_EVENT: usize = REQUESTS;
pub(super) const FIRST_JOB: usize = FIRST_EVENT + EVENTS;
pub(super) const FIRST_OUTBOX: usize = FIRST_JOB + JOBS;
pub(super) const KEYS: usize = FIRST_OUTBOX + REQUESTS;

/// Subjects by index.
pub(super) const DOCUMENT: usize = 0;
pub(super) const AGGREGATE: usize = 1;
pub(super) const STREAM: usize = 2;
pub(super) const TIMES: usize = 3;
pub(super) const TAIL: usize = 4;
pub(super) const TURN: usize = 5;
pub(super) const OUTBOX: usize = 6;
pub(super) const SUBJECTS: usize = 7;

/// Different outcomes that one schedule can have.
pub(super) const OUTCOMES: usize = 128;
const ATTEMPT_IDS: usize = 128;
const TENANT: &str = "acme";
const QUEUE: &str = "mail";

/// Everything that has a name.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) keys: Vec<Key>,
    pub(super) subjects: Vec<Subject>,
    pub(super) order: JobOrder,
    pub(super) outbox: JobOrder,
    pub(super) payloads: [(Fingerprint, Bytes); 2],
    pub(super) outcomes: Vec<(Bytes, Fingerprint)>,
    pub(super) owners: [Text; 2],
    pub(super) attempt_ids: Vec<Text>,
}

impl Catalog {
    pub(super) fn new() -> Result<Self, LimitError> {
        let mut keys = Vec::with_capacity(KEYS);
        let kinds = [
            (Kind::Request, "orders", REQUESTS),
            (Kind::Event, "handler", EVENTS),
            (Kind::Job, QUEUE, JOBS),
            (Kind::Job, "outbox", REQUESTS),
        ];
        for (kind, scope, count) in kinds {
            for id in 0..count {
                keys.push(Key::new(kind, TENANT, scope, &format!("{id}"))?);
            }
        }
        let order = JobOrder::new(&keys[FIRST_JOB], "subject")?;
        let outbox = JobOrder::new(&keys[FIRST_OUTBOX], "subject")?;
        let mut subjects = Vec::with_capacity(SUBJECTS);
        for name in ["document", "aggregate", "stream", "times"] {
            subjects.push(Subject::new(TENANT, name, "1")?);
        }
        subjects.extend([order.tail.clone(), order.done.clone(), outbox.tail.clone()]);
        let outcome = |number: usize| {
            let bytes = number.to_le_bytes();
            (Bytes::from(bytes), fingerprint_bytes(&bytes))
        };
        let payload = |bytes: &'static [u8]| (fingerprint_bytes(bytes), Bytes::from(bytes));
        Ok(Self {
            keys,
            subjects,
            order,
            outbox,
            payloads: [payload(b"first"), payload(b"other")],
            outcomes: (0..OUTCOMES).map(outcome).collect(),
            owners: ["anna".into(), "bert".into()],
            attempt_ids: (0..ATTEMPT_IDS).map(|n| format!("attempt-{n}").into()).collect(),
        })
    }

    pub(super) fn key_index(&self, key: &Key) -> Option<usize> {
        self.keys.iter().position(|known| known == key)
    }

    pub(super) fn subject_index(&self, subject: &Subject) -> Option<usize> {
        self.subjects.iter().position(|known| known == subject)
    }

    pub(super) fn guard(&self, (subject, rule): (usize, Rule)) -> Guard {
        let rule = match rule {
            // Zoo: whoever builds the guard of a plain effect reaches for the wrong rule.
            Rule::Next { position } if planted(Bug::AboveForPlainEffect) => {
                Rule::Above { position }
            }
            rule => rule,
        };
        Guard { subject: self.subjects[subject].clone(), rule }
    }

    pub(super) fn queue(&self) -> &'static str {
        QUEUE
    }
}

/// How often each fault is drawn where it can happen, in a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Odds {
    /// The request never arrives, and the caller knows.
    pub(super) drop: u64,
    /// The request arrives twice.
    pub(super) duplicate: u64,
    /// The answer never arrives.
    pub(super) lose: u64,
    /// The answer arrives later.
    pub(super) delay: u64,
    /// The caller stops waiting while its request is under way.
    pub(super) timeout: u64,
    /// A worker dies.
    pub(super) crash: u64,
    /// A worker stands still.
    pub(super) pause: u64,
    /// A worker's clock jumps.
    pub(super) jump: u64,
    /// Several batches share a group.
    pub(super) group: u64,
    /// A retry comes with another payload.
    pub(super) other_payload: u64,
}

/// One schedule's world.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) terms: Terms,
    pub(super) odds: Odds,
    pub(super) actors: usize,
    pub(super) steps: u32,
    /// Keys that requests are about.
    pub(super) keys: usize,
    /// Effects elsewhere; otherwise in the record's transaction.
    pub(super) plain: bool,
    /// Single commits among the leases, in a thousand.
    pub(super) once: u64,
    pub(super) sweep: u64,
    pub(super) resolve: u64,
    pub(super) attempt_ids: bool,
    pub(super) ordered: bool,
    /// The store has no clock: leases are judged by watching revs.
    pub(super) watched: bool,
}

impl Plan {
    pub(super) fn draw(random: &mut Random, shape: Option<Shape>) -> Self {
        let drawn = Shape::ALL[random.index(Shape::ALL.len())];
        let shape = shape.unwrap_or(drawn);
        let guarded = matches!(shape, Shape::Guarded | Shape::Times | Shape::Once);
        let keys = match shape {
            Shape::Times => REQUESTS,
            Shape::Guarded => 2,
            _ => 1 + usize::from(random.chance(300)),
        };
        Self {
            shape,
            terms: terms(random, shape),
            odds: odds(random),
            actors: 2 + random.index(3),
            steps: 18 + u32::try_from(random.below(22)).unwrap_or(0),
            keys,
            plain: !guarded && random.chance(700),
            once: match shape {
                Shape::Once => 1_000,
                Shape::Guarded | Shape::Retention | Shape::Times => 400,
                Shape::Leases | Shape::Held => random.pick([0, 0, 200]),
                _ => 0,
            },
            sweep: if shape == Shape::Retention { 150 } else { random.pick([0, 30, 60]) },
            resolve: match shape {
                Shape::Held => 250,
                Shape::Jobs => random.pick([0, 60, 120]),
                _ => random.pick([0, 0, 20]),
            },
            attempt_ids: random.chance(400),
            ordered: random.chance(700),
            watched: random.chance(150),
        }
    }
}

fn terms(random: &mut Random, shape: Shape) -> Terms {
    let job = shape == Shape::Jobs;
    let short = shape == Shape::Retention;
    Terms {
        lease_ms: random.pick([100, 100, 250]),
        on_abandoned: match shape {
            Shape::Held => OnAbandoned::Hold,
            Shape::Jobs if random.chance(200) => OnAbandoned::Hold,
            _ => OnAbandoned::Rerun,
        },
        retain_ms: if short { random.pick([40, 100, 300]) } else { random.pick([2_000, 100_000]) },
        remember_ms: if short { random.pick([0, 60, 300]) } else { random.pick([0, 1_000]) },
        max_attempts: if job { random.pick([1, 2, 3]) } else { random.pick([0, 0, 2]) },
        on_dead: if random.chance(700) { OnDead::Skip } else { OnDead::Block },
    }
}

fn odds(random: &mut Random) -> Odds {
    let mut some = |often: u64| if random.chance(500) { often } else { 0 };
    Odds {
        drop: some(60),
        duplicate: some(150),
        lose: some(200),
        delay: some(300),
        timeout: some(200),
        crash: some(60),
        pause: some(60),
        jump: some(40),
        group: some(400),
        other_payload: some(150),
    }
}
