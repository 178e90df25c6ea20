//! Connections to one upstream, kept alive between requests.
//!
//! The rule that matters: a request that was never written may be sent again, one that may have
//! been written never is. The HTTP library hands a request back when not a byte of it was taken;
//! only then is another connection tried.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use onceward::http::{BoxError, ServiceError};
use tower::Service;

use super::body::{RequestBody, ResponseBody};
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

    async fn open(&self, origin: &Uri) -> Result<SendRequest<RequestBody>, ServiceError> {
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
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
        Ok(sender)
    }
}

/// Idle connections to one upstream.
pub(super) struct Pool {
    origin: Uri,
    connector: Connector,
    idle: Mutex<VecDeque<Idle>>,
    idle_max: usize,
    idle_for: Duration,
}

struct Idle {
    sender: SendRequest<RequestBody>,
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
        }
    }

    /// Sends a request; the answer's body gives the connection back.
    ///
    /// # Errors
    /// [`ServiceError::NotSent`] when not a byte of it was sent, [`ServiceError::Unreadable`] when
    /// an answer came whose head is too large; anything else: nobody knows.
    pub(super) async fn send(
        self: &Arc<Self>,
        mut request: Request<RequestBody>,
        silence: Duration,
    ) -> Result<Response<ResponseBody>, BoxError> {
        loop {
            let kept = self.take();
            let was_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connector.open(&self.origin).await?,
            };
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.answered(response, sender, silence)),
                Err(error) => error,
            };
            match error.take_message() {
                // The upstream closed a connection that it had kept; a new one may do better.
                Some(unsent) if was_kept => request = unsent,
                Some(_) => return Err(ServiceError::NotSent(error.into_error().to_string()).into()),
                None => return Err(answer_lost(error.into_error())),
            }
        }
    }

    fn answered(
        self: &Arc<Self>,
        response: Response<Incoming>,
        sender: SendRequest<RequestBody>,
        silence: Duration,
    ) -> Response<ResponseBody> {
        let lent = Lent { sender, pool: self.clone() };
        response.map(|body| ResponseBody::new(body, lent, silence))
    }

    /// The connection that was used last, if it can still be used.
    fn take(&self) -> Option<SendRequest<RequestBody>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(oldest) = idle.front() {
            if oldest.since.elapsed() < self.idle_for && !oldest.sender.is_closed() {
                break;
            }
            idle.pop_front();
        }
        while let Some(last) = idle.pop_back() {
            if !last.sender.is_closed() {
                return Some(last.sender);
            }
        }
        None
    }

    fn put(&self, sender: SendRequest<RequestBody>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back(Idle { sender, since: Instant::now() });
        if idle.len() > self.idle_max {
            idle.pop_front();
        }
    }
}

/// What is known of the effect when no answer can be handed on: it has answered, with more head
/// than we take, or nobody knows.
fn answer_lost(error: hyper::Error) -> BoxError {
    if error.is_parse_too_large() {
        let most = format!("a head of over {HEADERS_MAX} headers or {HEAD_BYTES_MAX} bytes");
        return ServiceError::Unreadable(most).into();
    }
    error.into()
}

/// A connection that an answer is still coming over.
pub(super) struct Lent {
    sender: SendRequest<RequestBody>,
    pool: Arc<Pool>,
}

impl Lent {
    /// Gives it back once it can take another request.
    pub(super) fn give_back(mut self) {
        if self.sender.is_ready() {
            self.pool.put(self.sender);
            return;
        }
        tokio::spawn(async move {
            if self.sender.ready().await.is_ok() {
                self.pool.put(self.sender);
            }
        });
    }
}
