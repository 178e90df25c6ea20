//! Dropping old audit entries: one write says what is dropped, then it is removed.
//!
//! A transaction takes a hundred items and retention drops more at once. Rule: what is dropped is
//! one item per tenant, which a batch writes with its other writes and every list obeys; removing
//! follows, and is finished before the next time something is dropped, so that one item is enough.

use onceward_core::seal::Place as SettledPlace;
use onceward_core::stamp::At;

use super::bodies;
use super::failure::Failure;
use super::list::LOOK_MAX;
use super::names::{self, STAMP_SHARDS};
use super::ops::{Op, number};
use super::rows;
use super::table::{Query, Range, Table};

/// What was dropped last of a tenant's audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pruned {
    through: u64,
    until: At,
    version: u64,
}

impl Pruned {
    /// Whether an entry was dropped.
    pub(super) fn covers(self, id: u64, at: At) -> bool {
        id <= self.through && at <= self.until
    }
}

/// What was dropped last.
pub(super) async fn read(table: &Table, tenant: &str) -> Result<Option<Pruned>, Failure> {
    let Some(item) = table.get(&names::pruned(tenant)).await? else { return Ok(None) };
    let read = |name| Ok::<_, Failure>(rows::number(&item, name)?.unwrap_or_default());
    let (through, until) = (read("through")?, At(read("until")?));
    Ok(Some(Pruned { through, until, version: read("version")? }))
}

/// The part of a batch that drops entries, once what was dropped before is removed.
pub(super) async fn prepare(
    table: &Table,
    tenant: &str,
    through: SettledPlace,
    until: At,
) -> Result<Op, Failure> {
    finish(table, tenant).await?;
    let version = read(table, tenant).await?.map(|pruned| pruned.version);
    // Our places all begin with 0.
    let through = if through.0 > 0 { u64::MAX } else { through.1 };
    let mut op = Op::at(names::pruned(tenant));
    op.require(|op| match version {
        None => format!("attribute_not_exists({})", op.name("version")),
        Some(version) => format!("{} = {}", op.name("version"), op.value(number(version))),
    });
    op.set("through", number(through));
    op.set("until", number(until.0));
    op.set("version", number(version.unwrap_or_default() + 1));
    Ok(op)
}

/// Removes what was dropped.
pub(super) async fn finish(table: &Table, tenant: &str) -> Result<(), Failure> {
    let Some(pruned) = read(table, tenant).await? else { return Ok(()) };
    for shard in 0..STAMP_SHARDS {
        let query = Query {
            partition: names::audit(tenant, shard),
            range: Range::Between(names::entry_sk(0), names::entry_sk(pruned.through)),
            filter: Some("#at <= :until".into()),
            names: [("#at".to_string(), "at".to_string())].into(),
            values: [(":until".to_string(), number(pruned.until.0))].into(),
            limit: LOOK_MAX,
            wanted: &["PK", "SK", "detail_at"],
            ..Query::default()
        };
        let mut next = None;
        loop {
            let (items, more) = table.query(&query, next).await?;
            for item in items {
                if let Some(stored) = rows::text(&item, "detail_at")? {
                    let owner = bodies::of_details(tenant);
                    bodies::drop_parts(table, (tenant, &owner), stored).await?;
                }
                table.drop_item(&rows::place(&item)?).await?;
            }
            if more.is_none() {
                break;
            }
            next = more;
        }
    }
    Ok(())
}
