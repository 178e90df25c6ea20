//! The spool: events put aside in a file while the registry gives no answer.
//!
//! Rule: an event that was put aside is on disk before its consumer goes on, and leaves the file
//! only when it is final in the registry. A line that was cut by a crash was never acknowledged,
//! and is dropped.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::letter::{read_event, write_event};
use crate::events::Event;

/// Why the spool could not do its part.
#[derive(Debug, thiserror::Error)]
#[error("the spool {}: {error}", .path.display())]
pub struct SpoolError {
    path: PathBuf,
    error: std::io::Error,
}

/// A spool file. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Spool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: Mutex<File>,
}

impl Spool {
    /// Opens or makes the file, for its owner only: it holds payloads.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, SpoolError> {
        let path = path.into();
        let failed = |error| SpoolError { path: path.clone(), error };
        let mut options = OpenOptions::new();
        options.create(true).read(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(failed)?;
        let bytes = std::fs::read(&path).map_err(failed)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < bytes.len() {
            file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(failed)?;
        }
        sync_folder(&path).map_err(failed)?;
        Ok(Self(Arc::new(Inner { path, file: Mutex::new(file) })))
    }

    /// Puts an event aside: on disk when this returns.
    ///
    /// # Errors
    /// When it can't be written or synced.
    pub async fn put(&self, event: Arc<Event>) -> Result<(), SpoolError> {
        self.blocking(move |file| {
            let mut line = write_event(&event);
            line.push(b'\n');
            file.write_all(&line)?;
            file.sync_data()
        })
        .await
    }

    /// Everything that is put aside, in the order in which it came.
    ///
    /// # Errors
    /// When it can't be read, or a line is not what was written.
    pub async fn events(&self) -> Result<Vec<Event>, SpoolError> {
        let path = self.0.path.clone();
        self.blocking(move |_| {
            let lines = BufReader::new(File::open(&path)?).split(b'\n');
            lines
                .map(|line| {
                    let bad = || std::io::Error::other("a line is damaged");
                    read_event(&line?).ok_or_else(bad)
                })
                .collect()
        })
        .await
    }

    /// Empties it: everything that was in it is final.
    ///
    /// # Errors
    /// When it can't be emptied.
    pub async fn clear(&self) -> Result<(), SpoolError> {
        self.blocking(|file| file.set_len(0).and_then(|()| file.sync_all())).await
    }

    /// Whether nothing is put aside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        std::fs::metadata(&self.0.path).is_ok_and(|file| file.len() == 0)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut File) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, SpoolError> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            work(&mut inner.file.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let done = done.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        done.map_err(|error| SpoolError { path: self.0.path.clone(), error })
    }
}

/// A new file's name is on disk only once its folder is.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        Event {
            tenant: "acme".into(),
            aggregate_id: "a".into(),
            event_id: format!("e{number}"),
            sequence_number: number,
            kind: "update".into(),
            payload: b"\n".as_slice().into(),
            correlation_id: None,
        }
    }

    #[tokio::test]
    async fn c10_what_is_put_aside_survives_and_a_cut_line_is_dropped() {
        let name = format!("onceward-spool-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let spool = Spool::open(&path).unwrap();
        spool.put(Arc::new(event(1))).await.unwrap();
        spool.put(Arc::new(event(2))).await.unwrap();
        drop(spool);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"tenant\":\"ac").unwrap();
        let spool = Spool::open(&path).unwrap();
        assert_eq!(spool.events().await.unwrap(), [event(1), event(2)]);
        assert!(!spool.is_empty());
        spool.clear().await.unwrap();
        assert!(spool.is_empty());
        spool.put(Arc::new(event(3))).await.unwrap();
        assert_eq!(spool.events().await.unwrap(), [event(3)]);
        std::fs::remove_file(&path).unwrap();
    }
}
