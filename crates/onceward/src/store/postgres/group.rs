//! A group as the arguments of `apply_group`: its rows, cut into slices of one tenant and one kind.
//!
//! Rule: whatever belongs to a tenant lies in that tenant's slices, so that it is looked at and
//! written under that tenant alone. How rows are written is in `group_rows.rs`, what became of the
//! group is read in `apply.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use onceward_core::audit::Entry;
use onceward_core::batch::{Batch, Condition, Witness, Write};
use onceward_core::codec;
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Body, Draft};
use onceward_core::stamp::Token;

use super::group_rows::Slices;
use super::locks;
use super::rows::{self, digest_column, kind_code, text_column, token_column};

/// In the place of a kind, where a slice has no records.
const NO_KIND: i16 = -1;

/// A look at a record: a condition, or the token of a batch that may come again, or both.
pub(super) struct Check<'a> {
    pub(super) place: i32,
    pub(super) batch: i32,
    pub(super) rule: i16,
    pub(super) key: &'a Key,
    pub(super) number: i64,
    pub(super) token: Option<[u8; 16]>,
}

/// A condition on a mark.
pub(super) struct Stand<'a> {
    pub(super) place: i32,
    pub(super) batch: i32,
    pub(super) rule: i16,
    pub(super) subject: &'a Subject,
    pub(super) number: i64,
}

/// A record to write.
pub(super) struct Put<'a> {
    /// Which put of the group it is.
    pub(super) turn: i32,
    pub(super) batch: i32,
    /// The check that looked at the same record.
    pub(super) checked: i32,
    pub(super) draft: &'a Draft,
    pub(super) token: Token,
    /// What becomes of the bytes beside it: [`SETS`] or [`CLEARS`] of its outcome, and of its
    /// payload times four.
    pub(super) beside: i16,
    pub(super) body: Vec<u8>,
}

/// Bytes are set beside a record.
const SETS: i16 = 1;
/// There are none any more.
const CLEARS: i16 = 2;
/// What was said of an outcome, said of a payload.
const OF_PAYLOAD: i16 = 4;

/// Bytes that are set beside a record.
pub(super) struct Beside<'a> {
    pub(super) batch: i32,
    /// That of the record's put.
    pub(super) turn: i32,
    pub(super) key: &'a Key,
    pub(super) bytes: &'a [u8],
}

/// A record that is dropped, with all that lies beside it.
pub(super) struct Gone<'a> {
    pub(super) batch: i32,
    pub(super) key: &'a Key,
}

pub(super) struct MarkWrite<'a> {
    pub(super) batch: i32,
    pub(super) subject: &'a Subject,
    pub(super) position: u64,
    pub(super) value: &'a Body,
    pub(super) digest: Option<Vec<u8>>,
}

pub(super) struct Noted<'a> {
    /// Which entry of the group it is.
    pub(super) turn: i32,
    pub(super) batch: i32,
    pub(super) entry: &'a Entry,
}

/// The rows of one tenant and one kind.
pub(super) struct Slice<'a> {
    pub(super) tenant: Cow<'a, str>,
    pub(super) kind: i16,
    /// What some that may be there have no more: 1 an outcome, 2 a payload.
    pub(super) drops: i16,
    pub(super) checks: Vec<Check<'a>>,
    pub(super) stands: Vec<Stand<'a>>,
    /// Records that must not be there.
    pub(super) fresh: Vec<Put<'a>>,
    /// Records that are there if their batch may go.
    pub(super) there: Vec<Put<'a>>,
    /// Records of which nothing is known.
    pub(super) others: Vec<Put<'a>>,
    pub(super) outcomes: Vec<Beside<'a>>,
    pub(super) payloads: Vec<Beside<'a>>,
    pub(super) gone: Vec<Gone<'a>>,
    pub(super) marks: Vec<MarkWrite<'a>>,
    pub(super) entries: Vec<Noted<'a>>,
}

/// Everything that a group asks for.
#[derive(Default)]
pub(super) struct Group<'a> {
    pub(super) batches: i32,
    pub(super) locks: Vec<(i64, i32)>,
    pub(super) tokens: Vec<(i32, [u8; 16])>,
    pub(super) slices: Slices<'a>,
    /// How many puts and how many entries it has: the turn of the last of them.
    puts: i32,
    entries: i32,
    /// The batch and the condition of each check and of each stand, in their places. A check that
    /// asks only for a token has none.
    checks: Vec<(i32, Option<usize>)>,
    stands: Vec<(i32, usize)>,
    firsts: Vec<Option<(i32, &'a Draft)>>,
}

impl<'a> Group<'a> {
    pub(super) fn of(schema: &str, batches: &'a [Arc<Batch>]) -> Self {
        let mut group = Self::default();
        for batch in batches {
            group.batches += 1;
            group.firsts.push(None);
            group.add(schema, batch);
        }
        group.count_checks();
        group.locks.sort_unstable();
        group.locks.dedup();
        group
    }

    /// Counts the checks slice by slice: what they find is put together in that order.
    fn count_checks(&mut self) {
        let mut places = vec![0; self.checks.len() + 1];
        let mut checks = Vec::with_capacity(self.checks.len());
        for slice in &mut self.slices.0 {
            for check in &mut slice.checks {
                let was = usize::try_from(check.place).unwrap_or_default();
                checks.push(self.checks[was - 1]);
                check.place = count(checks.len());
                places[was] = check.place;
            }
            for put in slice.fresh.iter_mut().chain(&mut slice.there).chain(&mut slice.others) {
                put.checked = places[usize::try_from(put.checked).unwrap_or_default()];
            }
        }
        self.checks = checks;
    }

    /// Whether two of its batches name the same row: then each has to see what the other did.
    pub(super) fn repeats(&self) -> bool {
        self.locks.windows(2).any(|two| matches!(two, [(a, _), (b, _)] if a == b))
    }

    fn slice(&mut self, tenant: Cow<'a, str>, kind: Option<i16>) -> &mut Slice<'a> {
        let fits = |slice: &Slice<'a>| {
            slice.tenant == tenant && kind.is_none_or(|kind| slice.kind == kind)
        };
        // Most rows are of the slice that the last one was of.
        let place = self.slices.0.iter().rposition(fits).unwrap_or_else(|| {
            self.slices.0.push(Slice {
                tenant,
                kind: kind.unwrap_or(NO_KIND),
                drops: 0,
                checks: Vec::new(),
                stands: Vec::new(),
                fresh: Vec::new(),
                there: Vec::new(),
                others: Vec::new(),
                outcomes: Vec::new(),
                payloads: Vec::new(),
                gone: Vec::new(),
                marks: Vec::new(),
                entries: Vec::new(),
            });
            self.slices.0.len() - 1
        });
        &mut self.slices.0[place]
    }

    fn slice_of(&mut self, key: &'a Key) -> &mut Slice<'a> {
        self.slice(Cow::Borrowed(key.tenant_column()), Some(kind_code(key.kind())))
    }

    fn add(&mut self, schema: &str, batch: &'a Batch) {
        let number = self.batches;
        self.locks.extend(batch.keys().map(|key| (locks::of_key(schema, key), number)));
        let subjects = batch.subjects();
        self.locks.extend(subjects.map(|subject| (locks::of_mark(schema, subject), number)));
        let witness = match batch.witness() {
            Witness::Record(key) => Some(key),
            Witness::Tokens => {
                // A batch whose rows are gone or are none still has to exclude its own copy.
                self.locks.push((locks::of_token(schema, batch.token), number));
                self.tokens.push((number, token_column(batch.token)));
                None
            }
        };
        let from = self.checks.len();
        self.add_conditions(batch, witness);
        for write in &batch.writes {
            match write {
                Write::Put(draft) => self.add_put(batch, draft, from),
                Write::Delete(key) => {
                    self.slice_of(key).gone.push(Gone { batch: number, key });
                }
                Write::Mark { subject, position, value } => {
                    let digest = match value {
                        Body::Set(bytes) => Some(digest_column(&fingerprint_bytes(bytes))),
                        Body::Keep | Body::Clear => None,
                    };
                    let position = *position;
                    let row = MarkWrite { batch: number, subject, position, value, digest };
                    self.slice(Cow::Borrowed(subject.tenant_column()), None).marks.push(row);
                }
                // Beside the call, in its transaction: see `apply.rs`.
                Write::Prune { .. } => {}
                Write::Audit(entry) => {
                    self.entries += 1;
                    let noted = Noted { batch: number, turn: self.entries, entry };
                    self.slice(text_column(&entry.tenant), None).entries.push(noted);
                }
            }
        }
    }

    fn add_conditions(&mut self, batch: &'a Batch, witness: Option<&'a Key>) {
        let mut witness = witness;
        for (index, condition) in batch.conditions.iter().enumerate() {
            let (rule, number) = match condition {
                Condition::Absent(_) => (1, 0),
                Condition::RevIs(_, rev) => (2, rev.0.cast_signed()),
                Condition::FenceIs(_, fence) => (3, fence.0.cast_signed()),
                Condition::PositionIs(_, position) => (0, position.cast_signed()),
                Condition::PositionAtMost(_, position) => {
                    // Positions are stored up to here; a larger bound means any of them.
                    (1, i64::try_from(*position).unwrap_or(i64::MAX))
                }
            };
            if let Some(key) = condition.key() {
                let token = witness.filter(|witness| *witness == key).map(|_| batch.token);
                if token.is_some() {
                    witness = None;
                }
                self.push_check(key, Some(index), rule, number, token);
            } else if let Some(subject) = condition.subject() {
                self.stands.push((self.batches, index));
                let (place, batch) = (count(self.stands.len()), self.batches);
                let row = Stand { place, batch, rule, subject, number };
                self.slice(Cow::Borrowed(subject.tenant_column()), None).stands.push(row);
            }
        }
        if let Some(key) = witness {
            self.push_check(key, None, 0, 0, Some(batch.token));
        }
    }

    fn push_check(
        &mut self,
        key: &'a Key,
        condition: Option<usize>,
        rule: i16,
        number: i64,
        token: Option<Token>,
    ) {
        self.checks.push((self.batches, condition));
        let (place, batch, token) =
            (count(self.checks.len()), self.batches, token.map(token_column));
        self.slice_of(key).checks.push(Check { place, batch, rule, key, number, token });
    }

    /// `from`: how many checks there were before those of this batch.
    fn add_put(&mut self, batch: &'a Batch, draft: &'a Draft, from: usize) {
        let key = &draft.record.key;
        let number = self.batches;
        let body = codec::encode_body(&draft.record);
        self.puts += 1;
        let turn = self.puts;
        self.firsts[index_of(number)].get_or_insert((turn, draft));
        let looks = self.slice_of(key).checks.iter().rev();
        let mut looks = looks.take_while(|check| check.place > count(from));
        let checked = looks.find(|check| check.key == key).map(|check| check.place);
        let checked = checked.unwrap_or_else(|| {
            // Nothing is asked of it, but where it is has to be known.
            self.push_check(key, None, 0, 0, None);
            count(self.checks.len())
        });
        let mut fresh = false;
        let mut there = false;
        for condition in batch.conditions.iter().filter(|is| is.key() == Some(key)) {
            fresh |= matches!(condition, Condition::Absent(_));
            there |= matches!(condition, Condition::RevIs(..) | Condition::FenceIs(..));
        }
        let slice = self.slice_of(key);
        let mut beside = 0;
        match &draft.outcome {
            Body::Set(bytes) if !bytes.is_empty() => {
                slice.outcomes.push(Beside { batch: number, turn, key, bytes });
                beside |= SETS;
            }
            // That an outcome is empty is told by its digest.
            Body::Set(_) | Body::Clear => beside |= CLEARS,
            Body::Keep => {}
        }
        match &draft.payload {
            Body::Set(bytes) => {
                slice.payloads.push(Beside { batch: number, turn, key, bytes });
                beside |= SETS * OF_PAYLOAD;
            }
            Body::Clear => beside |= CLEARS * OF_PAYLOAD,
            Body::Keep => {}
        }
        if !fresh {
            slice.drops |= i16::from(beside % OF_PAYLOAD != 0);
            slice.drops |= i16::from(beside / OF_PAYLOAD != 0) << 1;
        }
        let put = Put { turn, batch: number, checked, draft, token: batch.token, beside, body };
        match (fresh, there) {
            (true, _) => slice.fresh.push(put),
            (false, true) => slice.there.push(put),
            (false, false) => slice.others.push(put),
        }
    }

    /// How many of its batches leave a token behind.
    pub(super) fn tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// The last turn of all: no put and no entry has a higher one.
    pub(super) fn turns(&self) -> i32 {
        self.puts.max(self.entries)
    }

    /// The first put of a batch, and its turn.
    pub(super) fn first_put(&self, batch: usize) -> Option<(i32, &'a Draft)> {
        self.firsts.get(batch).copied().flatten()
    }

    /// The batch and its condition that a failed check stands for.
    pub(super) fn failed(&self, check: i64) -> Option<(usize, usize)> {
        let place = usize::try_from(check.unsigned_abs()).ok()?.checked_sub(1)?;
        if check > 0 {
            let (batch, condition) = self.checks.get(place)?;
            return Some((index_of(*batch), (*condition)?));
        }
        let (batch, condition) = self.stands.get(place)?;
        Some((index_of(*batch), *condition))
    }
}

/// The number of the last of so many rows.
fn count(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX)
}

fn index_of(batch: i32) -> usize {
    usize::try_from(batch).unwrap_or_default().saturating_sub(1)
}

impl Beside<'_> {
    /// The seal of a payload.
    pub(super) fn seal(&self) -> [u8; codec::SEAL_BYTES] {
        rows::payload_seal(self.key, self.bytes)
    }
}
