//! `onceward demo`: the reference services on one store, with traffic to watch.
//!
//! The tokens of its principals are public, so it listens on loopback only. Services, listeners and
//! workers are started here and brought to their end here; what a service does is in the crate
//! `onceward-reference`.

mod tally;
mod traffic;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use onceward::engine::Engine;
use onceward::worker::Worker;
use onceward_reference::planning::{Options, Planning};
use onceward_reference::principals;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::{
    self, AdminOptions, AdminState, Health, Principal, Principals, Reach, new_token,
};
use crate::cli::{Common, Demo, DemoService};
use crate::commands::serve::{Signals, announce};
use crate::failure::Failure;
use crate::gateway::listen::Listener;
use crate::gateway::ready;
use crate::gateway::sight::Watch;
use crate::identity::Secret;
use crate::logs::{self, LogLevel};
use crate::metrics::Metrics;
use crate::open::{Access, StoreUrl};
use crate::output::Out;
use tally::Tally;
use traffic::Traffic;

/// The operator's token; public, as everything here.
const OPERATOR_TOKEN: &str = "demo-operator";
/// Resources that the response cache keeps, on a store that this process has to itself.
const CACHED_MAX: usize = 10_000;
/// How long jobs that run have to end when the demo ends.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// Serves until told to stop.
pub(crate) async fn demo(common: &Common, args: &Demo, out: &Out) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    check(args)?;
    let level = match common.log_level {
        // A line for each request of the traffic would hide the one that sums them up.
        LogLevel::Info if !args.no_traffic => LogLevel::Warn,
        level => level,
    };
    logs::init(common.log_format, level)?;
    if let Some(path) = &args.ready_file {
        ready::clear(path)?;
    }
    let url = StoreUrl::parse(&common.store_url()?)?;
    let engine = Engine::new(url.open(Access::Create).await?);
    let served = run(&url, &engine, args, out, &mut signals).await;
    let closed = engine.close().await;
    logs::flush();
    served?;
    Ok(closed?)
}

fn check(args: &Demo) -> Result<(), Failure> {
    let missing = match args.service {
        DemoService::Planning | DemoService::All => None,
        DemoService::Measurements => Some("measurements"),
        DemoService::Business => Some("business"),
        DemoService::Ontology => Some("ontology"),
    };
    if let Some(name) = missing {
        let message = format!("this version has no {name} service yet: it has planning");
        return Err(Failure::usage("demo.missing", message));
    }
    let public = |flag: &str, address: SocketAddr| {
        let message = format!(
            "{flag} {address}: the demo's tokens are public, so it listens on loopback only, as \
             127.0.0.1:0"
        );
        (!address.ip().is_loopback()).then(|| Failure::usage("demo.loopback", message))
    };
    let failure = public("--listen", args.listen).or_else(|| public("--admin", args.admin));
    failure.map_or(Ok(()), Err)
}

async fn run(
    url: &StoreUrl,
    engine: &Engine,
    args: &Demo,
    out: &Out,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let tally = Arc::new(Tally::default());
    let mut known = principals::demo();
    known.extend(traffic::principals()?);
    // Another process may write to a store that is not a file of ours.
    let alone = !matches!(engine.capabilities().name, "postgres");
    let options =
        Options { principals: known.clone(), cached_max: if alone { CACHED_MAX } else { 0 } };
    let planning = Planning::open(engine.clone(), options).await?;
    let servers = Servers::start(url, &planning, args).await?;
    let worker = start_worker(&planning, &tally)?;
    if let Some(path) = &args.ready_file {
        ready::write_json(path, &servers.told(args.service))?;
    }
    servers.welcome(url, args, out)?;
    let traffic = (!args.no_traffic).then(|| {
        let traffic = Traffic::new(&planning, &known, tally.clone());
        [tokio::spawn(traffic.run()), tokio::spawn(tally::show(tally, out.shows_progress()))]
    });
    signals.next().await;
    tracing::info!("told to stop: draining");
    traffic.iter().flatten().for_each(JoinHandle::abort);
    servers.drain(&planning).await;
    worker.drain(DRAIN_WITHIN).await;
    Ok(())
}

fn start_worker(planning: &Planning, tally: &Arc<Tally>) -> Result<Worker, Failure> {
    let tally = tally.clone();
    let worker = planning.worker().on_event(move |event| tally.job(event));
    worker.start().map_err(|error| Failure::failed("worker", error.to_string()))
}

/// The listeners.
struct Servers {
    listen: String,
    admin: String,
    health: Arc<Health>,
    stop: watch::Sender<bool>,
    tasks: [JoinHandle<()>; 2],
}

impl Servers {
    async fn start(url: &StoreUrl, planning: &Planning, args: &Demo) -> Result<Self, Failure> {
        let data = Listener::bind("--listen", args.listen, None).await?;
        let control = Listener::bind("--admin", args.admin, None).await?;
        let (listen, admin) = (data.url(), control.url());
        let engine = planning.engine();
        let metrics = Arc::new(Metrics::new(engine.capabilities().name, false));
        let health = Arc::new(Health::default());
        let state = AdminState::new(AdminOptions {
            engine: engine.clone(),
            secret: Secret::load(None, engine).await?.derive("permits"),
            principals: operators(url, &admin)?,
            metrics: metrics.clone(),
            health: health.clone(),
            door: Some(planning.door().clone()),
            open_metrics: false,
        });
        let watching = from_fn_with_state(Arc::new(Watch::new(metrics)), watched);
        let router = planning.router().layer(watching);
        let (stop, stopped) = watch::channel(false);
        let until = |mut stopped: watch::Receiver<bool>| async move {
            // The sender lives as long as the servers.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let (closing, ending) = (until(stopped.clone()), until(stopped));
        let tasks = [
            tokio::spawn(async move {
                admin::serve_router(data.into_socket(), &router, closing, || {}).await;
            }),
            tokio::spawn(admin::serve(control.into_socket(), state, ending)),
        ];
        Ok(Self { listen, admin, health, stop, tasks })
    }

    /// No new connections and claims; what runs comes to its end.
    async fn drain(self, planning: &Planning) {
        self.health.drain();
        planning.door().drain().close();
        self.stop.send_replace(true);
        for task in self.tasks {
            // A server that broke off has nothing left to wait for.
            let _ = task.await;
        }
        planning.door().drain().finished().await;
    }

    /// What programs are told.
    fn told(&self, service: DemoService) -> serde_json::Value {
        let pid = std::process::id();
        let mut told = json!({ "listen": self.listen, "admin": self.admin, "pid": pid });
        if service == DemoService::All {
            told["services"] = json!({ "planning": self.listen });
        }
        told
    }

    /// What people are told.
    fn welcome(&self, url: &StoreUrl, args: &Demo, out: &Out) -> Result<(), Failure> {
        if out.is_json() {
            return out.print_json(&self.told(args.service));
        }
        let text = include_str!("welcome.txt")
            .replace("{listen}", &self.listen)
            .replace("{admin}", &self.admin)
            .replace("{store}", &url.shown());
        out.print(&text)
    }
}

/// Who may use the control API: everyone who reads this file, and commands on the same store.
fn operators(url: &StoreUrl, admin: &str) -> Result<Principals, Failure> {
    let mut principals = vec![Principal::with_token("operator", Reach::Operator, OPERATOR_TOKEN)];
    if let StoreUrl::Sqlite(path) = url {
        let token = new_token().map_err(|why| Failure::usage("admin.token", why))?;
        principals.push(Principal::with_token("command line", Reach::Operator, &token));
        announce(path, admin, token)?;
    }
    Ok(Principals::new(principals))
}

/// Counts and logs a request.
async fn watched(State(watch): State<Arc<Watch>>, request: Request, next: Next) -> Response {
    let seen = watch.begin(request.headers());
    let response = next.run(request).await;
    seen.answered(&response);
    response
}
