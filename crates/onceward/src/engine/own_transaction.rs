//! Once, in the caller's own Postgres transaction: business rows, key, outcome, audit and jobs in
//! one commit.
//!
//! The engine begins the transaction on the caller's connection, tries the key's lock in it, sees
//! that the key is free, runs the caller's work, writes the key as done, and commits. A duplicate
//! that finds the lock held lets go of its transaction and waits here, without a connection, and is
//! `busy` when its time is over. Not for effects elsewhere: the work may run more than once, and
//! only one run is kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward_core::batch::{Answer, Applied, Batch, Condition, There};
use onceward_core::decide::{self, Claim, Completion, Facts, Look, Once, Step, Verdict};
use onceward_core::drive::MAX_ROUNDS;
use onceward_core::key::Key;
use onceward_core::record::Draft;
use onceward_core::zoo::{Bug, planted};
use tokio_postgres::{Client, Transaction};

use super::{Engine, EngineError, OnceVerdict, blank_completion, later};
use crate::store::StoreError;
use crate::store::postgres::{Ended, OwnTransactions};

/// First pause before the lock is tried again; doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Why nothing was committed, or nobody knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnTransactionError<E> {
    /// The work said so; its transaction is rolled back.
    #[error("the caller's work failed: {0}")]
    Caller(E),
    /// The engine has no answer. Nothing was committed unless it is [`StoreError::Unknown`].
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl<E> From<StoreError> for OwnTransactionError<E> {
    fn from(error: StoreError) -> Self {
        Self::Engine(error.into())
    }
}

/// What a round came to.
enum Round {
    End(OnceVerdict),
    /// Someone's open transaction has the key, or a mark that is written.
    Held,
    /// Decide again with what was learnt.
    Again,
}

/// What was made of a completion.
struct Made {
    batch: Arc<Batch>,
    draft: Box<Draft>,
    was_expired: bool,
}

impl Engine {
    /// Runs `work` once for this claim, in a transaction of the caller's own connection, which also
    /// records its outcome.
    ///
    /// The engine begins the transaction and commits it; `work` reads and writes its own tables in
    /// it, and must not commit. It may run more than once before it is committed; only the last
    /// run's writes are kept. It is not run for a key that has its outcome, whose payload differs,
    /// or that another transaction is at: those are verdicts. The server ends a transaction that
    /// idles longer than the store's `idle_in_transaction_timeout_ms`. Dropped, it rolls back.
    ///
    /// The connection's login has to be a member of `onceward_engine`, in the store's database.
    ///
    /// # Errors
    /// The work's own, or the engine's. After a lost commit the key is looked at until it is known
    /// what became of it; [`StoreError::Unknown`] when that takes longer than `resend_for`.
    pub async fn run_once_in<E, F>(
        &self,
        own: &OwnTransactions,
        client: &mut Client,
        claim: &Claim,
        mut work: F,
    ) -> Result<OnceVerdict, OwnTransactionError<E>>
    where
        F: AsyncFnMut(&Transaction<'_>) -> Result<Completion, E>,
    {
        claim.validate().map_err(EngineError::from)?;
        let until = later(Instant::now(), self.0.options.contended_for);
        let mut pause = PAUSE_FIRST;
        let mut facts = Facts::default();
        let mut rounds = 0;
        self.look_up(&[Look::Record(claim.key.clone())], &mut facts).await?;
        loop {
            match self.own_round(own, client, claim, &mut work, &mut facts).await? {
                Round::End(verdict) => return Ok(verdict),
                Round::Held if later(Instant::now(), pause) > until => {
                    let retry_after_ms = PAUSE_MAX.as_millis().try_into().unwrap_or(u64::MAX);
                    return Ok(OnceVerdict::Not(Verdict::Busy { retry_after_ms }));
                }
                Round::Held => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    // Whoever had it may have finished: a replay needs no transaction.
                    self.look_up(&[Look::Record(claim.key.clone())], &mut facts).await?;
                }
                Round::Again if rounds == MAX_ROUNDS => {
                    return Err(EngineError::Contended("time after time").into());
                }
                Round::Again => rounds += 1,
            }
        }
    }

    async fn own_round<E, F>(
        &self,
        own: &OwnTransactions,
        client: &mut Client,
        claim: &Claim,
        work: &mut F,
        facts: &mut Facts,
    ) -> Result<Round, OwnTransactionError<E>>
    where
        F: AsyncFnMut(&Transaction<'_>) -> Result<Completion, E>,
    {
        // What needs no transaction is answered without one.
        if let Some(end) = self.own_answer(claim, facts, false).await? {
            return Ok(end);
        }
        let transaction = own.begin(client).await?;
        if !own.try_lock(&transaction, &claim.key).await? {
            rolled_back(transaction).await?;
            return Ok(Round::Held);
        }
        // Under the lock nobody else writes the key: what is there now stays until we end.
        self.look_up(&[Look::Record(claim.key.clone())], facts).await?;
        if let Some(end) = self.own_answer(claim, facts, true).await? {
            rolled_back(transaction).await?;
            return Ok(end);
        }
        let completion = match work(&transaction).await {
            Ok(completion) => completion,
            Err(error) => {
                rolled_back(transaction).await?;
                return Err(OwnTransactionError::Caller(error));
            }
        };
        completion.validate(claim.key.tenant_column()).map_err(EngineError::from)?;
        let Some(made) = self.own_batch(claim, &completion, facts).await? else {
            rolled_back(transaction).await?;
            return Ok(Round::Again);
        };
        match own.apply(&transaction, &made.batch).await? {
            Answer::Applied(applied) => {
                self.own_commit(own, transaction, claim, made, applied).await
            }
            Answer::Refused(refused) => {
                rolled_back(transaction).await?;
                facts.learn(&made.batch, refused);
                Ok(Round::Again)
            }
            Answer::Contended => {
                rolled_back(transaction).await?;
                Ok(Round::Held)
            }
        }
    }

    /// The verdict, if it does not depend on the work. `locked`: we have the key's lock, and have
    /// to let go of it before anything else may write the key.
    async fn own_answer(
        &self,
        claim: &Claim,
        facts: &mut Facts,
        locked: bool,
    ) -> Result<Option<Round>, EngineError> {
        self.watch_lease(Some(&claim.key), facts);
        for _ in 0..MAX_ROUNDS {
            match decide::run_once(claim, &blank_completion(), self.0.tokens.next(), facts) {
                Step::Answer(verdict) => {
                    return Ok(Some(Round::End(OnceVerdict::Not(verdict))));
                }
                Step::Look(looks) => self.look_up(&looks, facts).await?,
                Step::Commit(_, Once::Ran { .. }) => return Ok(None),
                Step::Commit(_, Once::Unknown(_)) if locked => return Ok(Some(Round::Again)),
                Step::Commit(batch, Once::Unknown(record)) => {
                    // A lease that ran out under `hold`: that is written first, and is the answer.
                    let batch = Arc::new(batch);
                    match self.0.scheduler.submit(batch.clone()).await? {
                        Answer::Applied(_) => {
                            let verdict = Verdict::Unknown(record);
                            return Ok(Some(Round::End(OnceVerdict::Not(verdict))));
                        }
                        Answer::Refused(refused) => facts.learn(&batch, refused),
                        Answer::Contended => return Ok(Some(Round::Held)),
                    }
                }
            }
        }
        Err(EngineError::Contended("time after time"))
    }

    /// The batch that records the completion; none when the work has to run again.
    async fn own_batch(
        &self,
        claim: &Claim,
        completion: &Completion,
        facts: &mut Facts,
    ) -> Result<Option<Made>, EngineError> {
        let token = self.0.tokens.next();
        for _ in 0..MAX_ROUNDS {
            match decide::run_once(claim, completion, token, facts) {
                Step::Commit(batch, Once::Ran { draft, was_expired }) => {
                    let batch = Arc::new(batch);
                    return Ok(Some(Made { batch, draft, was_expired }));
                }
                Step::Look(looks) => self.look_up(&looks, facts).await?,
                Step::Commit(_, Once::Unknown(_)) | Step::Answer(_) => return Ok(None),
            }
        }
        Err(EngineError::Contended("time after time"))
    }

    async fn own_commit<E>(
        &self,
        own: &OwnTransactions,
        transaction: Transaction<'_>,
        claim: &Claim,
        made: Made,
        applied: Applied,
    ) -> Result<Round, OwnTransactionError<E>> {
        match own.commit(transaction).await {
            Ended::Committed => {}
            Ended::Refused(why) => return Err(StoreError::NotApplied(why).into()),
            Ended::Lost(why) => {
                if !self.own_settled(&claim.key, &made.batch, why).await? {
                    let why = "the connection was lost, and the transaction was rolled back";
                    return Err(StoreError::NotApplied(why.into()).into());
                }
            }
        }
        self.0.waiters.wake(&made.batch);
        let stamp = applied.first.map_or(0, |(rev, _)| rev.0);
        let record = Box::new(made.draft.resolve(made.batch.token, applied.now, stamp));
        Ok(Round::End(OnceVerdict::Ran { record, was_expired: made.was_expired }))
    }

    /// Whether a commit that nobody answered was carried out.
    ///
    /// A look alone does not tell: the server may still be at it, and "absent" now may be "done" a
    /// moment later. Whoever commits holds the key's lock to the end, so an empty batch on the same
    /// key is refused or applied only once that is over.
    async fn own_settled(
        &self,
        key: &Key,
        batch: &Batch,
        why: String,
    ) -> Result<bool, EngineError> {
        if planted(Bug::LostAnswerTakenForFailure) {
            return Ok(false);
        }
        let until = later(Instant::now(), self.0.options.resend_for);
        let mut pause = self.0.options.resend_pause;
        loop {
            let mut probe = Batch::new(self.0.tokens.next());
            probe.conditions.push(Condition::Absent(key.clone()));
            match self.0.scheduler.submit(Arc::new(probe)).await {
                Ok(Answer::Applied(_)) => return Ok(false),
                Ok(Answer::Refused(refused)) => {
                    return Ok(refused.failed.iter().any(|(_, there)| {
                        matches!(there, There::Record(Some(stored))
                            if stored.record.token == batch.token)
                    }));
                }
                Ok(Answer::Contended) | Err(_) => {}
            }
            if later(Instant::now(), pause) > until {
                return Err(StoreError::Unknown(why).into());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(super::RESEND_PAUSE_MAX);
        }
    }
}

/// Rolls back, and waits for it: the lock is free when this returns.
async fn rolled_back(transaction: Transaction<'_>) -> Result<(), StoreError> {
    let said = |error: tokio_postgres::Error| StoreError::NotApplied(error.to_string());
    transaction.rollback().await.map_err(said)
}
