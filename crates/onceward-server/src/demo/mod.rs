//! `onceward demo`: the reference services on one store, with traffic to watch.
//!
//! The tokens of its principals are public, so it listens on loopback only. Listeners and workers
//! are started here and brought to their end here. Each service has a folder of its own that makes
//! an [`Offer`] of it: what to serve, what to run beside, what to tell. What a service does is in
//! the crate `onceward-reference`.

mod business;
pub(crate) mod measurements;
mod ontology;
mod planning;
mod tally;
mod users;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use onceward::engine::Engine;
use onceward::http::Door;
use onceward::worker::{Builder, Worker};
use onceward_reference::ontology::Workers;
use onceward_reference::principals::{self, Principal};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::admin::{self, AdminOptions, AdminState, Health, Principals, Reach, new_token};
use crate::cli::{Common, Demo, DemoService};
use crate::commands::serve::announce;
use crate::config::Config;
use crate::config::flags::Flags;
use crate::failure::Failure;
use crate::gateway::listen::Listener;
use crate::gateway::ready;
use crate::gateway::sight::Watch;
use crate::identity::Secret;
use crate::logs::{self, LogLevel};
use crate::metrics::Metrics;
use crate::open::{Access, StoreUrl, is_alone};
use crate::output::Out;
use crate::signals::Signals;
use crate::upkeep::Upkeep;
use tally::Tally;

/// The operator's token; public, as everything here.
const OPERATOR_TOKEN: &str = "demo-operator";
/// How many days audit entries are kept where no service says, and how often too old ones are
/// looked for.
const AUDIT_DAYS: u32 = 365;
const AUDIT_LOOK_EVERY: Duration = Duration::from_secs(3_600);
/// How long jobs that run have to end when the demo ends.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// Serves until told to stop.
pub(crate) async fn demo(common: &Common, args: &Demo, out: &Out) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    tell_unused(common, out);
    check(args)?;
    let level = match common.log_level {
        // A line for each request of the traffic would hide the one that sums them up.
        LogLevel::Info if !args.no_traffic => LogLevel::Warn,
        level => level,
    };
    logs::init(common.log_format, level)?;
    if let Some(path) = &args.ready_file {
        ready::clear_left(path)?;
    }
    let flags = Flags { store: common.store.clone(), ..Flags::default() };
    let config = Config::load(common.config.as_deref(), &flags)?;
    let url = StoreUrl::parse(&config.store.url)?;
    let store = url.open(Access::Create).await?;
    if let Some(path) = &args.ready_file {
        ready::clear(path)?;
    }
    let metrics = Arc::new(Metrics::new(store.capabilities().name, false));
    let engine = Engine::new(metrics.watching(store));
    let secret_file = config.identity.secret_file.as_deref();
    let place = (&url, secret_file);
    let served = run(place, (&engine, &metrics), args, out, &mut signals).await;
    let closed = engine.close().await;
    logs::flush();
    served?;
    Ok(closed?)
}

/// What a service is made from.
struct Setup {
    engine: Engine,
    /// Who may call: the demo's principals and the users of the traffic.
    principals: Vec<Principal>,
    /// Counts what the traffic does.
    tally: Arc<Tally>,
    /// Whether no other process writes to the store.
    alone: bool,
    /// Where the store is: what else a service keeps lies beside it.
    url: StoreUrl,
    /// Where events are kept, when it is not beside the store.
    events: Option<PathBuf>,
}

/// Adds what a service counts to the metrics.
type Counts = Box<dyn Fn(&mut Registry) + Send + Sync>;

/// A service, ready to be served.
struct Offer {
    /// Its name on the command line and in the ready file.
    name: &'static str,
    router: Router,
    /// Where its writes come in: closed first when the demo ends.
    doors: Vec<Arc<Door>>,
    /// Does its jobs.
    worker: Option<Builder>,
    /// What it runs beside: awaited when the demo ends, after its last request.
    drain: BoxFuture<'static, ()>,
    /// The views of events that it keeps.
    views: Option<Workers>,
    /// Resolves when something that it runs beside can't go on, with why. None: nothing ends.
    broken: Option<BoxFuture<'static, String>>,
    /// Settings that are weaker than people expect.
    warnings: Vec<String>,
    /// Its users, for as long as the demo runs.
    traffic: BoxFuture<'static, ()>,
    /// What people are told; `{listen}` and `{admin}` stand for the addresses.
    welcome: &'static str,
    /// Adds what it counts to the metrics.
    counts: Option<Counts>,
    /// How many days it wants audit entries kept. The store has one audit: the shortest counts.
    audit_days: Option<u32>,
}

/// The services that were asked for.
async fn offers(which: DemoService, setup: &Setup) -> Result<Vec<Offer>, Failure> {
    let wants = |service| which == service || which == DemoService::All;
    let mut offers = Vec::new();
    if wants(DemoService::Planning) {
        offers.push(planning::offer(setup).await?);
    }
    if wants(DemoService::Measurements) {
        offers.push(measurements::offer(setup)?);
    }
    if wants(DemoService::Business) {
        offers.push(business::offer(setup)?);
    }
    if wants(DemoService::Ontology) {
        offers.push(ontology::offer(setup).await?);
    }
    Ok(offers)
}

fn check(args: &Demo) -> Result<(), Failure> {
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

/// Says which common options have no effect here. They may be variables that are set for other
/// commands, so that nothing ends on their account.
fn tell_unused(common: &Common, out: &Out) {
    let given = [
        (common.cache.is_some(), "--cache"),
        (common.server.is_some(), "--server"),
        (common.token.is_some(), "--token"),
    ];
    for (_, flag) in given.into_iter().filter(|(given, _)| *given) {
        out.note(&format!(
            "{flag} has no effect on the demo: it opens its store itself, and has no cache in Redis"
        ));
    }
}

async fn run(
    (url, secret_file): (&StoreUrl, Option<&Path>),
    (engine, metrics): (&Engine, &Arc<Metrics>),
    args: &Demo,
    out: &Out,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let tally = Arc::new(Tally::default());
    let mut known = principals::demo();
    known.extend(users::principals()?);
    let setup = Setup {
        engine: engine.clone(),
        principals: known,
        tally: tally.clone(),
        alone: is_alone(engine),
        url: url.clone(),
        events: args.events.clone(),
    };
    let mut offers = offers(args.service, &setup).await?;
    let secret = Secret::load(secret_file, engine).await?;
    let servers = Servers::start((url, &secret), (engine, metrics), &offers, args).await?;
    let mut workers = Vec::new();
    for builder in offers.iter_mut().filter_map(|offer| offer.worker.take()) {
        workers.push(start_worker(builder, &tally)?);
    }
    if let Some(path) = &args.ready_file {
        ready::write_json(path, &servers.told(args.service))?;
    }
    servers.welcome(url, args, &offers, out)?;
    let (mut doors, mut traffic, mut drains) = (Vec::new(), Vec::new(), Vec::new());
    let mut broken = FuturesUnordered::new();
    for offer in offers {
        broken.extend(offer.broken);
        doors.extend(offer.doors);
        traffic.push(offer.traffic);
        drains.push(offer.drain);
    }
    let mut users: Vec<JoinHandle<()>> = Vec::new();
    if !args.no_traffic {
        users.extend(traffic.into_iter().map(tokio::spawn));
        users.push(tokio::spawn(tally::show(tally, out.shows_progress())));
    }
    let ended = tokio::select! {
        () = signals.next() => {
            tracing::info!("told to stop: draining");
            Ok(())
        }
        Some(why) = broken.next() => Err(Failure::failed("demo.broken", why)),
    };
    users.iter().for_each(JoinHandle::abort);
    let upkeep = servers.drain(&doors).await;
    for worker in workers {
        worker.drain(DRAIN_WITHIN).await;
    }
    for drain in drains {
        drain.await;
    }
    upkeep.finish(engine).await;
    ended
}

fn start_worker(builder: Builder, tally: &Arc<Tally>) -> Result<Worker, Failure> {
    let tally = tally.clone();
    let worker = builder.on_event(move |event| tally.job(event));
    worker.start().map_err(|error| Failure::failed("worker", error.to_string()))
}

/// The listeners: one per service, and the control API.
struct Servers {
    /// Names and addresses, the first one's at `--listen`.
    services: Vec<(&'static str, String)>,
    admin: String,
    health: Arc<Health>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    control: (oneshot::Sender<()>, JoinHandle<()>),
    upkeep: Upkeep,
}

impl Servers {
    async fn start(
        (url, secret): (&StoreUrl, &Secret),
        (engine, metrics): (&Engine, &Arc<Metrics>),
        offers: &[Offer],
        args: &Demo,
    ) -> Result<Self, Failure> {
        let control = Listener::bind("--admin", args.admin, None).await?;
        let admin = control.url();
        offers.iter().filter_map(|offer| offer.counts.as_ref()).for_each(|add| metrics.add(add));
        let health = Arc::new(Health::default());
        for warning in offers.iter().flat_map(|offer| &offer.warnings) {
            tracing::warn!("{warning}");
            health.warn(warning);
        }
        let state = AdminState::new(AdminOptions {
            engine: engine.clone(),
            secret: secret.derive("permits"),
            principals: operators(url, &admin)?,
            metrics: metrics.clone(),
            health: health.clone(),
            door: offers.iter().flat_map(|offer| &offer.doors).next().cloned(),
            views: offers.iter().find_map(|offer| offer.views.clone()),
            open_metrics: false,
            queues: HashMap::new(),
        });
        let days = offers.iter().filter_map(|offer| offer.audit_days).min().unwrap_or(AUDIT_DAYS);
        let times = (Duration::from_secs(u64::from(days) * 86_400), AUDIT_LOOK_EVERY);
        let upkeep = Upkeep::of_audit(engine, secret.seal_key(), metrics, times);
        let watch = Arc::new(Watch::new(metrics.clone()));
        let (stop, stopped) = watch::channel(false);
        let until = |mut stopped: watch::Receiver<bool>| async move {
            // The sender lives as long as the servers.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let (end, ended) = oneshot::channel();
        let closed = async move { ended.await.unwrap_or_default() };
        let control = (end, tokio::spawn(admin::serve(control.into_socket(), state, closed)));
        let (mut services, mut tasks) = (Vec::new(), Vec::new());
        for (offer, address) in offers.iter().zip(addresses(args)) {
            let listener = Listener::bind("--listen", address, None).await?;
            services.push((offer.name, listener.url()));
            let router = offer.router.clone().layer(from_fn_with_state(watch.clone(), watched));
            let closing = until(stopped.clone());
            tasks.push(tokio::spawn(async move {
                admin::serve_router(listener.into_socket(), &router, closing, || {}).await;
            }));
        }
        Ok(Self { services, admin, health, stop, tasks, control, upkeep })
    }

    /// No new connections and claims; what runs comes to its end, the control API last. What is
    /// done beside goes on.
    async fn drain(self, doors: &[Arc<Door>]) -> Upkeep {
        self.health.drain();
        doors.iter().for_each(|door| door.drain().close());
        self.stop.send_replace(true);
        for task in self.tasks {
            // A server that broke off has nothing left to wait for.
            let _ = task.await;
        }
        for door in doors {
            door.drain().finished().await;
        }
        let (end, control) = self.control;
        let _ = end.send(());
        let _ = control.await;
        self.upkeep
    }

    /// What programs are told.
    fn told(&self, service: DemoService) -> serde_json::Value {
        let listen = self.services.first().map_or("", |(_, url)| url);
        let mut told = json!({ "listen": listen, "admin": self.admin, "pid": std::process::id() });
        if service == DemoService::All {
            let services = self.services.iter().map(|(name, url)| (*name, json!(url)));
            told["services"] = serde_json::Value::Object(
                services.map(|(name, url)| (name.to_string(), url)).collect(),
            );
        }
        told
    }

    /// What people are told.
    fn welcome(
        &self,
        url: &StoreUrl,
        args: &Demo,
        offers: &[Offer],
        out: &Out,
    ) -> Result<(), Failure> {
        if out.is_json() {
            return out.print_json(&self.told(args.service));
        }
        let mut text = String::new();
        for (name, listen) in &self.services {
            text += &format!("{name:<16} {listen}\n");
        }
        text += &format!("{:<16} {}\n{:<16} {}\n", "control API", self.admin, "store", url.shown());
        for (offer, (_, listen)) in offers.iter().zip(&self.services) {
            text += "\n";
            text += &offer.welcome.replace("{listen}", listen).replace("{admin}", &self.admin);
        }
        text += include_str!("welcome.txt").replace("{admin}", &self.admin).as_str();
        out.print(&text)
    }
}

/// Where the services listen: the first at `--listen`, the others behind `--admin` or, like port 0,
/// wherever there is room.
fn addresses(args: &Demo) -> impl Iterator<Item = SocketAddr> {
    let (first, admin) = (args.listen, args.admin);
    let others = (1..).map(move |n: u16| {
        let port = match first.port() {
            0 => 0,
            _ => admin.port().max(first.port()).checked_add(n).unwrap_or(0),
        };
        SocketAddr::new(first.ip(), port)
    });
    std::iter::once(first).chain(others)
}

/// Who may use the control API: everyone who reads this file, and commands on the same store.
fn operators(url: &StoreUrl, admin: &str) -> Result<Principals, Failure> {
    let operator =
        |name: &str, token: &str| admin::Principal::with_token(name, Reach::Operator, token);
    let mut principals = vec![operator("operator", OPERATOR_TOKEN)];
    if let StoreUrl::Sqlite(path) = url {
        let token = new_token().map_err(|why| Failure::usage("admin.token", why))?;
        principals.push(operator("command line", &token));
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
