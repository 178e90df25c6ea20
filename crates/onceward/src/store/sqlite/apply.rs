//! One batch against the open transaction: checked as a whole, then written.
//!
//! Rule: every condition of a batch is checked before its first write, so a refusal leaves nothing
//! behind. A batch that is about one record is checked by the statement that writes it. Batches are
//! applied one after the other and each sees what those before it wrote, so it does no harm when
//! two of them touch the same row. Not responsible for the transaction itself (`writer.rs`).

mod names;

use std::sync::Arc;

use onceward_core::Bytes;
use onceward_core::batch::{Answer, Applied, Batch, Condition, Refused, There, Witness, Write};
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Body, Draft, Mark, Stored};
use onceward_core::stamp::{At, Fence, Rev, Token};
use rusqlite::types::Null;
use rusqlite::{Connection, Statement};

use super::super::memory::TOKEN_KEPT_MS;
use super::failure::Failure;
use super::meta::Meta;
use super::rows::{self, bind_key, bind_record, instant, signed};
use super::sum::{share, share_of_mark};
use super::young::Slice;
use super::{Shared, sql};

/// Tokens that are kept whatever their age.
const TOKENS_KEPT: i64 = 1_024;
/// Names that a transaction brings to the index for each that it adds: those on their way arrive
/// before as many others are gathered.
const NAMES_MOVED: usize = 2;
/// Old tokens that one batch drops at most, so that no commit is long.
const TOKENS_DROPPED: i64 = 512;

/// Every statement of the writer, prepared once.
pub(super) struct Writes<'c> {
    insert_record: Statement<'c>,
    update_record: Statement<'c>,
    update_if_fence: Statement<'c>,
    update_if_rev: Statement<'c>,
    delete_record: Statement<'c>,
    find_record: Statement<'c>,
    find_name: Statement<'c>,
    index_name: Statement<'c>,
    delete_name: Statement<'c>,
    list_young_names: Statement<'c>,
    load_record: Statement<'c>,
    insert_outcome: Statement<'c>,
    delete_outcome: Statement<'c>,
    insert_payload: Statement<'c>,
    delete_payload: Statement<'c>,
    find_mark: Statement<'c>,
    put_mark: Statement<'c>,
    insert_audit: Statement<'c>,
    prune_audit: Statement<'c>,
    find_token: Statement<'c>,
    insert_token: Statement<'c>,
    oldest_token: Statement<'c>,
    token_at: Statement<'c>,
    purge_tokens: Statement<'c>,
    read_meta: Statement<'c>,
    write_meta: Statement<'c>,
    count_pages: Statement<'c>,
    /// Where stamps, instant and audit numbers stand in the open transaction.
    meta: Meta,
    shared: Arc<Shared>,
    names: Moves,
}

/// What the open transaction does with names.
#[derive(Default)]
struct Moves {
    /// The stamp when it began.
    stamp: u64,
    /// Names that it adds to the young, with the ids that were there under them.
    added: Vec<(Key, Option<i64>)>,
    /// Young rows that it deletes.
    deleted: Vec<i64>,
    /// Names that it brings to the index.
    slice: Slice,
}

/// What conditions and writes need to know of a record that is there.
#[derive(Debug, Clone, Copy)]
struct Row {
    id: i64,
    rev: Rev,
    fence: Option<Fence>,
    token: Token,
    outcome_id: Option<i64>,
    payload_id: Option<i64>,
}

/// The records and marks that a batch has looked at.
#[derive(Default)]
struct Seen<'b> {
    records: Vec<(&'b Key, Option<Row>)>,
    marks: Vec<(&'b Subject, Option<Mark>)>,
}

impl<'c> Writes<'c> {
    /// Prepares every statement.
    pub(super) fn prepare(
        connection: &'c Connection,
        shared: Arc<Shared>,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            insert_record: connection.prepare(sql::INSERT_RECORD)?,
            update_record: connection.prepare(sql::UPDATE_RECORD)?,
            update_if_fence: connection.prepare(sql::UPDATE_IF_FENCE)?,
            update_if_rev: connection.prepare(sql::UPDATE_IF_REV)?,
            delete_record: connection.prepare(sql::DELETE_RECORD)?,
            find_record: connection.prepare(sql::FIND_RECORD)?,
            find_name: connection.prepare(sql::FIND_NAME)?,
            index_name: connection.prepare(sql::INDEX_NAME)?,
            delete_name: connection.prepare(sql::DELETE_NAME)?,
            list_young_names: connection.prepare(sql::LIST_YOUNG_NAMES)?,
            load_record: connection.prepare(sql::LOAD_RECORD)?,
            insert_outcome: connection.prepare(sql::INSERT_OUTCOME)?,
            delete_outcome: connection.prepare(sql::DELETE_OUTCOME)?,
            insert_payload: connection.prepare(sql::INSERT_PAYLOAD)?,
            delete_payload: connection.prepare(sql::DELETE_PAYLOAD)?,
            find_mark: connection.prepare(sql::FIND_MARK)?,
            put_mark: connection.prepare(sql::PUT_MARK)?,
            insert_audit: connection.prepare(sql::INSERT_AUDIT)?,
            prune_audit: connection.prepare(sql::PRUNE_AUDIT)?,
            find_token: connection.prepare(sql::FIND_TOKEN)?,
            insert_token: connection.prepare(sql::INSERT_TOKEN)?,
            oldest_token: connection.prepare(sql::OLDEST_TOKEN)?,
            token_at: connection.prepare(sql::TOKEN_AT)?,
            purge_tokens: connection.prepare(sql::PURGE_TOKENS)?,
            read_meta: connection.prepare(sql::READ_META)?,
            write_meta: connection.prepare(sql::WRITE_META)?,
            count_pages: connection.prepare("PRAGMA page_count")?,
            meta: Meta::default(),
            shared,
            names: Moves::default(),
        })
    }

    /// Reads the numbers at the start of a transaction, once the write lock is held. The instant is
    /// never below the last one that was written.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        self.meta = Meta::of(&mut self.read_meta)?;
        self.tick();
        if !self.shared.young.is_at(self.meta.indexed, self.meta.stamp) {
            self.read_young()?;
        }
        // Not before that: a transaction that could not read them leaves them unread.
        self.names.stamp = self.meta.stamp;
        Ok(())
    }

    /// Moves the instant of the open transaction on: it may be open for as long as a sync takes.
    pub(super) fn tick(&mut self) {
        self.meta.now = rows::bounded(self.meta.now.max(self.shared.now()));
    }

    /// The instant of the open transaction.
    pub(super) fn now(&self) -> At {
        self.meta.now
    }

    /// Brings some names to the index and writes the numbers down, last of all.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let most = (NAMES_MOVED * self.names.added.len()).max(NAMES_MOVED);
        self.names.slice = self.shared.young.next(most, self.meta.stamp);
        self.shared.known.bring(&self.names.slice.names);
        for (key, id) in &self.names.slice.names {
            bind_key(&mut self.index_name, key)?;
            self.index_name.raw_bind_parameter(4, id)?;
            self.index_name.raw_execute()?;
        }
        if let Some(indexed) = self.names.slice.indexed {
            self.meta.indexed = indexed;
            self.see_pages()?;
        }
        self.meta.boot = self.shared.clock.boot();
        self.meta.write(&mut self.write_meta)?;
        self.shared.young.reach(self.meta.stamp);
        Ok(())
    }

    /// The transaction is committed, as this commit.
    pub(super) fn committed(&mut self, commit: u64) {
        self.names.added.clear();
        self.names.deleted.clear();
        self.shared.young.arrived(&self.names.slice, commit);
    }

    /// The transaction is rolled back.
    pub(super) fn rolled_back(&mut self) {
        self.shared.young.take_back(&mut self.names.added, self.names.stamp);
        self.shared.young.keep(&mut self.names.deleted);
    }

    /// Applies one batch. Says whether it wrote anything.
    pub(super) fn apply(&mut self, batch: &Batch) -> Result<(Answer, bool), Failure> {
        if let Some(stamps) = self.apply_at_once(batch)? {
            return Ok((self.applied(Some(stamps)), true));
        }
        let mut seen = Seen::default();
        if let Some(answer) = self.recognise(batch, &mut seen)? {
            return Ok((answer, false));
        }
        if let Some(refused) = self.refuse(batch, &mut seen)? {
            return Ok((refused, false));
        }
        let mut first = None;
        for write in &batch.writes {
            if let Write::Put(draft) = write {
                let there = self.row(&draft.record.key, &mut seen)?;
                let stamps = self.put(draft, batch.token, there)?;
                first = first.or(Some(stamps));
            } else if let Write::Delete(key) = write {
                let there = self.row(key, &mut seen)?;
                self.delete(key, there)?;
            } else {
                self.write_aside(write, &mut seen)?;
            }
        }
        if batch.witness() == Witness::Tokens {
            self.keep_token(batch.token)?;
        }
        Ok((self.applied(first), true))
    }

    /// The answer of a batch that need not be applied, or must not; `None` when it may be.
    pub(super) fn judge(&mut self, batch: &Batch) -> Result<Option<Answer>, Failure> {
        let mut seen = Seen::default();
        if let Some(answer) = self.recognise(batch, &mut seen)? {
            return Ok(Some(answer));
        }
        self.refuse(batch, &mut seen)
    }

    fn applied(&self, first: Option<(Rev, Option<Fence>)>) -> Answer {
        Answer::Applied(Applied { now: self.meta.now, first, again: false })
    }

    /// The common case: one record, one condition on it, checked by the statement that writes it.
    /// `None` when the batch is of another kind or was not written: the long way finds out why.
    fn apply_at_once(&mut self, batch: &Batch) -> Result<Option<(Rev, Option<Fence>)>, Failure> {
        let ([condition], [Write::Put(draft), rest @ ..]) =
            (&batch.conditions[..], &batch.writes[..])
        else {
            return Ok(None);
        };
        let same_key = condition.key() == Some(&draft.record.key);
        if !same_key || !rest.iter().all(rows::is_aside) {
            return Ok(None);
        }
        let there = match condition {
            Condition::FenceIs(..) | Condition::RevIs(..) => self.guess(&draft.record.key)?,
            _ => self.find(&draft.record.key)?,
        };
        let stamp = self.meta.stamp + 1;
        let statement = match (condition, there) {
            (Condition::FenceIs(..), Some(_)) => &mut self.update_if_fence,
            (Condition::RevIs(..), Some(_)) => &mut self.update_if_rev,
            (Condition::FenceIs(..) | Condition::RevIs(..), None) | (_, Some(_)) => {
                return Ok(None);
            }
            (_, None) => &mut self.insert_record,
        };
        let mut record = draft.resolve(batch.token, self.meta.now, stamp);
        rows::bound_instants(&mut record);
        match there {
            Some(id) => statement.raw_bind_parameter(1, id)?,
            None => bind_key(statement, &record.key)?,
        }
        bind_record(statement, &record)?;
        bind_body(statement, 21, outcome_body(draft), stamp)?;
        bind_body(statement, 22, &draft.payload, stamp)?;
        if let Condition::FenceIs(_, Fence(number)) | Condition::RevIs(_, Rev(number)) = condition {
            statement.raw_bind_parameter(23, signed(*number))?;
            statement.raw_bind_parameter(24, draft.outcome == Body::Keep)?;
            statement.raw_bind_parameter(25, draft.payload == Body::Keep)?;
        }
        if statement.raw_execute()? == 0 {
            return Ok(None);
        }
        self.meta.stamp = stamp;
        if there.is_none() {
            self.add_name(&record.key, stamp);
        }
        self.insert_bodies(draft, stamp)?;
        let mut seen = Seen::default();
        for write in rest {
            self.write_aside(write, &mut seen)?;
        }
        Ok(Some((record.rev, record.fence)))
    }

    /// The answer of a batch whose token is there already: it was applied before.
    fn recognise<'b>(
        &mut self,
        batch: &'b Batch,
        seen: &mut Seen<'b>,
    ) -> Result<Option<Answer>, Failure> {
        let first = match batch.witness() {
            Witness::Tokens => {
                let token = &batch.token.0.to_be_bytes()[..];
                self.find_token.exists([token])?.then_some(None)
            }
            Witness::Record(key) => {
                let row = self.row(key, seen)?.filter(|row| row.token == batch.token);
                row.map(|row| Some((row.rev, row.fence)))
            }
        };
        let now = self.meta.now;
        Ok(first.map(|first| Answer::Applied(Applied { now, first, again: true })))
    }

    /// The refusal of a batch of which a condition does not hold, with what is there.
    fn refuse<'b>(
        &mut self,
        batch: &'b Batch,
        seen: &mut Seen<'b>,
    ) -> Result<Option<Answer>, Failure> {
        let mut failed = Vec::new();
        for (index, condition) in batch.conditions.iter().enumerate() {
            if let Some(key) = condition.key() {
                let row = self.row(key, seen)?;
                if !condition.holds_for_stamps(row.map(|row| (row.rev, row.fence))) {
                    failed.push((index, There::Record(self.load(key)?.map(Box::new))));
                }
            } else if let Some(subject) = condition.subject() {
                let mark = self.mark(subject, seen)?;
                if !condition.holds_at(mark.as_ref().map_or(0, |mark| mark.position)) {
                    failed.push((index, There::Mark(mark)));
                }
            }
        }
        let now = self.meta.now;
        Ok((!failed.is_empty()).then_some(Answer::Refused(Refused { now, failed })))
    }

    fn put(
        &mut self,
        draft: &Draft,
        token: Token,
        there: Option<Row>,
    ) -> Result<(Rev, Option<Fence>), Failure> {
        self.meta.stamp += 1;
        let stamp = self.meta.stamp;
        let mut record = draft.resolve(token, self.meta.now, stamp);
        rows::bound_instants(&mut record);
        let statement = match there {
            Some(row) => {
                self.update_record.raw_bind_parameter(1, row.id)?;
                &mut self.update_record
            }
            None => {
                bind_key(&mut self.insert_record, &record.key)?;
                &mut self.insert_record
            }
        };
        bind_record(statement, &record)?;
        let bodies = [
            (21, outcome_body(draft), there.and_then(|row| row.outcome_id)),
            (22, &draft.payload, there.and_then(|row| row.payload_id)),
        ];
        for (parameter, body, old) in bodies {
            match body {
                Body::Keep => statement.raw_bind_parameter(parameter, old)?,
                body => bind_body(statement, parameter, body, stamp)?,
            }
        }
        statement.raw_execute()?;
        if there.is_none() {
            self.add_name(&record.key, stamp);
        }
        let dropped = |body: &Body, old: Option<i64>| old.filter(|_| *body != Body::Keep);
        let [(_, outcome, old_outcome), (_, payload, old_payload)] = bodies;
        self.delete_bodies(dropped(outcome, old_outcome), dropped(payload, old_payload))?;
        self.insert_bodies(draft, stamp)?;
        Ok((record.rev, record.fence))
    }

    fn delete(&mut self, key: &Key, there: Option<Row>) -> Result<(), Failure> {
        let Some(row) = there else { return Ok(()) };
        if row.id.cast_unsigned() > self.meta.indexed {
            self.shared.young.delete(row.id);
            self.names.deleted.push(row.id);
        }
        bind_key(&mut self.delete_name, key)?;
        self.delete_name.raw_bind_parameter(4, row.id)?;
        self.delete_name.raw_execute()?;
        self.delete_record.execute([row.id])?;
        self.meta.names.take(share(&self.meta.key, key, row.id));
        self.delete_bodies(row.outcome_id, row.payload_id)
    }

    fn delete_bodies(
        &mut self,
        outcome_id: Option<i64>,
        payload_id: Option<i64>,
    ) -> Result<(), Failure> {
        if let Some(id) = outcome_id {
            self.delete_outcome.execute([id])?;
        }
        if let Some(id) = payload_id {
            self.delete_payload.execute([id])?;
        }
        Ok(())
    }

    fn insert_bodies(&mut self, draft: &Draft, stamp: u64) -> Result<(), Failure> {
        let key = &draft.record.key;
        let id = signed(stamp);
        if let Body::Set(bytes) = &draft.outcome
            && !bytes.is_empty()
        {
            self.insert_outcome.execute((id, key.tenant_column(), &bytes[..]))?;
        }
        if let Body::Set(bytes) = &draft.payload {
            let seal = rows::payload_seal(key, bytes);
            self.insert_payload.execute((id, key.tenant_column(), seal, &bytes[..]))?;
        }
        Ok(())
    }

    /// Writes that leave records alone: marks and audit entries.
    fn write_aside<'b>(&mut self, write: &'b Write, seen: &mut Seen<'b>) -> Result<(), Failure> {
        match write {
            Write::Mark { subject, position, value } => {
                let there = self.mark(subject, seen)?;
                self.move_mark(subject, there, *position, value)
            }
            Write::Audit(entry) => {
                self.meta.audit += 1;
                rows::bind_audit(&mut self.insert_audit, self.meta.audit, self.meta.now, entry)?;
                self.insert_audit.raw_execute()?;
                Ok(())
            }
            Write::Prune { tenant, through, until } => {
                let bounds = (&**tenant, instant(*until), signed(through.1));
                self.prune_audit.execute(bounds)?;
                Ok(())
            }
            Write::Put(_) | Write::Delete(_) => Ok(()),
        }
    }

    /// Moves a mark to the maximum of where it is and `position`: marks never move back.
    fn move_mark(
        &mut self,
        subject: &Subject,
        there: Option<Mark>,
        position: u64,
        value: &Body,
    ) -> Result<(), Failure> {
        if there.is_none() {
            let (tenant, name) = (subject.tenant_column(), subject.name_column());
            self.meta.marks.add(share_of_mark(&self.meta.key, tenant, name));
        }
        let (old_position, old_value) = there.map_or((0, None), |mark| (mark.position, mark.value));
        let value: Option<Bytes> = match value {
            Body::Keep => old_value,
            Body::Set(bytes) => Some(bytes.clone()),
            Body::Clear => None,
        };
        let updated_at = self.meta.now;
        let mark = Mark { position: old_position.max(position), value, updated_at };
        let seal = rows::mark_seal(subject, &mark);
        self.put_mark.execute((
            subject.tenant_column(),
            subject.name_column(),
            signed(mark.position),
            instant(mark.updated_at),
            seal,
            mark.value.as_deref(),
        ))?;
        Ok(())
    }

    /// Remembers the token of a batch that leaves no record, and drops old ones.
    fn keep_token(&mut self, token: Token) -> Result<(), Failure> {
        let now = self.meta.now;
        self.insert_token.execute((&token.0.to_be_bytes()[..], instant(now)))?;
        let (oldest, newest): (i64, i64) =
            self.oldest_token.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if newest - oldest < TOKENS_KEPT {
            return Ok(());
        }
        let last = oldest + TOKENS_DROPPED - 1;
        let at = self.token_at.query_row([last], |row| rows::number(row, 0))?;
        if now.since(At(at)) >= TOKEN_KEPT_MS {
            self.purge_tokens.execute([last])?;
        }
        Ok(())
    }

    /// Looks a record up once per batch. What a batch writes is not looked at again by it.
    fn row<'b>(&mut self, key: &'b Key, seen: &mut Seen<'b>) -> Result<Option<Row>, Failure> {
        if let Some((_, row)) = seen.records.iter().find(|(other, _)| *other == key) {
            return Ok(*row);
        }
        let row = match self.find(key)? {
            Some(id) => self.row_at(id, key)?,
            None => None,
        };
        seen.records.push((key, row));
        Ok(row)
    }

    fn row_at(&mut self, id: i64, key: &Key) -> Result<Option<Row>, Failure> {
        let mut found = self.find_record.query([id])?;
        let Some(row) = found.next()? else { return self.shared.gone(key) };
        Ok(Some(Row {
            id: row.get(0)?,
            rev: Rev(rows::number(row, 1)?),
            fence: row.get::<_, Option<i64>>(2)?.map(|fence| Fence(fence.cast_unsigned())),
            token: Token(u128::from_be_bytes(row.get(3)?)),
            outcome_id: row.get(4)?,
            payload_id: row.get(5)?,
        }))
    }

    fn mark<'b>(
        &mut self,
        subject: &'b Subject,
        seen: &mut Seen<'b>,
    ) -> Result<Option<Mark>, Failure> {
        if let Some((_, mark)) = seen.marks.iter().find(|(other, _)| *other == subject) {
            return Ok(mark.clone());
        }
        let columns = [subject.tenant_column(), subject.name_column()];
        let mut found = self.find_mark.query(columns)?;
        let mark = found.next()?.map(|row| rows::read_mark(row, 0, subject)).transpose()?;
        seen.marks.push((subject, mark.clone()));
        Ok(mark)
    }

    fn load(&mut self, key: &Key) -> Result<Option<Stored>, Failure> {
        let Some(id) = self.find(key)? else { return Ok(None) };
        let mut found = self.load_record.query((id, key.name_column()))?;
        match found.next()? {
            None => self.shared.gone(key),
            Some(row) => Ok(Some(rows::read_stored(row, key)?.0)),
        }
    }
}

/// What is done with the row of an outcome: an empty one has none.
fn outcome_body(draft: &Draft) -> &Body {
    match &draft.outcome {
        Body::Set(bytes) if bytes.is_empty() => &Body::Clear,
        body => body,
    }
}

/// Binds the number of a body that is set now; none for one that is kept elsewhere or cleared.
fn bind_body(
    statement: &mut Statement<'_>,
    parameter: usize,
    body: &Body,
    stamp: u64,
) -> rusqlite::Result<()> {
    match body {
        Body::Set(_) => statement.raw_bind_parameter(parameter, signed(stamp)),
        Body::Keep | Body::Clear => statement.raw_bind_parameter(parameter, Null),
    }
}
