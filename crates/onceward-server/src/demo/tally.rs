//! The live line: what the traffic tried, and what the engine did about it.
//!
//! Only counters live here. On a terminal one line is rewritten every second; elsewhere a line is
//! written now and then, so that a log shows that the demo lives.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Response;
use onceward::http::Served;
use onceward::worker::{Event, Happened};

/// How often a terminal's line is rewritten.
const REWRITE_EVERY: Duration = Duration::from_secs(1);
/// How often a line is written elsewhere.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// What happened so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    ran: AtomicU64,
    replayed: AtomicU64,
    mismatched: AtomicU64,
    stale: AtomicU64,
    refused: AtomicU64,
    jobs: AtomicU64,
    taken_over: AtomicU64,
    killed: AtomicU64,
}

impl Tally {
    /// An answer that the traffic got.
    pub(super) fn answered<B>(&self, response: &Response<B>) {
        let verdict = response.extensions().get::<Served>().map_or("none", |served| served.verdict);
        let counter = match (verdict, response.status().as_u16()) {
            ("replay", _) => &self.replayed,
            ("idempotency.payload_mismatch", _) => &self.mismatched,
            (_, 412) => &self.stale,
            (_, 400..) => &self.refused,
            ("run", _) => &self.ran,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer of a service whose events are their own keys.
    pub(super) fn command<B>(&self, response: &Response<B>) {
        let counter = match response.status().as_u16() {
            201 => &self.ran,
            200 => &self.replayed,
            409 => &self.stale,
            400.. => &self.refused,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What a worker did.
    pub(super) fn job(&self, event: &Event) {
        match event.happened {
            Happened::Done => self.jobs.fetch_add(1, Ordering::Relaxed),
            Happened::Taken if event.attempt > 1 => self.taken_over.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// A worker died with jobs in its hands.
    pub(super) fn killed(&self) {
        self.killed.fetch_add(1, Ordering::Relaxed);
    }

    fn line(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "ran {} · replayed {} · other payload {} · stale writers {} · refused {} · jobs {} · \
             workers killed {}, jobs taken over {}",
            of(&self.ran),
            of(&self.replayed),
            of(&self.mismatched),
            of(&self.stale),
            of(&self.refused),
            of(&self.jobs),
            of(&self.killed),
            of(&self.taken_over),
        )
    }
}

/// Shows the line for as long as the demo runs.
pub(super) async fn show(tally: Arc<Tally>, rewrites: bool) {
    let every = if rewrites { REWRITE_EVERY } else { LINE_EVERY };
    loop {
        tokio::time::sleep(every).await;
        let line = tally.line();
        let mut out = std::io::stderr().lock();
        // Nobody may be watching.
        let _ = match rewrites {
            true => write!(out, "\r\u{1b}[2K{line}").and_then(|()| out.flush()),
            false => writeln!(out, "{line}"),
        };
    }
}
