//! How requests end: each answer of the table in `docs/outcomes.md`, given by a real handler behind
//! the layer on every store, before and after its effect, and what a retry gets then.
//!
//! The table is the expectation: a row that says something else than the code fails, and so does a
//! row that this test can't read.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

#[path = "http_ends/nested.rs"]
mod nested;
#[path = "http_ends/shop.rs"]
mod shop;
mod support;
#[path = "http_ends/towers.rs"]
mod towers;

use futures_util::future::join_all;
use onceward::http::{Commits, PermitText, Policy};
use onceward_core::outcome_policy::Statuses;
use onceward_core::record::OnAbandoned;
use std::sync::Arc;

use shop::{Ask, Effect, Shop};
use support::on::On;

/// The page, and the heading above its table.
const PAGE: &str = include_str!("../../../docs/outcomes.md");
const HEAD: &str = "| answer | two commits, `rerun` |";

/// What a handler does at its first attempt. At any later one it has its effect and answers 201.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum How {
    Plain,
    RetryAfter,
    Problem,
    Refusal,
    Typed,
    Stream,
    TooLarge,
    Panics,
    Breaks,
}

/// A row: how handlers answer, with which statuses, and what its route says of them.
struct Row {
    label: String,
    statuses: Vec<u16>,
    hows: Vec<How>,
    moved: Statuses,
    written: bool,
    /// One cell per column; an answer's own where a cell has several.
    cells: Vec<String>,
}

fn rows() -> Vec<Row> {
    let lines = PAGE.lines().skip_while(|line| !line.starts_with(HEAD)).skip(2);
    lines.take_while(|line| line.starts_with('|')).map(row).collect()
}

fn row(line: &str) -> Row {
    let mut cells: Vec<String> =
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
    let label = cells.remove(0);
    let words = label.trim_start_matches(|c: char| c.is_ascii_digit() || ", ".contains(c));
    let numbers = &label[..label.len() - words.len()];
    let statuses: Vec<u16> =
        numbers.split(',').filter_map(|number| number.trim().parse().ok()).collect();
    let (mut moved, mut written) = (Statuses::default(), true);
    let hows = match words {
        "" => vec![How::Plain],
        "with `Retry-After`" => vec![How::RetryAfter],
        "with a problem (up to 64 KiB) that says `\"retryable\": true`" => vec![How::Problem],
        "where no routes are written" => {
            written = false;
            vec![How::Plain]
        }
        "by another layer or gateway of ours, unjudged" => vec![How::Refusal],
        "as a stream, or too large to be stored" => vec![How::Stream, How::TooLarge],
        "by a handler's typed refusal" => vec![How::Typed],
        "the handler panics" => vec![How::Panics],
        "the answer breaks off in the middle" => vec![How::Breaks],
        other if other.starts_with("under `final = [") => {
            moved.stored.clone_from(&statuses);
            vec![How::Plain, How::RetryAfter]
        }
        other if other.starts_with("under `retryable = [") => {
            moved.released.clone_from(&statuses);
            vec![How::Plain]
        }
        other => panic!("a row that nobody tests: {other:?}"),
    };
    assert_eq!(cells.len(), COLUMNS.len(), "{line}");
    let statuses = if statuses.is_empty() { vec![200] } else { statuses };
    Row { label, statuses, hows, moved, written, cells }
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    commits: Commits,
    on_abandoned: OnAbandoned,
    upstream: bool,
}

const fn column(commits: Commits, on_abandoned: OnAbandoned, upstream: bool) -> Column {
    Column { commits, on_abandoned, upstream }
}

const COLUMNS: [Column; 5] = [
    column(Commits::Two, OnAbandoned::Rerun, false),
    column(Commits::Two, OnAbandoned::Hold, false),
    // Neither policy matters here: the one that would stop a retry is tried.
    column(Commits::One, OnAbandoned::Hold, false),
    column(Commits::Two, OnAbandoned::Rerun, true),
    column(Commits::Two, OnAbandoned::Hold, true),
];

impl Column {
    fn policy(self, moved: &Statuses) -> Policy {
        let text = || PermitText(Arc::new(|_, fence, _: &Statuses| fence.to_string()));
        Policy {
            commits: self.commits,
            on_abandoned: self.on_abandoned,
            permit_text: self.upstream.then(text),
            statuses: moved.clone(),
            max_stored_bytes: 1_000,
            ..Policy::default()
        }
    }
}

impl Row {
    /// What the table says of one of its answers.
    fn cell(&self, column: usize, status: usize) -> &str {
        let cells: Vec<_> = self.cells[column].split(", ").collect();
        cells[status.min(cells.len() - 1)]
    }
}

/// Everything that a row says of one column.
async fn column_holds(shop: &mut Shop, row: &Row, column: usize) {
    let at = COLUMNS[column];
    shop.serve(at.policy(&row.moved), row.written);
    let mut asks = Vec::new();
    for how in &row.hows {
        for (number, status) in row.statuses.iter().enumerate() {
            for effect in [Effect::Before, Effect::After] {
                let ask = Ask { how: *how, status: *status, effect };
                asks.push((ask, row.cell(column, number)));
            }
        }
    }
    // Side by side: they share the store's commits.
    let shop = &*shop;
    join_all(asks.into_iter().map(async |(ask, expected)| {
        let told = format!("{}: {ask:?} under {at:?}", row.label);
        assert_eq!(shop.ends(ask, at, &told).await, expected, "{told}");
    }))
    .await;
}

async fn h5_every_answer_ends_as_the_table_says(on: On) {
    let rows = rows();
    assert!(rows.len() >= 15, "the table has {} rows", rows.len());
    let mut shop = Shop::open(on).await;
    for row in &rows {
        for column in 0..COLUMNS.len() {
            column_holds(&mut shop, row, column).await;
        }
    }
}

on_every_store! { h5_every_answer_ends_as_the_table_says }
