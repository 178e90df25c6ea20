//! The auditor: reads every sink by a way of its own, and counts.

use std::collections::BTreeMap;

use onceward::core::key::Subject;
use onceward::core::text::unescape;
use onceward::events::Event;

use super::file_log::FileLog;
use super::place::{AGGREGATES, EACH, On, Place, TENANT, connect};

/// What a run left.
#[derive(Debug)]
pub(crate) struct Left {
    /// Events in the event store.
    pub(crate) events: usize,
    /// Lines in the broker's log, and whether each is an event as it was appended.
    pub(crate) published: usize,
    pub(crate) same_bytes: bool,
    /// Effects of each event.
    pub(crate) transactional: Vec<usize>,
    pub(crate) foreign: Vec<usize>,
    pub(crate) fences_rise: bool,
    pub(crate) one_key_per_event: bool,
    /// What differs between the view and the fold of the event store.
    pub(crate) view: Option<String>,
}

type View = BTreeMap<String, (u64, Option<Vec<u8>>)>;

pub(crate) async fn audit(place: &Place) -> Left {
    let engine = place.engine().await;
    let store = place.events(&engine).await;
    let events = store.read_after(onceward::events::Place::default(), 1_000).await.unwrap();
    let events: Vec<Event> = events.into_iter().map(|(_, event)| event).collect();
    let mut transactional = Vec::new();
    for aggregate in AGGREGATES {
        let subject = Subject::new(TENANT, "ledger", aggregate).unwrap();
        let document = engine.get(&subject).await.unwrap();
        let text = document.map_or_else(String::new, |d| String::from_utf8_lossy(&d.value).into());
        let lines: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(lines.is_sorted(), "i28: a lower number took effect after a higher one: {lines:?}");
        for number in 1..=EACH {
            transactional.push(lines.iter().filter(|line| **line == number).count());
        }
    }
    store.close().await.unwrap();
    engine.close().await.unwrap();
    let published = FileLog(place.folder.join("log")).all();
    let same_bytes = published.iter().all(|event| events.contains(event));
    let (foreign, fences_rise, one_key_per_event) = ledger(place, &events);
    let (there, wanted) = (view(place).await, folded(&events));
    let view = (there != wanted).then(|| format!("{there:?} is not {wanted:?}"));
    Left {
        events: events.len(),
        published: published.len(),
        same_bytes,
        transactional,
        foreign,
        fences_rise,
        one_key_per_event,
        view,
    }
}

/// The lines of the foreign ledger.
fn ledger(place: &Place, events: &[Event]) -> (Vec<usize>, bool, bool) {
    let text = std::fs::read_to_string(place.folder.join("ledger")).unwrap();
    let mut effects: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for line in text.lines() {
        let [event, key, fence] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?}");
        };
        effects.entry(event).or_default().push((key, fence.parse().unwrap()));
    }
    let of = |event: &Event| effects.get(event.event_id.as_str()).map_or(0, Vec::len);
    let rise = effects.values().all(|all| all.is_sorted_by(|a, b| a.1 < b.1));
    let one_key = effects.values().all(|all| all.iter().all(|(key, _)| *key == all[0].0));
    let mut keys: Vec<_> = effects.values().map(|all| all[0].0).collect();
    keys.dedup();
    (events.iter().map(of).collect(), rise, one_key && keys.len() == events.len())
}

/// The view, read from its table.
async fn view(place: &Place) -> View {
    match place.on {
        On::Sqlite => {
            let file = rusqlite::Connection::open(place.file()).unwrap();
            let sql = "SELECT id, version, body FROM view_search_1 WHERE tenant = ?1";
            let mut statement = file.prepare(sql).unwrap();
            let rows = statement.query_map([TENANT], |row| {
                Ok((row.get(0)?, (row.get::<_, i64>(1)?.unsigned_abs(), row.get(2)?)))
            });
            rows.unwrap().map(Result::unwrap).collect()
        }
        On::Postgres => {
            let sql = format!(
                "SELECT id, version, body FROM onceward_view_{}_1 WHERE tenant = $1",
                place.name
            );
            let rows = connect().await.query(&sql, &[&TENANT]).await.unwrap();
            let plain = |id: &str| unescape(id).unwrap().into_owned();
            rows.iter()
                .map(|row| {
                    let version = row.get::<_, i64>(1).unsigned_abs();
                    (plain(row.get(0)), (version, row.get(2)))
                })
                .collect()
        }
    }
}

/// What the events make of the view, said once more.
fn folded(events: &[Event]) -> View {
    let mut view = View::new();
    for event in events {
        let body = (event.kind != "delete").then(|| event.payload.to_vec());
        view.insert(event.aggregate_id.clone(), (event.sequence_number, body));
    }
    view
}
