//! From a batch to the items it writes: one try, with stamps of its own.
//!
//! Rule: whatever was read or drawn for a try is in its conditions. A record is written only above
//! the stamp that is there, so a number drawn earlier never follows a higher one, not even across a
//! deletion, which leaves the stamp behind. A mark is written over exactly what was read of it, or
//! over the position that the batch itself asks for. A token is written once.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use futures_util::future::{try_join, try_join_all};
use onceward_core::batch::{Batch, Condition, Witness, Write};
use onceward_core::key::Subject;
use onceward_core::limits::LimitError;
use onceward_core::record::{Body, Draft, Mark};
use onceward_core::stamp::{At, Fence, Rev};

use super::super::{Fact, Read};
use super::announce::announce;
use super::bodies::{self, Kept};
use super::failure::Failure;
use super::names::{self, Place, STAMP_SHARDS};
use super::ops::{Item, Op, bytes, number, text};
use super::stamps::{Counter, draw};
use super::table::{TRANSACTION_MAX, Table};
use super::{prune, reader, rows};

/// How long the token of a batch that puts no record is kept: longer than any resend.
const TOKEN_KEPT_MS: u64 = 60 * 60 * 1_000;

/// One try of a batch.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) now: At,
    /// When it is signed: before anything was drawn or read for it.
    pub(super) signed: Option<SystemTime>,
    pub(super) ops: Vec<Op>,
    /// Stamps of the first record that is put.
    pub(super) first: Option<(Rev, Option<Fence>)>,
    /// Items that may leave parts of large bodies behind.
    pub(super) untidy: Vec<(String, Place)>,
    /// Tenants whose audit was pruned.
    pub(super) pruned: Vec<String>,
}

/// What a write needs to know beforehand.
struct Known {
    numbers: Vec<u64>,
    marks: HashMap<Subject, Option<Mark>>,
    bodies: Vec<[Kept; 2]>,
    prunes: Vec<Option<Op>>,
}

impl Plan {
    /// Reads and draws what the batch needs, writes its large bodies, and puts it together.
    pub(super) async fn make(table: &Table, batch: &Batch) -> Result<Self, Failure> {
        let (now, signed) = (table.dates.now(), table.dates.signing());
        let before =
            async { try_join(announce(table, batch, now), read_marks(table, batch)).await };
        let counters = counters(batch);
        let drawn = draw(table, &counters, now);
        let aside = try_join(keep_bodies(table, batch, now), prunes(table, batch));
        let ((((), marks), numbers), (bodies, prunes)) =
            try_join(try_join(before, drawn), aside).await?;
        let known = Known { numbers, marks, bodies, prunes };
        let (ops, untidy, pruned) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { now, signed, ops, first: None, untidy, pruned };
        plan.compose(batch, known);
        if plan.ops.len() > TRANSACTION_MAX {
            let bound = format!("at most {TRANSACTION_MAX} on DynamoDB");
            return Err(LimitError::new("items in a batch", plan.ops.len(), bound).into());
        }
        Ok(plan)
    }

    fn compose(&mut self, batch: &Batch, known: Known) {
        for condition in &batch.conditions {
            self.ask(condition);
        }
        let mut numbers = known.numbers.into_iter();
        let mut parts = Vec::new();
        let writes = batch.writes.iter().zip(known.bodies).zip(known.prunes);
        for ((write, bodies), prune) in writes {
            match write {
                Write::Put(draft) => {
                    let stamp = numbers.next().unwrap_or_default();
                    self.put(batch, draft, stamp, &bodies, &mut parts);
                }
                Write::Delete(key) => {
                    let (place, now) = (names::record(key), self.now);
                    rows::set_gone(self.op(&place), now);
                    self.untidy.push((key.tenant_column().into(), place));
                }
                Write::Mark { subject, position, value } => {
                    let read = known.marks.get(subject);
                    let old = read.map(Option::as_ref).ok_or(asked_position(batch, subject));
                    self.mark((subject, *position, value), old, &bodies[0], &mut parts);
                }
                Write::Audit(entry) => {
                    let id = numbers.next().unwrap_or_default();
                    let mut item = rows::entry_item(id, self.now, entry);
                    match (&entry.detail, &bodies[0]) {
                        (Some(detail), Kept::Inline(_)) => {
                            item.insert("detail".into(), text(detail));
                        }
                        (_, kept) => bodies::refer_whole(&mut item, "detail", kept, &mut parts),
                    }
                    self.ops.push(Op::insert(names::entry(&entry.tenant, id), item));
                }
                Write::Prune { tenant, .. } => {
                    self.pruned.push(tenant.to_string());
                    self.ops.extend(prune);
                }
            }
        }
        self.ops.extend(parts);
        self.witness(batch);
    }

    /// The part of an item in this write.
    fn op(&mut self, place: &Place) -> &mut Op {
        let index = self.ops.iter().position(|op| op.place == *place).unwrap_or_else(|| {
            self.ops.push(Op::at(place.clone()));
            self.ops.len() - 1
        });
        &mut self.ops[index]
    }

    /// A condition of the batch, as an expression.
    fn ask(&mut self, condition: &Condition) {
        let place = match (condition.key(), condition.subject()) {
            (Some(key), _) => names::record(key),
            (None, Some(subject)) => names::mark(subject),
            (None, None) => return,
        };
        let expression = |op: &mut Op| match condition {
            Condition::Absent(_) => {
                let (rev, gone) = (op.name("rev"), op.name("gone"));
                format!("attribute_not_exists({rev}) OR attribute_exists({gone})")
            }
            Condition::RevIs(_, rev) => {
                let (name, rev, gone) = (op.name("rev"), op.value(number(rev.0)), op.name("gone"));
                format!("{name} = {rev} AND attribute_not_exists({gone})")
            }
            Condition::FenceIs(_, fence) => {
                let (name, gone) = (op.name("fence"), op.name("gone"));
                let fence = op.value(number(fence.0));
                format!("{name} = {fence} AND attribute_not_exists({gone})")
            }
            Condition::PositionIs(_, 0) => {
                let (name, none) = (op.name("position"), op.value(number(0)));
                format!("attribute_not_exists({name}) OR {name} = {none}")
            }
            Condition::PositionIs(_, position) => {
                format!("{} = {}", op.name("position"), op.value(number(*position)))
            }
            Condition::PositionAtMost(_, most) => {
                let (name, most) = (op.name("position"), op.value(number(*most)));
                format!("attribute_not_exists({name}) OR {name} <= {most}")
            }
        };
        self.op(&place).require(expression);
    }

    fn put(
        &mut self,
        batch: &Batch,
        draft: &Draft,
        stamp: u64,
        [outcome, payload]: &[Kept; 2],
        parts: &mut Vec<Op>,
    ) {
        let record = draft.resolve(batch.token, self.now, stamp);
        self.first = self.first.or(Some((record.rev, record.fence)));
        let place = names::record(&record.key);
        if [outcome, payload].iter().any(|kept| matches!(kept, Kept::Parts(_))) {
            self.untidy.push((record.key.tenant_column().into(), place.clone()));
        }
        let op = self.op(&place);
        op.require(|op| {
            let (rev, stamp) = (op.name("rev"), op.value(number(stamp)));
            format!("attribute_not_exists({rev}) OR {rev} < {stamp}")
        });
        rows::set_record(op, &record);
        bodies::refer(op, "outcome", outcome, parts);
        bodies::refer(op, "payload", payload, parts);
        match &draft.payload {
            Body::Keep => {}
            Body::Clear => op.remove("payload_seal"),
            Body::Set(body) => {
                op.set("payload_seal", bytes(&rows::payload_seal(&record.key, body)));
            }
        }
    }

    /// Moves a mark from what was read of it, or from the position that the batch asks for.
    fn mark(
        &mut self,
        (subject, position, value): (&Subject, u64, &Body),
        old: Result<Option<&Mark>, u64>,
        kept: &Kept,
        parts: &mut Vec<Op>,
    ) {
        let (at, there) = match old {
            Ok(there) => (there.map_or(0, |mark| mark.position), there),
            Err(asked) => (asked, None),
        };
        let value = match value {
            Body::Keep => there.and_then(|mark| mark.value.clone()),
            Body::Set(body) => Some(body.clone()),
            Body::Clear => None,
        };
        let mark = Mark { position: at.max(position), value, updated_at: self.now };
        let place = names::mark(subject);
        if matches!(kept, Kept::Parts(_)) {
            self.untidy.push((subject.tenant_column().into(), place.clone()));
        }
        let op = self.op(&place);
        match old {
            Ok(None) => op.require(|op| format!("attribute_not_exists({})", op.name("position"))),
            Ok(Some(old)) => op.require(|op| {
                let seal = op.value(bytes(&rows::mark_seal(subject, old)));
                format!("{} = {seal}", op.name("seal"))
            }),
            Err(_) => {}
        }
        rows::set_mark(op, subject, &mark);
        bodies::refer(op, "value", kept, parts);
    }

    /// Makes the batch known by its token, and refuses to write it twice.
    fn witness(&mut self, batch: &Batch) {
        match batch.witness() {
            Witness::Record(key) => self.op(&names::record(key)).require(|op| {
                let (name, token) =
                    (op.name("token"), op.value(bytes(&batch.token.0.to_be_bytes())));
                format!("attribute_not_exists({name}) OR {name} <> {token}")
            }),
            Witness::Tokens => {
                let ttl = self.now.plus(TOKEN_KEPT_MS).0.div_ceil(1_000);
                let item: Item = [("ttl".to_string(), number(ttl))].into();
                self.ops.push(Op::insert(token_place(batch), item));
            }
        }
    }
}

/// Where the token of a batch is that puts no record.
pub(super) fn token_place(batch: &Batch) -> Place {
    names::token(tenants(batch).first().map_or("", |tenant| tenant), batch.token)
}

/// The tenants of a batch. The same whenever it comes again.
pub(super) fn tenants(batch: &Batch) -> BTreeSet<&str> {
    let of_keys = batch.keys().map(onceward_core::key::Key::tenant_column);
    let of_subjects = batch.subjects().map(Subject::tenant_column);
    let aside = batch.writes.iter().filter_map(|write| match write {
        Write::Audit(entry) => Some(&*entry.tenant),
        Write::Prune { tenant, .. } => Some(&**tenant),
        Write::Put(_) | Write::Delete(_) | Write::Mark { .. } => None,
    });
    of_keys.chain(of_subjects).chain(aside).collect()
}

/// Whose numbers the writes need: records their shard's, entries that of a record beside them.
fn counters(batch: &Batch) -> Vec<Counter> {
    let shard_of_entry = |tenant: &str| {
        let beside = batch.writes.iter().find_map(|write| match write {
            Write::Put(draft) if draft.record.key.tenant_column() == tenant => {
                Some(names::stamp_shard(&draft.record.key))
            }
            _ => None,
        });
        beside.unwrap_or_else(|| u64::try_from(batch.token.0 % 8).unwrap_or(0) % STAMP_SHARDS)
    };
    let counter = |write: &Write| match write {
        Write::Put(draft) => {
            let key = &draft.record.key;
            Some(Counter { tenant: key.tenant_column().into(), shard: names::stamp_shard(key) })
        }
        Write::Audit(entry) => {
            Some(Counter { tenant: entry.tenant.to_string(), shard: shard_of_entry(&entry.tenant) })
        }
        Write::Delete(_) | Write::Mark { .. } | Write::Prune { .. } => None,
    };
    batch.writes.iter().filter_map(counter).collect()
}

/// The position that the batch asks a subject to be at.
fn asked_position(batch: &Batch, subject: &Subject) -> u64 {
    let asked = batch.conditions.iter().find_map(|condition| match condition {
        Condition::PositionIs(asked, position) if asked == subject => Some(*position),
        _ => None,
    });
    asked.unwrap_or_default()
}

/// Reads the marks that are written without the batch saying all about them: where they are, and
/// what becomes of their value.
async fn read_marks(
    table: &Table,
    batch: &Batch,
) -> Result<HashMap<Subject, Option<Mark>>, Failure> {
    let asked = |subject: &Subject| {
        let is = |c: &Condition| matches!(c, Condition::PositionIs(asked, _) if asked == subject);
        batch.conditions.iter().any(is)
    };
    let subjects: Vec<&Subject> = batch
        .writes
        .iter()
        .filter_map(|write| match write {
            Write::Mark { subject, value, .. } => {
                (*value == Body::Keep || !asked(subject)).then_some(subject)
            }
            _ => None,
        })
        .collect();
    let reads: Vec<Read> = subjects.iter().map(|subject| Read::Mark((*subject).clone())).collect();
    let facts = reader::load(table, &reads).await?;
    let marks = subjects.into_iter().zip(facts).map(|(subject, fact)| match fact {
        Fact::Mark(mark) => (subject.clone(), mark),
        Fact::Record(_) => (subject.clone(), None),
    });
    Ok(marks.collect())
}

/// Writes the large bodies of a batch.
async fn keep_bodies(table: &Table, batch: &Batch, now: At) -> Result<Vec<[Kept; 2]>, Failure> {
    try_join_all(batch.writes.iter().map(|write| async move {
        Ok(match write {
            Write::Put(draft) => {
                let key = &draft.record.key;
                let place = names::record(key);
                let owner = (key.tenant_column(), &place);
                let outcome = bodies::keep(table, owner, &draft.outcome, now);
                let payload = bodies::keep(table, owner, &draft.payload, now);
                let (outcome, payload) = try_join(outcome, payload).await?;
                [outcome, payload]
            }
            Write::Mark { subject, value, .. } => {
                let owner = names::mark(subject);
                let owner = (subject.tenant_column(), &owner);
                [bodies::keep(table, owner, value, now).await?, Kept::Nothing]
            }
            Write::Audit(entry) => {
                let detail = entry.detail.as_ref().map_or(Body::Clear, |detail| {
                    Body::Set(onceward_core::Bytes::from(detail.as_bytes()))
                });
                let owner = bodies::of_details(&entry.tenant);
                let owner = (&*entry.tenant, &owner);
                [bodies::keep(table, owner, &detail, now).await?, Kept::Nothing]
            }
            Write::Delete(_) | Write::Prune { .. } => [Kept::Nothing, Kept::Nothing],
        })
    }))
    .await
}

async fn prunes(table: &Table, batch: &Batch) -> Result<Vec<Option<Op>>, Failure> {
    let mut prunes = Vec::new();
    for write in &batch.writes {
        prunes.push(match write {
            Write::Prune { tenant, through, until } => {
                Some(prune::prepare(table, tenant, *through, *until).await?)
            }
            _ => None,
        });
    }
    let tenants: Vec<_> = prunes.iter().flatten().map(|op| &op.place).collect();
    if tenants.iter().collect::<BTreeSet<_>>().len() < tenants.len() {
        return Err(LimitError::new("batch", "two prunes of one tenant", "one").into());
    }
    Ok(prunes)
}
