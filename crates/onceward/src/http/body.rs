//! Bodies: buffered within a bound, or passed on live.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

use super::names::strip_ours;
use super::room::Share;

/// Any error, as bodies and services report it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response body: ours, or passed on live.
pub struct Body {
    bytes: UnsyncBoxBody<Bytes, BoxError>,
    live: bool,
}

impl Body {
    /// Passes another body on.
    pub fn live<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { bytes: body.map_err(Into::into).boxed_unsync(), live: true }
    }

    /// Whether it is passed on as it comes: it may take as long as whoever sends it does. Otherwise
    /// all of it is here already, and how long it takes is up to who reads it.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.live
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self { live: false, ..Self::live(Full::new(bytes)) }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Body")
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut frame = Pin::new(&mut self.bytes).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            // Behind a body as before it, only we say these.
            strip_ours(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.bytes.size_hint()
    }
}

/// What became of a body that was buffered.
pub(super) enum Buffered<B> {
    /// All of it.
    Whole(Bytes),
    /// It is larger than the bound: what was read, and the rest.
    TooLarge(Bytes, B),
    /// There is no room for more of it: what was read, and the rest.
    NoRoom(Bytes, B),
    /// It broke off.
    Broken(BoxError),
}

/// Who says where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing more comes: that is its end.
    Silent,
    /// The body has to say so: a reset HTTP/2 stream goes silent in the middle, too.
    Told,
}

/// Reads a body up to `most` bytes, as long as its share of the room can grow.
pub(super) async fn buffer<B>(body: B, most: u64, share: &mut Share) -> Buffered<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    buffer_until(End::Silent, body, most, share).await
}

/// As [`buffer`], up to this kind of end.
pub(super) async fn buffer_until<B>(
    end: End,
    mut body: B,
    most: u64,
    share: &mut Share,
) -> Buffered<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let hint = body.size_hint();
    if hint.lower() > most {
        return Buffered::TooLarge(Bytes::new(), body);
    }
    let expected = hint.exact().and_then(|bytes| usize::try_from(bytes).ok());
    let mut blocks = Blocks::new(expected);
    while let Some(frame) = body.frame().await {
        let data = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => data,
            // Trailers are not kept.
            Ok(Err(_)) => continue,
            Err(error) => return Buffered::Broken(error.into()),
        };
        if !blocks.push(data, share) {
            return Buffered::NoRoom(blocks.join(), body);
        }
        if blocks.length as u64 > most {
            return Buffered::TooLarge(blocks.join(), body);
        }
    }
    if end == End::Told && !body.is_end_stream() {
        return Buffered::Broken("the end of its HTTP/2 stream did not come".into());
    }
    Buffered::Whole(blocks.join())
}

/// Smallest and largest block that a body is gathered in.
const BLOCK_BYTES_MIN: usize = 8 << 10;
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// A body as it comes in: in blocks whose whole size is counted, never in one buffer that grows by
/// half of itself unseen. Copied together once, at the end.
struct Blocks {
    /// How many bytes it will be, if that is known.
    expected: Option<usize>,
    length: usize,
    /// The first piece as it came. Most bodies have no other: no copy for them.
    first: Bytes,
    blocks: Vec<Vec<u8>>,
}

impl Blocks {
    fn new(expected: Option<usize>) -> Self {
        Self { expected, length: 0, first: Bytes::new(), blocks: Vec::new() }
    }

    /// Takes the next piece; false when its share has no room for it. It is kept all the same:
    /// what was read can't be put back.
    fn push(&mut self, data: Bytes, share: &mut Share) -> bool {
        if self.length == 0 {
            self.length = data.len();
            self.first = data;
            return share.grow(self.length as u64);
        }
        let first = std::mem::take(&mut self.first);
        if !first.is_empty() {
            // Its room is taken. Copied, because it holds on to the connection's own buffer.
            self.blocks.push(first.to_vec());
        }
        let mut fits = true;
        let mut rest = &data[..];
        while !rest.is_empty() {
            let spare = self.blocks.last().map_or(0, |block| block.capacity() - block.len());
            if spare == 0 {
                let size = self.next_block();
                fits &= share.grow(size as u64);
                self.blocks.push(Vec::with_capacity(size));
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(spare));
            if let Some(block) = self.blocks.last_mut() {
                block.extend_from_slice(now);
            }
            self.length += now.len();
            rest = later;
        }
        fits
    }

    /// A quarter of what is there, and no more than is still to come.
    fn next_block(&self) -> usize {
        let size = (self.length / 4).clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
        let left = self.expected.map(|expected| expected.saturating_sub(self.length).max(1));
        left.map_or(size, |left| size.min(left))
    }

    /// All of it. Blocks are let go of as they are copied.
    fn join(self) -> Bytes {
        let Self { length, first, mut blocks, .. } = self;
        if blocks.len() < 2 {
            return blocks.pop().map_or(first, Bytes::from);
        }
        let mut whole = Vec::with_capacity(length);
        for block in blocks {
            whole.extend_from_slice(&block);
        }
        Bytes::from(whole)
    }
}

/// Most bytes of a refused body that are read and thrown away.
const DISCARD_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest time that this takes.
const DISCARD_FOR: Duration = Duration::from_secs(5);

/// Reads the rest of a refused body, within bounds: closing on a client that is still sending
/// would take the answer away from it.
pub(super) async fn discard<B>(mut body: B)
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, |data| data.len() as u64);
            if read > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Whoever takes longer finds the connection closed.
    let _ = tokio::time::timeout(DISCARD_FOR, reading).await;
}

/// What was read already, then the rest.
pub(super) struct Resumed<B> {
    pub(super) read: Option<Bytes>,
    pub(super) rest: B,
}

impl<B> HttpBody for Resumed<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.read.take() {
            Some(read) if !read.is_empty() => Poll::Ready(Some(Ok(Frame::data(read)))),
            _ => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::super::room::{Room, Whose};
    use super::*;
    use futures_util::FutureExt;
    use http_body_util::StreamBody;

    /// Buffers pieces that are there already, of a length that is known or not.
    fn buffered(pieces: &[usize], known: bool, most: u64, room: u64) -> (Buffered<()>, u64) {
        let room = Room::new(room);
        let mut share = Share::of(&room, Whose::tenant("acme"));
        let whole = Bytes::from_iter((0..pieces.iter().sum::<usize>()).map(|at| at as u8));
        let mut rest = whole.clone();
        let frames: Vec<_> =
            pieces.iter().map(|size| Ok(Frame::data(rest.split_to(*size)))).collect();
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let hint = SizeHint::with_exact(whole.len() as u64);
        let body = Told { body, hint: if known { hint } else { SizeHint::default() } };
        let done = buffer(body, most, &mut share).now_or_never().unwrap();
        let taken = room.taken();
        let done = match done {
            Buffered::Whole(bytes) => {
                assert_eq!(bytes, whole);
                Buffered::Whole(bytes)
            }
            Buffered::TooLarge(bytes, _) => {
                assert_eq!(bytes, whole[..bytes.len()]);
                Buffered::TooLarge(bytes, ())
            }
            Buffered::NoRoom(bytes, _) => {
                assert_eq!(bytes, whole[..bytes.len()]);
                Buffered::NoRoom(bytes, ())
            }
            Buffered::Broken(error) => Buffered::Broken(error),
        };
        (done, taken)
    }

    struct Told<B> {
        body: B,
        hint: SizeHint,
    }

    impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> HttpBody for Told<B> {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Pin::new(&mut self.body).poll_frame(context)
        }

        fn size_hint(&self) -> SizeHint {
            self.hint
        }
    }

    #[test]
    fn what_only_we_may_say_is_removed_from_trailers() {
        let mut sent = http::HeaderMap::new();
        for name in ["onceward-fence", "idempotency-replayed", "x-duplicate-of", "x-sum"] {
            sent.insert(name, http::HeaderValue::from_static("1"));
        }
        let frames = [Ok::<_, BoxError>(Frame::trailers(sent))];
        let body = Body::live(StreamBody::new(futures_util::stream::iter(frames)));
        let read = body.collect().now_or_never().unwrap().unwrap();
        let left: Vec<_> = read.trailers().unwrap().keys().collect();
        assert_eq!(left, ["x-sum"]);
    }

    #[test]
    fn a_body_that_only_goes_silent_is_no_whole_one_where_its_end_is_to_be_told() {
        let room = Room::new(1 << 20);
        let read = |end| {
            let frames = [Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"half")))];
            let silent = StreamBody::new(futures_util::stream::iter(frames));
            let mut share = Share::of(&room, Whose::tenant("acme"));
            buffer_until(end, silent, 1 << 20, &mut share).now_or_never().unwrap()
        };
        assert!(matches!(read(End::Silent), Buffered::Whole(bytes) if bytes == "half"));
        assert!(matches!(read(End::Told), Buffered::Broken(_)));
        let mut share = Share::of(&room, Whose::tenant("acme"));
        for whole in [Full::from("whole"), Full::default()] {
            let read = buffer_until(End::Told, whole, 1 << 20, &mut share).now_or_never().unwrap();
            assert!(matches!(read, Buffered::Whole(_)));
        }
    }

    #[test]
    fn what_is_held_of_a_body_is_what_is_counted() {
        const MOST: u64 = 1 << 20;
        let pieces = [16_000; 40];
        for known in [true, false] {
            let (done, taken) = buffered(&pieces, known, MOST, MOST);
            assert!(matches!(done, Buffered::Whole(_)));
            let slack = if known { 0 } else { BLOCK_BYTES_MAX as u64 };
            assert!((640_000..=640_000 + slack).contains(&taken), "{known}: {taken}");
            let (done, taken) = buffered(&pieces, known, MOST, 400_000);
            assert!(matches!(done, Buffered::NoRoom(..)) && taken <= 400_000, "{taken}");
        }
        let (done, _) = buffered(&pieces, false, 100_000, MOST);
        assert!(matches!(done, Buffered::TooLarge(read, ()) if read.len() == 112_000));
        let (done, _) = buffered(&pieces, true, 100_000, MOST);
        assert!(matches!(done, Buffered::TooLarge(read, ()) if read.is_empty()));
        for pieces in [&[][..], &[0], &[5], &[0, 5, 0, 7], &[20_000]] {
            let (done, taken) = buffered(pieces, false, MOST, MOST);
            assert!(matches!(done, Buffered::Whole(_)));
            assert_eq!(taken, if pieces == [20_000] { 20_000 } else { 0 });
        }
    }
}
