//! What may stand in `Host` and `:authority` (RFC 9110 section 7.2, RFC 3986 section 3.2.2).
//!
//! What is no host is refused here, because it goes further: to the upstream as `Host`, and to
//! whoever builds links as `X-Forwarded-Host`. Only the form is judged, never whether the host is
//! there.

use std::net::Ipv6Addr;

/// Whether this is a host, with or without a port. Nothing is none: a request over HTTP names one.
pub(super) fn is_host(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let (is_named, port) = match text.strip_prefix('[') {
        Some(literal) => {
            let Some((address, port)) = literal.split_once(']') else { return false };
            (is_ip_literal(address), port)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (is_name(&text[..end]), &text[end..])
        }
    };
    is_named && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// What stands between brackets. A zone names an interface of one machine and is never sent (RFC
/// 9844 section 3).
fn is_ip_literal(text: &str) -> bool {
    let later = |rest: &str| {
        let parts = rest.split_once('.').filter(|(version, address)| {
            !version.is_empty() && !address.is_empty() && version.bytes().all(is_hex)
        });
        parts.is_some_and(|(_, address)| address.bytes().all(|byte| byte == b':' || is_plain(byte)))
    };
    match text.strip_prefix(['v', 'V']) {
        Some(rest) => later(rest),
        None => text.parse::<Ipv6Addr>().is_ok(),
    }
}

/// A registered name, which every IPv4 address looks like too.
fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let is_part = match byte {
            b'%' => bytes.next().is_some_and(is_hex) && bytes.next().is_some_and(is_hex),
            byte => is_plain(byte),
        };
        if !is_part {
            return false;
        }
    }
    !text.is_empty()
}

/// Empty means the scheme's own (RFC 3986 section 3.2.3).
fn is_port(text: &str) -> bool {
    text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// `unreserved` and `sub-delims`.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

#[cfg(test)]
mod tests {
    use super::is_host;

    #[test]
    fn peer_d4_hosts_are_known_by_their_form() {
        for good in [
            "a",
            "api.example",
            "api.example.",
            "API-1.example:8080",
            "a_b",
            "xn--bcher-kva.example",
            "127.0.0.1",
            "127.0.0.1:80",
            "1.2.3",
            "[::1]",
            "[2001:db8::7]:443",
            "[::ffff:192.0.2.1]",
            "[v1.a:b]",
            "a:",
            "%41.example",
            "a!$&'()*+,;=~",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":80",
            " ",
            "a b",
            "x:abc",
            "x:-1",
            "x:+1",
            "x:65536",
            "x:99999999999999999999",
            "x:80:80",
            "<x>",
            "[::1",
            "::1",
            "[]",
            "[::1]x",
            "[::1]:x",
            "[1.2.3.4]",
            "[fe80::1%25eth0]",
            "[v.a]",
            "[vg.a]",
            "[v1.]",
            "u:p@x",
            "u@x",
            "a/b",
            "http://a",
            "a?b",
            "a#b",
            "a\\b",
            "a\"b",
            "a^b",
            "a|b",
            "a`b",
            "{a}",
            "%",
            "%4",
            "%4g",
            "a\tb",
            "a\0b",
            "a\x7fb",
            "b\u{fc}cher",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad:?}");
        }
        assert!(!is_host(b"a\xff"));
    }
}
