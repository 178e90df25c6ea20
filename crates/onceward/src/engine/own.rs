//! Once, with the caller's own SQL: business rows, key, outcome, audit and jobs in one commit.
//!
//! The writer of the embedded store runs a closure in a savepoint of its transaction, after it has
//! seen that the key is free and before it writes the key as done. An error, a panic or a lost race
//! takes back what the closure wrote, and touches nobody else in the group. Not for effects
//! elsewhere: a closure may run more than once, and only one run is kept.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::join_all;
use onceward_core::batch::{Answer, Batch};
use onceward_core::decide::{self, Claim, Completion, Facts, Look, Once, Step, Verdict};
use onceward_core::drive::MAX_ROUNDS;
use onceward_core::limits::LimitError;
use onceward_core::record::Draft;
use onceward_core::stamp::Token;
use rusqlite::Connection;

use super::{Engine, EngineError, OnceVerdict, RESEND_PAUSE_MAX, blank_completion, later};
use crate::store::StoreError;
use crate::store::sqlite::OwnSql;

/// Why nothing was committed, or nobody knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnSqlError<E> {
    /// The closure said so; what it wrote is taken back.
    #[error("the caller's SQL failed: {0}")]
    Caller(E),
    /// The closure panicked; what it wrote is taken back.
    #[error("the caller's SQL panicked: {0}")]
    Panicked(String),
    /// The engine has no answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// Runs `work` once for this claim, in the transaction that records its outcome.
    ///
    /// `work` gets the writer's connection, inside a savepoint: it reads and writes its own tables
    /// and must not wait for anything else, because every other commit waits for it. It may run
    /// more than once before it is committed; only the last run's writes are kept. It is not run
    /// for a key that has its outcome, or whose payload differs: those are verdicts.
    ///
    /// # Errors
    /// The closure's own, a panic in it, or the engine's. On a store other than SQLite
    /// [`StoreError::Unsupported`].
    pub async fn run_once_with<E, F>(
        &self,
        claim: &Claim,
        work: F,
    ) -> Result<OnceVerdict, OwnSqlError<E>>
    where
        E: Send + 'static,
        F: FnMut(&Connection) -> Result<Completion, E> + Send + 'static,
    {
        claim.validate().map_err(EngineError::from)?;
        let own = Arc::new(Own::new(claim.clone(), work));
        self.run_own(&own, Facts::default()).await
    }

    /// [`Engine::run_once_with`] for many, in one transaction where that goes, each on its own. The
    /// same key must not come twice.
    pub async fn run_once_with_many<E, F>(
        &self,
        requests: Vec<(Claim, F)>,
    ) -> Vec<Result<OnceVerdict, OwnSqlError<E>>>
    where
        E: Send + 'static,
        F: FnMut(&Connection) -> Result<Completion, E> + Send + 'static,
    {
        let blank = blank_completion();
        let mut facts = Facts::default();
        self.watch_lease(None, &mut facts);
        let mut owns = Vec::with_capacity(requests.len());
        let mut ready = Vec::with_capacity(requests.len());
        for (claim, work) in requests {
            let own = Arc::new(Own::new(claim, work));
            // Nothing is known of any of them, so each is tried as if nobody had its key.
            let step = decide::run_once(&own.claim, &blank, self.0.tokens.next(), &facts);
            let tried = own.claim.validate().map(|()| match step {
                Step::Commit(template, Once::Ran { .. }) => {
                    own.begin(template, facts.clone());
                    ready.push(own.clone());
                    true
                }
                _ => false,
            });
            owns.push((own, tried));
        }
        let answers = self.commit_own(&ready).await;
        let mut answers = answers.map(Vec::into_iter);
        let left_out = || StoreError::Unknown("the store left out an answer".into()).into();
        let ends = owns.into_iter().map(|(own, tried)| {
            let answer = match (&tried, &mut answers) {
                (Ok(true), Ok(answers)) => Some(answers.next().ok_or_else(left_out)),
                (Ok(true), Err(error)) => Some(Err(error.clone())),
                _ => None,
            };
            let facts = facts.clone();
            async move {
                match (tried, answer) {
                    (Err(limit), _) => Err(EngineError::from(limit).into()),
                    (Ok(_), Some(answer)) => self.go_on_own(&own, answer?).await,
                    (Ok(_), None) => self.run_own(&own, facts).await,
                }
            }
        });
        // Side by side: what is left to be done shares its commits.
        join_all(ends).await
    }

    /// What the answer to the first try comes to; whatever it did not settle goes on alone.
    async fn go_on_own<E, F>(
        &self,
        own: &Arc<Own<E, F>>,
        answer: Answer,
    ) -> Result<OnceVerdict, OwnSqlError<E>>
    where
        E: Send + 'static,
        F: FnMut(&Connection) -> Result<Completion, E> + Send + 'static,
    {
        let mut facts = Facts::default();
        match self.heard_own(own, answer, &mut facts).await? {
            Some(end) => Ok(end),
            None => self.run_own(own, facts).await,
        }
    }

    async fn run_own<E, F>(
        &self,
        own: &Arc<Own<E, F>>,
        mut facts: Facts,
    ) -> Result<OnceVerdict, OwnSqlError<E>>
    where
        E: Send + 'static,
        F: FnMut(&Connection) -> Result<Completion, E> + Send + 'static,
    {
        let (claim, blank) = (&own.claim, blank_completion());
        for _ in 0..MAX_ROUNDS {
            self.watch_lease(Some(&claim.key), &mut facts);
            match decide::run_once(claim, &blank, self.0.tokens.next(), &facts) {
                Step::Answer(verdict) => return Ok(OnceVerdict::Not(verdict)),
                Step::Look(looks) => self.look_up(&looks, &mut facts).await?,
                Step::Commit(batch, Once::Unknown(record)) => {
                    // A lease that ran out under `hold`: that is written first, and is the answer.
                    let batch = Arc::new(batch);
                    match self.0.scheduler.submit(batch.clone()).await.map_err(EngineError::from)? {
                        Answer::Applied(_) => {
                            return Ok(OnceVerdict::Not(Verdict::Unknown(record)));
                        }
                        Answer::Refused(refused) => facts.learn(&batch, refused),
                        Answer::Contended => {}
                    }
                }
                Step::Commit(template, Once::Ran { .. }) => {
                    own.begin(template, facts.clone());
                    let answer = self.commit_own(std::slice::from_ref(own)).await?;
                    let missing = || StoreError::Unknown("the store left out an answer".into());
                    let answer = answer.into_iter().next().ok_or_else(missing)?;
                    if let Some(end) = self.heard_own(own, answer, &mut facts).await? {
                        return Ok(end);
                    }
                }
            }
        }
        Err(EngineError::Contended("time after time").into())
    }

    /// What an answer comes to; none when it has to be decided again.
    async fn heard_own<E, F>(
        &self,
        own: &Own<E, F>,
        answer: Answer,
        facts: &mut Facts,
    ) -> Result<Option<OnceVerdict>, OwnSqlError<E>> {
        match answer {
            Answer::Applied(applied) => {
                let Some((batch, draft, was_expired)) = own.state().made.take() else {
                    let why = "the store recognised a batch that was never made";
                    return Err(EngineError::from(StoreError::Unknown(why.into())).into());
                };
                self.0.rounds.note(&batch);
                self.0.waiters.wake(&batch);
                let stamp = applied.first.map_or(0, |(rev, _)| rev.0);
                let record = Box::new(draft.resolve(batch.token, applied.now, stamp));
                Ok(Some(OnceVerdict::Ran { record, was_expired }))
            }
            Answer::Refused(refused) => {
                let state = own.state();
                let made = state.made.as_ref().map_or(&state.template, |(batch, ..)| batch);
                facts.learn(made, refused);
                Ok(None)
            }
            Answer::Contended => {
                let stopped = own.state().stopped.take();
                match stopped {
                    Some(Stopped::Caller(error)) => Err(OwnSqlError::Caller(error)),
                    Some(Stopped::Panicked(what)) => Err(OwnSqlError::Panicked(what)),
                    Some(Stopped::Limit(limit)) => Err(EngineError::Limit(limit).into()),
                    Some(Stopped::Answer(verdict)) => Ok(Some(OnceVerdict::Not(verdict))),
                    Some(Stopped::Look(looks)) => {
                        self.look_up(&looks, facts).await?;
                        Ok(None)
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Sends them to the writer; after a lost answer again, until their time is over. Their tokens
    /// tell the writer which were applied, so no closure runs a second time then.
    async fn commit_own<E, F>(&self, owns: &[Arc<Own<E, F>>]) -> Result<Vec<Answer>, EngineError>
    where
        E: Send + 'static,
        F: FnMut(&Connection) -> Result<Completion, E> + Send + 'static,
    {
        if owns.is_empty() {
            return Ok(Vec::new());
        }
        let mut lost = None;
        loop {
            let asked = Instant::now();
            let group = owns.iter().map(|own| own.clone() as Arc<dyn OwnSql>).collect();
            let error = match self.0.store.commit_own(group).await {
                Ok(committed) => {
                    if let Some(Answer::Applied(applied)) = committed.answers.first()
                        && !applied.again
                    {
                        self.0.heard.note(asked, applied.now);
                    }
                    return Ok(committed.answers);
                }
                Err(error) if lost.is_some() || matches!(error, StoreError::Unknown(_)) => error,
                Err(error) => return Err(error.into()),
            };
            let (until, pause) = lost.unwrap_or_else(|| {
                (later(Instant::now(), self.0.options.resend_for), self.0.options.resend_pause)
            });
            if later(Instant::now(), pause) > until {
                return Err(StoreError::Unknown(error.to_string()).into());
            }
            tokio::time::sleep(pause).await;
            lost = Some((until, (pause * 2).min(RESEND_PAUSE_MAX)));
        }
    }
}

impl<E> From<StoreError> for OwnSqlError<E> {
    fn from(error: StoreError) -> Self {
        Self::Engine(error.into())
    }
}

/// A closure on its way through the writer.
struct Own<E, F> {
    claim: Claim,
    state: Mutex<State<E, F>>,
}

struct State<E, F> {
    work: F,
    template: Arc<Batch>,
    facts: Facts,
    /// What the last run came to: the batch, its record, whether the key had expired.
    made: Option<(Arc<Batch>, Box<Draft>, bool)>,
    /// Why the last run made nothing.
    stopped: Option<Stopped<E>>,
}

enum Stopped<E> {
    Caller(E),
    Panicked(String),
    Limit(LimitError),
    Answer(Verdict),
    Look(Vec<Look>),
}

impl<E, F> Own<E, F> {
    fn new(claim: Claim, work: F) -> Self {
        let template = Arc::new(Batch::new(Token::default()));
        let (facts, made, stopped) = (Facts::default(), None, None);
        Self { claim, state: Mutex::new(State { work, template, facts, made, stopped }) }
    }

    fn begin(&self, template: Batch, facts: Facts) {
        let mut state = self.state();
        state.template = Arc::new(template);
        state.facts = facts;
        (state.made, state.stopped) = (None, None);
    }

    fn state(&self) -> MutexGuard<'_, State<E, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E, F> OwnSql for Own<E, F>
where
    E: Send,
    F: FnMut(&Connection) -> Result<Completion, E> + Send,
{
    fn template(&self) -> Arc<Batch> {
        self.state().template.clone()
    }

    fn run(&self, connection: &Connection) -> Option<Arc<Batch>> {
        let mut state = self.state();
        (state.made, state.stopped) = (None, None);
        // What it wrote is taken back, so nothing half-done is seen by anybody.
        let worked = catch_unwind(AssertUnwindSafe(|| (state.work)(connection)));
        let stopped = match worked {
            Err(panic) => Stopped::Panicked(said(panic.as_ref())),
            Ok(Err(error)) => Stopped::Caller(error),
            Ok(Ok(completion)) => {
                let token = state.template.token;
                match completion.validate(self.claim.key.tenant_column()) {
                    Err(limit) => Stopped::Limit(limit),
                    Ok(()) => {
                        match decide::run_once(&self.claim, &completion, token, &state.facts) {
                            Step::Commit(batch, Once::Ran { draft, was_expired }) => {
                                let batch = Arc::new(batch);
                                if let Err(limit) = batch.validate() {
                                    state.stopped = Some(Stopped::Limit(limit));
                                    return None;
                                }
                                state.made = Some((batch.clone(), draft, was_expired));
                                return Some(batch);
                            }
                            Step::Commit(_, Once::Unknown(record)) => {
                                Stopped::Answer(Verdict::Unknown(record))
                            }
                            Step::Answer(verdict) => Stopped::Answer(verdict),
                            Step::Look(looks) => Stopped::Look(looks),
                        }
                    }
                }
            }
        };
        state.stopped = Some(stopped);
        None
    }
}

/// What a panic said, if it was words.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".into())
}
