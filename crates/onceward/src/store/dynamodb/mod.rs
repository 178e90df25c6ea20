//! The DynamoDB store: one table, conditional writes, transactions, no clock.
//!
//! A batch is one transaction, or one conditional write when it has one item; batches go side by
//! side and no two share a commit. There is no clock to judge leases by: the engine watches revs,
//! and the date of the store's answers tells when retention is over. Rule: a batch is what its
//! conditions say at the instant it is applied; whatever was read or drawn for it before is among
//! them. Where everything lies: `names.rs`. How it is run: `docs/dynamodb.md`.

mod announce;
mod apply;
mod bodies;
mod dates;
mod entries;
mod failure;
mod list;
mod migrate;
mod names;
mod open;
mod ops;
mod options;
mod plan;
mod prune;
mod reader;
mod records;
mod rows;
mod stamps;
mod table;

pub use aws_sdk_dynamodb::Client;
pub use options::{DynamoDbCredentials, DynamoDbOptions};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onceward_core::batch::Batch;
use onceward_core::key::Key;
use onceward_core::limits::LimitError;

use self::failure::Failure;
use self::names::Place;
use self::table::Table;
use super::clock::StoreClock;
use super::{
    Capabilities, Committed, Cursor, Durability, List, Loaded, Page, Read, Store, StoreError,
    StoreFuture,
};

const NAME: &str = "dynamodb";
/// A transaction holds one batch: DynamoDB would refuse all of a group for one of them.
const GROUP_MAX: usize = 1;
/// Batches that are worth having under way at once.
const LANES: usize = 32;

/// A store in a DynamoDB table.
#[derive(Debug)]
pub struct DynamoDbStore {
    table: Table,
    settled_ms: u64,
    closed: AtomicBool,
}

impl DynamoDbStore {
    /// Opens the table that the options name.
    ///
    /// # Errors
    /// When it can't be reached, or is not what this program needs.
    pub async fn connect(options: &DynamoDbOptions) -> Result<Self, StoreError> {
        Self::open(options, open::table(options, None, None)?).await
    }

    /// Opens the table with a client of the caller's own, which knows its region, endpoint and
    /// credentials. Its retries and time-outs are replaced by the store's.
    ///
    /// # Errors
    /// As [`DynamoDbStore::connect`].
    pub async fn connect_with_client(
        options: &DynamoDbOptions,
        client: &Client,
    ) -> Result<Self, StoreError> {
        Self::open(options, open::table(options, Some(client), None)?).await
    }

    /// Opens the table on a clock in the place of the date of its answers: for tests.
    ///
    /// # Errors
    /// As [`DynamoDbStore::connect`].
    pub async fn connect_with_clock(
        options: &DynamoDbOptions,
        clock: StoreClock,
    ) -> Result<Self, StoreError> {
        Self::open(options, open::table(options, None, Some(clock))?).await
    }

    async fn open(options: &DynamoDbOptions, table: Table) -> Result<Self, StoreError> {
        open::check(&table).await?;
        let settled_ms = u64::try_from(options.settled_after.as_millis()).unwrap_or(u64::MAX);
        Ok(Self { table, settled_ms, closed: AtomicBool::new(false) })
    }

    /// Makes the table, or brings it to this program's version.
    ///
    /// # Errors
    /// When it can't be reached or made, or another table has its name.
    pub async fn migrate(options: &DynamoDbOptions) -> Result<(), StoreError> {
        migrate::migrate(&open::table(options, None, None)?).await
    }

    /// The version of the table that this program makes and needs.
    #[must_use]
    pub const fn schema_version() -> usize {
        migrate::VERSION
    }

    fn is_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(StoreError::NotApplied("the DynamoDB store is closed".into()));
        }
        Ok(())
    }
}

impl Store for DynamoDbStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            clock: false,
            group_max: GROUP_MAX,
            lanes: LANES,
            gathers: false,
            watch: false,
            lists_are_current: false,
            leases_anew: None,
            durability: Durability::Full,
            warnings: Vec::new(),
        }
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(async move {
            self.is_open()?;
            if reads.is_empty() {
                // Whoever asks for nothing wants to know the date, and whether there is an answer.
                let place = Place::new(names::SCHEMA.0, names::SCHEMA.1);
                self.table.get(&place).await.map_err(Failure::of_read)?;
            }
            let facts = reader::load(&self.table, &reads).await.map_err(Failure::of_read)?;
            Ok(Loaded { now: self.table.dates.now(), facts })
        })
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            self.is_open()?;
            if group.len() > GROUP_MAX {
                let bound = format!("at most {GROUP_MAX}");
                return Err(LimitError::new("batches in a group", group.len(), bound).into());
            }
            let mut answers = Vec::with_capacity(group.len());
            for batch in group {
                batch.validate()?;
                answers.push(apply::commit(&self.table, &batch).await?);
            }
            Ok(Committed { answers })
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            self.is_open()?;
            let listed = list::list(&self.table, self.settled_ms, &what, after.as_ref(), limit);
            let (items, next) = listed.await.map_err(Failure::of_read)?;
            Ok(Page { now: self.table.dates.now(), items, payloads: Vec::new(), next })
        })
    }

    fn watch(&self, _keys: Vec<Key>) -> StoreFuture<'_, ()> {
        let what = "watching for changes";
        Box::pin(async move { Err(StoreError::Unsupported { store: NAME, what }) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::SeqCst);
            Ok(())
        })
    }
}
