//! `onceward serve`: the gateway in front of an upstream, until it is told to stop.
//!
//! Turns flags into [`Settings`], starts, writes the ready file, waits for SIGTERM or SIGINT and
//! drains. A second signal hurries: what still runs is given up at once.

use std::time::Duration;

use axum::Json;
use axum::routing::get;
use http::HeaderName;
use onceward::engine::Engine;
use onceward::http::{Caller, Identity, Policy, Routes};
use onceward_core::record::OnAbandoned;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::{IdentitySource, Serve, WhenAbandoned};
use crate::failure::Failure;
use crate::gateway::settings::{Limits, Times, TlsFiles, Upstream};
use crate::gateway::{Gateway, Settings, ready, secret};
use crate::open::{Access, StoreUrl};
use crate::output::Out;

/// Serves until told to stop.
pub(crate) async fn serve(url: &StoreUrl, args: &Serve, out: &Out) -> Result<(), Failure> {
    // Before anything else: a signal that comes while we start is not lost.
    let mut signals = Signals::new()?;
    let Some(upstream) = &args.upstream else {
        let message = "no upstream: name the API to protect with --upstream http://HOST:PORT";
        return Err(Failure::usage("upstream.missing", message));
    };
    let upstream = Upstream::parse(upstream)?;
    if let Some(path) = &args.ready_file {
        ready::clear(path)?;
    }
    let engine = Engine::new(url.open(Access::Create).await?);
    let served = serve_on(&engine, upstream, args, url, out, &mut signals).await;
    let closed = engine.close().await;
    served?;
    Ok(closed?)
}

async fn serve_on(
    engine: &Engine,
    upstream: Upstream,
    args: &Serve,
    url: &StoreUrl,
    out: &Out,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let secret = secret::of_store(engine).await?;
    let shown = upstream.to_string();
    let settings = settings(args, upstream, secret)?;
    let gateway = Gateway::start(settings, engine.clone(), control(engine)).await?;
    if let Some(path) = &args.ready_file {
        ready::write(path, &gateway.listen, &gateway.admin)?;
    }
    tell(&gateway, &shown, url, out)?;
    signals.next().await;
    tracing::info!("told to stop: draining");
    gateway.drain(signals.next()).await;
    Ok(())
}

fn tell(gateway: &Gateway, upstream: &str, url: &StoreUrl, out: &Out) -> Result<(), Failure> {
    if out.is_json() {
        let (listen, admin, pid) = (&gateway.listen, &gateway.admin, std::process::id());
        return out.print_json(&json!({ "listen": listen, "admin": admin, "pid": pid }));
    }
    out.print(&format!(
        "{} → {upstream}\ncontrol API {}\nstore {}\n",
        gateway.listen,
        gateway.admin,
        url.shown()
    ))
}

fn settings(args: &Serve, upstream: Upstream, secret: [u8; 32]) -> Result<Settings, Failure> {
    let (identity, identity_headers) = identity(args, secret)?;
    let mut policy = Policy::unwritten();
    policy.on_abandoned = match args.on_abandoned {
        WhenAbandoned::Rerun => OnAbandoned::Rerun,
        WhenAbandoned::Hold => OnAbandoned::Hold,
    };
    policy.lease_ms = args.lease.0;
    policy.wait_ms = args.wait.0;
    policy.max_request_bytes = args.max_request_bytes;
    policy.max_stored_bytes = args.max_stored_bytes;
    let ms = Duration::from_millis;
    let times = Times {
        headers: ms(args.header_timeout.0),
        body: ms(args.body_timeout.0),
        write: ms(args.body_timeout.0),
        upstream: ms(args.upstream_timeout.0),
        drain: ms(args.drain_timeout.0),
        ..Times::default()
    };
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    let tls = files.map(|(cert, key)| TlsFiles { cert, key });
    let limits = Limits { connections_max: args.max_connections, ..Limits::default() };
    Ok(Settings {
        listen: args.listen,
        admin: args.admin,
        upstream,
        route_upstreams: std::collections::HashMap::new(),
        identity,
        identity_headers,
        routes: Routes::every(policy)?,
        secret,
        tls,
        limits,
        times,
    })
}

fn identity(args: &Serve, secret: [u8; 32]) -> Result<(Identity, Vec<HeaderName>), Failure> {
    let header = |flag: &str, value: &Option<String>| {
        let Some(name) = value else {
            let message = format!("--identity header needs {flag} NAME");
            return Err(Failure::usage("identity", message));
        };
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            Failure::usage("identity", format!("{flag} {name:?} is not a header's name"))
        })
    };
    Ok(match args.identity {
        IdentitySource::Authorization => {
            (Identity::Authorization { secret, strict: false }, Vec::new())
        }
        IdentitySource::Header => {
            let tenant = header("--tenant-header", &args.tenant_header)?;
            let caller = header("--caller-header", &args.caller_header)?;
            let names = vec![tenant.clone(), caller.clone()];
            (Identity::Headers { tenant, caller }, names)
        }
        IdentitySource::Single => {
            let caller = Caller { tenant: "single".into(), caller: "single".into() };
            (Identity::Single(caller), Vec::new())
        }
    })
}

/// What the control API answers.
fn control(engine: &Engine) -> axum::Router {
    let capabilities = engine.capabilities();
    let health = json!({
        "status": "ok",
        "store": capabilities.name,
        "durability": capabilities.durability.to_string(),
    });
    axum::Router::new().route("/healthz", get(move || async move { Json(health) }))
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::failed("signals", format!("can't listen for signals: {error}"))
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
