//! The commit: a try, what became of it, and another one where nothing was decided.
//!
//! Rule: only an answer settles a try. Conditions that failed are looked at with a strongly
//! consistent read; when the batch is found to have been applied it is recognised by its token,
//! when a condition of its own fails it is refused with what is there, and when neither (a stamp or
//! a mark had moved on) it is tried again. A lost answer is told as unknown: the caller sends the
//! batch again, and the token tells.

use std::collections::HashMap;

use onceward_core::batch::{Answer, Applied, Batch, Condition, Refused, There, Witness};
use onceward_core::key::{Key, Subject};

use super::super::{Fact, Read, StoreError};
use super::failure::{Failure, Pauses};
use super::plan::{Plan, token_place};
use super::table::Table;
use super::{bodies, prune, reader};

/// Applies one batch.
pub(super) async fn commit(table: &Table, batch: &Batch) -> Result<Answer, StoreError> {
    let mut pauses = Pauses::new();
    loop {
        let plan = Plan::make(table, batch).await.map_err(Failure::of_read)?;
        let busy = match send(table, &plan).await {
            Ok(()) => return Ok(Answer::Applied(finish(table, plan).await)),
            Err(Failure::Condition) => match judge(table, batch).await.map_err(Failure::of_read)? {
                Some(answer) => return Ok(answer),
                None => None,
            },
            Err(Failure::Conflict(_)) => None,
            Err(Failure::Busy(why)) => Some(why),
            Err(failure) => return Err(failure.of_write()),
        };
        if !pauses.next().await {
            // Nothing was written at any of the tries.
            return busy.map_or(Ok(Answer::Contended), |why| Err(StoreError::NotApplied(why)));
        }
    }
}

async fn send(table: &Table, plan: &Plan) -> Result<(), Failure> {
    match plan.ops.as_slice() {
        [op] if !op.is_check() => table.write_signed(op, plan.signed).await,
        ops => table.write_together(ops, &bodies::random_name(), plan.signed).await,
    }
}

/// What follows an applied batch: garbage is removed. Whatever fails here is left for later.
async fn finish(table: &Table, plan: Plan) -> Applied {
    for (tenant, place) in &plan.untidy {
        let _ = bodies::tidy(table, tenant, place).await;
    }
    for tenant in &plan.pruned {
        let _ = prune::finish(table, tenant).await;
    }
    Applied { now: plan.now, first: plan.first, again: false }
}

/// Whether the batch was applied before, or which of its conditions fail. None: neither.
async fn judge(table: &Table, batch: &Batch) -> Result<Option<Answer>, Failure> {
    if batch.witness() == Witness::Tokens && table.get(&token_place(batch)).await?.is_some() {
        let now = table.dates.now();
        return Ok(Some(Answer::Applied(Applied { now, first: None, again: true })));
    }
    let reads = reads(batch);
    let facts = reader::load(table, &reads).await?;
    let now = table.dates.now();
    let mut there = Seen::default();
    for (read, fact) in reads.iter().zip(facts) {
        match (read, fact) {
            (Read::Record { key, .. }, Fact::Record(found)) => {
                there.records.insert(key, found.map(|found| Box::new(found.stored)));
            }
            (Read::Mark(subject), Fact::Mark(mark)) => {
                there.marks.insert(subject, mark);
            }
            _ => {}
        }
    }
    if let Witness::Record(key) = batch.witness()
        && let Some(Some(stored)) = there.records.get(key)
        && stored.record.token == batch.token
    {
        let first = Some((stored.record.rev, stored.record.fence));
        return Ok(Some(Answer::Applied(Applied { now, first, again: true })));
    }
    let conditions = batch.conditions.iter().enumerate();
    let failed: Vec<_> =
        conditions.filter_map(|(index, c)| Some((index, there.failed(c)?))).collect();
    Ok((!failed.is_empty()).then_some(Answer::Refused(Refused { now, failed })))
}

/// Every row that a condition or the token is about.
fn reads(batch: &Batch) -> Vec<Read> {
    let mut reads = Vec::new();
    let witness = match batch.witness() {
        Witness::Record(key) => Some(key),
        Witness::Tokens => None,
    };
    for key in batch.conditions.iter().filter_map(Condition::key).chain(witness) {
        let read = Read::Record { key: key.clone(), payload: false };
        if !reads.contains(&read) {
            reads.push(read);
        }
    }
    for subject in batch.conditions.iter().filter_map(Condition::subject) {
        let read = Read::Mark(subject.clone());
        if !reads.contains(&read) {
            reads.push(read);
        }
    }
    reads
}

/// What was found.
#[derive(Default)]
struct Seen<'a> {
    records: HashMap<&'a Key, Option<Box<onceward_core::record::Stored>>>,
    marks: HashMap<&'a Subject, Option<onceward_core::record::Mark>>,
}

impl Seen<'_> {
    /// What is there in a failed condition's place.
    fn failed(&self, condition: &Condition) -> Option<There> {
        if let Some(key) = condition.key() {
            let stored = self.records.get(key).cloned().flatten();
            let holds = condition.holds_for(stored.as_ref().map(|stored| &stored.record));
            return (!holds).then_some(There::Record(stored));
        }
        let mark = self.marks.get(condition.subject()?).cloned().flatten();
        let holds = condition.holds_at(mark.as_ref().map_or(0, |mark| mark.position));
        (!holds).then_some(There::Mark(mark))
    }
}
