//! A cheap HTTP/1.1 client for one connection: bytes made once, the least parsing that tells an
//! answer's end.
//!
//! It knows what the bench's servers send: a status, headers, `Content-Length`. Anything else is an
//! error, because a figure over answers that nobody understood is none.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::BODY_BYTES;
use crate::failure::Failure;

/// Bytes of a key: they are written into the request in place.
pub(super) const KEY_BYTES: usize = 36;
/// Longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A request whose key can be changed in place.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    key_at: Option<usize>,
}

impl Request {
    /// A POST of [`BODY_BYTES`] of JSON, with or without a key.
    pub(super) fn post(keyed: bool) -> Self {
        let mut head = String::from("POST /v1/payments HTTP/1.1\r\nhost: bench\r\n");
        head.push_str("x-tenant: acme\r\nx-caller: bench\r\ncontent-type: application/json\r\n");
        let mut key_at = None;
        if keyed {
            head.push_str("idempotency-key: ");
            key_at = Some(head.len());
            head.push_str(&"0".repeat(KEY_BYTES));
            head.push_str("\r\n");
        }
        head.push_str(&format!("content-length: {BODY_BYTES}\r\n\r\n"));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&json(17));
        Self { bytes, key_at }
    }

    /// A request of these bytes.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, key_at: None }
    }

    /// Puts another key in.
    pub(super) fn set_key(&mut self, key: &str) {
        if let Some(at) = self.key_at
            && key.len() == KEY_BYTES
        {
            self.bytes[at..at + KEY_BYTES].copy_from_slice(key.as_bytes());
        }
    }
}

/// [`BODY_BYTES`] of JSON that name a number.
pub(super) fn json(number: u64) -> Vec<u8> {
    let mut json = format!(r#"{{"payment":{number},"currency":"EUR","note":""#).into_bytes();
    let fill = BODY_BYTES.saturating_sub(json.len() + 2);
    json.extend(std::iter::repeat_n(b'x', fill));
    json.extend_from_slice(b"\"}");
    json
}

/// The number that [`json`] names.
pub(super) fn number(body: &[u8]) -> Option<u64> {
    let rest = body.strip_prefix(br#"{"payment":"#)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// One connection, kept alive.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await.map_err(|error| broken(&error))?;
        stream.set_nodelay(true).map_err(|error| broken(&error))?;
        Ok(Self { stream, buffer: Vec::with_capacity(4_096) })
    }

    /// Sends a request and reads its whole answer: status and body.
    pub(crate) async fn ask(&mut self, request: &Request) -> Result<(u16, &[u8]), Failure> {
        self.stream.write_all(&request.bytes).await.map_err(|error| broken(&error))?;
        self.buffer.clear();
        let mut head: Option<(u16, usize, usize)> = None;
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await;
            if read.map_err(|error| broken(&error))? == 0 {
                return Err(Failure::failed("bench.answer", "a server closed a connection"));
            }
            if head.is_none() {
                head = parse(&self.buffer)?;
            }
            if let Some((status, starts, length)) = head
                && self.buffer.len() >= starts + length
            {
                return Ok((status, &self.buffer[starts..starts + length]));
            }
        }
    }

    /// The head of the answer that was read last, for messages.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.buffer).chars().take(400).collect()
    }
}

/// Status, where the body starts and how long it is, once the head is whole.
fn parse(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>, Failure> {
    let odd = |what: &str| {
        let shown: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
        Failure::failed("bench.answer", format!("an answer {what}: {shown}"))
    };
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(odd("with a head that does not end"));
        }
        return Ok(None);
    };
    let status = bytes.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
    let status =
        status.and_then(|digits| digits.parse().ok()).ok_or_else(|| odd("without status"))?;
    let name = b"content-length:";
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let length = lines.find_map(|line| {
        let (start, value) = line.split_at_checked(name.len())?;
        if !start.eq_ignore_ascii_case(name) {
            return None;
        }
        std::str::from_utf8(value).ok()?.trim().parse().ok()
    });
    Ok(Some((status, end + 4, length.ok_or_else(|| odd("without Content-Length"))?)))
}

fn broken(error: &std::io::Error) -> Failure {
    Failure::failed("bench.connection", format!("a connection to a measured server broke: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_its_size_and_names_its_number() {
        for count in [0, 7, 1_234_567, u64::from(u32::MAX)] {
            let json = json(count);
            assert_eq!((json.len(), number(&json)), (BODY_BYTES, Some(count)));
            serde_json::from_slice::<serde_json::Value>(&json).unwrap();
        }
    }

    #[test]
    fn a_key_is_written_in_place() {
        let mut request = Request::post(true);
        let key = "12345678-1234-4123-8123-123456789abc";
        request.set_key(key);
        let text = String::from_utf8(request.bytes).unwrap();
        assert!(text.contains(&format!("idempotency-key: {key}\r\n")));
        assert!(text.ends_with("\"}") && text.contains("content-length: 200\r\n\r\n{"));
    }

    #[test]
    fn heads_are_parsed_when_they_are_whole() {
        assert!(parse(b"HTTP/1.1 201 Created\r\nContent-").unwrap().is_none());
        let whole = b"HTTP/1.1 201 Created\r\na: b\r\nContent-Length: 5\r\n\r\nhe";
        assert_eq!(parse(whole).unwrap(), Some((201, whole.len() - 2, 5)));
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
