//! How relay, workers and projections are doing, from what they left in the store.

use comfy_table::Cell;
use onceward::events::{EventStore, Place};
use onceward::handlers::read_offset;
use onceward::projection::Projecting;
use onceward::relay::{Log as _, RelayStatus, read_checkpoint};
use onceward_reference::ontology::Workers;
use serde_json::{Value, json};

use super::{failed, named};
use crate::failure::Failure;
use crate::output::{Out, plain_line};

/// Events that a lag is counted up to.
const LAG_MAX: usize = 100_000;
/// Events of one read.
const READ: usize = 2_000;

/// One line about a relay at work.
pub(super) fn relay_line(status: &RelayStatus) -> String {
    let held = status.held_by.as_deref().map(|by| format!("; held by {}", plain_line(by)));
    format!(
        "relay {} at {}, {} published{}",
        if status.active { "works" } else { "stands by" },
        status.acknowledged,
        status.published,
        held.unwrap_or_default()
    )
}

/// One line about a view that is kept up to date.
pub(super) fn view_line(name: &str, one: &Projecting) -> String {
    let (generation, progress) = one.progress();
    let held = progress.held_by.as_deref().map(|by| format!(" (held by {})", plain_line(by)));
    format!(
        "{name}@{generation} {} at {}, {} handled, {} waiting{}",
        if progress.active { "works" } else { "stands by" },
        progress.place,
        progress.finished,
        progress.waiting,
        held.unwrap_or_default()
    )
}

/// How many events lie behind a place, counted up to a bound.
async fn lag(events: &EventStore, after: Place) -> Result<usize, Failure> {
    let (mut at, mut count) = (after, 0);
    while count < LAG_MAX {
        let page = events.read_after(at, READ).await.map_err(failed)?;
        let Some((last, _)) = page.last() else { break };
        at = *last;
        count += page.len();
    }
    Ok(count)
}

fn shown_lag(lag: usize) -> String {
    if lag >= LAG_MAX { format!("{LAG_MAX} or more") } else { lag.to_string() }
}

/// Tells how far the relay has come.
pub(super) async fn relay(workers: &Workers, out: &Out) -> Result<(), Failure> {
    let events = workers.events();
    let bucket = events.objects().store();
    let checkpoint = read_checkpoint(bucket, Workers::RELAY).await.map_err(failed)?;
    let checkpoint = checkpoint.unwrap_or_default();
    let head = events.head().await.map_err(failed)?;
    let end = workers.log().end().await.map_err(failed)?;
    let lag = lag(events, end).await?;
    if out.is_json() {
        return out.print_json(&json!({
            "relay": Workers::RELAY,
            "head": head.to_string(),
            "published_to": end.to_string(),
            "checkpoint": checkpoint.place().to_string(),
            "fence": checkpoint.fence,
            "published": checkpoint.published,
            "lag_events": lag,
            "held_by": checkpoint.held_by,
        }));
    }
    let fields = [
        ("relay", Workers::RELAY.to_owned()),
        ("last event", head.to_string()),
        ("published to", end.to_string()),
        ("checkpoint", checkpoint.place().to_string()),
        ("published", checkpoint.published.to_string()),
        ("lag", format!("{} events", shown_lag(lag))),
        ("held by", plain_line(checkpoint.held_by.as_deref().unwrap_or("nothing"))),
    ];
    out.print(&out.fields(&fields))
}

/// Tells how far views have come.
pub(super) async fn views(workers: &Workers, names: &[&str], out: &Out) -> Result<(), Failure> {
    let mut items: Vec<Value> = Vec::new();
    let mut table = out.table(&["VIEW", "GENERATION", "PLACE", "EVENTS", "LAG", "HELD BY"]);
    for name in names {
        let projection = named(workers, name)?;
        let generation = projection.generation().await?.live;
        let handler = projection.handler_name(generation);
        let engine = workers.events().engine();
        let offset = read_offset(engine, &handler).await?.unwrap_or_default();
        let lag = lag(workers.events(), offset.place()).await?;
        items.push(json!({
            "view": name,
            "generation": generation,
            "place": offset.place().to_string(),
            "events": offset.events,
            "lag_events": lag,
            "held_by": offset.held_by,
        }));
        table.add_row([
            Cell::new(name),
            Cell::new(generation),
            Cell::new(offset.place()),
            Cell::new(offset.events),
            Cell::new(shown_lag(lag)),
            Cell::new(plain_line(offset.held_by.as_deref().unwrap_or("nothing"))),
        ]);
    }
    if out.is_json() {
        return out.print_json(&json!({ "items": items }));
    }
    out.print(&out.render(&table))
}
