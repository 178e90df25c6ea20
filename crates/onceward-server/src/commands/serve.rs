//! `onceward serve`: the gateway in front of an upstream, until it is told to stop.
//!
//! Turns the configuration into [`Settings`], starts, tells others how it can be reached (ready
//! file, lock file), sweeps now and then, waits for SIGTERM or SIGINT and drains. A second signal
//! hurries: what still runs is given up at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward::engine::Engine;
use onceward::http::{Identity, PermitText, Routes};
use onceward::store::sqlite::{Announced, SqliteOptions, SqliteStore};
use onceward::worker::{Context, Event, Happened, JobError, Worker};
use serde_json::json;

use crate::admin::{
    AdminOptions, AdminState, Health, Keys, Principal, Principals, Reach, check_strength,
    new_token, operator,
};
use crate::authorize::Asker;
use crate::cache::{self, SharedCache};
use crate::cli::{Common, Serve};
use crate::commands::ends::unknown_ends;
use crate::config::Config;
use crate::config::route::RouteSection;
use crate::config::sections::{Create, UpstreamReuse};
use crate::failure::Failure;
use crate::gateway::settings::{Limits, PathRules, Reuse, Tenants, Times, TlsFiles, Upstream};
use crate::gateway::{Gateway, Settings, ready};
use crate::identity::{self, PERMITS, Secret, Signs};
use crate::logs;
use crate::metrics::Metrics;
use crate::open::{Access, StoreUrl};
use crate::open_files::Shares;
use crate::output::Out;
use crate::signals::Signals;
use crate::upkeep::Upkeep;

/// How long whoever gives permission may take.
const PERMISSION_WITHIN: Duration = Duration::from_secs(5);
/// How long after its start a server first looks for what is to be swept, at most.
const SWEEP_AFTER_START: Duration = Duration::from_secs(60);

/// Serves until told to stop.
pub(crate) async fn serve(common: &Common, args: &Serve, out: &Out) -> Result<(), Failure> {
    // Before anything else: a signal that comes while we start is not lost.
    let mut signals = Signals::new()?;
    let mut flags = args.flags.clone();
    flags.store.clone_from(&common.store);
    flags.cache.clone_from(&common.cache);
    let config = Config::load(common.config.as_deref(), &flags)?;
    let Some(upstream) = &config.server.upstream else {
        let message = "no upstream: name the API to protect with --upstream http://HOST:PORT";
        return Err(Failure::usage("upstream.missing", message));
    };
    let upstream = Upstream::parse(&upstream.0.to_string())?;
    logs::init(common.log_format, common.log_level)?;
    if let Some(path) = &config.server.ready_file {
        ready::clear_left(path)?;
    }
    let url = StoreUrl::parse(&config.store.url)?;
    let access = match config.store.create {
        Create::Auto => Access::Create,
        Create::Never => Access::Write,
    };
    let options = SqliteOptions { accept_older: args.accept_older, ..config.sqlite_options() };
    let store = url.open_with(access, options).await?;
    if let Some(path) = &config.server.ready_file {
        // The store is ours now.
        ready::clear(path)?;
    }
    for warning in store.capabilities().warnings {
        tracing::warn!("{warning}");
    }
    let metrics = Arc::new(Metrics::new(store.capabilities().name, config.server.tenant_metrics));
    let engine = Engine::with_options(metrics.watching(store), config.engine_options());
    let server = Server { config, url, engine, metrics, out };
    let served = server.run(upstream, args.admin_token.as_deref(), &mut signals).await;
    let closed = server.engine.close().await;
    logs::flush();
    served?;
    Ok(closed?)
}

/// What a server stands on.
struct Server<'o> {
    config: Config,
    url: StoreUrl,
    engine: Engine,
    metrics: Arc<Metrics>,
    out: &'o Out,
}

impl Server<'_> {
    async fn run(
        &self,
        upstream: Upstream,
        admin_token: Option<&str>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let Self { config, engine, metrics, .. } = self;
        let health = Arc::new(Health::default());
        self.check_token(admin_token, &health)?;
        let secret = Secret::load(config.identity.secret_file.as_deref(), engine).await?;
        let (identity, signs) = identity::from_config(config, &secret)?;
        let shown = upstream.to_string();
        let keys = Keys::new(&secret.derive("permits"));
        let settings = settings(config, upstream, keys, &identity)?;
        let mut door = config.door(engine.clone(), identity, settings.routes.clone(), &secret);
        let cache = SharedCache::open(&config.cache, secret.derive("cache"))?;
        if let Some(cache) = &cache {
            door = cache.behind(door);
            if !cache.is_up().await {
                tracing::warn!("the cache gives no answer; until it does, the store answers");
            }
        }
        let door = Arc::new(door);
        let (clients, wanted) = (Shares::now().clients, config.limits.connections);
        if clients < wanted as usize {
            health.warn(format!(
                "so few files may be open that {clients} clients can be connected at once, not \
                 [limits] connections = {wanted}; raise `ulimit -n` or lower it"
            ));
        }
        if let Some(open) = config.open_identity() {
            tracing::warn!("{open}");
            health.warn(open);
        }
        let admin = |address: &str| {
            let principals = self.principals(address, admin_token)?;
            Ok(AdminState::new(AdminOptions {
                engine: engine.clone(),
                secret: secret.derive(PERMITS),
                principals,
                metrics: metrics.clone(),
                health: health.clone(),
                door: Some(door.clone()),
                views: None,
                open_metrics: config.server.open_metrics,
                queues: config.queue_terms(),
            }))
        };
        let gateway = Gateway::start(settings, door.clone(), metrics.clone(), admin).await?;
        let tasks = [
            tokio::spawn(sweep(engine.clone(), cache, config.store.sweep_every.duration())),
            tokio::spawn(look_for_signs(signs, health.clone())),
        ];
        let times = (config.audit.retain.duration(), config.store.sweep_every.duration());
        let upkeep = Upkeep::of_audit(engine, secret.seal_key(), metrics, times);
        if let Some(path) = &config.server.ready_file {
            ready::write(path, &gateway.listen, &gateway.admin)?;
        }
        self.tell(&gateway, &shown, door.routes())?;
        signals.next().await;
        tracing::info!("told to stop: draining");
        health.drain();
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        gateway.drain(signals.next()).await;
        upkeep.finish(engine).await;
        Ok(())
    }

    /// A token that can be guessed is refused where others may guess it, and told of elsewhere.
    fn check_token(&self, given: Option<&str>, health: &Health) -> Result<(), Failure> {
        let Some(given) = given else { return Ok(()) };
        let told = check_strength(given, self.config.server.admin.ip());
        if let Some(warning) = told.map_err(|why| Failure::usage("admin.token", why))? {
            tracing::warn!("{warning}");
            health.warn(warning);
        }
        Ok(())
    }

    /// Who may use the control API: the operator, the file's principals, and commands that find
    /// this server by the lock file of its store.
    fn principals(&self, address: &str, given: Option<&str>) -> Result<Principals, Failure> {
        let failed = |why: String| Failure::usage("admin.token", why);
        let (operator, made) = operator(given).map_err(failed)?;
        if let Some(token) = made {
            // Once, and on standard error: it is a secret, and no part of the output.
            self.out.note(&format!("the operator's token for this run: {token}"));
        }
        let mut principals = vec![operator];
        for principal in self.config.principals.iter().filter(|known| known.control) {
            let reach = Reach::Tenant(principal.tenant.clone());
            let known = Principal::hashed(&principal.caller, reach, &principal.token_sha256);
            let known = known.map_err(failed)?;
            if known.has_the_token_of(&principals[0]) {
                let who = &principal.caller;
                return Err(failed(format!(
                    "principal {who} has the operator's token: make another"
                )));
            }
            principals.push(known);
        }
        if let StoreUrl::Sqlite(path) = &self.url {
            let token = new_token().map_err(failed)?;
            principals.push(Principal::with_token("command line", Reach::Operator, &token));
            announce(path, address, token)?;
        }
        Ok(Principals::new(principals))
    }

    fn tell(&self, gateway: &Gateway, upstream: &str, routes: &Routes) -> Result<(), Failure> {
        let (listen, admin) = (&gateway.listen, &gateway.admin);
        if self.out.is_json() {
            return self.out.print_json(&json!({
                "listen": listen,
                "admin": admin,
                "pid": std::process::id(),
                "config": self.config.file,
                "protection": self.config.protection(),
            }));
        }
        let store = self.url.shown();
        let cache = self.config.cache.url.as_deref().map(cache::shown);
        let cache = cache.map(|url| format!("cache {url}\n")).unwrap_or_default();
        let ends = unknown_ends(routes);
        let protection = self.config.protection();
        let told = format!(
            "{listen} → {upstream}\ncontrol API {admin}\nstore {store}\n{cache}{protection}\n{ends}"
        );
        self.out.print(&told)
    }
}

/// Tells commands on the same store how this server is reached.
pub(crate) fn announce(path: &Path, address: &str, token: String) -> Result<(), Failure> {
    let announced = Announced { server: address.into(), token };
    SqliteStore::announce(path, &announced).map_err(|error| {
        let message = format!("can't write the lock file of {}: {error}", path.display());
        Failure::failed("store.lock", message)
    })
}

/// Drops what is past its time, once per period among all processes on the store. The first look
/// is taken a while after the start, so that a server that only comes and goes writes nothing.
async fn sweep(engine: Engine, cache: Option<SharedCache>, every: Duration) {
    tokio::time::sleep(every.min(SWEEP_AFTER_START)).await;
    let worker = Worker::builder(engine).every(every, "sweep", move |job: Context| {
        let cache = cache.clone();
        async move {
            let swept = cache::sweep(job.engine(), cache.as_ref(), |_| {}).await?;
            tracing::info!(?swept, "swept");
            Ok::<_, JobError>(())
        }
    });
    match worker.on_event(tell_of_sweeps).start() {
        Ok(_worker) => std::future::pending().await,
        Err(error) => tracing::error!(%error, "nothing is swept: the worker can't start"),
    }
}

fn tell_of_sweeps(event: &Event) {
    if let Happened::Failed { error, .. } | Happened::Dead { error } = &event.happened {
        tracing::warn!(error, attempt = event.attempt, "the sweep broke off");
    }
}

/// Shows in health that static credentials were expected and a token of short life came.
async fn look_for_signs(signs: Arc<Signs>, health: Arc<Health>) {
    health.warn(signs.jwt_comes().await);
}

fn settings(
    config: &Config,
    upstream: Upstream,
    keys: Keys,
    identity: &Identity,
) -> Result<Settings, Failure> {
    let permit_text =
        PermitText(Arc::new(move |key, fence, moved| keys.permit_under(key, fence, moved)));
    let asker = Asker::new(PERMISSION_WITHIN)?;
    let hook = |url: &crate::config::field::Url, route: &RouteSection| {
        asker.hook(url.0.clone(), route.policy().dialect)
    };
    let mut route_upstreams = std::collections::HashMap::new();
    for route in &config.routes {
        if let Some(url) = &route.upstream {
            route_upstreams.insert(route.r#match.clone(), Upstream::parse(&url.0.to_string())?);
        }
    }
    let (server, limits) = (&config.server, &config.limits);
    let files = server.tls_cert.clone().zip(server.tls_key.clone());
    let names = config.identity.tenant_header.iter().chain(&config.identity.caller_header);
    Ok(Settings {
        listen: server.listen,
        admin: server.admin,
        upstream,
        route_upstreams,
        identity_headers: names.cloned().collect(),
        routes: config.http_routes(hook, &permit_text)?,
        unmatched: server.unmatched,
        paths: PathRules { encoded_slash: server.encoded_slash, spelling: server.spelling },
        tls: files.map(|(cert, key)| TlsFiles { cert, key }),
        limits: Limits {
            connections_max: limits.connections as usize,
            head_bytes_max: usize::try_from(limits.header_bytes.0).unwrap_or(usize::MAX),
            headers_max: limits.headers as usize,
            streams_max: limits.streams,
            idle_upstream_max: limits.upstream_idle_connections as usize,
            write_bytes_per_second: limits.write_bytes_per_second,
        },
        times: Times {
            headers: server.header_timeout.duration(),
            body: server.body_timeout.duration(),
            write: server.write_timeout.duration(),
            connect: server.connect_timeout.duration(),
            upstream: server.upstream_timeout.duration(),
            idle_upstream: server.upstream_idle_timeout.duration(),
            drain: server.drain_timeout.duration(),
        },
        reuse: match server.upstream_reuse {
            UpstreamReuse::Shared => Reuse::Shared,
            UpstreamReuse::Tenant => Reuse::Tenant(Tenants(identity.clone())),
            UpstreamReuse::None => Reuse::None,
        },
    })
}
