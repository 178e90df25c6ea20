//! The random steps of a differential run, in words that mean the same on every store.
//!
//! A step never names a stamp by its number, only by when it was seen. Where a draft keeps bytes
//! that it does not carry, it is conditional on the rev it was made from: a resend can then never
//! apply it over other bytes than those it describes, which the contract leaves open.

use onceward_core::audit::Entry;
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::{Body, FenceWrite, State, Terms, Time};
use onceward_core::stamp::At;
use onceward_core::{Bytes, Text};

use super::side::Side;
use crate::store::memory::TOKEN_KEPT_MS;
use crate::store::{AuditFilter, List, Read};
use crate::testing::random::Random;

/// The keys and subjects that a run is about: few, so that steps collide.
pub(super) struct Universe {
    pub(super) keys: Vec<Key>,
    pub(super) subjects: Vec<Subject>,
    group_max: usize,
}

/// What the choice of the next step leans on. The same for both sides.
pub(super) struct Known {
    pub(super) now: At,
    /// When each batch was first sent.
    pub(super) sent_at: Vec<At>,
    present: Vec<bool>,
    positions: Vec<u64>,
}

/// One step.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// A group of new batches.
    Commit(Vec<Plan>),
    /// Batches that were sent before, by their index.
    Resend(Vec<usize>),
    /// Reads.
    Load(Vec<Read>),
    /// A list, in pages of a size.
    List(List, usize),
    /// Time passes.
    Advance(u64),
    /// The store is closed and opened again.
    Reopen,
}

/// A batch.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) asks: Vec<Ask>,
    pub(super) writes: Vec<Do>,
}

/// A condition. Keys and subjects by their index, stamps by how many changes ago they were seen.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ask {
    Absent(usize),
    Rev(usize, usize),
    Fence(usize, usize),
    Position(usize, u64),
    AtMost(usize, u64),
}

/// A write.
#[derive(Debug, Clone)]
pub(super) enum Do {
    Put(Box<Put>),
    Delete(usize),
    Mark { subject: usize, position: u64, value: Body },
    Audit(Box<Entry>),
}

/// What a put changes of the record that was seen last.
#[derive(Debug, Clone)]
pub(super) struct Put {
    pub(super) key: usize,
    pub(super) state: State,
    pub(super) fence: FenceWrite,
    pub(super) fresh: bool,
    pub(super) due: Time,
    pub(super) expires: Time,
    pub(super) sweep: Time,
    pub(super) outcome: Body,
    pub(super) payload: Body,
    pub(super) fingerprint: u8,
    pub(super) attempt: u32,
    pub(super) priority: u8,
    pub(super) terms: Terms,
    pub(super) guard: Option<Guard>,
    pub(super) text: Option<Text>,
}

/// A queue and scope that several kinds share.
const SCOPE: &str = "mail";

impl Universe {
    /// Five keys of each of two tenants, three subjects.
    pub(super) fn new(group_max: usize) -> Result<Self, LimitError> {
        let mut keys = Vec::new();
        for tenant in ["acme", "b:ta"] {
            keys.push(Key::new(Kind::Job, tenant, SCOPE, "1")?);
            keys.push(Key::within(Kind::Job, tenant, SCOPE, &["%"], "2")?);
            keys.push(Key::new(Kind::Request, tenant, "POST /x", "1")?);
            keys.push(Key::within(Kind::Request, tenant, "POST /x", &["0:", "v"], "1")?);
            keys.push(Key::new(Kind::Event, tenant, SCOPE, "1")?);
        }
        let subjects = vec![
            Subject::new("acme", "doc", "1")?,
            Subject::new("acme", "doc:x", "1")?,
            Subject::new("b:ta", "doc", "1")?,
        ];
        Ok(Self { keys, subjects, group_max })
    }

    pub(super) fn nothing_known(&self, now: At) -> Known {
        let (present, positions) = (vec![false; self.keys.len()], vec![0; self.subjects.len()]);
        Known { now, sent_at: Vec::new(), present, positions }
    }

    /// Reads of every key and subject, in their order.
    pub(super) fn everything(&self) -> Vec<Read> {
        let records = self.keys.iter().map(|key| Read::Record { key: key.clone(), payload: true });
        records.chain(self.subjects.iter().cloned().map(Read::Mark)).collect()
    }

    /// The next step.
    pub(super) fn step(&self, random: &mut Random, known: &Known) -> Step {
        match random.below(1_000) {
            0..550 => Step::Commit(self.group(random, known)),
            550..700 => self.resend(random, known),
            700..770 => Step::Load(self.reads(random)),
            770..900 => self.list(random, known),
            900..995 => Step::Advance(match random.below(100) {
                0..60 => random.below(20),
                60..90 => random.below(2_000),
                90..99 => random.below(60_000),
                _ => random.below(2 * TOKEN_KEPT_MS),
            }),
            _ => Step::Reopen,
        }
    }

    /// One to four batches that touch different rows.
    fn group(&self, random: &mut Random, known: &Known) -> Vec<Plan> {
        let size = (1 + random.index(4)).min(self.group_max).max(1);
        let mut keys: Vec<usize> = (0..self.keys.len()).collect();
        let mut subjects: Vec<usize> = (0..self.subjects.len()).collect();
        shuffle(random, &mut keys);
        shuffle(random, &mut subjects);
        let mut group = Vec::with_capacity(size);
        for _ in 0..size {
            let keys = keys.split_off(keys.len().saturating_sub(random.index(3)));
            let subjects = subjects.split_off(subjects.len().saturating_sub(random.index(3)));
            group.push(self.plan(random, known, &keys, &subjects));
        }
        group
    }

    fn plan(&self, random: &mut Random, known: &Known, keys: &[usize], marks: &[usize]) -> Plan {
        let mut plan = Plan { asks: Vec::new(), writes: Vec::new() };
        for &key in keys {
            let ask = ask_of_key(random, key, known.present[key]);
            plan.asks.extend(ask);
            let certain = known.present[key] && matches!(ask, Some(Ask::Rev(_, 0)));
            match random.below(10) {
                0..7 => plan.writes.push(Do::Put(Box::new(self.put(random, key, certain)))),
                7 => plan.writes.push(Do::Delete(key)),
                _ => {}
            }
        }
        for &subject in marks {
            let at = known.positions[subject];
            let near = |random: &mut Random| (at + random.below(3)).saturating_sub(1);
            match random.below(10) {
                0..4 => plan.asks.push(Ask::Position(subject, near(random))),
                4..7 => plan.asks.push(Ask::AtMost(subject, near(random))),
                _ => {}
            }
            if random.chance(800) {
                let value = body(random, true);
                plan.writes.push(Do::Mark { subject, position: near(random), value });
            }
        }
        for _ in 0..random.below(6).saturating_sub(3) {
            plan.writes.push(Do::Audit(Box::new(self.entry(random))));
        }
        shuffle(random, &mut plan.asks);
        shuffle(random, &mut plan.writes);
        plan
    }

    /// A put; `certain` when the batch is conditional on the very record it was made from.
    fn put(&self, random: &mut Random, key: usize, certain: bool) -> Put {
        let rule = match random.below(4) {
            0 => Rule::Exactly { expected: random.below(9) },
            1 => Rule::Next { position: 1 + random.below(9) },
            2 => Rule::Above { position: 1 + random.below(9) },
            _ => Rule::NotBefore { at: random.below(9), grace_ms: random.below(9) },
        };
        let subject = self.subjects[random.index(self.subjects.len())].clone();
        Put {
            key,
            // Mostly what a queue hands out, so that several jobs are due at once.
            state: if random.chance(600) {
                random.pick([State::Pending, State::Running, State::Failed])
            } else {
                State::ALL[random.index(State::ALL.len())]
            },
            fence: random.pick([
                FenceWrite::Grant,
                FenceWrite::Keep,
                FenceWrite::End,
                FenceWrite::Once,
            ]),
            fresh: random.chance(300),
            due: time(random),
            expires: time(random),
            sweep: time(random),
            outcome: body(random, certain),
            payload: body(random, certain),
            fingerprint: u8::try_from(random.below(3)).unwrap_or(0),
            attempt: u32::try_from(random.below(6)).unwrap_or(0),
            priority: u8::try_from(random.below(3)).unwrap_or(0),
            terms: random.pick([Terms::default(), Terms::job()]),
            guard: random.chance(300).then_some(Guard { subject, rule }),
            text: text(random),
        }
    }

    fn entry(&self, random: &mut Random) -> Entry {
        let key = &self.keys[random.index(self.keys.len())];
        let mut entry = Entry::new(key.tenant_column(), random.pick(["done", "failed"]));
        entry.subject = text(random);
        entry.key_hash = random.chance(500).then(|| key.hash_hex().clone());
        entry.version_before = random.chance(500).then(|| random.below(9));
        entry.version_after = random.chance(500).then(|| random.below(9));
        entry.fence = random.chance(500).then(|| random.below(9));
        entry.trace.actor = text(random);
        entry.detail = text(random);
        entry
    }

    /// Batches that came before, some of them more than once, never two in one group: they may
    /// touch the same rows. Only such that every store must still recognise.
    fn resend(&self, random: &mut Random, known: &Known) -> Step {
        let recent = known.sent_at.len().saturating_sub(30);
        let back = random.index(known.sent_at.len() - recent);
        let index = recent + back;
        match known.sent_at.get(index) {
            Some(at) if known.now.since(*at) < TOKEN_KEPT_MS - 60_000 => Step::Resend(vec![index]),
            _ => Step::Load(self.reads(random)),
        }
    }

    fn reads(&self, random: &mut Random) -> Vec<Read> {
        let read = |random: &mut Random| {
            if random.chance(300) {
                return Read::Mark(self.subjects[random.index(self.subjects.len())].clone());
            }
            let key = self.keys[random.index(self.keys.len())].clone();
            Read::Record { key, payload: random.chance(500) }
        };
        (0..random.below(12)).map(|_| read(random)).collect()
    }

    fn list(&self, random: &mut Random, known: &Known) -> Step {
        let limit = 1 + random.index(5);
        let key = &self.keys[random.index(self.keys.len())];
        let tenant = key.tenant_column().to_string();
        let what = match random.below(6) {
            0 => List::Records {
                tenant: random.chance(500).then_some(tenant),
                scope: random.chance(500).then(|| key.scope_column().to_string()),
                state: random.chance(500).then(|| State::ALL[random.index(State::ALL.len())]),
            },
            1 => List::Due { queue: random.pick([SCOPE, "none"]).to_string() },
            2 => List::Due { queue: SCOPE.to_string() },
            3 => List::Sweepable,
            // All of it, which says most, and is walked seldom.
            5 if random.chance(20) => {
                let tenant = random.chance(500).then_some(tenant);
                return Step::List(List::Settled { tenant }, 1_000);
            }
            4 => {
                let prefix = random.pick(["", "doc", "doc:", "doc%", "doc%3Ax:1", "DOC"]);
                let tenant = random.chance(500).then_some(tenant);
                List::Marks { tenant, prefix: prefix.to_string() }
            }
            _ => {
                // The whole log would be walked again and again: only its end is asked for.
                let from = At(known.now.0.saturating_sub(random.below(5_000)));
                let later = At(from.0 + random.below(6_000));
                let to = random.pick([known.now, later]);
                let filter = AuditFilter {
                    tenant: random.chance(500).then_some(tenant),
                    subject: random.chance(200).then(|| TEXTS[random.index(2)].to_string()),
                    key_hash: random.chance(200).then(|| key.hash_hex().to_string()),
                    action: random.chance(200).then(|| "done".to_string()),
                    from: Some(from),
                    to: random.chance(500).then_some(to),
                };
                return Step::List(List::Audit(filter), limit * 10);
            }
        };
        Step::List(what, limit)
    }
}

impl Known {
    /// Takes over what the oracle was last seen to hold.
    pub(super) fn learn(&mut self, oracle: &Side) {
        self.present = oracle.records.iter().map(Option::is_some).collect();
        let position = |mark: &Option<_>| {
            mark.as_ref().map_or(0, |mark: &onceward_core::record::Mark| mark.position)
        };
        self.positions = oracle.marks.iter().map(position).collect();
    }
}

/// Mostly a condition that holds, sometimes one that does not, sometimes none.
fn ask_of_key(random: &mut Random, key: usize, present: bool) -> Option<Ask> {
    match (random.below(20), present) {
        (0..9, true) => Some(Ask::Rev(key, 0)),
        (0..9, false) | (9, true) => Some(Ask::Absent(key)),
        (10..12, _) => Some(Ask::Rev(key, random.index(4))),
        (12..15, _) => Some(Ask::Fence(key, 0)),
        (15, _) => Some(Ask::Fence(key, random.index(4))),
        _ => None,
    }
}

/// Bytes to set, mostly few; kept only where `keep` says that it can be.
fn body(random: &mut Random, keep: bool) -> Body {
    match random.below(10) {
        0..4 if keep => Body::Keep,
        0..8 => {
            let length = random.pick([0, 1, 20, 20, 20, 3_000]);
            let bytes: Vec<u8> = (0..length).map(|_| random.number().to_le_bytes()[0]).collect();
            Body::Set(Bytes::from(bytes))
        }
        _ => Body::Clear,
    }
}

fn time(random: &mut Random) -> Time {
    match random.below(10) {
        0..3 => Time::Keep,
        3 => Time::Clear,
        4..9 => Time::In(random.below(3_000)),
        _ => Time::In(0),
    }
}

/// Texts of audit entries and records; a filter asks for the first two.
const TEXTS: [&str; 3] = ["plain", "né: 100% 'q' 🦀", ""];

fn text(random: &mut Random) -> Option<Text> {
    TEXTS.get(random.index(TEXTS.len() + 2)).map(|text| Text::from(*text))
}

fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.index(last + 1));
    }
}
