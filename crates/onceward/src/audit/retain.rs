//! Retention: whole segments whose youngest entry is past its time go, and the anchor moves behind
//! them, in one batch each.
//!
//! Conditional on the head, so two at once do no harm, and a process may die anywhere. What is not
//! sealed is never dropped: the chain would have a hole that nobody could tell from a theft.

use onceward_core::audit::Entry;
use onceward_core::batch::Write;
use onceward_core::record::Body;
use onceward_core::seal::{Head, Link, Segment};
use onceward_core::stamp::At;

use super::seal::Sealer;
use super::seals::{Headed, load_head, load_segment, sealed_tenants, segment_subject, write_head};
use crate::engine::EngineError;

/// The action of the entry that says what retention dropped.
const RETAINED: &str = "audit.retained";

/// What retention did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retained {
    /// Entries that were dropped.
    pub dropped: u64,
    /// Segments that they were sealed in.
    pub segments: u64,
}

impl Sealer {
    /// Drops sealed segments whose entries are all older than this. `progress` hears the totals
    /// after each segment.
    ///
    /// # Errors
    /// When the store gives no answer; what was dropped until then stays dropped behind its anchor.
    pub async fn retain(
        &self,
        keep_ms: u64,
        mut progress: impl FnMut(&Retained),
    ) -> Result<Retained, EngineError> {
        let mut total = Retained::default();
        let now = self.engine.now().await?;
        let Some(before) = now.0.checked_sub(keep_ms).map(At) else { return Ok(total) };
        let mut after = None;
        loop {
            let (tenants, next) = sealed_tenants(&self.engine, after).await?;
            for tenant in tenants {
                self.retain_tenant(&tenant, before, &mut total, &mut progress).await?;
            }
            after = next;
            if after.is_none() {
                return Ok(total);
            }
        }
    }

    async fn retain_tenant(
        &self,
        tenant: &str,
        before: At,
        total: &mut Retained,
        progress: &mut impl FnMut(&Retained),
    ) -> Result<(), EngineError> {
        let mut dropped = Retained::default();
        loop {
            let Ok(headed) = load_head(&self.engine, &self.key, tenant).await? else {
                // Nothing is dropped from a chain that can't be read: it is evidence.
                break;
            };
            let Some(entries) = self.drop_first(tenant, &headed, before).await? else { break };
            dropped.dropped += entries;
            dropped.segments += 1;
            total.dropped += entries;
            total.segments += 1;
            progress(total);
        }
        if dropped.segments > 0 {
            let mut entry = Entry::new(tenant, RETAINED);
            let Retained { dropped, segments } = dropped;
            entry.detail =
                Some(format!("{{\"dropped\":{dropped},\"segments\":{segments}}}").into());
            self.engine.audit(&entry).await?;
        }
        Ok(())
    }

    /// Drops the first segment behind the anchor, if all of it is past its time. `None` when there
    /// is nothing to drop, or others are at it.
    async fn drop_first(
        &self,
        tenant: &str,
        headed: &Headed,
        before: At,
    ) -> Result<Option<u64>, EngineError> {
        let Headed { head, version } = headed;
        let number = head.anchor.segment + 1;
        if number > head.last.segment {
            return Ok(None);
        }
        let segment = load_segment(&self.engine, &self.key, tenant, number).await?;
        let past =
            |segment: &Segment| segment.before == head.anchor.hash && segment.latest < before;
        let follows = segment.filter(past);
        let Some(segment) = follows else { return Ok(None) };
        let Some(last) = segment.lines.last() else { return Ok(None) };
        let entries = segment.lines.len() as u64;
        let anchor = Link {
            segment: number,
            place: last.place,
            count: head.anchor.count + entries,
            hash: segment.after,
        };
        let writes = vec![
            Write::Prune { tenant: tenant.into(), through: last.place, until: segment.latest },
            Write::Mark {
                subject: segment_subject(tenant, number)?,
                position: entries,
                value: Body::Clear,
            },
        ];
        let moved = Headed { head: Head { anchor, ..*head }, version: *version };
        // Refused: a sealer wrote the head meanwhile. What is left is dropped next time.
        let done = write_head(&self.engine, &self.key, tenant, &moved, writes).await?;
        Ok(done.then_some(entries))
    }
}
