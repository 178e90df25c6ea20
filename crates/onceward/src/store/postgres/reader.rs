//! Loads: everything of one snapshot, in one statement, checked before it is handed out.
//!
//! Rule: one call of one function, whatever the number of reads; it reads each tenant's rows under
//! that tenant (see the fourth migration).

use onceward_core::key::{Key, Subject};
use onceward_core::stamp::At;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::super::{Fact, Found, Loaded, Read, StoreError};
use super::failure::Failure;
use super::open::{Lease, Session};
use super::rows;
use super::sql::Sql;

/// Looks things up for several who ask. Facts come in the order of the reads; who meets damage
/// hears of it, and his neighbours don't.
pub(super) async fn load(
    lease: Lease,
    looks: &[Vec<Read>],
) -> Result<Vec<Result<Loaded, StoreError>>, Failure> {
    let mut keys = Vec::new();
    let mut payloads = Vec::new();
    let mut subjects = Vec::new();
    for read in looks.iter().flatten() {
        match read {
            Read::Record { key, payload } => {
                keys.push(key);
                payloads.push(*payload);
            }
            Read::Mark(subject) => subjects.push(subject),
        }
    }
    let rows = look(&lease.session, &keys, &payloads, &subjects).await?;
    lease.give_back();
    Ok(answers(looks, &rows, &payloads, subjects.len()).unwrap_or_else(|error| {
        // An answer that can't be read is nobody's.
        vec![Err(error); looks.len()]
    }))
}

/// What each look found.
fn answers(
    looks: &[Vec<Read>],
    rows: &[Row],
    payloads: &[bool],
    subjects: usize,
) -> Result<Vec<Result<Loaded, StoreError>>, StoreError> {
    let mut now = None;
    let mut found: Vec<_> = (0..payloads.len()).map(|_| Ok(None)).collect();
    let mut marked: Vec<_> = (0..subjects).map(|_| Ok(None)).collect();
    for row in rows {
        match rows::place_column(row)? {
            0 => now = Some(rows::now(row)?),
            place @ 1.. => {
                let asked = usize::try_from(place - 1).ok().and_then(|at| payloads.get(at));
                let read = rows::read_stored(row).and_then(|(stored, payload)| {
                    if asked == Some(&true) && stored.record.has_payload && payload.is_none() {
                        return Err(StoreError::Corrupt("a record's payload is gone".into()));
                    }
                    Ok(Some(Found { stored, payload }))
                });
                fill(&mut found, place, read);
            }
            place => fill(&mut marked, -place, rows::read_mark(row).map(|(_, mark)| Some(mark))),
        }
    }
    let Some(now) = now else {
        return Err(StoreError::Corrupt("a load came without an instant".into()));
    };
    let (mut found, mut marked) = (found.into_iter(), marked.into_iter());
    let mut fact = |read: &Read| match read {
        Read::Record { .. } => found.next().unwrap_or(Ok(None)).map(Fact::Record),
        Read::Mark(_) => marked.next().unwrap_or(Ok(None)).map(Fact::Mark),
    };
    let loaded = looks.iter().map(|reads| {
        // All of them are counted, also those behind a damaged one.
        let facts: Vec<_> = reads.iter().map(&mut fact).collect();
        Ok(Loaded { now, facts: facts.into_iter().collect::<Result<_, _>>()? })
    });
    Ok(loaded.collect())
}

async fn look(
    session: &Session,
    keys: &[&Key],
    payloads: &[bool],
    subjects: &[&Subject],
) -> Result<Vec<Row>, Failure> {
    let tenants: Vec<&str> = keys.iter().map(|key| key.tenant_column()).collect();
    let kinds: Vec<i16> = keys.iter().map(|key| rows::kind_code(key.kind())).collect();
    let names: Vec<&str> = keys.iter().map(|key| key.name_column()).collect();
    let mark_tenants: Vec<&str> = subjects.iter().map(|mark| mark.tenant_column()).collect();
    let mark_names: Vec<&str> = subjects.iter().map(|mark| mark.name_column()).collect();
    let values: [&(dyn ToSql + Sync); 6] =
        [&tenants, &kinds, &names, &payloads, &mark_tenants, &mark_names];
    let looked = session.client.query(session.prepared(Sql::Load), &values);
    Ok(session.flight(looked).await??)
}

/// The store's now.
pub(super) async fn now(session: &Session) -> Result<At, Error> {
    let row = session.client.query_one(session.prepared(Sql::Now), &[]).await?;
    Ok(At(row.try_get::<_, i64>(0)?.cast_unsigned()))
}

/// Sets a place, counted from 1; the server gives no other places than it was asked for.
fn fill<T>(places: &mut [T], place: i64, value: T) {
    let place = usize::try_from(place - 1).ok();
    if let Some(there) = place.and_then(|place| places.get_mut(place)) {
        *there = value;
    }
}
