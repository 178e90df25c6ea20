//! `onceward relay`, `worker` and `project`: what follows events, each as a process of its own.
//!
//! Any number may run on one store: one of each is at work, the others stand by. They read events
//! and append none. Told to stop, they end what they are at and give their roles back.

mod rebuild;
mod status;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use onceward::engine::Engine;
use onceward::events::{EventStore, Objects};
use onceward::projection::{Projecting, Projection};
use onceward::store::Store;
use onceward_reference::ontology::{SearchIn, Settings, Workers};
use serde_json::json;

use super::spinner::Spinner;
use crate::cli::{Common, FlowAt, ProjectArgs, ProjectWhat, RelayArgs, RelayWhat, WorkerArgs};
use crate::events_place;
use crate::failure::Failure;
use crate::gateway::ready;
use crate::logs;
use crate::open::{Access, StoreUrl};
use crate::output::Out;
use crate::signals::Signals;

/// How often people see how it is doing.
const SHOW_EVERY: Duration = Duration::from_millis(500);

/// `onceward relay`.
pub(crate) async fn relay(
    args: &RelayArgs,
    (url, common): (&StoreUrl, &Common),
    out: &Out,
) -> Result<(), Failure> {
    if let Some(RelayWhat::Status) = args.what {
        return looking(url, &args.at, |workers| async move { status::relay(&workers, out).await })
            .await;
    }
    running(url, (&args.at, common), |workers, mut signals| async move {
        let mut relay = workers.start_relay().map_err(failed)?;
        let told = workers.tell(relay.watcher());
        tokio::pin!(told);
        let mut spinner = Spinner::new(out);
        loop {
            tokio::select! {
                () = signals.next() => break,
                ended = relay.ended() => return ended.map_err(failed),
                () = tokio::time::sleep(SHOW_EVERY) => {
                    spinner.show(|| status::relay_line(&relay.status()));
                }
                () = &mut told => {}
            }
        }
        spinner.end();
        relay.drain().await.map_err(failed)
    })
    .await
}

/// `onceward worker`.
pub(crate) async fn worker(
    args: &WorkerArgs,
    (url, common): (&StoreUrl, &Common),
    out: &Out,
) -> Result<(), Failure> {
    let names = [Workers::INSTANCES, Workers::CLASSES];
    if args.what.is_some() {
        return looking(url, &args.at, |workers| async move {
            status::views(&workers, &names, out).await
        })
        .await;
    }
    running(url, (&args.at, common), |workers, signals| async move {
        follow(&workers, &names, signals, out).await
    })
    .await
}

/// `onceward project`.
pub(crate) async fn project(
    args: &ProjectArgs,
    (url, common): (&StoreUrl, &Common),
    out: &Out,
) -> Result<(), Failure> {
    let all = [Workers::INSTANCES, Workers::CLASSES, Workers::SEARCH];
    match &args.what {
        None => {
            running(url, (&args.at, common), |workers, signals| async move {
                follow(&workers, &[Workers::SEARCH], signals, out).await
            })
            .await
        }
        Some(ProjectWhat::Status) => {
            looking(
                url,
                &args.at,
                |workers| async move { status::views(&workers, &all, out).await },
            )
            .await
        }
        Some(ProjectWhat::Rebuild { view }) => {
            let view = view.as_str();
            with_workers(url, &args.at, Access::Write, |workers| async move {
                rebuild::rebuild(&workers, named(&workers, view)?, out).await
            })
            .await
        }
        Some(ProjectWhat::Verify { view }) => {
            let view = view.as_str();
            looking(url, &args.at, |workers| async move {
                rebuild::verify(&workers, named(&workers, view)?, out).await
            })
            .await
        }
    }
}

fn named<'a>(workers: &'a Workers, view: &str) -> Result<&'a Projection, Failure> {
    let unknown = || Failure::usage("project.view", format!("there is no view {view}"));
    workers.projection(view).ok_or_else(unknown)
}

/// Keeps views up to date until told to stop.
async fn follow(
    workers: &Workers,
    names: &[&str],
    mut signals: Signals,
    out: &Out,
) -> Result<(), Failure> {
    let mut following: Vec<(&str, Projecting)> = Vec::new();
    for name in names {
        let started = workers.start_one(named(workers, name)?);
        following.push((*name, started.map_err(failed)?));
    }
    let mut spinner = Spinner::new(out);
    let ended = loop {
        let first = futures_util::future::select_all(
            following.iter_mut().map(|(_, one)| Box::pin(one.ended())),
        );
        tokio::select! {
            () = signals.next() => break Ok(()),
            (ended, ..) = first => break ended.map_err(failed),
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
        spinner.show(|| {
            let lines = following.iter().map(|(name, one)| status::view_line(name, one));
            lines.collect::<Vec<_>>().join("; ")
        });
    };
    spinner.end();
    for (_, one) in following {
        one.drain().await.map_err(failed)?;
    }
    ended
}

/// Opens everything, writes the ready file, works, and closes what was opened.
async fn running<F>(
    url: &StoreUrl,
    (at, common): (&FlowAt, &Common),
    work: impl FnOnce(Arc<Workers>, Signals) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    // Before anything else: a signal that comes while we start is not lost.
    let signals = Signals::new()?;
    logs::init(common.log_format, common.log_level)?;
    if let Some(path) = &at.ready_file {
        ready::clear_left(path)?;
    }
    let worked = with_workers(url, at, Access::Create, |workers| async move {
        if let Some(path) = &at.ready_file {
            ready::write_json(path, &json!({ "pid": std::process::id() }))?;
        }
        work(workers, signals).await
    })
    .await;
    logs::flush();
    worked
}

/// Opens everything to look at it.
async fn looking<F>(
    url: &StoreUrl,
    at: &FlowAt,
    look: impl FnOnce(Arc<Workers>) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    with_workers(url, at, Access::Read, look).await
}

async fn with_workers<F>(
    url: &StoreUrl,
    at: &FlowAt,
    access: Access,
    work: impl FnOnce(Arc<Workers>) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let folder = folder(url, at, access)?;
    let store: Arc<dyn Store> = url.open(access).await?;
    let engine = Engine::new(store);
    let worked = async {
        let workers = workers(url, folder, engine.clone()).await?;
        work(Arc::new(workers)).await
    }
    .await;
    let closed = engine.close().await;
    worked?;
    Ok(closed?)
}

/// Where events are. A mistyped path is an error, never a new empty folder.
fn folder(url: &StoreUrl, at: &FlowAt, access: Access) -> Result<PathBuf, Failure> {
    let Some(folder) = events_place::folder(url, at.events.as_deref()) else {
        let message = "a store in memory has no events that another process could follow";
        return Err(Failure::usage("events.memory", message));
    };
    if access != Access::Create && !folder.is_dir() {
        let message = format!(
            "{} is no folder; name the one that events are kept in with --events PATH",
            folder.display()
        );
        return Err(Failure::usage("events.folder", message));
    }
    Ok(folder)
}

async fn workers(url: &StoreUrl, folder: PathBuf, engine: Engine) -> Result<Workers, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    let mut settings = Settings::read(variable)
        .map_err(|error| Failure::usage("events.setting", error.to_string()))?;
    settings.spool_folder = Some(folder.clone());
    let objects = Objects::folder(folder).map_err(failed)?;
    let options = settings.event_store();
    let events = EventStore::open_to_read(engine, objects, options).await.map_err(failed)?;
    Workers::new(events, settings, &search_in(url)).map_err(failed)
}

/// The search index is kept with the store.
pub(crate) fn search_in(url: &StoreUrl) -> SearchIn {
    match url {
        StoreUrl::Sqlite(path) => SearchIn::Sqlite(path.clone()),
        StoreUrl::Memory => SearchIn::Documents,
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(url) => SearchIn::Postgres(url.clone()),
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(_) => SearchIn::Documents,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn failed(error: impl ToString) -> Failure {
    Failure::failed("events", error.to_string())
}
