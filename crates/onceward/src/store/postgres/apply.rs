//! A group of batches in one transaction: locks, look, check, write, commit; two round trips.
//!
//! Rule: everything that is looked at was locked before, by name, and stays so until the commit;
//! therefore what was checked still holds when it is written. Locks of keys, marks and tokens are
//! tried, never waited for. Each batch is answered on its own; a group that fails whole is applied
//! again batch by batch. What is written, and how, is said in `writer.rs`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use onceward_core::batch::{Answer, Applied, Batch, Condition, Refused, There, Witness, Write};
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Mark, Stored};
use onceward_core::stamp::{At, Fence, Rev, Token};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::super::{Committed, StoreError};
use super::failure::Failure;
use super::open::{Lease, Session};
use super::reader::KeyColumns;
use super::rows;
use super::sql::Sql;
use super::writer::{Looked, Writes};

/// What one batch came to: an answer, or what is wrong with it alone.
type Result1 = Result<Answer, StoreError>;

/// Applies a group and gives the session back when its transaction has ended.
pub(super) async fn commit(
    lease: Lease,
    schema: &str,
    group: &[Arc<Batch>],
) -> Result<Committed, StoreError> {
    let session = &lease.session;
    let results = match attempt(session, schema, group).await {
        Err(Failure::Rejected { .. }) if group.len() > 1 => {
            one_by_one(session, schema, group).await
        }
        Err(Failure::Rejected { transient, text }) => Ok(vec![rejected(transient, text)]),
        other => other,
    };
    let results = results.map_err(Failure::into_store_error)?;
    lease.give_back();
    settle(results)
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
        match attempt(session, schema, std::slice::from_ref(batch)).await {
            Ok(one) => results.extend(one),
            Err(Failure::Rejected { transient, text }) => results.push(rejected(transient, text)),
            // What was applied before the connection broke can't be told any more, only asked for.
            Err(Failure::Gone(text)) if !results.is_empty() => return Err(Failure::Lost(text)),
            Err(broken) => return Err(broken),
        }
    }
    Ok(results)
}

/// One transaction for these batches.
async fn attempt(
    session: &Session,
    schema: &str,
    group: &[Arc<Batch>],
) -> Result<Vec<Result1>, Failure> {
    let touched = Touched::by(group, schema);
    let held = match hold(session, &touched).await {
        Ok(held) => held,
        Err(Failure::Rejected { transient, text }) => {
            let end = session.flight(session.client.batch_execute("ROLLBACK")).await?;
            end?;
            return Err(Failure::Rejected { transient, text });
        }
        Err(broken) => return Err(broken),
    };
    let mut stamps = held.stamps.iter().copied();
    let mut writes = Writes::new(held.now);
    let mut verdicts = Vec::with_capacity(group.len());
    for (index, batch) in group.iter().enumerate() {
        let got = held.got.get(index) == Some(&true);
        let verdict = if got { check(batch, &held) } else { Verdict::Contended };
        let verdict = match verdict {
            Verdict::Holds(_) => Verdict::Holds(writes.add(batch, &held, &mut stamps)),
            other => other,
        };
        verdicts.push(verdict);
    }
    let (keys, subjects) = refused_of(group, &verdicts);
    let looked = writes.run(session, &keys, &subjects).await?;
    let there = ThereNow::of(&looked, &keys, &subjects);
    let answered = group.iter().zip(verdicts);
    Ok(answered.map(|(batch, verdict)| answer(batch, verdict, held.now, &there)).collect())
}

/// What the group is about, each once, and the names of its locks.
struct Touched<'a> {
    keys: Vec<&'a Key>,
    subjects: Vec<&'a Subject>,
    tokens: Vec<Token>,
    /// In order, each with the batch that needs it, counted from 1 as SQL does.
    locks: Vec<(String, i32)>,
    /// The same for the tenants whose audit is written.
    audits: Vec<(String, i32)>,
    batches: i32,
    puts: i64,
}

impl<'a> Touched<'a> {
    /// The names of locks are the same in every version that may run beside this one.
    fn by(group: &'a [Arc<Batch>], schema: &str) -> Self {
        let mut locks = Vec::new();
        let mut audits = Vec::new();
        let mut tokens = Vec::new();
        let mut puts = 0;
        let mut batches = 0;
        for batch in group {
            batches += 1;
            let owner = batches;
            locks.extend(batch.keys().map(|key| (format!("{schema}:record:{key}"), owner)));
            let subjects = batch.subjects();
            locks.extend(subjects.map(|subject| (format!("{schema}:mark:{subject}"), owner)));
            if batch.witness() == Witness::Tokens {
                // A batch whose rows are gone or are none still has to exclude its own copy.
                locks.push((format!("{schema}:token:{:032x}", batch.token.0), owner));
                tokens.push(batch.token);
            }
            for write in &batch.writes {
                match write {
                    Write::Put(_) => puts += 1,
                    Write::Audit(entry) => {
                        let tenant = rows::text_column(&entry.tenant);
                        audits.push((format!("{schema}:audit:{tenant}"), owner));
                    }
                    Write::Delete(_) | Write::Mark { .. } | Write::Prune { .. } => {}
                }
            }
        }
        locks.sort_unstable();
        locks.dedup();
        audits.sort_unstable();
        audits.dedup();
        let keys: HashSet<&Key> = group.iter().flat_map(|batch| batch.keys()).collect();
        let subjects: HashSet<&Subject> = group.iter().flat_map(|b| b.subjects()).collect();
        Self {
            keys: keys.into_iter().collect(),
            subjects: subjects.into_iter().collect(),
            tokens,
            locks,
            audits,
            batches,
            puts,
        }
    }
}

/// What was found once everything was locked.
pub(super) struct Held<'a> {
    pub(super) now: At,
    stamps: Vec<u64>,
    /// Which batches got all their locks.
    got: Vec<bool>,
    pub(super) records: HashMap<&'a Key, Stamped>,
    /// Position and the digest of the value.
    pub(super) marks: HashMap<&'a Subject, (u64, Option<Vec<u8>>)>,
    tokens: HashSet<Token>,
}

/// The stamps of a record.
pub(super) struct Stamped {
    rev: Rev,
    fence: Option<Fence>,
    token: Token,
}

/// The first round trip: locks, then now and stamps, then the look.
async fn hold<'a>(session: &Session, touched: &Touched<'a>) -> Result<Held<'a>, Failure> {
    let client = &session.client;
    // Read committed, whatever the database's default is: each statement has to see what was
    // committed before the locks were taken. Biased: statements go out in this order.
    let (begun, locks, drawn, records, marks, tokens) = session
        .flight(async {
            tokio::join!(
                biased;
                client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"),
                lock(session, touched),
                draw(session, touched.puts),
                find_records(session, &touched.keys),
                find_marks(session, &touched.subjects),
                find_tokens(session, &touched.tokens),
            )
        })
        .await?;
    begun?;
    let locks = locks?;
    let drawn = drawn?;
    let (records, marks, tokens) = (records?, marks?, tokens?);
    read_held(touched, &locks, &drawn, &records, &marks, &tokens)
}

async fn lock(session: &Session, touched: &Touched<'_>) -> Result<Row, Error> {
    let (names, owners) = columns(&touched.locks);
    let (audits, audit_owners) = columns(&touched.audits);
    let values: [&(dyn ToSql + Sync); 5] =
        [&names, &owners, &audits, &audit_owners, &touched.batches];
    session.client.query_one(session.prepared(Sql::Lock), &values).await
}

fn columns(locks: &[(String, i32)]) -> (Vec<&str>, Vec<i32>) {
    locks.iter().map(|(name, owner)| (name.as_str(), *owner)).unzip()
}

async fn draw(session: &Session, stamps: i64) -> Result<Row, Error> {
    session.client.query_one(session.prepared(Sql::Draw), &[&stamps]).await
}

async fn find_records(session: &Session, keys: &[&Key]) -> Result<Vec<Row>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let KeyColumns { tenants, kinds, names } = KeyColumns::of(keys);
    let statement = session.prepared(Sql::FindRecords);
    session.client.query(statement, &[&tenants, &kinds, &names]).await
}

async fn find_marks(session: &Session, subjects: &[&Subject]) -> Result<Vec<Row>, Error> {
    if subjects.is_empty() {
        return Ok(Vec::new());
    }
    let tenants: Vec<&str> = subjects.iter().map(|subject| subject.tenant_column()).collect();
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name_column()).collect();
    session.client.query(session.prepared(Sql::FindMarks), &[&tenants, &names]).await
}

async fn find_tokens(session: &Session, tokens: &[Token]) -> Result<Vec<Row>, Error> {
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    let tokens: Vec<Vec<u8>> = tokens.iter().map(|token| rows::token_column(*token)).collect();
    session.client.query(session.prepared(Sql::FindTokens), &[&tokens]).await
}

/// A column of another type than the statement names is a broken server: nothing can go on.
fn read_held<'a>(
    touched: &Touched<'a>,
    locks: &Row,
    drawn: &Row,
    records: &[Row],
    marks: &[Row],
    tokens: &[Row],
) -> Result<Held<'a>, Failure> {
    let broken = |error: StoreError| Failure::Gone(error.to_string());
    let got = rows::get(locks, 0).map_err(broken)?;
    let now = At(rows::number(drawn, 0).map_err(broken)?);
    let stamps: Vec<i64> = rows::get(drawn, 1).map_err(broken)?;
    let token = |bytes: &[u8]| {
        // A token of another length was not written by us and is nobody's.
        Token(<[u8; 16]>::try_from(bytes).map_or(0, u128::from_be_bytes))
    };
    let mut found = HashMap::with_capacity(records.len());
    for row in records {
        let place = rows::place(row, 0).map_err(broken)?;
        let stamped = Stamped {
            rev: Rev(rows::number(row, 1).map_err(broken)?),
            fence: rows::optional(row, 2).map_err(broken)?.map(Fence),
            token: token(rows::get(row, 3).map_err(broken)?),
        };
        found.extend(touched.keys.get(place).map(|key| (*key, stamped)));
    }
    let mut marked = HashMap::with_capacity(marks.len());
    for row in marks {
        let place = rows::place(row, 0).map_err(broken)?;
        let position = rows::number(row, 1).map_err(broken)?;
        let digest = rows::get(row, 2).map_err(broken)?;
        marked.extend(touched.subjects.get(place).map(|subject| (*subject, (position, digest))));
    }
    let known = tokens.iter().map(|row| rows::get(row, 0).map(token));
    Ok(Held {
        now,
        stamps: stamps.into_iter().map(i64::cast_unsigned).collect(),
        got,
        records: found,
        marks: marked,
        tokens: known.collect::<Result<_, _>>().map_err(broken)?,
    })
}

/// What becomes of one batch.
enum Verdict {
    Contended,
    /// Applied by an earlier try.
    Again(Option<(Rev, Option<Fence>)>),
    /// The conditions that do not hold.
    Refused(Vec<usize>),
    /// Written; with the stamps of its first put.
    Holds(Option<(Rev, Option<Fence>)>),
}

/// Recognises a batch or checks its conditions, from what was found under its locks.
fn check(batch: &Batch, held: &Held<'_>) -> Verdict {
    match batch.witness() {
        Witness::Tokens if held.tokens.contains(&batch.token) => return Verdict::Again(None),
        Witness::Tokens => {}
        Witness::Record(key) => {
            let there = held.records.get(key).filter(|there| there.token == batch.token);
            if let Some(Stamped { rev, fence, .. }) = there {
                return Verdict::Again(Some((*rev, *fence)));
            }
        }
    }
    let fails = |condition: &Condition| match condition.subject() {
        Some(subject) => {
            let position = held.marks.get(subject).map_or(0, |(position, _)| *position);
            !condition.holds_at(position)
        }
        None => {
            let there = condition.key().and_then(|key| held.records.get(key));
            !condition.holds_for_stamps(there.map(|there| (there.rev, there.fence)))
        }
    };
    let conditions = batch.conditions.iter().enumerate();
    let failed: Vec<usize> = conditions.filter(|(_, c)| fails(c)).map(|(i, _)| i).collect();
    if failed.is_empty() { Verdict::Holds(None) } else { Verdict::Refused(failed) }
}

/// Whose state now the refusals have to show.
fn refused_of<'a>(
    group: &'a [Arc<Batch>],
    verdicts: &[Verdict],
) -> (Vec<&'a Key>, Vec<&'a Subject>) {
    let mut keys = BTreeSet::new();
    let mut subjects = BTreeSet::new();
    for (batch, verdict) in group.iter().zip(verdicts) {
        let Verdict::Refused(failed) = verdict else { continue };
        for condition in failed.iter().map(|index| &batch.conditions[*index]) {
            keys.extend(condition.key());
            subjects.extend(condition.subject());
        }
    }
    (keys.into_iter().collect(), subjects.into_iter().collect())
}

/// What is there now, where a condition failed; damage is told to the batch that met it.
struct ThereNow<'a> {
    records: HashMap<&'a Key, Result<Stored, StoreError>>,
    marks: HashMap<&'a Subject, Result<Mark, StoreError>>,
}

impl<'a> ThereNow<'a> {
    fn of(looked: &Looked, keys: &[&'a Key], subjects: &[&'a Subject]) -> Self {
        let key_of = |row: &Row| rows::place_of_record(row).ok().and_then(|i| keys.get(i));
        let records = looked.records.iter().filter_map(|row| {
            let stored = rows::read_stored(row).map(|(stored, _)| stored);
            key_of(row).map(|key| (*key, stored))
        });
        let subject_of = |row: &Row| rows::place_of_mark(row).ok().and_then(|i| subjects.get(i));
        let marks = looked.marks.iter().filter_map(|row| {
            let mark = rows::read_mark(row).map(|(_, mark)| mark);
            subject_of(row).map(|subject| (*subject, mark))
        });
        Self { records: records.collect(), marks: marks.collect() }
    }

    fn shown(&self, condition: &Condition) -> Result<There, StoreError> {
        if let Some(subject) = condition.subject() {
            return Ok(There::Mark(self.marks.get(subject).cloned().transpose()?));
        }
        let stored = condition.key().and_then(|key| self.records.get(key));
        Ok(There::Record(stored.cloned().transpose()?.map(Box::new)))
    }
}

fn answer(batch: &Batch, verdict: Verdict, now: At, there: &ThereNow<'_>) -> Result1 {
    match verdict {
        Verdict::Contended => Ok(Answer::Contended),
        Verdict::Again(first) => Ok(Answer::Applied(Applied { now, first, again: true })),
        Verdict::Holds(first) => Ok(Answer::Applied(Applied { now, first, again: false })),
        Verdict::Refused(failed) => {
            let shown = |index: usize| Ok((index, there.shown(&batch.conditions[index])?));
            let failed = failed.into_iter().map(shown).collect::<Result<_, StoreError>>()?;
            Ok(Answer::Refused(Refused { now, failed }))
        }
    }
}
