//! Room for bodies: what all of them together may hold in memory.
//!
//! Each body has its own bound; many slow ones at once would still add up. Requests, first answers
//! and replays have a room each, so that none can starve the others: who asks for many replays and
//! takes none of them must not keep new requests from running. Of each a tenant has at most half
//! beside its first body, and a caller of many in it three quarters of that, so that who takes long
//! leaves room for everyone else. A body takes room as it comes in and gives it back when its last
//! byte is dropped, wherever it went.
//! Small bodies are not counted: their number is bounded already, and counting would cost every
//! request.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use onceward_core::audit::Trace;
use onceward_core::key::Key;

/// Bodies up to this size are not counted.
const UNCOUNTED_BYTES: u64 = 16 << 10;

/// Whose a body is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose<'w> {
    tenant: &'w str,
    /// None where nobody else shares the tenant, or nobody knows.
    caller: Option<&'w str>,
}

impl<'w> Whose<'w> {
    /// A tenant's, whoever asks for it.
    pub(super) fn tenant(tenant: &'w str) -> Self {
        Self { tenant, caller: None }
    }

    /// That of the one who made a claim.
    pub(super) fn of(key: &'w Key, trace: &'w Trace) -> Self {
        let tenant = key.tenant_column();
        Self { tenant, caller: trace.actor.as_deref().filter(|caller| *caller != tenant) }
    }
}

/// A tenant, or a caller of one, by a hash: two that share one share what they may have.
type Holder = u64;

/// Who has a part in a body, and what each may have.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    tenant: (Holder, u64),
    caller: Option<(Holder, u64)>,
}

impl Bounds {
    fn each(self) -> impl Iterator<Item = (Holder, u64)> {
        [Some(self.tenant), self.caller].into_iter().flatten()
    }
}

/// The room that there is.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicU64,
    most: u64,
    /// What each tenant has of it, and each caller.
    holders: Mutex<HashMap<Holder, u64>>,
    hasher: RandomState,
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(most: u64) -> Arc<Self> {
        let holders = Mutex::default();
        Arc::new(Self { taken: AtomicU64::new(0), most, holders, hasher: RandomState::new() })
    }

    /// Whether nothing more of theirs fits.
    pub(super) fn is_full(&self, whose: Whose<'_>) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        let over = |bytes: u64, most: u64| bytes.saturating_add(UNCOUNTED_BYTES) > most;
        // Nobody has more than all have together.
        over(taken, self.most)
            || over(taken, self.caller_most()) && {
                let holders = self.holders();
                let has = |holder| holders.get(&holder).copied().unwrap_or_default();
                self.bounds(whose).each().any(|(holder, most)| over(has(holder), most))
            }
    }

    fn tenant_most(&self) -> u64 {
        self.most / 2
    }

    fn caller_most(&self) -> u64 {
        self.tenant_most() / 4 * 3
    }

    fn bounds(&self, whose: Whose<'_>) -> Bounds {
        let holder = |caller| self.hasher.hash_one((whose.tenant, caller));
        let caller = whose.caller.map(|caller| (holder(Some(caller)), self.caller_most()));
        Bounds { tenant: (holder(None), self.tenant_most()), caller }
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes room for a body that has `own` already.
    fn take(&self, bounds: Bounds, own: u64, bytes: u64) -> bool {
        let mut holders = self.holders();
        let has = |holder| holders.get(&holder).copied().unwrap_or_default();
        let over = |(holder, most)| has(holder) != own && has(holder).saturating_add(bytes) > most;
        if bounds.each().any(over) {
            return false;
        }
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        let fits = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if fits {
            for (holder, _) in bounds.each() {
                *holders.entry(holder).or_default() += bytes;
            }
        }
        fits
    }

    fn give_back(&self, bounds: Bounds, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        let mut holders = self.holders();
        for (holder, _) in bounds.each() {
            let Some(has) = holders.get_mut(&holder) else { continue };
            *has = has.saturating_sub(bytes);
            if *has == 0 {
                holders.remove(&holder);
            }
        }
    }

    fn holders(&self) -> MutexGuard<'_, HashMap<Holder, u64>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one body takes of the room. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: Arc<Room>,
    bounds: Bounds,
    read: u64,
    taken: u64,
}

impl Share {
    /// Nothing yet, for a body of theirs.
    pub(super) fn of(room: &Arc<Room>, whose: Whose<'_>) -> Self {
        Self { room: room.clone(), bounds: room.bounds(whose), read: 0, taken: 0 }
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
        let fits = bytes <= UNCOUNTED_BYTES || self.room.take(self.bounds, self.taken, bytes);
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
        let fits = self.room.take(self.bounds, self.taken, more);
        if fits {
            self.taken = self.read;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.room.give_back(self.bounds, self.taken);
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

    fn of(tenant: &str) -> Whose<'_> {
        Whose::tenant(tenant)
    }

    #[test]
    fn room_is_given_back_with_the_last_byte() {
        let room = Room::new(100_000);
        let mut first = Share::of(&room, of("a"));
        assert!(first.grow(60_000));
        let mut second = Share::of(&room, of("b"));
        assert!(second.grow(UNCOUNTED_BYTES), "small ones are not counted");
        assert!(!second.grow(60_000));
        let body = first.hold(Bytes::from(vec![0; 60_000]));
        let part = body.slice(..10);
        drop(body);
        assert!(!Share::of(&room, of("b")).grow(60_000), "a part of it still lives");
        drop(part);
        assert!(Share::of(&room, of("b")).grow(60_000));
        assert_eq!(room.taken(), 0);
        assert!(room.holders().is_empty());
    }

    #[test]
    fn what_was_reserved_is_not_taken_twice() {
        let room = Room::new(100_000);
        let mut share = Share::of(&room, of("a"));
        assert!(share.reserve(90_000) && room.is_full(of("b")));
        assert!((0..9).all(|_| share.grow(10_000)));
        assert!(!share.grow(20_000));
        drop(share);
        assert!(!room.is_full(of("b")));
    }

    #[test]
    fn a_tenant_has_half_of_the_room_beside_its_first_body() {
        let room = Room::new(400_000);
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut share = Share::of(&room, of("noisy"));
            let fits = share.grow(60_000);
            held.push(share);
            assert_eq!(fits, held.len() <= 3, "{}", held.len());
        }
        assert_eq!(room.taken(), 180_000);
        let mut pieces = Share::of(&room, of("pieces"));
        assert!(pieces.grow(100_000) && pieces.grow(120_000), "its first may have more");
        assert!(!Share::of(&room, of("pieces")).grow(20_000));
        drop(pieces);
        let mut other = Share::of(&room, of("other"));
        assert!(!room.is_full(of("other")) && other.grow(150_000));
        assert!(!room.is_full(of("other")), "it has less than its half");
        let mut more = Share::of(&room, of("noisy"));
        assert!(more.grow(20_000) && room.is_full(of("noisy")) && !room.is_full(of("third")));
        held.clear();
        assert!(!room.is_full(of("noisy")));
    }

    #[test]
    fn a_caller_leaves_room_for_others_of_its_tenant() {
        let room = Room::new(800_000);
        let by = |caller| Whose { tenant: "acme", caller };
        let (ada, bob) = (by(Some("ada")), by(Some("bob")));
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut share = Share::of(&room, ada);
            let fits = share.grow(50_000);
            held.push(share);
            assert_eq!(fits, held.len() <= 6, "{}", held.len());
        }
        assert!(room.is_full(ada) && !room.is_full(bob) && !room.is_full(by(None)));
        let mut other = Share::of(&room, bob);
        assert!(other.grow(100_000) && room.is_full(bob), "the tenant has its half");
        assert!(!room.is_full(of("globex")));
        held.clear();
        assert!(!room.is_full(ada) && !room.is_full(bob));
        drop(other);
        assert!(room.holders().is_empty());
    }
}
