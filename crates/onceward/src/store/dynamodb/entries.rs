//! Audit entries, listed: a tenant's from its partitions, all tenants' from an index, and so those
//! about a user of a tenant, but for the young ones: of these the index may not know yet.
//!
//! Numbers rise with the store's date, so an instant bounds the numbers to look at. Rule for what
//! is settled: DynamoDB takes no request that was signed long ago, so below a number that was drawn
//! long enough ago nothing new can appear. What was pruned is left out, whether it is removed
//! already or not.

use std::collections::HashMap;

use futures_util::future::try_join_all;
use onceward_core::audit::Audited;
use onceward_core::seal::{Place as SettledPlace, Settled};
use onceward_core::stamp::At;

use super::super::{AuditFilter, Cursor, Items, StoreError};
use super::bodies;
use super::dates::AHEAD_MS;
use super::failure::Failure;
use super::list::{LOOK_MAX, Listed};
use super::names::{self, STAMP_SHARDS};
use super::ops::{Item, number, text};
use super::prune::{self, Pruned};
use super::rows;
use super::stamps::least_at;
use super::table::{Query, Range, Table};

/// How long entries about a user are read from the tenant's partitions: a quarter of an hour until
/// what drew its number then must have been written, and as long again for the index to hear of it.
const YOUNG_MS: u64 = 30 * 60 * 1_000;

/// Whose entries are looked at.
#[derive(Debug, Clone)]
enum Whose {
    All,
    Tenant(String),
    /// Those about a user, by its partition in the index.
    User(String),
}

/// Which numbers of which entries are looked at.
#[derive(Debug, Clone)]
struct Span {
    whose: Whose,
    /// The place of the last entry of the page before.
    after: Option<String>,
    least: u64,
    /// Below this.
    end: u64,
}

impl Whose {
    fn of(tenant: Option<&str>) -> Self {
        tenant.map_or(Self::All, |tenant| Self::Tenant(tenant.into()))
    }

    /// Partitions that they lie in.
    const fn shards(&self) -> u64 {
        match self {
            Self::All | Self::Tenant(_) => STAMP_SHARDS,
            Self::User(_) => 1,
        }
    }

    /// A look at numbers of one of the partitions, both ends included.
    fn query(&self, shard: u64, (low, high): (u64, u64)) -> Query {
        let (index, partition, place): (_, _, fn(u64) -> String) = match self {
            Self::All => (Some("audit"), names::audit_partition(shard), |id| format!("{id:020}")),
            Self::Tenant(tenant) => (None, names::audit(tenant, shard), names::entry_sk),
            Self::User(user) => (Some("user"), user.clone(), names::user_entry),
        };
        let range = Range::Between(place(low), place(high));
        Query { index, partition, range, ..Query::default() }
    }
}

/// Entries that a filter asks for.
pub(super) async fn audit(
    table: &Table,
    filter: &AuditFilter,
    after: Option<&str>,
    limit: usize,
) -> Result<Listed, Failure> {
    let after = after.map(read_cursor).transpose()?;
    let end = filter.to.map_or(u64::MAX, |to| least_at(to.plus(AHEAD_MS)));
    let tenant = filter.tenant.as_deref();
    let user = tenant.and_then(|tenant| names::user_partition(tenant, filter.subject.as_deref()?));
    let most = limit.saturating_add(1);
    let (mut found, mut more) = (Vec::new(), false);
    let mut least = filter.from.map_or(0, least_at);
    if let Some(user) = user {
        let young = least_at(At(table.dates.now().0.saturating_sub(YOUNG_MS)));
        let span =
            Span { whose: Whose::User(user), after: after.clone(), least, end: end.min(young) };
        (found, more) = walk(table, span, filter, most).await?;
        least = least.max(young);
    }
    if !more && found.len() < most {
        let span = Span { whose: Whose::of(tenant), after, least, end };
        let (rest, left) = walk(table, span, filter, most - found.len()).await?;
        found.extend(rest);
        more = left;
    }
    let more = more || found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(place, _)| Cursor(place.clone()));
    let entries = found.into_iter().map(|(_, audited)| audited).collect();
    Ok((Items::Audit(entries), next))
}

/// Entries that nothing can get in front of any more.
pub(super) async fn settled(
    table: &Table,
    settled_ms: u64,
    tenant: Option<&str>,
    after: Option<&str>,
    limit: usize,
) -> Result<Listed, Failure> {
    let after = after.map(read_cursor).transpose()?;
    let end = match settled_ms {
        0 => u64::MAX,
        ms => least_at(At(table.dates.now().0.saturating_sub(ms))),
    };
    let span = Span { whose: Whose::of(tenant), after, least: 0, end };
    let (found, _) = walk(table, span, &AuditFilter::default(), limit).await?;
    let next = found.last().map(|(place, _)| Cursor(place.clone()));
    let settle =
        |(_, audited): (_, Audited)| Settled { place: SettledPlace(0, audited.id), audited };
    Ok((Items::Settled(found.into_iter().map(settle).collect()), next))
}

/// A cursor is the place of an entry among all: its number and its tenant.
fn read_cursor(cursor: &str) -> Result<String, StoreError> {
    let parts = cursor.split_once('#');
    let number = parts.filter(|(number, tenant)| number.len() == 20 && !tenant.is_empty());
    match number.map(|(number, _)| number.parse::<u64>()) {
        Some(Ok(_)) => Ok(cursor.to_string()),
        _ => Err(StoreError::bad_cursor()),
    }
}

/// Entries of a span in the order of their numbers, at most `most`, and whether there may be more.
async fn walk(
    table: &Table,
    mut span: Span,
    filter: &AuditFilter,
    most: usize,
) -> Result<(Vec<(String, Audited)>, bool), Failure> {
    let mut found = Vec::new();
    let mut pruned: HashMap<String, Option<Pruned>> = HashMap::new();
    loop {
        let left = most - found.len();
        let shards = 0..span.whose.shards();
        let shards = shards.map(|shard| one_shard(table, &span, shard, filter, left));
        let shards = try_join_all(shards).await?;
        let more = shards.iter().any(|(_, more)| *more);
        let mut items: Vec<_> = shards.into_iter().flat_map(|(items, _)| items).collect();
        items.sort_by(|one, other| one.0.cmp(&other.0));
        let more = more || items.len() > left;
        items.truncate(left);
        span.after = items.last().map(|(place, _)| place.clone()).or(span.after);
        for (place, item) in items {
            let mut audited = rows::read_entry(&item)?;
            let tenant = audited.entry.tenant.to_string();
            if !pruned.contains_key(&tenant) {
                pruned.insert(tenant.clone(), prune::read(table, &tenant).await?);
            }
            if pruned[&tenant].is_some_and(|pruned| pruned.covers(audited.id, audited.at)) {
                continue;
            }
            // An entry that was pruned and removed since it was listed.
            match detail(table, &tenant, &item).await {
                Err(Failure::Moved) => continue,
                detail => audited.entry.detail = detail?.map(Into::into),
            }
            found.push((place, audited));
        }
        if !more || found.len() >= most {
            return Ok((found, more));
        }
    }
}

async fn detail(table: &Table, tenant: &str, item: &Item) -> Result<Option<String>, Failure> {
    if !item.contains_key("detail_at") {
        return Ok(rows::text(item, "detail")?.map(Into::into));
    }
    let owner = bodies::of_details(tenant);
    let body = bodies::read(table, (tenant, &owner), item, "detail").await?;
    let text = body.map(|body| String::from_utf8(body.to_vec()));
    text.transpose().map_err(|_| Failure::corrupt("the detail of an audit entry"))
}

/// The first entries of one shard, with their places among all, and whether there may be more.
async fn one_shard(
    table: &Table,
    span: &Span,
    shard: u64,
    filter: &AuditFilter,
    most: usize,
) -> Result<(Vec<(String, Item)>, bool), Failure> {
    let last = span.after.as_deref().and_then(|after| after.get(..20)?.parse::<u64>().ok());
    let low = last.unwrap_or(0).max(span.least);
    if low > span.end || most == 0 {
        return Ok((Vec::new(), false));
    }
    let mut query = span.whose.query(shard, (low, span.end));
    let filtered = add_filter(&mut query, filter);
    query.limit = if filtered { LOOK_MAX } else { most.saturating_add(1).min(LOOK_MAX) };
    let mut found = Vec::new();
    let mut next = None;
    loop {
        let (items, more) = table.query(&query, next).await?;
        for item in items {
            let place = rows::text(&item, "audit_sk")?.unwrap_or_default().to_string();
            let fresh = span.after.as_ref().is_none_or(|after| place > *after);
            let inside = rows::number(&item, "id")?.is_some_and(|id| id < span.end);
            if fresh && inside {
                found.push((place, item));
            }
        }
        if more.is_none() || found.len() >= most {
            return Ok((found, more.is_some()));
        }
        next = more;
    }
}

/// What a filter asks for beside tenant and numbers; whether that is anything.
fn add_filter(query: &mut Query, filter: &AuditFilter) -> bool {
    let texts = [
        ("subject", filter.subject.as_deref().map(text), "="),
        ("key_hash", filter.key_hash.as_deref().map(text), "="),
        ("action", filter.action.as_deref().map(text), "="),
        ("from", filter.from.map(|at| number(at.0)), ">="),
        ("to", filter.to.map(|at| number(at.0)), "<"),
    ];
    let mut parts = Vec::new();
    for (name, value, how) in texts {
        let Some(value) = value else { continue };
        let attribute = if matches!(name, "from" | "to") { "at" } else { name };
        query.names.insert(format!("#{attribute}"), attribute.to_string());
        query.values.insert(format!(":{name}"), value);
        parts.push(format!("#{attribute} {how} :{name}"));
    }
    query.filter = (!parts.is_empty()).then(|| parts.join(" AND "));
    !parts.is_empty()
}
