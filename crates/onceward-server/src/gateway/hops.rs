//! Hops: the name that this gateway has in `Via`, ways that lead back to it, and `Max-Forwards`.
//!
//! A request that comes back to the process that sent it would go round for ever, each time under
//! a claim of its own. An upstream that is one of our own listeners is refused at the start; a way
//! back through others is known by our name in `Via`, which every message passed on carries (RFC
//! 9110 section 7.6.3). The name is random and anew for each process: two gateways in a row are no
//! loop.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HOST, MAX_FORWARDS, VIA};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, Version};
use onceward::http::Body;

use super::settings::{Settings, Upstream};
use crate::failure::Failure;

/// How long the name of an upstream may take to be looked up at the start.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(2);
/// What may be asked here.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE";

/// This gateway as a hop: its name, and the lines that say it, for each version.
#[derive(Debug, Clone)]
pub(super) struct Hop {
    name: Arc<str>,
    old: HeaderValue,
    usual: HeaderValue,
    h2: HeaderValue,
}

impl Hop {
    /// A hop with a name that no other process has.
    pub(super) fn new() -> Self {
        let name = format!("onceward-{:016x}", RandomState::new().hash_one(()));
        let line = |version: &str| {
            // Letters, digits, a point and a space: this can't fail.
            let line = HeaderValue::from_str(&format!("{version} {name}"));
            line.unwrap_or_else(|_| HeaderValue::from_static("1.1 onceward"))
        };
        let (old, usual, h2) = (line("1.0"), line("1.1"), line("2"));
        Self { name: name.into(), old, usual, h2 }
    }

    /// Notes that a message went through here, over the version in which it was received.
    pub(super) fn sign(&self, headers: &mut HeaderMap, received: Version) {
        let line = match received {
            Version::HTTP_10 => &self.old,
            Version::HTTP_2 => &self.h2,
            _ => &self.usual,
        };
        headers.append(VIA, line.clone());
    }

    /// Whether a request went through here before.
    pub(super) fn leads_back(&self, headers: &HeaderMap) -> bool {
        let name = self.name.as_bytes();
        headers
            .get_all(VIA)
            .iter()
            .any(|line| line.as_bytes().windows(name.len()).any(|part| part == name))
    }
}

/// Takes one off `Max-Forwards` of an OPTIONS or TRACE request; what none are left of is answered
/// here, as its last recipient (RFC 9110 section 7.6.2). On other methods it means nothing, and a
/// value that is no number is left to whoever reads it.
pub(super) fn forwards_on(head: &mut Parts) -> Option<Response<Body>> {
    if ![Method::OPTIONS, Method::TRACE].contains(&head.method) {
        return None;
    }
    let mut lines = head.headers.get_all(MAX_FORWARDS).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let text = line.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    // A number beyond ours says that it does not matter.
    let left = if text.is_empty() { return None } else { text.parse::<u64>().unwrap_or(u64::MAX) };
    match left.checked_sub(1) {
        Some(left) => {
            head.headers.insert(MAX_FORWARDS, HeaderValue::from(left));
            None
        }
        None if head.method == Method::TRACE => Some(traced(head)),
        None => {
            let mut response = Response::new(Body::from(Bytes::new()));
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(METHODS));
            Some(response)
        }
    }
}

/// The request as it came, without what may be a secret: that is nearly all that it carries (RFC
/// 9110 section 9.3.8).
fn traced(head: &Parts) -> Response<Body> {
    let mut text = format!("{} {} {:?}\r\n", head.method, head.uri, head.version);
    for name in [HOST, VIA, MAX_FORWARDS] {
        for value in head.headers.get_all(&name) {
            text.push_str(&format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    text.push_str("\r\n");
    let mut response = Response::new(Body::from(Bytes::from(text)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("message/http"));
    response
}

/// Refuses upstreams that are one of our own listeners.
pub(super) async fn refuse_itself(
    settings: &Settings,
    listeners: &[(&str, SocketAddr)],
) -> Result<(), Failure> {
    for upstream in settings.route_upstreams.values().chain([&settings.upstream]) {
        let (host, port) = place(upstream);
        // Nothing is looked up unless it could be ours.
        if !listeners.iter().any(|(_, own)| own.port() == port) {
            continue;
        }
        let looking = tokio::net::lookup_host((host, port));
        let Ok(Ok(found)) = tokio::time::timeout(LOOKED_UP_WITHIN, looking).await else { continue };
        let found: Vec<_> = found.collect();
        for (flag, own) in listeners {
            if found.iter().any(|address| reaches(*address, *own)) {
                let message = format!(
                    "{upstream} is this gateway itself ({flag} {own}): name the API behind it, or \
                     listen elsewhere"
                );
                return Err(Failure::usage("upstream.itself", message));
            }
        }
    }
    Ok(())
}

/// Host and port of an upstream.
fn place(upstream: &Upstream) -> (&str, u16) {
    let authority = upstream.origin.authority();
    let host = authority.map_or("", http::uri::Authority::host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let usual = if upstream.is_https() { 443 } else { 80 };
    (host, authority.and_then(http::uri::Authority::port_u16).unwrap_or(usual))
}

/// Whether a connection to this address comes to this listener.
fn reaches(address: SocketAddr, listener: SocketAddr) -> bool {
    let (to, own) = (address.ip().to_canonical(), listener.ip().to_canonical());
    if address.port() != listener.port() {
        return false;
    }
    let takes_all = match own {
        IpAddr::V4(own) => own.is_unspecified() && to.is_ipv4(),
        IpAddr::V6(own) => own.is_unspecified(),
    };
    // Connecting to the unspecified address is connecting to this machine.
    let means_loopback = to.is_unspecified() && (own.is_loopback() || own.is_unspecified());
    to == own || means_loopback || takes_all && is_local(to)
}

/// Whether an address is one of this machine's: no other can be bound.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn asked(method: &str, max: &str) -> (Option<u16>, Option<String>) {
        let request = http::Request::builder().method(method).uri("/x").header("host", "h");
        let request = request.header("max-forwards", max).header("authorization", "secret");
        let mut head = request.body(()).unwrap().into_parts().0;
        let answered = forwards_on(&mut head).map(|response| response.status().as_u16());
        (answered, head.headers[MAX_FORWARDS].to_str().ok().map(ToString::to_string))
    }

    #[test]
    fn peer_d8_max_forwards_counts_down_on_options_and_trace_alone() {
        for (method, max, answered, left) in [
            ("OPTIONS", "0", Some(200), "0"),
            ("TRACE", "0", Some(200), "0"),
            ("OPTIONS", "007", None, "6"),
            ("TRACE", "1", None, "0"),
            ("GET", "0", None, "0"),
            ("POST", "3", None, "3"),
            ("OPTIONS", "99999999999999999999999", None, "18446744073709551614"),
            ("OPTIONS", "-1", None, "-1"),
            ("OPTIONS", "many", None, "many"),
            ("OPTIONS", "", None, ""),
        ] {
            assert_eq!(asked(method, max), (answered, Some(left.into())), "{method} {max:?}");
        }
    }

    #[test]
    fn peer_d8_a_gateway_knows_its_own_name_and_no_other() {
        let (one, other) = (Hop::new(), Hop::new());
        let mut headers = HeaderMap::new();
        headers.append(VIA, HeaderValue::from_static("1.1 elsewhere (a, b)"));
        assert!(!one.leads_back(&headers));
        one.sign(&mut headers, Version::HTTP_2);
        assert!(one.leads_back(&headers) && !other.leads_back(&headers));
        let said = headers.get_all(VIA).iter().nth(1).unwrap().to_str().unwrap();
        assert!(said.starts_with("2 onceward-"), "{said}");
    }

    #[test]
    fn peer_d8_an_address_is_ours_in_each_spelling() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (to, own, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:2", "127.0.0.1:1", false),
            ("127.0.0.2:1", "127.0.0.1:1", false),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "127.0.0.1:1", true),
            ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "0.0.0.0:1", true),
            ("127.9.9.9:1", "0.0.0.0:1", true),
            ("127.0.0.1:1", "[::]:1", true),
            ("[::1]:1", "0.0.0.0:1", false),
            ("192.0.2.1:1", "0.0.0.0:1", false),
            ("0.0.0.0:1", "192.0.2.1:1", false),
            ("192.0.2.1:1", "127.0.0.1:1", false),
        ] {
            assert_eq!(reaches(at(to), at(own)), expected, "{to} to {own}");
        }
    }
}
