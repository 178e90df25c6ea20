//! The workers: what each wants next, and how it behaves.
//!
//! A worker claims or takes, looks after its lease, takes effect and hands in, or fails, abandons,
//! releases, dies, stands still. Two workers may have the same name. A careful worker looks at its
//! own monotonic clock in the instant of its effect; one that is stopped in between becomes a
//! zombie, and the fence has to stop it. What a worker believes about its lease counts from when it
//! asked, and a renewal without an answer extends nothing.

use onceward_core::decide::{
    Change, Claim, Clock, Completion, Effects, Enqueue, Finish, NewJob, Permit, Resolution,
    Resolved, Retry, Verdict,
};
use onceward_core::guard::{Guard, Rule};
use onceward_core::record::{Body, State};
use onceward_core::stamp::At;
use onceward_core::zoo::{Bug, planted};

use super::Simulator;
use super::op::{Ask, Ended, Op, Tag, Wait};
use super::plan::{
    AGGREGATE, DOCUMENT, EVENTS, FIRST_EVENT, FIRST_JOB, FIRST_OUTBOX, JOBS, KEYS, OUTCOMES,
    REQUESTS, STREAM, Shape, TIMES, TURN,
};

/// How far a worker's clock may be off.
const SKEW_MS: u64 = 3_600_000;
/// How long a failed attempt waits for the next.
pub(super) const RETRY_MS: u64 = 20;

/// Where a worker is in its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing under way.
    Idle,
    /// Asking: `main` is under way.
    Asking,
    /// Holds a permit, no effect yet.
    Held,
    /// Has looked at its lease and is about to take effect.
    Armed,
    /// Took effect.
    Effected,
    /// Handing in: `main` is under way.
    Finishing,
}

/// A worker's life.
#[derive(Debug)]
pub(super) struct Actor {
    uid: u32,
    name: usize,
    stage: Stage,
    main: Option<Box<Op>>,
    /// A renewal that runs beside everything else.
    beat: Option<Box<Op>>,
    permit: Option<Permit>,
    tag: Tag,
    /// The claim whose answer never came: it will be repeated.
    again: Option<Box<Claim>>,
    /// What it hands in, the same on every try.
    completion: Option<Box<Completion>>,
    /// Until when its lease holds, as far as it knows.
    believes_until: u64,
    paused: u32,
    /// How its wall clock differs from the store's.
    skew: u64,
    /// Revs of running records and since when they are unchanged.
    sightings: [(u64, u64); KEYS],
}

impl Simulator {
    pub(super) fn born(&mut self, name: usize) -> Actor {
        self.counters.uid += 1;
        Actor {
            uid: self.counters.uid,
            name,
            stage: Stage::Idle,
            main: None,
            beat: None,
            permit: None,
            tag: Tag::of(0, self.counters.uid),
            again: None,
            completion: None,
            believes_until: 0,
            paused: 0,
            skew: self.random.below(2 * SKEW_MS),
            sightings: [(0, 0); KEYS],
        }
    }

    pub(super) fn take_op(&mut self, actor: usize, beat: bool) -> Option<Box<Op>> {
        let actor = &mut self.actors[actor];
        if beat { actor.beat.take() } else { actor.main.take() }
    }

    pub(super) fn put_op(&mut self, actor: usize, beat: bool, op: Box<Op>) {
        let actor = &mut self.actors[actor];
        *(if beat { &mut actor.beat } else { &mut actor.main }) = Some(op);
    }

    /// Whether the worker has anything to lose.
    pub(super) fn busy(&self, actor: usize) -> bool {
        self.actors[actor].stage != Stage::Idle
    }

    /// Whether the worker can only wait for a message, and does not lose its patience now.
    pub(super) fn waits(&mut self, actor: usize) -> bool {
        let worker = &self.actors[actor];
        let waiting = matches!(worker.stage, Stage::Asking | Stage::Finishing)
            && worker.main.as_ref().is_some_and(|op| self.under_way(actor, op));
        waiting && !self.random.chance(self.plan.odds.timeout)
    }

    /// The worker dies and comes back as someone who knows nothing.
    pub(super) fn crash(&mut self, actor: usize) {
        let (stage, name) = (self.actors[actor].stage, self.actors[actor].name);
        match stage {
            Stage::Idle | Stage::Asking | Stage::Held | Stage::Armed => {
                self.tally.crashed_before += 1;
            }
            Stage::Effected | Stage::Finishing => self.tally.crashed_after += 1,
        }
        let waits = |op: &Option<Box<Op>>| op.as_ref().is_some_and(|op| op.wait == Wait::Answer);
        self.tally.crashed_committing += u64::from(waits(&self.actors[actor].main));
        self.actors[actor] = self.born(name);
        self.trace.note(self.now, [20, actor as u64, stage as u64], || {
            format!("worker {actor} dies ({stage:?})")
        });
    }

    /// The worker stands still, often until its lease is over.
    pub(super) fn pause(&mut self, actor: usize) {
        self.tally.paused += 1;
        self.actors[actor].paused = 2 + u32::try_from(self.random.below(6)).unwrap_or(0);
        if self.random.chance(600) {
            self.now += self.plan.terms.lease_ms + self.random.below(20);
            self.tally.lapsed += 1;
        }
        self.trace.note(self.now, [21, actor as u64, 0], || format!("worker {actor} stops"));
    }

    /// The worker's wall clock jumps.
    pub(super) fn jump(&mut self, actor: usize) {
        self.tally.jumped += 1;
        self.actors[actor].skew = self.random.below(2 * SKEW_MS);
        self.trace
            .note(self.now, [22, actor as u64, 0], || format!("the clock of worker {actor} jumps"));
    }

    /// What the op's worker knows of time.
    pub(super) fn prepare(&mut self, actor: usize, op: &mut Op) {
        let (now, key) = (self.now, op.tag.key);
        let worker = &mut self.actors[actor];
        let skewed = (now + worker.skew).saturating_sub(SKEW_MS);
        let facts = op.facts();
        if self.plan.watched {
            let mut unchanged_ms = 0;
            if let Some(Some(stored)) = facts.record(&self.catalog.keys[key])
                && stored.record.state == State::Running
            {
                let rev = stored.record.rev.0;
                let (known, since) = &mut worker.sightings[key];
                if *known != rev {
                    (*known, *since) = (rev, now);
                }
                unchanged_ms = now - *since;
            }
            facts.clock = Clock::Watched { unchanged_ms };
        }
        if planted(Bug::WorkerClockExpiry) {
            facts.now = At(skewed);
        }
    }

    /// The worker does something.
    pub(super) fn tick(&mut self, actor: usize) {
        let worker = &mut self.actors[actor];
        if worker.paused > 0 {
            worker.paused -= 1;
            return;
        }
        if worker.beat.is_some() && self.random.chance(400) {
            self.push(actor, true);
            return;
        }
        match self.actors[actor].stage {
            Stage::Idle => self.begin(actor),
            Stage::Asking | Stage::Finishing => self.push(actor, false),
            Stage::Held => self.held(actor),
            Stage::Armed => self.effect(actor, false),
            Stage::Effected => self.hand_in(actor),
        }
    }

    fn begin(&mut self, actor: usize) {
        if let Some(claim) = self.actors[actor].again.take()
            && self.random.chance(700)
        {
            self.ask(actor, Ask::Claim(claim));
            return;
        }
        let uid = self.actors[actor].uid;
        self.actors[actor].tag = Tag::of(0, uid);
        if self.random.chance(self.plan.sweep) {
            self.begin_sweep(actor);
        } else if self.random.chance(self.plan.resolve) {
            self.begin_resolve(actor);
        } else if self.plan.shape == Shape::Jobs {
            self.begin_job(actor);
        } else {
            let other = self.random.chance(self.plan.odds.other_payload);
            self.tally.other_payloads += u64::from(other);
            let tag = self.request(uid, usize::from(other));
            self.actors[actor].tag = tag;
            let claim = self.claim(&tag, actor);
            if self.random.chance(self.plan.once) {
                let tag = self.once_tag(tag);
                self.actors[actor].tag = tag;
                let completion = self.completion(&tag, true);
                self.ask(actor, Ask::Once(Box::new((claim, completion))));
            } else {
                self.ask(actor, Ask::Claim(Box::new(claim)));
            }
        }
    }

    /// Chooses a request or event.
    fn request(&mut self, uid: u32, variant: usize) -> Tag {
        let mut tag = Tag { variant, ..Tag::of(self.random.index(self.plan.keys), uid) };
        match self.plan.shape {
            Shape::Events => {
                let next = self.auditor.position(STREAM) + 1;
                let any = 1 + self.random.below(EVENTS as u64);
                let number = if self.random.chance(600) { next } else { any };
                tag = self.event(uid, variant, number.min(EVENTS as u64));
            }
            Shape::Guarded => {
                let at = self.auditor.position(AGGREGATE);
                let rule = match self.random.below(8) {
                    0 => Rule::Exactly { expected: at + 1 },
                    1 => Rule::Above { position: at + 1 + self.random.below(2) },
                    _ => Rule::Exactly { expected: at },
                };
                tag.guard = Some((AGGREGATE, rule));
            }
            Shape::Times => {
                let at = 1_000 + 100 * self.random.below(10);
                tag.guard = Some((TIMES, Rule::NotBefore { at, grace_ms: 300 }));
            }
            _ => {}
        }
        tag
    }

    pub(super) fn event(&self, uid: u32, variant: usize, number: u64) -> Tag {
        let key = FIRST_EVENT + usize::try_from(number - 1).unwrap_or(0);
        let guard = Some((STREAM, Rule::Next { position: number }));
        Tag { variant, guard, ..Tag::of(key, uid) }
    }

    pub(super) fn claim(&mut self, tag: &Tag, actor: usize) -> Claim {
        let key = self.catalog.keys[tag.key].clone();
        let mut claim = Claim::new(key, self.catalog.payloads[tag.variant].0);
        claim.terms = self.plan.terms;
        claim.owner = Some(self.catalog.owners[self.actors[actor].name].clone());
        claim.guard = tag.guard.map(|guard| self.catalog.guard(guard));
        if self.plan.attempt_ids {
            self.counters.attempt += 1;
            let number = self.counters.attempt % self.catalog.attempt_ids.len();
            claim.attempt_id = Some(self.catalog.attempt_ids[number].clone());
        }
        claim
    }

    pub(super) fn once_tag(&mut self, tag: Tag) -> Tag {
        Tag { outcome: self.next_outcome(), in_transaction: true, ..tag }
    }

    pub(super) fn next_outcome(&mut self) -> usize {
        self.counters.outcome = (self.counters.outcome + 1) % OUTCOMES;
        self.counters.outcome
    }

    /// What a worker hands in: an outcome and, in the record's transaction, a document and
    /// sometimes a job that follows.
    pub(super) fn completion(&mut self, tag: &Tag, in_transaction: bool) -> Completion {
        let (outcome, digest) = self.catalog.outcomes[tag.outcome].clone();
        let mut effects = Effects::default();
        if in_transaction {
            let expected = self.auditor.position(DOCUMENT);
            let subject = self.catalog.subjects[DOCUMENT].clone();
            let guard = Guard { subject, rule: Rule::Exactly { expected } };
            effects.changes.push(Change { guard, value: Body::Set(outcome.clone()) });
            if tag.key < REQUESTS && self.random.chance(300) {
                let key = self.catalog.keys[FIRST_OUTBOX + tag.key].clone();
                let (fingerprint, payload) = self.catalog.payloads[0].clone();
                let mut job = NewJob::new(key, fingerprint, payload);
                job.order = self.plan.ordered.then(|| self.catalog.outbox.clone());
                effects.jobs.push(job);
            }
        }
        Completion { outcome, digest, retain_ms: None, effects }
    }

    fn begin_job(&mut self, actor: usize) {
        let uid = self.actors[actor].uid;
        let index = self.random.index(JOBS);
        if self.random.chance(400) {
            let variant = usize::from(self.random.chance(self.plan.odds.other_payload / 3));
            let tag = Tag { variant, ..Tag::of(FIRST_JOB + index, uid) };
            self.actors[actor].tag = tag;
            let job = self.job(&tag);
            self.ask(actor, Ask::Enqueue(Box::new(job)));
            return;
        }
        let due = self.state.due(self.catalog.queue(), self.store_now()).nth(index);
        let listed = due.and_then(|record| self.catalog.key_index(&record.key));
        let key = listed.unwrap_or(FIRST_JOB + index);
        self.actors[actor].tag = Tag::of(key, uid);
        let owner = self.catalog.owners[self.actors[actor].name].clone();
        self.ask(actor, Ask::Take(self.catalog.keys[key].clone(), owner));
    }

    pub(super) fn job(&self, tag: &Tag) -> NewJob {
        let (fingerprint, payload) = self.catalog.payloads[tag.variant].clone();
        let mut job = NewJob::new(self.catalog.keys[tag.key].clone(), fingerprint, payload);
        job.terms = self.plan.terms;
        job.order = self.plan.ordered.then(|| self.catalog.order.clone());
        job
    }

    /// The sweep decides from what it listed, which may be old by the time it commits.
    fn begin_sweep(&mut self, actor: usize) {
        self.tally.sweeps += 1;
        let now = self.store_now();
        let any = planted(Bug::SweepDeletesLive);
        let found =
            if any { self.state.records().next() } else { self.state.sweepable(now).next() };
        let Some(record) = found.cloned() else { return };
        let Some(key) = self.catalog.key_index(&record.key) else { return };
        self.actors[actor].tag = Tag::of(key, self.actors[actor].uid);
        let mut op = Op::boxed(Ask::Sweep(record.key.clone()), self.actors[actor].tag);
        op.seen_at = self.now;
        op.facts().now = now;
        let stored = onceward_core::record::Stored { record, outcome: None };
        op.facts().learn_record(&self.catalog.keys[key], Some(stored));
        self.actors[actor].stage = Stage::Asking;
        self.put_op(actor, false, op);
    }

    fn begin_resolve(&mut self, actor: usize) {
        self.tally.resolved += 1;
        let uid = self.actors[actor].uid;
        let key = match self.plan.shape {
            Shape::Jobs => FIRST_JOB + self.random.index(JOBS),
            Shape::Events => FIRST_EVENT + self.random.index(EVENTS),
            _ => self.random.index(self.plan.keys),
        };
        let outcome = self.next_outcome();
        let how = match self.random.below(8) {
            0..3 => Resolution::Rerun { force: false },
            3 => Resolution::Rerun { force: true },
            4 | 5 => Resolution::Done { outcome: self.catalog.outcomes[outcome].clone() },
            6 => Resolution::Dead { reason: "hopeless".into() },
            _ => Resolution::Erase,
        };
        self.actors[actor].tag = Tag { outcome, ..Tag::of(key, uid) };
        self.ask(actor, Ask::Resolve(self.catalog.keys[key].clone(), how));
    }

    fn ask(&mut self, actor: usize, ask: Ask) {
        let worker = &mut self.actors[actor];
        worker.stage = match worker.stage {
            Stage::Idle | Stage::Asking => Stage::Asking,
            Stage::Held | Stage::Armed | Stage::Effected | Stage::Finishing => Stage::Finishing,
        };
        let op = Op::boxed(ask, worker.tag);
        worker.main = Some(op);
        self.push(actor, false);
    }

    fn held(&mut self, actor: usize) {
        let Some(permit) = self.actors[actor].permit.clone() else { return self.rest(actor) };
        match self.random.below(16) {
            0 | 1 => self.ask(actor, Ask::Release(permit)),
            2 => self.ask(actor, Ask::Fail(permit, Retry::In(RETRY_MS))),
            3 => self.ask(actor, Ask::Abandon(permit)),
            4..7 => self.renew(actor, permit),
            7..10 if self.plan.plain => {
                if self.now < self.actors[actor].believes_until {
                    self.actors[actor].stage = Stage::Armed;
                }
            }
            _ if self.plan.plain => self.effect(actor, true),
            _ => self.actors[actor].stage = Stage::Effected,
        }
    }

    fn renew(&mut self, actor: usize, permit: Permit) {
        let worker = &mut self.actors[actor];
        if worker.beat.is_none() {
            worker.beat = Some(Op::boxed(Ask::Renew(permit), worker.tag));
            self.push(actor, true);
        }
    }

    /// An effect elsewhere, under the permit that the worker has.
    fn effect(&mut self, actor: usize, careful: bool) {
        let worker = &mut self.actors[actor];
        if careful && self.now >= worker.believes_until {
            let Some(permit) = worker.permit.clone() else { return self.rest(actor) };
            self.renew(actor, permit);
            return;
        }
        worker.stage = Stage::Effected;
        let tag = worker.tag;
        self.trace.note(self.now, [30, tag.key as u64, tag.fence], || {
            let how = if careful { "" } else { ", without looking" };
            format!("worker {actor}: EFFECT of key {} under fence {}{how}", tag.key, tag.fence)
        });
        self.auditor.effect(&tag, careful, self.now);
    }

    fn hand_in(&mut self, actor: usize) {
        let Some(permit) = self.actors[actor].permit.clone() else { return self.rest(actor) };
        match self.random.below(16) {
            0 => self.ask(actor, Ask::Fail(permit, Retry::In(RETRY_MS))),
            1 => self.ask(actor, Ask::Fail(permit, Retry::Never)),
            2 => self.ask(actor, Ask::Abandon(permit)),
            3 | 4 => self.renew(actor, permit),
            _ => {
                let mut tag = self.actors[actor].tag;
                tag.outcome = self.next_outcome();
                tag.in_transaction = !self.plan.plain;
                self.actors[actor].tag = tag;
                let completion = Box::new(self.completion(&tag, tag.in_transaction));
                self.actors[actor].completion = Some(completion.clone());
                self.ask(actor, Ask::Complete(permit, completion));
            }
        }
    }

    fn rest(&mut self, actor: usize) {
        let worker = &mut self.actors[actor];
        worker.stage = Stage::Idle;
        worker.permit = None;
        worker.main = None;
        worker.completion = None;
    }

    /// An op has ended: its worker goes on.
    pub(super) fn ended(&mut self, actor: usize, beat: bool, op: &Op, ended: Ended) {
        self.auditor.told(op, &ended);
        self.trace.note(self.now, [40, actor as u64, op.tag.key as u64], || {
            format!("worker {actor} hears of key {}: {}", op.tag.key, said(&ended))
        });
        if beat {
            self.renewed(actor, op, &ended);
            return;
        }
        match (&op.ask, ended) {
            (Ask::Claim(_) | Ask::Take(..), Ended::Verdict(Verdict::Run { permit, .. })) => {
                self.granted(actor, op, permit);
            }
            (Ask::Claim(claim), Ended::Unknown) if claim.attempt_id.is_some() => {
                let claim = claim.clone();
                self.rest(actor);
                self.actors[actor].again = Some(claim);
            }
            (Ask::Complete(permit, _), Ended::Finish(Finish::Refused(_))) => {
                let permit = permit.clone();
                if self.plan.plain {
                    self.ask(actor, Ask::Abandon(permit));
                } else {
                    self.ask(actor, Ask::Release(permit));
                }
            }
            (Ask::Complete(permit, completion), Ended::Unknown | Ended::NotApplied)
                if self.random.chance(600) =>
            {
                // Handed in again, with the same outcome under another token.
                let ask = Ask::Complete(permit.clone(), completion.clone());
                self.actors[actor].tag = op.tag;
                self.actors[actor].main = Some(Op::boxed(ask, op.tag));
            }
            _ => self.rest(actor),
        }
    }

    fn granted(&mut self, actor: usize, op: &Op, permit: Permit) {
        let left = self.lease_left(op, &permit);
        let worker = &mut self.actors[actor];
        worker.tag.fence = permit.fence.0;
        if let Ask::Take(..) = op.ask {
            let guard = permit.record.guard.as_ref();
            worker.tag.guard = guard.map(|guard| (TURN, guard.rule));
            let other = permit.record.fingerprint == self.catalog.payloads[1].0;
            worker.tag.variant = usize::from(other);
        }
        worker.believes_until = op.sent_at + left;
        worker.permit = Some(permit);
        worker.stage = Stage::Held;
    }

    /// What is left of the lease, counted from when the worker asked: all of it for a new grant,
    /// and what the store's own two instants leave for one that was there before.
    fn lease_left(&self, op: &Op, permit: &Permit) -> u64 {
        let end = permit.record.due_at.unwrap_or_default();
        let begun = permit.record.updated_at;
        if op.seen_at > begun.0 { end.since(At(op.seen_at)) } else { end.since(begun) }
    }

    fn renewed(&mut self, actor: usize, op: &Op, ended: &Ended) {
        let lease_ms = self.plan.terms.lease_ms;
        let worker = &mut self.actors[actor];
        if worker.permit.as_ref().is_none_or(|permit| permit.fence.0 != op.tag.fence) {
            return;
        }
        worker.believes_until = match ended {
            Ended::Finish(Finish::Ok) => worker.believes_until.max(op.sent_first + lease_ms),
            // Without an answer the authority ends before the next effect.
            _ => 0,
        };
        let lost = matches!(ended, Ended::Finish(Finish::Lost));
        if lost && worker.stage == Stage::Held {
            self.rest(actor);
        }
    }
}

impl Tag {
    /// Of a key and a worker's life; the rest is filled in as it becomes known.
    pub(super) fn of(key: usize, uid: u32) -> Self {
        Self { key, uid, fence: 0, variant: 0, outcome: 0, guard: None, in_transaction: false }
    }
}

/// The ending in a few words.
fn said(ended: &Ended) -> String {
    match ended {
        Ended::Verdict(Verdict::Run { permit, .. }) => format!("run, fence {}", permit.fence),
        Ended::Verdict(verdict) => verdict.as_str().to_owned(),
        Ended::Finish(Finish::Refused(refusal)) => format!("refused: {}", refusal.why.as_str()),
        Ended::Finish(Finish::JobMismatch(_)) => "job mismatch".to_owned(),
        Ended::Finish(finish) => format!("{finish:?}"),
        Ended::Swept(swept) => format!("{swept:?}"),
        Ended::Made(Enqueue::Made) => "made".to_owned(),
        Ended::Made(Enqueue::There(_)) => "there already".to_owned(),
        Ended::Made(Enqueue::Mismatch(_)) => "mismatch".to_owned(),
        Ended::Resolved(Resolved::NotNow(_)) => "not now".to_owned(),
        Ended::Resolved(resolved) => format!("resolved: {resolved:?}"),
        Ended::Ran => "ran".to_owned(),
        Ended::NotApplied => "not applied".to_owned(),
        Ended::Unknown => "nothing, and gives up".to_owned(),
        Ended::GaveUp => "gave up".to_owned(),
    }
}
