//! Loads: everything of one snapshot, in one flight, checked before it is handed out.
//!
//! Rule: one statement per kind of read, whatever the number of reads. A reader's transaction is
//! read-only and of one snapshot (see `open.rs`), so all facts are of one instant.

use onceward_core::key::{Key, Subject};
use onceward_core::stamp::At;
use tokio_postgres::{Error, Row};

use super::super::{Fact, Found, Loaded, Read, StoreError};
use super::failure::Failure;
use super::open::{Lease, Session};
use super::rows;
use super::sql::Sql;

/// Looks things up. Facts come in the order of the reads.
pub(super) async fn load(lease: Lease, reads: &[Read]) -> Result<Loaded, StoreError> {
    let mut keys = Vec::new();
    let mut payloads = Vec::new();
    let mut subjects = Vec::new();
    for read in reads {
        match read {
            Read::Record { key, payload } => {
                keys.push(key);
                payloads.push(*payload);
            }
            Read::Mark(subject) => subjects.push(subject),
        }
    }
    let look = look(&lease.session, &keys, &payloads, &subjects).await;
    let (now, records, marks) = look.map_err(Failure::into_store_error)?;
    lease.give_back();

    let mut found: Vec<Option<Found>> = vec![None; keys.len()];
    for row in &records {
        let (stored, payload) = rows::read_stored(row)?;
        fill(&mut found, rows::place_of_record(row)?, Found { stored, payload });
    }
    let mut marked = vec![None; subjects.len()];
    for row in &marks {
        fill(&mut marked, rows::place_of_mark(row)?, rows::read_mark(row)?.1);
    }
    let (mut found, mut marked) = (found.into_iter(), marked.into_iter());
    let facts = reads.iter().map(|read| match read {
        Read::Record { .. } => Fact::Record(found.next().flatten()),
        Read::Mark(_) => Fact::Mark(marked.next().flatten()),
    });
    Ok(Loaded { now, facts: facts.collect() })
}

async fn look(
    session: &Session,
    keys: &[&Key],
    payloads: &[bool],
    subjects: &[&Subject],
) -> Result<(At, Vec<Row>, Vec<Row>), Failure> {
    // Biased: statements go out in this order, all before the first answer comes.
    let (begun, now, records, marks, ended) = session
        .flight(async {
            tokio::join!(
                biased;
                session.client.batch_execute("BEGIN"),
                now(session),
                load_records(session, keys, payloads),
                load_marks(session, subjects),
                session.client.batch_execute("COMMIT"),
            )
        })
        .await?;
    begun?;
    let looked = (now?, records?, marks?);
    ended?;
    Ok(looked)
}

/// The store's now.
pub(super) async fn now(session: &Session) -> Result<At, Error> {
    let row = session.client.query_one(session.prepared(Sql::Now), &[]).await?;
    Ok(At(row.try_get::<_, i64>(0)?.cast_unsigned()))
}

/// Records with what lies beside them; the payload only where it is wanted.
pub(super) async fn load_records(
    session: &Session,
    keys: &[&Key],
    payloads: &[bool],
) -> Result<Vec<Row>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let columns = KeyColumns::of(keys);
    let KeyColumns { tenants, kinds, names } = &columns;
    let statement = session.prepared(Sql::LoadRecords);
    session.client.query(statement, &[tenants, kinds, names, &payloads]).await
}

/// Marks with their values.
pub(super) async fn load_marks(
    session: &Session,
    subjects: &[&Subject],
) -> Result<Vec<Row>, Error> {
    if subjects.is_empty() {
        return Ok(Vec::new());
    }
    let tenants: Vec<&str> = subjects.iter().map(|subject| subject.tenant_column()).collect();
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name_column()).collect();
    session.client.query(session.prepared(Sql::LoadMarks), &[&tenants, &names]).await
}

/// Keys as three arrays.
pub(super) struct KeyColumns<'a> {
    pub(super) tenants: Vec<&'a str>,
    pub(super) kinds: Vec<i16>,
    pub(super) names: Vec<&'a str>,
}

impl<'a> KeyColumns<'a> {
    pub(super) fn of(keys: &[&'a Key]) -> Self {
        Self {
            tenants: keys.iter().map(|key| key.tenant_column()).collect(),
            kinds: keys.iter().map(|key| rows::kind_code(key.kind())).collect(),
            names: keys.iter().map(|key| key.name_column()).collect(),
        }
    }
}

/// Sets a place; the server gives no other places than it was asked for.
fn fill<T>(places: &mut [Option<T>], place: usize, value: T) {
    if let Some(there) = places.get_mut(place) {
        *there = Some(value);
    }
}
