//! Room for request bodies: what all of them together may hold in memory.
//!
//! Each request has its own bound; many slow ones at once would still add up. A body takes room as
//! it comes in and gives it back when its last byte is dropped, wherever it went. Small bodies are
//! not counted: their number is bounded already, and counting would cost every request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::body::BoxError;

/// Bodies up to this size are not counted.
const UNCOUNTED_BYTES: u64 = 16 << 10;

/// The room that there is.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicU64,
    most: u64,
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { taken: AtomicU64::new(0), most })
    }

    fn take(&self, bytes: u64) -> bool {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// What one body takes of the room. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    read: u64,
    taken: u64,
}

impl Share {
    /// Nothing yet.
    pub(super) fn of(room: &Arc<Room>) -> Self {
        Self { room: room.clone(), read: 0, taken: 0 }
    }

    /// The bytes that were read, with their share of the room for as long as they live.
    pub(super) fn hold(self, bytes: Bytes) -> Bytes {
        match self.taken {
            0 => bytes,
            _ => Bytes::from_owner(Held { bytes, _share: self }),
        }
    }

    /// Takes room for so many more bytes, if there is any.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        self.read += bytes;
        if self.read <= UNCOUNTED_BYTES {
            return true;
        }
        let more = self.read - self.taken;
        let fits = self.room.take(more);
        if fits {
            self.taken = self.read;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// There is no room for more bodies now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many bytes of requests are held already")]
pub(super) struct Full;

/// A body that takes room as it is read.
pub(super) struct Counted<'s, B> {
    pub(super) body: B,
    pub(super) share: &'s mut Share,
}

impl<B> HttpBody for Counted<'_, B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(Into::into)?;
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            if this.share.grow(bytes) { Ok(frame) } else { Err(Full.into()) }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_with_the_last_byte() {
        let room = Room::new(100_000);
        let mut first = Share::of(&room);
        assert!(first.grow(60_000));
        let mut second = Share::of(&room);
        assert!(second.grow(UNCOUNTED_BYTES), "small ones are not counted");
        assert!(!second.grow(60_000));
        let body = first.hold(Bytes::from(vec![0; 60_000]));
        let part = body.slice(..10);
        drop(body);
        assert!(!Share::of(&room).grow(60_000), "a part of it still lives");
        drop(part);
        assert!(Share::of(&room).grow(60_000));
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
