//! Connections to one upstream, kept alive between requests.
//!
//! The rule that matters: a request that was never written may be sent again, one that may have
//! been written never is. The HTTP library hands a request back when not a byte of it was taken;
//! only then is another connection tried.
//!
//! A connection has no task of its own: whoever waits for an answer drives it, and nothing is handed
//! from task to task. While it is idle nobody does; what its upstream did meanwhile shows when it
//! is used again, before a byte is written.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use onceward::http::{BoxError, ServiceError};
use tokio::net::TcpStream;
use tower::Service;

use super::body::{RequestBody, ResponseBody, Upload};
use super::settings::{Limits, Times};
use crate::failure::Failure;

/// Bytes of an answer's head at most.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Headers of an answer at most.
const HEADERS_MAX: usize = 256;

/// How connections are made: the same for all upstreams.
#[derive(Clone)]
pub(super) struct Connector {
    connect: HttpsConnector<HttpConnector>,
    connect_for: Duration,
}

impl Connector {
    /// Connects over TCP, and TLS where the URL says so, trusting the system's roots.
    pub(super) fn new(times: &Times) -> Result<Self, Failure> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(times.connect));
        let failed = |error: &dyn std::fmt::Display| {
            let message = format!("can't read this system's trusted certificates: {error}");
            Failure::failed("tls.roots", message)
        };
        let connect = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| failed(&error))?
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Self { connect, connect_for: times.connect })
    }

    async fn open(&self, origin: &Uri) -> Result<Wire, ServiceError> {
        let not_sent = |error: &dyn std::fmt::Display| ServiceError::NotSent(error.to_string());
        let connecting = self.connect.clone().call(origin.clone());
        let stream = match tokio::time::timeout(self.connect_for, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(not_sent(&*error)),
            Err(_) => return Err(not_sent(&"the upstream took too long to connect")),
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(stream)
            .await
            .map_err(|error| not_sent(&error))?;
        Ok(Wire { sender, connection: Some(Box::pin(connection)) })
    }
}

type Connection = http1::Connection<MaybeHttpsStream<TokioIo<TcpStream>>, RequestBody>;

/// A connection to the upstream.
struct Wire {
    sender: SendRequest<RequestBody>,
    /// Moves the bytes whenever it is polled; none once it is over.
    connection: Option<Pin<Box<Connection>>>,
}

impl Wire {
    /// Moves what can be moved. Ready when the connection is over.
    fn drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        if let Err(error) = ready!(connection.as_mut().poll(context)) {
            tracing::debug!(%error, "a connection to the upstream ended");
        }
        self.connection = None;
        Poll::Ready(())
    }

    /// Sends a request and waits for the head of its answer.
    async fn exchange(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        let mut sending = pin!(self.sender.try_send_request(request));
        poll_fn(|context| {
            // What comes of it, driving brings about: it need not wake whoever drives.
            let _ = self.drive(context);
            sending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// Waits until another request can be sent; false when the connection is over before that.
    async fn is_free(&mut self) -> bool {
        poll_fn(|context| {
            let over = self.drive(context).is_ready();
            if over || self.sender.is_ready() { Poll::Ready(!over) } else { Poll::Pending }
        })
        .await
    }
}

/// Idle connections to one upstream.
pub(super) struct Pool {
    origin: Uri,
    connector: Connector,
    idle: Mutex<VecDeque<Idle>>,
    idle_max: usize,
    idle_for: Duration,
    /// Whether someone comes to close what stays idle for too long.
    tended: AtomicBool,
}

struct Idle {
    wire: Wire,
    since: Instant,
}

impl Pool {
    /// An empty pool.
    pub(super) fn new(origin: Uri, connector: Connector, limits: &Limits, times: &Times) -> Self {
        Self {
            origin,
            connector,
            idle: Mutex::default(),
            idle_max: limits.idle_upstream_max,
            idle_for: times.idle_upstream,
            tended: AtomicBool::new(false),
        }
    }

    /// Sends a request; the answer's body gives the connection back. `upload` tells whether the
    /// request's body is on its way.
    ///
    /// # Errors
    /// [`ServiceError::NotSent`] when not a byte of it was sent; anything else: nobody knows.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        upload: Option<&Upload>,
        silence: Duration,
    ) -> Result<Response<ResponseBody>, BoxError> {
        loop {
            let kept = self.take();
            let was_kept = kept.is_some();
            let mut wire = match kept {
                Some(wire) => wire,
                None => self.connector.open(&self.origin).await?,
            };
            let mut error = match wire.exchange(request).await {
                Ok(response) => {
                    let mut lent = Lent { wire, pool: self.clone() };
                    if upload.is_some_and(|upload| !upload.has_ended()) {
                        lent.leave_to_a_task();
                    }
                    return Ok(response.map(|body| ResponseBody::new(body, lent, silence)));
                }
                Err(error) => error,
            };
            match error.take_message() {
                // The upstream closed a connection that it had kept; a new one may do better.
                Some(unsent) if was_kept => request = unsent,
                Some(_) => return Err(ServiceError::NotSent(error.into_error().to_string()).into()),
                None => return Err(error.into_error().into()),
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that was used last.
    fn take(&self) -> Option<Wire> {
        let last = self.idle().pop_back()?;
        (last.since.elapsed() < self.idle_for).then_some(last.wire)
    }

    fn put(self: &Arc<Self>, wire: Wire) {
        let mut idle = self.idle();
        idle.push_back(Idle { wire, since: Instant::now() });
        let one_too_many = if idle.len() > self.idle_max { idle.pop_front() } else { None };
        drop(idle);
        drop(one_too_many);
        if !self.tended.swap(true, Ordering::AcqRel) {
            tokio::spawn(Self::tend(Arc::downgrade(self)));
        }
    }

    /// Closes what has been idle for too long, until nothing is left or nobody has the pool.
    async fn tend(pool: std::sync::Weak<Self>) {
        while let Some(pause) = pool.upgrade().map(|pool| pool.idle_for) {
            tokio::time::sleep(pause).await;
            let Some(pool) = pool.upgrade() else { return };
            let mut idle = pool.idle();
            let old = idle.partition_point(|one| one.since.elapsed() >= pool.idle_for);
            let closed: Vec<_> = idle.drain(..old).collect();
            if idle.is_empty() {
                // Under the lock: whoever puts one back from here on finds nobody.
                pool.tended.store(false, Ordering::Release);
                return;
            }
            drop(idle);
            drop(closed);
        }
    }
}

/// A connection that an answer is still coming over.
pub(super) struct Lent {
    wire: Wire,
    pool: Arc<Pool>,
}

impl Lent {
    /// Whether it moves only when it is driven; otherwise it is over, or a task has it.
    pub(super) fn is_ours(&self) -> bool {
        self.wire.connection.is_some()
    }

    /// Moves what can be moved: the answer comes no other way.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        let _ = self.wire.drive(context);
    }

    /// A request that is still on its way goes on though nobody reads its answer: its sender may
    /// read only when all is sent.
    fn leave_to_a_task(&mut self) {
        let Some(connection) = self.wire.connection.take() else { return };
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
    }

    /// Gives it back once it can take another request.
    pub(super) fn give_back(mut self) {
        let mut quiet = Context::from_waker(Waker::noop());
        if self.wire.drive(&mut quiet).is_ready() {
            // Over; or a task has it, and ends it when this is dropped.
            return;
        }
        if self.wire.sender.is_ready() {
            self.pool.put(self.wire);
            return;
        }
        tokio::spawn(async move {
            if self.wire.is_free().await {
                self.pool.put(self.wire);
            }
        });
    }
}
