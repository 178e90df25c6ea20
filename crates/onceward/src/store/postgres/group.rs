//! A group as the arguments of `apply_group`: columns of plain arrays, cut into tenants' slices.
//!
//! Rule: whatever belongs to a tenant lies in that tenant's slice, so that it is looked at and
//! written under that tenant alone. The order of the arguments is that of the function in the third
//! migration. What became of the group is read in `apply.rs`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use onceward_core::audit::Entry;
use onceward_core::batch::{Batch, Condition, Witness, Write};
use onceward_core::codec;
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Body, Draft, FenceWrite, Time};
use onceward_core::stamp::{At, Token};
use tokio_postgres::types::ToSql;

use super::super::memory::TOKEN_KEPT_MS;
use super::locks;
use super::rows::{self, digest_column, instant, kind_code, state_code, text_column, token_column};

/// Beyond this a while ends with the end of time: now and so much is still an instant.
const LONGEST_MS: u64 = 1 << 62;
/// Added to what a put does with the fence, where its batch demands that no record is there.
const DEMANDS_ABSENT: i16 = 4;
/// In the place of a while that is longer.
const END_OF_TIME: i64 = -1;

/// Rows of one table in the order of their tenants, and where each tenant's end.
struct Slices<R> {
    rows: Vec<(usize, R)>,
    ends: Vec<i32>,
}

impl<R> Default for Slices<R> {
    fn default() -> Self {
        Self { rows: Vec::new(), ends: Vec::new() }
    }
}

impl<R> Slices<R> {
    fn cut(&mut self, order: &[usize]) {
        let place = |tenant: usize| order.get(tenant).copied().unwrap_or_default();
        self.rows.sort_by_key(|(tenant, _)| place(*tenant));
        let mut ends = vec![0; order.len()];
        for (tenant, _) in &self.rows {
            ends[place(*tenant)] += 1;
        }
        let mut end = 0;
        self.ends = ends
            .into_iter()
            .map(|rows: i32| {
                end += rows;
                end
            })
            .collect();
    }

    fn column<'r, T>(&'r self, of: impl Fn(&'r R) -> T) -> Vec<T> {
        self.rows.iter().map(|(_, row)| of(row)).collect()
    }
}

/// A look at a record: a condition, or the token of a batch that may come again, or both.
struct Check<'a> {
    batch: i32,
    /// Which condition of its batch; none when only the token is asked for.
    condition: Option<usize>,
    key: &'a Key,
    rule: i16,
    number: i64,
    token: Option<Vec<u8>>,
}

/// A condition on a mark.
struct Stand<'a> {
    batch: i32,
    condition: usize,
    subject: &'a Subject,
    rule: i16,
    number: i64,
}

struct Put<'a> {
    batch: i32,
    /// Whether it is the first of its batch.
    first: bool,
    /// Whether its batch demands that no record is there.
    fresh: bool,
    draft: &'a Draft,
    token: Token,
    body: Vec<u8>,
    /// Which put of the group it is.
    turn: i32,
}

/// Bytes that are set or dropped: 1 an outcome, 2 a payload, 0 the record with both.
struct Beside<'a> {
    batch: i32,
    table: i16,
    key: &'a Key,
    bytes: &'a [u8],
    seal: Option<Vec<u8>>,
}

struct MarkWrite<'a> {
    batch: i32,
    subject: &'a Subject,
    position: u64,
    value: &'a Body,
    digest: Option<Vec<u8>>,
}

struct Noted<'a> {
    batch: i32,
    /// Which entry of the group it is.
    turn: i32,
    entry: &'a Entry,
}

/// Everything that a group asks for.
#[derive(Default)]
pub(super) struct Group<'a> {
    batches: i32,
    locks: Vec<(i64, i32)>,
    tokens: Vec<(i32, Vec<u8>)>,
    tenants: BTreeMap<Cow<'a, str>, usize>,
    checks: Slices<Check<'a>>,
    stands: Slices<Stand<'a>>,
    puts: Slices<Put<'a>>,
    bodies: Slices<Beside<'a>>,
    gone: Slices<Beside<'a>>,
    marks: Slices<MarkWrite<'a>>,
    audit: Slices<Noted<'a>>,
}

impl<'a> Group<'a> {
    pub(super) fn of(schema: &str, batches: &'a [Arc<Batch>]) -> Self {
        let mut group = Self::default();
        for batch in batches {
            group.batches += 1;
            group.add(schema, batch);
        }
        group.locks.sort_unstable();
        group.locks.dedup();
        let mut order = vec![0; group.tenants.len()];
        for (place, number) in group.tenants.values().enumerate() {
            order[*number] = place;
        }
        group.checks.cut(&order);
        group.stands.cut(&order);
        group.puts.cut(&order);
        group.bodies.cut(&order);
        group.gone.cut(&order);
        group.marks.cut(&order);
        group.audit.cut(&order);
        group
    }

    fn tenant(&mut self, tenant: impl Into<Cow<'a, str>>) -> usize {
        let next = self.tenants.len();
        *self.tenants.entry(tenant.into()).or_insert(next)
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
        self.add_conditions(batch, witness);
        for write in &batch.writes {
            match write {
                Write::Put(draft) => self.add_put(batch, draft),
                Write::Delete(key) => self.push_gone(key, 0),
                Write::Mark { subject, position, value } => {
                    let digest = match value {
                        Body::Set(bytes) => Some(digest_column(&fingerprint_bytes(bytes))),
                        Body::Keep | Body::Clear => None,
                    };
                    let tenant = self.tenant(subject.tenant_column());
                    let row =
                        MarkWrite { batch: number, subject, position: *position, value, digest };
                    self.marks.rows.push((tenant, row));
                }
                // Beside the call, in its transaction: see `apply.rs`.
                Write::Prune { .. } => {}
                Write::Audit(entry) => {
                    let tenant = self.tenant(text_column(&entry.tenant));
                    let turn = turn(self.audit.rows.len());
                    self.audit.rows.push((tenant, Noted { batch: number, turn, entry }));
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
                let tenant = self.tenant(subject.tenant_column());
                let batch = self.batches;
                let row = Stand { batch, condition: index, subject, rule, number };
                self.stands.rows.push((tenant, row));
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
        let tenant = self.tenant(key.tenant_column());
        let (batch, token) = (self.batches, token.map(token_column));
        self.checks.rows.push((tenant, Check { batch, condition, key, rule, number, token }));
    }

    fn push_gone(&mut self, key: &'a Key, table: i16) {
        let tenant = self.tenant(key.tenant_column());
        let row = Beside { batch: self.batches, table, key, bytes: &[], seal: None };
        self.gone.rows.push((tenant, row));
    }

    fn add_put(&mut self, batch: &'a Batch, draft: &'a Draft) {
        let key = &draft.record.key;
        let tenant = self.tenant(key.tenant_column());
        let number = self.batches;
        let body = codec::encode_body(&draft.record);
        let first = self.puts.rows.last().is_none_or(|(_, put)| put.batch != number);
        let fresh =
            batch.conditions.iter().any(|is| matches!(is, Condition::Absent(k) if k == key));
        let turn = turn(self.puts.rows.len());
        let put = Put { batch: number, first, fresh, draft, token: batch.token, body, turn };
        self.puts.rows.push((tenant, put));
        // Where nothing is, nothing has to be dropped.
        for (table, body) in [(1, &draft.outcome), (2, &draft.payload)] {
            match body {
                Body::Set(bytes) => {
                    let seal = (table == 2).then(|| rows::payload_seal(key, bytes).to_vec());
                    let row = Beside { batch: number, table, key, bytes, seal };
                    self.bodies.rows.push((tenant, row));
                }
                Body::Clear if !fresh => self.push_gone(key, table),
                Body::Clear | Body::Keep => {}
            }
        }
    }

    /// How many of its batches leave a token behind.
    pub(super) fn tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Where the first put of each batch lies among all puts.
    pub(super) fn first_puts(&self) -> Vec<Option<(usize, &'a Draft)>> {
        let mut first = vec![None; usize::try_from(self.batches).unwrap_or_default()];
        for (place, (_, put)) in self.puts.rows.iter().enumerate() {
            if put.first {
                first[index_of(put.batch)] = Some((place, put.draft));
            }
        }
        first
    }

    /// The batch and its condition that a failed check stands for.
    pub(super) fn failed(&self, check: i64) -> Option<(usize, usize)> {
        let place = usize::try_from(check.unsigned_abs()).ok()?.checked_sub(1)?;
        if check > 0 {
            let (_, row) = self.checks.rows.get(place)?;
            return Some((index_of(row.batch), row.condition?));
        }
        let (_, row) = self.stands.rows.get(place)?;
        Some((index_of(row.batch), row.condition))
    }
}

/// The number of a row, in the order of the writes.
fn turn(rows: usize) -> i32 {
    i32::try_from(rows).unwrap_or(i32::MAX)
}

fn index_of(batch: i32) -> usize {
    usize::try_from(batch).unwrap_or_default().saturating_sub(1)
}

/// The columns of a group, as arrays that can be sent.
pub(super) struct Arguments<'a>(Vec<Box<dyn ToSql + Sync + Send + 'a>>);

impl<'a> Arguments<'a> {
    /// `purges`: whether old tokens are dropped on the way.
    pub(super) fn of(group: &'a Group<'_>, purges: bool) -> Self {
        let mut all = Self(Vec::with_capacity(77));
        let (locks, lock_batch): (Vec<i64>, Vec<i32>) = group.locks.iter().copied().unzip();
        let (token_batch, tokens): (Vec<i32>, Vec<&[u8]>) =
            group.tokens.iter().map(|(batch, token)| (*batch, token.as_slice())).unzip();
        let tenants: Vec<&str> = group.tenants.keys().map(AsRef::as_ref).collect();
        all.push(group.batches);
        all.push(locks);
        all.push(lock_batch);
        all.push(token_batch);
        all.push(tokens);
        all.push(purges.then_some(TOKEN_KEPT_MS.cast_signed()));
        all.push(tenants);
        all.checks(group);
        all.puts(&group.puts);
        all.beside(&group.bodies, true);
        all.beside(&group.gone, false);
        all.marks(&group.marks);
        all.audit(&group.audit);
        all
    }

    /// As a statement takes them.
    pub(super) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.0.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }

    fn push(&mut self, column: impl ToSql + Sync + Send + 'a) {
        self.0.push(Box::new(column));
    }

    fn checks(&mut self, group: &'a Group<'_>) {
        let checks = &group.checks;
        self.push(&checks.ends);
        self.push(checks.column(|row| row.batch));
        self.push(checks.column(|row| row.rule));
        self.push(checks.column(|row| kind_code(row.key.kind())));
        self.push(checks.column(|row| row.key.name_column()));
        self.push(checks.column(|row| row.number));
        self.push(checks.column(|row| row.token.as_deref()));
        let stands = &group.stands;
        self.push(&stands.ends);
        self.push(stands.column(|row| row.batch));
        self.push(stands.column(|row| row.rule));
        self.push(stands.column(|row| row.subject.name_column()));
        self.push(stands.column(|row| row.number));
    }

    fn puts(&mut self, puts: &'a Slices<Put<'_>>) {
        let bounded = |at: Option<At>| at.map(instant);
        let kept = |time: Time, at: Option<At>| bounded(at).filter(|_| time == Time::Keep);
        self.push(&puts.ends);
        self.push(puts.column(|put| put.batch));
        self.push(puts.column(|put| kind_code(put.draft.record.key.kind())));
        self.push(puts.column(|put| put.draft.record.key.name_column()));
        self.push(puts.column(|put| state_code(put.draft.record.state)));
        self.push(puts.column(|put| digest_column(&put.draft.record.fingerprint)));
        self.push(puts.column(|put| {
            let grants = match put.draft.fence {
                FenceWrite::Keep => 0_i16,
                FenceWrite::Grant => 1,
                FenceWrite::End => 2,
                FenceWrite::Once => 3,
            };
            if put.fresh { grants + DEMANDS_ABSENT } else { grants }
        }));
        self.push(puts.column(|put| put.draft.record.fence.map(|fence| fence.0.cast_signed())));
        self.push(puts.column(|put| put.draft.record.last_fence.0.cast_signed()));
        self.push(puts.column(|put| token_column(put.token)));
        self.push(puts.column(|put| i64::from(put.draft.record.attempt)));
        self.push(puts.column(|put| i16::from(put.draft.record.priority)));
        self.push(
            puts.column(|put| (!put.draft.fresh).then(|| instant(put.draft.record.created_at))),
        );
        self.push(puts.column(|put| kept(put.draft.due, put.draft.record.due_at)));
        self.push(puts.column(|put| after(put.draft.due)));
        self.push(puts.column(|put| kept(put.draft.expires, put.draft.record.expires_at)));
        self.push(puts.column(|put| after(put.draft.expires)));
        self.push(puts.column(|put| kept(put.draft.sweep, put.draft.record.sweep_at)));
        self.push(puts.column(|put| after(put.draft.sweep)));
        self.push(puts.column(|put| put.draft.record.outcome.as_ref().map(digest_column)));
        self.push(puts.column(|put| put.draft.record.has_payload));
        self.push(puts.column(|put| put.body.as_slice()));
        self.push(
            puts.column(|put| codec::seal_base(&put.draft.record, put.token, &put.body).to_vec()),
        );
        self.push(puts.column(|put| put.turn));
    }

    fn beside(&mut self, rows: &'a Slices<Beside<'_>>, with_bytes: bool) {
        self.push(&rows.ends);
        self.push(rows.column(|row| row.batch));
        self.push(rows.column(|row| row.table));
        self.push(rows.column(|row| kind_code(row.key.kind())));
        self.push(rows.column(|row| row.key.name_column()));
        if with_bytes {
            self.push(rows.column(|row| row.bytes));
            self.push(rows.column(|row| row.seal.as_deref()));
        }
    }

    fn marks(&mut self, marks: &'a Slices<MarkWrite<'_>>) {
        self.push(&marks.ends);
        self.push(marks.column(|row| row.batch));
        self.push(marks.column(|row| row.subject.name_column()));
        self.push(marks.column(|row| row.position.cast_signed()));
        self.push(marks.column(|row| *row.value == Body::Keep));
        self.push(marks.column(|row| match row.value {
            Body::Set(bytes) => Some(&bytes[..]),
            Body::Keep | Body::Clear => None,
        }));
        self.push(marks.column(|row| row.digest.as_deref()));
        self.push(marks.column(|row| rows::mark_seal_base(row.subject)));
    }

    fn audit(&mut self, audit: &'a Slices<Noted<'_>>) {
        let text = |value: &'a Option<onceward_core::Text>| -> Option<Cow<'a, str>> {
            value.as_deref().map(text_column)
        };
        let number = |value: Option<u64>| value.map(u64::cast_signed);
        self.push(&audit.ends);
        self.push(audit.column(|noted| noted.batch));
        self.push(audit.column(|noted| text_column(&noted.entry.action)));
        self.push(audit.column(|noted| text(&noted.entry.subject)));
        self.push(audit.column(|noted| text(&noted.entry.key_hash)));
        self.push(audit.column(|noted| text(&noted.entry.payload_hash)));
        self.push(audit.column(|noted| number(noted.entry.version_before)));
        self.push(audit.column(|noted| number(noted.entry.version_after)));
        self.push(audit.column(|noted| number(noted.entry.fence)));
        self.push(audit.column(|noted| text(&noted.entry.trace.actor)));
        self.push(audit.column(|noted| text(&noted.entry.trace.request_id)));
        self.push(audit.column(|noted| text(&noted.entry.trace.correlation_id)));
        self.push(audit.column(|noted| text(&noted.entry.detail)));
        self.push(audit.column(|noted| noted.turn));
    }
}

/// A while, where there is one.
fn after(time: Time) -> Option<i64> {
    match time {
        Time::In(ms) if ms > LONGEST_MS => Some(END_OF_TIME),
        Time::In(ms) => Some(ms.cast_signed()),
        Time::Keep | Time::Clear => None,
    }
}
