//! Checkpoints: moving what was committed from the write-ahead log into the database file.
//!
//! Rule: the writer is not kept waiting for it. A thread of its own copies most of the log while
//! the writer goes on appending; once little is left, the writer finishes the rest between two
//! groups and the log starts again at its beginning, because overwriting a file is far cheaper to
//! sync than growing it. Only a log that outgrows its bound is copied by the writer itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

/// Pages in the log from which on the thread copies: 64 MiB.
const COPY_FROM_PAGES: u32 = 16_384;
/// Pages left uncopied that the writer finishes by itself: a few milliseconds.
const FINISH_PAGES: u32 = 256;
/// Pages in the log at which the writer copies whatever is there: 256 MiB.
const BOUND_PAGES: u32 = 65_536;
/// How long the writer waits for readers to leave the log: many times what a read takes.
const READERS_TIMEOUT: Duration = Duration::from_millis(25);

/// What the writer and the copying thread know of the log.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Pages in it after the last commit.
    pages: AtomicU32,
    /// Pages of it that are in the database file.
    copied: AtomicU32,
    /// Whether the thread is at work.
    copying: AtomicBool,
    orders: Mutex<Orders>,
    ordered: Condvar,
}

#[derive(Debug, Default)]
struct Orders {
    copy: bool,
    stop: bool,
}

impl Log {
    /// Counts the log's pages on a writing connection; switches SQLite's own checkpoints off.
    pub(super) fn count_pages(self: &Arc<Self>, writer: &mut Connection) -> rusqlite::Result<()> {
        let log = self.clone();
        writer.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            log.pages.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Called by the writer between two groups.
    pub(super) fn tend(&self, writer: &Connection) -> rusqlite::Result<()> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < COPY_FROM_PAGES {
            return Ok(());
        }
        if pages < BOUND_PAGES {
            if self.copying.load(Ordering::Acquire) {
                return Ok(());
            }
            let copied = self.copied.load(Ordering::Acquire);
            if copied == 0 || pages.saturating_sub(copied) > FINISH_PAGES {
                self.copying.store(true, Ordering::Release);
                self.order(|orders| orders.copy = true);
                return Ok(());
            }
        }
        self.copied.store(0, Ordering::Release);
        let usual = Duration::from_secs(5);
        writer.busy_timeout(READERS_TIMEOUT)?;
        // When readers stay, the log just goes on growing until the next try.
        let finished = writer.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
        writer.busy_timeout(usual)?;
        finished
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.order(|orders| orders.stop = true);
    }

    /// The thread: copies when it is told to.
    pub(super) fn run(&self, connection: &Connection) {
        while self.wait() {
            let question = "PRAGMA wal_checkpoint(PASSIVE)";
            let copied = connection.query_row(question, [], |row| row.get::<_, i64>(2));
            // A copy that failed is tried again; the writer meets the same error at the bound.
            let copied = copied.ok().and_then(|pages| u32::try_from(pages).ok()).unwrap_or(0);
            self.copied.store(copied, Ordering::Release);
            self.copying.store(false, Ordering::Release);
        }
    }

    fn wait(&self) -> bool {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        while !orders.copy && !orders.stop {
            orders = self.ordered.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
        orders.copy = false;
        !orders.stop
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.ordered.notify_one();
    }
}
