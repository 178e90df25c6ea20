//! Lists, a page at a time, each along an index.
//!
//! Cursors mean what the memory store's mean: the place of the last item in the order of the list,
//! so that what was taken in between is gone and the rest follows. A page is filled with one item
//! more than was asked for; that one tells whether there is a next page.

use onceward_core::Bytes;
use onceward_core::audit::Audited;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Record, State};
use onceward_core::seal::{Place, Settled};
use onceward_core::stamp::At;
use rusqlite::types::{Null, Value};
use rusqlite::{CachedStatement, Connection, Row};

use super::super::{AuditFilter, Cursor, Items, List, Page, StoreError};
use super::failure::Failure;
use super::places::Places;
use super::reader::Ask;
use super::rows::{self, instant, kind_code, state_code};
use super::sql;

/// Payloads up to this size come with the list of due jobs.
const PAYLOAD_LISTED_BYTES: i64 = 4_096;

/// Lists what is asked for.
pub(super) fn list(
    connection: &Connection,
    now: At,
    indexed: i64,
    places: &Places,
    ask: &Ask,
) -> Result<Page, Failure> {
    let Ask { what, after, limit } = ask;
    let after = after.as_ref().map(|cursor| cursor.0.as_str());
    // One more than asked for; SQLite counts in signed numbers.
    let most = limit.saturating_add(1).min(i64::MAX as usize);
    let (items, next) = match what {
        List::Records { tenant, scope, state } => {
            let after = after.map(Key::parse).transpose().map_err(|_| StoreError::bad_cursor())?;
            let wanted = Wanted { scope: scope.as_deref(), state: *state, most, indexed };
            let found = match tenant {
                Some(tenant) => records_of_tenant(connection, tenant, after.as_ref(), &wanted)?,
                None => all_records(connection, after.as_ref(), &wanted)?,
            };
            page_of(found, *limit, |record| record.key.to_string())
        }
        List::Due { queue } => {
            let after = after.map(read_place).transpose()?;
            let (found, rows) = due(connection, queue, now, after.as_ref(), most)?;
            // Whoever is listed is about to be written; where the young ones are is known.
            let old = found.iter().zip(&rows).filter(|(_, at)| at.id <= indexed);
            places.note(old.map(|(record, at)| (&record.key, at.id)));
            let payload_ids = rows.iter().map(|at| at.payload_id);
            let payloads = payloads(connection, found.iter().zip(payload_ids).take(*limit))?;
            let place = |record: &Record| place(record.priority, record.due_at, &record.key);
            let (items, next) = page_of(found, *limit, place);
            return Ok(Page { now, items: Items::Records(items), payloads, next });
        }
        List::Sweepable => {
            let after = after.map(read_place).transpose()?;
            let found = sweepable(connection, now, after.as_ref(), most)?;
            page_of(found, *limit, |record| place(0, record.sweep_at, &record.key))
        }
        List::Marks { tenant, prefix } => {
            let wanted = (tenant.as_deref(), prefix.as_str());
            let (items, next) = marks(connection, wanted, after, most, *limit)?;
            return Ok(Page { now, items, payloads: Vec::new(), next });
        }
        List::Audit(filter) => {
            let (items, next) = audit(connection, filter, after, most, *limit)?;
            return Ok(Page { now, items, payloads: Vec::new(), next });
        }
        List::Settled { tenant } => {
            let (items, next) = settled(connection, tenant.as_ref(), after, signed(*limit))?;
            return Ok(Page { now, items, payloads: Vec::new(), next });
        }
    };
    Ok(Page { now, items: Items::Records(items), payloads: Vec::new(), next })
}

/// Which records are wanted, and how many at most.
struct Wanted<'a> {
    scope: Option<&'a str>,
    state: Option<State>,
    most: usize,
    /// Records behind this one are young: not in the index of names.
    indexed: i64,
}

fn all_records(
    connection: &Connection,
    after: Option<&Key>,
    wanted: &Wanted<'_>,
) -> Result<Vec<Record>, Failure> {
    let (tenant, kind, name) = place_columns(after);
    let scope = wanted.scope.map(|scope| format!("{scope}:"));
    let state = wanted.state.map(state_code);
    let most = signed(wanted.most);
    let mut select = connection.prepare_cached(sql::LIST_RECORDS)?;
    let named = collect(select.query((tenant, kind, name, state, &scope, most))?)?;
    let mut select = connection.prepare_cached(sql::LIST_YOUNG)?;
    let young = select.query((tenant, kind, name, state, &scope, most, wanted.indexed))?;
    Ok(merge(named, collect(young)?, wanted.most))
}

/// The first of two lists in the order of keys. A record that is in both is on its way from the one
/// to the other.
fn merge(mut named: Vec<Record>, mut young: Vec<Record>, most: usize) -> Vec<Record> {
    if !young.is_empty() {
        named.append(&mut young);
        named.sort_by(|one, other| one.key.cmp(&other.key));
        named.dedup_by(|one, other| one.key == other.key);
        named.truncate(most);
    }
    named
}

/// Walks the kinds one after the other: within each, a range of names is a range of the index.
fn records_of_tenant(
    connection: &Connection,
    tenant: &str,
    after: Option<&Key>,
    wanted: &Wanted<'_>,
) -> Result<Vec<Record>, Failure> {
    let mut select = connection.prepare_cached(sql::LIST_RECORDS_OF_TENANT)?;
    let mut select_young = connection.prepare_cached(sql::LIST_YOUNG_OF_TENANT)?;
    let mut records = Vec::new();
    if after.is_some_and(|after| after.tenant_column() > tenant) {
        return Ok(records);
    }
    let after = after.filter(|after| after.tenant_column() == tenant);
    let state = wanted.state.map(state_code);
    for kind in Kind::ALL {
        if records.len() >= wanted.most || after.is_some_and(|after| kind < after.kind()) {
            continue;
        }
        // `;` follows `:`, so this is where the names of a scope end. Without a scope they end at
        // the first blob, which SQLite sorts behind every text.
        let end = match wanted.scope {
            Some(scope) => Value::Text(format!("{scope};")),
            None => Value::Blob(Vec::new()),
        };
        let mut start = wanted.scope.map_or_else(String::new, |scope| format!("{scope}:"));
        if let Some(after) = after.filter(|after| after.kind() == kind) {
            start = start.max(just_after(after.name_column()));
        }
        let left = wanted.most - records.len();
        let (kind, most) = (kind_code(kind), signed(left));
        let named = collect(select.query((tenant, kind, &start, &end, state, most))?)?;
        let young = (tenant, kind, &start, &end, state, most, wanted.indexed);
        let young = collect(select_young.query(young)?)?;
        records.append(&mut merge(named, young, left));
    }
    Ok(records)
}

/// Where a listed job and its payload are.
struct DueRow {
    id: i64,
    payload_id: Option<i64>,
}

fn due(
    connection: &Connection,
    queue: &str,
    now: At,
    after: Option<&(u8, At, Key)>,
    most: usize,
) -> Result<(Vec<Record>, Vec<DueRow>), Failure> {
    let mut next_priority = connection.prepare_cached(sql::NEXT_PRIORITY)?;
    let mut select = connection.prepare_cached(sql::LIST_DUE)?;
    let (mut records, mut rows_at) = (Vec::new(), Vec::new());
    let mut after = after.map(RawPlace::of);
    let mut below = after.as_ref().map_or(i64::from(u8::MAX) + 1, |after| after.priority + 1);
    while records.len() < most {
        let next: Option<i64> = next_priority.query_row((queue, below), |row| row.get(0))?;
        let Some(priority) = next else { break };
        let within = after.as_ref().filter(|after| after.priority == priority);
        let (from, tenant, kind, name) = raw_columns(within.map(|after| (after.due_at, after)));
        let left = most - records.len();
        let found = select.query((
            queue,
            priority,
            instant(now),
            from,
            tenant,
            kind,
            name,
            signed(left),
        ))?;
        let behind = each_sound(found, left, |row, record| {
            let payload_id = rows::listed_payload(row)?;
            rows_at.push(DueRow { id: rows::listed_id(row)?, payload_id });
            records.push(record);
            Ok(())
        })?;
        match behind {
            Some(behind) => after = Some(behind),
            None => below = priority,
        }
    }
    Ok((records, rows_at))
}

/// The payloads of listed jobs, but for large and damaged ones: whoever takes those is told when he
/// looks them up.
fn payloads<'r>(
    connection: &Connection,
    jobs: impl Iterator<Item = (&'r Record, Option<i64>)>,
) -> Result<Vec<Option<Bytes>>, Failure> {
    let mut select = connection.prepare_cached(sql::LOAD_SMALL_PAYLOAD)?;
    let payload = |(record, id): (&Record, Option<i64>)| {
        let Some(id) = id else { return Ok(None) };
        let mut found = select.query((id, PAYLOAD_LISTED_BYTES))?;
        let Some(row) = found.next()? else { return Ok(None) };
        match rows::read_payload(row, &record.key) {
            Err(Failure::Corrupt(_)) => Ok(None),
            read => read.map(Some),
        }
    };
    jobs.map(payload).collect()
}

fn sweepable(
    connection: &Connection,
    now: At,
    after: Option<&(u8, At, Key)>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let mut select = connection.prepare_cached(sql::LIST_SWEEPABLE)?;
    let mut after = after.map(RawPlace::of);
    let mut records = Vec::new();
    loop {
        let place = after.as_ref().map(|after| (after.sweep_at, after));
        let (from, tenant, kind, name) = raw_columns(place);
        let left = most - records.len();
        let found = select.query((instant(now), from, tenant, kind, name, signed(left)))?;
        let behind = each_sound(found, left, |_, record| {
            records.push(record);
            Ok(())
        })?;
        let Some(behind) = behind else { return Ok(records) };
        after = Some(behind);
    }
}

fn marks(
    connection: &Connection,
    (tenant, prefix): (Option<&str>, &str),
    after: Option<&str>,
    most: usize,
    limit: usize,
) -> Result<(Items, Option<Cursor>), Failure> {
    let after = List::mark_after(tenant, after)?;
    let mut select: CachedStatement<'_>;
    let mut found = match (tenant, &after) {
        (Some(tenant), after) => {
            let behind = after.as_ref().map(|after| just_after(after.name_column()));
            let start = behind.unwrap_or_default().max(prefix.to_string());
            select = connection.prepare_cached(sql::LIST_MARKS)?;
            select.query((tenant, start, signed(most)))?
        }
        (None, after) => {
            let after = after.as_ref();
            let place =
                after.map_or(("", ""), |after| (after.tenant_column(), after.name_column()));
            select = connection.prepare_cached(sql::LIST_MARKS_OF_ALL)?;
            select.query((place.0, place.1, prefix, signed(most)))?
        }
    };
    let mut items = Vec::new();
    while let Some(row) = found.next()? {
        let name = rows::text(row, 0)?;
        if !name.starts_with(prefix) {
            break;
        }
        let subject = Subject::from_columns(rows::text(row, 5)?, name).map_err(StoreError::from)?;
        let mark = rows::read_mark(row, 1, &subject)?;
        items.push((subject, mark));
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| more);
    let next = last.map(|(subject, _)| List::mark_cursor(tenant, subject));
    Ok((Items::Marks(items), next))
}

/// One writer numbers and commits entries in one order: a number is a place.
fn settled(
    connection: &Connection,
    tenant: Option<&String>,
    after: Option<&str>,
    limit: i64,
) -> Result<(Items, Option<Cursor>), Failure> {
    let filter = AuditFilter { tenant: tenant.cloned(), ..AuditFilter::default() };
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let (items, _) = audit(connection, &filter, after, most, most)?;
    let Items::Audit(entries) = items else { return Ok((Items::Settled(Vec::new()), None)) };
    let next = entries.last().map(audit_cursor);
    let places = entries.into_iter();
    let items = places.map(|audited| Settled { place: Place(0, audited.id), audited }).collect();
    Ok((Items::Settled(items), next))
}

/// The number of the last entry and its instant, which is where the index goes on.
fn audit_cursor(last: &Audited) -> Cursor {
    Cursor(format!("{} {}", last.id, instant(last.at)))
}

/// A page ends with [`audit_cursor`].
fn audit(
    connection: &Connection,
    filter: &AuditFilter,
    after: Option<&str>,
    most: usize,
    limit: usize,
) -> Result<(Items, Option<Cursor>), Failure> {
    let (last, last_at) = match after {
        None => (0, i64::MIN),
        Some(text) => text
            .split_once(' ')
            .and_then(|(id, at)| Some((id.parse::<i64>().ok()?, at.parse::<i64>().ok()?)))
            .ok_or_else(StoreError::bad_cursor)?,
    };
    let from = filter.from.map_or(i64::MIN, instant);
    let to = filter.to.map_or(i64::MAX, instant);
    let (subject, key_hash, action) = (&filter.subject, &filter.key_hash, &filter.action);
    let most = signed(most);
    let mut select: CachedStatement<'_>;
    let mut found = match &filter.tenant {
        Some(tenant) => {
            select = connection.prepare_cached(sql::LIST_AUDIT_OF_TENANT)?;
            select.query((tenant, last, from, to, subject, key_hash, action, most, last_at))?
        }
        None => {
            select = connection.prepare_cached(sql::LIST_AUDIT)?;
            select.query((Null, last, from, to, subject, key_hash, action, most))?
        }
    };
    let mut items = Vec::new();
    while let Some(row) = found.next()? {
        items.push(rows::read_audit(row)?);
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(audit_cursor);
    Ok((Items::Audit(items), next))
}

fn collect(mut found: rusqlite::Rows<'_>) -> Result<Vec<Record>, Failure> {
    let mut records = Vec::new();
    while let Some(row) = found.next()? {
        records.push(rows::read_listed(row as &Row<'_>)?);
    }
    Ok(records)
}

/// Where a row lies in the lists of due jobs and of what is swept, whatever its columns hold.
struct RawPlace {
    priority: i64,
    due_at: i64,
    sweep_at: i64,
    tenant: String,
    kind: i64,
    name: String,
}

impl RawPlace {
    fn of((priority, at, key): &(u8, At, Key)) -> Self {
        let (tenant, kind, name) = place_columns(Some(key));
        Self {
            priority: (*priority).into(),
            due_at: instant(*at),
            sweep_at: instant(*at),
            tenant: tenant.into(),
            kind,
            name: name.into(),
        }
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let [priority, due_at, sweep_at] = rows::LISTED_PLACE;
        Ok(Self {
            priority: row.get(priority)?,
            due_at: row.get::<_, Option<i64>>(due_at)?.unwrap_or(i64::MIN),
            sweep_at: row.get::<_, Option<i64>>(sweep_at)?.unwrap_or(i64::MIN),
            tenant: row.get(rows::AFTER_RECORD)?,
            kind: row.get(rows::AFTER_RECORD + 1)?,
            name: row.get(rows::AFTER_RECORD + 2)?,
        })
    }
}

/// An instant and a key's columns to start behind, or what sorts before all.
fn raw_columns(place: Option<(i64, &RawPlace)>) -> (i64, &str, i64, &str) {
    place.map_or((i64::MIN, "", 0, ""), |(at, raw)| (at, &raw.tenant, raw.kind, &raw.name))
}

/// As [`collect`], but passes over damaged records: one of them must not stop a queue or the sweep
/// for everyone. Whoever looks at the record itself is told. Where `asked` rows came and not all of
/// them were sound, others follow behind the place of the last.
fn each_sound(
    mut found: rusqlite::Rows<'_>,
    asked: usize,
    mut each: impl FnMut(&Row<'_>, Record) -> Result<(), Failure>,
) -> Result<Option<RawPlace>, Failure> {
    let (mut came, mut all_sound) = (0, true);
    while let Some(row) = found.next()? {
        came += 1;
        match rows::read_listed(row) {
            Ok(record) => each(row, record)?,
            Err(failure) if failure.is_of_one_row() => all_sound = false,
            Err(failure) => return Err(failure),
        }
        if came == asked && !all_sound {
            // One of which not even this can be read ends the list.
            return Ok(RawPlace::read(row).ok());
        }
    }
    Ok(None)
}

fn page_of(
    mut records: Vec<Record>,
    limit: usize,
    cursor: impl Fn(&Record) -> String,
) -> (Vec<Record>, Option<Cursor>) {
    let more = records.len() > limit;
    records.truncate(limit);
    let next = records.last().filter(|_| more).map(|record| Cursor(cursor(record)));
    (records, next)
}

/// The first text that sorts behind `text`.
fn just_after(text: &str) -> String {
    format!("{text}\0")
}

/// A key's columns, or what sorts before every key.
fn place_columns(after: Option<&Key>) -> (&str, i64, &str) {
    after.map_or(("", 0, ""), |key| (key.tenant_column(), kind_code(key.kind()), key.name_column()))
}

fn place(priority: u8, at: Option<At>, key: &Key) -> String {
    format!("{priority} {} {key}", at.unwrap_or_default().0)
}

fn read_place(text: &str) -> Result<(u8, At, Key), StoreError> {
    let mut parts = text.splitn(3, ' ');
    let place = (|| {
        let priority = parts.next()?.parse().ok()?;
        let at = At(parts.next()?.parse().ok()?);
        Some((priority, at, Key::parse(parts.next()?).ok()?))
    })();
    place.ok_or_else(StoreError::bad_cursor)
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
