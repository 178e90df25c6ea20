//! The database file itself, whatever it is called: its lock, and whether it is still in its place.
//!
//! Rule: one process writes to a file, under one name. The lock file lies beside the name, so a
//! hard link would have another one, and another log; the lock taken here is on the inode. It is
//! `flock`'s, which knows nothing of the locks that SQLite takes with `fcntl`, and those know
//! nothing of it. But whoever closes any handle of a file loses all of the process' `fcntl` locks
//! on it: so all stores of this process share one handle, which is closed after them.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
            if alone { self.file.try_lock() } else { self.file.try_lock_shared() }?;
        }
        writers.count += 1;
        writers.alone = alone;
        drop(writers);
        Ok(Claimed(self))
    }

    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
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
