//! Checkpoints: moving what was committed from the write-ahead log into the database file.
//!
//! Rule: the writer is not kept waiting for it. A thread of its own copies most of the log while
//! the writer goes on appending; once little is left, the writer finishes the rest between two
//! groups and the log starts again at its beginning, because overwriting a file is far cheaper to
//! sync than growing it. Only a log that outgrows its bound is copied by the writer itself. The log
//! is cut to nothing at the end, and where something was erased: then nobody may keep reading it.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::notices::{Matter, Notices};
use super::open::BUSY_TIMEOUT;
use super::reach::{self, Note, Synced};
use super::wal;
use crate::points::{Point, reach as at};

/// Pages in the log from which on the thread copies: 32 MiB.
const COPY_FROM_PAGES: u32 = 8_192;
/// Pages left uncopied that the writer finishes by itself: a few milliseconds.
const FINISH_PAGES: u32 = 256;
/// Pages in the log at which the writer copies whatever is there: 56 MiB, so that it stays below 64
/// with what one more transaction brings.
const BOUND_PAGES: u32 = 14_336;
/// How long the writer waits for readers to leave the log: many times what a read takes.
const READERS_TIMEOUT: Duration = Duration::from_millis(25);
/// How long the writer waits for a copy of all that the log may have, so that it does not outgrow
/// its bound meanwhile.
const COPY_WITHIN: Duration = Duration::from_secs(5);
/// How long it goes on before it waits for them again.
const READERS_AGAIN: Duration = Duration::from_millis(250);

/// What the writer and the keeper know of the log.
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
    /// Told when the thread has copied.
    ended: Condvar,
    /// The file, to look at its header.
    file: OnceLock<File>,
    taken: Mutex<Option<Taken>>,
    /// When readers kept the log from starting again.
    refused: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Orders {
    copy: bool,
    stop: bool,
}

/// What the keeper is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Copy,
    Look,
    Stop,
}

/// What the database had reached at a commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) commit: u64,
    pub(super) note: Note,
}

impl Log {
    /// Lets the log's header be looked at.
    pub(super) fn look_at(&self, file: File) {
        // There is one log for as long as the store is open.
        let _ = self.file.set(file);
    }

    /// Counts the log's pages on a writing connection; switches SQLite's own checkpoints off.
    pub(super) fn count_pages(self: &Arc<Self>, writer: &mut Connection) -> rusqlite::Result<()> {
        let log = self.clone();
        writer.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            let pages = u32::try_from(pages).unwrap_or(0);
            if log.pages.swap(pages, Ordering::Relaxed) >= pages {
                // It has started again.
                log.copied.store(0, Ordering::Release);
            }
            Ok(())
        }))
    }

    /// Called by the writer between two groups.
    pub(super) fn tend(&self, writer: &Connection, notices: &Notices) -> rusqlite::Result<()> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < COPY_FROM_PAGES {
            // It has started again, by whatever way.
            notices.settle(Matter::Length);
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
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.is_some_and(|last| last.elapsed() < READERS_AGAIN) {
            return Ok(());
        }
        // One copies at a time: whoever comes second is sent away at once.
        self.wait_for_copy();
        self.copied.store(0, Ordering::Release);
        let finished = checkpoint(writer, "RESTART", READERS_TIMEOUT)?;
        let by_readers = !finished.whole && !self.copying.load(Ordering::Acquire);
        *refused = by_readers.then(Instant::now);
        if finished.whole {
            notices.settle(Matter::Length);
        } else if by_readers && pages >= BOUND_PAGES {
            // It goes on growing until the next try.
            let mib = u64::from(pages) * 4 / 1_024;
            notices.say(
                Matter::Length,
                format!(
                    "the write-ahead log has {} MiB and grows: someone has been reading the \
                     database for long; look for other programs that have it open",
                    mib / 16 * 16
                ),
            );
        }
        Ok(())
    }

    /// Called by the writer between two groups: notes what the database has reached at the last
    /// commit, to be written down once that is on the disk.
    pub(super) fn take(&self, writer: &Connection, commit: u64) -> rusqlite::Result<()> {
        let Some(reached) = reach::reached(writer)? else { return Ok(()) };
        let frames = self.pages.load(Ordering::Relaxed);
        let salts = self.file.get().and_then(|file| wal::committed(file, frames));
        let synced = salts.map(|salts| Synced { salts, frames });
        *self.locked() = Some(Taken { commit, note: Note { reached, synced, ..Note::default() } });
        Ok(())
    }

    /// What was taken last, once it is on the disk.
    pub(super) fn taken(&self, durable: u64) -> Option<Taken> {
        self.locked().filter(|taken| taken.commit <= durable)
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.order(|orders| orders.stop = true);
    }

    /// Waits for an order; for none longer than this.
    pub(super) fn next(&self, longest: Duration) -> Order {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |orders: &mut Orders| !orders.copy && !orders.stop;
        let waited = self.ordered.wait_timeout_while(orders, longest, waits);
        let (mut orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if orders.stop {
            return Order::Stop;
        }
        if std::mem::take(&mut orders.copy) { Order::Copy } else { Order::Look }
    }

    /// Copies what can be copied without waiting for anybody, for the writer.
    pub(super) fn copy(&self, copier: &Connection) {
        // A copy that failed is tried again; the writer meets the same error at the bound.
        let copied = checkpoint(copier, "PASSIVE", Duration::ZERO).map_or(0, |done| done.copied);
        self.copied.store(copied, Ordering::Release);
        self.copy_ended();
    }

    /// The same, when nothing comes. Says whether all of the log is in the database. The log keeps
    /// its length: the next commit starts it again at its beginning.
    pub(super) fn copy_all(&self, copier: &Connection) -> bool {
        self.copying.store(true, Ordering::Release);
        let done = checkpoint(copier, "PASSIVE", Duration::ZERO);
        self.copy_ended();
        done.is_ok_and(|done| done.whole)
    }

    fn copy_ended(&self) {
        // Under the lock, or whoever is about to wait would not hear it.
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        self.copying.store(false, Ordering::Release);
        drop(orders);
        self.ended.notify_all();
    }

    fn wait_for_copy(&self) {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let copying = |orders: &mut Orders| !orders.stop && self.copying.load(Ordering::Acquire);
        // A thread that has ended meanwhile copies no more.
        let _ = self.ended.wait_timeout_while(orders, COPY_WITHIN, copying);
    }

    fn locked(&self) -> MutexGuard<'_, Option<Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.ordered.notify_one();
    }
}

/// Copies the whole log into the database and cuts it to nothing. Waits for readers so long; says
/// whether it is done.
pub(super) fn fold(writer: &Connection, patience: Duration) -> rusqlite::Result<bool> {
    at(Point::BeforeFold);
    let done = checkpoint(writer, "TRUNCATE", patience)?;
    at(Point::AfterFold);
    Ok(done.whole)
}

/// What a checkpoint came to.
struct Done {
    /// Whether nobody was in its way, and everything was copied.
    whole: bool,
    copied: u32,
}

fn checkpoint(connection: &Connection, mode: &str, patience: Duration) -> rusqlite::Result<Done> {
    connection.busy_timeout(patience)?;
    let question = format!("PRAGMA wal_checkpoint({mode})");
    let done = connection.query_row(&question, [], |row| {
        let (busy, pages): (i64, i64) = (row.get(0)?, row.get(1)?);
        let copied: i64 = row.get(2)?;
        Ok(Done { whole: busy == 0 && pages == copied, copied: u32::try_from(copied).unwrap_or(0) })
    });
    connection.busy_timeout(BUSY_TIMEOUT)?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_a_log_that_is_short_again_is_no_matter_any_more() {
        let (log, notices) = (Log::default(), Notices::default());
        notices.say(Matter::Length, "it grows".into());
        log.tend(&Connection::open_in_memory().unwrap(), &notices).unwrap();
        assert!(notices.standing().warnings.is_empty());
    }
}
