//! Permission over HTTP: asks a URL before a claim and before a replay (wire: `authorize`).
//!
//! It is asked with GET, the headers of the request, its method and path in `X-Original-Method` and
//! `X-Original-URI` (and `X-Forwarded-…`, as other proxies say it), and who was identified; never
//! with the body. An answer of 2xx allows; any other is passed on. No answer is a refusal too.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use onceward::http::{Authorize, Caller, Code, Dialect, Refusal, names};

use crate::failure::Failure;
use crate::gateway::headers::as_services_read;

/// Largest refusal that is passed on.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// How long a connection is kept while idle: less than common servers keep theirs.
const IDLE: Duration = Duration::from_secs(4);

const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    HOST,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

const TENANT: HeaderName = HeaderName::from_static("onceward-tenant");
const CALLER: HeaderName = HeaderName::from_static("onceward-caller");

/// Asks URLs. Made once; every route's hook shares its connections.
#[derive(Clone)]
pub(crate) struct Asker {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    patience: Duration,
}

impl Asker {
    /// One that waits so long for an answer.
    pub(crate) fn new(patience: Duration) -> Result<Self, Failure> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_native_roots(provider)
            .map_err(|error| {
                Failure::failed("tls.roots", format!("no certificates of the system: {error}"))
            })?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self { client, patience })
    }

    /// The hook of a route.
    pub(crate) fn hook(&self, url: Uri, dialect: Dialect) -> Authorize {
        let asker = self.clone();
        Authorize::new(move |head, caller| {
            let (asker, dialect) = (asker.clone(), dialect.clone());
            let question = question(&url, head, caller);
            let instance = head.headers.get(names::X_REQUEST_ID).cloned();
            Box::pin(async move {
                let answer = tokio::time::timeout(asker.patience, asker.ask(question)).await;
                let (code, detail) = match answer {
                    Ok(Ok(allowed)) => return allowed,
                    Ok(Err(())) => (Code::UpstreamFailed, "nobody could be asked for permission"),
                    Err(_) => (Code::UpstreamTimeout, "permission did not come in time"),
                };
                let detail = format!("{detail}; nothing was executed");
                let instance = instance.as_ref().and_then(|id| id.to_str().ok());
                let refusal = Refusal::new(code, detail);
                Err(dialect.speaker().refuse(&refusal, instance.unwrap_or_default()))
            })
        })
    }

    /// Asks; an error when there is no whole answer.
    async fn ask(
        &self,
        question: Request<Empty<Bytes>>,
    ) -> Result<Result<(), Response<Bytes>>, ()> {
        let answer = self.client.request(question).await.map_err(drop)?;
        if answer.status().is_success() {
            return Ok(Ok(()));
        }
        let (mut head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(drop)?.to_bytes();
        without_hops(&mut head.headers);
        names::strip_ours(&mut head.headers);
        Ok(Err(Response::from_parts(head, body)))
    }
}

fn question(url: &Uri, head: &Parts, caller: &Caller) -> Request<Empty<Bytes>> {
    let mut question = Request::new(Empty::new());
    *question.uri_mut() = url.clone();
    let mut headers = head.headers.clone();
    without_hops(&mut headers);
    headers.remove(CONTENT_TYPE);
    let path = head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let told = [
        (HeaderName::from_static("x-original-method"), head.method.as_str()),
        (HeaderName::from_static("x-original-uri"), path),
        (HeaderName::from_static("x-forwarded-method"), head.method.as_str()),
        (HeaderName::from_static("x-forwarded-uri"), path),
        (TENANT, caller.tenant.as_str()),
        (CALLER, caller.caller.as_str()),
    ];
    // What a client says under these names must not be heard, in no spelling that may be read so.
    let is_told = |name: &HeaderName| {
        let read = as_services_read(name);
        told.iter().any(|(told, _)| *told == *read)
    };
    let forged: Vec<_> = headers.keys().filter(|name| is_told(name)).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
    for (name, text) in told {
        if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            headers.insert(name, value);
        }
    }
    *question.headers_mut() = headers;
    question
}

fn without_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').filter_map(|name| name.trim().parse().ok()))
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests;
