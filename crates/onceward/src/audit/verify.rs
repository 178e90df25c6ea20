//! Verifying the audit: entries and seals side by side, in one walk per tenant.
//!
//! Names the first thing of each tenant that is not as it was sealed, counts what is not sealed
//! yet, and accepts what retention dropped. Reads only, page by page. Sealing goes on meanwhile: a
//! fault that is found while a head changes is looked for again before it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use onceward_core::seal::{Head, Link, Place, SealKey, Segment, Settled, Wrong, judge};

use super::seals::{Headed, load_frontier, load_head, load_segment, plain, sealed_tenants};
use crate::engine::{Engine, EngineError};
use crate::store::{Cursor, Items, List, StoreError};

const PAGE: usize = 1_000;
/// A tenant whose head keeps changing is looked at this often before its fault is believed.
const LOOKS: usize = 5;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Tenants that were looked at.
    pub tenants: u64,
    /// Entries that are there and as they were sealed.
    pub sealed: u64,
    /// Entries that are not sealed yet.
    pub unsealed: u64,
    /// Entries that retention dropped, as the anchors say.
    pub dropped: u64,
    /// The first thing of each tenant that is wrong.
    pub bad: Vec<Bad>,
}

impl Verified {
    /// Whether everything is as it was sealed.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.bad.is_empty()
    }
}

/// Something that is not as it was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Whose.
    pub tenant: String,
    /// The number of the entry, where it is one.
    pub entry: Option<u64>,
    /// The number of the segment, where it is a seal.
    pub segment: Option<u64>,
    /// What is wrong.
    pub wrong: Wrong,
}

/// Verifies one tenant's audit, or everyone's. `progress` hears the counts after each page.
///
/// # Errors
/// When the store gives no answer.
pub async fn verify(
    engine: &Engine,
    key: &SealKey,
    tenant_column: Option<&str>,
    mut progress: impl FnMut(&Verified),
) -> Result<Verified, EngineError> {
    let mut found = Verified::default();
    let walk = Walk { engine, key };
    if let Some(tenant) = tenant_column {
        walk.tenant(tenant, &mut found, &mut progress).await?;
        return Ok(found);
    }
    let mut heads = BTreeSet::new();
    let mut after = None;
    loop {
        let (tenants, next) = sealed_tenants(engine, after).await?;
        for tenant in tenants {
            walk.tenant(&tenant, &mut found, &mut progress).await?;
            heads.insert(tenant);
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    walk.without_seals(&heads, &mut found, &mut progress).await?;
    Ok(found)
}

struct Walk<'a> {
    engine: &'a Engine,
    key: &'a SealKey,
}

/// A fault and where it is.
struct Fault {
    wrong: Wrong,
    entry: Option<u64>,
    segment: Option<u64>,
    /// There are seals beyond the head, and that is all.
    grown: bool,
}

impl Fault {
    fn of_entry((wrong, place): (Wrong, Place)) -> Self {
        Self { wrong, entry: Some(place.1), segment: None, grown: false }
    }

    fn of_seal(segment: u64) -> Self {
        Self { wrong: Wrong::Seal, entry: None, segment: Some(segment), grown: false }
    }
}

impl Walk<'_> {
    async fn tenant(
        &self,
        tenant: &str,
        found: &mut Verified,
        progress: &mut impl FnMut(&Verified),
    ) -> Result<(), EngineError> {
        found.tenants += 1;
        let before = found.clone();
        for look in 1..=LOOKS {
            found.clone_from(&before);
            let first = load_head(self.engine, self.key, tenant).await?;
            let fault = match &first {
                Ok(headed) => self.chain(tenant, &headed.head, found, progress).await?,
                Err(_) => Some(Fault::of_seal(0)),
            };
            let anchor = |head: &Result<Headed, _>| head.as_ref().ok().map(|it| it.head.anchor);
            let now = load_head(self.engine, self.key, tenant).await?;
            let Some(Fault { wrong, entry, segment, grown }) = fault else { return Ok(()) };
            // Seals that go beyond the head are a sealer's who went on, if the head has moved.
            if grown && now != first {
                return Ok(());
            }
            // What was there may have been dropped under our feet.
            if look == LOOKS || anchor(&now) == anchor(&first) {
                found.bad.push(Bad { tenant: plain(tenant), entry, segment, wrong });
                return Ok(());
            }
        }
        Ok(())
    }

    /// Walks a tenant's segments and entries side by side. Answers the first fault.
    async fn chain(
        &self,
        tenant: &str,
        head: &Head,
        found: &mut Verified,
        progress: &mut impl FnMut(&Verified),
    ) -> Result<Option<Fault>, EngineError> {
        let mut entries = Entries::of(self.engine, tenant);
        let (mut link, mut grown) = (head.anchor, false);
        found.dropped += link.count;
        if let Some(early) = entries.peek().await?
            && early.place <= link.place
        {
            return Ok(Some(Fault::of_entry((Wrong::Inserted, early.place))));
        }
        while link.segment < head.last.segment {
            let number = link.segment + 1;
            let segment = load_segment(self.engine, self.key, tenant, number).await?;
            let follows = |segment: &Segment| {
                segment.number == number && segment.before == link.hash && !segment.lines.is_empty()
            };
            let Some(segment) = segment.filter(follows) else {
                return Ok(Some(Fault::of_seal(number)));
            };
            match self.segment(&segment, link, head, (&mut entries, found)).await? {
                Ok(next) => link = next,
                Err(fault) => return Ok(Some(fault)),
            }
            grown = segment.lines.last().is_some_and(|line| line.place > link.place);
            progress(found);
        }
        if link != head.last {
            return Ok(Some(Fault::of_seal(head.last.segment)));
        }
        while let Some(settled) = entries.next().await? {
            if settled.place <= link.place {
                return Ok(Some(Fault::of_entry((Wrong::Inserted, settled.place))));
            }
            found.unsealed += 1;
        }
        let number = head.last.segment + 1;
        grown |= load_segment(self.engine, self.key, tenant, number).await?.is_some();
        Ok(grown.then(|| Fault { grown, ..Fault::of_seal(number) }))
    }

    /// Walks one segment, as far as the head confirms it.
    async fn segment(
        &self,
        segment: &Segment,
        mut link: Link,
        head: &Head,
        (entries, found): (&mut Entries<'_>, &mut Verified),
    ) -> Result<Result<Link, Fault>, EngineError> {
        for (line, hash) in segment.lines.iter().zip(segment.hashes(self.key).skip(1)) {
            if line.place <= link.place {
                return Ok(Err(Fault::of_seal(segment.number)));
            }
            let settled = entries.next().await?;
            if let Err(wrong) = judge(self.key, segment, line, settled.as_ref()) {
                return Ok(Err(Fault::of_entry(wrong)));
            }
            found.sealed += 1;
            let number = segment.number;
            link = Link { segment: number, place: line.place, count: link.count + 1, hash };
            if line.place == head.last.place {
                // What was linked since the head was read is none of its business.
                return Ok(Ok(link));
            }
        }
        Ok(Ok(link))
    }

    /// Entries of tenants that have no head: young ones, or the seals were removed.
    async fn without_seals(
        &self,
        heads: &BTreeSet<String>,
        found: &mut Verified,
        progress: &mut impl FnMut(&Verified),
    ) -> Result<(), EngineError> {
        let frontier = load_frontier(self.engine).await?;
        let mut others: BTreeMap<String, bool> = BTreeMap::new();
        let mut after: Option<Cursor> = None;
        loop {
            let page = self.engine.list(List::Settled { tenant: None }, after, PAGE).await?;
            for settled in settled(page.items)? {
                let tenant = &*settled.audited.entry.tenant;
                if heads.contains(tenant) {
                    continue;
                }
                let bad = others.entry(tenant.to_string()).or_insert_with(|| {
                    found.tenants += 1;
                    false
                });
                if settled.place > frontier.place {
                    found.unsealed += 1;
                } else if !std::mem::replace(bad, true) && self.still_bare(tenant).await? {
                    let entry = Some(settled.place.1);
                    let (tenant, wrong) = (plain(tenant), Wrong::Inserted);
                    found.bad.push(Bad { tenant, entry, segment: None, wrong });
                }
            }
            progress(found);
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Whether a tenant has no seals: its first may have come since heads were listed.
    async fn still_bare(&self, tenant: &str) -> Result<bool, EngineError> {
        let headed = load_head(self.engine, self.key, tenant).await?;
        Ok(headed.is_ok_and(|headed| headed.version == 0))
    }
}

/// A tenant's settled entries, one after the other, read page by page.
struct Entries<'a> {
    engine: &'a Engine,
    tenant: &'a str,
    read: VecDeque<Settled>,
    after: Option<Cursor>,
    ended: bool,
}

impl<'a> Entries<'a> {
    fn of(engine: &'a Engine, tenant: &'a str) -> Self {
        Self { engine, tenant, read: VecDeque::new(), after: None, ended: false }
    }

    async fn peek(&mut self) -> Result<Option<&Settled>, EngineError> {
        if self.read.is_empty() && !self.ended {
            let what = List::Settled { tenant: Some(self.tenant.into()) };
            let page = self.engine.list(what, self.after.take(), PAGE).await?;
            self.read = settled(page.items)?.into();
            self.ended = page.next.is_none();
            self.after = page.next;
        }
        Ok(self.read.front())
    }

    async fn next(&mut self) -> Result<Option<Settled>, EngineError> {
        self.peek().await?;
        Ok(self.read.pop_front())
    }
}

fn settled(items: Items) -> Result<Vec<Settled>, EngineError> {
    match items {
        Items::Settled(entries) => Ok(entries),
        _ => Err(StoreError::Corrupt("the store listed something else".into()).into()),
    }
}
