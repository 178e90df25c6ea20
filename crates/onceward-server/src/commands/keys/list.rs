//! `onceward keys list`: a page of records, in the state they have by the store's clock.
//!
//! Stores list by the state as written. A done record past its retention is expired without having
//! been written again, so those two states are filtered here.

use comfy_table::Cell;
use onceward::store::{Cursor, Items, List, Page, Store};
use onceward_core::record::{Record, State};
use onceward_core::stamp::At;
use onceward_core::text::escape;
use serde_json::{Value, json};

use super::record_json;
use crate::cli::{KeysList, LIMIT_MAX};
use crate::commands::reading;
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line, state_cell};
use crate::times::relative;

/// Lists records.
pub(crate) async fn list(url: &StoreUrl, args: &KeysList, out: &Out) -> Result<(), Failure> {
    let found = reading(url, |store| async move { find(&*store, args).await }).await?;
    if out.is_json() {
        let items: Vec<Value> = found.records.iter().map(|r| record_json(r, found.now)).collect();
        let next = found.next.map(|cursor| cursor.0);
        return out.print_json(&json!({ "items": items, "next": next }));
    }
    let mut text = if found.records.is_empty() {
        format!("No records in {} fit.\n", url.shown())
    } else {
        table(&found, out)
    };
    if let Some(next) = &found.next {
        text.push_str(&format!("\nThere are more: go on with --after '{}'\n", plain_line(&next.0)));
    }
    out.print(&text)
}

struct Listed {
    now: At,
    records: Vec<Record>,
    next: Option<Cursor>,
}

fn table(found: &Listed, out: &Out) -> String {
    let headers = ["KEY", "STATE", "ATTEMPT", "FENCE", "CREATED", "DUE OR EXPIRES", "OWNER"];
    let mut table = out.table(&headers);
    for record in &found.records {
        table.add_row([
            Cell::new(plain_line(&record.key.to_string())),
            state_cell(record.state_at(found.now)),
            Cell::new(record.attempt),
            Cell::new(record.last_fence),
            Cell::new(relative(record.created_at, found.now)),
            Cell::new(next_instant(record, found.now)),
            Cell::new(record.owner.as_deref().map(plain_line).unwrap_or_default()),
        ]);
    }
    out.render(&table)
}

/// What happens next to a record, and when.
fn next_instant(record: &Record, now: At) -> String {
    let when = |at: Option<At>| at.map(|at| relative(at, now)).unwrap_or_default();
    match record.state_at(now) {
        State::Running if record.lapsed_at(now) => format!("lapsed {}", when(record.due_at)),
        State::Running => format!("leased until {}", when(record.due_at)),
        State::Pending | State::Failed => format!("due {}", when(record.due_at)),
        State::Done => format!("expires {}", when(record.expires_at)),
        State::Expired => format!("expired {}", when(record.expires_at)),
        State::Dead | State::Unknown => "needs a hand".into(),
    }
}

/// Pages through the store until enough records are in the wanted state.
async fn find(store: &dyn Store, args: &KeysList) -> Result<Listed, Failure> {
    let written = match args.state {
        Some(State::Expired) => None,
        state => state,
    };
    let what = || List::Records {
        tenant: args.tenant.as_deref().map(|tenant| escape(tenant).into_owned()),
        scope: args.scope.as_deref().map(|scope| escape(scope).into_owned()),
        state: written,
    };
    let filtered = matches!(args.state, Some(State::Expired | State::Done));
    let limit = usize::from(args.page.limit);
    let mut after = args.page.after.clone().map(Cursor);
    let mut found: Vec<Record> = Vec::new();
    loop {
        let missing = limit - found.len();
        // While searching, pages are as large as they may be.
        let size = if filtered { usize::from(LIMIT_MAX) } else { missing };
        let mut page = store.list(what(), after.clone(), size).await?;
        let now = page.now;
        let fits = |record: &Record| args.state.is_none_or(|wanted| record.state_at(now) == wanted);
        if let Some(end) = end_of_page(&page, missing, fits) {
            // Cursors are the store's: asked for a page that ends here, it says where that is.
            page = store.list(what(), after.clone(), end).await?;
        }
        let Items::Records(records) = page.items else {
            return Err(Failure::failed("store.corrupt", "the store listed something else"));
        };
        found.extend(records.into_iter().filter(fits).take(missing));
        after = page.next;
        if after.is_none() || found.len() == limit {
            return Ok(Listed { now, records: found, next: after });
        }
    }
}

/// How many records to take so that `wanted` of them fit; none when the whole page may be taken.
fn end_of_page(page: &Page, wanted: usize, fits: impl Fn(&Record) -> bool) -> Option<usize> {
    let Items::Records(records) = &page.items else { return None };
    let fitting = records.iter().enumerate().filter(|(_, record)| fits(record));
    let (last, _) = fitting.take(wanted).nth(wanted - 1)?;
    (last + 1 < records.len()).then_some(last + 1)
}
