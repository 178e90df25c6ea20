//! Lists, a page at a time, each along a partition or an index.
//!
//! Records and marks of a tenant are read from their partitions and are current; those of all
//! tenants walk the list of tenants. Due and sweepable records come from indexes that trail behind,
//! each in a few partitions that are read side by side. Cursors mean what the memory store's mean:
//! the place of the last item in the order of the list. A page is filled with one item more than
//! was asked for; that one tells whether there is a next page.

use futures_util::future::try_join_all;
use onceward_core::key::{Key, Subject};
use onceward_core::record::Record;
use onceward_core::stamp::At;

use super::super::{Cursor, Items, List, StoreError};
use super::failure::Failure;
use super::names::{self, INDEX_SHARDS};
use super::ops::Item;
use super::records::{self, Wanted};
use super::table::{Query, Range, Table};
use super::{entries, reader, rows, stamps};

/// Most items that one request looks at.
pub(super) const LOOK_MAX: usize = 1_000;

/// Tenants, and users of one of them, that are read from their list at once.
pub(super) const LISTED_PAGE: usize = 100;

/// A page and where the next one starts.
pub(super) type Listed = (Items, Option<Cursor>);

/// Lists what is asked for.
pub(super) async fn list(
    table: &Table,
    settled_ms: u64,
    what: &List,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Listed, Failure> {
    let after = after.map(|cursor| cursor.0.as_str());
    let most = limit.saturating_add(1);
    let bad = |_| StoreError::bad_cursor();
    let listed = match what {
        List::Records { tenant, scope, state } => {
            let after = after.map(Key::parse).transpose().map_err(bad)?;
            let wanted = Wanted { scope: scope.as_deref(), state: *state };
            let found = match tenant {
                Some(tenant) => {
                    records::of_tenant(table, tenant, after.as_ref(), wanted, most).await?
                }
                None => records::of_all(table, after.as_ref(), wanted, most).await?,
            };
            page(found, limit, |record| record.key.to_string())
        }
        List::Due { queue } => {
            let after = after.map(due_place).transpose()?;
            let found = due(table, queue, after, most).await?;
            page(found, limit, |record| {
                let at = record.due_at.unwrap_or_default().0;
                names::due_index(&record.key, record.priority, at).1
            })
        }
        List::Sweepable => {
            let after = after.map(sweep_place).transpose()?;
            let found = sweepable(table, after, most).await?;
            page(found, limit, |record| {
                names::sweep_index(&record.key, record.sweep_at.unwrap_or_default().0).1
            })
        }
        List::Marks { tenant, prefix } => {
            marks(table, (tenant.as_deref(), prefix), after, limit).await?
        }
        List::Audit(filter) => entries::audit(table, filter, after, limit).await?,
        List::Settled { tenant } => {
            entries::settled(table, settled_ms, tenant.as_deref(), after, limit).await?
        }
    };
    stamps::notice_listed(table, &listed.0);
    Ok(listed)
}

fn page(mut found: Vec<Record>, limit: usize, cursor: impl Fn(&Record) -> String) -> Listed {
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|record| Cursor(cursor(record)));
    (Items::Records(found), next)
}

/// Where a walk along names begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Begin<'a> {
    Start,
    At(&'a str),
    After(&'a str),
}

impl<'a> Begin<'a> {
    /// The first name to look at.
    fn name(self) -> &'a str {
        match self {
            Self::Start => "",
            Self::At(name) | Self::After(name) => name,
        }
    }

    /// Whether a name is on the way.
    fn takes(self, name: &str) -> bool {
        match self {
            Self::Start => true,
            Self::At(first) => name >= first,
            Self::After(last) => name > last,
        }
    }
}

/// Items of a partition in the order of their names, those that start with a text. Names that were
/// cut are read until all that were cut alike are there, and sorted by what they are in full.
pub(super) async fn named(
    table: &Table,
    mut query: Query,
    prefix: &str,
    (starts, from): (&str, Begin<'_>),
    most: usize,
) -> Result<Vec<(String, Item)>, Failure> {
    let first = from.name().max(starts);
    query.range = Range::From(format!("{prefix}{}", names::start_of(first)));
    // What a filter leaves out is looked at all the same.
    let filtered = query.values.contains_key(":state");
    query.limit = if filtered { LOOK_MAX } else { most.saturating_add(1).min(LOOK_MAX) };
    let mut found: Vec<(String, Item)> = Vec::new();
    let mut next = None;
    loop {
        let (items, more) = table.query(&query, next).await?;
        let mut ended = more.is_none();
        let mut last = None;
        for item in items {
            let place = rows::place(&item)?;
            let stored = place.sk.strip_prefix(prefix).unwrap_or_default();
            let name = names::read_name(stored, rows::text(&item, "name")?);
            let name = name.ok_or_else(|| Failure::corrupt("the name of a listed item"))?;
            let name = name.to_string();
            let beyond = names::start_of(&name) > starts && !begins_alike(&name, starts);
            ended |= beyond;
            if !beyond && name.starts_with(starts) && from.takes(&name) {
                found.push((name.clone(), item));
            }
            last = Some(name);
        }
        if ended || found.len() >= most && !last.is_some_and(|last| open(&last, &found, most)) {
            break;
        }
        next = more;
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.truncate(most);
    Ok(found)
}

/// Whether a name that may have been cut can still start with a text.
fn begins_alike(name: &str, starts: &str) -> bool {
    name.starts_with(starts) || starts.starts_with(names::start_of(name))
}

/// Whether names that were cut like the last one seen are among the first `most`.
fn open(last: &str, found: &[(String, Item)], most: usize) -> bool {
    names::is_cut(last)
        && found.iter().take(most).any(|(name, _)| names::start_of(name) == names::start_of(last))
}

/// A page of the list of tenants, in the order of their names. The last page is a short one.
pub(super) async fn tenants(table: &Table, from: Begin<'_>) -> Result<Vec<String>, Failure> {
    let (partition, prefix) = names::TENANTS;
    let query = Query { partition: partition.into(), ..Query::default() };
    let found = named(table, query, prefix, ("", from), LISTED_PAGE).await?;
    Ok(found.into_iter().map(|(tenant, _)| tenant).collect())
}

async fn marks(
    table: &Table,
    (tenant, prefix): (Option<&str>, &str),
    after: Option<&str>,
    limit: usize,
) -> Result<Listed, Failure> {
    let after = List::mark_after(tenant, after)?;
    let most = limit.saturating_add(1);
    let mut found = match tenant {
        Some(tenant) => marks_of_tenant(table, (tenant, prefix), after.as_ref(), most).await?,
        None => marks_of_all(table, prefix, after.as_ref(), most).await?,
    };
    let more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| more);
    let next = last.map(|(subject, _)| List::mark_cursor(tenant, subject));
    let items = found.into_iter().map(|(subject, item)| async move {
        let mark = reader::listed_mark(table, &subject, &item).await?;
        Ok::<_, Failure>(mark.map(|mark| (subject, mark)))
    });
    let items = try_join_all(items).await?;
    Ok((Items::Marks(items.into_iter().flatten().collect()), next))
}

async fn marks_of_tenant(
    table: &Table,
    (tenant, prefix): (&str, &str),
    after: Option<&Subject>,
    most: usize,
) -> Result<Vec<(Subject, Item)>, Failure> {
    let query = Query { partition: names::marks(tenant), ..Query::default() };
    let from = after.map_or(Begin::Start, |after| Begin::After(after.name_column()));
    let found = named(table, query, names::MARK, (prefix, from), most).await?;
    let read = |(name, item): (String, Item)| {
        let whole = names::is_cut(&name).then_some(name.as_str());
        let subject = names::read_subject(tenant, &rows::place(&item)?, whole);
        let subject = subject.ok_or_else(|| Failure::corrupt("the name of a listed mark"))?;
        Ok((subject, item))
    };
    found.into_iter().map(read).collect()
}

/// Walks all tenants one after the other. Whoever has marks is on their list: it is written there
/// before the first of them.
async fn marks_of_all(
    table: &Table,
    prefix: &str,
    after: Option<&Subject>,
    most: usize,
) -> Result<Vec<(Subject, Item)>, Failure> {
    let mut found = Vec::new();
    let mut last: Option<String> = None;
    loop {
        let from = match (&last, after) {
            (Some(last), _) => Begin::After(last),
            (None, Some(after)) => Begin::At(after.tenant_column()),
            (None, None) => Begin::Start,
        };
        let mut page = tenants(table, from).await?;
        for tenant in &page {
            let after = after.filter(|after| after.tenant_column() == tenant);
            let left = most - found.len();
            found.extend(marks_of_tenant(table, (tenant, prefix), after, left).await?);
            if found.len() >= most {
                return Ok(found);
            }
        }
        if page.len() < LISTED_PAGE {
            return Ok(found);
        }
        last = page.pop();
    }
}

/// Reads the place of a due job: its digit, its instant and what follows.
fn due_place(cursor: &str) -> Result<&str, StoreError> {
    let rest = cursor.get(2..).filter(|_| cursor.as_bytes().get(1) == Some(&b'#'));
    let digit = cursor.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    match rest.map(sweep_place) {
        Some(Ok(_)) if digit => Ok(cursor),
        _ => Err(StoreError::bad_cursor()),
    }
}

/// Reads the place of a sweepable record: its instant and what follows.
fn sweep_place(cursor: &str) -> Result<&str, StoreError> {
    let (at, tie) = cursor.split_once('#').ok_or_else(StoreError::bad_cursor)?;
    if at.len() != 20 || !at.bytes().all(|byte| byte.is_ascii_digit()) || tie.is_empty() {
        return Err(StoreError::bad_cursor());
    }
    Ok(cursor)
}

/// Due jobs of a queue: the first of each of its partitions, merged.
async fn due(
    table: &Table,
    queue: &str,
    after: Option<&str>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let now = table.dates.now();
    let shards = (0..INDEX_SHARDS)
        .map(|shard| due_shard(table, names::due_partition(queue, shard), after, now, most));
    Ok(merge(try_join_all(shards).await?, most))
}

/// Walks one partition by priority. What is not due yet ends a priority, and the next is begun.
async fn due_shard(
    table: &Table,
    partition: String,
    after: Option<&str>,
    now: At,
    most: usize,
) -> Result<Vec<(String, Record)>, Failure> {
    let mut found = Vec::new();
    let mut from = after.unwrap_or("0#").to_string();
    loop {
        let range = Range::From(from.clone());
        let limit = most.saturating_add(1).saturating_sub(found.len()).min(LOOK_MAX);
        let query = Query {
            index: Some("due"),
            partition: partition.clone(),
            range,
            limit,
            ..Query::default()
        };
        let (items, more) = table.query(&query, None).await?;
        let mut jump = None;
        for item in items {
            let place = index_place(&item, "due_sk")?;
            let at = place.get(2..22).and_then(|at| at.parse().ok()).map(At);
            let at = at.ok_or_else(|| Failure::corrupt("the place of a due job"))?;
            if at > now {
                jump = Some(place.as_bytes()[0] + 1);
                break;
            }
            from.clone_from(&place);
            if after != Some(place.as_str()) && found.last().is_none_or(|(last, _)| *last != place)
            {
                found.extend(read_sound(&item)?.map(|record| (place, record)));
            }
        }
        match jump {
            _ if found.len() >= most => return Ok(found),
            Some(digit @ b'0'..=b'9') => from = format!("{}#", char::from(digit)),
            Some(_) => return Ok(found),
            None if more.is_none() => return Ok(found),
            None => {}
        }
    }
}

async fn sweepable(
    table: &Table,
    after: Option<&str>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let now = table.dates.now();
    let shards = (0..INDEX_SHARDS).map(|shard| async move {
        let low = after.unwrap_or("0").to_string();
        let high = format!("{:020}", now.0.saturating_add(1));
        let mut found = Vec::new();
        if low > high {
            return Ok::<_, Failure>(found);
        }
        let query = Query {
            index: Some("sweep"),
            partition: names::sweep_partition(shard),
            range: Range::Between(low, high),
            limit: most.saturating_add(1).min(LOOK_MAX),
            ..Query::default()
        };
        let mut next = None;
        loop {
            let (items, more) = table.query(&query, next).await?;
            for item in items {
                let place = index_place(&item, "sweep_sk")?;
                if after != Some(place.as_str()) {
                    found.extend(read_sound(&item)?.map(|record| (place, record)));
                }
            }
            if more.is_none() || found.len() >= most {
                return Ok(found);
            }
            next = more;
        }
    });
    Ok(merge(try_join_all(shards).await?, most))
}

fn index_place(item: &Item, name: &str) -> Result<String, Failure> {
    let place = rows::text(item, name)?;
    place.map(Into::into).ok_or_else(|| Failure::corrupt("an indexed item without its place"))
}

/// The first records of several partitions, in the order of their places.
fn merge(shards: Vec<Vec<(String, Record)>>, most: usize) -> Vec<Record> {
    let mut found: Vec<_> = shards.into_iter().flatten().collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.truncate(most);
    found.into_iter().map(|(_, record)| record).collect()
}

/// An indexed record. A damaged one is left out: it must not keep the others from being taken or
/// swept, and whoever loads it is told.
fn read_sound(item: &Item) -> Result<Option<Record>, Failure> {
    match rows::read_listed(item) {
        Err(Failure::Store(StoreError::Corrupt(_))) => Ok(None),
        read => read,
    }
}
