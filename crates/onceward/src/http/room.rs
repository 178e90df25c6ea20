//! Room for bodies: what all of them together may hold in memory.
//!
//! Each body has its own bound; many slow ones at once would still add up. Requests and answers
//! have a room each, so that neither can starve the other, and a tenant has at most half of it
//! beside its first body, so that who takes long with many leaves room for everyone else. A body
//! takes room as it comes in and gives it back when its last byte is dropped, wherever it went.
//! Small bodies are not counted: their number is bounded already, and counting would cost every
//! request.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Bodies up to this size are not counted.
const UNCOUNTED_BYTES: u64 = 16 << 10;

/// The room that there is.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicU64,
    most: u64,
    /// What each tenant has of it, by a hash: two tenants that share one share its half.
    tenants: Mutex<HashMap<u64, u64>>,
    hasher: RandomState,
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(most: u64) -> Arc<Self> {
        let tenants = Mutex::default();
        Arc::new(Self { taken: AtomicU64::new(0), most, tenants, hasher: RandomState::new() })
    }

    /// Whether nothing more of a tenant fits.
    pub(super) fn is_full(&self, tenant: &str) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken.saturating_add(UNCOUNTED_BYTES) > self.most {
            return true;
        }
        let over_half = |bytes: u64| bytes.saturating_add(UNCOUNTED_BYTES) > self.most / 2;
        // Nobody has more than all have together.
        over_half(taken) && over_half(self.has(self.hasher.hash_one(tenant)))
    }

    fn has(&self, tenant: u64) -> u64 {
        self.tenants().get(&tenant).copied().unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes room for a body of a tenant that has `own` already.
    fn take(&self, tenant: u64, own: u64, bytes: u64) -> bool {
        let mut tenants = self.tenants();
        let has = tenants.get(&tenant).copied().unwrap_or_default();
        if has != own && has.saturating_add(bytes) > self.most / 2 {
            return false;
        }
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        let fits = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if fits {
            tenants.insert(tenant, has + bytes);
        }
        fits
    }

    fn give_back(&self, tenant: u64, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        let mut tenants = self.tenants();
        if let Some(has) = tenants.get_mut(&tenant) {
            *has = has.saturating_sub(bytes);
            if *has == 0 {
                tenants.remove(&tenant);
            }
        }
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one body takes of the room. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    tenant: u64,
    read: u64,
    taken: u64,
}

impl Share {
    /// Nothing yet, for a body of this tenant.
    pub(super) fn of(room: &Arc<Room>, tenant: &str) -> Self {
        let tenant = room.hasher.hash_one(tenant);
        Self { room: room.clone(), tenant, read: 0, taken: 0 }
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
        let fits = bytes <= UNCOUNTED_BYTES || self.room.take(self.tenant, self.taken, bytes);
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
        let fits = self.room.take(self.tenant, self.taken, more);
        if fits {
            self.taken = self.read;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.room.give_back(self.tenant, self.taken);
        }
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
        let mut first = Share::of(&room, "a");
        assert!(first.grow(60_000));
        let mut second = Share::of(&room, "b");
        assert!(second.grow(UNCOUNTED_BYTES), "small ones are not counted");
        assert!(!second.grow(60_000));
        let body = first.hold(Bytes::from(vec![0; 60_000]));
        let part = body.slice(..10);
        drop(body);
        assert!(!Share::of(&room, "b").grow(60_000), "a part of it still lives");
        drop(part);
        assert!(Share::of(&room, "b").grow(60_000));
        assert_eq!(room.taken(), 0);
        assert!(room.tenants().is_empty());
    }

    #[test]
    fn what_was_reserved_is_not_taken_twice() {
        let room = Room::new(100_000);
        let mut share = Share::of(&room, "a");
        assert!(share.reserve(90_000) && room.is_full("b"));
        assert!((0..9).all(|_| share.grow(10_000)));
        assert!(!share.grow(20_000));
        drop(share);
        assert!(!room.is_full("b"));
    }

    #[test]
    fn a_tenant_has_half_of_the_room_beside_its_first_body() {
        let room = Room::new(400_000);
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut share = Share::of(&room, "noisy");
            let fits = share.grow(60_000);
            held.push(share);
            assert_eq!(fits, held.len() <= 3, "{}", held.len());
        }
        assert_eq!(room.taken(), 180_000);
        let mut pieces = Share::of(&room, "pieces");
        assert!(pieces.grow(100_000) && pieces.grow(120_000), "its first may have more");
        assert!(!Share::of(&room, "pieces").grow(20_000));
        drop(pieces);
        let mut other = Share::of(&room, "other");
        assert!(!room.is_full("other") && other.grow(150_000));
        assert!(!room.is_full("other"), "it has less than its half");
        let mut more = Share::of(&room, "noisy");
        assert!(more.grow(20_000) && room.is_full("noisy") && !room.is_full("third"));
        held.clear();
        assert!(!room.is_full("noisy"));
    }
}
