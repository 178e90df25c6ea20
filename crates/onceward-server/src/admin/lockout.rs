//! Lock-out: who shows wrong tokens again and again has to wait, longer each time.
//!
//! Counted per peer address; IPv6 by its /64, which is what one machine gets. Others may sit behind
//! the same address: a token that was right from there before is served all the while, and others
//! are looked at a few times per lock-out, so that whoever has a right one gets in and guessing
//! stays slow. A right token forgives nothing: else who has one could guess another's. Memory is
//! bounded: when it is full, the address that failed longest ago is forgotten, and tokens have to
//! prove themselves anew. Time is an argument.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong tokens before the first lock-out.
pub(crate) const FAILURES_MAX: u32 = 10;
/// Wrong tokens before each further one.
const FAILURES_AGAIN_MAX: u32 = 5;
/// The first lock-out; each further one is twice as long.
const FIRST: Duration = Duration::from_secs(5);
/// The longest lock-out.
const LONGEST: Duration = Duration::from_secs(300);
/// Unproven tokens that are looked at during one lock-out, evenly spread, the first at once.
const LOOKS: u32 = 10;
/// After this long without a failure an address starts anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(900);
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 10_000;
/// Tokens that are remembered with the address from which they were right.
const PROVEN_MAX: usize = 10_000;

/// What becomes of who showed a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The token is right.
    Right,
    /// It is wrong.
    Wrong,
    /// Too many wrong ones came from there: so long has it to wait.
    Wait(Duration),
}

/// Failures by address, and which tokens were right from where.
#[derive(Debug, Default)]
pub(crate) struct Lockouts(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    failures: HashMap<IpAddr, Failures>,
    proven: HashSet<(IpAddr, [u8; 32])>,
}

#[derive(Debug, Clone, Copy)]
struct Failures {
    left: u32,
    lockouts: u32,
    last: Instant,
    lockout: Option<Lockout>,
}

#[derive(Debug, Clone, Copy)]
struct Lockout {
    until: Instant,
    next_look: Instant,
    pause: Duration,
}

impl Lockouts {
    /// Judges a token from this address. `right` is its hash when it is one of ours: that is found
    /// out first, and takes as long for every token.
    pub(crate) fn judge(&self, peer: IpAddr, right: Option<&[u8; 32]>, now: Instant) -> Judged {
        let peer = bucket(peer);
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if right.is_some_and(|hash| seen.proven.contains(&(peer, *hash))) {
            return Judged::Right;
        }
        let mut wait = None;
        if let Some(lockout) = seen.failures.get_mut(&peer).and_then(|found| found.lockout.as_mut())
            && now < lockout.until
        {
            wait = Some(lockout.until - now);
            if now < lockout.next_look {
                return Judged::Wait(lockout.until - now);
            }
            lockout.next_look = now + lockout.pause;
        }
        match (right, wait) {
            (Some(hash), _) => {
                seen.prove(peer, *hash);
                Judged::Right
            }
            (None, wait) => {
                seen.failed(peer, now);
                wait.map_or(Judged::Wrong, Judged::Wait)
            }
        }
    }
}

impl Seen {
    fn prove(&mut self, peer: IpAddr, hash: [u8; 32]) {
        if self.proven.len() >= PROVEN_MAX {
            self.proven.clear();
        }
        self.proven.insert((peer, hash));
    }

    fn failed(&mut self, peer: IpAddr, now: Instant) {
        if !self.failures.contains_key(&peer) && self.failures.len() >= ADDRESSES_MAX {
            self.make_room(now);
        }
        let fresh = Failures { left: FAILURES_MAX, lockouts: 0, last: now, lockout: None };
        let failures = self.failures.entry(peer).or_insert(fresh);
        if now.saturating_duration_since(failures.last) >= FORGOTTEN_AFTER {
            *failures = fresh;
        }
        failures.last = now;
        failures.left -= 1;
        if failures.left == 0 {
            let wait = FIRST.saturating_mul(1 << failures.lockouts.min(16)).min(LONGEST);
            let (until, pause) = (now + wait, wait / LOOKS);
            // Who is there with a right token for the first time need not wait for the guesser.
            let next_look = if failures.lockout.is_some() { now + pause } else { now };
            failures.lockout = Some(Lockout { until, next_look, pause });
            failures.lockouts += 1;
            failures.left = FAILURES_AGAIN_MAX;
        }
    }

    fn make_room(&mut self, now: Instant) {
        let since = |failures: &Failures| now.saturating_duration_since(failures.last);
        self.failures.retain(|_, failures| since(failures) < FORGOTTEN_AFTER);
        let oldest = self.failures.iter().min_by_key(|(_, failures)| failures.last);
        if self.failures.len() >= ADDRESSES_MAX
            && let Some(oldest) = oldest.map(|(peer, _)| *peer)
        {
            self.failures.remove(&oldest);
        }
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

    const OURS: Option<&[u8; 32]> = Some(&[1; 32]);
    const ANOTHER: Option<&[u8; 32]> = Some(&[2; 32]);

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn repeated_failures_lock_an_address_out_longer_each_time() {
        let lockouts = Lockouts::default();
        let (peer, start) = (address(1), Instant::now());
        for _ in 0..FAILURES_MAX {
            assert_eq!(lockouts.judge(peer, None, start), Judged::Wrong);
        }
        // This one was looked at, the next is not: even a right one has to wait.
        assert_eq!(lockouts.judge(peer, None, start), Judged::Wait(FIRST));
        assert_eq!(lockouts.judge(peer, OURS, start), Judged::Wait(FIRST));
        assert_eq!(lockouts.judge(address(2), None, start), Judged::Wrong);
        let later = start + FIRST;
        for _ in 1..FAILURES_AGAIN_MAX {
            assert_eq!(lockouts.judge(peer, None, later), Judged::Wrong);
        }
        assert_eq!(lockouts.judge(peer, None, later), Judged::Wait(FIRST * 2));
        let forgotten = later + FORGOTTEN_AFTER;
        assert_eq!(lockouts.judge(peer, None, forgotten), Judged::Wrong);
    }

    #[test]
    fn a_right_token_is_served_behind_a_locked_out_address_and_forgives_nothing() {
        let lockouts = Lockouts::default();
        let (peer, now) = (address(1), Instant::now());
        assert_eq!(lockouts.judge(peer, OURS, now), Judged::Right);
        for _ in 0..FAILURES_MAX {
            assert_eq!(lockouts.judge(peer, None, now), Judged::Wrong);
            assert_eq!(lockouts.judge(peer, OURS, now), Judged::Right);
        }
        // One that was never seen there is looked at too, but not time after time.
        assert_eq!(lockouts.judge(peer, ANOTHER, now), Judged::Right);
        assert_eq!(lockouts.judge(peer, None, now), Judged::Wait(FIRST));
        assert_eq!(lockouts.judge(peer, OURS, now), Judged::Right);
        let times = (1..5_000).map(|ms: u32| (ms, now + Duration::from_millis(ms.into())));
        let looked = times.filter(|(ms, at)| {
            let mut never_seen = [0; 32];
            never_seen[..4].copy_from_slice(&ms.to_be_bytes());
            lockouts.judge(peer, Some(&never_seen), *at) == Judged::Right
        });
        assert_eq!(looked.count(), LOOKS as usize - 1);
    }

    #[test]
    fn neighbours_of_a_64_are_one() {
        let lockouts = Lockouts::default();
        let now = Instant::now();
        let (one, other) = ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        for _ in 0..=FAILURES_MAX {
            lockouts.judge(one, None, now);
        }
        assert_eq!(lockouts.judge(other, None, now), Judged::Wait(FIRST));
    }

    #[test]
    fn memory_is_bounded() {
        let lockouts = Lockouts::default();
        let now = Instant::now();
        for n in 0..=u32::try_from(ADDRESSES_MAX).unwrap() {
            lockouts.judge(address(n), None, now + Duration::from_millis(n.into()));
            lockouts.judge(address(n), OURS, now);
        }
        let seen = lockouts.0.lock().unwrap();
        assert_eq!(seen.failures.len(), ADDRESSES_MAX);
        assert!(!seen.failures.contains_key(&address(0)));
        assert!(seen.proven.len() <= PROVEN_MAX);
    }
}
