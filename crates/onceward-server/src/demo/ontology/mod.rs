//! The ontology service in the demo: where its parts are kept, what runs beside, what its users do.

mod traffic;

use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use onceward::events::Objects;
use onceward::handlers::OnRegistryDown;
use onceward_reference::ontology::{Ontology, Options, Running, Settings};
use tokio::sync::oneshot;

use super::{Offer, Setup};
use crate::commands::flow::search_in;
use crate::events_place;
use crate::failure::Failure;
use crate::open::StoreUrl;
use traffic::Traffic;

/// The service, with relay and workers at work.
pub(super) async fn offer(setup: &Setup) -> Result<Offer, Failure> {
    let mut settings = settings()?;
    settings.spool_folder = events_place::folder(&setup.url, setup.events.as_deref());
    if settings.on_registry_down == OnRegistryDown::DeadLetter && settings.spool_folder.is_none() {
        let message = "PROCESSED_EVENT_ON_REGISTRY_DOWN is \"dead_letter\": events are put aside \
                       in files beside the others, and a store in memory has none; name a folder \
                       with --events PATH, or a store that is kept with --store sqlite:PATH";
        return Err(Failure::usage("events.setting", message));
    }
    let warnings = settings.warnings();
    let options = Options {
        principals: setup.principals.clone(),
        settings,
        search_in: search_in(&setup.url),
    };
    let objects = objects(&setup.url, setup.events.as_deref())?;
    let opened = Ontology::open(setup.engine.clone(), objects, options).await;
    let ontology = opened.map_err(|error| Failure::failed("events", error.to_string()))?;
    let running = ontology.workers().start();
    let running = running.map_err(|error| Failure::failed("events", error.to_string()))?;
    let (stop, stopped) = oneshot::channel();
    let (tell, broken) = oneshot::channel();
    let following = tokio::spawn(follow(running, stopped, tell));
    let events = ontology.events().clone();
    let traffic = Traffic::new(&ontology, &setup.principals, setup.tally.clone());
    Ok(Offer {
        name: "ontology",
        router: ontology.router(),
        doors: Vec::new(),
        worker: Some(ontology.worker()),
        drain: Box::pin(async move {
            // Either may have ended before.
            let _ = stop.send(());
            let _ = following.await;
            if let Err(error) = events.close().await {
                tracing::warn!(error = %error, "the event store did not close");
            }
        }),
        views: Some(ontology.workers().clone()),
        broken: Some(Box::pin(async move {
            match broken.await {
                Ok(why) => why,
                // Told to stop, it ends without a word.
                Err(_) => std::future::pending().await,
            }
        })),
        warnings,
        traffic: Box::pin(traffic.run()),
        welcome: include_str!("welcome.txt"),
        counts: None,
        audit_days: None,
    })
}

/// Lets relay and workers work until they are told to stop, or one of them can't go on.
async fn follow(
    mut running: Running,
    stopped: oneshot::Receiver<()>,
    broken: oneshot::Sender<String>,
) {
    tokio::select! {
        _ = stopped => {}
        why = running.ended() => {
            // Whoever does not listen is about to stop.
            let _ = broken.send(why);
        }
    }
    running.drain().await;
}

/// The settings, from the environment.
fn settings() -> Result<Settings, Failure> {
    let look = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    Settings::read(look).map_err(|error| Failure::usage("events.setting", error.to_string()))
}

/// Events lie in a folder; those of a store in memory, in memory.
fn objects(url: &StoreUrl, folder: Option<&Path>) -> Result<Objects, Failure> {
    let Some(folder) = events_place::folder(url, folder) else {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        return Ok(store.into());
    };
    Objects::folder(folder).map_err(|error| Failure::usage("events.folder", error.to_string()))
}
