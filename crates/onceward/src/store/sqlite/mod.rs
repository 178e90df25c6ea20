//! The embedded store: one SQLite file, one writer thread, a few reader threads.
//!
//! What was answered survives a power loss: each answer waits until the write-ahead log is on the
//! disk (`sync.rs`). After a clean stop all of it is in the one file. The file is locked against a
//! second server, because stamps, instants and the engine's waiters live in one process. Everything
//! that it answers, it answers as the memory store does.

mod anew;
mod apply;
mod check;
mod checkpoint;
mod failure;
mod inbox;
mod inode;
mod keep;
mod known;
mod list;
mod meta;
mod migrate;
mod notices;
mod open;
mod own;
mod places;
mod reach;
mod reader;
mod rows;
mod sql;
mod start;
mod sum;
mod sync;
mod wal;
mod writer;
mod young;

pub use open::Announced;
pub use own::OwnSql;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use onceward_core::batch::{Answer, Batch};
use onceward_core::key::Key;
use onceward_core::stamp::At;
use tokio::sync::{mpsc, oneshot};

use super::clock::{Reading, StoreClock};
use super::{
    Capabilities, Committed, Cursor, Durability, Fact, LeasesAnew, List, Loaded, Page, Read,
    Standing, Store, StoreError, StoreFuture,
};

/// What survives a power loss, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SqliteDurability {
    /// Everything that was answered: each commit is synced.
    #[default]
    Full,
    /// The log is synced only now and then: a power loss may take back the last commits, a crash of
    /// the process none. Shown as `weak (wal-normal)`.
    WalNormal,
}

/// How to open a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteOptions {
    /// What survives a power loss. Default: full.
    pub durability: SqliteDurability,
    /// Threads that read, each with a connection of its own; at least one. Default: 2.
    pub readers: usize,
    /// Whether the file is locked against every other process that writes. Those that don't ask for
    /// it can write beside each other, not beside one that does: stamps and instants stay in order,
    /// but nobody tells the others' waiters. Default: true.
    pub exclusive: bool,
    /// Whether a database that is older than the note beside it says is opened all the same.
    /// Fences then leap over what was dealt before; keys that came since may run again. Default:
    /// false.
    pub accept_older: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        let durability = SqliteDurability::Full;
        Self { durability, readers: 2, exclusive: true, accept_older: false }
    }
}

/// A store in one file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    durability: Durability,
    shared: Arc<Shared>,
    queue: Arc<reader::Queue>,
    log: Arc<checkpoint::Log>,
    /// Leases that are counted anew, when the machine was started again since.
    leases_anew: Option<LeasesAnew>,
    /// None when the store was opened to look at it.
    writer: Option<Sender<inbox::Message>>,
    running: Mutex<Running>,
}

/// What has to end when the store is closed.
#[derive(Debug, Default)]
struct Running {
    threads: Vec<JoinHandle<()>>,
    /// Ends once every thread has.
    ended: Option<mpsc::Receiver<()>>,
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    clock: StoreClock,
    /// The last instant that was written.
    floor: AtomicU64,
    closed: AtomicBool,
    /// Whether the writer runs the caller's own SQL right now.
    own_sql: AtomicBool,
    sync: sync::Sync,
    /// Calls that wait for the writer.
    waiting: AtomicUsize,
    young: young::Young,
    known: known::Known,
    places: places::Places,
    /// Whether nobody else writes to the file: what memory does not know is not there.
    exclusive: bool,
    notices: notices::Notices,
}

impl Shared {
    /// The store's now: never below the last one that was written.
    fn now(&self) -> At {
        self.clock.now().max(At(self.floor.load(Ordering::Acquire)))
    }

    /// What the missing row of a record means that nobody here has deleted: damage, unless another
    /// process may have.
    fn gone<T>(&self, key: &Key) -> Result<Option<T>, failure::Failure> {
        if self.exclusive { Err(rows::missing(key)) } else { Ok(None) }
    }

    fn saw(&self, now: At) {
        self.floor.fetch_max(now.0, Ordering::AcqRel);
    }
}

impl SqliteStore {
    /// Opens or makes a store on the machine's clock.
    ///
    /// # Errors
    /// [`StoreError::Open`], which says what is wrong and what to do.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        // Read when the last instant is known: whatever takes long at an opening lies before that.
        let clock = |last| StoreClock::going_on(last, Reading::now());
        Self::open_for_writing(path.as_ref(), options, clock, start::disk)
    }

    /// As [`SqliteStore::open`], on a machine whose clocks read so: for tests of restarts.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn open_reading(
        path: impl AsRef<Path>,
        options: SqliteOptions,
        reading: Reading,
    ) -> Result<Self, StoreError> {
        let clock = |last| StoreClock::going_on(last, reading);
        Self::open_for_writing(path.as_ref(), options, clock, start::disk)
    }

    /// As [`SqliteStore::open`], on a clock that a test moves.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn open_with_clock(
        path: impl AsRef<Path>,
        options: SqliteOptions,
        clock: StoreClock,
    ) -> Result<Self, StoreError> {
        Self::open_for_writing(path.as_ref(), options, |_| clock, start::disk)
    }

    /// Says in the lock file, which only its owner can read, how this process can be reached. Call
    /// it while the store is open: others that find the database in use will find it.
    ///
    /// # Errors
    /// When the lock file can't be written.
    pub fn announce(path: impl AsRef<Path>, announced: &Announced) -> std::io::Result<()> {
        open::announce(path.as_ref(), announced)
    }

    /// How the process that has a database open now can be reached, if it said so.
    #[must_use]
    pub fn announced(path: impl AsRef<Path>) -> Option<Announced> {
        open::announced(path.as_ref())
    }

    /// The version of the schema that this program makes and knows.
    #[must_use]
    pub const fn schema_version() -> usize {
        migrate::VERSION
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every thread to finish what it has and to end.
    fn stop(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        if let Some(writer) = &self.writer {
            // A writer that is gone has nothing left to finish.
            let _ = writer.send(inbox::Message::Stop);
        }
        self.queue.close();
        self.shared.known.stop();
        self.log.stop();
    }

    fn closed(&self) -> StoreError {
        StoreError::NotApplied(format!("the store {} is closed", self.path.display()))
    }

    /// Hands something to the writer; it answers every call that it takes.
    fn send(&self, call: inbox::Call) -> Result<(), StoreError> {
        self.check_open()?;
        let what = "writing through a store that was opened read-only";
        let unsupported = StoreError::Unsupported { store: "sqlite", what };
        let writer = self.writer.as_ref().ok_or(unsupported)?;
        self.shared.sync.answer_here();
        // Counted before it can be counted out.
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        writer.send(inbox::Message::Commit(call)).map_err(|_| self.closed())
    }

    /// The answer to a look for records of which none is there, when memory alone can tell: most
    /// looks before a first claim. Names are known before their commit, they come to the index
    /// before they leave the young, and both are asked in this order; so what neither has was not
    /// there when the look began. What was there then, and is forgotten meanwhile, is forgotten by
    /// a commit that was not settled then.
    fn nothing_there(&self, reads: &[Read]) -> Option<Loaded> {
        if !self.shared.exclusive || reads.is_empty() || self.check_open().is_err() {
            return None;
        }
        let settled = self.shared.sync.settled()?;
        for read in reads {
            let Read::Record { key, .. } = read else { return None };
            let forgot = self.shared.young.lacks(key)?.max(self.shared.known.lacks_now(key)?);
            if forgot > settled {
                return None;
            }
        }
        let facts = reads.iter().map(|_| Fact::Record(None)).collect();
        Some(Loaded { now: self.shared.now(), facts })
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.shared.closed.load(Ordering::SeqCst) { Err(self.closed()) } else { Ok(()) }
    }
}

/// The writer answers every call that it takes; one without an answer was cut short.
fn cut_short() -> StoreError {
    StoreError::Unknown("the writer ended before it answered".into())
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "sqlite",
            clock: true,
            group_max: writer::GROUP_MAX,
            lanes: 1,
            gathers: true,
            watch: false,
            lists_are_current: true,
            durability: self.durability.clone(),
            leases_anew: self.leases_anew,
            warnings: Vec::new(),
        }
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(async move {
            if let Some(loaded) = self.nothing_there(&reads) {
                // Who asks again and again has to let others run now and then.
                tokio::task::coop::consume_budget().await;
                return Ok(loaded);
            }
            let (reply, answer) = oneshot::channel();
            if !self.queue.push(reader::Call::Load { reads, reply }) {
                return Err(self.closed());
            }
            answer.await.unwrap_or_else(|_| Err(self.closed()))
        })
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            for batch in &group {
                batch.validate()?;
            }
            let (reply, answer) = oneshot::channel();
            self.send(inbox::Call::Group { group, reply })?;
            answer.await.unwrap_or_else(|_| Err(cut_short()))
        })
    }

    fn commit_one(self: Arc<Self>, batch: Arc<Batch>) -> StoreFuture<'static, Answer> {
        let (reply, answer) = oneshot::channel();
        let valid = batch.validate().map_err(StoreError::from);
        let sent = valid.and_then(|()| self.send(inbox::Call::One { batch, reply }));
        Box::pin(async move {
            sent?;
            answer.await.unwrap_or_else(|_| Err(cut_short()))
        })
    }

    fn commit_own(&self, group: Vec<Arc<dyn OwnSql>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            self.send(inbox::Call::Own { group, reply })?;
            answer.await.unwrap_or_else(|_| Err(cut_short()))
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let ask = reader::Ask { what, after, limit };
            if !self.queue.push(reader::Call::List { ask, reply }) {
                return Err(self.closed());
            }
            answer.await.unwrap_or_else(|_| Err(self.closed()))
        })
    }

    fn watch(&self, _keys: Vec<Key>) -> StoreFuture<'_, ()> {
        Box::pin(async {
            Err(StoreError::Unsupported { store: "sqlite", what: "watching for changes" })
        })
    }

    fn scrub(&self) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let Some(writer) = &self.writer else { return Ok(true) };
            // Whoever closes the store meanwhile cuts the log as well.
            writer.send(inbox::Message::Scrub(reply)).map_err(|_| self.closed())?;
            Ok(answer.await.unwrap_or(false))
        })
    }

    fn standing(&self) -> Standing {
        let mut standing = self.shared.notices.standing();
        standing.alarms.extend(self.shared.sync.broken());
        standing
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.stop();
            let ended = self.running().ended.take();
            if let Some(mut ended) = ended {
                // Nothing is ever sent: this resolves when the last thread has ended.
                let _ = ended.recv().await;
            }
            Ok(())
        })
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.stop();
        for thread in self.running().threads.drain(..) {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
