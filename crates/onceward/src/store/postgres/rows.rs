//! Rows and what they mean: records, marks and audit entries to columns and back.
//!
//! Rule: whatever is read is checked before it is handed out: a record by its seal, an outcome by
//! its digest, a payload and a mark by seals of their own. Unsigned numbers are kept in Postgres'
//! signed ones bit by bit; instants and positions, which SQL compares, are bounded so that their
//! order holds. Postgres' text can't hold NUL, so texts of audit entries are escaped.

use std::borrow::Cow;

use onceward_core::audit::{Audited, Entry, Trace};
use onceward_core::batch::{Batch, Write};
use onceward_core::codec::{self, SEAL_BYTES};
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::{LimitError, MAX_POSITION, in_range};
use onceward_core::record::{Mark, Record, State, Stored, Terms};
use onceward_core::seal::{Place, Settled};
use onceward_core::stamp::{At, Fence, Rev, Token};
use onceward_core::{Bytes, Text};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::super::StoreError;

/// The latest instant that a column can hold and sort.
const LAST_INSTANT: u64 = i64::MAX as u64;
/// Where the columns of a record end in a looked-up row; its place follows, then what lies beside.
const AFTER_RECORD: usize = 19;
/// Where the columns of a mark begin in a looked-up row; tenant and name are where a record's are.
const MARK: usize = 23;
/// How many columns a looked-up row has.
pub(super) const LOOKED_COLUMNS: usize = 28;
/// Begins an escaped character in a text. Nobody writes it, so texts stay as people know them.
const ESCAPE: char = '\u{1}';

/// Checks what only this store bounds: positions, which SQL has to compare.
///
/// # Errors
/// The first position that a column can't hold and sort.
pub(super) fn check(batch: &Batch) -> Result<(), LimitError> {
    for write in &batch.writes {
        if let Write::Mark { position, .. } = write {
            in_range("position", *position, 0, MAX_POSITION)?;
        }
    }
    Ok(())
}

/// An instant as Postgres keeps it.
pub(super) fn instant(at: At) -> i64 {
    at.0.min(LAST_INSTANT).cast_signed()
}

/// A kind as Postgres keeps it.
pub(super) fn kind_code(kind: Kind) -> i16 {
    kind as i16
}

/// A state as Postgres keeps it.
pub(super) fn state_code(state: State) -> i16 {
    state as i16
}

/// A token as Postgres keeps it.
pub(super) fn token_column(token: Token) -> [u8; 16] {
    token.0.to_be_bytes()
}

/// The version of the rules and the hash.
pub(super) fn digest_column(digest: &Fingerprint) -> Vec<u8> {
    let mut column = Vec::with_capacity(33);
    column.push(digest.rules());
    column.extend_from_slice(digest.hash());
    column
}

/// A text as Postgres keeps it: without NUL, injectively.
pub(super) fn text_column(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', ESCAPE]) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(ESCAPE, "\u{1}1").replace('\0', "\u{1}0"))
}

fn plain_text(column: &str) -> Text {
    if !column.contains(ESCAPE) {
        return column.into();
    }
    column.replace("\u{1}0", "\0").replace("\u{1}1", "\u{1}").into()
}

/// The seal of a payload: it belongs to its key.
pub(super) fn payload_seal(key: &Key, payload: &[u8]) -> [u8; SEAL_BYTES] {
    let kind = key.kind().as_str().as_bytes();
    let (tenant, name) = (key.tenant_column().as_bytes(), key.name_column().as_bytes());
    codec::seal_parts(&[tenant, kind, name, payload])
}

/// The seal of a mark: it belongs to its subject. The value counts by its digest, so that a mark
/// can move without its value being read.
pub(super) fn mark_seal(
    subject: &Subject,
    position: u64,
    at: At,
    digest: Option<&[u8]>,
) -> [u8; SEAL_BYTES] {
    codec::seal_parts(&[
        subject.tenant_column().as_bytes(),
        subject.name_column().as_bytes(),
        &position.to_be_bytes(),
        &instant(at).to_be_bytes(),
        digest.unwrap_or_default(),
    ])
}

/// The beginning of what [`mark_seal`] hashes: the part that names the mark.
pub(super) fn mark_seal_base(subject: &Subject) -> Vec<u8> {
    let parts = [subject.tenant_column().as_bytes(), subject.name_column().as_bytes()];
    let mut base = Vec::with_capacity(16 + parts[0].len() + parts[1].len());
    for part in parts {
        base.extend_from_slice(&(part.len() as u64).to_be_bytes());
        base.extend_from_slice(part);
    }
    base
}

/// A record's tenant, kind and name, whatever else its row holds.
pub(super) fn key_columns(row: &Row) -> Result<(&str, i16, &str), StoreError> {
    Ok((get(row, 0)?, get(row, 1)?, get(row, 2)?))
}

/// Its priority, and when it is due and swept.
pub(super) fn listed_at(row: &Row) -> Result<(i16, Option<i64>, Option<i64>), StoreError> {
    Ok((get(row, 10)?, get(row, 13)?, get(row, 15)?))
}

/// Reads a record's key.
fn read_key(row: &Row) -> Result<Key, StoreError> {
    let damaged = |what: &str| StoreError::Corrupt(format!("a record's {what} can't be read"));
    let (tenant, kind, name) = key_columns(row)?;
    let kind = *at_code(&Kind::ALL, kind).ok_or_else(|| damaged("kind"))?;
    Key::from_columns(tenant, kind, name).map_err(|_| damaged("key"))
}

/// Reads a record from the first columns of a row, and checks its seal.
pub(super) fn read_record(row: &Row) -> Result<Record, StoreError> {
    let key = read_key(row)?;
    let whose = |what: &str| StoreError::Corrupt(format!("{what} (key {})", key.hash_hex()));
    let digest = |column: Option<&[u8]>| match column {
        None => Ok(None),
        Some(bytes) => read_digest(bytes).map(Some).ok_or_else(|| whose("a digest can't be read")),
    };
    let token = <[u8; 16]>::try_from(get::<&[u8]>(row, 8)?);
    let mut record = Record {
        state: *at_code(&State::ALL, get(row, 3)?).ok_or_else(|| whose("no such state"))?,
        fingerprint: digest(get(row, 4)?)?.ok_or_else(|| whose("no fingerprint"))?,
        rev: Rev(number(row, 5)?),
        fence: optional(row, 6)?.map(Fence),
        last_fence: Fence(number(row, 7)?),
        token: token.map(|bytes| Token(u128::from_be_bytes(bytes))).map_err(|_| whose("token"))?,
        attempt: u32::try_from(number(row, 9)?).map_err(|_| whose("attempt"))?,
        priority: u8::try_from(get::<i16>(row, 10)?).map_err(|_| whose("priority"))?,
        created_at: At(number(row, 11)?),
        updated_at: At(number(row, 12)?),
        due_at: optional(row, 13)?.map(At),
        expires_at: optional(row, 14)?.map(At),
        sweep_at: optional(row, 15)?.map(At),
        outcome: digest(get(row, 16)?)?,
        has_payload: get(row, 17)?,
        key: key.clone(),
        terms: Terms::default(),
        owner: None,
        attempt_id: None,
        guard: None,
        error: None,
        trace: Trace::default(),
    };
    codec::decode_rest(&mut record, get(row, 18)?).map_err(|error| whose(&error.to_string()))?;
    Ok(record)
}

/// Reads a loaded record with its outcome and payload, and checks all three.
pub(super) fn read_stored(row: &Row) -> Result<(Stored, Option<Bytes>), StoreError> {
    let record = read_record(row)?;
    let damaged = |what: &str| {
        let key = record.key.hash_hex();
        StoreError::Corrupt(format!("the {what} of key {key} is not the one that was recorded"))
    };
    let outcome: Option<&[u8]> = get(row, AFTER_RECORD + 1)?;
    // An empty one is not kept.
    let outcome = record.outcome.as_ref().map(|digest| (digest, outcome.unwrap_or_default()));
    if outcome.is_some_and(|(digest, bytes)| fingerprint_bytes(bytes).hash() != digest.hash()) {
        return Err(damaged("outcome"));
    }
    let outcome = outcome.map(|(_, bytes)| Bytes::from(bytes));
    let payload = read_payload(row, &record.key)?.ok_or_else(|| damaged("payload"))?;
    Ok((Stored { record, outcome }, payload))
}

/// Reads the payload that came with a record; nothing when it is not the one that was recorded.
fn read_payload(row: &Row, key: &Key) -> Result<Option<Option<Bytes>>, StoreError> {
    let payload: Option<&[u8]> = get(row, AFTER_RECORD + 2)?;
    let there: Option<&[u8]> = get(row, AFTER_RECORD + 3)?;
    let seal = payload.map(|bytes| payload_seal(key, bytes));
    let whole = seal.as_ref().map(<[u8; SEAL_BYTES]>::as_slice) == there;
    Ok(whole.then(|| payload.map(Bytes::from)))
}

/// Reads a listed job with its payload, if that came along. Of a damaged one whoever takes the job
/// is told when he looks it up.
pub(super) fn read_job(row: &Row) -> Result<(Record, Option<Bytes>), StoreError> {
    let record = read_record(row)?;
    let payload = read_payload(row, &record.key)?.flatten();
    Ok((record, payload))
}

/// Which read or check a looked-up row answers: records from 1, marks from -1 down.
pub(super) fn place_column(row: &Row) -> Result<i64, StoreError> {
    get(row, AFTER_RECORD)
}

/// The store's instant, from the row that leads a load.
pub(super) fn now(row: &Row) -> Result<At, StoreError> {
    Ok(At(number(row, MARK + 1)?))
}

/// Reads a mark and checks its seal.
pub(super) fn read_mark(row: &Row) -> Result<(Subject, Mark), StoreError> {
    let subject = Subject::from_columns(get(row, 0)?, get(row, 2)?)
        .map_err(|_| StoreError::Corrupt("a mark's name can't be read".into()))?;
    let value: Option<&[u8]> = get(row, MARK + 2)?;
    let digest: Option<&[u8]> = get(row, MARK + 3)?;
    let (position, updated_at) = (number(row, MARK)?, At(number(row, MARK + 1)?));
    let value_fits =
        value.map(|bytes| digest_column(&fingerprint_bytes(bytes))).as_deref() == digest;
    let seal_there: &[u8] = get(row, MARK + 4)?;
    if !value_fits || mark_seal(&subject, position, updated_at, digest) != seal_there {
        return Err(StoreError::Corrupt(format!("the mark {subject} is not what was written")));
    }
    Ok((subject, Mark { position, value: value.map(Bytes::from), updated_at }))
}

/// Reads an audit entry.
pub(super) fn read_audit(row: &Row) -> Result<Audited, StoreError> {
    let text = |column| get::<Option<&str>>(row, column).map(|text| text.map(plain_text));
    let entry = Entry {
        tenant: plain_text(get(row, 2)?),
        action: plain_text(get(row, 3)?),
        subject: text(4)?,
        key_hash: text(5)?,
        payload_hash: text(6)?,
        version_before: optional(row, 7)?,
        version_after: optional(row, 8)?,
        fence: optional(row, 9)?,
        trace: Trace { actor: text(10)?, request_id: text(11)?, correlation_id: text(12)? },
        detail: text(13)?,
    };
    Ok(Audited { id: number(row, 0)?, at: At(number(row, 1)?), entry })
}

/// Reads an audit entry and where it lies: its transaction and its number.
pub(super) fn read_settled(row: &Row) -> Result<Settled, StoreError> {
    let xact: &str = get(row, 14)?;
    let xact = xact.parse().map_err(|_| unreadable(14))?;
    Ok(Settled { place: Place(xact, number(row, 0)?), audited: read_audit(row)? })
}

/// Where an audit entry lies, as a cursor says it: its transaction and its number.
pub(super) fn audit_place(row: &Row) -> Result<String, StoreError> {
    let (xact, id): (&str, i64) = (get(row, 14)?, get(row, 0)?);
    Ok(format!("{xact}.{id}"))
}

/// Reads a column. A type or a NULL that we never write means that someone else did.
pub(super) fn get<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|_| unreadable(column))
}

/// Reads a number that was unsigned.
pub(super) fn number(row: &Row, column: usize) -> Result<u64, StoreError> {
    get::<i64>(row, column).map(i64::cast_unsigned)
}

/// Reads a number that was unsigned, or none.
pub(super) fn optional(row: &Row, column: usize) -> Result<Option<u64>, StoreError> {
    Ok(get::<Option<i64>>(row, column)?.map(i64::cast_unsigned))
}

fn unreadable(column: usize) -> StoreError {
    StoreError::Corrupt(format!("column {column} of a row is of a kind that is never written"))
}

fn at_code<T>(all: &[T], code: i16) -> Option<&T> {
    usize::try_from(code).ok().and_then(|code| all.get(code))
}

fn read_digest(bytes: &[u8]) -> Option<Fingerprint> {
    let (rules, hash) = bytes.split_first()?;
    Some(Fingerprint::from_stored(*rules, hash.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn texts_come_back_and_hold_no_nul(text in "[\\x00\\x01\\x0201ab]{0,8}") {
            let column = text_column(&text);
            prop_assert!(!column.contains('\0'));
            prop_assert_eq!(&*plain_text(&column), text.as_str());
        }
    }
}
