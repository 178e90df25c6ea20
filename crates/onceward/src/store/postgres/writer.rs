//! The second round trip of a group: what holds is written, what was refused is looked at, COMMIT.
//!
//! Rule: one statement per table whatever the number of batches, and COMMIT goes out only behind
//! statements that were all sent. An answer that is missing after that means `Unknown`. Whether a
//! batch holds is decided before, in `apply.rs`.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use onceward_core::audit::Entry;
use onceward_core::batch::{Batch, Witness, Write};
use onceward_core::codec;
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Body, Draft, Record};
use onceward_core::stamp::{At, Fence, Rev, Token};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::super::memory::TOKEN_KEPT_MS;
use super::apply::Held;
use super::failure::{Failure, breaks_session, describe};
use super::open::Session;
use super::reader::{KeyColumns, load_marks, load_records};
use super::rows::{self, digest_column, instant, text_column, token_column};
use super::sql::Sql;

/// Tokens that a session writes before it drops old ones.
const TOKENS_PER_PURGE: u32 = 256;

/// What the refusals of a group have to show.
pub(super) struct Looked {
    pub(super) records: Vec<Row>,
    pub(super) marks: Vec<Row>,
}

/// Everything that a group writes, by table.
pub(super) struct Writes<'a> {
    now: At,
    records: Vec<Record>,
    outcomes: Vec<(&'a Key, &'a [u8])>,
    payloads: Vec<(&'a Key, &'a [u8])>,
    without_outcome: Vec<&'a Key>,
    without_payload: Vec<&'a Key>,
    deleted: Vec<&'a Key>,
    /// Marks whose value is replaced.
    marks: Vec<MarkRow<'a>>,
    /// Marks whose value stays.
    moves: Vec<MarkRow<'a>>,
    audit: Vec<&'a Entry>,
    tokens: Vec<Token>,
}

struct MarkRow<'a> {
    subject: &'a Subject,
    position: u64,
    value: Option<&'a [u8]>,
    digest: Option<Vec<u8>>,
}

impl<'a> Writes<'a> {
    pub(super) fn new(now: At) -> Self {
        Self {
            now,
            records: Vec::new(),
            outcomes: Vec::new(),
            payloads: Vec::new(),
            without_outcome: Vec::new(),
            without_payload: Vec::new(),
            deleted: Vec::new(),
            marks: Vec::new(),
            moves: Vec::new(),
            audit: Vec::new(),
            tokens: Vec::new(),
        }
    }

    /// Adds a batch that holds. Returns the stamps of its first put.
    pub(super) fn add(
        &mut self,
        batch: &'a Batch,
        held: &Held<'_>,
        stamps: &mut impl Iterator<Item = u64>,
    ) -> Option<(Rev, Option<Fence>)> {
        let mut first = None;
        for write in &batch.writes {
            match write {
                Write::Put(draft) => {
                    // As many were drawn as the group has puts.
                    let stamp = stamps.next().unwrap_or_default();
                    let put = self.put(draft, batch.token, stamp, held);
                    first = first.or(Some(put));
                }
                Write::Delete(key) => {
                    self.deleted.push(key);
                    self.without_outcome.push(key);
                    self.without_payload.push(key);
                }
                Write::Mark { subject, position, value } => {
                    self.mark(subject, *position, value, held);
                }
                Write::Audit(entry) => self.audit.push(entry),
                Write::Prune { .. } => {}
            }
        }
        if batch.witness() == Witness::Tokens {
            self.tokens.push(batch.token);
        }
        first
    }

    fn put(
        &mut self,
        draft: &'a Draft,
        token: Token,
        stamp: u64,
        held: &Held<'_>,
    ) -> (Rev, Option<Fence>) {
        let key = &draft.record.key;
        let there = held.records.contains_key(key);
        match &draft.outcome {
            Body::Set(bytes) => self.outcomes.push((key, bytes)),
            Body::Clear if there => self.without_outcome.push(key),
            Body::Clear | Body::Keep => {}
        }
        match &draft.payload {
            Body::Set(bytes) => self.payloads.push((key, bytes)),
            Body::Clear if there => self.without_payload.push(key),
            Body::Clear | Body::Keep => {}
        }
        let mut record = draft.resolve(token, self.now, stamp);
        rows::bound_instants(&mut record);
        let stamps = (record.rev, record.fence);
        self.records.push(record);
        stamps
    }

    fn mark(&mut self, subject: &'a Subject, position: u64, value: &'a Body, held: &Held<'_>) {
        let there = held.marks.get(subject);
        let position = there.map_or(position, |(at, _)| position.max(*at));
        let digest_of = |bytes: &[u8]| digest_column(&fingerprint_bytes(bytes));
        let row = |value: Option<&'a [u8]>, digest| MarkRow { subject, position, value, digest };
        match value {
            Body::Keep => {
                let digest = there.and_then(|(_, digest)| digest.clone());
                self.moves.push(row(None, digest));
            }
            Body::Set(bytes) => self.marks.push(row(Some(bytes), Some(digest_of(bytes)))),
            Body::Clear => self.marks.push(row(None, None)),
        }
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.deleted.is_empty()
            && self.marks.is_empty()
            && self.moves.is_empty()
            && self.audit.is_empty()
            && self.tokens.is_empty()
    }

    /// Sends everything and the end of the transaction, and waits for all answers.
    pub(super) async fn run(
        &self,
        session: &Session,
        keys: &[&Key],
        subjects: &[&Subject],
    ) -> Result<Looked, Failure> {
        let sender = Sender { session, rolls_back: AtomicBool::new(self.is_empty()) };
        let no_payloads = vec![false; keys.len()];
        // Biased: statements go out in this order, the end of the transaction last.
        let flight = session.flight(async {
            tokio::join!(
                biased;
                load_records(session, keys, &no_payloads),
                load_marks(session, subjects),
                self.put_records(&sender),
                self.put_outcomes(&sender),
                self.put_payloads(&sender),
                sender.delete(Sql::DeleteRecords, &self.deleted),
                sender.delete(Sql::DeleteOutcomes, &self.without_outcome),
                sender.delete(Sql::DeletePayloads, &self.without_payload),
                self.put_marks(&sender),
                self.move_marks(&sender),
                self.insert_audit(&sender),
                self.insert_tokens(&sender),
                self.purge_tokens(&sender),
                sender.end(),
            )
        });
        let lost = |text| if self.is_empty() { Failure::Gone(text) } else { Failure::Lost(text) };
        let answers = flight.await.map_err(|failure| match failure {
            Failure::Gone(text) => lost(text),
            other => other,
        })?;
        let (records, marks, a, b, c, d, e, f, g, h, i, j, k, end) = answers;
        // An answered error was the end of the transaction, and COMMIT then meant rolling back. A
        // broken connection says nothing about how far the server came.
        let classify = |error: Error| match breaks_session(&error) {
            true => lost(describe(&error)),
            false => Failure::from(error),
        };
        let looked =
            Looked { records: records.map_err(classify)?, marks: marks.map_err(classify)? };
        for answered in [a, b, c, d, e, f, g, h, i, j, k, end] {
            answered.map_err(classify)?;
        }
        Ok(looked)
    }

    async fn put_records(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let of = &self.records;
        let keys: Vec<&Key> = of.iter().map(|record| &record.key).collect();
        let KeyColumns { tenants, kinds, names } = KeyColumns::of(&keys);
        let states = column(of, |r| rows::state_code(r.state));
        let fingerprints = column(of, |r| digest_column(&r.fingerprint));
        let revs = column(of, |r| r.rev.0.cast_signed());
        let fences = column(of, |r| r.fence.map(|fence| fence.0.cast_signed()));
        let last_fences = column(of, |r| r.last_fence.0.cast_signed());
        let tokens = column(of, |r| token_column(r.token));
        let attempts = column(of, |r| i64::from(r.attempt));
        let priorities = column(of, |r| i16::from(r.priority));
        let created = column(of, |r| instant(r.created_at));
        let updated = column(of, |r| instant(r.updated_at));
        let due = column(of, |r| r.due_at.map(instant));
        let expires = column(of, |r| r.expires_at.map(instant));
        let sweep = column(of, |r| r.sweep_at.map(instant));
        let outcomes = column(of, |r| r.outcome.as_ref().map(digest_column));
        let has_payload = column(of, |r| r.has_payload);
        let rest = column(of, codec::encode_rest);
        let values: [&(dyn ToSql + Sync); 19] = [
            &tenants,
            &kinds,
            &names,
            &states,
            &fingerprints,
            &revs,
            &fences,
            &last_fences,
            &tokens,
            &attempts,
            &priorities,
            &created,
            &updated,
            &due,
            &expires,
            &sweep,
            &outcomes,
            &has_payload,
            &rest,
        ];
        sender.send(Sql::PutRecords, of.len(), &values).await
    }

    async fn put_outcomes(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let keys: Vec<&Key> = self.outcomes.iter().map(|(key, _)| *key).collect();
        let KeyColumns { tenants, kinds, names } = KeyColumns::of(&keys);
        let bytes = column(&self.outcomes, |(_, bytes)| *bytes);
        sender.send(Sql::PutOutcomes, keys.len(), &[&tenants, &kinds, &names, &bytes]).await
    }

    async fn put_payloads(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let keys: Vec<&Key> = self.payloads.iter().map(|(key, _)| *key).collect();
        let KeyColumns { tenants, kinds, names } = KeyColumns::of(&keys);
        let bytes = column(&self.payloads, |(_, bytes)| *bytes);
        let seals = column(&self.payloads, |(key, bytes)| rows::payload_seal(key, bytes).to_vec());
        let values: [&(dyn ToSql + Sync); 5] = [&tenants, &kinds, &names, &bytes, &seals];
        sender.send(Sql::PutPayloads, keys.len(), &values).await
    }

    async fn put_marks(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let of = &self.marks;
        let tenants = column(of, |row| row.subject.tenant_column());
        let names = column(of, |row| row.subject.name_column());
        let positions = column(of, |row| row.position.cast_signed());
        let seals = column(of, |row| self.seal(row));
        let values = column(of, |row| row.value);
        let digests = column(of, |row| row.digest.as_deref());
        let now = instant(self.now);
        let values: [&(dyn ToSql + Sync); 7] =
            [&tenants, &names, &positions, &seals, &values, &digests, &now];
        sender.send(Sql::PutMarks, of.len(), &values).await
    }

    async fn move_marks(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let of = &self.moves;
        let tenants = column(of, |row| row.subject.tenant_column());
        let names = column(of, |row| row.subject.name_column());
        let positions = column(of, |row| row.position.cast_signed());
        let seals = column(of, |row| self.seal(row));
        let now = instant(self.now);
        let values: [&(dyn ToSql + Sync); 5] = [&tenants, &names, &positions, &seals, &now];
        sender.send(Sql::MoveMarks, of.len(), &values).await
    }

    fn seal(&self, row: &MarkRow<'_>) -> Vec<u8> {
        rows::mark_seal(row.subject, row.position, self.now, row.digest.as_deref()).to_vec()
    }

    async fn insert_audit(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let of = &self.audit;
        let text = |value: &'a Option<onceward_core::Text>| -> Option<Cow<'a, str>> {
            value.as_deref().map(text_column)
        };
        let number = |value: Option<u64>| value.map(u64::cast_signed);
        let tenants = column(of, |entry| text_column(&entry.tenant));
        let actions = column(of, |entry| text_column(&entry.action));
        let subjects = column(of, |entry| text(&entry.subject));
        let key_hashes = column(of, |entry| text(&entry.key_hash));
        let payload_hashes = column(of, |entry| text(&entry.payload_hash));
        let before = column(of, |entry| number(entry.version_before));
        let after = column(of, |entry| number(entry.version_after));
        let fences = column(of, |entry| number(entry.fence));
        let actors = column(of, |entry| text(&entry.trace.actor));
        let requests = column(of, |entry| text(&entry.trace.request_id));
        let correlations = column(of, |entry| text(&entry.trace.correlation_id));
        let details = column(of, |entry| text(&entry.detail));
        let now = instant(self.now);
        let values: [&(dyn ToSql + Sync); 13] = [
            &tenants,
            &actions,
            &subjects,
            &key_hashes,
            &payload_hashes,
            &before,
            &after,
            &fences,
            &actors,
            &requests,
            &correlations,
            &details,
            &now,
        ];
        sender.send(Sql::InsertAudit, of.len(), &values).await
    }

    async fn insert_tokens(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let tokens = column(&self.tokens, |token| token_column(*token));
        sender.send(Sql::InsertTokens, tokens.len(), &[&tokens, &instant(self.now)]).await
    }

    /// Drops old tokens now and then.
    async fn purge_tokens(&self, sender: &Sender<'_>) -> Result<(), Error> {
        let written = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        let purges = sender.session.tokens_written(written, TOKENS_PER_PURGE);
        let old = instant(self.now).saturating_sub_unsigned(TOKEN_KEPT_MS);
        sender.send(Sql::PurgeTokens, usize::from(purges), &[&old]).await
    }
}

/// Sends statements of one transaction and remembers whether one of them could not be sent.
struct Sender<'s> {
    session: &'s Session,
    rolls_back: AtomicBool,
}

impl Sender<'_> {
    /// Nothing is sent for no rows.
    async fn send(
        &self,
        sql: Sql,
        rows: usize,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Error> {
        if rows == 0 {
            return Ok(());
        }
        let sent = self.session.client.execute(self.session.prepared(sql), values).await;
        if sent.is_err() {
            self.rolls_back.store(true, Ordering::Relaxed);
        }
        sent.map(drop)
    }

    async fn delete(&self, sql: Sql, keys: &[&Key]) -> Result<(), Error> {
        let KeyColumns { tenants, kinds, names } = KeyColumns::of(keys);
        self.send(sql, keys.len(), &[&tenants, &kinds, &names]).await
    }

    /// Ends the transaction. A statement whose values can't be encoded fails before it is sent, and
    /// the server knows nothing of it: committing then would write half of a batch.
    async fn end(&self) -> Result<(), Error> {
        let word = if self.rolls_back.load(Ordering::Relaxed) { "ROLLBACK" } else { "COMMIT" };
        self.session.client.batch_execute(word).await
    }
}

fn column<'r, R, T>(rows: &'r [R], of: impl FnMut(&'r R) -> T) -> Vec<T> {
    rows.iter().map(of).collect()
}
