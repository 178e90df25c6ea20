//! Lock-out: a right token is always served, wrong ones are slowed down and then turned away.
//!
//! Counted per peer address; IPv6 by its /64, which is what one machine gets. Others may sit behind
//! the same address, all operators behind one proxy say, so nothing that a guesser does is held
//! against who shows a right token. That leaves the token itself to withstand guessing, which is
//! why a short one is warned of. Memory is bounded: when it is full, the address that failed
//! longest ago is forgotten. Time is an argument.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// Wrong tokens of an address within [`WINDOW`] before each further one is turned away.
pub(crate) const FAILURES_MAX: usize = 10;
/// How long a wrong token counts.
const WINDOW: Duration = Duration::from_secs(900);
/// How long who shows a wrong token waits for the answer.
const HELD_FOR: Duration = Duration::from_millis(500);
/// How many of an address are held side by side; further ones wait for their turn.
const HELD_MAX: usize = 4;
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 10_000;

/// What becomes of who showed a wrong token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It was held, and is told that the token is wrong.
    Wrong,
    /// Too many wrong ones came from there: it may guess again after so long.
    LockedOut(Duration),
}

/// Wrong tokens by address.
#[derive(Debug)]
pub(crate) struct Lockouts {
    known: Mutex<HashMap<IpAddr, Failures>>,
    held_for: Duration,
}

impl Default for Lockouts {
    fn default() -> Self {
        Self { known: Mutex::default(), held_for: HELD_FOR }
    }
}

#[derive(Debug)]
struct Failures {
    /// When wrong tokens came, the oldest first.
    at: VecDeque<Instant>,
    holds: Arc<Semaphore>,
}

impl Lockouts {
    /// Counts a wrong token, and holds who showed it. Never called for a right one, which is found
    /// out first and takes as long for every token.
    pub(crate) async fn refuse(&self, peer: IpAddr, now: Instant) -> Refused {
        let holds = match self.failed(bucket(peer), now) {
            Ok(holds) => holds,
            Err(wait) => return Refused::LockedOut(wait),
        };
        // At most `FAILURES_MAX` wait here for an address: the next ones are turned away above.
        let place = holds.acquire().await;
        tokio::time::sleep(self.held_for).await;
        drop(place);
        Refused::Wrong
    }

    /// Where to be held, or how long the address is locked out.
    fn failed(&self, peer: IpAddr, now: Instant) -> Result<Arc<Semaphore>, Duration> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&peer) && known.len() >= ADDRESSES_MAX {
            make_room(&mut known, now);
        }
        let fresh = || Failures { at: VecDeque::new(), holds: Arc::new(Semaphore::new(HELD_MAX)) };
        let failures = known.entry(peer).or_insert_with(fresh);
        while failures.at.front().is_some_and(|at| now.saturating_duration_since(*at) >= WINDOW) {
            failures.at.pop_front();
        }
        match failures.at.front() {
            // Those who are turned away don't count: the wait that was told stays true.
            Some(oldest) if failures.at.len() >= FAILURES_MAX => {
                Err(WINDOW.saturating_sub(now.saturating_duration_since(*oldest)))
            }
            _ => {
                failures.at.push_back(now);
                Ok(failures.holds.clone())
            }
        }
    }
}

/// Forgets who has not failed for long, and if that is nobody, who failed longest ago.
fn make_room(known: &mut HashMap<IpAddr, Failures>, now: Instant) {
    let counts = |failures: &Failures| {
        failures.at.back().is_some_and(|last| now.saturating_duration_since(*last) < WINDOW)
    };
    known.retain(|_, failures| counts(failures));
    let oldest = known.iter().min_by_key(|(_, failures)| failures.at.back());
    if known.len() >= ADDRESSES_MAX
        && let Some(oldest) = oldest.map(|(peer, _)| *peer)
    {
        known.remove(&oldest);
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
    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn holding(held_for: Duration) -> Lockouts {
        Lockouts { held_for, ..Lockouts::default() }
    }

    #[tokio::test]
    async fn m3_wrong_tokens_are_held_four_at_a_time_and_then_turned_away_at_once() {
        let held_for = Duration::from_millis(50);
        let lockouts = holding(held_for);
        let (peer, now) = (address(1), Instant::now());
        let wrong = join_all((0..FAILURES_MAX).map(|_| async {
            let refused = lockouts.refuse(peer, now).await;
            (refused, now.elapsed())
        }));
        for (place, (refused, took)) in wrong.await.into_iter().enumerate() {
            assert_eq!(refused, Refused::Wrong);
            let turns = u32::try_from(place / HELD_MAX + 1).unwrap();
            assert!(took >= held_for * turns, "the {place}. one was held for {took:?}");
        }
        let later = now + Duration::from_secs(60);
        for _ in 0..100 {
            let refused = lockouts.refuse(peer, later).now_or_never();
            assert_eq!(refused, Some(Refused::LockedOut(WINDOW - Duration::from_secs(60))));
        }
        assert_eq!(lockouts.refuse(address(2), later).await, Refused::Wrong);
        assert_eq!(lockouts.refuse(peer, now + WINDOW).await, Refused::Wrong);
    }

    #[tokio::test]
    async fn m3_wrong_tokens_count_for_fifteen_minutes_each() {
        let lockouts = holding(Duration::ZERO);
        let (peer, start) = (address(1), Instant::now());
        let minute = Duration::from_secs(60);
        for n in 0..10 {
            assert_eq!(lockouts.refuse(peer, start + minute * n).await, Refused::Wrong);
        }
        let locked = lockouts.refuse(peer, start + minute * 10).await;
        assert_eq!(locked, Refused::LockedOut(minute * 5));
        // The first one counts no more: one guess, and the second one is the oldest.
        assert_eq!(lockouts.refuse(peer, start + minute * 15).await, Refused::Wrong);
        let locked = lockouts.refuse(peer, start + minute * 15).await;
        assert_eq!(locked, Refused::LockedOut(minute));
    }

    #[tokio::test]
    async fn neighbours_of_a_64_are_one() {
        let lockouts = holding(Duration::ZERO);
        let now = Instant::now();
        let (one, other) = ("2001:db8::1".parse().unwrap(), "2001:db8::ffff".parse().unwrap());
        for _ in 0..FAILURES_MAX {
            assert_eq!(lockouts.refuse(one, now).await, Refused::Wrong);
        }
        assert_eq!(lockouts.refuse(other, now).await, Refused::LockedOut(WINDOW));
    }

    #[test]
    fn memory_is_bounded() {
        let lockouts = Lockouts::default();
        let now = Instant::now();
        for n in 0..=u32::try_from(ADDRESSES_MAX).unwrap() {
            lockouts.failed(address(n), now + Duration::from_millis(n.into())).unwrap();
        }
        let known = lockouts.known.lock().unwrap();
        assert_eq!(known.len(), ADDRESSES_MAX);
        assert!(!known.contains_key(&address(0)));
        assert!(known.values().all(|failures| failures.at.len() <= FAILURES_MAX));
    }
}
