//! What ends by itself: a hold, and a payment link that nobody paid.
//!
//! When it ends is written down when it is made, by the store's clock, and whoever looks later
//! sees it as over, whether or not anything ran in between. A hold also has a job that closes it
//! and tells the audit.

use std::time::Duration;

use jiff::Timestamp;
use onceward::core::decide::NewJob;
use onceward::core::limits::LimitError;
use onceward::core::record::Terms;
use onceward::http::Caller;
use onceward::worker::{Context, Done, Job, JobError};

use super::resource::{Kind, Resource};

/// The queue of holds that end.
pub const HOLDS: &str = "business.holds";

/// A hold that keeps its time.
pub(super) const HELD: &str = "held";
/// A payment link that can be paid.
pub(super) const OPEN: &str = "open";
/// What is over.
pub(super) const EXPIRED: &str = "expired";
/// When it is over.
pub(super) const EXPIRES_AT: &str = "expires_at";

/// How long a worker may hold a job without renewing.
const LEASE_MS: u64 = 5_000;

/// The job that closes a hold.
pub(super) fn job(
    caller: &Caller,
    hold: &Resource,
    hold_for: Duration,
) -> Result<NewJob, LimitError> {
    Job::new(&caller.tenant, HOLDS, "expire")
        .resource(hold.subject())
        .payload(hold.id.clone().into_bytes())
        .terms(Terms { lease_ms: LEASE_MS, ..Terms::job() })
        .run_in(hold_for)
        .build()
}

/// Closes a hold whose time is over, in one commit with the end of its job.
pub(super) async fn end(job: Context) -> Result<Done, JobError> {
    let id = std::str::from_utf8(job.payload()).map_err(JobError::permanent)?;
    let seen = job.read(Kind::Hold.space(), id).await?;
    let mut done = Done::new();
    let Some(mut hold) = Resource::of_seen(Kind::Hold, id, &seen) else { return Ok(done) };
    if hold.text("status") != HELD {
        return Ok(done);
    }
    hold.set("status", EXPIRED);
    let version = done.put(&seen, hold.bytes())?;
    let mut entry = job.entry("hold.expire");
    entry.subject = Some(hold.subject().into());
    entry.version_before = Some(seen.version);
    entry.version_after = Some(version);
    done.audit(entry);
    Ok(done)
}

/// Lets a resource that is past its end say so.
pub(super) fn as_of(mut resource: Resource, now: Timestamp) -> Resource {
    let (member, lasting) = match resource.kind {
        Kind::Hold => ("status", HELD),
        Kind::PaymentLink => ("state", OPEN),
        Kind::Estimate | Kind::Customer | Kind::Job => return resource,
    };
    let over = resource.text(EXPIRES_AT).parse::<Timestamp>().is_ok_and(|end| now >= end);
    if over && resource.text(member) == lasting {
        resource.set(member, EXPIRED);
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;
    use serde_json::json;

    #[test]
    fn what_is_past_its_end_is_expired_unless_it_was_closed_before() {
        let end = "2030-01-01T09:00:00Z";
        let shown = |kind, member: &str, word: &str, now: &str| {
            let fields = json!({ member: word, "expires_at": end });
            let resource = Resource::new(kind, "1", 1, &Members::from(&fields));
            as_of(resource, now.parse().unwrap()).text(member)
        };
        let before = "2030-01-01T08:59:59.999Z";
        assert_eq!(shown(Kind::Hold, "status", HELD, before), HELD);
        assert_eq!(shown(Kind::Hold, "status", HELD, end), EXPIRED);
        assert_eq!(shown(Kind::PaymentLink, "state", OPEN, end), EXPIRED);
        assert_eq!(shown(Kind::PaymentLink, "state", "paid", end), "paid");
        assert_eq!(shown(Kind::Customer, "status", HELD, end), HELD, "a customer's own word");
    }
}
