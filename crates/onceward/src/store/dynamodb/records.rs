//! Records, listed in the order of tenant, kind and name: current, whatever the partitions.
//!
//! Jobs, events and appends of a tenant lie in a partition each. Requests lie in one, and beside it
//! in one per user, whose names in a scope all stand together in the order of the list: those are
//! read in the order in which the list of users has them, and the two walks are merged.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use onceward_core::key::{Key, Kind};
use onceward_core::record::{Record, State};

use super::announce;
use super::failure::Failure;
use super::list::{self, Begin, LISTED_PAGE, named};
use super::names;
use super::ops::{Item, text};
use super::rows;
use super::table::{Query, Table};

/// Users whose partitions are read side by side.
const USERS_AT_ONCE: usize = 16;

/// Which records are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) scope: Option<&'a str>,
    pub(super) state: Option<State>,
}

impl Wanted<'_> {
    /// What names start with.
    fn starts(self) -> String {
        self.scope.map_or_else(String::new, |scope| format!("{scope}:"))
    }

    /// What is asked of a partition.
    fn query(self, partition: String) -> Query {
        let mut query = Query {
            partition,
            filter: Some("attribute_not_exists(#gone)".into()),
            names: [("#gone".to_string(), "gone".to_string())].into(),
            wanted: rows::RECORD,
            ..Query::default()
        };
        if let Some(state) = self.state {
            query.filter = Some("attribute_not_exists(#gone) AND #state = :state".into());
            query.names.insert("#state".into(), "state".into());
            query.values.insert(":state".into(), text(state.as_str()));
        }
        query
    }
}

/// Walks the kinds one after the other: within each, names are in order.
pub(super) async fn of_tenant(
    table: &Table,
    tenant: &str,
    after: Option<&Key>,
    wanted: Wanted<'_>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let mut records = Vec::new();
    if after.is_some_and(|after| after.tenant_column() > tenant) {
        return Ok(records);
    }
    let after = after.filter(|after| after.tenant_column() == tenant);
    for kind in Kind::ALL {
        if records.len() >= most || after.is_some_and(|after| kind < after.kind()) {
            continue;
        }
        let after = after.filter(|after| after.kind() == kind);
        let from = after.map_or(Begin::Start, |after| Begin::After(after.name_column()));
        let (starts, left) = (wanted.starts(), most - records.len());
        let query = wanted.query(names::records(tenant, kind));
        let found = named(table, query, names::RECORD, (&starts, from), left).await?;
        let mut found = read(&found)?;
        if kind == Kind::Request {
            let end = found.last().filter(|_| found.len() >= left);
            let end = end.map(|record| record.key.clone());
            found.extend(of_users(table, (tenant, after, end.as_ref()), wanted, left).await?);
            found.sort_by(|one, other| one.key.cmp(&other.key));
            found.truncate(left);
        }
        records.extend(found);
    }
    Ok(records)
}

/// Walks all tenants one after the other.
pub(super) async fn of_all(
    table: &Table,
    after: Option<&Key>,
    wanted: Wanted<'_>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let mut records = Vec::new();
    let mut last: Option<String> = None;
    loop {
        let from = match (&last, after) {
            (Some(last), _) => Begin::After(last),
            (None, Some(after)) => Begin::At(after.tenant_column()),
            (None, None) => Begin::Start,
        };
        let mut tenants = list::tenants(table, from).await?;
        for tenant in &tenants {
            let left = most - records.len();
            records.extend(of_tenant(table, tenant, after, wanted, left).await?);
            if records.len() >= most {
                return Ok(records);
            }
        }
        if tenants.len() < LISTED_PAGE {
            return Ok(records);
        }
        last = tenants.pop();
    }
}

/// Requests of a tenant's users behind one key and up to another, at least the first `most`.
async fn of_users(
    table: &Table,
    (tenant, after, end): (&str, Option<&Key>, Option<&Key>),
    wanted: Wanted<'_>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let starts = wanted.starts();
    // The user whom the page before ended in, or the place between users where it did.
    let mut last: Option<String> = None;
    let first = after.map(|after| match names::lies(after).user {
        Some(user) => names::listed_user(tenant, after.scope_column(), user).1,
        None => after.name_column().to_string(),
    });
    let mut records = Vec::new();
    loop {
        let query = Query { partition: names::users(tenant), ..Query::default() };
        let from = match (&last, &first) {
            (Some(last), _) => Begin::After(last),
            (None, Some(first)) => Begin::At(first),
            (None, None) => Begin::Start,
        };
        let mut users = named(table, query, names::USER, (&starts, from), LISTED_PAGE).await?;
        let listed = users.len();
        last = users.last().map(|(name, _)| name.clone());
        users.retain(|(name, _)| end.is_none_or(|end| name.as_str() < end.name_column()));
        let ended = listed < LISTED_PAGE || users.len() < listed;
        let reads = users.iter().map(|(name, item)| {
            let after = after.filter(|after| after.name_column().starts_with(name.as_str()));
            of_user(table, tenant, (name, item), after, wanted, most)
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(USERS_AT_ONCE.min(most.max(1)));
        while let Some(found) = reads.try_next().await? {
            records.extend(found);
            if records.len() >= most {
                return Ok(records);
            }
        }
        if ended {
            return Ok(records);
        }
    }
}

/// Requests of one user in one scope. A user of old who has none is taken off the list.
async fn of_user(
    table: &Table,
    tenant: &str,
    (name, item): (&str, &Item),
    after: Option<&Key>,
    wanted: Wanted<'_>,
    most: usize,
) -> Result<Vec<Record>, Failure> {
    let listed = name.strip_suffix(':').and_then(|name| name.split_once(':'));
    let (scope, user) = listed.ok_or_else(|| Failure::corrupt("the name of a listed user"))?;
    let (partition, starts) = (names::user(tenant, user), format!("{scope}:"));
    let after = after.map(|after| names::lies(after).name);
    let from = after.as_deref().map_or(Begin::Start, Begin::After);
    let query = wanted.query(partition.clone());
    let found = named(table, query, names::RECORD, (&starts, from), most).await?;
    let announced_at = rows::number(item, announce::ANNOUNCED_AT)?.unwrap_or_default();
    if found.is_empty() && announce::is_old(announced_at, table.dates.now()) {
        // What was deleted lately is still there as a stamp, and counts.
        let any = Query { partition, wanted: &["PK", "SK", "name"], ..Query::default() };
        if named(table, any, names::RECORD, (&starts, Begin::Start), 1).await?.is_empty() {
            // Whoever may only read leaves it to others.
            let _ = announce::retire(table, rows::place(item)?, announced_at).await;
        }
    }
    read(&found)
}

fn read(found: &[(String, Item)]) -> Result<Vec<Record>, Failure> {
    let records = found.iter().map(|(_, item)| rows::read_listed(item));
    Ok(records.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}
