//! The model: three workers and two keys, every interleaving, the real decisions, to exhaustion.
//!
//! Each action runs the core through its drive against the oracle. Time is the number of leases
//! that have passed, stamps are compared by their rank, and workers and keys are interchangeable,
//! so that the space is finite. In the short form one disturbance (a crash, a lost answer or a
//! renewal) strikes any worker at any point; with `ONCEWARD_TEST_MODEL=long` there are three.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use onceward::core::batch::{Answer, Applied, Batch, Condition, Write};
use onceward::core::decide::{
    self, Claim, Completion, Effects, Facts, Finish, Granted, Permit, Retry, Step, Swept, Verdict,
};
use onceward::core::drive::{Drive, End, Heard, Move};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::core::record::{Record, State, Stored, Terms};
use onceward::core::stamp::{At, Token};
use onceward::core::zoo::{Bug, plant};
use onceward::store::memory::MemoryState;
use stateright::{Checker, HasDiscoveries, Model, Property};

const WORKERS: usize = 3;
const KEYS: usize = 2;
const LEASE: u64 = 100;
/// Leases within which a key must come to rest once nobody disturbs it.
const HEAL_ROUNDS: u32 = 5;

/// What the account of every key is checked for.
const ACCOUNT: &str = "i01, i02, i05, i06, i24, i25";

/// How often things may happen.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Crashes, lost answers and renewals of all workers together; one of each per worker.
    disturbances: u8,
    claims: u8,
    lapses: u8,
    sweeps: u8,
}

#[derive(Debug)]
struct Checked {
    bounds: Bounds,
    keys: Vec<Key>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Renew,
    Complete,
    Fail,
    Release,
}

/// Whether the answer arrives too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    Yes,
    Lost,
}

/// A first claim and what a permit's holder does depend on nothing that could change between the
/// decision and its arrival, so both are one action; a takeover is decided from facts and is two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Claim(usize, usize, Answered),
    /// The batch under way arrives.
    Deliver(usize, Answered),
    /// A recognised grant is looked up.
    Look(usize),
    Effect(usize),
    Finish(usize, Doing, Answered),
    Crash(usize),
    /// A whole lease passes.
    Lapse,
    Sweep(usize),
    SweepArrives,
}

#[derive(Debug, Clone)]
enum Op {
    Grant(Drive<Granted>),
    Finish(Drive<Finish>, Doing),
    Recognised(Granted, Applied),
}

#[derive(Debug, Clone)]
struct UnderWay {
    op: Op,
    batch: Arc<Batch>,
    lost: bool,
    applied: bool,
}

#[derive(Debug, Clone, Default)]
struct Worker {
    key: usize,
    permit: Option<Permit>,
    effected: bool,
    under_way: Option<UnderWay>,
    claims: u8,
    crashes: u8,
    losses: u8,
    renewals: u8,
}

/// What the account says of a key: the newest fence, its lease, and until when it is done.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    fence: u64,
    held: bool,
    lease_end: u64,
    done_until: u64,
}

#[derive(Debug, Clone)]
struct World {
    store: MemoryState,
    keys: Vec<Key>,
    now: u64,
    tokens: u128,
    workers: [Worker; WORKERS],
    accounts: [Account; KEYS],
    ledger: Vec<(usize, u64)>,
    sweep: Option<(usize, Arc<Batch>, Swept)>,
    lapses: u8,
    sweeps: u8,
    broken: Option<&'static str>,
}

fn terms() -> Terms {
    Terms { lease_ms: LEASE, retain_ms: LEASE, remember_ms: 0, ..Terms::default() }
}

fn claim_of(key: &Key) -> Claim {
    let mut claim = Claim::new(key.clone(), fingerprint_bytes(b"payload"));
    claim.terms = terms();
    claim
}

fn completion() -> Completion {
    Completion {
        outcome: b"done".as_slice().into(),
        digest: fingerprint_bytes(b"done"),
        retain_ms: None,
        effects: Effects::default(),
    }
}

fn finish_step(permit: &Permit, doing: Doing, token: Token, facts: &Facts) -> Step<Finish, Finish> {
    unaudited(match doing {
        Doing::Renew => decide::renew(permit, None, token, facts),
        Doing::Complete => decide::complete(permit, &completion(), token, facts),
        Doing::Fail => decide::fail(permit, "it broke", Retry::In(0), token, facts),
        Doing::Release => decide::release(permit, token, facts),
    })
}

/// Leaves out the audit entries: nothing depends on them, and every world would carry them along.
fn unaudited<T, A>(mut step: Step<T, A>) -> Step<T, A> {
    if let Step::Commit(batch, _) = &mut step {
        batch.writes.retain(|write| !matches!(write, Write::Audit(_)));
    }
    step
}

impl World {
    fn new(keys: Vec<Key>) -> Self {
        Self {
            store: MemoryState::default(),
            keys,
            now: 1_000,
            tokens: 0,
            workers: Default::default(),
            accounts: Default::default(),
            ledger: Vec::new(),
            sweep: None,
            lapses: 0,
            sweeps: 0,
            broken: None,
        }
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }

    fn stored(&self, key: usize) -> Option<Stored> {
        let record = self.store.record(&self.keys[key])?.clone();
        Some(Stored { record, outcome: self.store.outcome(&self.keys[key]).cloned() })
    }

    /// Asks the core for the next batch of a grant, or ends it.
    fn go_on_granting(&mut self, worker: usize, mut drive: Drive<Granted>) {
        let claim = claim_of(&self.keys[self.workers[worker].key]);
        let token = self.token();
        let step = unaudited(decide::claim(&claim, token, &drive.facts));
        self.workers[worker].under_way = match drive.next(step) {
            Move::Commit(batch) => {
                Some(UnderWay { op: Op::Grant(drive), batch, lost: false, applied: false })
            }
            Move::End(End::Answer(verdict)) => {
                self.hear(worker, verdict);
                None
            }
            _ => {
                self.broken = Some("a claim looked, or never ended");
                None
            }
        };
    }

    fn go_on_finishing(&mut self, worker: usize, mut drive: Drive<Finish>, doing: Doing) {
        let token = self.token();
        let Some(permit) = self.workers[worker].permit.clone() else { return };
        let step = finish_step(&permit, doing, token, &drive.facts);
        self.workers[worker].under_way = match drive.next(step) {
            Move::Commit(batch) => {
                Some(UnderWay { op: Op::Finish(drive, doing), batch, lost: false, applied: false })
            }
            Move::End(End::Answer(finish)) => {
                self.finished(worker, doing, &finish);
                None
            }
            _ => {
                self.broken = Some("a finish looked, or never ended");
                None
            }
        };
    }

    fn hear(&mut self, worker: usize, verdict: Verdict) {
        if let Verdict::Run { permit, .. } = verdict {
            let (key, fence) = (self.workers[worker].key, permit.fence.0);
            let twice = self.workers.iter().any(|other| {
                other.key == key && other.permit.as_ref().is_some_and(|p| p.fence.0 == fence)
            });
            if twice {
                self.broken = Some("i06: one fence in two hands");
            }
            self.workers[worker].permit = Some(permit);
            self.workers[worker].effected = false;
        }
    }

    fn finished(&mut self, worker: usize, doing: Doing, finish: &Finish) {
        if doing != Doing::Renew || *finish == Finish::Lost {
            self.workers[worker].permit = None;
        }
    }

    /// The batch under way arrives, and its answer if it is not lost.
    fn arrives(&mut self, worker: usize, answered: Answered) {
        match answered {
            Answered::Yes => self.deliver(worker),
            Answered::Lost => {
                let Some((mut under_way, _)) = self.arrive(worker) else { return };
                under_way.lost = true;
                self.workers[worker].losses += 1;
                self.workers[worker].under_way = Some(under_way);
            }
        }
    }

    /// The batch under way arrives at the store.
    fn arrive(&mut self, worker: usize) -> Option<(UnderWay, Answer)> {
        let mut under_way = self.workers[worker].under_way.take()?;
        let answer = self.store.apply(&under_way.batch, At(self.now));
        if let Answer::Applied(applied) = &answer
            && !applied.again
        {
            under_way.applied = true;
            self.account(worker, &under_way, *applied);
        }
        Some((under_way, answer))
    }

    /// Checks an applied batch against the account.
    fn account(&mut self, worker: usize, under_way: &UnderWay, applied: Applied) {
        let key = self.workers[worker].key;
        let now = self.now;
        let account = &mut self.accounts[key];
        match &under_way.op {
            Op::Grant(_) => {
                let fence = applied.first.and_then(|(_, fence)| fence).map_or(0, |fence| fence.0);
                if fence <= account.fence {
                    self.broken = Some("i05, i25: a fence did not rise");
                } else if account.held && now < account.lease_end {
                    self.broken = Some("i24: a live lease was stolen");
                } else if now < account.done_until {
                    self.broken = Some("i02: a key ran again within its retention");
                }
                *account = Account { fence, held: true, lease_end: now + LEASE, done_until: 0 };
            }
            Op::Finish(_, doing) => {
                let fence = self.workers[worker].permit.as_ref().map_or(0, |p| p.fence.0);
                if !account.held || account.fence != fence {
                    self.broken = Some("i05, i25: an old permit was accepted");
                }
                match doing {
                    Doing::Renew => account.lease_end = now + LEASE,
                    Doing::Complete => account.done_until = now + LEASE,
                    Doing::Fail | Doing::Release => {}
                }
                account.held = *doing == Doing::Renew;
            }
            Op::Recognised(..) => {}
        }
    }

    fn deliver(&mut self, worker: usize) {
        let Some((under_way, answer)) = self.arrive(worker) else { return };
        match under_way.op {
            Op::Grant(mut drive) => match drive.answered(answer) {
                Heard::Committed { meaning, applied, .. } if applied.again => {
                    let op = Op::Recognised(meaning, applied);
                    let batch = under_way.batch;
                    self.workers[worker].under_way =
                        Some(UnderWay { op, batch, lost: false, applied: true });
                }
                Heard::Committed { meaning, batch, applied } => {
                    match meaning.verdict(batch.token, applied) {
                        Some(verdict) => self.hear(worker, verdict),
                        None => self.broken = Some("a grant came without a fence"),
                    }
                }
                _ => self.go_on_granting(worker, drive),
            },
            Op::Finish(mut drive, doing) => match drive.answered(answer) {
                Heard::Committed { meaning, .. } => self.finished(worker, doing, &meaning),
                _ => self.go_on_finishing(worker, drive, doing),
            },
            Op::Recognised(..) => {}
        }
    }

    fn look(&mut self, worker: usize) {
        let Some(UnderWay { op: Op::Recognised(granted, applied), .. }) =
            self.workers[worker].under_way.take()
        else {
            return;
        };
        let there = self.stored(self.workers[worker].key);
        let verdict = granted.recognised(applied, there.as_ref().map(|stored| &stored.record));
        self.hear(worker, verdict);
    }

    fn effect(&mut self, worker: usize) {
        let Some(permit) = &self.workers[worker].permit else { return };
        let effect = (self.workers[worker].key, permit.fence.0);
        if self.ledger.contains(&effect) {
            self.broken = Some("i01: two effects under one fence");
        }
        self.ledger.push(effect);
        self.workers[worker].effected = true;
    }

    fn crash(&mut self, worker: usize) {
        let Worker { claims, crashes, losses, renewals, .. } = self.workers[worker];
        self.workers[worker] =
            Worker { claims, crashes: crashes + 1, losses, renewals, ..Worker::default() };
    }

    fn sweep(&mut self, key: usize) {
        let mut facts = Facts::at(At(self.now));
        facts.learn_record(&self.keys[key], self.stored(key));
        let token = self.token();
        if let Step::Commit(batch, swept) = decide::sweep(&self.keys[key], token, &facts) {
            self.sweep = Some((key, Arc::new(batch), swept));
        }
        self.sweeps += 1;
    }

    fn sweep_arrives(&mut self) {
        let Some((key, batch, _)) = self.sweep.take() else { return };
        if let Answer::Applied(_) = self.store.apply(&batch, At(self.now)) {
            let account = &mut self.accounts[key];
            if account.held && self.now < account.lease_end {
                self.broken = Some("i02: a live record was swept");
            } else if self.now < account.done_until {
                self.broken = Some("i02: an outcome was swept within its retention");
            }
            account.held = false;
        }
    }

    /// i10, i22: when everyone is gone and a few leases pass, a key can be brought to an end.
    fn heals(&self, key: usize) -> bool {
        let claim = claim_of(&self.keys[key]);
        let mut facts = Facts::at(At(self.now));
        facts.learn_record(&self.keys[key], self.stored(key));
        for _ in 0..HEAL_ROUNDS {
            match decide::claim(&claim, Token(u128::MAX), &facts) {
                Step::Answer(Verdict::Replay(_)) => return true,
                Step::Commit(batch, granted) => return self.completes(&batch, granted, facts.now),
                _ => facts.now = facts.now.plus(LEASE),
            }
        }
        false
    }

    /// Whether the grant is given and can be completed.
    fn completes(&self, batch: &Batch, granted: Granted, now: At) -> bool {
        let mut store = self.store.clone();
        let Answer::Applied(applied) = store.apply(batch, now) else { return false };
        let Some(Verdict::Run { permit, .. }) = granted.verdict(batch.token, applied) else {
            return false;
        };
        let token = Token(u128::MAX - 1);
        let step = decide::complete(&permit, &completion(), token, &Facts::default());
        let Step::Commit(batch, _) = step else { return false };
        matches!(store.apply(&batch, now), Answer::Applied(_))
    }

    fn is_done(&self, key: usize) -> bool {
        let record = self.store.record(&self.keys[key]);
        record.is_some_and(|record| record.state_at(At(self.now)) == State::Done)
    }
}

/// What two worlds have to share to be the same: everything that can still matter.
impl World {
    fn canon(&self) -> Vec<u64> {
        let mut stamps = vec![0];
        for key in &self.keys {
            if let Some(record) = self.store.record(key) {
                stamps.extend([record.rev.0, record.last_fence.0]);
            }
        }
        stamps.extend(self.accounts.iter().map(|account| account.fence));
        stamps.extend(self.workers.iter().filter_map(|w| w.permit.as_ref()).map(|p| p.fence.0));
        let batches = self.workers.iter().filter_map(|w| w.under_way.as_ref()).map(|u| &*u.batch);
        let sweeping = self.sweep.iter().map(|(_, batch, _)| &**batch);
        for batch in batches.chain(sweeping) {
            stamps.extend(batch.conditions.iter().map(stamp_of));
        }
        stamps.sort_unstable();
        stamps.dedup();
        let rank = |stamp: u64| stamps.binary_search(&stamp).map_or(99, |rank| rank as u64);
        let straight = self.code([0, 1], &rank);
        straight.min(self.code([1, 0], &rank))
    }

    /// Everything as numbers, with the keys in this order and the workers in any.
    fn code(&self, order: [usize; KEYS], rank: &impl Fn(u64) -> u64) -> Vec<u64> {
        let mut code = vec![self.lapses.into(), self.sweeps.into(), self.broken.is_some().into()];
        for index in order {
            self.record_code(self.store.record(&self.keys[index]), rank, &mut code);
            let account = &self.accounts[index];
            let lease = if account.held { self.left(Some(At(account.lease_end))) } else { 0 };
            code.extend([rank(account.fence), lease, self.left(Some(At(account.done_until)))]);
        }
        code.push(self.sweep.as_ref().map_or(0, |(key, batch, swept)| {
            1 + order[*key] as u64
                + 10 * rank(stamp_of(&batch.conditions[0]))
                + 1_000 * *swept as u64
        }));
        let mut workers: Vec<Vec<u64>> =
            self.workers.iter().map(|worker| self.worker_code(worker, order, rank)).collect();
        workers.sort_unstable();
        code.extend(workers.into_iter().flatten());
        code
    }

    /// Leases until an instant: 0 none, 1 passed.
    fn left(&self, at: Option<At>) -> u64 {
        at.map_or(0, |at| 1 + at.since(At(self.now)).div_ceil(LEASE))
    }

    fn record_code(
        &self,
        record: Option<&Record>,
        rank: &impl Fn(u64) -> u64,
        code: &mut Vec<u64>,
    ) {
        let Some(record) = record else { return code.push(0) };
        code.extend([
            1 + record.state as u64,
            rank(record.rev.0),
            record.fence.map_or(0, |fence| 1 + rank(fence.0)),
            rank(record.last_fence.0),
            record.attempt.min(3).into(),
            self.left(record.due_at),
            self.left(record.expires_at),
            self.left(record.sweep_at),
        ]);
    }

    fn worker_code(
        &self,
        worker: &Worker,
        order: [usize; KEYS],
        rank: &impl Fn(u64) -> u64,
    ) -> Vec<u64> {
        // A worker with nothing at hand is at no key.
        let at_it = worker.permit.is_some() || worker.under_way.is_some();
        let mut code = vec![
            if at_it { 1 + order[worker.key] as u64 } else { 0 },
            worker.claims.into(),
            worker.crashes.into(),
            worker.losses.into(),
            worker.renewals.into(),
            (worker.effected && worker.permit.is_some()).into(),
        ];
        match &worker.permit {
            None => code.push(0),
            Some(permit) => code.extend([
                1 + rank(permit.fence.0),
                permit.record.attempt.min(3).into(),
                u64::from(self.ledger.contains(&(worker.key, permit.fence.0))),
            ]),
        }
        let Some(under_way) = &worker.under_way else {
            code.push(0);
            return code;
        };
        let op = match &under_way.op {
            Op::Grant(_) => 1,
            Op::Finish(_, doing) => 2 + *doing as u64,
            Op::Recognised(_, applied) => {
                let fence = applied.first.and_then(|(_, fence)| fence).map_or(0, |f| f.0);
                10 + rank(fence)
            }
        };
        let there = self.store.record(&self.keys[worker.key]);
        let own = there.is_some_and(|record| record.token == under_way.batch.token);
        code.extend([op, under_way.lost.into(), under_way.applied.into(), own.into()]);
        for condition in &under_way.batch.conditions {
            let kind = matches!(condition, Condition::FenceIs(..));
            code.extend([kind.into(), rank(stamp_of(condition))]);
        }
        for write in &under_way.batch.writes {
            if let Write::Put(draft) = write {
                code.extend([draft.record.state as u64, draft.record.attempt.min(3).into()]);
            }
        }
        code
    }
}

fn stamp_of(condition: &Condition) -> u64 {
    match condition {
        Condition::RevIs(_, rev) => rev.0,
        Condition::FenceIs(_, fence) => fence.0,
        _ => 0,
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canon().hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.canon() == other.canon()
    }
}

impl Checked {
    /// Whether a worker may suffer one more of a kind.
    fn may(&self, so_far: u8, world: &World) -> bool {
        let all = world.workers.iter().map(|w| w.crashes + w.losses + w.renewals).sum::<u8>();
        so_far == 0 && all < self.bounds.disturbances
    }

    fn worker_actions(&self, world: &World, worker: usize, actions: &mut Vec<Action>) {
        let me = &world.workers[worker];
        let losses = usize::from(self.may(me.losses, world));
        let answers = &[Answered::Yes, Answered::Lost][..=losses];
        if let Some(under_way) = &me.under_way {
            if matches!(under_way.op, Op::Recognised(..)) {
                actions.push(Action::Look(worker));
            } else {
                actions.extend(answers.iter().map(|a| Action::Deliver(worker, *a)));
            }
        } else if me.permit.is_some() {
            let mut doings = Vec::with_capacity(3);
            if me.effected {
                doings.extend([Doing::Complete, Doing::Fail]);
            } else {
                actions.push(Action::Effect(worker));
                doings.push(Doing::Release);
            }
            if self.may(me.renewals, world) {
                doings.push(Doing::Renew);
            }
            for doing in doings {
                actions.extend(answers.iter().map(|a| Action::Finish(worker, doing, *a)));
            }
        } else if me.claims < self.bounds.claims {
            for key in 0..KEYS {
                actions.extend(answers.iter().map(|a| Action::Claim(worker, key, *a)));
            }
        }
        let at_it = me.under_way.is_some() || me.permit.is_some();
        if at_it && self.may(me.crashes, world) {
            actions.push(Action::Crash(worker));
        }
    }
}

impl Model for Checked {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.keys.clone())]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for worker in 0..WORKERS {
            self.worker_actions(world, worker, actions);
        }
        if world.lapses < self.bounds.lapses {
            actions.push(Action::Lapse);
        }
        if world.sweep.is_some() {
            actions.push(Action::SweepArrives);
        } else if world.sweeps < self.bounds.sweeps {
            let due: Vec<&Record> = world.store.sweepable(At(world.now)).collect();
            let keys = (0..KEYS).filter(|key| due.iter().any(|r| r.key == world.keys[*key]));
            actions.extend(keys.map(Action::Sweep));
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Claim(worker, key, answered) => {
                world.workers[worker].key = key;
                world.workers[worker].claims += 1;
                world.go_on_granting(worker, Drive::default());
                world.arrives(worker, answered);
            }
            Action::Deliver(worker, answered) => world.arrives(worker, answered),
            Action::Look(worker) => world.look(worker),
            Action::Effect(worker) => world.effect(worker),
            Action::Finish(worker, doing, answered) => {
                if doing == Doing::Renew {
                    world.workers[worker].renewals += 1;
                }
                world.go_on_finishing(worker, Drive::default(), doing);
                world.arrives(worker, answered);
            }
            Action::Crash(worker) => world.crash(worker),
            Action::Lapse => {
                world.now += LEASE;
                world.lapses += 1;
            }
            Action::Sweep(key) => world.sweep(key),
            Action::SweepArrives => world.sweep_arrives(),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ACCOUNT, |_, world: &World| world.broken.is_none()),
            Property::always("i10, i22: every key can become final", |_, world: &World| {
                (0..KEYS).all(|key| world.heals(key))
            }),
            Property::sometimes("both keys are done", |_, world: &World| {
                (0..KEYS).all(|key| world.is_done(key))
            }),
            Property::sometimes("a key has two effects under two fences", |_, world: &World| {
                let of = |key| world.ledger.iter().filter(|(k, _)| *k == key).count();
                (0..KEYS).any(|key| of(key) == 2)
            }),
        ]
    }
}

fn keys() -> Vec<Key> {
    ["1", "2"].map(|id| Key::new(Kind::Request, "acme", "orders", id).unwrap()).to_vec()
}

#[test]
fn three_workers_and_two_keys_to_exhaustion() {
    let long = std::env::var("ONCEWARD_TEST_MODEL").is_ok_and(|form| form == "long");
    let bounds = if long {
        Bounds { disturbances: 3, claims: 1, lapses: 2, sweeps: 1 }
    } else {
        Bounds { disturbances: 1, claims: 1, lapses: 2, sweeps: 1 }
    };
    let model = Checked { bounds, keys: keys() };
    let begun = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!(
        "{} unique states, {} in all, {} steps deep, {:.1} s ({bounds:?})",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64(),
    );
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the model has to have something to explore");

    // A model that cannot fail proves nothing.
    for bug in [Bug::CompleteWithoutFence, Bug::FencePerRecord, Bug::TakeoverByFence] {
        plant(Some(bug));
        let model = Checked { bounds, keys: keys() };
        let failures = HasDiscoveries::AnyFailures;
        let checker = model.checker().threads(2).finish_when(failures).spawn_bfs().join();
        plant(None);
        assert!(checker.discovery(ACCOUNT).is_some(), "{bug:?} was not noticed");
    }
}
