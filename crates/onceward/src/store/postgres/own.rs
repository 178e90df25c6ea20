//! The caller's own transaction: its rows, and the batch that records what was done, in one commit.
//!
//! Rule: the key's lock is tried inside the caller's transaction and kept until it ends, so nobody
//! else decides about the key meanwhile, and a duplicate is told so at once instead of waiting with
//! a connection in its hand. The transaction reads what is committed when a statement begins, and
//! the server ends one that idles. Who may do this is a member of `onceward_engine`. When to begin,
//! what to run and how to learn what became of a lost commit is the engine's business.

use std::fmt;
use std::sync::Arc;

use onceward_core::batch::{Answer, Batch};
use onceward_core::key::Key;
use tokio_postgres::{Client, Error, IsolationLevel, Transaction};

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
    /// What [`Engine::run_once_in`](crate::engine::Engine::run_once_in) needs to work in
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
    /// Begins a transaction on the caller's connection.
    pub(crate) async fn begin<'c>(
        &self,
        client: &'c mut Client,
    ) -> Result<Transaction<'c>, StoreError> {
        // Each statement has to see what was committed before the lock was taken.
        let build = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
        let transaction = build.start().await.map_err(not_applied)?;
        let idle = format!("SET LOCAL idle_in_transaction_session_timeout = {}", self.idle_ms);
        transaction.batch_execute(&idle).await.map_err(not_applied)?;
        Ok(transaction)
    }

    /// Tries the key's lock; it is kept until the transaction ends.
    pub(crate) async fn try_lock(
        &self,
        transaction: &Transaction<'_>,
        key: &Key,
    ) -> Result<bool, StoreError> {
        let lock = locks::of_key(&self.schema, key);
        let row = transaction
            .query_one("SELECT pg_catalog.pg_try_advisory_xact_lock($1)", &[&lock])
            .await
            .map_err(not_applied)?;
        row.try_get(0).map_err(not_applied)
    }

    /// Applies a batch inside the transaction. It counts once the transaction is committed.
    pub(crate) async fn apply(
        &self,
        transaction: &Transaction<'_>,
        batch: &Arc<Batch>,
    ) -> Result<Answer, StoreError> {
        batch.validate()?;
        rows::check(batch)?;
        let batches = std::slice::from_ref(batch);
        let call = Call::of(&self.schema, batches, None);
        let text = format!(
            "SELECT (there).*, now_ms, verdicts, again_rev, again_fence, failed, stamps \
             FROM \"{}\".apply_own($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            self.schema
        );
        let statement = transaction.prepare(&text).await.map_err(not_applied)?;
        let answered = transaction.query(&statement, &call.values()).await;
        let rows = answered.map_err(not_applied)?;
        let mut answers = call.answers(batches, &rows)?;
        answers
            .pop()
            .unwrap_or_else(|| Err(StoreError::Corrupt("a batch came without an answer".into())))
    }

    /// Commits.
    pub(crate) async fn commit(&self, transaction: Transaction<'_>) -> Ended {
        match transaction.commit().await {
            Ok(()) => Ended::Committed,
            Err(error) if breaks_session(&error) => Ended::Lost(describe(&error)),
            Err(error) => Ended::Refused(describe(&error)),
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
