//! Lists of the memory store, a page at a time.
//!
//! Records and marks page by key, audit by number. Due and sweepable records page by the key of the
//! last one: what was taken in between is gone from the list, and the rest follows.

use std::ops::Bound;

use onceward_core::audit::Audited;
use onceward_core::key::{Key, Subject};
use onceward_core::record::Record;
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
            let after = after.map(|cursor| Key::parse(&cursor.0)).transpose()?;
            let fits = |record: &&Record| {
                tenant.as_ref().is_none_or(|tenant| record.key.tenant_column() == tenant)
                    && scope.as_ref().is_none_or(|scope| record.key.scope_column() == scope)
                    && wanted.is_none_or(|state| record.state == state)
            };
            page_of_records(state.records_after(after.as_ref()).filter(fits), limit)
        }
        List::Due { queue } => page_of_records(skip_past(state.due(queue, now), after), limit),
        List::Sweepable => page_of_records(skip_past(state.sweepable(now), after), limit),
        List::Marks { tenant, prefix } => {
            let from = match after {
                Some(Cursor(name)) => Bound::Excluded(Subject::from_columns(tenant, name)?),
                None => Bound::Unbounded,
            };
            let mut found = state.marks_from(from).filter(|(subject, _)| {
                subject.tenant_column() == tenant && subject.name_column().starts_with(prefix)
            });
            let items: Vec<_> =
                found.by_ref().take(limit).map(|(s, m)| (s.clone(), m.clone())).collect();
            let next = found.next().and(items.last());
            let next = next.map(|(subject, _)| Cursor(subject.name_column().to_string()));
            (Items::Marks(items), next)
        }
        List::Audit(filter) => {
            let last = after.map_or(Ok(0), |cursor| cursor.0.parse::<u64>());
            let last = last.map_err(|_| StoreError::NotApplied("unreadable cursor".into()))?;
            let mut found =
                state.audit().iter().filter(|entry| entry.id > last && fits(filter, entry));
            let items: Vec<_> = found.by_ref().take(limit).cloned().collect();
            let next = found.next().and(items.last()).map(|entry| Cursor(entry.id.to_string()));
            (Items::Audit(items), next)
        }
    };
    Ok(Page { now, items, next })
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

fn skip_past<'a>(
    records: impl Iterator<Item = &'a Record> + 'a,
    after: Option<&Cursor>,
) -> Box<dyn Iterator<Item = &'a Record> + 'a> {
    let Some(Cursor(last)) = after.cloned() else { return Box::new(records) };
    let mut all: Vec<_> = records.collect();
    if let Some(index) = all.iter().position(|record| record.key.to_string() == last) {
        all.drain(..=index);
    }
    Box::new(all.into_iter())
}

fn page_of_records<'a>(
    mut found: impl Iterator<Item = &'a Record>,
    limit: usize,
) -> (Items, Option<Cursor>) {
    let items: Vec<Record> = found.by_ref().take(limit).cloned().collect();
    let next = found.next().and(items.last()).map(|record| Cursor(record.key.to_string()));
    (Items::Records(items), next)
}
