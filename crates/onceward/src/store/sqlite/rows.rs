//! Rows and what they mean: records, marks and audit entries to columns and back.
//!
//! Rule: whatever is read is checked before it is handed out: a record by its seal, an outcome by
//! its digest, a payload and a mark by seals of their own. Unsigned numbers are kept in SQLite's
//! signed ones bit by bit; instants, which indexes sort by, are bounded so that their order holds.

use std::sync::LazyLock;

use onceward_core::Bytes;
use onceward_core::audit::{Audited, Entry, Trace};
use onceward_core::batch::Write;
use onceward_core::codec::{self, CodecError, SEAL_BYTES};
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Mark, Record, State, Stored, Terms};
use onceward_core::stamp::{At, Fence, Rev, Token};
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Error, Row, Statement};

use super::failure::Failure;

/// The latest instant that a column can hold and sort.
const LAST_INSTANT: u64 = i64::MAX as u64;

/// Where the columns of a record end in a loaded or listed row.
pub(super) const AFTER_RECORD: usize = 16;
/// Columns of its priority, and of when it is due and swept.
pub(super) const LISTED_PLACE: [usize; 3] = [7, 10, 12];

/// A number as SQLite keeps it.
pub(super) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// An instant as SQLite keeps it.
pub(super) fn instant(at: At) -> i64 {
    bounded(at).0.cast_signed()
}

/// An instant that a column can hold and sort.
pub(super) fn bounded(at: At) -> At {
    At(at.0.min(LAST_INSTANT))
}

/// A kind as SQLite keeps it.
pub(super) fn kind_code(kind: Kind) -> i64 {
    kind as i64
}

/// A state as SQLite keeps it.
pub(super) fn state_code(state: State) -> i64 {
    state as i64
}

/// Brings instants that lie beyond what a column can hold back to its end, before the seal is made.
pub(super) fn bound_instants(record: &mut Record) {
    record.created_at = bounded(record.created_at);
    record.updated_at = bounded(record.updated_at);
    record.due_at = record.due_at.map(bounded);
    record.expires_at = record.expires_at.map(bounded);
    record.sweep_at = record.sweep_at.map(bounded);
}

/// Bytes of an instant in a row.
const INSTANT_BYTES: usize = 6;
/// Bytes of a digest in a row.
const DIGEST_BYTES: usize = 33;
/// Bytes that the name of a job's first taker is expected to have.
const OWNER_BYTES: usize = 24;
/// The digest of an outcome that has no row.
static EMPTY: LazyLock<Fingerprint> = LazyLock::new(|| fingerprint_bytes(b""));
/// Zeros, as many as a row may need.
const ZEROS: [u8; 256] = [0; 256];

/// Binds everything of a record from its state on: parameters 4 to 20 of every write, and 26.
pub(super) fn bind_record(statement: &mut Statement<'_>, record: &Record) -> rusqlite::Result<()> {
    let rest = codec::encode_rest(record);
    statement.raw_bind_parameter(4, state_code(record.state))?;
    statement.raw_bind_parameter(5, signed(record.rev.0))?;
    statement.raw_bind_parameter(6, record.fence.map(|fence| signed(fence.0)))?;
    statement.raw_bind_parameter(7, signed(record.last_fence.0))?;
    statement.raw_bind_parameter(8, &record.token.0.to_be_bytes()[..])?;
    statement.raw_bind_parameter(9, &digest_column(&record.fingerprint)[..])?;
    statement.raw_bind_parameter(10, record.attempt)?;
    statement.raw_bind_parameter(11, record.priority)?;
    statement.raw_bind_parameter(12, instant(record.created_at))?;
    statement.raw_bind_parameter(13, instant(record.updated_at))?;
    statement.raw_bind_parameter(14, record.due_at.map(instant))?;
    statement.raw_bind_parameter(15, record.expires_at.map(instant))?;
    statement.raw_bind_parameter(16, record.sweep_at.map(instant))?;
    match &record.outcome {
        Some(digest) => statement.raw_bind_parameter(17, &digest_column(digest)[..])?,
        None => statement.raw_bind_parameter(17, rusqlite::types::Null)?,
    }
    statement.raw_bind_parameter(18, record.has_payload)?;
    statement.raw_bind_parameter(19, &rest[..])?;
    statement.raw_bind_parameter(20, queue_column(record))?;
    statement.raw_bind_parameter(26, &ZEROS[..room(record).min(ZEROS.len())])
}

/// How much of a record's row is kept for what a later write of it will add, so that rows keep
/// their size from the claim to the end. A wrong guess costs a move of the row, nothing else.
fn room(record: &Record) -> usize {
    let stamp = stamp_bytes(record.rev.0);
    let count = |there: bool| usize::from(there);
    let missing = |there: usize, bytes: usize| 1_usize.saturating_sub(there) * bytes;
    let (fence, outcome) = (count(record.fence.is_some()), count(record.outcome.is_some()));
    let (due, expires) = (count(record.due_at.is_some()), count(record.expires_at.is_some()));
    let has_row = record.outcome.is_some_and(|outcome| outcome != *EMPTY);
    // The words for what is not done yet take no byte of their own.
    let mut room = usize::from(state_code(record.state) < 2)
        + missing(outcome, DIGEST_BYTES)
        + missing(fence + count(has_row), stamp)
        + missing(due + expires, INSTANT_BYTES)
        + missing(count(record.sweep_at.is_some()), INSTANT_BYTES);
    if record.key.kind() == Kind::Job {
        room += missing(count(record.last_fence.0 > 0), stamp)
            + missing(count(record.owner.is_some()), OWNER_BYTES)
            + missing(count(queue_column(record).is_some()), record.key.scope_column().len());
    }
    // From 58 bytes on, the length of a blob takes one byte more.
    room - usize::from(room > 57)
}

/// Bytes of a stamp in a row.
fn stamp_bytes(stamp: u64) -> usize {
    match stamp {
        0..=0x7f => 1,
        0x80..=0x7fff => 2,
        0x8000..=0x7f_ffff => 3,
        0x80_0000..=0x7fff_ffff => 4,
        0x8000_0000..=0x7fff_ffff_ffff => 6,
        _ => 8,
    }
}

/// Binds tenant, kind and name: parameters 1 to 3.
pub(super) fn bind_key(statement: &mut Statement<'_>, key: &Key) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(1, key.tenant_column())?;
    statement.raw_bind_parameter(2, kind_code(key.kind()))?;
    statement.raw_bind_parameter(3, key.name_column())
}

/// The queue of a job that may be taken once it is due.
fn queue_column(record: &Record) -> Option<&str> {
    let takeable = matches!(record.state, State::Pending | State::Failed | State::Running);
    let listed = record.key.kind() == Kind::Job && takeable && record.due_at.is_some();
    listed.then(|| record.key.scope_column())
}

/// Reads a record whose key is known from the first columns of a row, and checks its seal.
pub(super) fn read_record(row: &Row<'_>, key: Key) -> Result<Record, Failure> {
    let whose = key.clone();
    columns_of_record(row, key).map_err(|failure| match failure {
        // Whoever has to mend it must know which one it is.
        Failure::Corrupt(what) => Failure::Corrupt(format!("{what} (key {})", whose.hash_hex())),
        other => other,
    })
}

fn columns_of_record(row: &Row<'_>, key: Key) -> Result<Record, Failure> {
    let mut record = Record {
        key,
        state: *at_code(&State::ALL, row.get(0)?).ok_or(CodecError("state"))?,
        rev: Rev(number(row, 1)?),
        fence: optional(row, 2)?.map(Fence),
        last_fence: Fence(number(row, 3)?),
        token: Token(u128::from_be_bytes(exact(row, 4, "token")?)),
        fingerprint: digest(row, 5)?.ok_or(CodecError("fingerprint"))?,
        attempt: row.get(6)?,
        priority: row.get(7)?,
        created_at: At(number(row, 8)?),
        updated_at: At(number(row, 9)?),
        due_at: optional(row, 10)?.map(At),
        expires_at: optional(row, 11)?.map(At),
        sweep_at: optional(row, 12)?.map(At),
        outcome: digest(row, 13)?,
        has_payload: row.get(14)?,
        terms: Terms::default(),
        owner: None,
        attempt_id: None,
        guard: None,
        error: None,
        trace: Trace::default(),
    };
    codec::decode_rest(&mut record, row.get_ref(15)?.as_blob().map_err(blob_error)?)?;
    Ok(record)
}

/// Reads a listed record with its key.
pub(super) fn read_listed(row: &Row<'_>) -> Result<Record, Failure> {
    read_record(row, read_key(row, AFTER_RECORD)?)
}

/// Where the payload of a listed job is.
pub(super) fn listed_payload(row: &Row<'_>) -> rusqlite::Result<Option<i64>> {
    row.get(AFTER_RECORD + 3)
}

/// The column of a listed young record's own number.
pub(super) const LISTED_ID: usize = AFTER_RECORD + 3;

/// Where a listed job itself is.
pub(super) fn listed_id(row: &Row<'_>) -> rusqlite::Result<i64> {
    row.get(AFTER_RECORD + 4)
}

/// Reads a key from the columns that start at `first`.
pub(super) fn read_key(row: &Row<'_>, first: usize) -> Result<Key, Failure> {
    let kind = *at_code(&Kind::ALL, row.get(first + 1)?).ok_or(CodecError("kind"))?;
    let (tenant, name) = (text(row, first)?, text(row, first + 2)?);
    Ok(Key::from_columns(tenant, kind, name).map_err(|_| CodecError("key"))?)
}

/// Damage that leaves a name without its record.
pub(super) fn missing(key: &Key) -> Failure {
    Failure::Corrupt(format!("the record of {} is missing, but not its name", key.hash_hex()))
}

/// Reads a loaded record with its outcome, checks both, and tells where its payload is.
pub(super) fn read_stored(row: &Row<'_>, key: &Key) -> Result<(Stored, Option<i64>), Failure> {
    let record = read_record(row, key.clone())?;
    let points: Option<i64> = row.get(AFTER_RECORD)?;
    let body = match row.get_ref(AFTER_RECORD + 1)? {
        ValueRef::Null => None,
        value => Some(value.as_blob().map_err(blob_error)?),
    };
    // An empty one has no row.
    let body = body.or_else(|| record.outcome.filter(|_| points.is_none()).map(|_| &[][..]));
    let whole = match (&record.outcome, points, body) {
        (Some(digest), _, Some(body)) => fingerprint_bytes(body).hash() == digest.hash(),
        (None, Some(_), Some(_)) | (None, None, None) => true,
        _ => false,
    };
    if !whole {
        let what = format!("the outcome of {} is not the one that was recorded", key.hash_hex());
        return Err(Failure::Corrupt(what));
    }
    Ok((Stored { record, outcome: body.map(Bytes::from) }, row.get(AFTER_RECORD + 2)?))
}

/// The seal of a payload: it belongs to its key.
pub(super) fn payload_seal(key: &Key, body: &[u8]) -> [u8; SEAL_BYTES] {
    let kind = key.kind().as_str().as_bytes();
    let (tenant, name) = (key.tenant_column().as_bytes(), key.name_column().as_bytes());
    codec::seal_parts(&[tenant, kind, name, body])
}

/// Reads a payload and checks its seal.
pub(super) fn read_payload(row: &Row<'_>, key: &Key) -> Result<Bytes, Failure> {
    let body = row.get_ref(1)?.as_blob().map_err(blob_error)?;
    if exact(row, 0, "payload")? != payload_seal(key, body) {
        return Err(CodecError("payload").into());
    }
    Ok(body.into())
}

/// The seal of a mark: it belongs to its subject.
pub(super) fn mark_seal(subject: &Subject, mark: &Mark) -> [u8; SEAL_BYTES] {
    codec::seal_parts(&[
        subject.tenant_column().as_bytes(),
        subject.name_column().as_bytes(),
        &mark.position.to_be_bytes(),
        &mark.updated_at.0.to_be_bytes(),
        &[u8::from(mark.value.is_some())],
        mark.value.as_deref().unwrap_or_default(),
    ])
}

/// Reads a mark from the columns that start at `first`, and checks its seal.
pub(super) fn read_mark(row: &Row<'_>, first: usize, subject: &Subject) -> Result<Mark, Failure> {
    let value = match row.get_ref(first + 3)? {
        ValueRef::Null => None,
        value => Some(value.as_blob().map_err(blob_error)?.into()),
    };
    let updated_at = At(number(row, first + 1)?);
    let mark = Mark { position: number(row, first)?, value, updated_at };
    if exact(row, first + 2, "mark")? != mark_seal(subject, &mark) {
        return Err(Failure::Corrupt(format!("the mark {subject} is not what was written")));
    }
    Ok(mark)
}

/// Binds an audit entry.
pub(super) fn bind_audit(
    statement: &mut Statement<'_>,
    id: u64,
    at: At,
    entry: &Entry,
) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(1, signed(id))?;
    statement.raw_bind_parameter(2, &*entry.tenant)?;
    statement.raw_bind_parameter(3, instant(at))?;
    statement.raw_bind_parameter(4, &*entry.action)?;
    statement.raw_bind_parameter(5, entry.subject.as_deref())?;
    statement.raw_bind_parameter(6, entry.key_hash.as_deref())?;
    statement.raw_bind_parameter(7, entry.payload_hash.as_deref())?;
    statement.raw_bind_parameter(8, entry.version_before.map(signed))?;
    statement.raw_bind_parameter(9, entry.version_after.map(signed))?;
    statement.raw_bind_parameter(10, entry.fence.map(signed))?;
    statement.raw_bind_parameter(11, entry.trace.actor.as_deref())?;
    statement.raw_bind_parameter(12, entry.trace.request_id.as_deref())?;
    statement.raw_bind_parameter(13, entry.trace.correlation_id.as_deref())?;
    statement.raw_bind_parameter(14, entry.detail.as_deref())
}

/// Reads an audit entry.
pub(super) fn read_audit(row: &Row<'_>) -> Result<Audited, Failure> {
    let entry = Entry {
        tenant: row.get(1)?,
        action: row.get(3)?,
        subject: row.get(4)?,
        key_hash: row.get(5)?,
        payload_hash: row.get(6)?,
        version_before: optional(row, 7)?,
        version_after: optional(row, 8)?,
        fence: optional(row, 9)?,
        trace: Trace {
            actor: row.get(10)?,
            request_id: row.get(11)?,
            correlation_id: row.get(12)?,
        },
        detail: row.get(13)?,
    };
    Ok(Audited { id: number(row, 0)?, at: At(number(row, 2)?), entry })
}

/// Whether a write leaves records alone: it can follow a fast path's one record.
pub(super) fn is_aside(write: &Write) -> bool {
    matches!(write, Write::Mark { .. } | Write::Audit(_) | Write::Prune { .. })
}

/// Reads a number that was unsigned.
pub(super) fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

fn optional(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(i64::cast_unsigned))
}

/// Reads a text without copying it.
pub(super) fn text<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r str, Failure> {
    row.get_ref(column)?.as_str().map_err(|error| conversion(Type::Text, error))
}

fn at_code<T>(all: &[T], code: i64) -> Option<&T> {
    usize::try_from(code).ok().and_then(|code| all.get(code))
}

/// Reads bytes of a known length.
pub(super) fn exact<const N: usize>(
    row: &Row<'_>,
    column: usize,
    what: &'static str,
) -> Result<[u8; N], Failure> {
    let bytes = row.get_ref(column)?.as_blob().map_err(blob_error)?;
    bytes.try_into().map_err(|_| CodecError(what).into())
}

/// The version of the rules and the hash.
fn digest_column(digest: &Fingerprint) -> [u8; 33] {
    let mut column = [digest.rules(); 33];
    column[1..].copy_from_slice(digest.hash());
    column
}

fn digest(row: &Row<'_>, column: usize) -> Result<Option<Fingerprint>, Failure> {
    let ValueRef::Blob(bytes) = row.get_ref(column)? else { return Ok(None) };
    let (rules, hash) = bytes.split_first().ok_or(CodecError("digest"))?;
    let hash = hash.try_into().map_err(|_| CodecError("digest"))?;
    Ok(Some(Fingerprint::from_stored(*rules, hash)))
}

/// A value that is no blob where only blobs are written.
pub(super) fn blob_error(error: rusqlite::types::FromSqlError) -> Failure {
    conversion(Type::Blob, error)
}

fn conversion(wanted: Type, error: rusqlite::types::FromSqlError) -> Failure {
    Failure::Sqlite(Error::FromSqlConversionFailure(0, wanted, Box::new(error)))
}
