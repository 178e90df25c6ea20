//! Draining: a door that closes takes no new claims and lets those that run come to their end.
//!
//! Closing comes first, cutting later: what still runs then is given up as an attempt without a
//! known outcome. Nothing here waits longer than it is asked to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// How far a door is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    Closing,
    Cut,
}

/// Closes a [`super::Door`]. Clones speak of the same door.
#[derive(Debug, Clone)]
pub struct Drain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    phase: watch::Sender<Phase>,
    running: AtomicUsize,
    /// Changes whenever nothing runs any more.
    quiet: watch::Sender<()>,
}

impl Drain {
    pub(super) fn new() -> Self {
        let (phase, quiet) = (watch::Sender::new(Phase::Open), watch::Sender::new(()));
        Self(Arc::new(Inner { phase, running: AtomicUsize::new(0), quiet }))
    }

    /// No new claims from now on; duplicates that wait stop waiting.
    pub fn close(&self) {
        self.0.phase.send_if_modified(|phase| raise(phase, Phase::Closing));
    }

    /// Gives up what still runs: whether it had its effect is not known.
    pub fn cut(&self) {
        self.0.phase.send_if_modified(|phase| raise(phase, Phase::Cut));
    }

    /// How many requests have claimed, or are about to, and are not at their end.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Waits until nothing runs.
    pub async fn finished(&self) {
        let mut quiet = self.0.quiet.subscribe();
        while self.running() > 0 {
            if quiet.changed().await.is_err() {
                return;
            }
        }
    }

    /// Counts a request in, unless the door closes.
    pub(super) fn enter(&self) -> Option<Entered> {
        // Counted before the look: whoever closes afterwards waits for it.
        self.0.running.fetch_add(1, Ordering::SeqCst);
        let entered = Entered(self.clone());
        (*self.0.phase.borrow() == Phase::Open).then_some(entered)
    }

    /// Resolves once the door closes.
    pub(super) async fn closing(&self) {
        self.reaches(Phase::Closing).await;
    }

    /// Resolves once what runs is given up.
    pub(super) async fn cutting(&self) {
        self.reaches(Phase::Cut).await;
    }

    async fn reaches(&self, wanted: Phase) {
        let mut phase = self.0.phase.subscribe();
        // The sender lives as long as we do: an error can't come.
        let _ = phase.wait_for(|phase| *phase >= wanted).await;
    }
}

fn raise(phase: &mut Phase, to: Phase) -> bool {
    let higher = to > *phase;
    *phase = to.max(*phase);
    higher
}

/// A request that was counted in.
#[derive(Debug)]
pub(super) struct Entered(Drain);

impl Drop for Entered {
    fn drop(&mut self) {
        if self.0.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.0.quiet.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_door_lets_nobody_in_and_waits_for_who_is_inside() {
        let drain = Drain::new();
        let inside = drain.enter().unwrap();
        drain.close();
        assert!(drain.enter().is_none());
        assert_eq!(drain.running(), 1);
        drain.closing().await;
        let waits = drain.clone();
        let finished = tokio::spawn(async move { waits.finished().await });
        drop(inside);
        finished.await.unwrap();
        drain.cut();
        drain.close();
        drain.cutting().await;
        assert!(drain.enter().is_none(), "a cut door does not open again");
    }
}
