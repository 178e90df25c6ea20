//! Lock-out: who shows wrong tokens again and again has to wait, longer each time.
//!
//! Counted per peer address; IPv6 by its /64, which is what one machine gets. Memory is bounded:
//! when it is full, the address that failed longest ago is forgotten. Time is an argument.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wrong tokens in a row before the first lock-out.
pub(crate) const FAILURES_MAX: u32 = 10;
/// Wrong tokens before each further one.
const FAILURES_AGAIN_MAX: u32 = 5;
/// The first lock-out; each further one is twice as long.
const FIRST: Duration = Duration::from_secs(5);
/// The longest lock-out.
const LONGEST: Duration = Duration::from_secs(300);
/// After this long without a failure an address starts anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(900);
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 10_000;

/// Failures by address.
#[derive(Debug, Default)]
pub(crate) struct Lockouts(Mutex<HashMap<IpAddr, Failures>>);

#[derive(Debug, Clone, Copy)]
struct Failures {
    left: u32,
    lockouts: u32,
    last: Instant,
    until: Option<Instant>,
}

impl Lockouts {
    /// How long this address still has to wait, when it has to.
    pub(crate) fn waits(&self, peer: IpAddr, now: Instant) -> Option<Duration> {
        let until = self.locked().get(&bucket(peer))?.until?;
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Notes a wrong token.
    pub(crate) fn failed(&self, peer: IpAddr, now: Instant) {
        let mut addresses = self.locked();
        let peer = bucket(peer);
        if !addresses.contains_key(&peer) && addresses.len() >= ADDRESSES_MAX {
            make_room(&mut addresses, now);
        }
        let fresh = Failures { left: FAILURES_MAX, lockouts: 0, last: now, until: None };
        let failures = addresses.entry(peer).or_insert(fresh);
        if now.saturating_duration_since(failures.last) >= FORGOTTEN_AFTER {
            *failures = fresh;
        }
        failures.last = now;
        failures.left -= 1;
        if failures.left == 0 {
            let wait = FIRST.saturating_mul(1 << failures.lockouts.min(16)).min(LONGEST);
            failures.lockouts += 1;
            failures.until = Some(now + wait);
            failures.left = FAILURES_AGAIN_MAX;
        }
    }

    /// A right token clears the address.
    pub(crate) fn passed(&self, peer: IpAddr) {
        self.locked().remove(&bucket(peer));
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<IpAddr, Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_room(addresses: &mut HashMap<IpAddr, Failures>, now: Instant) {
    let old = |failures: &Failures| now.saturating_duration_since(failures.last) >= FORGOTTEN_AFTER;
    addresses.retain(|_, failures| !old(failures));
    if addresses.len() >= ADDRESSES_MAX
        && let Some(oldest) = addresses.iter().min_by_key(|(_, f)| f.last).map(|(peer, _)| *peer)
    {
        addresses.remove(&oldest);
    }
}

fn bucket(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn repeated_failures_lock_an_address_out_longer_each_time() {
        let lockouts = Lockouts::default();
        let (peer, start) = (address(1), Instant::now());
        for _ in 1..FAILURES_MAX {
            lockouts.failed(peer, start);
        }
        assert_eq!(lockouts.waits(peer, start), None);
        lockouts.failed(peer, start);
        assert_eq!(lockouts.waits(peer, start), Some(FIRST));
        assert_eq!(lockouts.waits(address(2), start), None);
        let later = start + FIRST;
        assert_eq!(lockouts.waits(peer, later), None);
        for _ in 0..FAILURES_AGAIN_MAX {
            lockouts.failed(peer, later);
        }
        assert_eq!(lockouts.waits(peer, later), Some(FIRST * 2));
        lockouts.failed(peer, later + FORGOTTEN_AFTER);
        assert_eq!(lockouts.waits(peer, later + FORGOTTEN_AFTER), None);
    }

    #[test]
    fn a_right_token_clears_and_neighbours_of_a_64_are_one() {
        let lockouts = Lockouts::default();
        let now = Instant::now();
        let (one, other) = ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        for _ in 0..FAILURES_MAX {
            lockouts.failed(one, now);
        }
        assert!(lockouts.waits(other, now).is_some());
        lockouts.passed(other);
        assert_eq!(lockouts.waits(one, now), None);
    }

    #[test]
    fn memory_is_bounded() {
        let lockouts = Lockouts::default();
        let now = Instant::now();
        for n in 0..=u32::try_from(ADDRESSES_MAX).unwrap() {
            lockouts.failed(address(n), now + Duration::from_millis(n.into()));
        }
        assert_eq!(lockouts.locked().len(), ADDRESSES_MAX);
        assert!(!lockouts.locked().contains_key(&address(0)));
    }
}
