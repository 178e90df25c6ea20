//! A group of batches in one call of one function, which is one transaction and one round trip.
//!
//! Rule: each batch is answered on its own; a group that fails whole is applied again batch by
//! batch. An answer that does not come means `Unknown`, because the call may have been carried out
//! or may still be. What the call does, in which order and why, is said at `apply_group` in the
//! third migration; what it is given, in `group.rs`; which groups try a shorter way first, in
//! `lean.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use onceward_core::batch::{Answer, Applied, Batch, Refused, There, Write};
use onceward_core::record::{Draft, FenceWrite};
use onceward_core::stamp::{At, Fence, Rev};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::super::memory::TOKEN_KEPT_MS;
use super::super::{Committed, StoreError};
use super::failure::{Failure, breaks_session, describe};
use super::group::Group;
use super::lean;
use super::open::{Lease, Session};
use super::rows;
use super::sql::{self, Sql};

/// Tokens that a session writes before it drops old ones.
const TOKENS_PER_PURGE: u32 = 256;

/// Writes of one call: each may hold a lock, of some thousands that all sessions of the server
/// share; and it has a number, of the 4,096 that one draw stands for.
const WRITES_MAX: usize = 2_560;

/// What one batch came to: an answer, or what is wrong with it alone.
type Result1 = Result<Answer, StoreError>;

/// Applies a group and gives the session back when its transaction has ended.
pub(super) async fn commit(
    lease: Lease,
    schema: &str,
    group: &[Arc<Batch>],
) -> Result<Committed, StoreError> {
    let mut results = Vec::with_capacity(group.len());
    for part in parts(group) {
        // What fails here is lost, never refused: that is right for the parts before it, too.
        let applied = together(&lease.session, schema, part).await;
        results.extend(applied.map_err(Failure::into_store_error)?);
    }
    lease.give_back();
    settle(results)
}

/// The group in parts of so many writes; nearly always one.
fn parts(group: &[Arc<Batch>]) -> impl Iterator<Item = &[Arc<Batch>]> {
    let mut rest = group;
    std::iter::from_fn(move || {
        let mut writes = 0;
        let fits = rest.iter().take_while(|batch| {
            writes += batch.writes.len();
            writes <= WRITES_MAX
        });
        let end = fits.count().max(1).min(rest.len());
        let (part, left) = rest.split_at(end);
        rest = left;
        (!part.is_empty()).then_some(part)
    })
}

/// One transaction for all, or one for each where that fails.
async fn together(
    session: &Session,
    schema: &str,
    group: &[Arc<Batch>],
) -> Result<Vec<Result1>, Failure> {
    if group.iter().any(|batch| prunes(batch)) {
        return one_by_one(session, schema, group).await;
    }
    let call = Call::of(schema, group, None);
    if lean::fits(group) && !call.group.repeats() && session.prospects.next_tries() {
        match attempt_lean(session, &call, group).await {
            Ok(Some(answers)) => return Ok(answers),
            // Nothing of it was applied: the longer way tells why, unless it was a passing race.
            Ok(None) | Err(Failure::Rejected { .. }) => {}
            Err(broken) => return Err(broken),
        }
    }
    match carry_out(session, call, group).await {
        Err(Failure::Rejected { .. }) if group.len() > 1 => {
            one_by_one(session, schema, group).await
        }
        Err(Failure::Rejected { transient, text }) => Ok(vec![rejected(transient, text)]),
        other => other,
    }
}

/// The shorter way; nothing where nothing was applied.
async fn attempt_lean(
    session: &Session,
    call: &Call<'_>,
    batches: &[Arc<Batch>],
) -> Result<Option<Vec<Result1>>, Failure> {
    let statement = session.prepared(Sql::ApplyLean);
    let values = call.lean_values();
    let row = answered(session.flight(session.client.query_one(statement, &values)).await);
    let answers = row.and_then(|row| {
        // It was carried out: an answer that can't be read says nothing else.
        call.lean_answers(batches, &row).map_err(|error| Failure::Lost(error.to_string()))
    });
    session.prospects.tried(matches!(answers, Ok(Some(_))));
    answers
}

/// What a call that commits has answered: where nobody did, it may have been carried out.
fn answered<T>(flown: Result<Result<T, Error>, Failure>) -> Result<T, Failure> {
    flown.map_err(lost)?.map_err(|error| match breaks_session(&error) {
        true => Failure::Lost(describe(&error)),
        false => Failure::from(error),
    })
}

/// What a session that is gone means once something may have been committed: it is not known.
fn lost(failure: Failure) -> Failure {
    match failure {
        Failure::Gone(text) => Failure::Lost(text),
        other => other,
    }
}

/// A batch that fails for a reason of its own must not fail its neighbours, and an answer has no
/// word for it: among neighbours it is told to come again, alone it hears the reason.
fn settle(results: Vec<Result1>) -> Result<Committed, StoreError> {
    if let Some(Err(error)) = results.first()
        && results.iter().all(Result::is_err)
    {
        return Err(error.clone());
    }
    let answers = results.into_iter().map(|result| result.unwrap_or(Answer::Contended));
    Ok(Committed { answers: answers.collect() })
}

fn rejected(transient: bool, text: String) -> Result1 {
    if transient { Ok(Answer::Contended) } else { Err(StoreError::NotApplied(text)) }
}

async fn one_by_one(
    session: &Session,
    schema: &str,
    group: &[Arc<Batch>],
) -> Result<Vec<Result1>, Failure> {
    let mut results = Vec::with_capacity(group.len());
    for batch in group {
        let attempted = if prunes(batch) {
            attempt_pruning(session, schema, batch).await
        } else {
            attempt(session, schema, std::slice::from_ref(batch)).await
        };
        match attempted {
            Ok(one) => results.extend(one),
            Err(Failure::Rejected { transient, text }) => results.push(rejected(transient, text)),
            // Those before it may have been committed: for them nothing else can be said.
            Err(broken) => return Err(lost(broken)),
        }
    }
    Ok(results)
}

/// Whether a batch drops audit entries. Few do, now and then: they have a transaction of their own,
/// in which the function is one step, so that it need not know of them.
fn prunes(batch: &Batch) -> bool {
    batch.writes.iter().any(|write| matches!(write, Write::Prune { .. }))
}

async fn attempt_pruning(
    session: &Session,
    schema: &str,
    batch: &Arc<Batch>,
) -> Result<Vec<Result1>, Failure> {
    session.flight(session.client.batch_execute("BEGIN")).await??;
    let pruned = async {
        let answers = attempt(session, schema, std::slice::from_ref(batch)).await?;
        if matches!(&answers[..], [Ok(Answer::Applied(applied))] if !applied.again) {
            prune(session, batch).await?;
        }
        Ok(answers)
    };
    let answers = match pruned.await {
        Err(Failure::Rejected { transient, text }) => {
            session.flight(session.client.batch_execute("ROLLBACK")).await??;
            return Err(Failure::Rejected { transient, text });
        }
        other => other?,
    };
    let lost = |text: String| Failure::Lost(text);
    let ended = session.flight(session.client.batch_execute("COMMIT")).await;
    ended
        .map_err(|_| lost("the connection broke at the commit".into()))?
        .map_err(|error| lost(describe(&error)))?;
    Ok(answers)
}

async fn prune(session: &Session, batch: &Batch) -> Result<(), Failure> {
    for write in &batch.writes {
        let Write::Prune { tenant, through, until } = write else { continue };
        let tenant = rows::text_column(tenant);
        let (xact, id) = (through.0.to_string(), through.1.cast_signed());
        let until = rows::instant(*until);
        let client = &session.client;
        session.flight(client.execute(session.prepared(Sql::SetTenant), &[&tenant])).await??;
        let values: [&(dyn ToSql + Sync); 3] = [&xact, &id, &until];
        let types = [Type::TEXT, Type::INT8, Type::INT8];
        let values: Vec<_> = values.into_iter().zip(types).collect();
        session.flight(client.query_typed(sql::PRUNE_AUDIT, &values)).await??;
    }
    Ok(())
}

/// One transaction for these batches.
async fn attempt(
    session: &Session,
    schema: &str,
    batches: &[Arc<Batch>],
) -> Result<Vec<Result1>, Failure> {
    carry_out(session, Call::of(schema, batches, None), batches).await
}

async fn carry_out(
    session: &Session,
    mut call: Call<'_>,
    batches: &[Arc<Batch>],
) -> Result<Vec<Result1>, Failure> {
    if batches.len() > 1 && call.group.repeats() {
        // Each has to see what the one before it did.
        let text = "two batches of a group name one row".into();
        return Err(Failure::Rejected { transient: true, text });
    }
    let purges = session.tokens_written(call.group.tokens(), TOKENS_PER_PURGE);
    call.purge_ms = purges.then_some(TOKEN_KEPT_MS.cast_signed());
    let statement = session.prepared(Sql::ApplyGroup);
    let values = call.values();
    let rows = answered(session.flight(session.client.query(statement, &values)).await)?;
    // It was carried out: an answer that can't be read says nothing else.
    call.answers(batches, &rows).map_err(|error| Failure::Lost(error.to_string()))
}

/// The arguments of one call.
pub(super) struct Call<'a> {
    group: Group<'a>,
    locks: Vec<i64>,
    lock_batch: Vec<i32>,
    token_batch: Vec<i32>,
    tokens: Vec<Vec<u8>>,
    purge_ms: Option<i64>,
    turns: i32,
}

impl<'a> Call<'a> {
    /// `purge_ms`: the age of the tokens that are dropped on the way.
    pub(super) fn of(schema: &str, batches: &'a [Arc<Batch>], purge_ms: Option<i64>) -> Self {
        let group = Group::of(schema, batches);
        let (locks, lock_batch) = group.locks.iter().copied().unzip();
        let tokens = group.tokens.iter().map(|(batch, token)| (*batch, token.to_vec()));
        let (token_batch, tokens) = tokens.unzip();
        let turns = group.turns();
        Self { group, locks, lock_batch, token_batch, tokens, purge_ms, turns }
    }

    /// As a statement takes them.
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.group.batches,
            &self.locks,
            &self.lock_batch,
            &self.token_batch,
            &self.tokens,
            &self.purge_ms,
            &self.turns,
            &self.group.slices,
        ]
    }

    /// As the shorter way takes them.
    fn lean_values(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.group.batches, &self.locks, &self.turns, &self.group.slices]
    }

    /// What the shorter way answered, for each batch; nothing where nothing was applied.
    fn lean_answers(
        &self,
        batches: &[Arc<Batch>],
        row: &Row,
    ) -> Result<Option<Vec<Result1>>, StoreError> {
        let Some(stamp) = rows::get(row, 1)? else { return Ok(None) };
        let outcome = Outcome::all_applied(At(rows::number(row, 0)?), stamp, batches.len());
        let mut nothing = ThereNow::new();
        let batches = 0..batches.len();
        let answer = |batch| outcome.answer(batch, self.group.first_put(batch), &mut nothing);
        Ok(Some(batches.map(answer).collect()))
    }

    /// What the server answered, for each batch.
    pub(super) fn answers(
        &self,
        batches: &[Arc<Batch>],
        rows: &[Row],
    ) -> Result<Vec<Result1>, StoreError> {
        let outcome = Outcome::read(rows)?;
        let mut there = there_now(&self.group, batches, &outcome, rows);
        let batches = 0..batches.len();
        let answer = |batch| outcome.answer(batch, self.group.first_put(batch), &mut there);
        Ok(batches.map(answer).collect())
    }
}

/// What became of each batch, as the first row of the answer says.
struct Outcome {
    now: At,
    verdicts: Vec<i16>,
    again: Vec<(Option<i64>, Option<i64>)>,
    failed: Vec<i64>,
    /// What the group drew.
    stamp: Option<i64>,
}

/// Where the answer's own columns begin, behind those of what is there.
const HEAD: usize = rows::LOOKED_COLUMNS;

impl Outcome {
    fn read(rows: &[Row]) -> Result<Self, StoreError> {
        let Some(head) = rows.first() else {
            return Err(StoreError::Corrupt("a group came without an answer".into()));
        };
        let revs: Vec<Option<i64>> = rows::get(head, HEAD + 2)?;
        let fences: Vec<Option<i64>> = rows::get(head, HEAD + 3)?;
        let failed: Option<Vec<i64>> = rows::get(head, HEAD + 4)?;
        Ok(Self {
            now: At(rows::number(head, HEAD)?),
            verdicts: rows::get(head, HEAD + 1)?,
            again: revs.into_iter().zip(fences).collect(),
            failed: failed.unwrap_or_default(),
            stamp: rows::get(head, HEAD + 5)?,
        })
    }

    fn all_applied(now: At, stamp: i64, batches: usize) -> Self {
        let (again, failed) = (Vec::new(), Vec::new());
        Self { now, verdicts: vec![0; batches], again, failed, stamp: Some(stamp) }
    }

    fn answer(&self, batch: usize, first: Option<(i32, &Draft)>, there: &mut ThereNow) -> Result1 {
        let now = self.now;
        match self.verdicts.get(batch) {
            Some(0) => {
                let first = first.and_then(|(turn, draft)| {
                    let stamp = (self.stamp? + i64::from(turn)).cast_unsigned();
                    Some((Rev(stamp), fence_of(draft, stamp)))
                });
                Ok(Answer::Applied(Applied { now, first, again: false }))
            }
            Some(1) => Ok(Answer::Contended),
            Some(2) => {
                let (rev, fence) = self.again.get(batch).copied().unwrap_or_default();
                let fence = fence.map(|fence| Fence(fence.cast_unsigned()));
                let first = rev.map(|rev| (Rev(rev.cast_unsigned()), fence));
                Ok(Answer::Applied(Applied { now, first, again: true }))
            }
            Some(3) => {
                let failed = there.remove(&batch).unwrap_or_default();
                let mut failed: Vec<_> = failed
                    .into_iter()
                    .map(|(condition, there)| Ok((condition, there?)))
                    .collect::<Result<_, StoreError>>()?;
                failed.sort_unstable_by_key(|(condition, _)| *condition);
                Ok(Answer::Refused(Refused { now, failed }))
            }
            _ => Err(StoreError::Unknown("a batch of the group has no answer".into())),
        }
    }
}

/// The fence of a record that was put with this stamp.
fn fence_of(draft: &Draft, stamp: u64) -> Option<Fence> {
    match draft.fence {
        FenceWrite::Keep => draft.record.fence,
        FenceWrite::Grant => Some(Fence(stamp)),
        FenceWrite::End | FenceWrite::Once => None,
    }
}

/// Per batch the conditions that failed, and what is there; damage is told to who met it.
type ThereNow = HashMap<usize, Vec<(usize, Result<There, StoreError>)>>;

fn there_now(
    group: &Group<'_>,
    batches: &[Arc<Batch>],
    outcome: &Outcome,
    rows: &[Row],
) -> ThereNow {
    let mut shown: HashMap<i64, &Row> = HashMap::new();
    for row in rows.iter().skip(1) {
        shown.extend(rows::place_column(row).ok().map(|place| (place, row)));
    }
    let mut there = ThereNow::new();
    for check in &outcome.failed {
        let Some((batch, condition)) = group.failed(*check) else { continue };
        let row = shown.get(check);
        let is_mark = batches[batch].conditions[condition].subject().is_some();
        let found = if is_mark {
            let mark = row.map(|row| rows::read_mark(row).map(|(_, mark)| mark));
            mark.transpose().map(There::Mark)
        } else {
            let stored = row.map(|row| rows::read_stored(row).map(|(stored, _)| Box::new(stored)));
            stored.transpose().map(There::Record)
        };
        there.entry(batch).or_default().push((condition, found));
    }
    there
}
