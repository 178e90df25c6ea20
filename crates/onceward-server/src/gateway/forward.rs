//! The forwarder: the service behind the layer. One request goes to its upstream, its answer comes
//! back; nothing is retried that may have been sent.
//!
//! Errors say what they mean for the effect: nothing was sent, no answer in time, or, for all
//! else, nobody knows. Redirects are answers like any other.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{EXPECT, HOST};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use onceward::http::{AsSent, BoxError, EarlyAnswer, Policy, Route, Routes, ServiceError};

use super::body::{Flow, RequestBody, ResponseBody};
use super::headers;
use super::hops::Hop;
use super::interim::Interim;
use super::pool::{Connector, Errand, Pool};
use super::settings::{Settings, Upstream};
use super::trouble::{Trouble, chain};
use crate::failure::Failure;

/// Sends requests to their upstreams. Cheap to clone.
#[derive(Clone)]
pub(super) struct Forward(Arc<Inner>);

struct Inner {
    default: Target,
    /// By endpoint, for routes that go elsewhere.
    others: HashMap<String, Target>,
    routes: Routes,
    silence: Duration,
    hop: Hop,
}

/// An upstream and the connections to it.
struct Target {
    base: String,
    /// What `Host` says to it; none: what the client said.
    host: Option<HeaderValue>,
    fallback_host: HeaderValue,
    pool: Arc<Pool>,
}

impl Forward {
    /// A forwarder to the upstreams that the settings name.
    pub(super) fn new(settings: &Settings, hop: Hop) -> Result<Self, Failure> {
        let connector = Connector::new(&settings.times)?;
        let target = |upstream: &Upstream| -> Result<Target, Failure> {
            let host = HeaderValue::from_str(upstream.host()).map_err(|_| {
                Failure::usage("upstream.url", format!("{}: not a host", upstream.origin))
            })?;
            let pool = Pool::new(upstream.origin.clone(), connector.clone(), settings);
            Ok(Target {
                base: upstream.base.clone(),
                // Behind TLS the certificate's name is the one that is served there.
                host: upstream.is_https().then(|| host.clone()),
                fallback_host: host,
                pool: Arc::new(pool),
            })
        };
        let mut others = HashMap::new();
        for (written, upstream) in &settings.route_upstreams {
            // Found by what the layer calls it, which may be another spelling than the file's.
            let endpoint = Route::new(written, Policy::default())?.endpoint();
            others.insert(endpoint, target(upstream)?);
        }
        Ok(Self(Arc::new(Inner {
            default: target(&settings.upstream)?,
            others,
            routes: settings.routes.clone(),
            silence: settings.times.upstream,
            hop,
        })))
    }
}

impl Inner {
    fn target(&self, head: &Parts) -> &Target {
        if self.others.is_empty() {
            return &self.default;
        }
        let place = self.routes.find(&head.method, head.uri.path());
        place.and_then(|(_, place)| self.others.get(&place.endpoint)).unwrap_or(&self.default)
    }

    async fn forward(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let (mut head, body) = request.into_parts();
        let target = self.target(&head);
        // Which spellings are one is the upstream's to know: it gets what the client has sent.
        if let Some(AsSent(uri)) = head.extensions.remove() {
            head.uri = uri;
        }
        let trouble = head.extensions.remove::<Trouble>().unwrap_or_default();
        let owner = target.pool.owner(&head);
        target.address(&mut head)?;
        self.hop.sign(&mut head.headers, head.version);
        head.version = Version::HTTP_11;
        let flow = body.flow();
        let errand = Errand { owner, silence: self.silence, trouble: trouble.clone() };
        let interim = head.extensions.remove::<Interim>();
        let mut request = Request::from_parts(head, body);
        if let Some(interim) = interim {
            let hop = self.hop.clone();
            hyper::ext::on_informational(&mut request, move |said| {
                let mut answer = Response::new(());
                *answer.status_mut() = said.status();
                *answer.version_mut() = said.version();
                *answer.headers_mut() = said.headers().clone();
                interim.pass(answer, &hop);
            });
        }
        let sending = target.pool.send(request, errand);
        let sent = self.in_time(sending, flow.as_deref()).await;
        let flow = flow.as_deref();
        let broken = flow.and_then(Flow::broken);
        // A body that breaks while the upstream answers is not awaited any more, and not whole.
        let is_half = flow.is_some_and(Flow::is_awaited) || broken.is_some();
        let mut response = sent.map_err(|error| {
            trouble.note(&target.cause(&error));
            match broken {
                Some(why) => ServiceError::RequestBroken(why.into()).into(),
                None if is_half => ServiceError::Unfinished(error.to_string()).into(),
                None => error,
            }
        })?;
        if is_half {
            response.extensions_mut().insert(EarlyAnswer);
        }
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            trouble.note("the upstream switched protocols unasked");
            return Err("the upstream switched protocols unasked".into());
        }
        if [StatusCode::BAD_GATEWAY, StatusCode::GATEWAY_TIMEOUT].contains(&status) {
            trouble.note(&format!("the upstream itself answered {}", status.as_u16()));
        }
        let version = std::mem::replace(response.version_mut(), Version::HTTP_11);
        headers::strip_hop_by_hop(response.headers_mut(), &[]);
        self.hop.sign(response.headers_mut(), version);
        Ok(response)
    }

    /// Waits as long as the upstream may say nothing; a body that still flows to it counts as
    /// being at work. One that a client keeps back is not the upstream's silence, and has a time of
    /// its own.
    async fn in_time<T>(
        &self,
        sending: impl Future<Output = Result<T, BoxError>>,
        flow: Option<&Flow>,
    ) -> Result<T, BoxError> {
        tokio::pin!(sending);
        let mut seen = 0;
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return sent,
                () = tokio::time::sleep(self.silence) => {}
            }
            let now = flow.map_or(0, Flow::frames);
            if now == seen && !flow.is_some_and(Flow::is_awaited) {
                let seconds = self.silence.as_secs_f64();
                let why = format!("the upstream said nothing for {seconds} s");
                return Err(ServiceError::TimedOut(why).into());
            }
            seen = now;
        }
    }
}

impl Target {
    /// Why a request to it failed, for the log.
    fn cause(&self, error: &BoxError) -> String {
        let host = self.fallback_host.to_str().unwrap_or_default();
        match error.downcast_ref::<ServiceError>() {
            Some(ServiceError::NotSent(why)) => why.clone(),
            Some(ServiceError::TimedOut(why)) => format!("{why}: {host}"),
            _ => format!("no whole answer from {host}: {}", chain(&**error)),
        }
    }

    /// Makes a request one to this upstream. What has no address there is not sent: any other
    /// address would be another request.
    fn address(&self, head: &mut Parts) -> Result<(), ServiceError> {
        let own = head.uri.path_and_query().cloned();
        let own = own.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let path = if self.base.is_empty() || own == "*" {
            own
        } else {
            let whole = format!("{}{own}", self.base);
            whole.parse().map_err(|_| {
                let bytes = whole.len();
                ServiceError::NotSent(format!("{bytes} bytes are no path for the upstream"))
            })?
        };
        head.uri = Uri::from(path);
        // We have asked for the body already, or will when the upstream takes it.
        head.headers.remove(EXPECT);
        match &self.host {
            Some(host) => {
                head.headers.insert(HOST, host.clone());
            }
            None => {
                head.headers.entry(HOST).or_insert_with(|| self.fallback_host.clone());
            }
        }
        Ok(())
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, BoxError>> + Send>>;

impl tower::Service<Request<RequestBody>> for Forward {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move { inner.forward(request).await })
    }
}
