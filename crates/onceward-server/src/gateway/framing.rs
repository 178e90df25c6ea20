//! Where heads and bodies begin in the bytes of an HTTP/1 connection, to see double framing.
//!
//! A request with both `Content-Length` and `Transfer-Encoding` is how requests are smuggled past
//! a proxy (RFC 9112 §6.1), and so is a coding that only one of two readers undoes. The HTTP
//! library drops the length silently and takes every list of codings that ends in `chunked`, so
//! that nobody behind it can tell: this file watches the bytes on their way in and tells which
//! request it was. One `chunked` is one framing; every other coding counts as double. It decides
//! nothing. What can't be followed is refused by the library too; a line that is longer than the
//! library takes ends the connection, so that nobody hides behind it.
//!
//! It changes one thing. The library answers a control character in a header with a bare 400 of its
//! own. In a key it gets the high bit set, which the library lets pass and no key may have: so the
//! refusal is the layer's, in the words of its route. Not done where the line came in several
//! reads, and not in HTTP/2, whose library ends the stream.

/// How much longer than a head a line may become before it is given up: more than the library reads
/// at a time, so that its own refusal of a head that is too long comes first.
const LINE_BYTES_MORE: usize = 64 * 1024;
/// How an HTTP/2 connection begins, up to its first line end.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// The bit that no character of a key may have.
const NO_KEYS: u8 = 0x80;
/// Headers that carry keys.
const KEY_HEADERS: [&str; 2] = ["idempotency-key", "x-idempotency-key"];

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    at: At,
    line: Vec<u8>,
    line_bytes_max: usize,
    head: Head,
    heads: u64,
    double: Option<u64>,
    is_lost: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum At {
    #[default]
    RequestLine,
    HeaderLine,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailer,
    /// HTTP/2, or something that can't be followed.
    Off,
}

#[derive(Debug, Default, Clone, Copy)]
struct Head {
    length: Option<u64>,
    has_length: bool,
    encoded: bool,
    /// Encoded otherwise than by one `chunked`.
    otherwise: bool,
}

impl Framing {
    /// At the start of a connection whose heads have at most so many bytes.
    pub(super) fn new(head_bytes_max: usize) -> Self {
        Self {
            at: At::default(),
            line: Vec::new(),
            line_bytes_max: head_bytes_max.saturating_add(LINE_BYTES_MORE),
            head: Head::default(),
            heads: 0,
            double: None,
            is_lost: false,
        }
    }

    /// Whether a line was too long to follow: nobody may read on.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Which request of this connection, counted from 0, was framed twice; none so far otherwise.
    pub(super) fn double(&self) -> Option<u64> {
        self.double
    }

    /// Whether a whole head has come, or this is not HTTP/1.
    pub(super) fn past_first_head(&self) -> bool {
        self.heads > 0 || self.at == At::Off
    }

    /// Takes the next bytes of the connection.
    pub(super) fn feed(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() && self.at != At::Off {
            bytes = match self.at {
                At::Body(left) => self.skip(bytes, left, |left| match left {
                    0 => At::RequestLine,
                    left => At::Body(left),
                }),
                At::Chunk(left) => self.skip(bytes, left, |left| match left {
                    0 => At::ChunkEnd,
                    left => At::Chunk(left),
                }),
                _ => self.lines(bytes),
            };
        }
    }

    fn skip<'a>(
        &mut self,
        bytes: &'a mut [u8],
        left: u64,
        next: impl Fn(u64) -> At,
    ) -> &'a mut [u8] {
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.at = next(left - take as u64);
        &mut bytes[take..]
    }

    fn lines<'a>(&mut self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.extend_from_slice(bytes);
            if self.line.len() > self.line_bytes_max {
                self.is_lost = true;
                self.at = At::Off;
                self.line = Vec::new();
            }
            return &mut [];
        };
        let (line, rest) = bytes.split_at_mut(end);
        let rest = &mut rest[1..];
        if self.line.is_empty() {
            self.line_ends(line);
        } else {
            let mut whole = std::mem::take(&mut self.line);
            whole.extend_from_slice(line);
            self.line_ends(&mut whole);
            // Its room is used for the next line.
            whole.clear();
            self.line = whole;
        }
        rest
    }

    fn line_ends(&mut self, line: &mut [u8]) {
        let length = line.strip_suffix(b"\r").map_or(line.len(), <[u8]>::len);
        let line = &mut line[..length];
        self.at = match self.at {
            At::RequestLine if line.is_empty() => At::RequestLine,
            At::RequestLine if line == H2_PREFACE => At::Off,
            At::RequestLine => {
                self.head = Head::default();
                At::HeaderLine
            }
            At::HeaderLine if line.is_empty() => self.head_ends(),
            At::HeaderLine => {
                self.header(line);
                At::HeaderLine
            }
            At::ChunkSize => match chunk_size(line) {
                Some(0) => At::Trailer,
                Some(size) => At::Chunk(size),
                None => At::Off,
            },
            At::ChunkEnd => At::ChunkSize,
            At::Trailer if line.is_empty() => At::RequestLine,
            At::Trailer => At::Trailer,
            at @ (At::Body(_) | At::Chunk(_) | At::Off) => at,
        };
    }

    fn header(&mut self, line: &mut [u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = line.split_at_mut(colon);
        let name = name.trim_ascii();
        if KEY_HEADERS.iter().any(|key| name.eq_ignore_ascii_case(key.as_bytes())) {
            let controls = |byte: &&mut u8| byte.is_ascii_control() && **byte != b'\t';
            value.iter_mut().filter(controls).for_each(|byte| *byte |= NO_KEYS);
            return;
        }
        let value = value[1..].trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            self.head.has_length = true;
            self.head.length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let once = !self.head.encoded && value.eq_ignore_ascii_case(b"chunked");
            self.head.encoded = true;
            self.head.otherwise |= !once;
        }
    }

    fn head_ends(&mut self) -> At {
        let head = self.head;
        self.heads += 1;
        match (head.encoded, head.has_length || head.otherwise, head.length) {
            (true, true, _) => {
                self.double = Some(self.heads - 1);
                At::Off
            }
            (true, false, _) => At::ChunkSize,
            (false, true, None) => At::Off,
            (false, _, None | Some(0)) => At::RequestLine,
            (false, _, Some(length)) => At::Body(length),
        }
    }
}

/// The size of a chunk, without its extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In one piece and byte by byte: where the reads end must not matter.
    #[track_caller]
    fn check(bytes: &str, double: Option<u64>, heads: u64) {
        for size in [1, 3, bytes.len()] {
            let mut framing = Framing::new(1 << 10);
            let mut read = bytes.as_bytes().to_vec();
            read.chunks_mut(size).for_each(|piece| framing.feed(piece));
            assert_eq!(read, bytes.as_bytes(), "nothing is changed");
            assert_eq!((framing.double(), framing.heads), (double, heads), "{bytes:?} by {size}");
        }
    }

    #[test]
    fn double_framing_is_seen_in_either_order_and_spelling() {
        let cl = "Content-Length: 3\r\n";
        let te = "transfer-ENCODING : chunked\r\n";
        check(&format!("POST / HTTP/1.1\r\n{cl}{te}\r\nabc"), Some(0), 1);
        check(&format!("POST / HTTP/1.1\r\n{te}{cl}\r\nabc"), Some(0), 1);
        check("POST / HTTP/1.1\nTransfer-Encoding:x\nContent-Length:\n\n", Some(0), 1);
        check(&format!("POST / HTTP/1.1\r\n{cl}\r\nabc"), None, 1);
    }

    #[test]
    fn a_transfer_coding_other_than_one_chunked_is_seen() {
        let head = |lines: &str| format!("POST / HTTP/1.1\r\n{lines}\r\n");
        for (lines, double) in [
            ("transfer-encoding: Chunked\r\n", None),
            ("transfer-encoding: gzip, chunked\r\n", Some(0)),
            ("transfer-encoding: chunked, chunked\r\n", Some(0)),
            ("transfer-encoding: chunked;q=1\r\n", Some(0)),
            ("transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", Some(0)),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", Some(0)),
            ("transfer-encoding:\r\ntransfer-encoding: chunked\r\n", Some(0)),
        ] {
            check(&head(lines), double, 1);
        }
    }

    #[test]
    fn bodies_are_skipped_so_that_the_right_request_is_told() {
        let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        let body = "5;x=y\r\nab\r\nc\r\n0\r\ntrailer: 1\r\n\r\n";
        let both = "PUT / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        let get = "\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n";
        check(&format!("{chunked}{body}{get}{both}{both}"), Some(2), 3);
        // A body that looks like a head is a body.
        let length = both.len();
        let hides = format!("POST / HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{both}{get}");
        check(&hides, None, 2);
    }

    #[test]
    fn what_can_not_be_followed_is_left_alone() {
        check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ncontent-length", None, 0);
        check("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\nabc", None, 1);
    }

    #[test]
    fn a_line_is_followed_as_far_as_a_head_may_go_and_then_given_up() {
        let mut framing = Framing::new(200_000);
        let framed = "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        let long = format!("GET / HTTP/1.1\r\nx: {}\r\n{framed}", "x".repeat(190_000));
        long.into_bytes().chunks_mut(1_000).for_each(|piece| framing.feed(piece));
        assert_eq!((framing.double(), framing.is_lost()), (Some(0), false));
        let mut framing = Framing::new(200_000);
        let endless = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(300_000));
        endless.into_bytes().chunks_mut(1_000).for_each(|piece| framing.feed(piece));
        assert!(framing.line.is_empty() && framing.is_lost());
    }

    #[test]
    fn a_control_character_in_a_key_is_replaced_and_nowhere_else() {
        let head =
            b"POST / HTTP/1.1\r\nx: a\x7fb\r\nIdempotency-KEY: \"a\x7f\tb\rc\0\"\r\n\r\n\x7f";
        let mut read = head.to_vec();
        let mut framing = Framing::new(1 << 10);
        framing.feed(&mut read);
        let softened =
            b"POST / HTTP/1.1\r\nx: a\x7fb\r\nIdempotency-KEY: \"a\xff\tb\x8dc\x80\"\r\n\r\n\x7f";
        assert_eq!((&read[..], framing.heads), (&softened[..], 1));
    }
}
