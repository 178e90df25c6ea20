//! Once, in the caller's own Postgres transaction: business rows, key, outcome, audit and jobs in
//! one commit.
//!
//! The engine begins the transaction on the caller's connection, tries the key's lock in it and
//! sees that the key is free; the caller does its work; the engine writes the key as done, and
//! commits. A duplicate that finds the lock held lets go of its transaction and waits here, without
//! one, and is `busy` when its time is over. Not for effects elsewhere: what is done is taken back
//! when the commit does not come.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use onceward_core::batch::{Answer, Applied, Batch, Condition, There};
use onceward_core::decide::{self, Claim, Completion, Facts, Look, Once, Step, Verdict};
use onceward_core::drive::MAX_ROUNDS;
use onceward_core::key::Key;
use onceward_core::record::Draft;
use tokio_postgres::Client;

use super::{Engine, EngineError, OnceVerdict, blank_completion, later};
use crate::store::StoreError;
use crate::store::postgres::{Ended, OwnTransactions};

/// First pause before the lock is tried again; doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// What beginning came to.
#[derive(Debug)]
pub enum Begun<'c> {
    /// The key is free and locked: do the work, then [`Open::complete`].
    Open(Open<'c>),
    /// There is nothing to do: a replay, a mismatch, busy, ….
    Not(Verdict),
}

/// A transaction on the caller's connection that holds the lock of a key. Dropped, it rolls back.
pub struct Open<'c> {
    engine: Engine,
    own: OwnTransactions,
    client: &'c mut Client,
    /// The transaction's number.
    number: String,
    claim: Box<Claim>,
    facts: Box<Facts>,
    ended: bool,
}

impl fmt::Debug for Open<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").field("claim", &self.claim).finish_non_exhaustive()
    }
}

/// Why a look at the key ends the round, or what it is good for.
enum Looked {
    /// The verdict does not depend on the work.
    Verdict(Verdict),
    /// Someone is at the key.
    Held,
    /// It may run.
    Free,
}

impl Engine {
    /// Begins to run once for this claim, in a transaction of the caller's own connection, which
    /// will also record the outcome.
    ///
    /// The caller reads and writes its own tables through [`Open::client`] and must neither commit
    /// nor roll back. Nothing begins for a key that has its outcome, whose payload differs, or that
    /// another transaction is at for longer than `contended_for`: those are verdicts. The server
    /// ends a transaction that idles longer than the store's `idle_in_transaction_timeout_ms`.
    ///
    /// The connection's login has to be a member of `onceward_engine`, in the store's database.
    ///
    /// # Errors
    /// When the store or the connection gives no answer. Nothing was done then.
    pub async fn begin_once<'c>(
        &self,
        own: &OwnTransactions,
        client: &'c mut Client,
        claim: &Claim,
    ) -> Result<Begun<'c>, EngineError> {
        claim.validate()?;
        let until = later(Instant::now(), self.0.options.contended_for);
        let mut pause = PAUSE_FIRST;
        loop {
            // What needs no transaction is answered without one.
            let (looked, _) = self.look_own(claim).await?;
            let begun = match looked {
                Looked::Verdict(verdict) => return Ok(Begun::Not(verdict)),
                Looked::Held => None,
                Looked::Free => own.begin(client, &claim.key).await?,
            };
            if let Some(number) = begun {
                let (own, claim) = (own.clone(), Box::new(claim.clone()));
                let (engine, facts, ended) = (self.clone(), Box::default(), false);
                let mut open = Open { engine, own, client, number, claim, facts, ended };
                // Under the lock nobody else writes the key: what is there now stays.
                let (looked, facts) = self.look_own(&open.claim).await?;
                *open.facts = facts;
                return match looked {
                    Looked::Free => Ok(Begun::Open(open)),
                    Looked::Verdict(verdict) => {
                        open.abandon().await?;
                        Ok(Begun::Not(verdict))
                    }
                    Looked::Held => {
                        open.abandon().await?;
                        Ok(Begun::Not(busy()))
                    }
                };
            }
            if later(Instant::now(), pause) > until {
                return Ok(Begun::Not(busy()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Looks at the key, and whether the claim may run.
    async fn look_own(&self, claim: &Claim) -> Result<(Looked, Facts), EngineError> {
        let mut facts = Facts::default();
        self.look_up(&[Look::Record(claim.key.clone())], &mut facts).await?;
        for _ in 0..MAX_ROUNDS {
            self.watch_lease(Some(&claim.key), &mut facts);
            match decide::run_once(claim, &blank_completion(), self.0.tokens.next(), &facts) {
                Step::Answer(verdict) => return Ok((Looked::Verdict(verdict), facts)),
                Step::Look(looks) => self.look_up(&looks, &mut facts).await?,
                Step::Commit(_, Once::Ran { .. }) => return Ok((Looked::Free, facts)),
                Step::Commit(batch, Once::Unknown(record)) => {
                    // A lease that ran out under `hold`: that is written first, and is the answer.
                    let batch = Arc::new(batch);
                    match self.0.scheduler.submit(batch.clone()).await? {
                        Answer::Applied(_) => {
                            return Ok((Looked::Verdict(Verdict::Unknown(record)), facts));
                        }
                        Answer::Refused(refused) => facts.learn(&batch, refused),
                        Answer::Contended => return Ok((Looked::Held, facts)),
                    }
                }
            }
        }
        Err(EngineError::Contended("time after time"))
    }

    /// Whether a commit that nobody answered was carried out.
    ///
    /// A look alone does not tell: the server may still be at it, and "absent" now may be "done" a
    /// moment later. Whoever commits holds the key's lock to the end, so an empty batch on the same
    /// key is refused or applied only once that is over.
    async fn settle_own(&self, key: &Key, batch: &Batch, why: String) -> Result<bool, EngineError> {
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

fn busy() -> Verdict {
    Verdict::Busy { retry_after_ms: PAUSE_MAX.as_millis().try_into().unwrap_or(u64::MAX) }
}

/// What was made of a completion.
struct Made {
    batch: Arc<Batch>,
    draft: Box<Draft>,
    was_expired: bool,
}

impl Open<'_> {
    /// The caller's connection, inside the transaction.
    #[must_use]
    pub fn client(&self) -> &Client {
        self.client
    }

    /// Writes the key as done with this outcome and commits, together with the caller's rows.
    ///
    /// # Errors
    /// [`EngineError::Contended`] when a mark or a job that is written moved meanwhile: all is
    /// rolled back, begin again. After a commit whose answer is lost the key is looked at until it
    /// is known what became of it; [`StoreError::Unknown`] when that takes longer than
    /// `resend_for`, and only then may it have been committed.
    pub async fn complete(mut self, completion: &Completion) -> Result<OnceVerdict, EngineError> {
        completion.validate(self.claim.key.tenant_column())?;
        let made = match self.decide(completion).await? {
            Ok(made) => made,
            Err(verdict) => {
                self.abandon().await?;
                return Ok(OnceVerdict::Not(verdict));
            }
        };
        match self.own.apply(self.client, &self.number, &made.batch).await? {
            Answer::Applied(applied) => self.commit(made, applied).await,
            Answer::Refused(_) => {
                self.abandon().await?;
                Err(EngineError::Contended("meanwhile"))
            }
            Answer::Contended => {
                self.abandon().await?;
                Err(EngineError::Contended("in an open transaction"))
            }
        }
    }

    /// Rolls back: nothing was done, and the key is free.
    ///
    /// # Errors
    /// When the connection is lost; the server rolls back then.
    pub async fn abandon(mut self) -> Result<(), EngineError> {
        self.ended = true;
        Ok(self.own.roll_back(self.client).await?)
    }

    /// The batch that records the completion, or why there is none.
    async fn decide(
        &mut self,
        completion: &Completion,
    ) -> Result<Result<Made, Verdict>, EngineError> {
        let token = self.engine.0.tokens.next();
        for _ in 0..MAX_ROUNDS {
            match decide::run_once(&self.claim, completion, token, &self.facts) {
                Step::Commit(batch, Once::Ran { draft, was_expired }) => {
                    return Ok(Ok(Made { batch: Arc::new(batch), draft, was_expired }));
                }
                Step::Look(looks) => self.engine.look_up(&looks, &mut self.facts).await?,
                Step::Answer(verdict) => return Ok(Err(verdict)),
                Step::Commit(_, Once::Unknown(record)) => {
                    return Ok(Err(Verdict::Unknown(record)));
                }
            }
        }
        Err(EngineError::Contended("time after time"))
    }

    async fn commit(mut self, made: Made, applied: Applied) -> Result<OnceVerdict, EngineError> {
        self.ended = true;
        match self.own.commit(self.client).await {
            Ended::Committed => {}
            Ended::Refused(why) => return Err(StoreError::NotApplied(why).into()),
            Ended::Lost(why) => {
                if !self.engine.settle_own(&self.claim.key, &made.batch, why).await? {
                    let why = "the connection was lost, and the transaction was rolled back";
                    return Err(StoreError::NotApplied(why.into()).into());
                }
            }
        }
        self.engine.0.rounds.note(&made.batch);
        self.engine.0.waiters.wake(&made.batch);
        let stamp = applied.first.map_or(0, |(rev, _)| rev.0);
        let record = Box::new(made.draft.resolve(made.batch.token, applied.now, stamp));
        Ok(OnceVerdict::Ran { record, was_expired: made.was_expired })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The first poll sends it; nobody has to hear the answer.
            let _ = self.client.batch_execute("ROLLBACK").now_or_never();
        }
    }
}
