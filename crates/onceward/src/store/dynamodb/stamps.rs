//! Stamps and audit numbers: counters per tenant and shard, moved before the write that uses them.
//!
//! A number is (count, shard). Counts start from the store's date, so that numbers of different
//! shards and tenants rise with time; a counter that is ahead is counted on from where it is. Rule:
//! no number of a shard is given out twice or below an earlier one, and none is kept for later.
//! That a number drawn earlier is not written later than a higher one, the write's own condition
//! sees to.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use onceward_core::stamp::At;

use super::failure::{Failure, again};
use super::names::{self, STAMP_SHARD_BITS};
use super::ops::{Op, number};
use super::table::Table;

/// Draws until they rise in the order of the writes: with several shards, one that is ahead of the
/// others spoils the first.
const DRAWS_MAX: usize = 8;
/// The attribute of a counter.
const COUNT: &str = "count";

/// Whose number is wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counter {
    pub(super) tenant: String,
    pub(super) shard: u64,
}

/// Draws a number from each counter, rising in their order.
pub(super) async fn draw(table: &Table, of: &[Counter], now: At) -> Result<Vec<u64>, Failure> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
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
    super::dates::Dates::least_at(at).saturating_mul(1 << STAMP_SHARD_BITS)
}

/// The instant that a number was counted from: its write's own, or a little after it.
pub(super) fn instant_of(number: u64) -> At {
    super::dates::Dates::instant_of(number >> STAMP_SHARD_BITS)
}
