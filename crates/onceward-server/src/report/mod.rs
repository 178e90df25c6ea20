//! `onceward report`: the three questions that people ask of their keys (E07).
//!
//! *Usage*: who uses which route, and how long does it take? *Conflicts*: how often does a key come
//! with another payload, hour by hour? *Retention*: how long are keys kept, and how many are past
//! their time? Answered from the engine's lists, hence on every store and through a running server
//! alike. A report reads all records, a page at a time, and remembers a bounded number of rows.

pub(crate) mod args;
mod fold;
mod show;

pub(crate) use fold::Question;
pub(crate) use show::print;

use onceward::engine::{Engine, EngineError, STORE_SPACE_PREFIX, STORE_TENANT};
use onceward::store::{AuditFilter, Items, List};
use onceward_core::key::Key;
use onceward_core::note::CONFLICT;
use onceward_core::stamp::At;
use onceward_core::text::escape;
use serde_json::{Value, json};

use crate::times::{Moment, rfc3339};
use fold::{Conflicts, Retention, Usage};

/// Records or entries that are read at once.
const PAGE: usize = 1_000;

/// What is asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Which report.
    pub(crate) question: Question,
    /// Only this tenant's; of all without.
    pub(crate) tenant: Option<String>,
    /// Only what began since then. The report on retention is about all that is there.
    pub(crate) since: Moment,
}

/// Answers, as JSON; `progress` hears how many records or entries were looked at.
///
/// # Errors
/// When the store gives no answer.
pub(crate) async fn answer(
    engine: &Engine,
    asked: &Asked,
    progress: impl FnMut(u64),
) -> Result<Value, EngineError> {
    let now = engine.now().await?;
    let since = match asked.question {
        Question::Retention => At(0),
        _ => asked.since.resolve(now),
    };
    let tenant = asked.tenant.as_deref().map(|tenant| escape(tenant).into_owned());
    let (items, cut) = match asked.question {
        Question::Usage => {
            let mut usage = Usage::new(since);
            records(engine, tenant, |record, _| usage.add(record), progress).await?;
            usage.items()
        }
        Question::Retention => {
            let mut retention = Retention::default();
            records(engine, tenant, |record, now| retention.add(record, now), progress).await?;
            retention.items()
        }
        Question::Conflicts => {
            let mut conflicts = Conflicts::default();
            entries(engine, (tenant, since), |at| conflicts.add(at), progress).await?;
            conflicts.items()
        }
    };
    let mut answer = json!({
        "report": asked.question.as_str(), "now": rfc3339(now), "items": items, "truncated": cut,
    });
    if asked.question != Question::Retention {
        answer["since"] = json!(rfc3339(since));
    }
    Ok(answer)
}

async fn records(
    engine: &Engine,
    tenant: Option<String>,
    mut add: impl FnMut(&onceward_core::record::Record, At),
    mut progress: impl FnMut(u64),
) -> Result<(), EngineError> {
    let what = List::Records { tenant, scope: None, state: None };
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = engine.list(what.clone(), after, PAGE).await?;
        if let Items::Records(records) = &page.items {
            let asked = records.iter().filter(|record| !is_own(&record.key));
            asked.for_each(|record| add(record, page.now));
            seen += records.len() as u64;
        }
        progress(seen);
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Whether a record is the store's own: a lease of one who seals, relays or consumes.
fn is_own(key: &Key) -> bool {
    key.tenant() == STORE_TENANT && key.scope().starts_with(STORE_SPACE_PREFIX)
}

async fn entries(
    engine: &Engine,
    (tenant, since): (Option<String>, At),
    mut add: impl FnMut(At),
    mut progress: impl FnMut(u64),
) -> Result<(), EngineError> {
    let action = Some(CONFLICT.to_string());
    let filter = AuditFilter { tenant, action, from: Some(since), ..AuditFilter::default() };
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = engine.list(List::Audit(filter.clone()), after, PAGE).await?;
        if let Items::Audit(entries) = &page.items {
            entries.iter().for_each(|entry| add(entry.at));
            seen += entries.len() as u64;
        }
        progress(seen);
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}
