//! The caller's own transaction: its rows, and the batch that records what was done, in one commit.
//!
//! Rule: the key's lock is tried inside the caller's transaction and kept until it ends, so nobody
//! else decides about the key meanwhile, and a duplicate is told so at once instead of waiting with
//! a connection in its hand. The transaction reads what is committed when a statement begins, and
//! the server ends one that idles. Who may do this is a member of `onceward_engine`. When to begin,
//! what to run and how to learn what became of a lost commit is the engine's business.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use onceward_core::batch::{Answer, Batch};
use onceward_core::key::Key;
use tokio_postgres::{Client, Error};

use super::super::StoreError;
use super::apply::Call;
use super::failure::{Failure, breaks_session, describe};
use super::{PostgresStore, locks, rows};

/// How the caller's transactions are used: made by [`PostgresStore::own_transactions`].
#[derive(Clone)]
pub struct OwnTransactions {
    schema: Arc<str>,
    idle_ms: u64,
}

impl fmt::Debug for OwnTransactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnTransactions").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// What [`Engine::begin_once`](crate::engine::Engine::begin_once) needs to work in
    /// transactions of the caller's own connections to the same database.
    #[must_use]
    pub fn own_transactions(&self) -> OwnTransactions {
        OwnTransactions { schema: self.schema.clone(), idle_ms: self.idle_ms }
    }
}

/// How the caller's transaction ended.
pub(crate) enum Ended {
    /// It is committed.
    Committed,
    /// The server said no: nothing of it is there.
    Refused(String),
    /// Nobody answered: it may be committed, or may be yet.
    Lost(String),
}

impl OwnTransactions {
    /// Begins a transaction on the caller's connection, and tries the key's lock in it, which is
    /// kept until the transaction ends. Returns the transaction's number; none, and no
    /// transaction, when someone else has the lock.
    pub(crate) async fn begin(
        &self,
        client: &Client,
        key: &Key,
    ) -> Result<Option<String>, StoreError> {
        // Each statement has to see what was committed before the lock was taken.
        let begin = format!(
            "START TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE; \
             SET LOCAL idle_in_transaction_session_timeout = {}",
            self.idle_ms
        );
        let mut begun = Begun { client, ended: false };
        client.batch_execute(&begin).await.map_err(not_applied)?;
        let lock = locks::of_key(&self.schema, key);
        let tried = "SELECT CASE WHEN pg_catalog.pg_try_advisory_xact_lock($1) \
                     THEN pg_catalog.pg_current_xact_id()::text END";
        let row = client.query_one(tried, &[&lock]).await.map_err(not_applied)?;
        let number: Option<String> = row.try_get(0).map_err(not_applied)?;
        begun.ended = true;
        if number.is_none() {
            self.roll_back(client).await?;
        }
        Ok(number)
    }

    /// Applies a batch inside the transaction of this number, and in no other: a caller that has
    /// ended it has let go of the lock. It counts once the transaction is committed.
    pub(crate) async fn apply(
        &self,
        client: &Client,
        number: &str,
        batch: &Arc<Batch>,
    ) -> Result<Answer, StoreError> {
        batch.validate()?;
        rows::check(batch)?;
        let batches = std::slice::from_ref(batch);
        let call = Call::of(&self.schema, batches, None);
        let text = format!(
            "SELECT (there).*, now_ms, verdicts, again_rev, again_fence, failed, stamp \
             FROM \"{}\".apply_own($1, $2, $3, $4, $5, $6, $7, $8) \
             WHERE pg_catalog.pg_current_xact_id()::text = $9",
            self.schema
        );
        let statement = client.prepare(&text).await.map_err(not_applied)?;
        let mut values = call.values().to_vec();
        values.push(&number);
        let rows = client.query(&statement, &values).await.map_err(not_applied)?;
        if rows.is_empty() {
            let why = "the work has ended the transaction that it was given";
            return Err(StoreError::NotApplied(why.into()));
        }
        let mut answers = call.answers(batches, &rows)?;
        answers
            .pop()
            .unwrap_or_else(|| Err(StoreError::Corrupt("a batch came without an answer".into())))
    }

    /// Commits.
    pub(crate) async fn commit(&self, client: &Client) -> Ended {
        match client.simple_query("COMMIT").await {
            // A transaction that has failed is rolled back by COMMIT, and the server says so only
            // in the name of what it did; ours would have failed at the batch before.
            Ok(_) => Ended::Committed,
            Err(error) if breaks_session(&error) => Ended::Lost(describe(&error)),
            Err(error) => Ended::Refused(describe(&error)),
        }
    }

    /// Rolls back, and waits for it: the lock is free when this returns.
    pub(crate) async fn roll_back(&self, client: &Client) -> Result<(), StoreError> {
        client.batch_execute("ROLLBACK").await.map_err(not_applied)
    }
}

/// A transaction that is being begun: given up half-way, it is rolled back.
struct Begun<'c> {
    client: &'c Client,
    ended: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The first poll sends it; nobody has to hear the answer.
            let _ = self.client.batch_execute("ROLLBACK").now_or_never();
        }
    }
}

/// Before the commit, whatever goes wrong leaves nothing behind.
fn not_applied(error: Error) -> StoreError {
    match Failure::from(error) {
        Failure::Rejected { text, .. } | Failure::Gone(text) | Failure::Lost(text) => {
            StoreError::NotApplied(text)
        }
    }
}
