//! Connections to one upstream, kept alive between requests.
//!
//! The rule that matters: a request that was never written may be sent again, one that may have
//! been written never is. The HTTP library hands a request back when not a byte of it was taken;
//! only then is another connection tried.
//!
//! What an upstream says unasked, behind its answer, is the answer to whoever comes next on the
//! same connection, unless it is there before them. Only the upstream can close that gap;
//! [`Reuse`] says whose requests may meet in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Parts;
use http::{Request, Response, Uri};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use onceward::http::{BoxError, ServiceError};
use tower::Service;

use super::body::{RequestBody, ResponseBody};
use super::headers;
use super::places::{Kept, Places, locked};
use super::settings::{Limits, Reuse, Settings, Times};
use super::trouble::{Trouble, chain};
use crate::failure::Failure;
use crate::open_files::Shares;

/// Bytes of an answer's head at most.
const HEAD_BYTES_MAX: usize = 1 << 20;
/// Headers of an answer at most.
const HEADERS_MAX: usize = 256;

/// How connections are made: the same for all upstreams.
#[derive(Clone)]
pub(super) struct Connector {
    connect: HttpsConnector<HttpConnector>,
    connect_for: Duration,
    places: Arc<Places>,
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
        let places = Arc::new(Places::new(Shares::now().clients));
        Ok(Self { connect, connect_for: times.connect, places })
    }

    async fn open(&self, origin: &Uri) -> Result<SendRequest<RequestBody>, ServiceError> {
        let not_sent = |why: &str| {
            let to = origin.authority().map_or("", http::uri::Authority::as_str);
            ServiceError::NotSent(format!("can't connect to {to}: {why}"))
        };
        let Some(place) = self.places.take(self.connect_for).await else {
            return Err(not_sent("as many connections are open as there are files for"));
        };
        let connecting = self.connect.clone().call(origin.clone());
        let stream = match tokio::time::timeout(self.connect_for, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(not_sent(&chain(&*error))),
            Err(_) => {
                let seconds = self.connect_for.as_secs_f64();
                return Err(not_sent(&format!("it took longer than {seconds} s")));
            }
        };
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(stream)
            .await
            .map_err(|error| not_sent(&chain(&error)))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
            drop(place);
        });
        Ok(sender)
    }
}

/// Idle connections to one upstream.
pub(super) struct Pool {
    origin: Uri,
    connector: Connector,
    idle: Kept,
    idle_max: usize,
    idle_for: Duration,
    reuse: Reuse,
}

/// A connection that waits for its next request.
pub(super) struct Idle {
    sender: SendRequest<RequestBody>,
    since: Instant,
    owner: Owner,
}

impl Idle {
    /// Since when it waits.
    pub(super) fn since(&self) -> Instant {
        self.since
    }
}

/// Whose requests a connection may carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// Anybody's.
    Anybody,
    /// This tenant's.
    Tenant(String),
    /// One request's, and no other.
    Nobody,
}

/// What goes with a request on its way.
pub(super) struct Errand {
    /// Whose connection it may go over.
    pub(super) owner: Owner,
    /// How long the upstream may say nothing.
    pub(super) silence: Duration,
    /// Told why it failed.
    pub(super) trouble: Trouble,
}

impl Pool {
    /// An empty pool.
    pub(super) fn new(origin: Uri, connector: Connector, settings: &Settings) -> Self {
        let Settings { limits: Limits { idle_upstream_max, .. }, times, reuse, .. } = settings;
        Self {
            origin,
            idle: connector.places.pool(),
            connector,
            idle_max: *idle_upstream_max,
            idle_for: times.idle_upstream,
            reuse: reuse.clone(),
        }
    }

    /// Whose connections a request may be sent over.
    pub(super) fn owner(&self, head: &Parts) -> Owner {
        match &self.reuse {
            Reuse::Shared => Owner::Anybody,
            Reuse::None => Owner::Nobody,
            Reuse::Tenant(tenants) => tenants.of(head).map_or(Owner::Nobody, Owner::Tenant),
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
        errand: Errand,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let Errand { owner, silence, trouble } = errand;
        loop {
            let kept = self.take(&owner);
            let was_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connector.open(&self.origin).await?,
            };
            let mut error = match sender.try_send_request(request).await {
                Ok(mut response) => {
                    // Behind an answer that can be read in two ways more may come: its connection
                    // takes no other request.
                    let is_plain = headers::one_framing(&mut response)?;
                    let owner = if is_plain { owner } else { Owner::Nobody };
                    let lent = Lent { sender, pool: self.clone(), owner };
                    let body = |body| ResponseBody::new(body, lent, silence, trouble);
                    return Ok(response.map(body));
                }
                Err(error) => error,
            };
            match error.take_message() {
                // The upstream closed a connection that it had kept; a new one may do better.
                Some(unsent) if was_kept => request = unsent,
                Some(_) => return Err(ServiceError::NotSent(chain(&error.into_error())).into()),
                None => return Err(answer_lost(error.into_error())),
            }
        }
    }

    /// The connection that was used last, if it can still be used and is this owner's.
    fn take(&self, owner: &Owner) -> Option<SendRequest<RequestBody>> {
        if *owner == Owner::Nobody {
            return None;
        }
        let mut idle = locked(&self.idle);
        while let Some(oldest) = idle.front() {
            if oldest.since.elapsed() < self.idle_for && !oldest.sender.is_closed() {
                break;
            }
            idle.pop_front();
        }
        while let Some(last) = idle.iter().rposition(|idle| idle.owner == *owner) {
            let found = idle.remove(last).map(|idle| idle.sender);
            if let Some(sender) = found.filter(|sender| !sender.is_closed()) {
                return Some(sender);
            }
        }
        None
    }

    fn put(&self, sender: SendRequest<RequestBody>, owner: Owner) {
        let mut idle = locked(&self.idle);
        idle.push_back(Idle { sender, since: Instant::now(), owner });
        if idle.len() > self.idle_max {
            idle.pop_front();
        }
        drop(idle);
        self.connector.places.one_more_idle();
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
    owner: Owner,
}

impl Lent {
    /// Gives it back once it can take another request; one that is nobody's is closed.
    pub(super) fn give_back(mut self) {
        if self.owner == Owner::Nobody {
            return;
        }
        if self.sender.is_ready() {
            self.pool.put(self.sender, self.owner);
            return;
        }
        tokio::spawn(async move {
            if self.sender.ready().await.is_ok() {
                self.pool.put(self.sender, self.owner);
            }
        });
    }
}
