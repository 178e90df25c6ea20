//! Opening: the file, its lock against a second server, and the settings of every connection.
//!
//! Rule: whatever is wrong is said in a sentence of its own that tells what to do: no folder, not a
//! database, another program's, locked, read-only, too new. Nothing is written to a foreign file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags};

use super::super::StoreError;
use super::inode::FileId;
use super::migrate::{self, APPLICATION_ID};
use super::reach::{self, Reached};

/// How long a connection waits for another process's write, when the file is shared.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page cache of the writer: what it touches again and again is the inner pages of every index and
/// the ends of every table. A larger one is slower, because SQLite walks through all of it at each
/// commit that has split a page.
const WRITER_CACHE_KIB: i64 = 8 * 1024;
/// Page cache of a reader, for pages that are still in the write-ahead log.
const READER_CACHE_KIB: i64 = 16 * 1024;
/// How much of the file readers map into memory: pages are then read without copying them.
const READER_MMAP_BYTES: i64 = 1 << 34;
/// A write-ahead log larger than this is cut down after a checkpoint; up to this it is reused,
/// because overwriting a file is far cheaper to sync than growing it.
const WAL_KEPT_BYTES: i64 = 64 << 20;

/// Who may read and write the files that a store makes: its owner.
const OWNER_ONLY: u32 = 0o600;

/// The lock against a second server, let go of when it is dropped.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file alone would leave the lock to whoever has a copy of the handle: a child
        // process has one between its fork and its exec.
        let _ = self.0.unlock();
    }
}

/// Locks the file against all others that write, or shares it with those that share it too.
pub(super) fn lock(path: &Path, exclusive: bool) -> Result<Lock, StoreError> {
    let lock_path = beside(path, ".lock");
    let mut file = open_lock(&lock_path, true).map_err(|error| {
        StoreError::Open(format!(
            "the lock file {} can't be opened ({error}); the folder of a store must be writable",
            lock_path.display()
        ))
    })?;
    let locked = if exclusive { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Ok(()) if !exclusive => {
            // One of several: whom an earlier run named is none of them.
            let _ = file.set_len(0);
            Ok(Lock(file))
        }
        Ok(()) => {
            // The text is for people and commands; the lock itself is what counts, so a failure
            // here is none.
            let _ = file.set_len(0);
            let _ = file.write_all(std::process::id().to_string().as_bytes());
            Ok(Lock(file))
        }
        Err(TryLockError::WouldBlock) => {
            let text = read_lock(&mut file);
            // Only the number: what follows it is a secret.
            let holder = text.lines().next().filter(|line| !line.is_empty());
            let holder = holder.unwrap_or("another process");
            Err(StoreError::Open(format!(
                "the database {} is in use by process {holder}, which holds {}; stop it first \
                 (what only looks at a store works beside it)",
                path.display(),
                lock_path.display()
            )))
        }
        Err(TryLockError::Error(error)) => Err(StoreError::Open(format!(
            "{} can't be locked ({error}); a store needs a file system with file locks",
            lock_path.display()
        ))),
    }
}

/// Where the server that holds a database can be reached, for as long as it runs.
#[derive(Clone, PartialEq, Eq)]
pub struct Announced {
    /// Its control API.
    pub server: String,
    /// A token for this run only.
    pub token: String,
}

impl std::fmt::Debug for Announced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announced").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Writes into the lock file how the process that holds it, this one, can be reached.
pub(super) fn announce(path: &Path, announced: &Announced) -> io::Result<()> {
    let path = place(path).map_err(io::Error::other)?;
    let mut file = open_lock(&beside(&path, ".lock"), false)?;
    only_for_us(&file)?;
    file.set_len(0)?;
    let (id, Announced { server, token }) = (std::process::id(), announced);
    file.write_all(format!("{id}\n{server}\n{token}\n").as_bytes())
}

/// How the process that holds the lock now can be reached, if it said so.
pub(super) fn announced(path: &Path) -> Option<Announced> {
    let mut file = open_lock(&beside(&place(path).ok()?, ".lock"), false).ok()?;
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        // Nobody holds it alone: what it says is of an earlier run.
        return None;
    }
    let text = read_lock(&mut file);
    let mut lines = text.lines().skip(1);
    let (server, token) = (lines.next()?.to_string(), lines.next()?.to_string());
    (!server.is_empty() && !token.is_empty()).then_some(Announced { server, token })
}

/// The lock file is readable by its owner only: it may hold a token.
fn open_lock(lock_path: &Path, create: bool) -> io::Result<File> {
    open_ours(lock_path, create)
}

/// Opens a file that lies beside the database, and makes it if that is wanted. It is written to
/// without a look at what is in it, so it has to be what it is taken for: a plain file of ours
/// under its own name, no link to another one.
pub(super) fn open_ours(path: &Path, make: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(OWNER_ONLY);
    if make {
        match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
    let refused = |what| Err(io::Error::other(format!("it is {what}; move it away")));
    let named = path.symlink_metadata()?;
    if !named.is_file() {
        return refused("no plain file, perhaps a link");
    }
    if named.uid() != rustix::process::geteuid().as_raw() {
        return refused("another user's");
    }
    let file = options.open(path)?;
    if FileId::of(&file.metadata()?) != FileId::of(&named) {
        return refused("replaced by somebody right now");
    }
    Ok(file)
}

fn only_for_us(file: &File) -> io::Result<()> {
    // One that an earlier version made may be readable by others.
    file.set_permissions(PermissionsExt::from_mode(OWNER_ONLY))
}

fn read_lock(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind();
    let _ = file.read_to_string(&mut text);
    text
}

/// Makes a file that is not there yet readable by its owner only: it holds a secret and people's
/// payloads. SQLite gives the log beside it the same mode. A file that is there keeps its own.
pub(super) fn create_for_us(path: &Path) {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(OWNER_ONLY);
    // Whatever is wrong with the place is told by SQLite, which opens it next.
    let _ = options.open(path);
}

/// Opens the file for writing and brings its schema up to date, once `judge` has nothing against
/// what it has reached. Until then nothing is changed in it.
pub(super) fn prepare(
    path: &Path,
    judge: impl FnOnce(Option<Reached>) -> Result<(), StoreError>,
) -> Result<Connection, StoreError> {
    let failed = |error: Error| refused(path, &error);
    let mut connection =
        connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | CREATE).map_err(failed)?;
    // Closed by the last one, a log is copied into the database.
    let kept = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    connection.set_db_config(kept, true).map_err(failed)?;
    check_ours(&connection, path)?;
    if connection.is_readonly("main").unwrap_or(false) {
        return Err(read_only(path));
    }
    judge(reach::reached(&connection).map_err(failed)?)?;
    connection.set_db_config(kept, false).map_err(failed)?;
    configure_writer(&connection).map_err(failed)?;
    migrate::migrate(&mut connection, path)?;
    Ok(connection)
}

/// Opens the file to look at it.
pub(super) fn look(path: &Path) -> Result<Connection, StoreError> {
    if !path.exists() {
        return Err(StoreError::Open(format!(
            "there is no database at {}; check the path, or open it for writing to make one",
            path.display()
        )));
    }
    let connection = reader(path)?;
    check_ours(&connection, path)?;
    migrate::check(&connection, path)?;
    Ok(connection)
}

/// The log, to be synced by us. What a killed process has left in it is made durable first, because
/// whoever reads it is told of it; and its place in the folder, and the database's.
pub(super) fn log(path: &Path) -> Result<File, StoreError> {
    let log_path = beside(path, "-wal");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let opened = File::options().read(true).write(true).open(&log_path).and_then(|log| {
        log.sync_all()?;
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(log)
    });
    opened.map_err(|error| {
        StoreError::Open(format!("the log {} can't be synced ({error})", log_path.display()))
    })
}

/// A further connection for writing, to a file that [`prepare`] has seen.
pub(super) fn writer(path: &Path) -> Result<Connection, StoreError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE);
    let connection = connection.map_err(|error| refused(path, &error))?;
    configure_writer(&connection).map_err(|error| refused(path, &error))?;
    Ok(connection)
}

/// A connection for copying the log into the database.
pub(super) fn copier(path: &Path) -> Result<Connection, StoreError> {
    connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|error| refused(path, &error))
}

/// A connection for reading.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let configured = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(|connection| {
        connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        connection.pragma_update(None, "mmap_size", READER_MMAP_BYTES)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    });
    configured.map_err(|error| refused(path, &error))
}

const CREATE: OpenFlags = OpenFlags::SQLITE_OPEN_CREATE;

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    Ok(connection)
}

fn configure_writer(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    // Commits don't wait for the disk; their answers do (`sync.rs`). Checkpoints do.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update_and_check(None, "journal_size_limit", WAL_KEPT_BYTES, |_| Ok(()))?;
    // What is deleted is overwritten: erased means gone.
    connection.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))?;
    Ok(())
}

/// The file itself, where its path is a symbolic link: lock, log and note lie beside it, where
/// SQLite looks for them.
pub(super) fn place(path: &Path) -> Result<PathBuf, StoreError> {
    if !path.is_symlink() {
        return Ok(path.to_path_buf());
    }
    path.canonicalize().map_err(|error| {
        StoreError::Open(format!(
            "{} is a symbolic link that leads nowhere ({error}); make its target, or remove it",
            path.display()
        ))
    })
}

/// Whether there can be a database at this path.
pub(super) fn check_place(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(StoreError::Open(format!(
            "the folder {} does not exist; create it, or choose another path for the database {}",
            folder.display(),
            path.display()
        )));
    }
    match path.metadata() {
        Ok(there) if there.is_dir() => Err(StoreError::Open(format!(
            "{} is a folder; name a file in it for the database",
            path.display()
        ))),
        Ok(there) if there.permissions().readonly() => Err(read_only(path)),
        _ => Ok(()),
    }
}

/// Refuses a database that another program has made.
fn check_ours(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let question = "SELECT (SELECT count(*) FROM sqlite_schema), application_id \
                    FROM pragma_application_id";
    let (objects, id): (i64, i32) = connection
        .query_row(question, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(|error| refused(path, &error))?;
    if objects > 0 && id != APPLICATION_ID {
        return Err(StoreError::Open(format!(
            "{} is a database of another program; choose another path",
            path.display()
        )));
    }
    Ok(())
}

fn read_only(path: &Path) -> StoreError {
    StoreError::Open(format!(
        "the database {} is read-only; make it writable (what only looks at a store needs no more)",
        path.display()
    ))
}

/// Says why SQLite refused to open a file.
pub(super) fn refused(path: &Path, error: &Error) -> StoreError {
    let place = path.display();
    StoreError::Open(match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => {
            format!("{place} is not a database; choose another path, or restore it from a backup")
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            format!("the database {place} is damaged ({error}); restore it from a backup")
        }
        Some(ErrorCode::ReadOnly) => return read_only(path),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!("the database {place} is locked by another program; stop it and try again")
        }
        Some(ErrorCode::DiskFull) => {
            format!("there is no space left for the database {place}; free some and try again")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            format!("the database {place} can't be opened ({error}); check path and permissions")
        }
        _ => format!("the database {place} can't be opened: {error}"),
    })
}

/// The path with something appended to the file's name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_let_go_of_although_a_child_process_has_its_handle() {
        let folder = std::env::temp_dir().join(format!("onceward-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("x.db");
        let held = lock(&path, true).unwrap();
        // What a process has between its fork and its exec.
        let _copy = held.0.try_clone().unwrap();
        lock(&path, true).unwrap_err();
        lock(&path, false).unwrap_err();
        drop(held);
        let shared = lock(&path, false).unwrap();
        lock(&path, false).unwrap();
        lock(&path, true).unwrap_err();
        drop(shared);
        lock(&path, true).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
