//! Claims and what their holders do: the two-commit way, and `run_once` for the one-commit way.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use onceward_core::audit::{Entry, Trace};
use onceward_core::batch::Applied;
use onceward_core::decide::{
    self, Claim, Completion, Effects, Facts, Finish, Granted, Look, Once, Permit, Resolution,
    Resolved, Retry, Step, Verdict,
};
use onceward_core::drive::{Drive, End};
use onceward_core::key::Key;
use onceward_core::record::{Record, State};
use onceward_core::stamp::Token;
use tokio::sync::OwnedMutexGuard;

use super::erasures::noted;
#[cfg(feature = "events")]
use super::learn_looks;
use super::{Engine, EngineError, later};
use crate::store::StoreError;

/// The answer to [`Engine::run_once`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnceVerdict {
    /// It ran: outcome and effects are committed.
    Ran {
        /// The record as written.
        record: Box<Record>,
        /// The key had a record whose retention is over.
        was_expired: bool,
    },
    /// It did not run, and this is why; never [`Verdict::Run`].
    Not(Verdict),
}

impl Engine {
    /// Asks to run. One optimistic write when nobody had the key before.
    ///
    /// # Errors
    /// When the store gives no answer or the claim breaks a bound.
    pub async fn claim(&self, claim: &Claim) -> Result<Verdict, EngineError> {
        claim.validate()?;
        self.claim_from(claim, Facts::default()).await
    }

    /// Asks for many at once, in one group where the store has groups. A key may come twice.
    pub async fn claim_many(&self, claims: &[Claim]) -> Vec<Result<Verdict, EngineError>> {
        join_all(claims.iter().map(|claim| self.claim(claim))).await
    }

    /// Asks to run and, while someone else does, waits up to `wait` for the outcome.
    ///
    /// # Errors
    /// As [`Engine::claim`].
    pub async fn claim_waiting(
        &self,
        claim: &Claim,
        wait: Duration,
    ) -> Result<Verdict, EngineError> {
        self.claim_waiting_unless(claim, wait, std::future::pending()).await
    }

    /// [`Engine::claim_waiting`], but the wait also ends when `gone` resolves: the caller has left.
    ///
    /// Dropping a claim's future may leave a grant that nobody holds; this ends only between looks.
    ///
    /// # Errors
    /// As [`Engine::claim`].
    pub async fn claim_waiting_unless(
        &self,
        claim: &Claim,
        wait: Duration,
        gone: impl Future<Output = ()>,
    ) -> Result<Verdict, EngineError> {
        let deadline = later(Instant::now(), wait);
        let first = self.claim(claim).await?;
        if wait.is_zero() || !matches!(first, Verdict::Busy { .. }) {
            return Ok(first);
        }
        // Too many wait already: busy is the answer.
        let Some(waiter) = self.0.waiters.enter(&claim.key) else { return Ok(first) };
        let mut pause = self.0.options.poll_first;
        let mut told = false;
        tokio::pin!(gone);
        loop {
            let rung = waiter.bell.notified();
            tokio::pin!(rung);
            // Registered before the look, so that a completion in between rings.
            rung.as_mut().enable();
            let mut facts = Facts::default();
            self.look_up(&decide::looks(claim), &mut facts).await?;
            let verdict = self.claim_from(claim, facts).await?;
            let Verdict::Busy { retry_after_ms } = verdict else { return Ok(verdict) };
            let now = Instant::now();
            if now >= deadline {
                return Ok(verdict);
            }
            // The lease's end is worth a look at once; a lost bell costs at most one pause.
            let lease = Duration::from_millis(retry_after_ms);
            let nap = pause.min(deadline - now).min(lease.max(Duration::from_millis(1)));
            let told_in_vain = std::mem::take(&mut told);
            let elsewhere = async {
                // A store that tells again and again must not make this a loop without a pause.
                if told_in_vain {
                    tokio::time::sleep(self.0.options.poll_first).await;
                }
                self.changed_elsewhere(&claim.key).await;
            };
            tokio::select! {
                () = &mut gone => return Ok(verdict),
                () = rung => {}
                () = elsewhere => told = true,
                () = tokio::time::sleep(nap) => pause = (pause * 2).min(self.0.options.poll_max),
            }
        }
    }

    async fn claim_from(&self, claim: &Claim, facts: Facts) -> Result<Verdict, EngineError> {
        let decide = |token, facts: &Facts| decide::claim(claim, token, facts);
        match self.drive(Some(&claim.key), Drive::from(facts), decide).await? {
            End::Answer(verdict) => Ok(verdict),
            End::Committed { meaning, applied, .. } if applied.again => {
                self.recognised(&claim.key, meaning, applied).await
            }
            End::Committed { meaning, batch, applied } => meaning
                .verdict(batch.token, applied)
                .ok_or_else(|| StoreError::Corrupt("a grant came without a fence".into()).into()),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// The verdict of a grant whose first answer was lost, from what is there now.
    pub(super) async fn recognised(
        &self,
        key: &Key,
        granted: Granted,
        applied: Applied,
    ) -> Result<Verdict, EngineError> {
        // It was applied: not to know how it stands now is not to know, never "nothing was done".
        let unknown = |error: EngineError| StoreError::Unknown(error.to_string());
        let found = self.look(key).await.map_err(unknown)?;
        Ok(granted.recognised(applied, found.as_ref().map(|found| &found.stored.record)))
    }

    async fn changed_elsewhere(&self, key: &Key) {
        if !self.0.capabilities.watch || self.0.store.watch(vec![key.clone()]).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Commits outcome and effects together with the key as done, in one batch.
    ///
    /// # Errors
    /// When the store gives no answer or something breaks a bound.
    pub async fn run_once(
        &self,
        claim: &Claim,
        completion: &Completion,
    ) -> Result<OnceVerdict, EngineError> {
        claim.validate()?;
        completion.validate(claim.key.tenant_column())?;
        let _turns = self.turns_of(&completion.effects).await;
        let decide = |token, facts: &Facts| decide::run_once(claim, completion, token, facts);
        match self.drive(Some(&claim.key), Drive::default(), decide).await? {
            End::Answer(verdict) => Ok(OnceVerdict::Not(verdict)),
            End::GaveUp => Err(EngineError::Contended("time after time")),
            End::Committed { meaning, batch, applied } => Ok(match meaning {
                Once::Unknown(record) => OnceVerdict::Not(Verdict::Unknown(record)),
                Once::Ran { draft, was_expired } => {
                    let stamp = applied.first.map_or(0, |(rev, _)| rev.0);
                    let record = Box::new(draft.resolve(batch.token, applied.now, stamp));
                    OnceVerdict::Ran { record, was_expired }
                }
            }),
        }
    }

    /// [`Engine::run_once`] for many, in one group where the store has groups.
    pub async fn run_once_many(
        &self,
        requests: &[(Claim, Completion)],
    ) -> Vec<Result<OnceVerdict, EngineError>> {
        join_all(requests.iter().map(|(claim, completion)| self.run_once(claim, completion))).await
    }

    /// Starts the lease anew, for `lease_ms` or as long as it was granted for: whoever wants
    /// another length says so at every renewal, because a permit does not change with them.
    ///
    /// # Errors
    /// When the store gives no answer. The holder must then stop before its next effect.
    pub async fn renew(
        &self,
        permit: &Permit,
        lease_ms: Option<u64>,
    ) -> Result<Finish, EngineError> {
        if let Some(lease_ms) = lease_ms {
            let mut terms = permit.record.terms;
            terms.lease_ms = lease_ms;
            terms.validate()?;
        }
        self.finish(permit, |token, facts| decide::renew(permit, lease_ms, token, facts)).await
    }

    /// [`Engine::renew`] for many.
    pub async fn renew_many(&self, permits: &[Permit]) -> Vec<Result<Finish, EngineError>> {
        join_all(permits.iter().map(|permit| self.renew(permit, None))).await
    }

    /// Records the outcome with everything that commits beside it. When the guard refuses, the key
    /// is released.
    ///
    /// # Errors
    /// When the store gives no answer, or the outcome or its effects break a bound.
    pub async fn complete(
        &self,
        permit: &Permit,
        completion: &Completion,
    ) -> Result<Finish, EngineError> {
        let finish = self.complete_or_keep(permit, completion).await?;
        if matches!(finish, Finish::Refused(_)) {
            self.release(permit).await?;
        }
        Ok(finish)
    }

    /// [`Engine::complete`] that keeps the permit when a guard refuses: the holder may look again
    /// and hand in something else.
    ///
    /// # Errors
    /// As [`Engine::complete`].
    pub async fn complete_or_keep(
        &self,
        permit: &Permit,
        completion: &Completion,
    ) -> Result<Finish, EngineError> {
        completion.validate(permit.key().tenant_column())?;
        let _turns = self.turns_of(&completion.effects).await;
        let decide = |token, facts: &Facts| decide::complete(permit, completion, token, facts);
        self.finish(permit, decide).await
    }

    /// Records that a step of an overtaken attempt was refused: an old permit never works, and
    /// whoever looks for the reason finds it in the audit.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn note_refused(&self, permit: &Permit, step: &str) -> Result<(), EngineError> {
        let record = &permit.record;
        let mut entry = Entry::about(&record.key, "refused", &record.fingerprint, &record.trace);
        entry.fence = Some(permit.fence.0);
        entry.detail = Some(format!("{step} was refused: the attempt was overtaken").into());
        self.audit(&entry).await
    }

    /// [`Engine::complete`] for many, in one group where the store has groups.
    pub async fn complete_many(
        &self,
        done: &[(Permit, Completion)],
    ) -> Vec<Result<Finish, EngineError>> {
        join_all(done.iter().map(|(permit, completion)| self.complete(permit, completion))).await
    }

    /// Records a failed attempt.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn fail(
        &self,
        permit: &Permit,
        error: &str,
        retry: Retry,
    ) -> Result<Finish, EngineError> {
        self.finish(permit, |token, facts| decide::fail(permit, error, retry, token, facts)).await
    }

    /// [`Engine::fail`] for many.
    pub async fn fail_many(
        &self,
        failed: &[(Permit, String, Retry)],
    ) -> Vec<Result<Finish, EngineError>> {
        join_all(failed.iter().map(|(permit, error, retry)| self.fail(permit, error, *retry))).await
    }

    /// Ends an attempt of which nobody knows whether it had its effect.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn abandon(&self, permit: &Permit, why: &str) -> Result<Finish, EngineError> {
        self.finish(permit, |token, facts| decide::abandon(permit, why, token, facts)).await
    }

    /// Gives the permit back: nothing was done under it.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn release(&self, permit: &Permit) -> Result<Finish, EngineError> {
        self.finish(permit, |token, facts| decide::release(permit, token, facts)).await
    }

    /// [`Engine::release`] for many.
    pub async fn release_many(&self, permits: &[Permit]) -> Vec<Result<Finish, EngineError>> {
        join_all(permits.iter().map(|permit| self.release(permit))).await
    }

    /// The permit that names this fence, if it is still valid: for holders in another process.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn permit(&self, key: &Key, fence: u64) -> Result<Option<Permit>, EngineError> {
        let found = self.look(key).await?;
        let permit = found.and_then(|found| Permit::of(found.stored.record));
        Ok(permit.filter(|permit| permit.fence.0 == fence))
    }

    /// Decides by hand about a record that nobody may run.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn resolve(
        &self,
        key: &Key,
        resolution: &Resolution,
        by: &Trace,
    ) -> Result<Resolved, EngineError> {
        by.validate()?;
        let decide = |token, facts: &Facts| {
            let step = decide::resolve(key, resolution, by, token, facts);
            if matches!(resolution, Resolution::Erase) { noted(key, step) } else { step }
        };
        let resolved = match self.drive(Some(key), Drive::default(), decide).await? {
            End::Answer(resolved) | End::Committed { meaning: resolved, .. } => resolved,
            End::GaveUp => return Err(EngineError::Contended("time after time")),
        };
        if matches!((&resolved, resolution), (Resolved::Ok, Resolution::Erase)) {
            // It is erased, however this ends; what can't be done yet, the store's standing tells.
            let _ = self.0.store.scrub().await;
        }
        #[cfg(feature = "events")]
        if matches!((&resolved, resolution), (Resolved::Ok, Resolution::Rerun { .. }))
            && key.kind() == onceward_core::key::Kind::Event
        {
            // A request is retried by its client and a job is listed as due; an event is not.
            crate::handlers::leave_note(self, key).await?;
        }
        Ok(resolved)
    }

    /// Waits for the turn of every subject that these effects count up.
    async fn turns_of(&self, effects: &Effects) -> Vec<OwnedMutexGuard<()>> {
        let ordered = effects.jobs.iter().filter_map(|job| job.order.as_ref());
        self.0.turns.wait(ordered.map(|order| &order.tail)).await
    }

    async fn finish(
        &self,
        permit: &Permit,
        decide: impl FnMut(Token, &Facts) -> Step<Finish, Finish>,
    ) -> Result<Finish, EngineError> {
        match self.drive(Some(permit.key()), Drive::default(), decide).await? {
            End::Answer(finish) | End::Committed { meaning: finish, .. } => Ok(finish),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// How claims stand, without writing: records and guards are looked at together. None for one
    /// that would be granted as far as that tells.
    #[cfg(feature = "events")]
    pub(crate) async fn stand(
        &self,
        claims: &[&Claim],
    ) -> Result<Vec<Option<Verdict>>, EngineError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let looks: Vec<_> = claims.iter().map(|claim| decide::looks(claim)).collect();
        let loaded = self.load_looks(looks.iter().flatten()).await?;
        let mut found = loaded.facts.into_iter();
        let mut verdicts = Vec::with_capacity(claims.len());
        for (claim, looks) in claims.iter().zip(&looks) {
            let mut facts = Facts::at(loaded.now);
            learn_looks(looks, &mut found, &mut facts)?;
            self.watch_lease(Some(&claim.key), &mut facts);
            verdicts.push(match decide::claim(claim, Token::default(), &facts) {
                Step::Answer(verdict) => Some(verdict),
                Step::Commit(..) | Step::Look(_) => None,
            });
        }
        Ok(verdicts)
    }

    /// Answers from what is there, without writing: a replay or another final verdict, or none when
    /// the claim would have to be made.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn look_before(&self, claim: &Claim) -> Result<Option<Verdict>, EngineError> {
        let mut facts = Facts::default();
        self.look_up(&[Look::Record(claim.key.clone())], &mut facts).await?;
        let known = facts.record(&claim.key).flatten();
        if known.is_none_or(|stored| stored.record.state_at(facts.now) == State::Running) {
            return Ok(None);
        }
        match decide::claim(claim, Token::default(), &facts) {
            Step::Answer(verdict) => Ok(Some(verdict)),
            Step::Commit(..) | Step::Look(_) => Ok(None),
        }
    }
}
