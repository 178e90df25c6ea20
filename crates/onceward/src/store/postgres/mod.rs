//! The Postgres store: one schema of one database, shared by any number of processes.
//!
//! Rule: every write goes through the same advisory locks (`group.rs`), so processes need to know
//! nothing of each other, and all instants are the server's. Every statement runs as a role that
//! row-level security binds (`standing.rs`), under the tenant that it is about. Work on a
//! connection runs in a task of its own that owns it to the end: a caller that goes away leaves no
//! open transaction behind. Sessions are set up once, so a pooler in between has to keep them (not
//! one per transaction). Connections are plain TCP or sockets; TLS is not here yet.

mod apply;
mod composite;
mod failure;
mod group;
mod group_rows;
mod lean;
mod list;
mod locks;
mod looks;
mod migrate;
mod open;
mod options;
mod own;
mod reader;
mod rows;
mod sql;
mod standing;
mod watch;

pub use options::{PostgresOptions, Weakness};
pub(crate) use own::Ended;
pub use own::OwnTransactions;
/// The client whose transactions [`OwnTransactions`] works in.
pub use tokio_postgres;

use std::fmt;
use std::sync::Arc;

use onceward_core::batch::Batch;
use onceward_core::key::Key;
use tokio::sync::Semaphore;

use super::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreError, StoreFuture,
};
use looks::Looks;
use open::{Pool, Role, Target};
use standing::Standing;
use watch::Watch;

/// Groups that are worth having under way at once, and connections that commit.
const LANES: u32 = 2;
/// Most batches in one group. More cost less each, and hold more of the server's locks at once: a
/// few for each batch, of some thousands that all its sessions share.
const GROUP_MAX: usize = 128;
const NAME: &str = "postgres";

/// A store in a Postgres database.
pub struct PostgresStore {
    schema: Arc<str>,
    idle_ms: u64,
    standing: Standing,
    writers: Arc<Pool>,
    readers: Arc<Pool>,
    /// Places for lists that may be long: they leave sessions to those who look something up.
    listing: Arc<Semaphore>,
    looks: Arc<Looks>,
    watch: Arc<Watch>,
}

impl PostgresStore {
    /// Connects to a database whose schema is up to date.
    ///
    /// # Errors
    /// [`StoreError::Open`] when the schema is missing, older or newer, or the server refuses us;
    /// [`StoreError::NotApplied`] when it can't be reached; [`StoreError::Invalid`] for an option.
    pub async fn connect(url: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let target = Target::new(url, options)?;
        let schema: Arc<str> = target.options.schema.as_str().into();
        let idle_ms = target.options.idle_in_transaction_timeout_ms;
        let readers = u32::try_from(target.options.readers).unwrap_or(u32::MAX);
        let listing = readers.saturating_sub(looks::LANES).max(1);
        let listing = Arc::new(Semaphore::new(listing as usize));
        let readers = Arc::new(Pool::new(target.clone(), Role::Reader, readers));
        let writers = Arc::new(Pool::new(target.clone(), Role::Writer, LANES));
        let standing = writers.warm().await?;
        readers.warm().await?;
        let watch = Arc::new(Watch::start(target));
        let looks = Arc::new(Looks::new(readers.clone()));
        Ok(Self { schema, idle_ms, standing, writers, readers, listing, looks, watch })
    }

    /// Makes the schema or brings it up to date. Safe to run at any time, by many at once.
    ///
    /// Returns how many migrations were applied.
    ///
    /// # Errors
    /// As [`PostgresStore::connect`]; nothing is changed then.
    pub async fn migrate(url: &str, options: PostgresOptions) -> Result<usize, StoreError> {
        migrate::migrate(&Target::new(url, options)?).await
    }

    /// The version of the schema that this program makes and knows.
    #[must_use]
    pub const fn schema_version() -> usize {
        migrate::VERSION
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            clock: true,
            group_max: GROUP_MAX,
            lanes: LANES as usize,
            gathers: false,
            watch: true,
            lists_are_current: true,
            leases_anew: None,
            durability: self.standing.durability.clone(),
            warnings: self.standing.warnings.clone(),
        }
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(self.looks.clone().load(reads))
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        let (writers, schema) = (self.writers.clone(), self.schema.clone());
        owned(StoreError::Unknown, async move {
            for batch in &group {
                batch.validate()?;
                rows::check(batch)?;
            }
            let lease = writers.lease().await?;
            apply::commit(lease, &schema, &group).await
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        let (readers, listing) = (self.readers.clone(), self.listing.clone());
        owned(StoreError::NotApplied, async move {
            let _turn = match what.may_be_long() {
                true => listing.acquire_owned().await.ok(),
                false => None,
            };
            let lease = readers.lease().await?;
            list::list(lease, &what, after.as_ref(), limit).await
        })
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        let watch = self.watch.clone();
        Box::pin(async move { watch.wait(&keys).await })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.watch.close();
            self.writers.close().await;
            self.readers.close().await;
            Ok(())
        })
    }
}

/// Runs work in a task of its own, which goes on when the caller's future is dropped. `stopped`
/// says what it means when the task itself is lost: the runtime shut down, or it panicked.
fn owned<T: Send + 'static>(
    stopped: fn(String) -> StoreError,
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> StoreFuture<'static, T> {
    Box::pin(async move {
        match tokio::spawn(work).await {
            Ok(result) => result,
            Err(error) => Err(stopped(format!("the store's task ended early: {error}"))),
        }
    })
}
