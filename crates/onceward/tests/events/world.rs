//! An event store in a folder of its own, over a fresh store of any kind.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward::engine::Engine;
use onceward::events::{
    Append, AppendMany, AppendVerdict, Appended, Event, EventStore, EventStoreOptions, EventsError,
    NewEvent, Objects, Place,
};

use crate::support::on::{On, Opened};

pub(crate) const TENANT: &str = "acme";

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// A folder and a store that event stores are opened on.
pub(crate) struct World {
    pub(crate) opened: Opened,
    pub(crate) folder: PathBuf,
}

impl Drop for World {
    fn drop(&mut self) {
        // What can't be removed lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl World {
    pub(crate) async fn new(on: On) -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
        let name = format!("onceward-events-{}-{number}", std::process::id());
        Self { opened: on.open().await, folder: std::env::temp_dir().join(name) }
    }

    /// An event store with an engine of its own: what another process would have.
    pub(crate) async fn store(&self, options: EventStoreOptions) -> EventStore {
        self.try_store(options).await.unwrap()
    }

    pub(crate) async fn try_store(
        &self,
        options: EventStoreOptions,
    ) -> Result<EventStore, EventsError> {
        let objects = Objects::folder(&self.folder).unwrap();
        EventStore::open(self.engine(), objects, options).await
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::new(self.opened.store.clone())
    }
}

/// An update of an aggregate.
pub(crate) fn update(aggregate_id: &str, event_id: &str, expected_seq: Option<u64>) -> Append {
    Append {
        tenant: TENANT.into(),
        aggregate_id: aggregate_id.into(),
        event_id: event_id.into(),
        kind: "update".into(),
        payload: format!(r#"{{"of":"{event_id}"}}"#).into(),
        expected_seq,
        correlation_id: Some(format!("c-{event_id}")),
    }
}

/// Several updates of an aggregate.
pub(crate) fn updates(aggregate_id: &str, ids: &[&str], expected_seq: Option<u64>) -> AppendMany {
    let event = |id: &&str| NewEvent {
        event_id: (*id).into(),
        kind: "update".into(),
        payload: format!(r#"{{"of":"{id}"}}"#).into(),
    };
    AppendMany {
        tenant: TENANT.into(),
        aggregate_id: aggregate_id.into(),
        expected_seq,
        events: ids.iter().map(event).collect(),
        correlation_id: None,
    }
}

/// Appends what must be appended.
pub(crate) async fn appended(store: &EventStore, append: &Append) -> Appended {
    match store.append(append).await.unwrap() {
        AppendVerdict::Appended(done) => done,
        other => panic!("{append:?}: {other:?}"),
    }
}

/// Everything, read a few at a time.
pub(crate) async fn all(store: &EventStore) -> Vec<(Place, Event)> {
    let mut events: Vec<(Place, Event)> = Vec::new();
    loop {
        let after = events.last().map_or(Place::default(), |(place, _)| *place);
        let page = store.read_after(after, 7).await.unwrap();
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

/// Event ids of an aggregate, in its order, whose numbers rise by one from 1.
pub(crate) async fn ids(store: &EventStore, aggregate_id: &str) -> Vec<String> {
    let events = store.read_aggregate(TENANT, aggregate_id, 0, 10_000).await.unwrap();
    for ((_, event), number) in events.iter().zip(1..) {
        assert_eq!(event.sequence_number, number, "{event:?}");
    }
    events.into_iter().map(|(_, event)| event.event_id).collect()
}

/// Checks the total order: places rise, no id lies twice, and each aggregate's numbers rise by one.
pub(crate) fn check_order(events: &[(Place, Event)]) {
    let mut tops = std::collections::HashMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut last = None;
    for (place, event) in events {
        assert!(last < Some(*place), "{place} comes after {last:?}");
        last = Some(*place);
        assert!(seen.insert((&event.tenant, &event.event_id)), "{event:?} lies twice");
        let top = tops.entry((&event.tenant, &event.aggregate_id)).or_insert(0);
        assert_eq!(event.sequence_number, *top + 1, "{event:?} behind {top}");
        *top += 1;
    }
}

/// An engine's store is shared by clones of this.
pub(crate) fn shared(world: World) -> Arc<World> {
    Arc::new(world)
}
