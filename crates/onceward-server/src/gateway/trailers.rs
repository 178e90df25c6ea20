//! Trailers of HTTP/2 requests that hold what only a head may hold.
//!
//! A pseudo-header in trailers makes a request malformed, which is an error of its stream (RFC 9113
//! section 8.1). The library drops such fields in silence; but it does refuse trailers that do not
//! end their stream. So this file follows the frames on their way in, and takes the end from
//! trailers that must not be. The header block itself is never touched: all blocks behind it depend
//! on it. Nothing is handed on of a frame before it is known for what it is; trailers wait until
//! they are whole, and anything else at most for the nine bytes of its head.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::hpack::Table;

/// How a connection over HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The head of a frame: length, kind, flags, stream.
const FRAME_HEAD_BYTES: usize = 9;
/// Where its flags are.
const FLAGS_AT: u64 = 4;
/// The longest frame that the library takes.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// The longest header block that is followed, with the heads of its frames: trailers are held for
/// as long as they are not whole.
const BLOCK_BYTES_MAX: u64 = 128 << 10;
/// The most frames of one block; the library takes fewer.
const BLOCK_FRAMES_MAX: u32 = 64;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Follows the frames that come in.
#[derive(Debug)]
struct Frames {
    at: At,
    /// How many bytes have come.
    position: u64,
    /// The highest stream that has begun.
    highest: u32,
    table: Table,
    block: Vec<u8>,
    /// The block whose end has not come.
    open: Option<Open>,
    /// Where the flags are that say more than they may.
    wrong: Vec<u64>,
}

/// A header block that has begun: until it ends, only its own frames may come (RFC 9113 section
/// 6.10).
#[derive(Debug, Clone, Copy)]
struct Open {
    stream: u32,
    /// Where its first frame began.
    begun: u64,
    frames: u32,
    is_trailers: bool,
}

#[derive(Debug)]
enum At {
    Preface(usize),
    Head(Vec<u8>),
    Skipped(usize),
    Block {
        flags: u8,
        is_first: bool,
        left: usize,
        payload: Vec<u8>,
    },
    /// Not HTTP/2, or nothing that can be followed: the library ends it too.
    Off,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            at: At::Preface(0),
            position: 0,
            highest: 0,
            table: Table::default(),
            block: Vec::new(),
            open: None,
            wrong: Vec::new(),
        }
    }
}

impl Frames {
    fn is_off(&self) -> bool {
        matches!(self.at, At::Off)
    }

    /// Up to where what has come may be handed on.
    fn known_until(&self) -> u64 {
        let trailers = self.open.filter(|open| open.is_trailers).map(|open| open.begun);
        match &self.at {
            At::Off => self.position,
            At::Head(head) => trailers.unwrap_or(self.position - head.len() as u64),
            _ => trailers.unwrap_or(self.position),
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = match &self.at {
                At::Preface(have) => PREFACE.len() - have,
                At::Head(have) => FRAME_HEAD_BYTES - have.len(),
                At::Skipped(left) | At::Block { left, .. } => *left,
                At::Off => bytes.len(),
            };
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.position += taken.len() as u64;
            bytes = rest;
            self.take(taken);
        }
    }

    fn take(&mut self, taken: &[u8]) {
        match &mut self.at {
            At::Preface(have) => {
                if PREFACE[*have..*have + taken.len()] != *taken {
                    self.at = At::Off;
                    return;
                }
                *have += taken.len();
                if *have == PREFACE.len() {
                    self.at = At::Head(Vec::with_capacity(FRAME_HEAD_BYTES));
                }
            }
            At::Head(head) => {
                head.extend_from_slice(taken);
                if head.len() == FRAME_HEAD_BYTES {
                    let head = std::mem::take(head);
                    self.frame_begins(&head);
                }
            }
            At::Skipped(left) => {
                *left -= taken.len();
                if *left == 0 {
                    self.at = At::Head(Vec::with_capacity(FRAME_HEAD_BYTES));
                }
            }
            At::Block { left, payload, .. } => {
                *left -= taken.len();
                payload.extend_from_slice(taken);
                if *left == 0 {
                    self.frame_of_block_ends();
                }
            }
            At::Off => {}
        }
    }

    fn frame_begins(&mut self, head: &[u8]) {
        let left = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let begun = self.position - FRAME_HEAD_BYTES as u64;
        let open = match self.open {
            None if kind == HEADERS && stream > 0 => {
                // A stream that has begun before has no other block than its trailers.
                let is_trailers = stream <= self.highest;
                self.highest = self.highest.max(stream);
                Open { stream, begun, frames: 1, is_trailers }
            }
            None if ![HEADERS, CONTINUATION].contains(&kind) => {
                self.at = match left {
                    0 => At::Head(Vec::with_capacity(FRAME_HEAD_BYTES)),
                    left => At::Skipped(left),
                };
                return;
            }
            Some(open) if kind == CONTINUATION && stream == open.stream => {
                Open { frames: open.frames + 1, ..open }
            }
            // What may not come here: the library ends the connection for it.
            None | Some(_) => {
                self.at = At::Off;
                return;
            }
        };
        let is_long = self.position + left as u64 - open.begun > BLOCK_BYTES_MAX;
        if left > FRAME_BYTES_MAX || is_long || open.frames > BLOCK_FRAMES_MAX {
            self.at = At::Off;
            return;
        }
        self.open = Some(open);
        let payload = Vec::with_capacity(left);
        self.at = At::Block { flags, is_first: kind == HEADERS, left, payload };
        if left == 0 {
            self.frame_of_block_ends();
        }
    }

    fn frame_of_block_ends(&mut self) {
        let next = At::Head(Vec::with_capacity(FRAME_HEAD_BYTES));
        let At::Block { flags, is_first, payload, .. } = std::mem::replace(&mut self.at, next)
        else {
            return;
        };
        let Some(fragment) = fragment(flags, is_first, &payload) else {
            self.at = At::Off;
            return;
        };
        self.block.extend_from_slice(fragment);
        if flags & END_HEADERS == 0 {
            return;
        }
        let read = self.table.read(&self.block);
        self.block.clear();
        match (read, self.open.take()) {
            (None, _) => self.at = At::Off,
            (Some(true), Some(open)) if open.is_trailers => self.wrong.push(open.begun + FLAGS_AT),
            _ => {}
        }
    }
}

/// What a frame brings to its block, without padding and priority (RFC 9113 section 6.2).
fn fragment(flags: u8, is_first: bool, payload: &[u8]) -> Option<&[u8]> {
    if !is_first {
        return Some(payload);
    }
    let (padding, rest) = match flags & PADDED {
        0 => (0, payload),
        _ => payload.split_first().map(|(padding, rest)| (usize::from(*padding), rest))?,
    };
    let rest = if flags & PRIORITY == 0 { rest } else { rest.get(5..)? };
    rest.get(..rest.len().checked_sub(padding)?)
}

/// A connection whose frames are looked at before they are handed on.
#[derive(Debug)]
pub(super) struct Checked<S> {
    inner: S,
    frames: Frames,
    /// What came and is not known for what it is.
    held: Vec<u8>,
    /// What is known and was not handed on yet.
    known: Vec<u8>,
}

impl<S> Checked<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, frames: Frames::default(), held: Vec::new(), known: Vec::new() }
    }

    /// Looks at bytes that begin at `from` and have come last; how many of all that were not handed
    /// on may be.
    fn look(&mut self, bytes: &mut [u8], new: usize) -> usize {
        let from = self.frames.position - (bytes.len() - new) as u64;
        let (_, fresh) = bytes.split_at(bytes.len() - new);
        self.frames.feed(fresh);
        for at in self.frames.wrong.drain(..) {
            bytes[usize::try_from(at - from).unwrap_or_default()] &= !END_STREAM;
        }
        usize::try_from(self.frames.known_until() - from).unwrap_or(bytes.len())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.known.is_empty() {
                let length = this.known.len().min(buffer.remaining());
                buffer.put_slice(&this.known[..length]);
                this.known.drain(..length);
                return Poll::Ready(Ok(()));
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
            let new = buffer.filled().len() - before;
            if new == 0 {
                if this.held.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                // It ends half-way: that is the library's to say.
                this.known = std::mem::take(&mut this.held);
            } else if this.held.is_empty() {
                if this.frames.is_off() {
                    return Poll::Ready(Ok(()));
                }
                let known = this.look(&mut buffer.filled_mut()[before..], new);
                this.held.extend_from_slice(&buffer.filled()[before + known..]);
                buffer.set_filled(before + known);
                if known > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut held = std::mem::take(&mut this.held);
                held.extend_from_slice(&buffer.filled()[before..]);
                buffer.set_filled(before);
                let known = this.look(&mut held, new);
                // Copied only once some of it is known, not with every piece that comes.
                this.held =
                    if known == 0 { std::mem::take(&mut held) } else { held.split_off(known) };
                this.known = held;
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Checked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// What is handed on of bytes that come in pieces of a size.
    async fn handed_on(bytes: &[u8], size: usize) -> Vec<u8> {
        let (mut theirs, ours) = tokio::io::duplex(size);
        let (mut ours, mut read) = (Checked::new(ours), Vec::new());
        let reading = async {
            ours.read_to_end(&mut read).await.unwrap();
        };
        let writing = async {
            theirs.write_all(bytes).await.unwrap();
            drop(theirs);
        };
        tokio::join!(reading, writing);
        read
    }

    /// In pieces of each size: the flags of the frames at these places lose their end.
    async fn check(frames: &[Vec<u8>], wrong: &[usize]) {
        let sent = [PREFACE, &frames.concat()].concat();
        let mut expected = sent.clone();
        for nth in wrong {
            let before: usize = frames[..*nth].iter().map(Vec::len).sum();
            expected[PREFACE.len() + before + 4] &= !END_STREAM;
        }
        for size in [1, 2, 7, 10, 64, 4_096] {
            assert_eq!(handed_on(&sent, size).await, expected, "by {size}");
        }
    }

    #[tokio::test]
    async fn peer_d10_trailers_with_a_pseudo_header_do_not_end_their_stream() {
        const BOTH: u8 = END_HEADERS | END_STREAM;
        let head = |stream| frame(HEADERS, END_HEADERS, stream, b"\x82\x86\x84\x41\x01h");
        let data = frame(0, 0, 1, b"{}");
        let fine = frame(HEADERS, BOTH, 1, b"\x00\x01x\x011");
        check(&[head(1), data.clone(), fine.clone(), head(3)], &[]).await;
        for bad in [&b"\x84"[..], b"\xbe", b"\x00\x05:path\x01/", b"\x00\x01x\x011\x82"] {
            let trailers = frame(HEADERS, BOTH, 1, bad);
            check(&[head(1), data.clone(), trailers, head(3), fine.clone()], &[2]).await;
        }
        // In two frames, with padding and priority.
        let begun =
            frame(HEADERS, END_STREAM | PADDED | PRIORITY, 1, b"\x02\0\0\0\0\x01\x00\x05:p\0\0");
        let rest = frame(CONTINUATION, END_HEADERS, 1, b"ath\x01/");
        check(&[head(1), begun, rest, data], &[1]).await;
        // A head is one whatever it holds.
        check(&[frame(HEADERS, BOTH, 1, b"\x82\x84"), frame(HEADERS, BOTH, 3, b"\x82")], &[]).await;
    }

    #[tokio::test]
    async fn peer_d10_a_block_that_does_not_end_is_not_held_without_bound() {
        let head = frame(HEADERS, END_HEADERS, 1, b"\x82\x86\x84\x41\x01h");
        let open = frame(HEADERS, END_STREAM, 1, b"\x00\x01x\x011");
        let rest = |stream, payload: &[u8]| frame(CONTINUATION, 0, stream, payload);
        let long = [&[0, 0x40, 0, CONTINUATION, 0, 0, 0, 0, 1], &[0_u8; 16 << 10][..]].concat();
        for (what, repeated, held_max) in [
            ("data", frame(0, 0, 1, &[b'x'; 200]), 100),
            ("pings", frame(6, 0, 0, &[0; 8]), 100),
            ("heads", frame(HEADERS, END_HEADERS, 3, b"\x82"), 100),
            ("another stream", rest(3, b""), 100),
            ("nothing", rest(1, b""), 1_000),
            ("long ones", long, 128 << 10),
        ] {
            let begun = [PREFACE, &head, &open].concat();
            let (mut theirs, ours) = tokio::io::duplex(64 << 10);
            let writing = tokio::spawn(async move {
                theirs.write_all(&begun).await.unwrap();
                for _ in 0..1_000 {
                    theirs.write_all(&repeated).await.unwrap();
                }
                begun.len() + 1_000 * repeated.len()
            });
            let (mut ours, mut handed_on, mut held) = (Checked::new(ours), 0, 0);
            let mut piece = [0; 4_096];
            while let bytes @ 1.. = ours.read(&mut piece).await.unwrap() {
                handed_on += bytes;
                held = held.max(ours.held.capacity());
            }
            assert_eq!(handed_on, writing.await.unwrap(), "{what}: the library is to end it");
            assert!(ours.frames.is_off(), "{what}");
            assert!(held <= 2 * (held_max + piece.len()), "{what}: {held}");
        }
        // A stream of the connection itself has no block.
        let mut frames = Frames::default();
        frames.feed(&[PREFACE, &frame(HEADERS, 0, 0, b"\x82")].concat());
        assert!(frames.is_off());
    }

    #[tokio::test]
    async fn what_is_no_http_2_or_ends_half_way_is_handed_on_as_it_is() {
        let half =
            [PREFACE, &frame(HEADERS, END_HEADERS, 1, b"\x82"), b"\0\0\x09\x01\x05"].concat();
        let unreadable = [PREFACE, &frame(HEADERS, END_HEADERS, 1, b"\xff\xff"), b"rest"].concat();
        for bytes in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI", b"PRI * HTTP/1.1\r\n", &half, &unreadable]
        {
            for size in [1, 3, 4_096] {
                assert_eq!(handed_on(bytes, size).await, bytes, "by {size}");
            }
        }
    }
}
