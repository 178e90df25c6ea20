//! The database file itself, whatever it is called: its lock, and whether it is still in its place.
//!
//! Rule: one process writes to a file, under one name. The lock file lies beside the name, so a
//! hard link would have another one, and another log; the lock taken here is on the inode. It is
//! `flock`'s, which knows nothing of the locks that SQLite takes with `fcntl`, and those know
//! nothing of it. But whoever closes any handle of a file loses all of the process' `fcntl` locks
//! on it: so all stores of this process share one handle, which is closed after them. On a file
//! system of the network `flock` is none of these: no lock is taken there.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;

/// Which file something is: names may change, this does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The file that has a name now; none if there is none.
    pub(super) fn at(path: &Path) -> io::Result<Option<Self>> {
        match path.metadata() {
            Ok(metadata) => Ok(Some(Self::of(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Files that stores of this process have open.
static OPEN: Mutex<Vec<Weak<Inode>>> = Mutex::new(Vec::new());

/// A database file. To be dropped after every connection to it.
#[derive(Debug)]
pub(super) struct Inode {
    file: File,
    pub(super) id: FileId,
    writers: Mutex<Writers>,
}

/// The stores of this process that write to it.
#[derive(Debug, Default)]
struct Writers {
    count: usize,
    alone: bool,
    /// Whether other processes are kept out by a lock.
    locked: bool,
}

/// The right to write to a file, until this is dropped.
#[derive(Debug)]
pub(super) struct Claimed(pub(super) Arc<Inode>);

impl Inode {
    /// The file at a path.
    pub(super) fn at(path: &Path) -> io::Result<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|known| known.strong_count() > 0);
        // Looked for by its name alone: a handle that was opened could not be closed again.
        let id = FileId::of(&path.metadata()?);
        if let Some(known) = open.iter().filter_map(Weak::upgrade).find(|known| known.id == id) {
            return Ok(known);
        }
        let file = File::open(path)?;
        let id = FileId::of(&file.metadata()?);
        let inode = Arc::new(Self { file, id, writers: Mutex::default() });
        open.push(Arc::downgrade(&inode));
        Ok(inode)
    }

    /// How many names it has.
    pub(super) fn links(&self) -> u64 {
        self.file.metadata().map_or(1, |metadata| metadata.nlink())
    }

    /// Locks it against all others that write, or shares it with those that share it too.
    pub(super) fn claim(self: Arc<Self>, alone: bool) -> Result<Claimed, TryLockError> {
        let mut writers = self.writers();
        if writers.count > 0 && (alone || writers.alone) {
            return Err(TryLockError::WouldBlock);
        }
        if writers.count == 0 {
            writers.locked = self.lock(alone)?;
        }
        writers.count += 1;
        writers.alone = alone;
        drop(writers);
        Ok(Claimed(self))
    }

    /// Locks it for this process. False where that would keep SQLite out too, or can't be done on
    /// a handle that only reads.
    fn lock(&self, alone: bool) -> Result<bool, TryLockError> {
        if rustix::fs::fstatfs(&self.file).is_ok_and(|there| is_remote(there.f_type.to_le_bytes()))
        {
            return Ok(false);
        }
        match if alone { self.file.try_lock() } else { self.file.try_lock_shared() } {
            Err(TryLockError::Error(error))
                if Errno::from_io_error(&error) == Some(Errno::BADF) =>
            {
                Ok(false)
            }
            locked => locked.map(|()| true),
        }
    }

    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file system, by the number of its kind, makes locks of bytes of `flock`'s, or keeps
/// every other handle from what is locked: NFS, and the three of SMB.
fn is_remote(kind: impl AsRef<[u8]>) -> bool {
    const KINDS: [u32; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];
    KINDS.iter().any(|remote| kind.as_ref().starts_with(&remote.to_le_bytes()))
}

impl Claimed {
    /// Whether other processes are kept out under every name of the file.
    pub(super) fn locks(&self) -> bool {
        self.0.writers().locked
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let mut writers = self.0.writers();
        writers.count -= 1;
        if writers.count == 0 {
            // Closing would not do: a child process has a copy of the handle until its exec.
            let _ = self.0.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_no_lock_is_taken_where_it_would_keep_sqlite_out() {
        let (nfs, smb2, ext4, tmpfs) = (0x6969_i64, 0xfe53_4d42_i64, 0xef53_i64, 0x0102_1994_i64);
        assert!(is_remote(nfs.to_le_bytes()) && is_remote(smb2.to_le_bytes()));
        assert!(!is_remote(ext4.to_le_bytes()) && !is_remote(tmpfs.to_le_bytes()));
    }

    #[test]
    fn l1_one_file_is_one_lock_under_each_of_its_names() {
        let folder = std::env::temp_dir().join(format!("onceward-inode-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (first, second) = (folder.join("a"), folder.join("b"));
        std::fs::write(&first, "").unwrap();
        std::fs::hard_link(&first, &second).unwrap();
        let inode = |path: &Path| Inode::at(path).unwrap();
        assert!(Arc::ptr_eq(&inode(&first), &inode(&second)), "one handle");
        assert_eq!(inode(&first).links(), 2);
        let held = inode(&first).claim(true).unwrap();
        assert!(held.locks());
        for alone in [true, false] {
            inode(&second).claim(alone).unwrap_err();
        }
        // What another process sees.
        let other = File::open(&second).unwrap();
        assert!(matches!(other.try_lock_shared(), Err(TryLockError::WouldBlock)));
        drop(held);
        let shared = [inode(&first).claim(false).unwrap(), inode(&second).claim(false).unwrap()];
        inode(&first).claim(true).unwrap_err();
        drop(shared);
        other.try_lock().unwrap();
        inode(&first).claim(true).unwrap_err();
        drop(other);
        inode(&first).claim(true).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
