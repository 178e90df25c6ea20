//! The gateway: HTTP in, the tower layer of `onceward::http` in the middle, HTTP out.
//!
//! Rule: what is protected goes through the layer and nothing else decides about it; this folder
//! only carries bytes, within bounds of size, number and time. [`Settings`] is all it knows of
//! flags and files.
//!
//! | file | what |
//! |---|---|
//! | `listen`, `socket`, `sent`, `framing`, `tls` | connections: limits, time-outs, framed twice |
//! | `trailers`, `hpack` | what trailers over HTTP/2 must not hold |
//! | `entry`, `host`, `headers`, `body` | one request: what is refused, what is passed on |
//! | `hops` | this gateway among others: `Via`, loops, `Max-Forwards` |
//! | `interim` | answers before the answer |
//! | `path`, `readings`, `overrides` | what a request may be taken for behind us |
//! | `forward`, `pool`, `places` | connections out: what was sent, what was not; how many |
//! | `sight`, `trouble` | what is counted and logged of a request |
//! | `ready` | the ready file |

pub(crate) mod body;
mod entry;
mod forward;
mod framing;
pub(crate) mod headers;
mod hops;
mod host;
mod hpack;
mod interim;
pub(crate) mod listen;
mod overrides;
mod path;
mod places;
mod pool;
mod readings;
pub(crate) mod ready;
pub(crate) mod sent;
pub(crate) mod settings;
pub(crate) mod sight;
pub(crate) mod socket;
mod tls;
mod trailers;
mod trouble;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use onceward::http::{Door, Drain, OncewardLayer};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tower::Layer;

use crate::admin::AdminState;
use crate::failure::Failure;
use crate::metrics::Metrics;
use entry::Entrance;
use forward::Forward;
use hops::Hop;
use listen::{Listener, Server};
pub(crate) use settings::Settings;

/// How long attempts that were given up may take to write that down.
const CUT_FOR: Duration = Duration::from_secs(5);

/// A gateway that accepts connections.
pub(crate) struct Gateway {
    /// Where it listens.
    pub(crate) listen: String,
    /// Where the control API listens.
    pub(crate) admin: String,
    drain: Drain,
    drain_for: Duration,
    stop: watch::Sender<bool>,
    data: JoinHandle<()>,
    control: (oneshot::Sender<()>, JoinHandle<()>),
}

impl Gateway {
    /// Binds both listeners and serves: requests through the layer, the control API as it is.
    pub(crate) async fn start(
        settings: Settings,
        door: Arc<Door>,
        metrics: Arc<Metrics>,
        admin: impl FnOnce(&str) -> Result<AdminState, Failure>,
    ) -> Result<Self, Failure> {
        let tls = settings.tls.as_ref().map(tls::acceptor).transpose()?;
        let data = Listener::bind("--listen", settings.listen, tls).await?;
        let control = Listener::bind("--admin", settings.admin, None).await?;
        let (listen, admin_url) = (data.url(), control.url());
        let own = [("--listen", data.address()), ("--admin", control.address())];
        hops::refuse_itself(&settings, &own).await?;
        let hop = Hop::new();
        let forward = Forward::new(&settings, hop.clone())?;
        let drain = door.drain();
        let protected = OncewardLayer::shared(door).layer(forward);
        let admin = admin(&admin_url)?;
        let (stop, stopped) = watch::channel(false);
        let server = Arc::new(Server::new(&settings.limits, &settings.times, stopped));
        let drain_for = settings.times.drain;
        let entrance = Entrance::new(protected, metrics, &settings, hop);
        let (end, ended) = oneshot::channel();
        // Also when the gateway is gone.
        let closed = async move { ended.await.unwrap_or_default() };
        // A server each: whoever fills the one does not lock the operator out of the other.
        let data = tokio::spawn(server.run(data, entrance));
        let control =
            (end, tokio::spawn(crate::admin::serve(control.into_socket(), admin, closed)));
        Ok(Self { listen, admin: admin_url, drain, drain_for, stop, data, control })
    }

    /// Closes: no new connections and claims; what runs comes to its end, or is given up when the
    /// time to drain is over or `hurry` resolves. The control API ends last: it tells that we
    /// drain, and workers elsewhere finish what they hold.
    pub(crate) async fn drain(self, hurry: impl Future<Output = ()>) {
        self.drain.close();
        self.stop.send_replace(true);
        let Self { drain, data, control: (end, control), .. } = self;
        let ending = async {
            // A server that broke off has nothing left to wait for.
            let _ = data.await;
            drain.finished().await;
        };
        let in_time = tokio::select! {
            () = ending => true,
            () = tokio::time::sleep(self.drain_for) => false,
            () = hurry => false,
        };
        if !in_time {
            drain.cut();
            let _ = tokio::time::timeout(CUT_FOR, drain.finished()).await;
        }
        let _ = end.send(());
        let _ = tokio::time::timeout(CUT_FOR, control).await;
    }
}

/// An address that can be shown and connected to.
fn shown(scheme: &str, address: SocketAddr) -> String {
    format!("{scheme}://{address}")
}
