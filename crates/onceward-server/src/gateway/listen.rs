//! Listeners: connections in, HTTP/1.1 or HTTP/2 as they come, bounded in number, size and time.
//!
//! When told to stop, a listener accepts no more and lets each connection finish the request that
//! it is at.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use onceward::http::BoxError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::sent::Streams;
use super::settings::{Limits, Times};
use super::socket::{DoubleFramed, Patience, Socket};
use crate::failure::Failure;
use crate::open_files::Shares;

/// Pause after a connection could not be accepted, as when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say.
const PING_EVERY: Duration = Duration::from_secs(20);

/// A bound address.
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// Binds an address that a flag named.
    pub(crate) async fn bind(
        flag: &str,
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            let hint = match error.kind() {
                std::io::ErrorKind::AddrInUse => "; another program has it: name another address",
                std::io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
                _ => "",
            };
            Failure::failed("listen", format!("{flag} {address}: {error}{hint}"))
        };
        let socket = TcpListener::bind(address).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok(Self { socket, address, tls })
    }

    /// The bound socket itself.
    pub(crate) fn into_socket(self) -> TcpListener {
        self.socket
    }

    /// The address that it has.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        super::shown(if self.tls.is_some() { "https" } else { "http" }, self.address)
    }
}

/// A client's connection, as far as its requests need to know.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// Its address, as the next hop is told it.
    pub(super) address: HeaderValue,
    pub(super) is_tls: bool,
    pub(super) double_framed: DoubleFramed,
    pub(super) streams: Streams,
}

/// Makes the service of a connection.
pub(super) trait Serves: Clone + Send + Sync + 'static {
    type Body: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
    type Future: Future<Output = Result<Response<Self::Body>, Infallible>> + Send + 'static;
    type Service: Service<
            Request<Incoming>,
            Response = Response<Self::Body>,
            Error = Infallible,
            Future = Self::Future,
        > + Send
        + 'static;

    fn connection(&self, peer: Peer) -> Self::Service;
}

/// Accepts and serves connections.
pub(super) struct Server {
    http: auto::Builder<TokioExecutor>,
    places: Arc<Semaphore>,
    head_bytes_max: usize,
    headers_for: Duration,
    patience: Patience,
    stopped: watch::Receiver<bool>,
}

impl Server {
    /// A server within these bounds, until `stopped`.
    pub(super) fn new(limits: &Limits, times: &Times, stopped: watch::Receiver<bool>) -> Self {
        // Whoever is one too many waits in the listener's own queue, and takes no file.
        let places = limits.connections_max.min(Shares::now().clients);
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(times.headers)
            .max_buf_size(limits.head_bytes_max)
            .max_headers(limits.headers_max);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams_max)
            .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY);
        Self {
            http,
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            head_bytes_max: limits.head_bytes_max,
            headers_for: times.headers,
            patience: Patience {
                write_for: times.write,
                bytes_per_second: limits.write_bytes_per_second,
            },
            stopped,
        }
    }

    /// Accepts until stopped, then waits for every connection.
    pub(super) async fn run<S: Serves>(self: Arc<Self>, listener: Listener, serves: S) {
        let graceful = GracefulShutdown::new();
        let mut stopped = self.stopped.clone();
        loop {
            let accepted = tokio::select! {
                _ = stopped.wait_for(|stopped| *stopped) => break,
                accepted = self.accept(&listener.socket) => accepted,
            };
            let (stream, address, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (server, serves, watcher) = (self.clone(), serves.clone(), graceful.watcher());
            let tls = listener.tls.clone();
            tokio::spawn(async move {
                server.connection(stream, address, tls, serves, watcher).await;
                drop(place);
            });
        }
        drop(listener);
        graceful.shutdown().await;
    }

    async fn accept(
        &self,
        listener: &TcpListener,
    ) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        // The semaphore is never closed; without a place nobody is accepted.
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(std::io::Error::other)?;
        let (stream, address) = listener.accept().await?;
        Ok((stream, address, place))
    }

    async fn connection<S: Serves>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
        serves: S,
        watcher: Watcher,
    ) {
        // Answers are small and awaited: waiting to fill a packet only costs time.
        let _ = stream.set_nodelay(true);
        match tls {
            None => self.serve(stream, address, false, serves, watcher).await,
            Some(acceptor) => {
                let handshake = tokio::time::timeout(self.headers_for, acceptor.accept(stream));
                match handshake.await {
                    Ok(Ok(stream)) => self.serve(stream, address, true, serves, watcher).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                }
            }
        }
    }

    async fn serve<S, T>(
        &self,
        stream: T,
        address: SocketAddr,
        is_tls: bool,
        serves: S,
        watcher: Watcher,
    ) where
        S: Serves,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let socket = Socket::new(stream, self.head_bytes_max, self.headers_for, self.patience);
        let Ok(address) = HeaderValue::from_str(&address.ip().to_string()) else { return };
        let (double_framed, streams) = (socket.double_framed(), socket.streams());
        let peer = Peer { address, is_tls, double_framed, streams };
        let service = serves.connection(peer);
        let connection = self.http.serve_connection(TokioIo::new(socket), service);
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
