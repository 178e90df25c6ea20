//! The entrance: what every request passes before the layer sees it.
//!
//! Refused here, with the connection closed behind it: double framing, tunnels, methods in another
//! case, hosts that are none, requests that went through here before, and paths that the upstream
//! can't be asked for or may read as another one. Nothing of these reaches a store or an upstream.
//! What only offers another protocol is served in this one: `Upgrade` is an offer that anybody may
//! ignore (RFC 9110 section 7.8), and ends at this hop.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HOST};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::Service;
use onceward::http::{Body, Code, Dialect, Onceward, Refusal, ensure_request_id, names};

use super::body::RequestBody;
use super::forward::Forward;
use super::headers;
use super::hops::{self, Hop};
use super::host::is_host;
use super::listen::{Peer, Serves};
use super::overrides::{overrides, rewrites};
use super::path::{Asked, Guard};
use super::sent::{How, Sent};
use super::settings::Settings;
use super::sight::Watch;
use crate::identity::HINT;
use crate::metrics::Metrics;

/// The methods that everybody knows.
const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
    Method::TRACE,
    Method::CONNECT,
];

/// Makes the service of every connection.
#[derive(Clone)]
pub(super) struct Entrance(Arc<Shared>);

struct Shared {
    protected: Onceward<Forward>,
    watch: Watch,
    identity_headers: Vec<HeaderName>,
    guard: Guard,
    path_bytes_max: usize,
    body_for: Duration,
    hop: Hop,
}

impl Entrance {
    /// In front of this protected service.
    pub(super) fn new(
        protected: Onceward<Forward>,
        metrics: Arc<Metrics>,
        settings: &Settings,
        hop: Hop,
    ) -> Self {
        Self(Arc::new(Shared {
            protected,
            watch: Watch::new(metrics).hinting(HINT),
            identity_headers: settings.identity_headers.clone(),
            guard: Guard::new(settings),
            path_bytes_max: settings.path_bytes_max(),
            body_for: settings.times.body,
            hop,
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
        let (mut head, body) = request.into_parts();
        if let Some(response) = self.shared.answers(&mut head, double) {
            let response = response.map(|body| self.peer.streams.send(body, How::Whole));
            return Box::pin(std::future::ready(Ok(response)));
        }
        let version = head.version;
        headers::strip_hop_by_hop(&mut head.headers, &self.shared.identity_headers);
        headers::strip_lookalikes(&mut head.headers, &self.shared.identity_headers);
        headers::introduce(&mut head, &self.peer.address, self.peer.is_tls);
        let body = RequestBody::live(body, version, self.shared.body_for);
        let seen = self.shared.watch.begin(&head.headers);
        head.extensions.insert(seen.trouble());
        let streams = self.peer.streams.clone();
        let interim = (version == Version::HTTP_11).then(|| streams.interim().open(nth));
        if let Some(interim) = &interim {
            head.extensions.insert(interim.clone());
        }
        let answering = tower::Service::call(
            &mut self.shared.protected.clone(),
            Request::from_parts(head, body),
        );
        let is_h2 = version == Version::HTTP_2;
        Box::pin(async move {
            let response = match interim {
                Some(interim) => interim.until(answering).await?,
                None => answering.await?,
            };
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
    /// The answer to a request that goes no further.
    fn answers(&self, head: &mut Parts, double: bool) -> Option<Response<Body>> {
        if let Some(refusal) = self.refuses(head, double) {
            let id = ensure_request_id(head);
            let mut response = Dialect::Standard.speaker().refuse(&refusal, &id).map(Body::from);
            if head.version <= Version::HTTP_11 {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            return Some(identified(response, head));
        }
        let response = hops::forwards_on(head)?;
        ensure_request_id(head);
        Some(identified(response, head))
    }

    /// Why a request can't be served at all.
    fn refuses(&self, head: &Parts, double: bool) -> Option<Refusal> {
        let malformed = |detail: &str| Some(Refusal::new(Code::BadRequest, detail));
        let uri = &head.uri;
        if uri.path_and_query().is_some_and(|path| path.as_str().len() > self.path_bytes_max) {
            // Before it is claimed: no retry would be shorter.
            return malformed("its path and query are too long for the upstream");
        }
        if let Some(detail) = malformed_head(head, double).or_else(|| self.misread(head)) {
            return malformed(detail);
        }
        self.hop.leads_back(&head.headers).then(|| {
            let detail = "this gateway's upstream leads back to it: name the API itself";
            Refusal::new(Code::Loop, detail)
        })
    }

    /// Why a server behind may take a request for another one.
    fn misread(&self, head: &Parts) -> Option<&'static str> {
        let overrides = overrides(&head.headers, head.uri.query());
        let rewrites = rewrites(&head.headers);
        let (method, path) = (&head.method, head.uri.path());
        let asked = Asked { method, path, overrides: &overrides, rewrites: &rewrites };
        self.guard.refuses(asked)
    }
}

/// An answer with the id of its request.
fn identified(mut response: Response<Body>, head: &Parts) -> Response<Body> {
    if let Some(id) = head.headers.get(names::X_REQUEST_ID) {
        response.headers_mut().insert(names::X_REQUEST_ID, id.clone());
    }
    response
}

/// Why a request can't be understood.
fn malformed_head(head: &Parts, double: bool) -> Option<&'static str> {
    if double {
        return Some(
            "it has Content-Length beside Transfer-Encoding, or a Transfer-Encoding other than one \
             chunked",
        );
    }
    let method = head.method.as_str();
    if METHODS
        .iter()
        .any(|known| known.as_str() != method && known.as_str().eq_ignore_ascii_case(method))
    {
        // Servers take it for the one in upper case; no route here does.
        return Some("its method is none: methods are in upper case");
    }
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    let is_number = |length: &HeaderValue| length.as_bytes().iter().all(u8::is_ascii_digit);
    if !length.is_none_or(is_number) || lengths.any(|other| Some(other) != length) {
        return Some("its Content-Length is no number, or there are several that differ");
    }
    if head.method == Method::CONNECT {
        return Some("this is not a tunnel: CONNECT is not supported");
    }
    if head.uri.authority().is_some() && head.uri.scheme().is_none() {
        // `GET a` is read as an authority, which is a target of CONNECT alone.
        return Some("its target is no path: it begins with a slash");
    }
    let hosts = head.headers.get_all(HOST).iter().count();
    if hosts > 1 || head.version == Version::HTTP_11 && hosts != 1 {
        return Some("HTTP/1.1 asks for exactly one Host header");
    }
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let mut named = head.headers.get(HOST).map(HeaderValue::as_bytes).into_iter().chain(authority);
    if !named.all(is_host) {
        return Some("its Host is no host: it takes a name or an address, and a port");
    }
    None
}
