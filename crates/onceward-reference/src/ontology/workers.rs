//! What follows the events: instances, classes and the search index, each a fold of the log.
//!
//! Relay, instance worker, ontology worker and projection worker: any number of processes may run
//! them, one of each is at work. Embedded, each handles an event in one commit.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use onceward::core::limits::LimitError;
use onceward::core::patch::merge_patch;
use onceward::core::text::escape;
use onceward::engine::Engine;
use onceward::events::{Event, EventStore};
use onceward::handlers::{ConsumerOptions, HandlerError, OnRegistryDown, Spool, SpoolError};
#[cfg(feature = "postgres")]
use onceward::projection::PostgresIndex;
use onceward::projection::{
    Documents, Fold, Folded, Projecting, Projection, SqliteIndex, View, ViewError, words_of_json,
    words_of_text,
};
use onceward::relay::{EmbeddedLog, Relay, RelayStatus};
use serde_json::value::RawValue;
use tokio::task::JoinHandle;

use super::Target;
use super::settings::Settings;

/// How long workers have to end what they are at.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// Where the search index is kept.
#[derive(Debug, Clone)]
pub enum SearchIn {
    /// In the embedded store's file.
    Sqlite(PathBuf),
    /// In a database.
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// As documents of the engine's store, looked through at each search: for small sets.
    Documents,
}

/// The index behind the search.
#[derive(Clone)]
enum Index {
    Sqlite(SqliteIndex),
    #[cfg(feature = "postgres")]
    Postgres(PostgresIndex),
    Documents(Documents),
}

/// The workers' views and how to start them. Cheap to clone.
#[derive(Clone)]
pub struct Workers {
    engine: Engine,
    events: EventStore,
    log: Arc<EmbeddedLog>,
    instances: Projection,
    classes: Projection,
    search: Projection,
    view: Arc<dyn View>,
    index: Index,
    settings: Arc<Settings>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("events", &self.events).finish_non_exhaustive()
    }
}

impl Workers {
    /// The relay.
    pub const RELAY: &'static str = "ontology";
    /// The view of instances.
    pub const INSTANCES: &'static str = "instances";
    /// The view of classes.
    pub const CLASSES: &'static str = "classes";
    /// The view of the search.
    pub const SEARCH: &'static str = "search";

    /// The views, on a store.
    ///
    /// # Errors
    /// When a name does not fit.
    pub fn new(
        events: EventStore,
        settings: Settings,
        search_in: &SearchIn,
    ) -> Result<Self, ViewError> {
        let engine = events.engine().clone();
        let broken = |error: LimitError| ViewError::Broken(error.to_string());
        let source = Arc::new(events.clone());
        let log = EmbeddedLog::new(engine.clone(), source, Self::RELAY).map_err(broken)?;
        let index = match search_in {
            SearchIn::Sqlite(file) => {
                Index::Sqlite(SqliteIndex::new(engine.clone(), file, Self::SEARCH)?)
            }
            #[cfg(feature = "postgres")]
            SearchIn::Postgres(url) => Index::Postgres(PostgresIndex::new(url, Self::SEARCH)?),
            SearchIn::Documents => Index::Documents(Documents::new(engine.clone(), Self::SEARCH)),
        };
        let view: Arc<dyn View> = match &index {
            Index::Sqlite(index) => Arc::new(index.clone()),
            #[cfg(feature = "postgres")]
            Index::Postgres(index) => Arc::new(index.clone()),
            Index::Documents(index) => Arc::new(index.clone()),
        };
        let projection = |name: &str, view: Arc<dyn View>, target, attempts| {
            let options = settings.handler(attempts);
            Projection::new(engine.clone(), name, view, Merge(target), options)
        };
        let documents = |name: &str| Arc::new(Documents::new(engine.clone(), name));
        let instances = documents(Self::INSTANCES);
        let classes = documents(Self::CLASSES);
        Ok(Self {
            instances: projection(
                Self::INSTANCES,
                instances,
                Target::Instance,
                settings.instance_attempts,
            ),
            classes: projection(Self::CLASSES, classes, Target::Class, settings.ontology_attempts),
            search: projection(
                Self::SEARCH,
                view.clone(),
                Target::Instance,
                settings.projection_attempts,
            ),
            view,
            engine,
            events,
            log: Arc::new(log),
            index,
            settings: Arc::new(settings),
        })
    }

    /// Makes the search ready to be asked, also before the first event.
    ///
    /// # Errors
    /// When the store or the index gives no answer.
    pub async fn prepare(&self) -> Result<(), ViewError> {
        let generation = self.search.generation().await?.live;
        self.view.prepare(generation).await
    }

    /// Starts the relay and all workers.
    ///
    /// # Errors
    /// When an option does not fit.
    pub fn start(&self) -> Result<Running, LimitError> {
        let [instances, classes, search] = self.projections().map(|one| self.start_one(one));
        let relay = self.start_relay()?;
        let teller = tokio::spawn(self.tell(relay.watcher()));
        Ok(Running { relay, teller, workers: [instances?, classes?, search?] })
    }

    /// Logs how the relay is doing, as often as the settings say (C07), while it is polled.
    pub fn tell(
        &self,
        relay: impl Fn() -> RelayStatus + Send + Sync + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let every = self.settings.relay.metrics_every;
        let events = self.events.clone();
        let mut told = Vec::new();
        async move {
            loop {
                tokio::time::sleep(every).await;
                let alarms = events.alarms();
                for alarm in alarms.iter().filter(|alarm| !told.contains(*alarm)) {
                    tracing::error!("{alarm}");
                }
                told = alarms;
                let now = relay();
                tracing::info!(
                    active = now.active,
                    acknowledged = %now.acknowledged,
                    published = now.published,
                    spared = now.spared,
                    resent = now.resent,
                    held_by = now.held_by.unwrap_or_default(),
                    "relay"
                );
            }
        }
    }

    /// Starts the relay alone.
    ///
    /// # Errors
    /// When an option does not fit.
    pub fn start_relay(&self) -> Result<Relay, LimitError> {
        let mut relay = self.settings.relay.clone();
        relay.name = Self::RELAY.into();
        let source = Arc::new(self.events.clone());
        let bucket = self.events.objects().store().clone();
        Relay::start(self.engine.clone(), source, bucket, self.log.clone(), relay)
    }

    /// Starts one worker alone.
    ///
    /// # Errors
    /// When an option does not fit, or its spool can't be opened.
    pub fn start_one(&self, projection: &Projection) -> Result<Projecting, LimitError> {
        let options = self.consumer(projection.name())?;
        options.validate()?;
        Ok(projection.start(self.log.clone(), options))
    }

    /// How a worker reads the log.
    ///
    /// # Errors
    /// When its spool can't be opened.
    pub fn consumer(&self, name: &str) -> Result<ConsumerOptions, LimitError> {
        let on_registry_down = self.settings.on_registry_down;
        let mut options = ConsumerOptions { on_registry_down, ..ConsumerOptions::default() };
        if on_registry_down == OnRegistryDown::DeadLetter
            && let Some(folder) = &self.settings.spool_folder
        {
            let spool = Spool::open(folder.join(format!("{name}.spool")));
            let bound = "in a folder that can be written to";
            let failed = |error: SpoolError| LimitError::new("spool", error, bound);
            options.spool = Some(spool.map_err(failed)?);
        }
        Ok(options)
    }

    /// All views, each with its worker: instances, classes, search.
    #[must_use]
    pub fn projections(&self) -> [&Projection; 3] {
        [&self.instances, &self.classes, &self.search]
    }

    /// The event store.
    #[must_use]
    pub fn events(&self) -> &EventStore {
        &self.events
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A projection by its name.
    #[must_use]
    pub fn projection(&self, name: &str) -> Option<&Projection> {
        self.projections().into_iter().find(|one| one.name() == name)
    }

    /// The log that the relay publishes to.
    #[must_use]
    pub fn log(&self) -> &Arc<EmbeddedLog> {
        &self.log
    }

    /// A document and its number.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn document(
        &self,
        view: &str,
        tenant: &str,
        id: &str,
    ) -> Result<Option<(u64, Bytes)>, ViewError> {
        let Some(projection) = self.projection(view) else { return Ok(None) };
        let generation = projection.generation().await?.live;
        let documents = Documents::new(self.engine.clone(), view);
        let entry = documents.get(generation, tenant, id).await?;
        Ok(entry.and_then(|entry| Some((entry.version, entry.body?))))
    }

    /// Instances that hold every word, each as the beginning of one, behind the one with the id
    /// `after`; the order is the index's own.
    ///
    /// # Errors
    /// When the index gives no answer.
    pub async fn search(
        &self,
        tenant: &str,
        text: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, ViewError> {
        let generation = self.search.generation().await?.live;
        let page = (after, limit);
        match &self.index {
            Index::Sqlite(index) => index.search(generation, tenant, text, page).await,
            #[cfg(feature = "postgres")]
            Index::Postgres(index) => index.search(generation, tenant, text, page).await,
            Index::Documents(index) => {
                look_through(index, (generation, tenant), &words_of_text(text), page).await
            }
        }
    }
}

async fn look_through(
    index: &Documents,
    (generation, tenant): (u64, &str),
    wanted: &BTreeSet<String>,
    (after, limit): (Option<&str>, usize),
) -> Result<Vec<(String, u64)>, ViewError> {
    let (mut found, mut from) = (Vec::new(), None);
    // The order of the ids is that of their names in the store.
    let after = after.map(escape);
    while found.len() < limit && !wanted.is_empty() {
        let (ids, next) = index.ids(generation, tenant, from).await?;
        for id in ids {
            if after.as_ref().is_some_and(|after| escape(&id) <= *after) {
                continue;
            }
            let entry = index.get(generation, tenant, &id).await?;
            let Some((version, body)) = entry.and_then(|e| Some((e.version, e.body?))) else {
                continue;
            };
            let words = words_of_json(&body);
            let holds = |wanted: &String| words.iter().any(|word| word.starts_with(wanted));
            if wanted.iter().all(holds) && found.len() < limit {
                found.push((id, version));
            }
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    Ok(found)
}

/// The workers at work.
pub struct Running {
    relay: Relay,
    teller: JoinHandle<()>,
    workers: [Projecting; 3],
}

impl Running {
    /// How the relay is doing.
    #[must_use]
    pub fn relay(&self) -> RelayStatus {
        self.relay.status()
    }

    /// Resolves when one of them has ended by itself, with why: what can't be waited for is broken,
    /// or the settings say not to wait (`PROCESSED_EVENT_ON_REGISTRY_DOWN`).
    pub async fn ended(&mut self) -> String {
        let workers = self.workers.iter_mut().map(|worker| Box::pin(worker.ended()));
        tokio::select! {
            ended = self.relay.ended() => why("the relay", ended),
            (ended, ..) = select_all(workers) => why("a worker", ended),
        }
    }

    /// Ends what they are at, and gives their roles back.
    pub async fn drain(self) {
        self.teller.abort();
        for worker in self.workers {
            let ended = tokio::time::timeout(DRAIN_WITHIN, worker.drain()).await;
            if let Ok(Err(error)) = ended {
                tracing::warn!(error = %error, "a worker had ended before");
            }
        }
        if let Err(error) = self.relay.drain().await {
            tracing::warn!(error = %error, "the relay had ended before");
        }
    }
}

fn why(who: &str, ended: Result<(), impl ToString>) -> String {
    let error = ended.err().map_or_else(|| "no reason was given".into(), |why| why.to_string());
    format!("{who} has ended: {error}")
}

/// The fold of all views: a create sets the document, an update is merged into it (RFC 7396), a
/// delete ends it.
#[derive(Debug, Clone, Copy)]
pub struct Merge(pub Target);

impl Fold for Merge {
    fn fold(&self, event: &Event, before: Option<&[u8]>) -> Result<Folded, HandlerError> {
        let Some((target, kind)) = Target::split(&event.kind) else { return Ok(Folded::Keep) };
        if target != self.0 {
            return Ok(Folded::Keep);
        }
        match (kind, before) {
            ("delete", _) => Ok(Folded::Delete),
            ("create", _) => {
                let document: &RawValue =
                    serde_json::from_slice(&event.payload).map_err(HandlerError::permanent)?;
                Ok(Folded::Put(document.get().as_bytes().to_vec().into()))
            }
            // What is deleted, or is of another target, is not made by a change of it.
            ("update", None) if event.sequence_number > 1 => Ok(Folded::Keep),
            ("update", before) => {
                let merged = merge_patch(before, &event.payload);
                Ok(Folded::Put(merged.map_err(HandlerError::permanent)?.into()))
            }
            _ => Ok(Folded::Keep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn c09_an_update_is_merged_and_another_target_is_passed_over() {
        let event = |kind: &str, payload: &str| Event {
            tenant: "t".into(),
            aggregate_id: "a".into(),
            event_id: "e".into(),
            sequence_number: 1,
            kind: kind.into(),
            payload: payload.to_owned().into(),
            correlation_id: None,
        };
        let fold = Merge(Target::Instance);
        let before = br#"{"a":1,"b":{"c":2,"d":3}}"#;
        let patch = event("instance.update", r#"{"a":null,"b":{"c":4},"e":[null]}"#);
        let Folded::Put(after) = fold.fold(&patch, Some(before)).unwrap() else { panic!("put") };
        let after: Value = serde_json::from_slice(&after).unwrap();
        assert_eq!(after, json!({"b": {"c": 4, "d": 3}, "e": [null]}));
        let large = r#"{"n":1180591620717411303424,"p":0.1234567890123456789012345}"#;
        for (kind, before) in [("instance.create", None), ("instance.update", Some(&b"{}"[..]))] {
            let folded = fold.fold(&event(kind, large), before).unwrap();
            assert_eq!(folded, Folded::Put(large.to_owned().into()), "numbers of any size");
        }
        let other = event("class.update", "{}");
        assert_eq!(fold.fold(&other, Some(before)).unwrap(), Folded::Keep);
        let delete = event("instance.delete", "{}");
        assert_eq!(fold.fold(&delete, Some(before)).unwrap(), Folded::Delete);
        let mut late = event("instance.update", "{}");
        late.sequence_number = 3;
        assert_eq!(fold.fold(&late, None).unwrap(), Folded::Keep, "what is deleted stays deleted");
        let broken = event("instance.update", "{");
        assert!(fold.fold(&broken, None).is_err());
    }
}
