//! Backfill: documents and keys for measurements that came before there were any (D10).
//!
//! Only ids count: what came before is not judged by its order, and moves the last timestamp
//! forward where it is later. Everything is done by id, so that a run which broke off, or is run
//! again, ends where one whole run would have.

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use onceward::core::audit::Trace;
use onceward::core::decide::Effects;
use onceward::engine::{Engine, EngineError};

use super::Settings;
use super::attempt::{Action, Attempt};
use super::batch::settle_all;
use super::fold::{Folding, Item, OfUser};
use super::measurement::{FieldError, Submitted};
use super::rules::{Judged, Rules};
use super::settle::{Context, Verdict};

/// Keys that are made beside each other for documents that have none.
const KEYS_AT_ONCE: usize = 64;

/// A line of what is to be taken in.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its number, from 1.
    pub number: u64,
    /// A measurement as JSON, with its `user_id`.
    pub json: String,
}

/// What became of the lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackfillReport {
    /// Measurements that were taken in.
    pub made: u64,
    /// Measurements that were there, and got a key.
    pub keyed: u64,
    /// Measurements that were there with their key.
    pub there: u64,
    /// Lines that were not taken in, and why.
    pub refused: Vec<(u64, String)>,
}

impl BackfillReport {
    /// Adds what became of further lines.
    pub fn add(&mut self, other: Self) {
        self.made += other.made;
        self.keyed += other.keyed;
        self.there += other.there;
        self.refused.extend(other.refused);
    }
}

/// Takes in some lines of one organisation; what became of each.
///
/// # Errors
/// When the store gives no answer. Running it again with the same lines is safe.
pub async fn backfill(
    engine: &Engine,
    tenant: &str,
    settings: &Settings,
    lines: &[Line],
) -> Result<BackfillReport, EngineError> {
    let mut report = BackfillReport::default();
    let trace = Trace { actor: Some("backfill".into()), ..Trace::default() };
    let context = Context { tenant, trace: &trace, settings };
    let rules = Rules::of_backfill();
    let users = grouped(lines, &mut report);
    let sent: BTreeMap<usize, _> = users
        .iter()
        .flat_map(|user| &user.items)
        .map(|item| (item.index, item.measurement.clone()))
        .collect();
    let folding = Folding { engine, context, fail_fast: false, began: Instant::now() };
    let settled = settle_all(&folding, users, &|_: &str| rules).await?;
    let mut known = Vec::new();
    for item in settled {
        let number = lines[item.index].number;
        match item.judged {
            Judged::Accepted(_) => report.made += 1,
            Judged::Duplicate(_) => known.extend(sent.get(&item.index)),
            Judged::Conflict(_) => {
                let id = sent.get(&item.index).map_or("", |sent| &sent.id);
                let why = format!("measurement {id} is there with another payload");
                report.refused.push((number, why));
            }
            Judged::Future => {
                report.refused.push((number, "timestamp lies in the future".into()));
            }
            Judged::OutOfOrder { .. } | Judged::Skipped => {}
        }
    }
    let keyed: Vec<bool> = stream::iter(known)
        .map(|measurement| async move {
            let judged = Judged::Skipped;
            let verdict = Verdict { measurement, payload: None, rules: &rules, judged: &judged };
            let attempt = Attempt {
                user_id: &measurement.user_id,
                id: Some(&measurement.id),
                action: Action::Backfilled,
                reason: Some("it was there without a key"),
                payload: None,
                payload_hash: Some(measurement.payload.fingerprint().to_string()),
            };
            let effects = Effects {
                keys: vec![verdict.done_key(context)?],
                audit: vec![attempt.entry(tenant, context.trace)],
                ..Effects::default()
            };
            // Refused: the key is there.
            Ok::<_, EngineError>(engine.write(tenant, &effects).await?.is_none())
        })
        .buffer_unordered(KEYS_AT_ONCE)
        .try_collect()
        .await?;
    report.keyed += keyed.iter().filter(|made| **made).count() as u64;
    report.there += keyed.iter().filter(|made| !**made).count() as u64;
    report.refused.sort();
    Ok(report)
}

/// The lines by user, in the order of time; an item's index is the line's place.
fn grouped(lines: &[Line], report: &mut BackfillReport) -> Vec<OfUser> {
    let mut by_user: BTreeMap<String, Vec<Item>> = BTreeMap::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(sent) = Submitted::of_json(line.json.as_bytes()) else {
            let why = "is not a JSON object without repetition";
            report.refused.push((line.number, why.into()));
            continue;
        };
        match sent.read(None) {
            Ok(measurement) => {
                let payload = sent.audited();
                let items = by_user.entry(measurement.user_id.clone()).or_default();
                items.push(Item { index, measurement, payload });
            }
            Err(errors) => report.refused.push((line.number, FieldError::sentence(&errors))),
        }
    }
    let users = by_user.into_iter().map(|(user_id, mut items)| {
        items.sort_by_key(|item| (item.measurement.payload.at_ms, item.index));
        OfUser { user_id, items }
    });
    users.collect()
}
