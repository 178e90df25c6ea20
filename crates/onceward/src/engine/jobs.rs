//! Jobs through the engine: making them and taking those that are due.
//!
//! Running them (heartbeats, retries, draining) is the worker's business, not this file's.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use onceward_core::Bytes;
use onceward_core::decide::{self, Enqueue, Facts, JobOrder, NewJob, Permit, Retry, Verdict};
use onceward_core::drive::{Drive, End};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::guard::Misfit;
use onceward_core::key::{Key, check_part};
use onceward_core::limits::{MAX_LEASE_MS, MIN_LEASE_MS, in_range};
use onceward_core::record::{Record, State, Stored};
use onceward_core::stamp::At;
use onceward_core::text::escape;
use onceward_core::zoo::{Bug, planted};

use super::behind::Looked;
use super::queues::pause_subject;
use super::{Engine, EngineError, Seen};
use crate::store::{Cursor, Fact, Found, Items, List, Loaded, Read, StoreError};

/// Pages of due jobs that one take looks through: bounds what jobs out of turn can cost.
const PAGES_MAX: usize = 8;
/// How many due jobs are looked at for each that is wanted, so that tenants can take turns, and how
/// many at most on that account.
const WINDOW: usize = 4;
const WINDOW_MAX: usize = 256;
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
    /// Whether an earlier attempt was granted: its effect may have happened.
    pub again: bool,
}

/// Payloads that were found, with the fingerprints that their jobs had.
type Payloads = Vec<Option<(Fingerprint, Bytes)>>;

/// Payloads that came with a list of due jobs, by their keys.
type AtHand = HashMap<Key, (Fingerprint, Bytes)>;

/// Who decides which of the due jobs to take. A function of the job is one.
pub trait Picker: Send + Sync {
    /// Whether to take this one. Asked once for each that could be taken, in the order in which
    /// they are.
    fn picks(&self, job: &Record) -> bool;

    /// One that was picked is not taken after all: others were quicker, or it can't be read.
    fn lost(&self, key: &Key) {
        let _ = key;
    }
}

impl<F: Fn(&Record) -> bool + Send + Sync> Picker for F {
    fn picks(&self, job: &Record) -> bool {
        self(job)
    }
}

/// Which of the due jobs to take.
pub type Pick<'p> = &'p dyn Picker;

/// Whose take it is: what it is narrowed to, and in whose line it goes on where it stopped.
#[derive(Clone, Copy, Default)]
pub(super) struct Whose<'t> {
    /// The tenant, as a column, whose jobs alone are taken.
    pub(super) tenant: Option<&'t str>,
    pub(super) line: Option<&'t str>,
}

/// What a take has in hand and its caller has not heard of. Dropped so, it is released: nothing was
/// done under those permits.
struct Unheard<'e> {
    engine: &'e Engine,
    /// Who takes, and from which queue.
    place: String,
    taken: Mutex<Vec<(usize, Taken)>>,
    /// Places that were given so far, in the order of listing.
    places: AtomicUsize,
    /// Whether a job whose turn it is was left, because it was not picked or others reach for it.
    some_left: AtomicBool,
}

impl<'e> Unheard<'e> {
    fn new(engine: &'e Engine, place: String) -> Self {
        let (places, some_left) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { engine, place, taken: Mutex::default(), places, some_left }
    }

    /// The first of as many places.
    fn places(&self, count: usize) -> usize {
        self.places.fetch_add(count, Ordering::Relaxed)
    }

    fn note(&self, place: usize, taken: Taken) {
        self.locked().push((place, taken));
    }

    fn count(&self) -> usize {
        self.locked().len()
    }

    /// Whether to take a job whose turn it is; notes one that is left.
    fn wants(&self, wanted: bool) -> bool {
        self.some_left.fetch_or(!wanted, Ordering::Relaxed);
        wanted
    }

    /// Whether a look has shown all that there is to take, and this call has all of it.
    fn is_all(&self, most: usize) -> bool {
        self.count() < most && !self.some_left.load(Ordering::Relaxed)
    }

    /// Adds the payloads of those from a place on. Takes out what none was found for, or another
    /// than that of the job as it was granted: it was made anew between the two.
    fn fill(&self, first: usize, mut payloads: Payloads) -> Vec<Permit> {
        let mut taken = self.locked();
        let mut missing = Vec::new();
        taken.retain_mut(|(place, taken)| {
            let Some(index) = place.checked_sub(first) else { return true };
            let granted = &taken.permit.record.fingerprint;
            match payloads.get_mut(index).and_then(Option::take) {
                Some((fingerprint, payload)) if fingerprint == *granted => taken.payload = payload,
                _ => {
                    missing.push(taken.permit.clone());
                    return false;
                }
            }
            true
        });
        missing
    }

    /// What was taken, in the order in which it was listed.
    fn hear(self) -> Vec<Taken> {
        let mut taken = std::mem::take(&mut *self.locked());
        taken.sort_by_key(|(place, _)| *place);
        taken.into_iter().map(|(_, taken)| taken).collect()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<(usize, Taken)>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut *self.locked());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if taken.is_empty() {
            return;
        }
        let engine = self.engine.clone();
        runtime.spawn(async move {
            let permits: Vec<_> = taken.into_iter().map(|(_, taken)| taken.permit).collect();
            // One that can't be released comes back when its lease ends.
            let _ = engine.release_many(&permits).await;
        });
    }
}

/// Payloads that a list brought, with the fingerprints that their jobs had then.
fn at_hand(due: &[Record], payloads: Vec<Option<Bytes>>) -> AtHand {
    let found = due.iter().zip(payloads).filter_map(|(job, payload)| {
        payload.map(|payload| (job.key.clone(), (job.fingerprint, payload)))
    });
    found.collect()
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

    /// Takes due jobs: higher priority first, tenants in turn, ordered ones only when it is their
    /// turn.
    ///
    /// One call looks through a bounded number of jobs out of turn; the next one goes on where it
    /// stopped, so that a long line behind one subject does not hide the others. Dropping
    /// the call's future releases what it had taken.
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
        self.take_waiting(tenant, take, Duration::ZERO, std::future::pending()).await
    }

    /// One take.
    pub(super) async fn take_once(
        &self,
        whose: Whose<'_>,
        take: &Take,
        pick: Pick<'_>,
    ) -> Result<Vec<Taken>, EngineError> {
        if let Some(lease_ms) = take.lease_ms {
            in_range("lease_ms", lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)?;
        }
        check_part("owner", &take.owner, 0)?;
        check_part("queue", &take.queue, 1)?;
        // An escaped name holds no colon, so the places of two lines never meet.
        let place = format!("{}:{}", whose.line.map(escape).unwrap_or_default(), take.queue);
        let unheard = Unheard::new(self, place);
        if self.take_next_in_line(take, pick, &unheard).await {
            return Ok(unheard.hear());
        }
        let (looking, ahead) = self.0.ahead.begin(&take.queue);
        let mut after = self.0.places.leave(&unheard.place).or(ahead);
        let begun_behind = after.is_some();
        let left = self.0.rounds.behind.left(&escape(&take.queue));
        let (mut looked, mut from_the_head, mut through) = (None, !begun_behind, false);
        for _ in 0..PAGES_MAX {
            let wanted = take.max.saturating_sub(unheard.count());
            let what = List::Due { queue: escape(&take.queue).into_owned() };
            let window = wanted.saturating_mul(WINDOW).min(WINDOW_MAX).max(wanted).max(PAGE_MIN);
            let listed =
                tokio::join!(self.list(what, after.take(), window), self.is_paused(&take.queue));
            let page = match listed {
                (_, Ok(true)) => break,
                (Ok(page), Ok(false)) => page,
                // What was taken is in hand, and the caller must hear of it.
                (Err(_), _) | (_, Err(_)) if unheard.count() > 0 => break,
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            looked = Some(page.now);
            looking.saw(page.next.as_ref());
            let Items::Records(mut due) = page.items else { break };
            let at_hand = at_hand(&due, page.payloads);
            if page.next.is_some() {
                let most = wanted.div_ceil(2);
                self.add_passed_over(&mut due, (&take.queue, whose.tenant), most).await;
            }
            let due = (page.now, due, at_hand);
            match self.take_these(due, (take, wanted), pick, &unheard).await {
                Ok(()) => {}
                Err(_) if unheard.count() > 0 => break,
                Err(error) => return Err(error),
            }
            after = page.next;
            through |= after.is_none();
            if through && from_the_head || unheard.count() >= take.max {
                break;
            }
            from_the_head |= through;
        }
        if let (Some(at), true) = (looked, unheard.is_all(take.max)) {
            let looked = Looked { at, left, through };
            self.0.rounds.behind.came_up_short(&unheard.place, looked);
        }
        if unheard.count() < take.max {
            self.0.places.keep(&unheard.place, after);
        }
        if begun_behind && unheard.count() == 0 {
            // Whoever is next in a line may stand before where this look began.
            self.take_next_in_line(take, pick, &unheard).await;
        }
        Ok(unheard.hear())
    }

    /// Takes jobs whose turn has come since the queue was looked through, a moment ago. Answers
    /// whether there is nothing else to take until that moment is over.
    async fn take_next_in_line(&self, take: &Take, pick: Pick<'_>, unheard: &Unheard<'_>) -> bool {
        let Some((looked, (now, next))) = self.next_in_line(&unheard.place, &take.queue).await
        else {
            return false;
        };
        let next = (now, next, AtHand::new());
        // Without an answer, the queue is looked through as ever.
        self.take_these(next, (take, take.max), pick, unheard).await.is_ok()
            && (unheard.count() > 0 || looked.through && unheard.is_all(take.max))
    }

    /// Jobs that waited behind others of their subjects when the queue was looked through, and
    /// whose turn it is now. None when that look is too old to be trusted.
    async fn next_in_line(&self, place: &str, queue: &str) -> Option<(Looked, (At, Vec<Record>))> {
        let (looked, subjects) = self.0.rounds.behind.subjects(place, &escape(queue))?;
        if !self.0.capabilities.clock {
            return None;
        }
        let mut asked = vec![pause_subject(queue).ok()?];
        asked.extend(subjects);
        let (now, seen) = self.see_many(asked).await.ok()?;
        let (pause, subjects) = seen.split_first()?;
        if pause.value.is_some() || !looked.is_good_at(now) {
            return None;
        }
        let next = subjects.iter().filter_map(|Seen { subject, version, .. }| {
            self.0.rounds.behind.next(place, subject, *version)
        });
        Some((looked, self.due_of(next.collect()).await?))
    }

    /// Those of these jobs that are due, as of the store's now.
    async fn due_of(&self, keys: Vec<Key>) -> Option<(At, Vec<Record>)> {
        if keys.is_empty() {
            return Some((At(0), Vec::new()));
        }
        let reads = keys.into_iter().map(|key| Read::Record { key, payload: false });
        let loaded = self.0.store.load(reads.collect()).await.ok()?;
        let jobs = loaded.facts.into_iter().filter_map(|fact| match fact {
            Fact::Record(Some(found)) => Some(found.stored.record),
            Fact::Record(None) | Fact::Mark(_) => None,
        });
        let due = jobs.filter(|job| {
            matches!(job.state, State::Pending | State::Failed)
                && job.due_at.is_none_or(|at| loaded.now >= at)
        });
        Some((loaded.now, due.collect()))
    }

    /// Adds due jobs of tenants that lie behind a page full of others' jobs.
    async fn add_passed_over(
        &self,
        due: &mut Vec<Record>,
        (queue, tenant): (&str, Option<&str>),
        most: usize,
    ) {
        let keys = self.0.rounds.passed_over(&escape(queue), tenant, due, most);
        // Without an answer they wait for their time, as they would have.
        let Some((_, passed_over)) = self.due_of(keys.clone()).await else { return };
        let wait: HashSet<&Key> = passed_over.iter().map(|job| &job.key).collect();
        // Others have taken these, or their time is still to come: then a page has them.
        keys.iter().filter(|key| !wait.contains(key)).for_each(|key| self.0.rounds.forget(key));
        due.extend(passed_over);
        due.sort_by_key(|job| std::cmp::Reverse(job.priority));
    }

    /// Takes the first `wanted` of these whose turn it is, in one group where the store has groups.
    async fn take_these(
        &self,
        (now, due, at_hand): (At, Vec<Record>, AtHand),
        (take, wanted): (&Take, usize),
        pick: Pick<'_>,
        unheard: &Unheard<'_>,
    ) -> Result<(), EngineError> {
        if due.is_empty() {
            return Ok(());
        }
        let mut turns = Facts::default();
        // Many jobs may wait behind one subject: it is looked up once.
        let guards = due.iter().filter_map(|record| record.guard.as_ref());
        let subjects: HashSet<_> = guards.map(|guard| &guard.subject).collect();
        let looks: Vec<_> =
            subjects.into_iter().map(|subject| decide::Look::Mark(subject.clone())).collect();
        if !looks.is_empty() {
            self.look_up(&looks, &mut turns).await?;
        }
        let in_turn = |record: &Record| {
            record.guard.as_ref().is_none_or(|guard| {
                let judged = turns.position(&guard.subject).map(|at| guard.rule.judge(at));
                if judged == Some(Err(Misfit::Gap)) {
                    self.0.rounds.behind.note(&unheard.place, record);
                }
                judged.is_none_or(|judged| judged.is_ok()) || planted(Bug::OrderedJobsOutOfOrder)
            })
        };
        let due = due.into_iter().filter(in_turn).collect();
        let ordered = self.0.rounds.order(&take.queue, due).into_iter();
        let mut reach = self.0.hands.reach();
        let wants = |job: &Record| unheard.wants(reach.seize(&job.key, || pick.picks(job)));
        let chosen: Vec<Record> = ordered.filter(wants).take(wanted).collect();
        let Some(last) = chosen.last() else { return Ok(()) };
        self.0.rounds.served(&take.queue, last.key.tenant_column());
        let keys: Vec<Key> = chosen.iter().map(|job| job.key.clone()).collect();
        let takes = chosen.into_iter().map(|job| {
            let mut facts = Facts::at(now);
            if let Some(guard) = &job.guard
                && let Some(position) = turns.position(&guard.subject)
            {
                facts.learn_position(&guard.subject, position);
            }
            let key = job.key.clone();
            // As listed: when it has changed since, the store refuses and tells what is there.
            facts.learn_record(&key, Some(Stored { record: job, outcome: None }));
            (key, facts)
        });
        let first = unheard.places(keys.len());
        let takes = takes.enumerate().map(|(index, (key, facts))| async move {
            let taken = self.take_one(&key, facts, take).await;
            if let Ok(Some((permit, again))) = taken {
                let payload = Bytes::from([]);
                unheard.note(first + index, Taken { permit, payload, again });
                return Ok(());
            }
            pick.lost(&key);
            taken.map(drop)
        });
        // Whoever is granted a job is its only writer: its payload is read meanwhile.
        let payloads = self.payloads(&keys, at_hand);
        let (granted, (payloads, mut unread)) = tokio::join!(join_all(takes), payloads);
        let mut missing = unheard.fill(first, payloads);
        missing.iter().for_each(|permit| pick.lost(permit.key()));
        if let Err(EngineError::Store(StoreError::Corrupt(_))) = unread {
            missing = self.bury_damaged(missing).await;
            unread = Ok(());
        }
        if !missing.is_empty() {
            // Nothing was done under these; one that can't be released comes back with its lease.
            let _ = self.release_many(&missing).await;
        }
        // What its neighbours got is in hand all the same.
        granted.into_iter().collect::<Result<(), _>>().and(unread)
    }

    /// The payloads of jobs, each with its fingerprint; none for a job that is not there. What is
    /// not at hand is looked up; when that fails, what is at hand is there all the same.
    async fn payloads(
        &self,
        keys: &[Key],
        mut at_hand: AtHand,
    ) -> (Payloads, Result<(), EngineError>) {
        let mut payloads: Payloads = keys.iter().map(|key| at_hand.remove(key)).collect();
        let missing: Vec<usize> =
            (0..keys.len()).filter(|index| payloads[*index].is_none()).collect();
        if missing.is_empty() {
            return (payloads, Ok(()));
        }
        let read = |index: &usize| Read::Record { key: keys[*index].clone(), payload: true };
        let mut unread = Ok(());
        let facts = match self.0.store.load(missing.iter().map(read).collect()).await {
            Ok(loaded) => loaded.facts,
            // One that is damaged must not keep its neighbours back.
            Err(damaged @ StoreError::Corrupt(_)) => {
                unread = Err(damaged.into());
                let each = missing.iter().map(|index| self.0.store.load(vec![read(index)]));
                let fact = |loaded: Result<Loaded, StoreError>| loaded.ok()?.facts.pop();
                let found = join_all(each).await.into_iter();
                found.map(|loaded| fact(loaded).unwrap_or(Fact::Record(None))).collect()
            }
            Err(error) => return (payloads, Err(error.into())),
        };
        for (index, fact) in missing.into_iter().zip(facts) {
            payloads[index] = match fact {
                Fact::Record(Some(Found { stored, payload })) => {
                    Some((stored.record.fingerprint, payload.unwrap_or_else(|| [].into())))
                }
                Fact::Record(None) | Fact::Mark(_) => None,
            };
        }
        (payloads, unread)
    }

    /// Of jobs that are ours, those whose payloads are damaged end as dead: nobody else writes
    /// them, so they never could be run. Answers the others.
    async fn bury_damaged(&self, granted: Vec<Permit>) -> Vec<Permit> {
        let mut others = Vec::new();
        for permit in granted {
            let read = Read::Record { key: permit.key().clone(), payload: true };
            match self.0.store.load(vec![read]).await {
                Err(StoreError::Corrupt(why)) => {
                    let why = format!("it can't be read: {why}");
                    // One that can't be buried comes back with its lease.
                    let _ = self.fail(&permit, &why, Retry::Never).await;
                }
                _ => others.push(permit),
            }
        }
        others
    }

    /// Takes a job. Says whether an earlier attempt at it was granted.
    async fn take_one(
        &self,
        key: &Key,
        facts: Facts,
        take: &Take,
    ) -> Result<Option<(Permit, bool)>, EngineError> {
        let mut again = false;
        let decide = |token, facts: &Facts| {
            // Of what it decides over: that may be younger than what was listed.
            again = facts.record(key).flatten().is_some_and(|job| job.record.last_fence.0 > 0);
            decide::take(key, &take.owner, take.lease_ms, token, facts)
        };
        let verdict = match self.drive(Some(key), Drive::from(facts), decide).await {
            Ok(End::Answer(verdict)) => verdict,
            Ok(End::Committed { meaning, applied, .. }) if applied.again => {
                self.recognised(key, meaning, applied).await?
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
            Verdict::Run { permit, .. } => Some((permit, again)),
            _ => None,
        })
    }
}
