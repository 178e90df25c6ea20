//! Headers that end at this hop, and those that tell the next one about it.
//!
//! A client can name further headers in `Connection` to have them removed (RFC 9110 §7.6.1). What
//! says who asks and what is asked can't be removed that way: else a client could strip the word of
//! a trusted proxy in front of us. Nor can it be said in another spelling.

use std::borrow::Cow;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST,
    IF_MATCH, IF_NONE_MATCH, MAX_FORWARDS, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use onceward::http::{BoxError, names};

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Headers that belong to one connection.
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    HTTP2_SETTINGS,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that no `Connection` line removes.
const END_TO_END: [HeaderName; 17] = [
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    COOKIE,
    HOST,
    IF_MATCH,
    IF_NONE_MATCH,
    MAX_FORWARDS,
    VIA,
    names::IDEMPOTENCY_KEY,
    names::X_IDEMPOTENCY_KEY,
    names::X_REQUEST_ID,
    names::X_CORRELATION_ID,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
];

/// Whether a header ends at this hop, in whatever spelling.
pub(crate) fn is_hop_by_hop(read: &str) -> bool {
    HOP_BY_HOP.iter().any(|name| *name == *read)
}

/// Removes what ends at this hop; `identity` stays whatever `Connection` says.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap, identity: &[HeaderName]) {
    let mut named: Vec<HeaderName> = Vec::new();
    for line in headers.get_all(CONNECTION) {
        for option in line.as_bytes().split(|byte| *byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(option.trim_ascii()) {
                named.push(name);
            }
        }
    }
    for name in named {
        if !END_TO_END.contains(&name) && !identity.contains(&name) {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes other spellings of headers that say who asks and what is asked: many services read `_`
/// as `-`, and would take a client's `X_Tenant` for the `X-Tenant` that was looked at here.
pub(super) fn strip_lookalikes(headers: &mut HeaderMap, identity: &[HeaderName]) {
    // Nearly always nothing has to be compared.
    if !headers.keys().chain(identity).any(|name| name.as_str().contains('_')) {
        return;
    }
    let is_lookalike = |name: &HeaderName| {
        let read = as_services_read(name);
        let other = |known: &HeaderName| known != name && as_services_read(known) == read;
        (names::is_ours(&read) && *name != *read)
            || HOP_BY_HOP.iter().chain(&END_TO_END).chain(identity).any(other)
    };
    let lookalikes: Vec<_> = headers.keys().filter(|name| is_lookalike(name)).cloned().collect();
    for name in lookalikes {
        headers.remove(name);
    }
}

/// A name as it may be read behind us.
pub(crate) fn as_services_read(name: &HeaderName) -> Cow<'_, str> {
    match name.as_str().contains('_') {
        true => name.as_str().replace('_', "-").into(),
        false => name.as_str().into(),
    }
}

/// Gives an answer one framing: one length, or none where its coding makes it void. Whether that is
/// all that it said; if not, more than its body may follow.
///
/// # Errors
/// When nobody can tell where its body ends, or what it is: of a coding that the library does not
/// undo only `chunked` would be taken off, and of several lengths each reader takes another one.
pub(super) fn one_framing<B>(response: &mut Response<B>) -> Result<bool, BoxError> {
    let has_no_body = response.status() == StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_coded = match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(one), None) if one.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => true,
        _ => return Err("its answer has a Transfer-Encoding other than one chunked".into()),
    };
    let length = one_length(headers)?;
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if is_coded || has_no_body {
        headers.remove(CONTENT_LENGTH);
    }
    Ok(match has_no_body {
        true => !is_coded && length.unwrap_or_default() == 0,
        false => !(is_coded && length.is_some()),
    })
}

/// The length of a body. The same number said more than once is one (RFC 9110 section 8.6).
fn one_length(headers: &HeaderMap) -> Result<Option<u64>, BoxError> {
    let mut length = None;
    for line in headers.get_all(CONTENT_LENGTH) {
        for said in line.as_bytes().split(|byte| *byte == b',') {
            let text = std::str::from_utf8(said.trim_ascii()).unwrap_or_default();
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = if is_number { text.parse::<u64>().ok() } else { None };
            if number.is_none() || length.is_some_and(|length| Some(length) != number) {
                return Err("its answer has a Content-Length that is not one number".into());
            }
            length = number;
        }
    }
    Ok(length)
}

/// Says where a request came from, and gives it one `Host` and one `Cookie` as HTTP/1.1 has them.
pub(super) fn introduce(head: &mut Parts, client: &HeaderValue, is_tls: bool) {
    // A target with an authority (HTTP/2, absolute form) wins over Host (RFC 9112 §3.2.2).
    let authority = head.uri.authority().map(|authority| authority.as_str().to_string());
    let named = authority.and_then(|authority| HeaderValue::from_str(&authority).ok());
    let host = named.or_else(|| head.headers.get(HOST).cloned());
    if let Some(host) = host {
        head.headers.insert(HOST, host.clone());
        head.headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    if head.headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some()
        && let Some(length) = head.headers.get(CONTENT_LENGTH).cloned()
    {
        // Equal ones, or it would have been refused. Some servers refuse those too.
        head.headers.insert(CONTENT_LENGTH, length);
    }
    let proto = HeaderValue::from_static(if is_tls { "https" } else { "http" });
    head.headers.entry(X_FORWARDED_PROTO).or_insert(proto);
    let mut through = texts(&head.headers, &X_FORWARDED_FOR);
    if through.is_empty() {
        head.headers.insert(X_FORWARDED_FOR, client.clone());
    } else {
        through.extend(client.to_str().ok().map(ToString::to_string));
        if let Ok(value) = HeaderValue::from_str(&through.join(", ")) {
            head.headers.insert(X_FORWARDED_FOR, value);
        }
    }
    if head.version == Version::HTTP_2 && head.headers.get_all(COOKIE).iter().nth(1).is_some() {
        // HTTP/2 may split it (RFC 9113 §8.2.3).
        let crumbs = texts(&head.headers, &COOKIE);
        if let Ok(value) = HeaderValue::from_str(&crumbs.join("; ")) {
            head.headers.insert(COOKIE, value);
        }
    }
}

fn texts(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter();
    values.filter_map(|value| value.to_str().ok()).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_ends_at_this_hop_is_removed_and_identity_is_not() {
        let mut headers = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "authorization,x-tenant, idempotency-key"),
            ("x-mine", "1"),
            ("x-tenant", "acme"),
            ("authorization", "Bearer a"),
            ("idempotency-key", "k"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("x-yours", "2"),
        ]);
        strip_hop_by_hop(&mut headers, &[HeaderName::from_static("x-tenant")]);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "idempotency-key", "x-tenant", "x-yours"]);
    }

    #[test]
    fn other_spellings_of_what_we_speak_of_are_removed() {
        let mut headers = headers(&[
            ("onceward_fence", "9"),
            ("x_tenant", "other"),
            ("x-tenant", "acme"),
            ("x-forwarded_for", "192.0.2.9"),
            ("transfer_encoding", "chunked"),
            ("x_mine", "1"),
        ]);
        strip_lookalikes(&mut headers, &[HeaderName::from_static("x-tenant")]);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-tenant", "x_mine"]);
        let named = HeaderName::from_static("x_mine");
        headers.insert("x-mine", "2".parse().unwrap());
        strip_lookalikes(&mut headers, &[named]);
        assert!(headers.contains_key("x_mine") && !headers.contains_key("x-mine"));
    }

    /// What one framing makes of an answer: its length, and whether its connection is kept.
    fn framed(status: u16, lines: &[(&'static str, &str)]) -> Option<(Option<String>, bool)> {
        let mut response = Response::builder().status(status).body(()).unwrap();
        *response.headers_mut() = headers(lines);
        let is_plain = one_framing(&mut response).ok()?;
        let lengths: Vec<_> = response.headers().get_all(CONTENT_LENGTH).iter().collect();
        assert!(lengths.len() < 2);
        Some((lengths.first().map(|length| length.to_str().unwrap().into()), is_plain))
    }

    #[test]
    fn peer_d2_an_answer_has_one_length_or_none_at_all() {
        let of = |text: &'static str| framed(200, &[("content-length", text)]);
        for good in ["2", "2, 2", "2,2 ,2", " 2", "02"] {
            assert_eq!(of(good), Some((Some("2".into()), true)), "{good:?}");
        }
        for bad in ["", "2,", "2, 3", "+2", "-2", "2 2", "0x2", "99999999999999999999", "two"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        let lines = |one, two| framed(200, &[("content-length", one), ("content-length", two)]);
        assert_eq!((lines("2", "2"), lines("2", "3")), (Some((Some("2".into()), true)), None));
        assert_eq!(framed(200, &[]), Some((None, true)));
        // It has no body, whatever it says: what it says may follow.
        assert_eq!(framed(204, &[("content-length", "0")]), Some((None, true)));
        assert_eq!(framed(204, &[("content-length", "5")]), Some((None, false)));
        assert_eq!(framed(304, &[("content-length", "5")]), Some((Some("5".into()), true)));
    }

    #[test]
    fn peer_d3_an_answer_is_chunked_once_or_not_coded() {
        let of = |text: &'static str| framed(200, &[("transfer-encoding", text)]);
        for good in ["chunked", "Chunked", " chunked "] {
            assert_eq!(of(good), Some((None, true)), "{good:?}");
        }
        for bad in ["", "gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "chunked;a=b"]
        {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        let twice = [("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")];
        assert_eq!(framed(200, &twice), None);
        let both = [("transfer-encoding", "chunked"), ("content-length", "3")];
        assert_eq!(framed(200, &both), Some((None, false)));
        assert_eq!(framed(204, &both[..1]), Some((None, false)));
    }

    #[test]
    fn a_request_is_introduced() {
        let request = Request::builder()
            .version(Version::HTTP_2)
            .uri("https://api.example/x")
            .header("host", "other.example")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("x-forwarded-for", "192.0.2.1");
        let mut head = request.body(()).unwrap().into_parts().0;
        introduce(&mut head, &HeaderValue::from_static("192.0.2.2"), true);
        let text = |name: &str| head.headers[name].to_str().unwrap();
        assert_eq!((text("host"), text("cookie")), ("api.example", "a=1; b=2"));
        assert_eq!(text("x-forwarded-for"), "192.0.2.1, 192.0.2.2");
        assert_eq!((text("x-forwarded-proto"), text("x-forwarded-host")), ("https", "api.example"));
    }
}
