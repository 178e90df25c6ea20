//! Jobs through the engine: making them and taking those that are due.
//!
//! Running them (heartbeats, retries, draining) is the worker's business, not this file's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use futures_util::future::join_all;
use onceward_core::Bytes;
use onceward_core::decide::{self, Enqueue, Facts, JobOrder, NewJob, Permit, Verdict};
use onceward_core::drive::{Drive, End};
use onceward_core::key::{Key, check_part};
use onceward_core::limits::{MAX_LEASE_MS, MIN_LEASE_MS, in_range};
use onceward_core::text::escape;
use onceward_core::zoo::{Bug, planted};

use super::{Engine, EngineError, queues};
use crate::store::{Cursor, Fact, Items, List, Read};

/// Pages of due jobs that one take looks through: bounds what jobs out of turn can cost.
const PAGES_MAX: usize = 8;
/// Smallest page of due jobs, so that a take of one job can look past those out of turn.
const PAGE_MIN: usize = 32;

/// Where a take stopped that found only jobs out of turn, per queue.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<String, Cursor>>);

impl Places {
    fn leave(&self, queue: &str) -> Option<Cursor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue)
    }

    fn keep(&self, queue: &str, after: Option<Cursor>) {
        if let Some(after) = after {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            places.insert(queue.to_string(), after);
        }
    }
}

/// What to take.
#[derive(Debug, Clone)]
pub struct Take {
    /// From which queue.
    pub queue: String,
    /// Who takes, for people to read.
    pub owner: String,
    /// How many at most.
    pub max: usize,
    /// The lease; none: as the job's terms say.
    pub lease_ms: Option<u64>,
}

/// A job that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// To be shown at every further step.
    pub permit: Permit,
    /// What the job was made with.
    pub payload: Bytes,
}

impl Engine {
    /// Makes a job, unless one with its key is there.
    ///
    /// # Errors
    /// When the store gives no answer or the job breaks a bound.
    pub async fn enqueue(&self, job: &NewJob) -> Result<Enqueue, EngineError> {
        job.validate()?;
        let mut drive = Drive::default();
        let _turn = self.0.turns.wait(job.order.iter().map(|order| &order.tail)).await;
        if let Some(order) = &job.order {
            // The subject's number has to be known; the batch checks that it still holds.
            self.look_up(&[decide::Look::Mark(order.tail.clone())], &mut drive.facts).await?;
        }
        let decide = |token, facts: &Facts| decide::enqueue(job, token, facts);
        match self.drive(Some(&job.key), drive, decide).await? {
            End::Answer(answer) | End::Committed { meaning: answer, .. } => Ok(answer),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// [`Engine::enqueue`] for many, in one group where the store has groups. Jobs of one subject
    /// are made in the order given.
    pub async fn enqueue_many(&self, jobs: &[NewJob]) -> Vec<Result<Enqueue, EngineError>> {
        if jobs.iter().all(|job| job.order.is_none()) {
            return join_all(jobs.iter().map(|job| self.enqueue(job))).await;
        }
        let mut answers = Vec::with_capacity(jobs.len());
        let mut stopped: HashMap<&JobOrder, EngineError> = HashMap::new();
        for job in jobs {
            // What follows a job that was not made must not overtake its retry.
            let earlier = job.order.as_ref().and_then(|order| stopped.get(order));
            let answer = match earlier {
                Some(error) => Err(error.clone()),
                None => self.enqueue(job).await,
            };
            if let (Some(order), Err(error)) = (&job.order, &answer) {
                stopped.insert(order, error.clone());
            }
            answers.push(answer);
        }
        answers
    }

    /// Takes due jobs: higher priority first, ordered ones only when it is their turn.
    ///
    /// One call looks through a bounded number of jobs out of turn; the next call goes on where it
    /// stopped, so that a long queue behind one blocked subject does not hide the others.
    ///
    /// # Errors
    /// When the store gives no answer and nothing was taken.
    pub async fn take(&self, take: &Take) -> Result<Vec<Taken>, EngineError> {
        self.take_of(None, take).await
    }

    /// [`Engine::take`], of one tenant's jobs alone when it is given.
    ///
    /// # Errors
    /// When the store gives no answer and nothing was taken.
    pub async fn take_of(
        &self,
        tenant: Option<&str>,
        take: &Take,
    ) -> Result<Vec<Taken>, EngineError> {
        if let Some(lease_ms) = take.lease_ms {
            in_range("lease_ms", lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)?;
        }
        check_part("owner", &take.owner, 0)?;
        check_part("queue", &take.queue, 1)?;
        let mut taken = Vec::new();
        let column = tenant.map(escape);
        // An escaped tenant holds no colon, so the places of two tenants never meet.
        let place = format!("{}:{}", column.as_deref().unwrap_or_default(), take.queue);
        let mut after = self.0.places.leave(&place);
        for _ in 0..PAGES_MAX {
            let wanted = take.max.saturating_sub(taken.len());
            if wanted == 0 {
                break;
            }
            let what = List::Due { queue: escape(&take.queue).into_owned() };
            let page = match self.list(what, after.take(), wanted.max(PAGE_MIN)).await {
                Ok(page) => page,
                // What was taken is in hand, and the caller must hear of it.
                Err(_) if !taken.is_empty() => return Ok(taken),
                Err(error) => return Err(error),
            };
            let Items::Records(due) = page.items else { break };
            let ours = |key: &Key| column.as_deref().is_none_or(|of| key.tenant_column() == of);
            let keys = due.into_iter().map(|record| record.key).filter(ours).collect::<Vec<_>>();
            match self.take_these(&keys, take, wanted).await {
                Ok(these) => taken.extend(these),
                Err(_) if !taken.is_empty() => return Ok(taken),
                Err(error) => return Err(error),
            }
            after = page.next;
            if after.is_none() {
                return Ok(taken);
            }
        }
        if taken.is_empty() {
            self.0.places.keep(&place, after);
        }
        Ok(taken)
    }

    /// Takes the first `wanted` of these whose turn it is, in one group where the store has groups.
    /// A paused queue gives nothing.
    async fn take_these(
        &self,
        keys: &[Key],
        take: &Take,
        wanted: usize,
    ) -> Result<Vec<Taken>, EngineError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let records = keys.iter().map(|key| Read::Record { key: key.clone(), payload: true });
        let pause = std::iter::once(Read::Mark(queues::pause_subject(&take.queue)?));
        let loaded = self.0.store.load(pause.chain(records).collect()).await?;
        if matches!(loaded.facts.first(), Some(Fact::Mark(Some(mark))) if mark.value.is_some()) {
            return Ok(Vec::new());
        }
        let mut marks = Vec::new();
        let mut jobs = Vec::new();
        for fact in loaded.facts {
            let Fact::Record(Some(found)) = fact else { continue };
            if let Some(guard) = &found.stored.record.guard {
                marks.push(decide::Look::Mark(guard.subject.clone()));
            }
            jobs.push(found);
        }
        let mut turns = Facts::default();
        self.look_up(&marks, &mut turns).await?;
        let in_turn = jobs.into_iter().filter(|found| {
            let guard = found.stored.record.guard.as_ref();
            guard.is_none_or(|guard| {
                turns.position(&guard.subject).is_none_or(|at| guard.rule.judge(at).is_ok())
                    || planted(Bug::OrderedJobsOutOfOrder)
            })
        });
        let takes = in_turn.take(wanted).map(|found| {
            let mut facts = Facts::at(loaded.now);
            let record = &found.stored.record;
            if let Some(guard) = &record.guard
                && let Some(position) = turns.position(&guard.subject)
            {
                facts.learn_position(&guard.subject, position);
            }
            let (key, payload) = (record.key.clone(), found.payload);
            facts.learn_record(&key, Some(found.stored));
            self.take_one(key, payload, facts, take)
        });
        let (mut taken, mut failed) = (Vec::new(), None);
        for one in join_all(takes).await {
            match one {
                Ok(one) => taken.extend(one),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if taken.is_empty() => Err(error),
            _ => Ok(taken),
        }
    }

    async fn take_one(
        &self,
        key: Key,
        payload: Option<Bytes>,
        facts: Facts,
        take: &Take,
    ) -> Result<Option<Taken>, EngineError> {
        let decide =
            |token, facts: &Facts| decide::take(&key, &take.owner, take.lease_ms, token, facts);
        let verdict = match self.drive(Some(&key), Drive::from(facts), decide).await {
            Ok(End::Answer(verdict)) => verdict,
            Ok(End::Committed { meaning, applied, .. }) if applied.again => {
                self.recognised(&key, meaning, applied).await?
            }
            Ok(End::Committed { meaning, batch, applied }) => {
                match meaning.verdict(batch.token, applied) {
                    Some(verdict) => verdict,
                    None => return Ok(None),
                }
            }
            // Others are at it: the next take finds what they leave.
            Ok(End::GaveUp) | Err(EngineError::Contended(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(match verdict {
            Verdict::Run { permit, .. } => {
                Some(Taken { permit, payload: payload.unwrap_or_else(|| [].into()) })
            }
            _ => None,
        })
    }
}
