//! `onceward keys list`: a page of records, in the state they have by the store's clock.
//!
//! Stores list by the state as written. A done record past its retention is expired without having
//! been written again, so those two states are filtered here.

use comfy_table::Cell;
use onceward::engine::{EngineError, STORE_SPACE_PREFIX, STORE_TENANT};
use onceward::store::{Cursor, Items, List, Page, StoreError};
use onceward_core::key::Kind;
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
    let wanted = Wanted {
        tenant: args.tenant.clone(),
        kind: None,
        scope: args.scope.clone(),
        state: args.state,
        limit: args.page.limit,
        after: args.page.after.clone().map(Cursor),
    };
    print(url, wanted, out).await
}

/// Prints the records that are wanted.
pub(crate) async fn print(url: &StoreUrl, wanted: Wanted, out: &Out) -> Result<(), Failure> {
    let found = reading(url, |store| async move {
        let list = |what, after, limit| {
            let store = store.clone();
            async move { store.list(what, after, limit).await.map_err(Failure::from) }
        };
        find(list, &wanted).await
    })
    .await?;
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

/// Which records are wanted, by the store's clock.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Only this tenant's.
    pub(crate) tenant: Option<String>,
    /// Only of this kind.
    pub(crate) kind: Option<Kind>,
    /// Only of this scope.
    pub(crate) scope: Option<String>,
    /// Only in this state.
    pub(crate) state: Option<State>,
    /// How many at most.
    pub(crate) limit: u16,
    /// Where an earlier page ended.
    pub(crate) after: Option<Cursor>,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Listed {
    /// The store's instant of the look.
    pub(crate) now: At,
    /// The records.
    pub(crate) records: Vec<Record>,
    /// Where the next page starts.
    pub(crate) next: Option<Cursor>,
}

fn table(found: &Listed, out: &Out) -> String {
    let headers = ["KEY", "STATE", "ATTEMPT", "FENCE", "CREATED", "DUE OR EXPIRES", "OWNER"];
    let mut table = out.table(&headers);
    for record in &found.records {
        table.add_row([
            Cell::new(plain_line(&record.key.to_string())),
            state_cell(record.shown_at(found.now)),
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
    match record.shown_at(now) {
        State::Running if record.lapsed_at(now) => format!("lapsed {}", when(record.due_at)),
        State::Running => format!("leased until {}", when(record.due_at)),
        State::Pending | State::Failed => format!("due {}", when(record.due_at)),
        State::Done => format!("expires {}", when(record.expires_at)),
        State::Expired => format!("expired {}", when(record.expires_at)),
        State::Dead | State::Unknown => "needs a hand".into(),
    }
}

/// Pages through the store until enough records are in the wanted state.
pub(crate) async fn find<F, E>(
    list: impl Fn(List, Option<Cursor>, usize) -> F,
    wanted: &Wanted,
) -> Result<Listed, E>
where
    F: Future<Output = Result<Page, E>>,
    E: From<EngineError>,
{
    // What is read off the clock is written as something else.
    let written = match wanted.state {
        Some(State::Expired | State::Unknown) => None,
        state => state,
    };
    let what = || List::Records {
        tenant: wanted.tenant.as_deref().map(|tenant| escape(tenant).into_owned()),
        scope: wanted.scope.as_deref().map(|scope| escape(scope).into_owned()),
        state: written,
    };
    let by_clock = [State::Expired, State::Done, State::Unknown, State::Running];
    let filtered = wanted.kind.is_some() || wanted.state.is_some_and(|is| by_clock.contains(&is));
    let limit = usize::from(wanted.limit);
    let mut after = wanted.after.clone();
    let mut found: Vec<Record> = Vec::new();
    loop {
        let missing = limit - found.len();
        // While searching, pages are as large as they may be.
        let size = if filtered { usize::from(LIMIT_MAX) } else { missing };
        let mut page = list(what(), after.clone(), size).await?;
        let now = page.now;
        let fits = |record: &Record| {
            wanted.state.is_none_or(|state| record.shown_at(now) == state)
                && wanted.kind.is_none_or(|kind| record.key.kind() == kind)
                && (wanted.tenant.is_some() || !is_the_stores_own(record))
        };
        if let Some(end) = end_of_page(&page, missing, fits) {
            // Cursors are the store's: asked for a page that ends here, it says where that is.
            page = list(what(), after.clone(), end).await?;
        }
        let Items::Records(records) = page.items else {
            let error = StoreError::Corrupt("the store listed something else".into());
            return Err(EngineError::from(error).into());
        };
        found.extend(records.into_iter().filter(fits).take(missing));
        after = page.next;
        if after.is_none() || found.len() == limit {
            return Ok(Listed { now, records: found, next: after });
        }
    }
}

/// Whether a record is the store's own: recurring work of its servers. Shown to who asks for it.
fn is_the_stores_own(record: &Record) -> bool {
    record.key.tenant_column() == STORE_TENANT
        && record.key.scope_column().starts_with(STORE_SPACE_PREFIX)
}

/// How many records to take so that `wanted` of them fit; none when the whole page may be taken.
fn end_of_page(page: &Page, wanted: usize, fits: impl Fn(&Record) -> bool) -> Option<usize> {
    let Items::Records(records) = &page.items else { return None };
    let fitting = records.iter().enumerate().filter(|(_, record)| fits(record));
    let (last, _) = fitting.take(wanted).nth(wanted - 1)?;
    (last + 1 < records.len()).then_some(last + 1)
}
