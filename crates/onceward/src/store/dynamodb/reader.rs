//! Looking things up: records and marks with their bodies, checked.
//!
//! Rule: the items of one load are read together, at one instant, up to a hundred of them; large
//! bodies are read after them. Parts that are gone by then mean that the item has moved on, and the
//! look is repeated.

use futures_util::future::try_join_all;
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Mark, Stored};

use super::super::{Fact, Found, Read};
use super::bodies;
use super::failure::Failure;
use super::names::{self, Place};
use super::ops::Item;
use super::rows;
use super::stamps::notice_number;
use super::table::Table;

/// Looks before a body that is not there counts as lost.
const LOOKS_MAX: usize = 4;

/// Looks everything up.
pub(super) async fn load(table: &Table, reads: &[Read]) -> Result<Vec<Fact>, Failure> {
    let mut places: Vec<Place> = reads.iter().map(place_of).collect();
    places.sort();
    places.dedup();
    let mut looks = 0;
    loop {
        let items = table.get_all(&places).await?;
        let facts = reads.iter().map(|read| fact(table, read, items.get(&place_of(read))));
        looks += 1;
        match try_join_all(facts).await {
            Err(Failure::Moved) if looks < LOOKS_MAX => {}
            facts => return facts,
        }
    }
}

fn place_of(read: &Read) -> Place {
    match read {
        Read::Record { key, .. } => names::record(key),
        Read::Mark(subject) => names::mark(subject),
    }
}

async fn fact(table: &Table, read: &Read, item: Option<&Item>) -> Result<Fact, Failure> {
    Ok(match (read, item) {
        (Read::Record { .. }, None) => Fact::Record(None),
        (Read::Mark(_), None) => Fact::Mark(None),
        (Read::Record { key, payload }, Some(item)) => {
            Fact::Record(found(table, key, item, *payload).await?)
        }
        (Read::Mark(subject), Some(item)) => Fact::Mark(Some(mark(table, subject, item).await?)),
    })
}

/// The record of an item, with its outcome and, if asked for, its payload.
async fn found(
    table: &Table,
    key: &Key,
    item: &Item,
    payload: bool,
) -> Result<Option<Found>, Failure> {
    let Some(record) = rows::read_record(item, key.clone())? else {
        // A deletion leaves its stamp behind, and that was seen too.
        notice_number(table, rows::number(item, "rev")?.unwrap_or_default());
        return Ok(None);
    };
    // What this process writes from now on is stamped above what it has seen.
    table.dates.saw(record.rev.0 >> names::STAMP_SHARD_BITS);
    let owner = names::record(key);
    let owner = (key.tenant_column(), &owner);
    let outcome = bodies::read(table, owner, item, "outcome").await?;
    rows::check_outcome(&record, outcome.as_ref())?;
    let wanted = payload;
    let payload = match wanted {
        true => bodies::read(table, owner, item, "payload").await?,
        false => None,
    };
    match &payload {
        Some(payload) => rows::check_payload(item, key, payload)?,
        // Record and payload, or where it is, are one item, so that nothing is late.
        None if wanted && record.has_payload => {
            return Err(Failure::corrupt("a record without its payload"));
        }
        None => {}
    }
    Ok(Some(Found { stored: Stored { record, outcome }, payload }))
}

/// The mark of an item, with its value.
async fn mark(table: &Table, subject: &Subject, item: &Item) -> Result<Mark, Failure> {
    let owner = names::mark(subject);
    let value = bodies::read(table, (subject.tenant_column(), &owner), item, "value").await?;
    rows::read_mark(item, subject, value)
}

/// The mark of a listed item. One whose value has moved on is looked up anew.
pub(super) async fn listed_mark(
    table: &Table,
    subject: &Subject,
    item: &Item,
) -> Result<Option<Mark>, Failure> {
    match mark(table, subject, item).await {
        Err(Failure::Moved) => {
            let facts = load(table, &[Read::Mark(subject.clone())]).await?;
            Ok(facts.into_iter().find_map(|fact| match fact {
                Fact::Mark(mark) => mark,
                Fact::Record(_) => None,
            }))
        }
        mark => mark.map(Some),
    }
}
