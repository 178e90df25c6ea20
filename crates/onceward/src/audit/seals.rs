//! Where seals are kept, and how they are read and written together.
//!
//! Heads are documents of the store, one per tenant, so that they can be listed; segments are
//! documents of their tenant. Every write of a tenant's seals is conditional on the version of its
//! head: of two sealers one is refused and starts again from what is there.

use std::borrow::Cow;

use onceward_core::batch::{Condition, Write};
use onceward_core::key::Subject;
use onceward_core::limits::LimitError;
use onceward_core::record::{Body, Mark};
use onceward_core::seal::{BrokenSeal, Head, Place, SealKey, Segment};
use onceward_core::text::{escape, unescape};

use crate::engine::{Engine, EngineError, STORE_TENANT};
use crate::store::{Cursor, Items, List, StoreError};

/// Documents of the store: a head per tenant, and how far all of them have come.
const HEADS: &str = "onceward.seals";
/// Documents of a tenant: its segments.
const SEGMENTS: &str = "onceward.segments";
/// How far the sealer has come.
const FRONTIER: &str = "onceward.sealed";
const PAGE: usize = 1_000;

/// A tenant's head, and the version of its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Headed {
    pub(super) head: Head,
    pub(super) version: u64,
}

/// How far every tenant is sealed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Frontier {
    /// Where the list goes on.
    pub(super) cursor: Option<Cursor>,
    /// The last place behind which nothing unsealed stands.
    pub(super) place: Place,
    /// Whether entries before it were passed over, because their tenant's seals were broken.
    pub(super) owes: bool,
    pub(super) version: u64,
}

/// A tenant as people write it, from its column.
pub(super) fn plain(tenant_column: &str) -> String {
    unescape(tenant_column).map_or_else(|| tenant_column.to_string(), Cow::into_owned)
}

pub(super) fn head_subject(tenant_column: &str) -> Result<Subject, LimitError> {
    Subject::new(STORE_TENANT, HEADS, &plain(tenant_column))
}

pub(super) fn segment_subject(tenant_column: &str, number: u64) -> Result<Subject, LimitError> {
    // Twenty digits: the order of names is the order of numbers.
    Subject::new(&plain(tenant_column), SEGMENTS, &format!("{number:020}"))
}

fn frontier_subject() -> Result<Subject, LimitError> {
    Subject::new(STORE_TENANT, FRONTIER, "frontier")
}

/// The head of a tenant; a fresh one when it has none.
pub(super) async fn load_head(
    engine: &Engine,
    key: &SealKey,
    tenant: &str,
) -> Result<Result<Headed, BrokenSeal>, EngineError> {
    let Some(mark) = sound_mark(engine, &head_subject(tenant)?).await? else {
        return Ok(Err(BrokenSeal));
    };
    let version = mark.as_ref().map_or(0, |mark| mark.position);
    let head = match mark.map(|mark| mark.value) {
        None => Ok(Head::new(key, tenant)),
        Some(None) => Err(BrokenSeal),
        Some(Some(value)) => Head::decode(&value, key, tenant),
    };
    Ok(head.map(|head| Headed { head, version }))
}

/// A mark; none when the store finds that it is damaged: a seal that can't be read is a broken one.
async fn sound_mark(
    engine: &Engine,
    subject: &Subject,
) -> Result<Option<Option<Mark>>, EngineError> {
    match engine.mark(subject).await {
        Ok(mark) => Ok(Some(mark)),
        Err(EngineError::Store(StoreError::Corrupt(_))) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A segment of a tenant, or none when it is not there or not sound.
pub(super) async fn load_segment(
    engine: &Engine,
    key: &SealKey,
    tenant: &str,
    number: u64,
) -> Result<Option<Segment>, EngineError> {
    let mark = sound_mark(engine, &segment_subject(tenant, number)?).await?;
    let value = mark.flatten().and_then(|mark| mark.value);
    Ok(value.and_then(|value| Segment::decode(&value, key, tenant).ok()))
}

/// Every tenant that has a head, by its column.
pub(super) async fn sealed_tenants(
    engine: &Engine,
    after: Option<Cursor>,
) -> Result<(Vec<String>, Option<Cursor>), EngineError> {
    let prefix = format!("{}:", escape(HEADS));
    let what = List::Marks { tenant: Some(STORE_TENANT.into()), prefix };
    let page = engine.list(what, after, PAGE).await?;
    let Items::Marks(marks) = page.items else {
        return Err(StoreError::Corrupt("the store listed something else".into()).into());
    };
    let tenants = marks.iter().map(|(subject, _)| escape(&subject.id()).into_owned()).collect();
    Ok((tenants, page.next))
}

/// How far every tenant is sealed.
pub(super) async fn load_frontier(engine: &Engine) -> Result<Frontier, EngineError> {
    let Some(mark) = engine.mark(&frontier_subject()?).await? else {
        return Ok(Frontier::default());
    };
    let version = mark.position;
    let text = mark.value.and_then(|value| String::from_utf8(value.to_vec()).ok());
    // One that can't be read costs a look at everything; what is sealed stays sealed.
    let read = text.as_deref().and_then(|text| {
        let mut parts = text.splitn(4, ' ');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (place, owes) = (Place(number()?, number()?), number()? != 0);
        let cursor = Some(Cursor(parts.next()?.to_string()));
        Some(Frontier { cursor, place, owes, version })
    });
    Ok(read.unwrap_or(Frontier { version, ..Frontier::default() }))
}

/// Writes the frontier over the version that it was made from. False: someone else did.
pub(super) async fn write_frontier(
    engine: &Engine,
    frontier: &Frontier,
) -> Result<bool, EngineError> {
    let Frontier { cursor, place, owes, version } = frontier;
    let cursor = cursor.as_ref().map_or("", |cursor| &cursor.0);
    let text = format!("{} {} {} {cursor}", place.0, place.1, u8::from(*owes));
    let subject = frontier_subject()?;
    let condition = Condition::PositionIs(subject.clone(), *version);
    let value = Body::Set(text.into_bytes().into());
    let write = Write::Mark { subject, position: version + 1, value };
    engine.commit_if(&[condition], &[write]).await
}

/// Writes a tenant's head with whatever goes with it. False: someone else wrote it before.
pub(super) async fn write_head(
    engine: &Engine,
    key: &SealKey,
    tenant: &str,
    headed: &Headed,
    mut with: Vec<Write>,
) -> Result<bool, EngineError> {
    let subject = head_subject(tenant)?;
    let condition = Condition::PositionIs(subject.clone(), headed.version);
    let value = Body::Set(headed.head.encode(key, tenant).into());
    with.push(Write::Mark { subject, position: headed.version + 1, value });
    engine.commit_if(&[condition], &with).await
}
