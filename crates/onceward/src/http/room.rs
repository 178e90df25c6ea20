//! Room for bodies: what all of them together may hold in memory.
//!
//! Each body has its own bound; many slow ones at once would still add up. Requests and answers
//! have a room each, so that neither can starve the other. A body takes room as it comes in and
//! gives it back when its last byte is dropped, wherever it went. Small bodies are not counted:
//! their number is bounded already, and counting would cost every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

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

    /// Whether nothing more fits.
    pub(super) fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed).saturating_add(UNCOUNTED_BYTES) > self.most
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
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

    /// Takes room ahead for all that is to come, if there is any.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        let fits = bytes <= UNCOUNTED_BYTES || self.room.take(bytes);
        if fits && bytes > UNCOUNTED_BYTES {
            self.taken += bytes;
        }
        fits
    }

    /// Takes room for so many more bytes, if there is any.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        self.read += bytes;
        if self.read <= UNCOUNTED_BYTES.max(self.taken) {
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
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn what_was_reserved_is_not_taken_twice() {
        let room = Room::new(100_000);
        let mut share = Share::of(&room);
        assert!(share.reserve(90_000) && room.is_full());
        assert!((0..9).all(|_| share.grow(10_000)));
        assert!(!share.grow(20_000));
        drop(share);
        assert!(!room.is_full());
    }
}
