//! The commands, one file each. A command opens the store, asks it or the engine, prints, and
//! closes what it opened, also when it failed.

pub(crate) mod audit;
pub(crate) mod backfill;
pub(crate) mod config;
pub(crate) mod dead;
mod ends;
pub(crate) mod flow;
pub(crate) mod generate;
pub(crate) mod jobs;
pub(crate) mod keys;
mod migrate;
mod report;
pub(crate) mod serve;
mod spinner;
mod streams;
mod sweep;

use std::sync::Arc;

use onceward::engine::Engine;
use onceward::store::Store;
use onceward::store::sqlite::SqliteStore;
use onceward_core::Text;
use onceward_core::audit::Trace;

use crate::bench;
use crate::cli::{Actor, Audit, Bench, Command, Common, Keys};
use crate::demo;
use crate::failure::Failure;
use crate::masks::Masks;
use crate::open::{Access, StoreUrl};
use crate::output::Out;
use crate::remote::{self, Asked, Remote};

/// Runs a command that needs a runtime.
pub(crate) async fn run(command: &Command, common: &Common, out: &Out) -> Result<(), Failure> {
    if let Some(server) = &common.server
        && remote::goes_through(command)
    {
        let remote = Remote::new(server, common.token.as_deref())?;
        return remote::run(command, &remote, Asked::No, out).await;
    }
    match command {
        Command::Serve(args) => return serve::serve(common, args, out).await,
        Command::Demo(args) => return demo::demo(common, args, out).await,
        _ => {}
    }
    if common.server.is_some() {
        let message = "this command opens the store itself and can't go through a server; leave \
                       out --server, and ONCEWARD_SERVER in the environment";
        return Err(Failure::usage("server.not_used", message));
    }
    let url = StoreUrl::parse(&common.store_url()?)?;
    let result = directly(command, &url, common, out).await;
    match (&result, &url) {
        (Err(failure), StoreUrl::Sqlite(path))
            if failure.code == "store.open" && remote::goes_through(command) =>
        {
            // A running server has the store: it does it for us.
            let Some(announced) = SqliteStore::announced(path) else { return result };
            let remote = Remote::new(&announced.server, Some(&announced.token))?;
            remote::run(command, &remote, Asked::Already, out).await
        }
        _ => result,
    }
}

async fn directly(
    command: &Command,
    url: &StoreUrl,
    common: &Common,
    out: &Out,
) -> Result<(), Failure> {
    match command {
        Command::Keys(Keys::List(args)) => keys::list(url, args, out).await,
        Command::Keys(Keys::Show { key }) => {
            keys::show(url, key, &Masks::of_config(common)?, out).await
        }
        Command::Keys(Keys::Resolve(args)) => keys::resolve(url, args, out).await,
        Command::Keys(Keys::Erase { key, yes, actor }) => {
            let cache = common.shared_cache()?;
            keys::erase((url, cache.as_ref()), key, *yes, actor, out).await
        }
        Command::Jobs(command) => jobs::run(command, (url, common), out).await,
        Command::Dead(command) => dead::run(command, (url, common), out).await,
        Command::Audit(Audit::List(args)) => audit::list(url, args, out).await,
        Command::Audit(Audit::Export(args)) => audit::export(url, args, out).await,
        Command::Audit(Audit::Verify { tenant }) => {
            audit::verify(url, tenant.as_deref(), common, out).await
        }
        Command::Report(args) => report::report(url, args, out).await,
        Command::Sweep => sweep::sweep(url, common.shared_cache()?.as_ref(), out).await,
        Command::Migrate => migrate::migrate(url, out).await,
        Command::Backfill(args) => backfill::run(args, url, out).await,
        Command::Bench(Bench::Store(args)) => bench::store(url, args, out).await,
        Command::Bench(Bench::Http(args)) => bench::http(url, args, out).await,
        Command::Bench(Bench::Jobs(args)) => bench::jobs(url, args, out).await,
        Command::Bench(Bench::Batch(args)) => bench::batch::run(url, args, out).await,
        Command::Bench(Bench::Events(args)) => bench::events(url, args, out).await,
        Command::Bench(Bench::Page { files }) => bench::page::print(files, out),
        Command::Streams(command) => streams::run(command, url, out).await,
        Command::Relay(args) => flow::relay(args, (url, common), out).await,
        Command::Worker(args) => flow::worker(args, (url, common), out).await,
        Command::Project(args) => flow::project(args, (url, common), out).await,
        // These need no store and are run before one is looked for.
        Command::Serve(_)
        | Command::Demo(_)
        | Command::Config(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Openapi => Ok(()),
    }
}

/// Opens the store to look at it, and lets go of it whatever came of the look.
async fn reading<T, F>(url: &StoreUrl, look: impl FnOnce(Arc<dyn Store>) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let store = url.open(Access::Read).await?;
    let result = look(store.clone()).await;
    let closed = store.close().await.map_err(|error| url.failure(&error));
    let value = result?;
    closed.map(|()| value)
}

/// Opens the store with an engine on it, and closes both whatever came of the work.
async fn writing<T, F>(url: &StoreUrl, work: impl FnOnce(Engine) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let engine = Engine::new(url.open(Access::Write).await?);
    let result = work(engine.clone()).await;
    let closed = engine.close().await;
    let value = result?;
    closed?;
    Ok(value)
}

/// Who decides by hand, for the audit.
pub(crate) fn by_hand(actor: &Actor) -> Trace {
    let user = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
    let given = actor.actor.clone().filter(|name| !name.is_empty());
    let name = given.or_else(user).unwrap_or_else(|| "command line".into());
    Trace { actor: Some(Text::from(name)), ..Trace::default() }
}
