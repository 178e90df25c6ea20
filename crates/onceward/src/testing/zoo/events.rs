//! Checks of the event store: lost answers and conflicts of the object store, gaps, syncs.
//!
//! Each says what broke, or nothing. They use the real event store over the memory store.

use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;

use super::checks::broken;
use crate::engine::Engine;
use crate::events::{Append, AppendVerdict, EventStore, EventStoreOptions, Objects};
use crate::store::memory::MemoryStore;
use crate::testing::objects::{FaultyObjects, ObjectFault};
use crate::testing::sim::Violation;

type Checked = Result<Option<Violation>, String>;

/// How long a check may take before it counts as stuck.
const LONG: Duration = Duration::from_secs(2);

pub(super) fn a_conflict_is_no_object() -> Checked {
    let numbers = after_fault(ObjectFault::Conflict)?;
    Ok(broken(numbers != [1, 2], "i16", "a conflict was taken for someone's segment"))
}

/// The packer takes in whatever segment is there, its own included, so what it takes it for is the
/// same to it. A start is not: it creates an object to see whether the store keeps conditions, and
/// one that takes its own for another's refuses a store that works.
pub(super) fn ones_own_object_is_recognised() -> Checked {
    let opened = run(async {
        let objects = FaultyObjects::new(Arc::new(InMemory::new()));
        objects.script("probes", [ObjectFault::LostAnswer]);
        let engine = Engine::new(Arc::new(MemoryStore::new()));
        Ok(reopen(&objects, &engine).await.is_ok())
    })?;
    Ok(broken(!opened, "i16", "a creation whose answer was lost was taken for someone else's"))
}

/// The numbers that a reader who knows only what is stored finds after two appends, the first of
/// which met a fault.
fn after_fault(fault: ObjectFault) -> Result<Vec<u64>, String> {
    run(async move {
        let objects = FaultyObjects::new(Arc::new(InMemory::new()));
        let (store, engine) = open(&objects).await?;
        objects.script("segments", [fault]);
        let found = async {
            for at in 0..2 {
                append(&store, at).await?;
            }
            let reader = reopen(&objects, &engine).await?;
            let read = reader.read_after(crate::events::Place::default(), 100).await;
            let read = read.map_err(|error| error.to_string())?;
            Ok::<_, String>(read.into_iter().map(|(_, event)| event.sequence_number).collect())
        };
        // Stuck is broken, too.
        Ok(tokio::time::timeout(LONG, found).await.unwrap_or(Ok(Vec::new())).unwrap_or_default())
    })
}

pub(super) fn a_gap_is_waited_for() -> Checked {
    let numbers = run(async {
        let objects = FaultyObjects::new(Arc::new(InMemory::new()));
        let (store, engine) = open(&objects).await?;
        append(&store, 0).await?;
        // Its writer is gone between the reservation and the hand-over: only the store knows it.
        store.reserve_only(&event(1)).await.map_err(|error| error.to_string())?;
        let third = tokio::time::timeout(LONG, append(&store, 2)).await;
        third.map_err(|_| "an append behind a gap hangs".to_owned())??;
        let read = store.read_after(crate::events::Place::default(), 100).await;
        let read = read.map_err(|error| error.to_string())?;
        drop(engine);
        Ok(read.into_iter().map(|(_, event)| event.sequence_number).collect::<Vec<_>>())
    })?;
    Ok(broken(numbers != [1, 2, 3], "i13", "a higher number was packed before a lower one"))
}

pub(super) fn folders_are_synced() -> Checked {
    let folder = std::env::temp_dir().join(format!("onceward-zoo-{}", std::process::id()));
    let objects = Objects::folder(&folder).map_err(|error| error.to_string())?;
    // The folder's store tells whether it syncs only in this way.
    let synced = format!("{:?}", objects.store()).contains("fsync: true");
    std::fs::remove_dir_all(&folder).map_err(|error| error.to_string())?;
    Ok(broken(!synced, "i02", "a local folder is written without a sync"))
}

async fn open(objects: &FaultyObjects) -> Result<(EventStore, Engine), String> {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    Ok((reopen(objects, &engine).await?, engine))
}

/// An event store that has seen nothing yet of what is there.
async fn reopen(objects: &FaultyObjects, engine: &Engine) -> Result<EventStore, String> {
    let inner: Arc<dyn object_store::ObjectStore> = Arc::new(objects.clone());
    let options = EventStoreOptions { append_wait: LONG, ..EventStoreOptions::default() };
    let store = EventStore::open(engine.clone(), inner, options).await;
    store.map_err(|error| error.to_string())
}

fn event(at: u64) -> Append {
    Append {
        tenant: "acme".into(),
        aggregate_id: "a".into(),
        event_id: format!("e{at}"),
        kind: "update".into(),
        payload: "{}".into(),
        expected_seq: Some(at),
        correlation_id: None,
    }
}

async fn append(store: &EventStore, at: u64) -> Result<(), String> {
    match store.append(&event(at)).await.map_err(|error| error.to_string())? {
        AppendVerdict::Appended(_) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

fn run<T>(check: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| error.to_string())?.block_on(check)
}
