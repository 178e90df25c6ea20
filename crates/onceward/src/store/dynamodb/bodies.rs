//! Bodies: outcomes, payloads, documents and details, in their item or in parts beside it.
//!
//! An item holds 400 KB, so what is large is written in parts before the transaction that refers to
//! it. Rule: parts are born with a `ttl`, and the transaction that refers to them takes it away.
//! What no transaction came to refer to is garbage that DynamoDB collects; what one refers to is
//! never collected. Parts are never changed, so whoever holds a reference reads what it meant, or
//! nothing.

use futures_util::future::try_join_all;
use onceward_core::Bytes;
use onceward_core::record::Body;
use onceward_core::stamp::At;

use super::failure::{Failure, again};
use super::names::{self, Place};
use super::ops::{Item, Op, bytes, number, text};
use super::rows;
use super::table::{Query, Range, Table};

/// Bytes of a body that its item holds itself.
pub(super) const INLINE_MAX: usize = 100_000;
/// Bytes of one part: an item holds 400 KB with all its names.
const PART_BYTES: usize = 350_000;
/// How long parts are kept that nothing refers to: longer than any request can be under way.
const ORPHAN_KEPT_MS: u64 = 86_400_000;
/// The attribute of a part's bytes.
const BYTES: &str = "bytes";

/// A body on its way into an item.
#[derive(Debug)]
pub(super) enum Kept {
    /// In the item.
    Inline(Bytes),
    /// In parts that are there already.
    Parts(Reference),
    /// As it was.
    AsItWas,
    /// None.
    Nothing,
}

/// Where a large body is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    partition: String,
    id: String,
    parts: usize,
}

impl Reference {
    fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.parts).map(|part| names::body_part(&self.partition, &self.id, part))
    }

    /// As an item holds it: its partition follows from the item.
    pub(super) fn stored(&self) -> String {
        format!("{} {}", self.id, self.parts)
    }

    fn read(tenant: &str, owner: &Place, stored: &str) -> Option<Self> {
        let (id, parts) = stored.split_once(' ')?;
        let partition = names::bodies(tenant, owner);
        Some(Self { partition, id: id.into(), parts: parts.parse().ok()? })
    }
}

/// Brings a body to where its item can hold it.
pub(super) async fn keep(
    table: &Table,
    (tenant, owner): (&str, &Place),
    body: &Body,
    now: At,
) -> Result<Kept, Failure> {
    let body = match body {
        Body::Keep => return Ok(Kept::AsItWas),
        Body::Clear => return Ok(Kept::Nothing),
        Body::Set(body) if body.len() <= INLINE_MAX => return Ok(Kept::Inline(body.clone())),
        Body::Set(body) => body,
    };
    let chunks: Vec<&[u8]> = body.chunks(PART_BYTES).collect();
    let partition = names::bodies(tenant, owner);
    let reference = Reference { partition, id: random_name(), parts: chunks.len() };
    let ttl = now.plus(ORPHAN_KEPT_MS).0 / 1_000;
    let writes = reference.places().zip(chunks).map(|(place, chunk)| {
        let pairs = [(BYTES, bytes(chunk)), ("ttl", number(ttl))];
        let item = pairs.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let op = Op::put(place, item);
        // Whoever repeats it writes the same.
        async move { again(|| table.write(&op)).await }
    });
    try_join_all(writes).await?;
    Ok(Kept::Parts(reference))
}

/// Puts a body, or where it is, into an item's part of a write, and the parts into the write.
pub(super) fn refer(op: &mut Op, name: &str, kept: &Kept, parts: &mut Vec<Op>) {
    let beside = format!("{name}_at");
    match kept {
        Kept::AsItWas => {}
        Kept::Nothing => {
            op.remove(name);
            op.remove(&beside);
        }
        Kept::Inline(body) => {
            op.set(name, bytes(body));
            op.remove(&beside);
        }
        Kept::Parts(reference) => {
            op.remove(name);
            op.set(&beside, text(&reference.stored()));
            parts.extend(reference.places().map(adopted));
        }
    }
}

/// As [`refer`], into an item that is written as a whole.
pub(super) fn refer_whole(item: &mut Item, name: &str, kept: &Kept, parts: &mut Vec<Op>) {
    match kept {
        Kept::AsItWas | Kept::Nothing => {}
        Kept::Inline(body) => drop(item.insert(name.into(), bytes(body))),
        Kept::Parts(reference) => {
            item.insert(format!("{name}_at"), text(&reference.stored()));
            parts.extend(reference.places().map(adopted));
        }
    }
}

/// A part that is referred to from now on.
fn adopted(place: Place) -> Op {
    let mut part = Op::at(place);
    part.require(|op| format!("attribute_exists({})", op.name(BYTES)));
    part.remove("ttl");
    part
}

/// Reads an item's body, wherever it is.
pub(super) async fn read(
    table: &Table,
    (tenant, owner): (&str, &Place),
    item: &Item,
    name: &str,
) -> Result<Option<Bytes>, Failure> {
    let Some(stored) = rows::text(item, &format!("{name}_at"))? else {
        return Ok(rows::bytes(item, name)?.map(Bytes::from));
    };
    let reference = Reference::read(tenant, owner, stored);
    let reference = reference.ok_or_else(|| Failure::corrupt("a reference to a body"))?;
    let places: Vec<Place> = reference.places().collect();
    let parts = try_join_all(places.iter().map(|place| table.get(place))).await?;
    let mut body = Vec::new();
    for part in parts {
        let part = part.ok_or(Failure::Moved)?;
        body.extend_from_slice(rows::bytes(&part, BYTES)?.ok_or(Failure::Moved)?);
    }
    Ok(Some(body.into()))
}

/// Removes the parts that an item once referred to and does not any more.
///
/// Each in a transaction that looks at both: a part without a `ttl` that its owner does not refer
/// to at the same instant never will be again. Those that have one belong to a write under way.
pub(super) async fn tidy(table: &Table, tenant: &str, owner: &Place) -> Result<(), Failure> {
    let query = Query {
        partition: names::bodies(tenant, owner),
        range: Range::All,
        filter: Some("attribute_not_exists(#ttl)".into()),
        names: [("#ttl".to_string(), "ttl".to_string())].into(),
        limit: 1_000,
        wanted: &["PK", "SK"],
        ..Query::default()
    };
    // A page ends at a megabyte of what is read, which is three parts, not at what is wanted.
    let (mut found, mut next) = table.query(&query, None).await?;
    while next.is_some() {
        let (more, after) = table.query(&query, next).await?;
        found.extend(more);
        next = after;
    }
    if found.is_empty() {
        return Ok(());
    }
    let item = table.get(owner).await?.unwrap_or_default();
    let mut live = Vec::new();
    for name in rows::BODIES {
        live.extend(rows::text(&item, &format!("{name}_at"))?.and_then(|at| at.split(' ').next()));
    }
    for part in found {
        let place = rows::place(&part)?;
        let id = place.sk.split('#').next().unwrap_or_default().to_string();
        if live.contains(&id.as_str()) {
            continue;
        }
        let (ops, name) = ([unreferred(owner, &id), dropped(place)], random_name());
        match again(|| table.write_together(&ops, &name, None)).await {
            // Somebody refers to it after all, or was faster.
            Ok(()) | Err(Failure::Condition) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// A look at an item that must not refer to a body.
fn unreferred(owner: &Place, id: &str) -> Op {
    let mut look = Op::at(owner.clone());
    for name in rows::BODIES {
        look.require(|op| {
            let at = op.name(&format!("{name}_at"));
            let id = op.value(text(&format!("{id} ")));
            format!("attribute_not_exists({at}) OR NOT begins_with({at}, {id})")
        });
    }
    look
}

/// A part that goes, unless a write under way still may come to refer to it.
fn dropped(place: Place) -> Op {
    let mut part = Op::delete(place);
    part.require(|op| format!("attribute_not_exists({})", op.name("ttl")));
    part
}

/// Whose parts the large details of a tenant's audit entries are: an entry has no place of its own
/// before its number is drawn.
pub(super) fn of_details(tenant: &str) -> Place {
    names::pruned(tenant)
}

/// Removes the parts of an item that is gone for good.
pub(super) async fn drop_parts(
    table: &Table,
    (tenant, owner): (&str, &Place),
    stored: &str,
) -> Result<(), Failure> {
    let reference = Reference::read(tenant, owner, stored);
    for place in reference.iter().flat_map(Reference::places) {
        table.drop_item(&place).await?;
    }
    Ok(())
}

/// A name that nothing else has.
pub(super) fn random_name() -> String {
    let random = || getrandom::u64().unwrap_or_default();
    format!("{:016x}{:016x}", random(), random())
}
