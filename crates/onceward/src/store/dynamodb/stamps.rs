//! Stamps and audit numbers: counters per tenant and shard, moved before the write that uses them.
//!
//! A number is (count, shard). Counts start from the store's date, so that numbers of different
//! shards and tenants rise with time; a counter that is ahead is counted on from where it is. Rule:
//! no number of a shard is given out twice or below an earlier one, and none is kept for later.
//! Across shards, a process draws above all that it has drawn, read or listed, and above all that
//! was drawn for a tenant before its own first draw for it; what others draw later on, the date
//! orders. That a number drawn earlier is not written later than a higher one, the write's own
//! condition sees to.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

use futures_util::future::try_join_all;
use onceward_core::stamp::At;

use super::super::Items;
use super::dates::{AHEAD_MS, Dates};
use super::failure::{Failure, again};
use super::names::{self, STAMP_SHARD_BITS, STAMP_SHARDS};
use super::ops::{Op, number};
use super::rows;
use super::table::Table;

/// Draws until they rise in the order of the writes: with several shards, one that is ahead of the
/// others spoils the first.
const DRAWS_MAX: usize = 8;
/// Tenants that a process remembers to have looked at.
const LEARNT_MAX: usize = 100_000;
/// The attribute of a counter.
const COUNT: &str = "count";

/// Whose number is wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counter {
    pub(super) tenant: String,
    pub(super) shard: u64,
}

/// Tenants whose counters this process has looked at.
#[derive(Debug, Default)]
pub(super) struct Learnt(Mutex<HashSet<String>>);

impl Learnt {
    fn holds(&self, tenant: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(tenant)
    }

    /// Past its bound it starts anew: that costs a look each.
    fn add(&self, tenant: &str) {
        let mut learnt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if learnt.len() >= LEARNT_MAX {
            learnt.clear();
        }
        learnt.insert(tenant.into());
    }
}

/// Looks at all counters of tenants that this process draws for the first time. The process before
/// it may have drawn in another shard, at this very instant or by a date that was ahead of ours;
/// without a look, what is committed now could be numbered below what was committed and listed.
async fn learn(table: &Table, of: &[Counter]) -> Result<(), Failure> {
    let tenants: BTreeSet<&str> = of.iter().map(|counter| counter.tenant.as_str()).collect();
    let new = tenants.into_iter().filter(|tenant| !table.learnt.holds(tenant));
    try_join_all(new.map(|tenant| async move {
        let places: Vec<_> = (0..STAMP_SHARDS).map(|shard| names::counter(tenant, shard)).collect();
        // Not in a transaction: that would fail whenever another process moves one of them.
        let items = try_join_all(places.iter().map(|place| table.get(place))).await?;
        for item in items.iter().flatten() {
            notice(table, rows::number(item, COUNT)?.unwrap_or_default());
        }
        table.learnt.add(tenant);
        Ok(())
    }))
    .await
    .map(drop)
}

/// A count that was found in the store: what this process draws from now on is above it. What is
/// further ahead than numbers ever are is damaged, and must not carry all others along.
fn notice(table: &Table, count: u64) {
    if Dates::instant_of(count) <= table.dates.now().plus(AHEAD_MS) {
        table.dates.saw(count);
    }
}

/// As [`notice`], of a number.
pub(super) fn notice_number(table: &Table, number: u64) {
    notice(table, number >> STAMP_SHARD_BITS);
}

/// What is written from now on is numbered above what was listed.
pub(super) fn notice_listed(table: &Table, items: &Items) {
    let highest = match items {
        Items::Records(records) => records.iter().map(|record| record.rev.0).max(),
        Items::Audit(entries) => entries.iter().map(|audited| audited.id).max(),
        Items::Settled(entries) => entries.iter().map(|settled| settled.audited.id).max(),
        Items::Marks(_) => None,
    };
    if let Some(highest) = highest {
        notice_number(table, highest);
    }
}

/// Draws a number from each counter, rising in their order.
pub(super) async fn draw(table: &Table, of: &[Counter], now: At) -> Result<Vec<u64>, Failure> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    learn(table, of).await?;
    let mut numbers = Vec::new();
    for _ in 0..DRAWS_MAX {
        numbers = draw_once(table, of, now).await?;
        if numbers.windows(2).all(|pair| pair[0] < pair[1]) {
            break;
        }
    }
    // What still does not rise from shard to shard rises within each, and that is what counts.
    Ok(numbers)
}

async fn draw_once(table: &Table, of: &[Counter], now: At) -> Result<Vec<u64>, Failure> {
    let first = table.dates.take(of.len() as u64, now);
    let mut counts: Vec<u64> = (first..).take(of.len()).collect();
    let mut of_counters: BTreeMap<&Counter, Vec<usize>> = BTreeMap::new();
    for (index, counter) in of.iter().enumerate() {
        of_counters.entry(counter).or_default().push(index);
    }
    let moves = of_counters.iter().map(|(counter, indexes)| {
        let (low, high) = (counts[indexes[0]], counts[indexes[indexes.len() - 1]]);
        advance(table, counter, low, high, indexes.len() as u64)
    });
    let ahead = try_join_all(moves).await?;
    for (indexes, ahead) in of_counters.values().zip(ahead) {
        let Some(last) = ahead else { continue };
        table.dates.saw(last);
        for (back, index) in indexes.iter().rev().enumerate() {
            counts[*index] = last - back as u64;
        }
    }
    let number = |(count, counter): (&u64, &Counter)| count << STAMP_SHARD_BITS | counter.shard;
    Ok(counts.iter().zip(of).map(number).collect())
}

/// Moves a counter to `high` if it is below `low`; otherwise by `more`, and says where it is then.
async fn advance(
    table: &Table,
    counter: &Counter,
    low: u64,
    high: u64,
    more: u64,
) -> Result<Option<u64>, Failure> {
    let place = names::counter(&counter.tenant, counter.shard);
    let mut op = Op::at(place.clone());
    op.require(|op| {
        let (name, low) = (op.name(COUNT), op.value(number(low)));
        format!("attribute_not_exists({name}) OR {name} < {low}")
    });
    op.set(COUNT, number(high));
    // A lost answer only wastes numbers.
    match again(|| table.write(&op)).await {
        Ok(()) => Ok(None),
        Err(Failure::Condition) => again(|| table.add(&place, COUNT, more)).await.map(Some),
        Err(failure) => Err(failure),
    }
}

/// The least number that an instant's writes can have.
pub(super) fn least_at(at: At) -> u64 {
    Dates::least_at(at).saturating_mul(1 << STAMP_SHARD_BITS)
}

/// The instant that a number was counted from: its write's own, or a little after it.
pub(super) fn instant_of(number: u64) -> At {
    Dates::instant_of(number >> STAMP_SHARD_BITS)
}
