//! An object store with faults: answers that get lost, conflicts without an object, conditions that
//! are ignored, outages.
//!
//! Faults are scripted: each is used up by the next creation that it fits. Everything else goes to
//! the store inside.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};
use tokio::sync::watch;

/// What goes wrong at the next creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFault {
    /// The object is written and the answer is lost.
    LostAnswer,
    /// Nothing is written and nothing is known.
    Lost,
    /// A conflict is answered, and there is no object.
    Conflict,
    /// The request is on its way until [`FaultyObjects::let_go`]: its sender is frozen, or the
    /// network slow.
    Held,
}

/// The store with faults. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FaultyObjects {
    inner: Arc<dyn ObjectStore>,
    state: Arc<Mutex<State>>,
    /// Whether what was held may arrive.
    let_go: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Default)]
struct State {
    faults: VecDeque<ObjectFault>,
    under: String,
    ignores_conditions: bool,
    creations: u64,
}

impl FaultyObjects {
    /// A store without faults yet.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self { inner, state: Arc::default(), let_go: Arc::default() }
    }

    /// Scripts the next faults for creations of objects whose path holds `under`.
    pub fn script(&self, under: &str, faults: impl IntoIterator<Item = ObjectFault>) {
        let mut state = self.locked();
        under.clone_into(&mut state.under);
        state.faults.extend(faults);
    }

    /// Lets what was held arrive.
    pub fn let_go(&self) {
        self.let_go.send_replace(true);
    }

    /// From now on a creation overwrites what is there.
    pub fn ignore_conditions(&self) {
        self.locked().ignores_conditions = true;
    }

    /// Creations that were asked for.
    #[must_use]
    pub fn creations(&self) -> u64 {
        self.locked().creations
    }

    /// Faults that nobody met yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.locked().faults.len()
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, path: &Path) -> Option<ObjectFault> {
        let mut state = self.locked();
        state.creations += 1;
        if path.as_ref().contains(&state.under) { state.faults.pop_front() } else { None }
    }
}

fn lost(path: &Path) -> Error {
    Error::Generic { store: "faulty", source: format!("{path}: time-out").into() }
}

impl fmt::Display for FaultyObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyObjects({})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FaultyObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if !matches!(options.mode, PutMode::Create) {
            return self.inner.put_opts(location, payload, options).await;
        }
        if self.locked().ignores_conditions {
            options.mode = PutMode::Overwrite;
        }
        match self.next(location) {
            None => self.inner.put_opts(location, payload, options).await,
            Some(ObjectFault::LostAnswer) => {
                self.inner.put_opts(location, payload, options).await?;
                Err(lost(location))
            }
            Some(ObjectFault::Lost) => Err(lost(location)),
            Some(ObjectFault::Held) => {
                // The sender lives as long as this store.
                let _ = self.let_go.subscribe().wait_for(|let_go| *let_go).await;
                self.inner.put_opts(location, payload, options).await
            }
            Some(ObjectFault::Conflict) => Err(Error::AlreadyExists {
                path: location.to_string(),
                source: "409 ConditionalRequestConflict".into(),
            }),
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
