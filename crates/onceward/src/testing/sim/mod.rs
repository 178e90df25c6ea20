//! The deterministic simulator: many workers, one store, every fault, one thread, one seed.
//!
//! Workers are small state machines that use the real decisions through the real drive, against the
//! oracle and through a simulated network that delays, reorders, repeats and loses messages. After
//! the faults stop, every key must come to rest. The auditor checks every commit, effect and
//! answer.
//!
//! The same seed gives the same schedule, step by step (i23). Nothing here reads a clock.

mod actor;
mod auditor;
mod heal;
mod op;
mod plan;
mod trace;
mod wire;

pub use auditor::{Effect, Violation};
pub use plan::Shape;
pub use trace::Tally;

use std::fmt;

use onceward_core::limits::LimitError;
use onceward_core::stamp::{At, Token};

use super::random::Random;
use crate::store::memory::MemoryState;
use actor::Actor;
use auditor::Auditor;
use plan::{Catalog, Plan};
use trace::Trace;
use wire::Flight;

/// Where the store's clock starts: late enough for workers' clocks to be an hour behind it.
const START: u64 = 1_000_000_000;

/// Runs schedules, one after the other.
#[derive(Debug)]
pub struct Simulator {
    catalog: Catalog,
    plan: Plan,
    random: Random,
    state: MemoryState,
    auditor: Auditor,
    actors: Vec<Actor>,
    flights: Vec<Flight>,
    now: u64,
    counters: Counters,
    trace: Trace,
    tally: Tally,
}

/// Numbers that are handed out once per schedule.
#[derive(Debug, Default)]
struct Counters {
    token: u128,
    uid: u32,
    attempt: usize,
    outcome: usize,
    exchange: u32,
}

/// A schedule that broke an invariant.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Reproduces it, together with the shape.
    pub seed: u64,
    /// What the schedule was about.
    pub shape: Shape,
    /// What broke.
    pub violation: Violation,
    /// Every effect until then.
    pub effects: Vec<Effect>,
    /// What happened, step by step.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} ({:?}):", self.seed, self.shape)?;
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        write!(f, "broken: {}: {}", self.violation.invariant, self.violation.what)
    }
}

impl Simulator {
    /// A simulator.
    ///
    /// # Errors
    /// Never, unless a name of its own world breaks a bound of the core.
    pub fn new() -> Result<Self, LimitError> {
        let mut random = Random::new(0);
        Ok(Self {
            catalog: Catalog::new()?,
            plan: Plan::draw(&mut random, None),
            random,
            state: MemoryState::default(),
            auditor: Auditor::new(),
            actors: Vec::new(),
            flights: Vec::new(),
            now: START,
            counters: Counters::default(),
            trace: Trace::default(),
            tally: Tally::default(),
        })
    }

    /// Runs the schedule of a seed, of this shape or of one that the seed chooses. Returns the hash
    /// of its trace.
    ///
    /// # Errors
    /// When it broke an invariant, with the readable trace.
    pub fn run(&mut self, seed: u64, shape: Option<Shape>) -> Result<u64, Box<Failure>> {
        self.play(seed, shape, false);
        let Some(violation) = self.auditor.broken.take() else { return Ok(self.trace.hash()) };
        self.play(seed, shape, true);
        Err(Box::new(Failure {
            seed,
            shape: self.plan.shape,
            violation: self.auditor.broken.take().unwrap_or(violation),
            effects: self.auditor.ledger.clone(),
            trace: std::mem::take(&mut self.trace.lines),
        }))
    }

    /// The readable trace of a seed, whether it breaks something or not.
    pub fn trace(&mut self, seed: u64, shape: Option<Shape>) -> Vec<String> {
        self.play(seed, shape, true);
        std::mem::take(&mut self.trace.lines)
    }

    /// What happened over all schedules.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn play(&mut self, seed: u64, shape: Option<Shape>, written: bool) {
        self.reset(seed, shape, written);
        for _ in 0..self.plan.steps {
            self.step();
            if self.auditor.broken.is_some() {
                return;
            }
        }
        self.heal();
        if self.auditor.broken.is_none() {
            self.auditor.rest(&self.state, &self.catalog, self.now);
        }
        self.tally.effects += self.auditor.ledger.len() as u64;
    }

    fn reset(&mut self, seed: u64, shape: Option<Shape>, written: bool) {
        self.random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        self.plan = Plan::draw(&mut self.random, shape);
        self.state = MemoryState::default();
        self.auditor.reset(self.plan.terms);
        self.flights.clear();
        self.now = START;
        self.counters = Counters::default();
        self.trace.reset(START, written);
        self.actors.clear();
        for index in 0..self.plan.actors {
            let actor = self.born(index % 2);
            self.actors.push(actor);
        }
        self.tally.schedules += 1;
        let plan = &self.plan;
        self.trace.note(self.now, [0, seed, plan.actors as u64], || format!("{plan:?}"));
    }

    /// One step: something goes wrong, time passes, a message arrives, or a worker acts.
    fn step(&mut self) {
        self.tally.steps += 1;
        self.now += self.random.below(3);
        let odds = self.plan.odds;
        let actor = self.random.index(self.actors.len());
        if self.random.chance(odds.crash) && self.busy(actor) {
            self.crash(actor);
        } else if self.random.chance(odds.pause) {
            self.pause(actor);
        } else if self.random.chance(odds.jump) {
            self.jump(actor);
        } else if self.random.chance(70) {
            self.pass_time();
        } else if self.random.chance(self.flights.len() as u64 * 200) || self.waits(actor) {
            self.deliver();
        } else {
            self.tick(actor);
        }
    }

    /// The store's clock goes on: a little, past a lease, or past a retention.
    fn pass_time(&mut self) {
        let terms = self.plan.terms;
        let by = match self.random.below(8) {
            0..3 => self.random.below(40),
            3..7 => {
                self.tally.lapsed += 1;
                terms.lease_ms + self.random.below(30)
            }
            _ if terms.retain_ms > 10_000 => terms.lease_ms / 2,
            _ => terms.retain_ms + self.random.below(terms.remember_ms + 2),
        };
        self.now += by;
        self.trace.note(self.now, [1, by, 0], || format!("{by} ms pass"));
    }

    fn next_token(&mut self) -> Token {
        self.counters.token += 1;
        Token(self.counters.token)
    }

    fn store_now(&self) -> At {
        At(self.now)
    }
}
