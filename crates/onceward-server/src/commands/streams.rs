//! `onceward streams`: looks at the events of a store. Reads only, also while a server runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use comfy_table::Cell;
use onceward::engine::{Engine, EngineError};
use onceward::events::{Event, EventStore, EventsError, Objects, Place, Stream};
use onceward_core::diff::default_mask;
use onceward_core::mask::mask_shown;
use onceward_reference::ontology::Settings;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::reading;
use crate::cli::{EventsAt, Streams};
use crate::events_place;
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line};

/// Events of one read.
const READ: usize = 500;

/// Runs a command.
pub(crate) async fn run(command: &Streams, url: &StoreUrl, out: &Out) -> Result<(), Failure> {
    match command {
        Streams::List { tenant, after, limit, at } => {
            let (tenant, after) = (tenant.clone(), after.clone());
            let limit = usize::from(*limit);
            with_events(url, at, |store| async move {
                list(&store, (tenant, after.as_deref()), limit, out).await
            })
            .await
        }
        Streams::Show { aggregate, tenant, after, limit, at } => {
            let (aggregate, tenant, after) = (aggregate.clone(), tenant.clone(), *after);
            let limit = usize::from(*limit);
            with_events(url, at, |store| async move {
                let tenant = match tenant {
                    Some(tenant) => tenant,
                    None => tenant_of(&store, &aggregate).await?,
                };
                show(&store, (&tenant, &aggregate), (after, limit), out).await
            })
            .await
        }
        Streams::Tail { last, follow, at } => {
            let (last, follow) = (*last, *follow);
            with_events(url, at, |store| async move { tail(&store, last, follow, out).await }).await
        }
    }
}

/// Opens the events for reading, and lets go of the store whatever came of it.
async fn with_events<F>(
    url: &StoreUrl,
    at: &EventsAt,
    look: impl FnOnce(EventStore) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let Some(folder) = events_place::folder(url, at.events.as_deref()) else {
        let message = "a store in memory has no events that another process could read";
        return Err(Failure::usage("streams.memory", message));
    };
    let objects = existing(folder)?;
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    let settings = Settings::read(variable)
        .map_err(|error| Failure::usage("events.setting", error.to_string()))?;
    let mut options = settings.event_store();
    options.name.clone_from(&at.event_store);
    reading(url, |store| async move {
        let engine = Engine::new(Arc::clone(&store));
        let events = EventStore::open_to_read(engine, objects, options).await.map_err(failed)?;
        look(events).await
    })
    .await
}

/// A mistyped path is an error, never a new empty folder.
fn existing(folder: PathBuf) -> Result<Objects, Failure> {
    if !folder.is_dir() {
        let message = format!(
            "{} is no folder; name the one that events are kept in with --events PATH",
            folder.display()
        );
        return Err(Failure::usage("streams.folder", message));
    }
    Objects::folder(folder).map_err(failed)
}

/// Tenants that have events, from all events: only a hand asks without naming one.
async fn tenants(
    store: &EventStore,
    wanted: impl Fn(&Event) -> bool,
) -> Result<BTreeSet<String>, Failure> {
    let (mut tenants, mut after) = (BTreeSet::new(), Place::default());
    loop {
        let events = store.read_after(after, READ).await.map_err(failed)?;
        let Some((last, _)) = events.last() else { return Ok(tenants) };
        after = *last;
        let wanted = events.into_iter().filter(|(_, event)| wanted(event));
        tenants.extend(wanted.map(|(_, event)| event.tenant));
    }
}

/// The one tenant that has an aggregate of this id; nobody's, when none has.
async fn tenant_of(store: &EventStore, aggregate: &str) -> Result<String, Failure> {
    let mut having = tenants(store, |event| event.aggregate_id == aggregate).await?;
    if having.len() > 1 {
        let names: Vec<_> = having.iter().map(|tenant| plain_line(tenant)).collect();
        let message = format!(
            "several tenants have an aggregate of this id; name one with --tenant: {}",
            names.join(", ")
        );
        return Err(Failure::usage("streams.tenant", message));
    }
    Ok(having.pop_first().unwrap_or_else(|| "nobody".into()))
}

async fn list(
    store: &EventStore,
    (tenant, after): (Option<String>, Option<&str>),
    limit: usize,
    out: &Out,
) -> Result<(), Failure> {
    let tenants = match tenant {
        Some(tenant) => BTreeSet::from([tenant]),
        None => tenants(store, |_| true).await?,
    };
    let mut found: Vec<(&str, Stream)> = Vec::new();
    for tenant in &tenants {
        let wanted = limit + 1 - found.len();
        let streams = store.streams(tenant, after, wanted).await.map_err(failed)?;
        found.extend(streams.into_iter().map(|stream| (tenant.as_str(), stream)));
        if found.len() > limit {
            break;
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more);
    if out.is_json() {
        let items: Vec<Value> = found.iter().map(|(tenant, stream)| item(tenant, stream)).collect();
        let next = next.map(|(_, last)| &last.aggregate_id);
        return out.print_json(&json!({ "items": items, "next": next }));
    }
    let mut table = out.table(&["TENANT", "AGGREGATE", "LAST NUMBER"]);
    for (tenant, stream) in &found {
        table.add_row([
            Cell::new(plain_line(tenant)),
            Cell::new(plain_line(&stream.aggregate_id)),
            Cell::new(stream.last),
        ]);
    }
    let mut text = match found.is_empty() {
        true => "No aggregates.\n".to_owned(),
        false => out.render(&table),
    };
    if let Some((tenant, last)) = next {
        let (tenant, last) = (plain_line(tenant), plain_line(&last.aggregate_id));
        text.push_str(&format!(
            "\nThere are more: go on with --tenant '{tenant}' --after '{last}'\n"
        ));
    }
    out.print(&text)
}

/// The last events in the order of all, and those that come when it follows.
async fn tail(store: &EventStore, last: u64, follow: bool, out: &Out) -> Result<(), Failure> {
    let head = store.head().await.map_err(failed)?;
    let mut after = store.place_before(head, last).await.map_err(failed)?;
    loop {
        let events = store.read_after(after, READ).await.map_err(failed)?;
        if let Some((place, _)) = events.last() {
            after = *place;
            print_lines(&events, out)?;
            continue;
        }
        if !follow {
            return Ok(());
        }
        store.wait_after(after).await;
    }
}

/// A page of the events of an aggregate.
async fn show(
    store: &EventStore,
    (tenant, aggregate): (&str, &str),
    (after, limit): (u64, usize),
    out: &Out,
) -> Result<(), Failure> {
    let read = store.read_aggregate(tenant, aggregate, after, limit + 1).await;
    let mut events = read.map_err(failed)?;
    let more = events.len() > limit;
    events.truncate(limit);
    let next = events.last().filter(|_| more).map(|(_, last)| last.sequence_number);
    print_events(&events, next, out)
}

fn print_events(events: &[(Place, Event)], next: Option<u64>, out: &Out) -> Result<(), Failure> {
    if out.is_json() {
        let items = events.iter().map(ShownEvent::of).collect();
        let shown = Shown { items, next: next.map(|number| number.to_string()) };
        return out.print(&(serde_json::to_string_pretty(&shown).map_err(unwritten)? + "\n"));
    }
    if events.is_empty() {
        return out.print("No events.\n");
    }
    let mut table = out.table(&["NUMBER", "KIND", "EVENT ID", "PLACE", "PAYLOAD"]);
    for (place, event) in events {
        table.add_row([
            Cell::new(event.sequence_number),
            Cell::new(plain_line(&event.kind)),
            Cell::new(plain_line(&event.event_id)),
            Cell::new(place),
            Cell::new(payload_line(event)),
        ]);
    }
    let mut text = out.render(&table);
    if let Some(number) = next {
        text.push_str(&format!("\nThere are more: go on with --after {number}\n"));
    }
    out.print(&text)
}

/// One line per event: JSON for programs.
fn print_lines(events: &[(Place, Event)], out: &Out) -> Result<(), Failure> {
    let mut text = String::new();
    for placed in events {
        let (place, event) = placed;
        if out.is_json() {
            text.push_str(&ShownEvent::of(placed).line()?);
        } else {
            text.push_str(&format!(
                "{place}  {}  {} #{}  {}  {}",
                plain_line(&event.tenant),
                plain_line(&event.aggregate_id),
                event.sequence_number,
                plain_line(&event.kind),
                payload_line(event),
            ));
        }
        text.push('\n');
    }
    out.print(&text)
}

/// The beginning of a payload, on one line.
fn payload_line(event: &Event) -> String {
    const SHOWN: usize = 60;
    let shown = mask_shown(&event.payload, &default_mask());
    let text = String::from_utf8_lossy(&shown);
    let cut: String = text.chars().take(SHOWN).collect();
    let dots = if text.chars().count() > SHOWN { "…" } else { "" };
    format!("{}{dots}", plain_line(&cut))
}

/// Events for programs.
#[derive(Serialize)]
struct Shown<'a> {
    items: Vec<ShownEvent<'a>>,
    /// What to go on behind, as a text like every cursor.
    next: Option<String>,
}

#[derive(Serialize)]
struct ShownEvent<'a> {
    place: String,
    tenant: &'a str,
    aggregate_id: &'a str,
    sequence_number: u64,
    event_id: &'a str,
    kind: &'a str,
    correlation_id: Option<&'a str>,
    /// As its writer spelled it: a number that is read and written again may become another. What
    /// is no JSON is a text.
    payload: Box<RawValue>,
}

impl<'a> ShownEvent<'a> {
    fn of((place, event): &'a (Place, Event)) -> Self {
        let text = || to_raw_value(&String::from_utf8_lossy(&event.payload)).unwrap_or_default();
        Self {
            place: place.to_string(),
            tenant: &event.tenant,
            aggregate_id: &event.aggregate_id,
            sequence_number: event.sequence_number,
            event_id: &event.event_id,
            kind: &event.kind,
            correlation_id: event.correlation_id.as_deref(),
            payload: serde_json::from_slice(&event.payload).unwrap_or_else(|_| text()),
        }
    }

    /// On one line: a line break that JSON does not escape stands between its parts only.
    fn line(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(self).map_err(unwritten)?.replace(['\n', '\r'], " "))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn unwritten(error: serde_json::Error) -> Failure {
    Failure::failed("streams", error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn failed(error: EventsError) -> Failure {
    match &error {
        EventsError::Limit(limit) => Failure::usage(error.code(), limit.to_string()),
        EventsError::Engine(EngineError::Limit(limit)) => {
            Failure::usage(error.code(), limit.to_string())
        }
        _ => Failure::failed("streams", error.to_string()),
    }
}

/// A stream, for programs.
fn item(tenant: &str, stream: &Stream) -> Value {
    json!({
        "tenant": tenant,
        "aggregate_id": stream.aggregate_id,
        "sequence_number": stream.last,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(payload: &[u8]) -> String {
        let event = Event {
            tenant: "acme".into(),
            aggregate_id: "a".into(),
            event_id: "e1".into(),
            sequence_number: 1,
            kind: "made".into(),
            payload: payload.to_vec().into(),
            correlation_id: None,
        };
        let line = ShownEvent::of(&(Place { segment: 1, offset: 0 }, event)).line().unwrap();
        let before = r#"{"place":"1.0","tenant":"acme","aggregate_id":"a","sequence_number":1,"#;
        let line = line.strip_prefix(before).unwrap();
        let before = r#""event_id":"e1","kind":"made","correlation_id":null,"payload":"#;
        line.strip_prefix(before).and_then(|line| line.strip_suffix('}')).unwrap().to_string()
    }

    #[test]
    fn a_payload_is_shown_as_its_writer_spelled_it() {
        for payload in [
            r#"{"z":12345678901234567890123,"a":1.10,"z":1E2}"#,
            r#"{"deep":-0.0,"text":"\u0041\n"}"#,
            "null",
        ] {
            assert_eq!(shown(payload.as_bytes()), payload);
        }
        assert_eq!(shown(b"{\n  \"n\": 1.0\r\n}\n"), r#"{   "n": 1.0  }"#, "on one line");
        assert_eq!(shown(b"paid\nby hand"), r#""paid\nby hand""#);
        assert_eq!(shown(b"\xff"), "\"\u{fffd}\"");
    }
}
