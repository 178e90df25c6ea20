//! The stored form of a response: status, whitelisted headers, body bytes.
//!
//! A hand-written format behind a version byte. The decoder checks every header again: a stored
//! value with a line break in it is damage, not a response. A response that was too large or was
//! streamed is stored as the fact that it was sent. An outcome that a person gave (resolved by hand
//! as done) is no stored response; what it answers is said here too.

use bytes::Bytes;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, ETAG,
    LAST_MODIFIED, LINK, LOCATION,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const VERSION: u8 = 1;
/// First bytes up to this one are versions; anything above starts an outcome given by hand.
const BY_HAND_BEFORE: u8 = 8;
const STORED: u8 = 0;
const NOT_STORED: u8 = 1;

/// Headers that are stored with every response.
pub const STORED_HEADERS: [HeaderName; 10] = [
    CONTENT_TYPE,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_DISPOSITION,
    CONTENT_LOCATION,
    ETAG,
    LAST_MODIFIED,
    LOCATION,
    LINK,
    HeaderName::from_static("x-correlation-id"),
];

/// A response as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    /// Its status.
    pub status: StatusCode,
    /// What was kept of its headers.
    pub headers: HeaderMap,
    /// Its bytes; none when it was passed on without being stored.
    pub body: Option<Bytes>,
}

/// The stored bytes are not a response that we wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stored response can't be read: it was changed behind our back or by a newer version")]
pub struct DamagedResponse;

impl StoredResponse {
    /// What is stored of a response: the fixed headers and `further` ones.
    #[must_use]
    pub fn of(
        status: StatusCode,
        headers: &HeaderMap,
        further: &[HeaderName],
        body: Option<Bytes>,
    ) -> Self {
        let mut kept = HeaderMap::new();
        for name in STORED_HEADERS.iter().chain(further.iter().filter(|name| may_store(name))) {
            for value in headers.get_all(name) {
                kept.append(name.clone(), value.clone());
            }
        }
        Self { status, headers: kept, body }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = self.body.as_deref().unwrap_or_default();
        let mut out = Vec::with_capacity(body.len() + 128);
        out.push(VERSION);
        out.push(if self.body.is_some() { STORED } else { NOT_STORED });
        out.extend_from_slice(&self.status.as_u16().to_be_bytes());
        out.extend_from_slice(&(self.headers.len() as u32).to_be_bytes());
        for (name, value) in &self.headers {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                out.extend_from_slice(&(part.len() as u32).to_be_bytes());
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(body);
        out
    }

    /// What a done record answers: the stored response, or what a person said it was. Text given by
    /// hand is a 200 with that body; nothing, or `null`, means that the response is not known.
    ///
    /// # Errors
    /// When the bytes are neither.
    pub fn from_outcome(bytes: &[u8]) -> Result<Self, DamagedResponse> {
        match bytes.first() {
            // Versions are control characters, which no text starts with.
            Some(..=BY_HAND_BEFORE) => Self::decode(bytes),
            _ => Ok(Self::by_hand(bytes)),
        }
    }

    fn by_hand(bytes: &[u8]) -> Self {
        let status = StatusCode::OK;
        if bytes.is_empty() || bytes == b"null" {
            return Self { status, headers: HeaderMap::new(), body: None };
        }
        let media_type = if serde_json::from_slice::<serde_json::Value>(bytes).is_ok() {
            "application/json"
        } else if std::str::from_utf8(bytes).is_ok() {
            "text/plain; charset=utf-8"
        } else {
            "application/octet-stream"
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        Self { status, headers, body: Some(Bytes::copy_from_slice(bytes)) }
    }

    /// Reads [`StoredResponse::encode`] back.
    ///
    /// # Errors
    /// When the bytes are anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, DamagedResponse> {
        let mut rest = bytes;
        let [version, kind] = take::<2>(&mut rest)?;
        let status = u16::from_be_bytes(take::<2>(&mut rest)?);
        let status = StatusCode::from_u16(status).map_err(|_| DamagedResponse)?;
        let count = u32::from_be_bytes(take::<4>(&mut rest)?);
        let mut headers = HeaderMap::new();
        for _ in 0..count {
            let name = HeaderName::from_bytes(part(&mut rest)?).map_err(|_| DamagedResponse)?;
            let value = HeaderValue::from_bytes(part(&mut rest)?).map_err(|_| DamagedResponse)?;
            if !may_store(&name) {
                return Err(DamagedResponse);
            }
            headers.try_append(name, value).map_err(|_| DamagedResponse)?;
        }
        let body = match (version, kind) {
            (VERSION, STORED) => Some(Bytes::copy_from_slice(rest)),
            (VERSION, NOT_STORED) if rest.is_empty() => None,
            _ => return Err(DamagedResponse),
        };
        Ok(Self { status, headers, body })
    }
}

/// Whether a header may be stored at all: nothing that belongs to one connection, one client or
/// one moment.
#[must_use]
pub fn may_store(name: &HeaderName) -> bool {
    const NEVER: [&str; 16] = [
        "set-cookie",
        "set-cookie2",
        "date",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "www-authenticate",
        "content-length",
        "retry-after",
        "x-request-id",
    ];
    let name = name.as_str();
    !NEVER.contains(&name)
        && !name.contains("ratelimit")
        && !name.contains("rate-limit")
        && !super::names::is_ours(name)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], DamagedResponse> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(DamagedResponse)?;
    *rest = left;
    Ok(*taken)
}

fn part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DamagedResponse> {
    let length = u32::from_be_bytes(take::<4>(rest)?) as usize;
    let (taken, left) = rest.split_at_checked(length).ok_or(DamagedResponse)?;
    *rest = left;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn response() -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.append(LINK, HeaderValue::from_static("</a>"));
        headers.append(LINK, HeaderValue::from_static("</b>"));
        StoredResponse { status: StatusCode::CREATED, headers, body: Some("{}".into()) }
    }

    #[test]
    fn what_is_stored_comes_back() {
        for stored in [response(), StoredResponse { body: None, ..response() }] {
            assert_eq!(StoredResponse::decode(&stored.encode()).unwrap(), stored);
        }
    }

    #[test]
    fn what_a_person_gave_is_answered_as_it_is() {
        for (given, media_type) in [
            (&b"{\"id\":7}"[..], "application/json"),
            (b"paid by hand", "text/plain; charset=utf-8"),
            (b"\xff\x00", "application/octet-stream"),
        ] {
            let answer = StoredResponse::from_outcome(given).unwrap();
            assert_eq!((answer.status, answer.body.as_deref()), (StatusCode::OK, Some(given)));
            assert_eq!(answer.headers[CONTENT_TYPE], media_type);
        }
        for nothing in [&b""[..], b"null"] {
            assert_eq!(StoredResponse::from_outcome(nothing).unwrap().body, None);
        }
        assert_eq!(StoredResponse::from_outcome(&[2, 0, 0]), Err(DamagedResponse));
    }

    #[test]
    fn i18_a_stored_header_with_a_line_break_is_damage() {
        let mut bytes = response().encode();
        let place = bytes.windows(4).position(|window| window == b"json").unwrap();
        bytes[place] = b'\n';
        assert_eq!(StoredResponse::decode(&bytes), Err(DamagedResponse));
    }

    #[test]
    fn what_belongs_to_one_client_or_moment_is_never_stored() {
        let mut headers = HeaderMap::new();
        let names = ["set-cookie", "date", "connection", "x-ratelimit-limit", "x-keep", "etag"];
        for name in names {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        let asked = names.map(HeaderName::from_static);
        let stored = StoredResponse::of(StatusCode::OK, &headers, &asked[..5], None);
        let mut kept: Vec<_> = stored.headers.keys().map(HeaderName::as_str).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["etag", "x-keep"]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = StoredResponse::decode(&bytes);
        }
    }
}
