//! Lists, a page at a time, each page of one snapshot, unless damaged rows leave room in it.
//!
//! Cursors mean what the memory store's mean: the place of the last item in the order of the list,
//! so that what was taken in between is gone and the rest follows. A page is filled with one item
//! more than was asked for; that one tells whether there is a next page. A damaged row is never
//! handed out: it fails its page, but where jobs are taken or records swept it is passed over,
//! because it must not stop a queue or the sweep for everyone.

use std::cmp::Ordering;

use onceward_core::Bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::Record;
use onceward_core::stamp::At;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Row};

use super::super::{AuditFilter, Cursor, Items, List, Page, StoreError};
use super::failure::Failure;
use super::open::{Lease, Session};
use super::reader;
use super::rows::{self, instant, kind_code, state_code, text_column};
use super::sql::{self, Sql};

/// Sorts below every instant that is stored.
const BEFORE_ALL: i64 = -1;
/// Sorts above every priority.
const ABOVE_ALL: i16 = 256;
/// Rows that are looked at together once damaged ones were met.
const DAMAGED_STEP: usize = 256;
/// The largest payload that a list of due jobs brings along.
const PAYLOAD_LISTED_BYTES: i32 = 4_096;

type Value<'v> = (&'v (dyn ToSql + Sync), Type);

/// Lists what the question asks for.
pub(super) async fn list(
    lease: Lease,
    what: &List,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, StoreError> {
    let start = Start::read(what, after)?;
    if let List::Due { .. } | List::Sweepable = what {
        return sound(lease, what, start, limit).await;
    }
    let (now, rows) =
        pages(&lease.session, what, &start, limit).await.map_err(Failure::into_store_error)?;
    lease.give_back();
    let more = rows.len() > limit;
    let shown = &rows[..rows.len().min(limit)];
    let (items, last) = match what {
        List::Due { .. } | List::Sweepable | List::Records { .. } => {
            let records: Vec<_> = shown.iter().map(rows::read_record).collect::<Result<_, _>>()?;
            let last = records.last().map(|record| record.key.to_string());
            (Items::Records(records), last)
        }
        List::Marks { tenant, .. } => {
            let marks: Vec<_> = shown.iter().map(rows::read_mark).collect::<Result<_, _>>()?;
            let last = marks.last();
            let last = last.map(|(last, _)| List::mark_cursor(tenant.as_deref(), last).0);
            (Items::Marks(marks), last)
        }
        List::Settled { .. } => {
            let settled: Vec<_> = shown.iter().map(rows::read_settled).collect::<Result<_, _>>()?;
            // It goes on here once there is more, so it always says where.
            let next = shown.last().map(rows::audit_place).transpose()?.map(Cursor);
            return Ok(Page { now, items: Items::Settled(settled), payloads: Vec::new(), next });
        }
        List::Audit(_) => {
            let audit: Vec<_> = shown.iter().map(rows::read_audit).collect::<Result<_, _>>()?;
            let last = shown.last().map(rows::audit_place).transpose()?;
            (Items::Audit(audit), last)
        }
    };
    Ok(Page { now, items, payloads: Vec::new(), next: last.filter(|_| more).map(Cursor) })
}

/// Records that can be read, until the page is full of them or the list ends.
async fn sound(
    lease: Lease,
    what: &List,
    mut start: Start,
    limit: usize,
) -> Result<Page, StoreError> {
    let (mut records, mut payloads) = (Vec::<Record>::new(), Vec::new());
    let mut step = limit;
    let now = loop {
        let (now, rows) = match what {
            List::Due { queue } => due(&lease.session, queue, &start, step).await?,
            _ => {
                let page = pages(&lease.session, what, &start, step).await;
                page.map_err(Failure::into_store_error)?
            }
        };
        let before = records.len();
        for row in &rows {
            match read_listed(what, row) {
                // One that was moved between two looks may come again.
                Ok((record, _)) if records[..before].iter().any(|seen| seen.key == record.key) => {}
                Ok((record, payload)) => {
                    records.push(record);
                    payloads.push(payload);
                }
                Err(StoreError::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match rows.last() {
            // Damaged ones have left room: it goes on behind the last of them, in larger steps.
            Some(last) if rows.len() > step && records.len() <= limit => {
                start = Start::behind(what, last)?;
                step = limit.max(DAMAGED_STEP);
            }
            _ => break now,
        }
    };
    lease.give_back();
    let more = records.len() > limit;
    records.truncate(limit);
    payloads.truncate(limit);
    if !matches!(what, List::Due { .. }) {
        payloads.clear();
    }
    let next = records.last().filter(|_| more).map(|last| Cursor(place_in(what, last)));
    Ok(Page { now, items: Items::Records(records), payloads, next })
}

/// A record, and what a list of due jobs brings along.
fn read_listed(what: &List, row: &Row) -> Result<(Record, Option<Bytes>), StoreError> {
    match what {
        List::Due { .. } => rows::read_job(row),
        _ => Ok((rows::read_record(row)?, None)),
    }
}

/// The place of a record in the order of its list, as a cursor says it.
fn place_in(what: &List, record: &Record) -> String {
    let (priority, at) = match what {
        List::Due { .. } => (record.priority, record.due_at),
        _ => (0, record.sweep_at),
    };
    format!("{priority} {} {}", at.unwrap_or_default().0, record.key)
}

/// Where a page starts, as its cursor says.
enum Start {
    Top,
    Key(Key),
    /// Priority, instant, tenant, kind and name, as they lie in the columns.
    Place(i16, i64, String, i16, String),
    Mark(Subject),
    /// Transaction and number of an entry.
    Entry(u64, i64),
}

impl Start {
    fn read(what: &List, after: Option<&Cursor>) -> Result<Self, StoreError> {
        let Some(Cursor(cursor)) = after else { return Ok(Self::Top) };
        let start = match what {
            List::Records { .. } => Key::parse(cursor).ok().map(Self::Key),
            List::Due { .. } | List::Sweepable => Self::read_place(cursor),
            List::Marks { tenant, .. } => {
                List::mark_after(tenant.as_deref(), Some(cursor))?.map(Self::Mark)
            }
            List::Audit(_) | List::Settled { .. } => cursor
                .split_once('.')
                .and_then(|(xact, id)| Some(Self::Entry(xact.parse().ok()?, id.parse().ok()?))),
        };
        start.ok_or_else(StoreError::bad_cursor)
    }

    fn read_place(cursor: &str) -> Option<Self> {
        let mut parts = cursor.splitn(3, ' ');
        let priority: u8 = parts.next()?.parse().ok()?;
        let at = At(parts.next()?.parse().ok()?);
        let key = Key::parse(parts.next()?).ok()?;
        let (tenant, name) = (key.tenant_column().into(), key.name_column().into());
        Some(Self::Place(priority.into(), instant(at), tenant, kind_code(key.kind()), name))
    }

    /// Behind a row, whatever is in it.
    fn behind(what: &List, row: &Row) -> Result<Self, StoreError> {
        let (priority, due_at, sweep_at) = rows::listed_at(row)?;
        let (tenant, kind, name) = rows::key_columns(row)?;
        let at = if let List::Due { .. } = what { due_at } else { sweep_at };
        let at = at.unwrap_or(BEFORE_ALL);
        Ok(Self::Place(priority, at, tenant.into(), kind, name.into()))
    }

    fn key(&self) -> Option<&Key> {
        if let Self::Key(key) = self { Some(key) } else { None }
    }

    fn mark(&self) -> Option<&Subject> {
        if let Self::Mark(subject) = self { Some(subject) } else { None }
    }

    /// Priority, instant, tenant, kind and name to start behind.
    fn place(&self) -> (i16, i64, &str, i16, &str) {
        match self {
            Self::Place(priority, at, tenant, kind, name) => (*priority, *at, tenant, *kind, name),
            _ => (ABOVE_ALL, BEFORE_ALL, "", -1, ""),
        }
    }
}

async fn pages(
    session: &Session,
    what: &List,
    start: &Start,
    limit: usize,
) -> Result<(At, Vec<Row>), Failure> {
    let take = one_more(limit);
    let (begun, now, adapted, set) = session
        .flight(async {
            tokio::join!(
                biased;
                session.client.batch_execute("BEGIN"),
                reader::now(session),
                adapt(session, what),
                set_tenant(session, what),
            )
        })
        .await?;
    begun?;
    let now = now?;
    adapted?;
    set?;
    let (rows, ended) = session
        .flight(async {
            tokio::join!(
                biased;
                select(session, what, start, now, take),
                session.client.batch_execute("COMMIT"),
            )
        })
        .await?;
    let rows = rows?;
    ended?;
    Ok((now, rows))
}

/// Entries of a time are found by an index of blocks, which is read by bitmaps.
async fn adapt(session: &Session, what: &List) -> Result<(), Error> {
    match what {
        List::Audit(AuditFilter { from: None, to: None, .. }) => Ok(()),
        List::Audit(_) => session.client.batch_execute("SET LOCAL enable_bitmapscan = on").await,
        _ => Ok(()),
    }
}

/// A list of one tenant runs under that tenant; one of all finds its tenants itself.
async fn set_tenant(session: &Session, what: &List) -> Result<(), Error> {
    let tenant = match what {
        List::Records { tenant, .. }
        | List::Audit(AuditFilter { tenant, .. })
        | List::Settled { tenant }
        | List::Marks { tenant, .. } => tenant.as_ref(),
        List::Due { .. } | List::Sweepable => None,
    };
    let Some(tenant) = tenant else { return Ok(()) };
    let tenant = text_column(tenant);
    session.client.execute(session.prepared(Sql::SetTenant), &[&tenant]).await.map(drop)
}

async fn select(
    session: &Session,
    what: &List,
    start: &Start,
    now: At,
    take: i64,
) -> Result<Vec<Row>, Error> {
    match what {
        List::Records { tenant, scope, state } => {
            let (scope, state) = (scope.as_deref(), state.map(state_code));
            match tenant {
                Some(tenant) => of_tenant(session, tenant, scope, state, start.key(), take).await,
                None => of_all(session, scope, state, start.key(), take).await,
            }
        }
        // In one statement of its own.
        List::Due { .. } => Ok(Vec::new()),
        List::Sweepable => sweepable(session, start, now, take).await,
        List::Marks { tenant: Some(tenant), prefix } => {
            marks(session, tenant, prefix, start.mark(), take).await
        }
        List::Marks { tenant: None, prefix } => {
            marks_of_all(session, prefix, start.mark(), take).await
        }
        List::Audit(filter) => audit(session, filter, false, start, take).await,
        List::Settled { tenant } => {
            let filter = AuditFilter { tenant: tenant.clone(), ..AuditFilter::default() };
            audit(session, &filter, true, start, take).await
        }
    }
}

async fn of_all(
    session: &Session,
    scope: Option<&str>,
    state: Option<i16>,
    after: Option<&Key>,
    take: i64,
) -> Result<Vec<Row>, Error> {
    let tenant = after.map_or("", |key| key.tenant_column());
    let kind = after.map_or(-1, |key| kind_code(key.kind()));
    let name = after.map_or("", |key| key.name_column());
    let scope = scope.map(text_column);
    let values: [Value<'_>; 6] = [
        (&tenant, Type::TEXT),
        (&kind, Type::INT2),
        (&name, Type::TEXT),
        (&scope, Type::TEXT),
        (&state, Type::INT2),
        (&take, Type::INT8),
    ];
    session.client.query_typed(sql::LIST_RECORDS, &values).await
}

/// Names of a scope lie between `scope:` and `scope;`, the next character.
async fn of_tenant(
    session: &Session,
    tenant: &str,
    scope: Option<&str>,
    state: Option<i16>,
    after: Option<&Key>,
    take: i64,
) -> Result<Vec<Row>, Error> {
    // The cursor's tenant may differ from the one that is asked for, as it may in the oracle.
    let order = after.map(|key| key.tenant_column().cmp(tenant));
    let first = scope.map(|scope| format!("{}:", text_column(scope))).unwrap_or_default();
    let end = scope.map(|scope| format!("{};", text_column(scope)));
    let above = Kind::ALL.map(|kind| {
        let start = match (order, after) {
            (Some(Ordering::Greater), _) => return None,
            (Some(Ordering::Equal), Some(key)) if key.kind() > kind => return None,
            (Some(Ordering::Equal), Some(key)) if key.kind() == kind => key.name_column(),
            _ => "",
        };
        Some(start.max(first.as_str()))
    });
    let above = &above[..];
    let tenant = text_column(tenant);
    let values: [Value<'_>; 5] = [
        (&tenant, Type::TEXT),
        (&above, Type::TEXT_ARRAY),
        (&end, Type::TEXT),
        (&state, Type::INT2),
        (&take, Type::INT8),
    ];
    session.client.query_typed(sql::LIST_RECORDS_OF_TENANT, &values).await
}

/// Due jobs come with their now and their payloads in one call: a worker waits for it.
async fn due(
    session: &Session,
    queue: &str,
    start: &Start,
    limit: usize,
) -> Result<(At, Vec<Row>), StoreError> {
    let take = one_more(limit);
    let (priority, due_at, tenant, _, name) = start.place();
    let queue = text_column(queue);
    let values: [&(dyn ToSql + Sync); 7] =
        [&queue, &priority, &due_at, &tenant, &name, &take, &PAYLOAD_LISTED_BYTES];
    let listed = session.flight(session.client.query(session.prepared(Sql::ListDue), &values));
    let listed = listed.await.and_then(|rows| Ok(rows?)).map_err(Failure::into_store_error)?;
    let mut placed = Vec::with_capacity(listed.len());
    for row in listed {
        placed.push((rows::place_column(&row)?, row));
    }
    // Each tenant's come together.
    placed.sort_unstable_by_key(|(place, _)| *place);
    let mut rows = placed.into_iter().map(|(_, row)| row);
    let Some(first) = rows.next() else {
        return Err(StoreError::Corrupt("a list came without an instant".into()));
    };
    Ok((rows::now(&first)?, rows.collect()))
}

/// One row more than a page holds tells whether another page follows.
fn one_more(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}

async fn sweepable(
    session: &Session,
    start: &Start,
    now: At,
    take: i64,
) -> Result<Vec<Row>, Error> {
    let now = instant(now);
    let (_, sweep_at, tenant, kind, name) = start.place();
    let values: [Value<'_>; 6] = [
        (&sweep_at, Type::INT8),
        (&tenant, Type::TEXT),
        (&kind, Type::INT2),
        (&name, Type::TEXT),
        (&now, Type::INT8),
        (&take, Type::INT8),
    ];
    session.client.query_typed(sql::LIST_SWEEPABLE, &values).await
}

async fn marks(
    session: &Session,
    tenant: &str,
    prefix: &str,
    after: Option<&Subject>,
    take: i64,
) -> Result<Vec<Row>, Error> {
    let (tenant, prefix) = (text_column(tenant), text_column(prefix));
    let after = after.map(Subject::name_column);
    let end = end_of(&prefix);
    let values: [Value<'_>; 5] = [
        (&tenant, Type::TEXT),
        (&prefix, Type::TEXT),
        (&after, Type::TEXT),
        (&end, Type::TEXT),
        (&take, Type::INT8),
    ];
    session.client.query_typed(sql::LIST_MARKS, &values).await
}

async fn marks_of_all(
    session: &Session,
    prefix: &str,
    after: Option<&Subject>,
    take: i64,
) -> Result<Vec<Row>, Error> {
    let prefix = text_column(prefix);
    let tenant = after.map_or("", Subject::tenant_column);
    let name = after.map_or("", Subject::name_column);
    let values: [Value<'_>; 4] =
        [(&tenant, Type::TEXT), (&name, Type::TEXT), (&prefix, Type::TEXT), (&take, Type::INT8)];
    session.client.query_typed(sql::LIST_MARKS_OF_ALL, &values).await
}

async fn audit(
    session: &Session,
    filter: &AuditFilter,
    settled: bool,
    start: &Start,
    take: i64,
) -> Result<Vec<Row>, Error> {
    let (xact, id) = if let Start::Entry(xact, id) = start { (*xact, *id) } else { (0, 0) };
    let xact = xact.to_string();
    let AuditFilter { tenant, subject, key_hash, action, from, to } = filter;
    let texts = [subject, key_hash, action].map(|text| text.as_deref().map(text_column));
    let (from, to) = (from.map(instant), to.map(instant));
    let tenant = tenant.as_deref().map(text_column);
    let mut values: Vec<Value<'_>> = vec![(&xact, Type::TEXT), (&id, Type::INT8)];
    let statement = match &tenant {
        Some(tenant) => {
            values.push((tenant, Type::TEXT));
            sql::LIST_AUDIT
        }
        None => sql::LIST_AUDIT_OF_ALL,
    };
    values.extend([
        (&texts[0] as &(dyn ToSql + Sync), Type::TEXT),
        (&texts[1], Type::TEXT),
        (&texts[2], Type::TEXT),
        (&from, Type::INT8),
        (&to, Type::INT8),
        (&settled, Type::BOOL),
        (&take, Type::INT8),
    ]);
    session.client.query_typed(statement, &values).await
}

/// The first text above all that start with this; none when there is no such text.
fn end_of(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // Steps over the surrogates, which are no characters.
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::end_of;

    #[test]
    fn a_prefix_ends_where_nothing_starts_with_it() {
        assert_eq!(end_of("ab").as_deref(), Some("ac"));
        assert_eq!(end_of("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(end_of("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(end_of("\u{10FFFF}"), None);
        assert_eq!(end_of(""), None);
    }
}
