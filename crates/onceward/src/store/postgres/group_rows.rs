//! The rows of a group as the server gets them: field by field, as the types of the third migration
//! list them.
//!
//! Rule: the order of the fields here is that of the types there; a mistake is refused by the
//! server, which knows the type of every field. What the fields mean is said there.

use std::borrow::Cow;

use bytes::BytesMut;
use onceward_core::codec;
use onceward_core::record::{Body, Draft, FenceWrite, State, Time};
use onceward_core::stamp::At;
use tokio_postgres::types::{IsNull, ToSql, Type};

use super::composite::{self, Fields, Unwritable};
use super::group::{Beside, Check, Gone, MarkWrite, Noted, Put, Slice, Stand};
use super::rows::{self, digest_column, instant, state_code, text_column, token_column};

/// Beyond this a while ends with the end of time: now and so much is still an instant.
const LONGEST_MS: u64 = 1 << 62;
/// In the place of a while that is longer.
const END_OF_TIME: i64 = -1;

/// The slices of a group, as an argument.
#[derive(Default)]
pub(super) struct Slices<'a>(pub(super) Vec<Slice<'a>>);

impl std::fmt::Debug for Slices<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} slices", self.0.len())
    }
}

impl ToSql for Slices<'_> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Unwritable> {
        if self.0.is_empty() {
            return composite::no_rows(of, out);
        }
        composite::array(of, &self.0, slice, out)
    }

    fn accepts(of: &Type) -> bool {
        of.name() == "_slice_row"
    }

    tokio_postgres::types::to_sql_checked!();
}

fn slice(slice: &Slice<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    out.put(&slice.tenant.as_ref())?;
    out.put(&slice.kind)?;
    out.put(&slice.drops)?;
    out.rows(&slice.checks, check)?;
    out.rows(&slice.stands, stand)?;
    out.rows(&slice.fresh, put)?;
    out.rows(&slice.there, put)?;
    out.rows(&slice.others, put)?;
    out.rows(&slice.outcomes, outcome)?;
    out.rows(&slice.payloads, payload)?;
    out.rows(&slice.gone, gone)?;
    out.rows(&slice.marks, mark)?;
    out.rows(&slice.entries, entry)
}

fn check(row: &Check<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    out.put(&row.place)?;
    out.put(&row.batch)?;
    out.put(&row.rule)?;
    out.put(&row.key.name_column())?;
    out.put(&row.number)?;
    out.put(&row.token.as_ref().map(<[u8; 16]>::as_slice))
}

fn stand(row: &Stand<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    out.put(&row.place)?;
    out.put(&row.batch)?;
    out.put(&row.rule)?;
    out.put(&row.subject.name_column())?;
    out.put(&row.number)
}

fn put(row: &Put<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    let (draft, record) = (row.draft, &row.draft.record);
    out.put(&row.turn)?;
    out.put(&row.batch)?;
    out.put(&row.checked)?;
    out.put(&record.key.name_column())?;
    out.put(&state_code(record.state))?;
    out.put(&digest_column(&record.fingerprint))?;
    out.put(&match draft.fence {
        FenceWrite::Keep => 0_i16,
        FenceWrite::Grant => 1,
        FenceWrite::End => 2,
        FenceWrite::Once => 3,
    })?;
    out.put(&record.fence.map(|fence| fence.0.cast_signed()))?;
    out.put(&record.last_fence.0.cast_signed())?;
    out.put(&token_column(row.token).as_slice())?;
    out.put(&i64::from(record.attempt))?;
    out.put(&i16::from(record.priority))?;
    out.put(&(!draft.fresh).then(|| instant(record.created_at)))?;
    let times = [
        (draft.due, record.due_at),
        (draft.expires, record.expires_at),
        (draft.sweep, record.sweep_at),
    ];
    let mut whiles = 0_i16;
    for (bit, (time, _)) in times.iter().enumerate() {
        whiles |= i16::from(matches!(time, Time::In(_))) << bit;
    }
    out.put(&whiles)?;
    for (time, at) in times {
        out.put(&given(time, at))?;
    }
    out.put(&given(sweep_from(draft), record.sweep_at))?;
    out.put(&row.beside)?;
    out.put(&record.outcome.as_ref().map(digest_column))?;
    out.put(&record.has_payload)?;
    out.put(&row.body.as_slice())?;
    out.put(&codec::seal_base(record, row.token, &row.body).as_slice())
}

/// No later than the sweep of this record and, if it runs, of what it will be once it is done: then
/// the sweep's index need not be told.
fn sweep_from(draft: &Draft) -> Time {
    match draft.sweep {
        Time::In(ms) if draft.record.state == State::Running => {
            Time::In(ms.min(draft.record.terms.retain_ms))
        }
        sweep => sweep,
    }
}

/// A while, or an instant that is kept.
fn given(time: Time, at: Option<At>) -> Option<i64> {
    match time {
        Time::In(ms) if ms > LONGEST_MS => Some(END_OF_TIME),
        Time::In(ms) => Some(ms.cast_signed()),
        Time::Keep => at.map(instant),
        Time::Clear => None,
    }
}

fn outcome(row: &Beside<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    out.put(&row.batch)?;
    out.put(&row.turn)?;
    out.put(&row.bytes)
}

fn payload(row: &Beside<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    outcome(row, out)?;
    out.put(&row.seal().as_slice())
}

fn gone(row: &Gone<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    out.put(&row.batch)?;
    out.put(&row.key.name_column())
}

fn mark(row: &MarkWrite<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    out.put(&row.batch)?;
    out.put(&row.subject.name_column())?;
    out.put(&row.position.cast_signed())?;
    out.put(&(*row.value == Body::Keep))?;
    out.put(&match row.value {
        Body::Set(bytes) => Some(&bytes[..]),
        Body::Keep | Body::Clear => None,
    })?;
    out.put(&row.digest.as_deref())?;
    out.put(&rows::mark_seal_base(row.subject))
}

fn entry(row: &Noted<'_>, out: &mut Fields<'_>) -> Result<(), Unwritable> {
    let entry = row.entry;
    let number = |value: Option<u64>| value.map(u64::cast_signed);
    fn text(value: Option<&str>) -> Option<Cow<'_, str>> {
        value.map(text_column)
    }
    out.put(&row.turn)?;
    out.put(&row.batch)?;
    out.put(&text_column(&entry.action).as_ref())?;
    out.put(&text(entry.subject.as_deref()))?;
    out.put(&text(entry.key_hash.as_deref()))?;
    out.put(&text(entry.payload_hash.as_deref()))?;
    out.put(&number(entry.version_before))?;
    out.put(&number(entry.version_after))?;
    out.put(&number(entry.fence))?;
    out.put(&text(entry.trace.actor.as_deref()))?;
    out.put(&text(entry.trace.request_id.as_deref()))?;
    out.put(&text(entry.trace.correlation_id.as_deref()))?;
    out.put(&text(entry.detail.as_deref()))
}
