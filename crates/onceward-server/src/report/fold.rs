//! What each report adds up, and its rows. Nothing here asks a store.
//!
//! Only requests count: jobs and events have reports of their own. Members are named as the columns
//! of the SQL views are, so that both ways of asking answer alike.

use std::collections::BTreeMap;

use clap::ValueEnum;
use onceward_core::key::Kind;
use onceward_core::record::{Record, State};
use onceward_core::stamp::At;
use serde_json::{Value, json};

use crate::times::rfc3339;

/// Rows of a report at most; what comes after is left out, and the report says so.
const ROWS_MAX: usize = 10_000;
const HOUR_MS: u64 = 3_600_000;

/// Which report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// Keys per tenant and route, how many are done, and how long that took.
    Usage,
    /// Keys that came with another payload, per hour.
    Conflicts,
    /// Keys per route, how many are past their time, and how long they are kept.
    Retention,
}

impl Question {
    /// Every report.
    pub(crate) const ALL: [Self; 3] = [Self::Usage, Self::Conflicts, Self::Retention];

    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Conflicts => "conflicts",
            Self::Retention => "retention",
        }
    }

    /// Reads [`Question::as_str`] back.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|question| question.as_str() == text)
    }
}

/// Rows by what they are about, bounded.
#[derive(Debug)]
struct Rows<K, R> {
    rows: BTreeMap<K, R>,
    cut: bool,
}

impl<K, R> Default for Rows<K, R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), cut: false }
    }
}

impl<K: Ord, R: Default> Rows<K, R> {
    /// The row of a key; none when there are too many.
    fn row(&mut self, key: K) -> Option<&mut R> {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            self.cut = true;
            return None;
        }
        Some(self.rows.entry(key).or_default())
    }
}

/// A sum of lengths of time, and how many they were.
#[derive(Debug, Default, Clone, Copy)]
struct Mean {
    sum_ms: u128,
    count: u64,
}

impl Mean {
    fn add(&mut self, ms: u64) {
        self.sum_ms += u128::from(ms);
        self.count += 1;
    }

    /// Seconds, to the millisecond; null when nothing was added.
    fn seconds(&self) -> Value {
        match self.count {
            0 => Value::Null,
            count => json!((self.sum_ms / u128::from(count)) as f64 / 1_000.0),
        }
    }
}

#[derive(Debug, Default)]
struct Used {
    total: u64,
    completed: u64,
    took: Mean,
}

/// Usage per tenant and route.
#[derive(Debug)]
pub(super) struct Usage {
    since: At,
    rows: Rows<(String, String), Used>,
}

impl Usage {
    pub(super) fn new(since: At) -> Self {
        Self { since, rows: Rows::default() }
    }

    pub(super) fn add(&mut self, record: &Record) {
        if record.key.kind() != Kind::Request || record.created_at < self.since {
            return;
        }
        let key = (record.key.tenant().into_owned(), record.key.scope().into_owned());
        let Some(row) = self.rows.row(key) else { return };
        row.total += 1;
        match record.state {
            State::Done => {
                row.completed += 1;
                row.took.add(record.updated_at.since(record.created_at));
            }
            // A sweep wrote it last: when it was done is not known any more.
            State::Expired => row.completed += 1,
            _ => {}
        }
    }

    /// The rows, the most used first, and whether some are missing.
    pub(super) fn items(self) -> (Vec<Value>, bool) {
        let mut rows: Vec<_> = self.rows.rows.into_iter().collect();
        rows.sort_by_key(|(_, used)| std::cmp::Reverse(used.total));
        let item = |((tenant, route), used): ((String, String), Used)| {
            json!({
                "tenant_id": tenant, "route_pattern": route, "total_keys": used.total,
                "completed": used.completed, "avg_processing_time": used.took.seconds(),
            })
        };
        (rows.into_iter().map(item).collect(), self.rows.cut)
    }
}

/// Conflicts per hour.
#[derive(Debug, Default)]
pub(super) struct Conflicts(Rows<u64, u64>);

impl Conflicts {
    pub(super) fn add(&mut self, at: At) {
        if let Some(count) = self.0.row(at.0 - at.0 % HOUR_MS) {
            *count += 1;
        }
    }

    /// The hours in their order, and whether some are missing.
    pub(super) fn items(self) -> (Vec<Value>, bool) {
        let rows = self.0.rows.into_iter();
        let item =
            |(hour, count): (u64, u64)| json!({ "hour": rfc3339(At(hour)), "conflicts": count });
        (rows.map(item).collect(), self.0.cut)
    }
}

#[derive(Debug, Default)]
struct Kept {
    total: u64,
    expired: u64,
    ttl: Mean,
}

/// How long keys are kept, per route.
#[derive(Debug, Default)]
pub(super) struct Retention(Rows<String, Kept>);

impl Retention {
    pub(super) fn add(&mut self, record: &Record, now: At) {
        if record.key.kind() != Kind::Request {
            return;
        }
        let Some(row) = self.0.row(record.key.scope().into_owned()) else { return };
        row.total += 1;
        row.expired += u64::from(record.state_at(now) == State::Expired);
        if let Some(end) = record.expires_at {
            row.ttl.add(end.since(record.created_at));
        }
    }

    /// The routes in their order, and whether some are missing.
    pub(super) fn items(self) -> (Vec<Value>, bool) {
        let item = |(route, kept): (String, Kept)| {
            json!({
                "route_pattern": route, "total_keys": kept.total, "expired": kept.expired,
                "avg_ttl_seconds": kept.ttl.seconds(),
            })
        };
        (self.0.rows.into_iter().map(item).collect(), self.0.cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e07_conflicts_are_counted_by_the_hour_they_came_in() {
        let mut conflicts = Conflicts::default();
        for at in [0, 1, HOUR_MS - 1, HOUR_MS, 26 * HOUR_MS + 5] {
            conflicts.add(At(at));
        }
        let (items, cut) = conflicts.items();
        let told = items.iter().map(|item| (item["hour"].as_str().unwrap(), &item["conflicts"]));
        let expected = [
            ("1970-01-01T00:00:00.000Z", &json!(3)),
            ("1970-01-01T01:00:00.000Z", &json!(1)),
            ("1970-01-02T02:00:00.000Z", &json!(1)),
        ];
        assert_eq!((told.collect::<Vec<_>>(), cut), (expected.to_vec(), false));
    }

    #[test]
    fn rows_are_bounded_and_a_report_that_is_cut_says_so() {
        let mut conflicts = Conflicts::default();
        for hour in 0..=ROWS_MAX as u64 {
            conflicts.add(At(hour * HOUR_MS));
        }
        conflicts.add(At(0));
        let (items, cut) = conflicts.items();
        assert_eq!((items.len(), cut, &items[0]["conflicts"]), (ROWS_MAX, true, &json!(2)));
    }

    #[test]
    fn a_mean_is_in_seconds_and_null_without_anything() {
        let mut mean = Mean::default();
        assert_eq!(mean.seconds(), Value::Null);
        mean.add(1_000);
        mean.add(2_001);
        assert_eq!(mean.seconds(), json!(1.5));
    }
}
