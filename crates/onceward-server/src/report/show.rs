//! A report as people read it: a table, and a line that says what it is about.

use comfy_table::{Cell, CellAlignment};
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{Out, plain_line};
use crate::times::span;

/// The columns of each report: header, member, and how its values are shown.
const USAGE: [Column; 5] = [
    ("TENANT", "tenant_id", Shown::Text),
    ("ROUTE", "route_pattern", Shown::Text),
    ("KEYS", "total_keys", Shown::Number),
    ("COMPLETED", "completed", Shown::Number),
    ("TOOK", "avg_processing_time", Shown::Time),
];
const CONFLICTS: [Column; 2] =
    [("HOUR", "hour", Shown::Text), ("CONFLICTS", "conflicts", Shown::Number)];
const RETENTION: [Column; 4] = [
    ("ROUTE", "route_pattern", Shown::Text),
    ("KEYS", "total_keys", Shown::Number),
    ("EXPIRED", "expired", Shown::Number),
    ("KEPT FOR", "avg_ttl_seconds", Shown::Time),
];

type Column = (&'static str, &'static str, Shown);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Text,
    Number,
    /// Seconds on average.
    Time,
}

/// Prints a report, as a program or as people want it.
pub(crate) fn print(answer: &Value, place: &str, out: &Out) -> Result<(), Failure> {
    if out.is_json() {
        return out.print_json(answer);
    }
    let (about, columns): (&str, &[Column]) = match answer["report"].as_str() {
        Some("usage") => ("Keys per tenant and route", &USAGE),
        Some("conflicts") => ("Keys that came with another payload, per hour", &CONFLICTS),
        _ => ("Keys per route, and how long they are kept", &RETENTION),
    };
    let since = answer["since"].as_str().map(|since| format!(", since {}", plain_line(since)));
    let mut text = format!("{about} in {place}{}\n\n", since.unwrap_or_default());
    let items = answer["items"].as_array().map_or(&[][..], Vec::as_slice);
    if items.is_empty() {
        text.push_str("None.\n");
    } else {
        let headers: Vec<&str> = columns.iter().map(|(header, ..)| *header).collect();
        let mut table = out.table(&headers);
        for item in items {
            table.add_row(columns.iter().map(|(_, member, shown)| cell(&item[*member], *shown)));
        }
        text.push_str(&out.render(&table));
    }
    if answer["truncated"] == true {
        text.push_str("\nThere are more rows than a report holds: ask for one tenant.\n");
    }
    out.print(&text)
}

fn cell(value: &Value, shown: Shown) -> Cell {
    let text = match (shown, value) {
        (_, Value::Null) => "–".into(),
        (Shown::Text, value) => plain_line(value.as_str().unwrap_or_default()),
        (Shown::Number, value) => value.to_string(),
        (Shown::Time, value) => {
            let ms = value.as_f64().unwrap_or_default() * 1_000.0;
            // Whole milliseconds, and never below 0.
            span(ms as u64)
        }
    };
    let cell = Cell::new(text);
    if shown == Shown::Text { cell } else { cell.set_alignment(CellAlignment::Right) }
}
