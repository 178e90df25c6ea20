//! The baselines: what bare SQLite and the file system do with the same keys and bytes.
//!
//! Same file system, same settings (WAL, `synchronous=FULL`, page cache), prepared statements, and
//! no table, index or check that the figure's name does not tell of.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::load::{Keys, mixed, outcome};
use super::measure::Round;
use crate::failure::Failure;

/// Rows of one transaction.
const ROWS: u64 = 256;
/// As the store's writer has it.
const CACHE_KIB: i64 = 64 * 1024;
/// As the store's writer has it.
const WAL_KEPT_BYTES: i64 = 256 << 20;
/// As the store's readers have it.
const MMAP_BYTES: i64 = 1 << 34;

/// A baseline that works on a thread of its own, so that the bench can be ended meanwhile.
pub(crate) struct Baseline<B>(Arc<Mutex<B>>);

impl<B: Send + 'static> Baseline<B> {
    /// To be worked with on a thread.
    pub(crate) fn new(baseline: B) -> Self {
        Self(Arc::new(Mutex::new(baseline)))
    }

    /// Does some work on a thread and waits for it.
    pub(crate) async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut B) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let baseline = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            work(&mut baseline.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let ended = |error| Failure::failed("bench.baseline", format!("it ended early: {error}"));
        done.await.map_err(ended)?
    }
}

/// Transactions of 256 rows into a table with nothing but its rowid.
pub(crate) struct BareRows {
    connection: Connection,
    keys: Keys,
    outcome: Vec<u8>,
    rest: Vec<u8>,
}

impl BareRows {
    /// In a file of its own. A row is a key and an outcome and, beyond these, as many bytes as a
    /// pair leaves behind (record, index of names, audit entry): the same bytes without the work.
    pub(crate) fn open(folder: &Path, name: &str, bytes: usize) -> Result<Self, Failure> {
        let connection = connect(&folder.join(name))?;
        let table = "CREATE TABLE rows (key TEXT NOT NULL, outcome BLOB NOT NULL, rest BLOB)";
        connection.execute_batch(table)?;
        let (keys, outcome) = (Keys::new("bare", 1), outcome());
        let key = keys.key(0)?.to_string();
        let rest = vec![0x5a; bytes.saturating_sub(key.len() + outcome.len())];
        Ok(Self { connection, keys, outcome, rest })
    }

    /// Rows for a time.
    pub(crate) fn round(&mut self, time: Duration) -> Result<Round, Failure> {
        let (keys, outcome, rest) = (&self.keys, &self.outcome, &self.rest);
        Round::measure(time, || {
            let transaction = self.connection.transaction()?;
            {
                let sql = "INSERT INTO rows (key, outcome, rest) VALUES (?, ?, ?)";
                let mut insert = transaction.prepare_cached(sql)?;
                for _ in 0..ROWS {
                    insert.execute(params![keys.key(keys.draw())?.to_string(), outcome, rest])?;
                }
            }
            transaction.commit()?;
            Ok(ROWS)
        })
    }
}

/// The bytes that a record leaves behind in a store that holds as many, in all tables and indexes.
pub(crate) fn bytes_per_record(path: &Path, records: u64) -> Result<u64, Failure> {
    let sum = "SELECT sum(payload) FROM dbstat WHERE name NOT LIKE 'sqlite_%'";
    let bytes: i64 = Connection::open(path)?.query_row(sum, [], |row| row.get(0))?;
    Ok(bytes.unsigned_abs() / records.max(1))
}

/// The same bytes appended to a file and synced.
pub(crate) struct Append {
    file: File,
    keys: Keys,
    outcome: Vec<u8>,
}

impl Append {
    /// To a file of its own.
    pub(crate) fn open(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("append");
        let file =
            OpenOptions::new().create(true).append(true).open(path).map_err(|error| io(&error))?;
        Ok(Self { file, keys: Keys::new("append", 2), outcome: outcome() })
    }

    /// Rows for a time.
    pub(crate) fn round(&mut self, time: Duration) -> Result<Round, Failure> {
        Round::measure(time, || {
            let mut bytes = Vec::new();
            for _ in 0..ROWS {
                let key = self.keys.key(self.keys.draw())?;
                bytes.extend_from_slice(key.to_string().as_bytes());
                bytes.extend_from_slice(&self.outcome);
            }
            self.file.write_all(&bytes).map_err(|error| io(&error))?;
            self.file.sync_data().map_err(|error| io(&error))?;
            Ok(ROWS)
        })
    }
}

/// What a service does by itself: an insert and an update per request, each a durable transaction.
pub(crate) struct SingleStatements {
    connection: Connection,
    keys: Keys,
    outcome: Vec<u8>,
}

impl SingleStatements {
    /// In a file of its own.
    pub(crate) fn open(folder: &Path) -> Result<Self, Failure> {
        let connection = connect(&folder.join("single-statements.db"))?;
        let table = "CREATE TABLE requests (key TEXT NOT NULL UNIQUE, state INTEGER NOT NULL, \
                     outcome BLOB)";
        connection.execute_batch(table)?;
        Ok(Self { connection, keys: Keys::new("single", 3), outcome: outcome() })
    }

    /// Requests for a time.
    pub(crate) fn round(&mut self, time: Duration) -> Result<Round, Failure> {
        let claim = "INSERT INTO requests (key, state) VALUES (?, 1) ON CONFLICT (key) DO NOTHING";
        let complete = "UPDATE requests SET state = 2, outcome = ? WHERE key = ? AND state = 1";
        let mut claim = self.connection.prepare(claim)?;
        let mut complete = self.connection.prepare(complete)?;
        Round::measure(time, || {
            let key = self.keys.key(self.keys.draw())?.to_string();
            claim.execute(params![key])?;
            complete.execute(params![self.outcome, key])?;
            Ok(1)
        })
    }
}

/// Point reads by key, a thread per core.
pub(crate) struct PointReads {
    path: PathBuf,
    threads: usize,
    rows: u64,
}

impl PointReads {
    /// On a file of its own with as many rows.
    pub(crate) fn new(folder: &Path, rows: u64, threads: usize) -> Self {
        Self { path: folder.join("point-reads.db"), threads, rows }
    }

    /// Makes the rows.
    pub(crate) fn fill(&mut self) -> Result<(), Failure> {
        let mut connection = connect(&self.path)?;
        let table = "CREATE TABLE rows (key TEXT NOT NULL UNIQUE, outcome BLOB NOT NULL)";
        connection.execute_batch(table)?;
        let (keys, outcome) = (Keys::new("reads", 4), outcome());
        let transaction = connection.transaction()?;
        {
            let mut insert =
                transaction.prepare("INSERT INTO rows (key, outcome) VALUES (?, ?)")?;
            for number in 0..self.rows {
                insert.execute(params![keys.key(number)?.to_string(), outcome])?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Reads for a time.
    pub(crate) fn round(&self, time: Duration) -> Result<Round, Failure> {
        let mut all = Round::default();
        let rounds = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| scope.spawn(move || self.one(thread, time)))
                .collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for round in rounds {
            let ended = |_| Failure::failed("bench.reader", "a reading thread ended early");
            all.join(&round.map_err(ended)??);
        }
        Ok(all)
    }

    fn one(&self, thread: usize, time: Duration) -> Result<Round, Failure> {
        let connection = connect(&self.path)?;
        connection.pragma_update(None, "mmap_size", MMAP_BYTES)?;
        let mut select = connection.prepare("SELECT outcome FROM rows WHERE key = ?")?;
        let keys = Keys::new("reads", 4);
        let mut random = mixed(thread as u64);
        Round::measure(time, || {
            random = mixed(random);
            let key = keys.key(random % self.rows)?.to_string();
            let outcome: Vec<u8> = select.query_row(params![key], |row| row.get(0))?;
            std::hint::black_box(outcome);
            Ok(1)
        })
    }
}

fn connect(path: &Path) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update_and_check(None, "journal_size_limit", WAL_KEPT_BYTES, |_| Ok(()))?;
    Ok(connection)
}

fn io(error: &std::io::Error) -> Failure {
    Failure::failed("bench.file", format!("the bench's files can't be written: {error}"))
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::failed("bench.sqlite", format!("a baseline on bare SQLite failed: {error}"))
    }
}
