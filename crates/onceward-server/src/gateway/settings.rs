//! Everything a gateway is told: the one seam between flags and files and the code that serves.
//!
//! Values come from whoever builds it; defaults stand here, each with its bound.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Uri};
use onceward::http::{Caller, Identity, Routes, Unmatched};

use crate::failure::Failure;

/// Bytes of the longest URI that the HTTP library can hold.
const URI_BYTES_MAX: usize = 65_534;

/// What a gateway is told.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Where requests come in. Default: 127.0.0.1:7600.
    pub(crate) listen: SocketAddr,
    /// Where the control API listens. Default: 127.0.0.1:7601.
    pub(crate) admin: SocketAddr,
    /// Where requests go.
    pub(crate) upstream: Upstream,
    /// Where requests of a route (`POST /v1/things/{id}`, as written) go instead. Default: nowhere
    /// else.
    pub(crate) route_upstreams: HashMap<String, Upstream>,
    /// Headers that say who asks: a client can't have them removed as hop-by-hop.
    pub(crate) identity_headers: Vec<HeaderName>,
    /// What is protected, and how.
    pub(crate) routes: Routes,
    /// What becomes of what no route matches.
    pub(crate) unmatched: Unmatched,
    /// How others may read the paths of routes.
    pub(crate) paths: PathRules,
    /// Certificate and key of the listener. Default: none, plain HTTP.
    pub(crate) tls: Option<TlsFiles>,
    /// Bounds.
    pub(crate) limits: Limits,
    /// Time-outs.
    pub(crate) times: Times,
    /// Whose requests may follow each other on one connection to an upstream. Default: anybody's.
    pub(crate) reuse: Reuse,
}

/// Whose requests may follow each other on one connection to an upstream.
#[derive(Debug, Clone)]
pub(crate) enum Reuse {
    /// Anybody's.
    Shared,
    /// One tenant's; whoever is nobody has a connection for each request.
    Tenant(Tenants),
    /// Nobody's: a connection for each request.
    None,
}

/// Whose a request is, also where the layer did not ask.
#[derive(Debug, Clone)]
pub(crate) struct Tenants(pub(crate) Identity);

impl Tenants {
    /// The tenant of a request, if it can be told.
    pub(super) fn of(&self, head: &Parts) -> Option<String> {
        let known = head.extensions.get::<Caller>().cloned();
        known.or_else(|| self.0.identify(head)).map(|caller| caller.tenant)
    }
}

impl Settings {
    /// Longest path and query that every upstream can be asked for.
    pub(super) fn path_bytes_max(&self) -> usize {
        let upstreams = self.route_upstreams.values().chain([&self.upstream]);
        let base = upstreams.map(|upstream| upstream.base.len()).max();
        URI_BYTES_MAX - base.unwrap_or_default().min(URI_BYTES_MAX)
    }

    /// Whether any upstream has a path in front that a request could climb out of.
    pub(super) fn has_base(&self) -> bool {
        self.route_upstreams.values().chain([&self.upstream]).any(|at| !at.base.is_empty())
    }
}

/// What an encoded slash is to the servers behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncodedSlash {
    /// It may separate segments.
    Separator,
    /// It is part of a value.
    Data,
}

/// What a path is that differs from a route's only in case or by one slash at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// It may be the same to the servers behind.
    Strict,
    /// It is another path.
    Exact,
}

/// How the servers behind may read paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathRules {
    /// Default: a separator.
    pub(crate) encoded_slash: EncodedSlash,
    /// Default: strict.
    pub(crate) spelling: Spelling,
}

/// PEM files of a listener.
#[derive(Debug, Clone)]
pub(crate) struct TlsFiles {
    /// The chain, the listener's own certificate first.
    pub(crate) cert: PathBuf,
    /// Its private key.
    pub(crate) key: PathBuf,
}

/// Bounds of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Connections at a time; more wait in the kernel. Default: 16,384.
    pub(crate) connections_max: usize,
    /// Bytes of a request's head. Default: 64 KiB.
    pub(crate) head_bytes_max: usize,
    /// Headers of a request. Default: 128.
    pub(crate) headers_max: usize,
    /// Requests at a time on one HTTP/2 connection. Default: 128.
    pub(crate) streams_max: u32,
    /// Connections to an upstream that are kept while idle. Default: 256.
    pub(crate) idle_upstream_max: usize,
    /// Bytes of an answer that earn a client a second to take it. Default: 1,000.
    pub(crate) write_bytes_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            head_bytes_max: 64 * 1024,
            headers_max: 128,
            streams_max: 128,
            idle_upstream_max: 256,
            write_bytes_per_second: 1_000,
        }
    }
}

/// Time-outs of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    /// From the end of one request to the end of the next one's head. Default: 30 s.
    pub(crate) headers: Duration,
    /// How long a request's body may be waited for beyond what its bytes earn. Default: 30 s.
    pub(crate) body: Duration,
    /// How long a client may take no byte of an answer, and for a whole answer beyond what its
    /// bytes earn. Default: 30 s.
    pub(crate) write: Duration,
    /// How long it may take to reach an upstream. Default: 5 s.
    pub(crate) connect: Duration,
    /// How long an upstream may say nothing. Default: 60 s.
    pub(crate) upstream: Duration,
    /// How long a connection to an upstream is kept while idle. Default: 4 s, less than the 5 s
    /// after which common servers close it: a request on a closing connection has no known outcome.
    pub(crate) idle_upstream: Duration,
    /// How long what runs may take to end when the gateway is told to. Default: 25 s.
    pub(crate) drain: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            headers: Duration::from_secs(30),
            body: Duration::from_secs(30),
            write: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            upstream: Duration::from_secs(60),
            idle_upstream: Duration::from_secs(4),
            drain: Duration::from_secs(25),
        }
    }
}

/// What an upstream looks like, for whoever wrote it otherwise.
pub(crate) const UPSTREAM_FORM: &str =
    "it takes a URL as in http://127.0.0.1:8080 or https://api.internal/base";

/// Where requests go: scheme, authority, and a path in front of every request's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Upstream {
    /// Scheme and authority, for connections.
    pub(crate) origin: Uri,
    /// The path in front, without a slash at its end.
    pub(crate) base: String,
}

impl Upstream {
    /// From a URL.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        // What stands before an @ may be a password.
        let shown = if url.contains('@') { String::new() } else { format!(" {url:?}") };
        Self::read(url).map_err(|why| {
            Failure::usage("upstream.url", format!("--upstream{shown}: {why}; {UPSTREAM_FORM}"))
        })
    }

    /// From a URL, or why it is none that requests can go to.
    pub(crate) fn read(url: &str) -> Result<Self, &'static str> {
        const NO_URL: &str = "that is not a URL";
        const NO_HOST: &str = "it names no host";
        let uri: Uri = url.parse().map_err(|_| NO_URL)?;
        let parts = uri.clone().into_parts();
        let scheme = parts.scheme.as_ref().map(http::uri::Scheme::as_str);
        if !matches!(scheme, Some("http" | "https")) {
            return Err("it does not begin with http:// or https://");
        }
        let authority = parts.authority.as_ref().ok_or(NO_HOST)?;
        if authority.as_str().contains('@') {
            return Err("it has a login in it, which is not supported");
        }
        if authority.host().is_empty() {
            return Err(NO_HOST);
        }
        if uri.query().is_some() {
            return Err("it has a query");
        }
        let base = uri.path().trim_end_matches('/').to_string();
        let origin = Uri::builder()
            .scheme(scheme.unwrap_or("http"))
            .authority(authority.clone())
            .path_and_query("/")
            .build()
            .map_err(|_| NO_URL)?;
        Ok(Self { origin, base })
    }

    /// The authority, as a `Host` header says it.
    pub(crate) fn host(&self) -> &str {
        self.origin.authority().map_or("", http::uri::Authority::as_str)
    }

    /// Whether it is reached over TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.origin.scheme_str() == Some("https")
    }
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = self.origin.scheme_str().unwrap_or("http");
        write!(f, "{scheme}://{}{}", self.host(), self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_read() {
        let read = |url| Upstream::parse(url).ok();
        let plain = read("http://127.0.0.1:80").unwrap();
        assert_eq!((plain.base.as_str(), plain.host()), ("", "127.0.0.1:80"));
        assert_eq!(read("https://h/base/").unwrap().base, "/base");
        assert_eq!(read("http://[::1]:8080/").unwrap().host(), "[::1]:8080");
        for bad in ["", "127.0.0.1:80", "ftp://h", "http://", "http://h/?q", "http://u:p@h", "/x"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        for login in ["http://u:secret@h", "ftp://u:secret@h", "u:secret@h", "http://u:secret@ h"] {
            let error = Upstream::parse(login).unwrap_err();
            assert!(!error.message.contains("secret"), "{login}");
        }
    }
}
