//! Lists of the memory store, a page at a time.
//!
//! Records and marks page by key, audit by number. Due and sweepable records page by their place in
//! the order, so that what was taken in between is gone from the list and the rest follows.

use std::cmp::Reverse;
use std::ops::Bound;

use onceward_core::audit::Audited;
use onceward_core::key::Key;
use onceward_core::record::Record;
use onceward_core::seal::{Place, Settled};
use onceward_core::stamp::At;

use super::super::{AuditFilter, Cursor, Items, List, Page, StoreError};
use super::MemoryState;

/// A page of what is listed, from a state and by a now.
pub(crate) fn list(
    state: &MemoryState,
    now: At,
    what: &List,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<Page, StoreError> {
    let (items, next) = match what {
        List::Records { tenant, scope, state: wanted } => {
            let after = after.map(|cursor| Key::parse(&cursor.0)).transpose();
            let after = after.map_err(|_| StoreError::bad_cursor())?;
            let fits = |record: &&Record| {
                tenant.as_ref().is_none_or(|tenant| record.key.tenant_column() == tenant)
                    && scope.as_ref().is_none_or(|scope| record.key.scope_column() == scope)
                    && wanted.is_none_or(|state| record.state == state)
            };
            page_of(state.records_after(after.as_ref()).filter(fits), limit, |r| r.key.to_string())
        }
        List::Due { queue } => {
            let place = |record: &Record| {
                (Reverse(record.priority), record.due_at.unwrap_or_default(), record.key.clone())
            };
            let after = after.map(|cursor| read_place(&cursor.0)).transpose()?;
            let rest = state.due(queue, now).filter(|record| {
                after.as_ref().is_none_or(|(priority, at, key)| {
                    place(record) > (Reverse(*priority), *at, key.clone())
                })
            });
            page_of(rest, limit, |record| write_place(record.priority, record.due_at, &record.key))
        }
        List::Sweepable => {
            let after = after.map(|cursor| read_place(&cursor.0)).transpose()?;
            let rest = state.sweepable(now).filter(|record| {
                after.as_ref().is_none_or(|(_, at, key)| {
                    (record.sweep_at.unwrap_or_default(), &record.key) > (*at, key)
                })
            });
            page_of(rest, limit, |record| write_place(0, record.sweep_at, &record.key))
        }
        List::Marks { tenant, prefix } => {
            let tenant = tenant.as_deref();
            let after = List::mark_after(tenant, after.map(|cursor| cursor.0.as_str()))?;
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let mut found = state.marks_from(from).filter(|(subject, _)| {
                tenant.is_none_or(|tenant| subject.tenant_column() == tenant)
                    && subject.name_column().starts_with(prefix)
            });
            let items: Vec<_> =
                found.by_ref().take(limit).map(|(s, m)| (s.clone(), m.clone())).collect();
            let next = found.next().and(items.last());
            let next = next.map(|(subject, _)| List::mark_cursor(tenant, subject));
            (Items::Marks(items), next)
        }
        List::Audit(filter) => {
            let last = after.map_or(Ok(0), |cursor| cursor.0.parse::<u64>());
            let last = last.map_err(|_| StoreError::bad_cursor())?;
            let mut found =
                state.audit().iter().filter(|entry| entry.id > last && fits(filter, entry));
            let items: Vec<_> = found.by_ref().take(limit).cloned().collect();
            let next = found.next().and(items.last()).map(|entry| Cursor(entry.id.to_string()));
            (Items::Audit(items), next)
        }
        List::Settled { tenant } => {
            let last = after.map_or(Ok(0), |cursor| cursor.0.parse::<u64>());
            let last = last.map_err(|_| StoreError::bad_cursor())?;
            let wanted = AuditFilter { tenant: tenant.clone(), ..AuditFilter::default() };
            let found =
                state.audit().iter().filter(|entry| entry.id > last && fits(&wanted, entry));
            let items: Vec<_> = found
                .take(limit)
                .map(|audited| Settled { place: Place(0, audited.id), audited: audited.clone() })
                .collect();
            let next = items.last().map(|settled| Cursor(settled.place.1.to_string()));
            (Items::Settled(items), next)
        }
    };
    Ok(Page { now, items, payloads: Vec::new(), next })
}

/// Whether an entry is wanted.
fn fits(filter: &AuditFilter, audited: &Audited) -> bool {
    let entry = &audited.entry;
    let same = |wanted: &Option<String>, is: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| is == Some(wanted))
    };
    same(&filter.tenant, Some(&entry.tenant))
        && same(&filter.subject, entry.subject.as_deref())
        && same(&filter.key_hash, entry.key_hash.as_deref())
        && same(&filter.action, Some(&entry.action))
        && filter.from.is_none_or(|from| audited.at >= from)
        && filter.to.is_none_or(|to| audited.at < to)
}

fn write_place(priority: u8, at: Option<At>, key: &Key) -> String {
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

fn page_of<'a>(
    mut found: impl Iterator<Item = &'a Record>,
    limit: usize,
    cursor: impl Fn(&Record) -> String,
) -> (Items, Option<Cursor>) {
    let items: Vec<Record> = found.by_ref().take(limit).cloned().collect();
    let next = found.next().and(items.last()).map(|record| Cursor(cursor(record)));
    (Items::Records(items), next)
}
