//! The sealer: links what it finds unsealed, a bounded amount at a time, and never in a commit's
//! way.
//!
//! It holds a lease, so that of many processes one works; but nothing hangs on it: every write is
//! conditional on what it was made from, and an entry that is sealed already is passed over. So a
//! sealer may die anywhere, and two may work at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onceward_core::batch::Write;
use onceward_core::decide::{Claim, Finish, Permit, Verdict};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind};
use onceward_core::limits::MAX_BATCH_WRITES;
use onceward_core::record::Body;
use onceward_core::seal::{BrokenSeal, Head, Link, SealKey, Segment, Settled};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::seals::{
    Frontier, Headed, load_frontier, load_head, load_segment, segment_subject, write_frontier,
    write_head,
};
use crate::engine::{Engine, EngineError, STORE_TENANT};
use crate::store::{Cursor, Items, List, StoreError};

/// Entries that are read at once.
const PAGE: usize = 1_000;
/// Entries that one pass seals at most, so that a long backlog leaves room for others.
const PASS_MAX: u64 = 20_000;
/// How long a dead sealer keeps the others waiting.
const LEASE_MS: u64 = 10_000;
/// Segments that one batch writes: its last write is the head.
const SEGMENTS_MAX: usize = MAX_BATCH_WRITES - 1;
/// Others may write a tenant's seals this often before a pass gives up on it.
const TRIES: usize = 4;

/// Seals what is not sealed yet, and drops what is past its time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sealer {
    pub(super) engine: Engine,
    pub(super) key: SealKey,
    looked_again: Arc<AtomicBool>,
    /// Passes of one process wait for each other instead of being told that it is at it.
    turn: Arc<Mutex<()>>,
}

/// What a pass did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SealReport {
    /// Entries that were sealed.
    pub sealed: u64,
    /// Whether another process is at it.
    pub elsewhere: bool,
    /// Tenants whose seals are broken: nothing is linked to them until someone has looked.
    pub broken: u64,
    /// Whether there is more.
    pub more: bool,
}

impl Sealer {
    /// A sealer under this key. All processes on one store must use the same.
    #[must_use]
    pub fn new(engine: Engine, key: SealKey) -> Self {
        Self { engine, key, looked_again: Arc::default(), turn: Arc::default() }
    }

    /// One pass: seals what is there, up to a bound. Without anything to seal it writes nothing.
    ///
    /// # Errors
    /// When the store gives no answer; what was sealed until then stays sealed.
    pub async fn pass(&self) -> Result<SealReport, EngineError> {
        let _turn = self.turn.lock().await;
        let frontier = load_frontier(&self.engine).await?;
        // Whoever has put broken seals right starts a process anew: once, everything is looked at.
        let again = frontier.owes && !self.looked_again.swap(true, Ordering::Relaxed);
        if !again && self.page(frontier.cursor.clone()).await?.is_none() {
            return Ok(SealReport::default());
        }
        let Some(permit) = self.lease("seal").await? else {
            return Ok(SealReport { elsewhere: true, ..SealReport::default() });
        };
        let report = self.seal_pages(&permit, again).await;
        // A lease that can't be given back ends by itself.
        let _ = self.engine.release(&permit).await;
        report
    }

    /// Waits for the pass under way, and keeps others of this process from beginning. Whoever ends
    /// a [`Sealer::run`] does it here: one that is dropped within a pass keeps its lease for a
    /// while, and nobody seals meanwhile.
    pub async fn between_passes(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Seals now and then until it is dropped. `told` hears what each pass came to.
    pub async fn run(
        &self,
        every: Duration,
        mut told: impl FnMut(Result<SealReport, EngineError>),
    ) {
        loop {
            let begun = Instant::now();
            let report = self.pass().await;
            let more = matches!(report, Ok(SealReport { more: true, .. }));
            told(report);
            // A backlog is worked off in a fifth of the time: others want the store too.
            let rest = begun.elapsed() * 4;
            tokio::time::sleep(if more { rest.min(every) } else { every }).await;
        }
    }

    /// The right to do this work, unless someone has it.
    pub(super) async fn lease(&self, work: &str) -> Result<Option<Permit>, EngineError> {
        let key = Key::new(Kind::Request, STORE_TENANT, "onceward.audit", work)?;
        let mut claim = Claim::new(key, fingerprint_bytes(work.as_bytes()));
        claim.terms.lease_ms = LEASE_MS;
        claim.owner = Some(format!("pid {}", std::process::id()).into());
        match self.engine.claim(&claim).await? {
            Verdict::Run { permit, .. } => Ok(Some(permit)),
            _ => Ok(None),
        }
    }

    async fn seal_pages(&self, permit: &Permit, again: bool) -> Result<SealReport, EngineError> {
        let mut report = SealReport::default();
        let mut frontier = load_frontier(&self.engine).await?;
        let mut cursor = if again { None } else { frontier.cursor.clone() };
        let mut owes = frontier.owes && !again;
        while let Some((entries, next)) = self.page(cursor).await? {
            let full = entries.len() >= PAGE;
            let last = entries.last().map_or(frontier.place, |settled| settled.place);
            let (sealed, broken) = self.seal_page(entries).await?;
            report.sealed += sealed;
            report.broken = report.broken.max(broken);
            owes |= broken > 0;
            if last >= frontier.place {
                frontier = Frontier { cursor: Some(next.clone()), place: last, owes, ..frontier };
                if !write_frontier(&self.engine, &frontier).await? {
                    // Someone else is at it after all: theirs is the rest.
                    return Ok(report);
                }
                frontier.version += 1;
            }
            cursor = Some(next);
            report.more = full;
            let enough = report.sealed >= PASS_MAX && !again;
            if !full || enough || self.engine.renew(permit, None).await? != Finish::Ok {
                break;
            }
        }
        Ok(report)
    }

    /// Seals the entries of a page: how many, and how many tenants' seals are broken.
    async fn seal_page(&self, entries: Vec<Settled>) -> Result<(u64, u64), EngineError> {
        let mut of_tenants: BTreeMap<String, Vec<Settled>> = BTreeMap::new();
        for settled in entries {
            let tenant = settled.audited.entry.tenant.to_string();
            of_tenants.entry(tenant).or_default().push(settled);
        }
        let sealing = of_tenants.iter().map(|(tenant, found)| self.seal_tenant(tenant, found));
        let (mut count, mut broken) = (0, 0);
        for sealed in join_all(sealing).await {
            match sealed? {
                Ok(sealed) => count += sealed,
                Err(BrokenSeal) => broken += 1,
            }
        }
        Ok((count, broken))
    }

    /// What stands behind a place, and where it ends.
    async fn page(
        &self,
        after: Option<Cursor>,
    ) -> Result<Option<(Vec<Settled>, Cursor)>, EngineError> {
        let page = self.engine.list(List::Settled { tenant: None }, after, PAGE).await?;
        let Items::Settled(entries) = page.items else {
            return Err(StoreError::Corrupt("the store listed something else".into()).into());
        };
        Ok(page.next.filter(|_| !entries.is_empty()).map(|next| (entries, next)))
    }

    /// Links a tenant's entries behind the last that is sealed.
    async fn seal_tenant(
        &self,
        tenant: &str,
        found: &[Settled],
    ) -> Result<Result<u64, BrokenSeal>, EngineError> {
        let (mut sealed, mut tries) = (0, 0);
        while tries < TRIES {
            let Ok(headed) = load_head(&self.engine, &self.key, tenant).await? else {
                return Ok(Err(BrokenSeal));
            };
            let last = headed.head.last;
            // What is sealed already comes again when a sealer died before it moved the frontier.
            let new: Vec<&Settled> =
                found.iter().filter(|settled| settled.place > last.place).collect();
            if new.is_empty() {
                return Ok(Ok(sealed));
            }
            let open = match self.open_segment(tenant, &headed.head).await? {
                Ok(open) => open,
                Err(BrokenSeal) => return Ok(Err(BrokenSeal)),
            };
            let (segments, last, linked) = self.link(open, &new, last);
            let mut writes = Vec::with_capacity(segments.len() + 1);
            for segment in &segments {
                writes.push(Write::Mark {
                    subject: segment_subject(tenant, segment.number)?,
                    position: segment.lines.len() as u64,
                    value: Body::Set(segment.encode(&self.key, tenant).into()),
                });
            }
            let head = Head { last, ..headed.head };
            let headed = Headed { head, version: headed.version };
            if write_head(&self.engine, &self.key, tenant, &headed, writes).await? {
                sealed += linked as u64;
                if linked == new.len() {
                    return Ok(Ok(sealed));
                }
            } else {
                tries += 1;
            }
        }
        Err(EngineError::Contended("by other sealers"))
    }

    /// The segment that the next entry goes into.
    async fn open_segment(
        &self,
        tenant: &str,
        head: &Head,
    ) -> Result<Result<Segment, BrokenSeal>, EngineError> {
        let Link { segment, hash, .. } = head.last;
        if segment == head.anchor.segment {
            return Ok(Ok(Segment::following(&self.key, &head.last)));
        }
        let open = load_segment(&self.engine, &self.key, tenant, segment).await?;
        // Never goes on from what the head does not confirm.
        Ok(match open.filter(|open| open.after == hash && open.number == segment) {
            None => Err(BrokenSeal),
            Some(open) => Ok(open),
        })
    }

    /// Links entries, into further segments where one is full, as far as one batch goes: the
    /// segments, the last link, and how many entries that are.
    fn link(&self, open: Segment, new: &[&Settled], mut last: Link) -> (Vec<Segment>, Link, usize) {
        let mut segments = vec![open];
        for (linked, settled) in new.iter().enumerate() {
            if segments.last().is_none_or(|open| !open.takes(settled.audited.at)) {
                if segments.len() == SEGMENTS_MAX {
                    return (segments, last, linked);
                }
                segments.push(Segment::following(&self.key, &last));
            }
            if let Some(open) = segments.last_mut() {
                open.append(&self.key, settled);
                let (segment, hash) = (open.number, open.after);
                last = Link { segment, place: settled.place, count: last.count + 1, hash };
            }
        }
        (segments, last, new.len())
    }
}
