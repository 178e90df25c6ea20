//! A lease as its holder sees it: until when it may act, and the future that obeys it.
//!
//! Rule: a handler is not polled once its lease has lapsed or was lost, not even when the process
//! was stopped in between: the end is judged by a clock that counts suspension, before each poll.
//! The lease is counted from before the take was sent, so it ends here before it ends in the store.

use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

use crate::store::clock::boot_ms;

/// Why a handler was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// A renewal was refused: someone else was granted, or it was decided by hand.
    Lost,
    /// The lease is about to run out, or has: a renewal did not come through in time, or the
    /// process stood still.
    Lapsed,
    /// The worker drains and its time was over.
    Drained,
}

impl Cut {
    /// As a phrase.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "its lease was lost to another attempt",
            Self::Lapsed => "its lease ran out",
            Self::Drained => "the worker was told to stop",
        }
    }
}

/// The right to act is over: what is done from here on may be done by someone else too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("attempt with fence {fence} may not go on: {}", .why.as_str())]
pub struct LeaseLost {
    /// The attempt.
    pub fence: u64,
    /// Why.
    pub why: Cut,
}

/// One attempt's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    lease_ms: u64,
    until: AtomicU64,
    cut: OnceLock<Cut>,
    bell: Notify,
}

impl Lease {
    /// A lease that was asked for at `from`, by the boot clock.
    pub(crate) fn new(from: u64, lease_ms: u64) -> Self {
        let until = AtomicU64::new(from.saturating_add(lease_ms));
        Self { lease_ms, until, cut: OnceLock::new(), bell: Notify::new() }
    }

    /// When a renewal is worth sending: a third has passed, well before half of it.
    pub(crate) fn renew_at(&self) -> u64 {
        self.until.load(Ordering::SeqCst).saturating_sub(self.lease_ms - self.lease_ms / 3)
    }

    /// When its holder has to stop: an eighth of it, at most a second, before its end.
    pub(crate) fn stop_at(&self) -> u64 {
        self.until.load(Ordering::SeqCst).saturating_sub((self.lease_ms / 8).min(1_000))
    }

    /// It was renewed by a call that was made at `from`.
    pub(crate) fn renewed(&self, from: u64) {
        self.until.fetch_max(from.saturating_add(self.lease_ms), Ordering::SeqCst);
    }

    /// Ends the right to act; the first reason stays.
    pub(crate) fn end(&self, why: Cut) {
        if self.cut.set(why).is_ok() {
            self.bell.notify_waiters();
        }
    }

    /// Why its holder may not act any more, if so.
    pub(crate) fn over(&self) -> Option<Cut> {
        if let Some(why) = self.cut.get() {
            return Some(*why);
        }
        if boot_ms() >= self.stop_at() {
            self.end(Cut::Lapsed);
            return Some(Cut::Lapsed);
        }
        None
    }

    /// Resolves when the right to act is over.
    pub(crate) async fn ended(&self) -> Cut {
        let bell = self.bell.notified();
        let mut bell = pin!(bell);
        bell.as_mut().enable();
        if let Some(why) = self.over() {
            return why;
        }
        bell.await;
        self.cut.get().copied().unwrap_or(Cut::Lapsed)
    }

    /// Runs `work` for as long as the lease holds.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, Cut> {
        let mut ended = pin!(self.ended());
        let mut work: Pin<&mut _> = pin!(work);
        std::future::poll_fn(move |context| {
            if let Some(why) = self.over() {
                return Poll::Ready(Err(why));
            }
            if let Poll::Ready(why) = ended.as_mut().poll(context) {
                return Poll::Ready(Err(why));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn i07_work_is_not_polled_once_the_lease_is_over() {
        let lease = Lease::new(boot_ms().saturating_sub(10_000), 5_000);
        let polled = AtomicU64::new(0);
        let work = async { polled.fetch_add(1, Ordering::SeqCst) };
        assert_eq!(lease.within(work).await, Err(Cut::Lapsed));
        assert_eq!(polled.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn the_first_reason_stays_and_wakes_the_work() {
        let lease = Lease::new(boot_ms(), 60_000);
        let cut = async {
            lease.end(Cut::Lost);
            lease.end(Cut::Drained);
        };
        let (over, ()) = tokio::join!(lease.within(std::future::pending::<()>()), cut);
        assert_eq!(over, Err(Cut::Lost));
        assert_eq!(lease.over(), Some(Cut::Lost));
    }

    #[test]
    fn a23_it_is_renewed_before_half_of_it_and_ends_before_the_store_ends_it() {
        let lease = Lease::new(1_000, 900);
        assert!(lease.renew_at() < 1_000 + 450);
        assert!(lease.stop_at() < 1_900);
        lease.renewed(1_600);
        assert!(lease.renew_at() >= 1_600 && lease.renew_at() < 1_600 + 450);
        lease.renewed(1_200);
        assert!(lease.stop_at() > 1_600, "an older renewal's answer shortens nothing");
    }
}
