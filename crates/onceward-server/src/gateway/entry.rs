//! The entrance: what every request passes before the layer sees it.
//!
//! Refused here, with the connection closed behind it: double framing, upgrades, tunnels, and paths
//! that the upstream can't be asked for or would read as another one. Nothing of these reaches a
//! store or an upstream.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderName, HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::Service;
use onceward::http::{Body, Code, Dialect, Onceward, Refusal, Routes, names};

use super::body::RequestBody;
use super::forward::Forward;
use super::headers;
use super::listen::{Peer, Serves};
use super::path;
use super::sent::{How, Sent};
use super::settings::Settings;
use super::sight::Watch;
use crate::identity::HINT;
use crate::metrics::Metrics;

/// Longest part of a client's own request id that an answer repeats.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Makes the service of every connection.
#[derive(Clone)]
pub(super) struct Entrance(Arc<Shared>);

struct Shared {
    protected: Onceward<Forward>,
    watch: Watch,
    identity_headers: Vec<HeaderName>,
    routes: Routes,
    path_bytes_max: usize,
    body_for: Duration,
}

impl Entrance {
    /// In front of this protected service.
    pub(super) fn new(
        protected: Onceward<Forward>,
        metrics: Arc<Metrics>,
        settings: &Settings,
    ) -> Self {
        Self(Arc::new(Shared {
            protected,
            watch: Watch::new(metrics).hinting(HINT),
            identity_headers: settings.identity_headers.clone(),
            routes: settings.routes.clone(),
            path_bytes_max: settings.path_bytes_max(),
            body_for: settings.times.body,
        }))
    }
}

impl Serves for Entrance {
    type Body = Sent<Body>;
    type Future = Answering;
    type Service = Connection;

    fn connection(&self, peer: Peer) -> Connection {
        Connection { shared: self.0.clone(), peer, requests: AtomicU64::new(0) }
    }
}

type Answer = Response<Sent<Body>>;
type Answering = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

/// The service of one connection.
pub(super) struct Connection {
    shared: Arc<Shared>,
    peer: Peer,
    requests: AtomicU64,
}

impl Service<Request<Incoming>> for Connection {
    type Response = Answer;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let nth = self.requests.fetch_add(1, Ordering::Relaxed);
        let double = self.peer.double_framed.is(nth);
        if let Some(detail) = self.shared.refuses(&request, double) {
            let response = refused(&request, detail);
            let response = response.map(|body| self.peer.streams.send(body, How::Whole));
            return Box::pin(std::future::ready(Ok(response)));
        }
        let (mut head, body) = request.into_parts();
        let version = head.version;
        headers::strip_hop_by_hop(&mut head.headers, &self.shared.identity_headers);
        headers::strip_lookalikes(&mut head.headers, &self.shared.identity_headers);
        headers::introduce(&mut head, &self.peer.address, self.peer.is_tls);
        let body = RequestBody::live(body, version, self.shared.body_for);
        let seen = self.shared.watch.begin(&head.headers);
        let answering = tower::Service::call(
            &mut self.shared.protected.clone(),
            Request::from_parts(head, body),
        );
        let (streams, is_h2) = (self.peer.streams.clone(), version == Version::HTTP_2);
        Box::pin(async move {
            let response = answering.await?;
            seen.answered(&response);
            Ok(response.map(|body| {
                let how = match body.is_live() {
                    true if is_h2 => How::LiveInPieces,
                    true => How::Live,
                    false if is_h2 => How::InPieces,
                    false => How::Whole,
                };
                streams.send(body, how)
            }))
        })
    }
}

impl Shared {
    /// Why a request can't be served at all.
    fn refuses(&self, request: &Request<Incoming>, double: bool) -> Option<&'static str> {
        let uri = request.uri();
        if uri.path_and_query().is_some_and(|path| path.as_str().len() > self.path_bytes_max) {
            // Before it is claimed: no retry would be shorter.
            return Some("its path and query are too long for the upstream");
        }
        malformed(request, double)
            .or_else(|| path::ambiguous(request.method(), uri.path(), &self.routes))
    }
}

/// Why a request can't be understood.
fn malformed(request: &Request<Incoming>, double: bool) -> Option<&'static str> {
    if double {
        return Some(
            "it has Content-Length beside Transfer-Encoding, or a Transfer-Encoding other than one \
             chunked",
        );
    }
    if *request.method() == Method::CONNECT {
        return Some("this is not a tunnel: CONNECT is not supported");
    }
    let hosts = request.headers().get_all(HOST).iter().count();
    if request.version() == Version::HTTP_11 && hosts != 1 {
        return Some("HTTP/1.1 asks for exactly one Host header");
    }
    if request.headers().contains_key(UPGRADE) {
        return Some("upgrades are not supported: send it without Upgrade");
    }
    None
}

/// The answer to it, after which an HTTP/1 connection closes.
fn refused(request: &Request<Incoming>, detail: &str) -> Response<Body> {
    let id = request.headers().get(names::X_REQUEST_ID);
    let id = id.filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
    let text = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("none");
    let refusal = Refusal::new(Code::BadRequest, detail);
    let mut response = Dialect::Standard.speaker().refuse(&refusal, text).map(Body::from);
    if request.version() <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(id) = id {
        response.headers_mut().insert(names::X_REQUEST_ID, id);
    }
    response
}
