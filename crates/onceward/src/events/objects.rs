//! The object store as the event store needs it: objects that are created once, or not at all.
//!
//! A creation whose answer was lost is sent again and meets its own object: the content tells (own
//! success, not someone else's). A conflict without an object is no object: it is tried again. A
//! store that ignores conditions would let two packers write one segment, so it is refused at
//! start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use onceward_core::zoo::{Bug, planted};

use super::EventsError;

/// Tries of one creation before its caller hears of the trouble.
const TRIES_MAX: u32 = 8;
/// First pause between two tries; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Where segments are kept: any object store, or a local folder whose writes are synced.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// A local folder: what others made visible there may not be synced yet.
    folder: Option<PathBuf>,
}

/// What became of a creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Created {
    /// The object is there with this content, now or since an earlier try.
    Ours,
    /// Another content is there.
    Theirs(Bytes),
}

impl From<Arc<dyn ObjectStore>> for Objects {
    fn from(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, folder: None }
    }
}

impl Objects {
    /// A local folder, made for its owner only if it is not there: it holds payloads. Every write
    /// is synced, file and folder.
    ///
    /// # Errors
    /// When the folder can't be made or opened.
    pub fn folder(path: impl Into<PathBuf>) -> Result<Self, EventsError> {
        let path = path.into();
        let failed = |why: String| EventsError::Open(format!("{}: {why}", path.display()));
        create_for_us(&path).map_err(|error| failed(error.to_string()))?;
        let store = LocalFileSystem::new_with_prefix(&path);
        let store = store.map_err(|error| failed(error.to_string()))?;
        let store = store.with_fsync(!planted(Bug::FolderWithoutFsync));
        Ok(Self { store: Arc::new(store), folder: Some(path) })
    }

    /// The object store itself, for what else belongs beside the events.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// An object's content, or none.
    pub(super) async fn get(&self, path: &Path) -> Result<Option<Bytes>, EventsError> {
        let failed = |error: Error| EventsError::Objects(error.to_string());
        match self.store.get(path).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(failed)?)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Creates an object, or says what is there instead.
    pub(super) async fn create(
        &self,
        path: &Path,
        content: &Bytes,
    ) -> Result<Created, EventsError> {
        let mut pause = PAUSE;
        let mut last = String::new();
        for _ in 0..TRIES_MAX {
            match self.put_new(path, content).await {
                Ok(()) => return Ok(Created::Ours),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                    match self.get(path).await {
                        Ok(Some(there)) => return self.recognise(path, there, content).await,
                        Ok(None) if planted(Bug::ConflictTakenForExists) => {
                            return Ok(Created::Ours);
                        }
                        // Someone was about to write it and did not: a conflict is not an object.
                        Ok(None) => last = "a conflict without an object".into(),
                        Err(error) => last = error.to_string(),
                    }
                }
                // It may have been written all the same: the next try finds out.
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Err(EventsError::Objects(format!("{path} can't be written: {last}")))
    }

    async fn recognise(
        &self,
        path: &Path,
        there: Bytes,
        content: &Bytes,
    ) -> Result<Created, EventsError> {
        // An earlier try may have failed between the name and the sync of it.
        self.sync(path).await?;
        let ours = there == *content && !planted(Bug::OwnConflictTakenForAnothers);
        Ok(if ours { Created::Ours } else { Created::Theirs(there) })
    }

    async fn put_new(&self, path: &Path, content: &Bytes) -> Result<(), Error> {
        let payload = PutPayload::from_bytes(content.clone());
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        self.store.put_opts(path, payload, options).await.map(drop)
    }

    /// Makes sure that an object that was seen stays: in a folder, a name may be seen before it is
    /// synced.
    pub(super) async fn sync(&self, path: &Path) -> Result<(), EventsError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let file = folder.join(path.as_ref());
        let Some(parent) = file.parent().map(std::path::Path::to_owned) else { return Ok(()) };
        let synced = tokio::task::spawn_blocking(move || {
            match std::fs::File::open(parent) {
                Ok(folder) => folder.sync_all(),
                // Nothing was written there yet.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
        });
        let synced = synced.await.map_err(|error| EventsError::Objects(error.to_string()))?;
        synced.map_err(|error| EventsError::Objects(error.to_string()))
    }

    /// Refuses a store that overwrites what should have been created only once. `path` is nobody
    /// else's.
    pub(super) async fn probe(&self, path: &Path) -> Result<(), EventsError> {
        let failed = |error: EventsError| {
            EventsError::Open(format!("the object store can't be used for events: {error}"))
        };
        let [first, second] = [&b"first"[..], b"second"].map(Bytes::from_static);
        let created = self.create(path, &first).await.map_err(failed)?;
        let again = self.create(path, &second).await.map_err(failed);
        // What can't be removed is small and harmless.
        let _ = self.store.delete(path).await;
        if (created, again?) == (Created::Ours, Created::Theirs(first)) {
            return Ok(());
        }
        let why = "the object store ignores conditions: it wrote an object over one that should \
                   have been created only once; use one with conditional writes (If-None-Match)";
        Err(EventsError::Open(why.into()))
    }
}

/// Makes a folder that only its owner can look into; one that is there stays as it is.
fn create_for_us(path: &std::path::Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
