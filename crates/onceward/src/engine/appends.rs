//! Appends through the engine: numbers are reserved, and where events lie is noted.
//!
//! Where events lie and who waits for them is the event store's business, not this file's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use onceward_core::Bytes;
use onceward_core::batch::{Batch, Write};
use onceward_core::decide::{self, Append, Facts, Look, Packed, Reservation, Step};
use onceward_core::drive::{Drive, End};
use onceward_core::key::{Key, Subject};
use onceward_core::record::{Body, Mark};
use onceward_core::stamp::Token;

use super::{Engine, EngineError};
use crate::store::{Cursor, Fact, Items, List, Loaded, Read};

/// An intent that nobody has packed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Its key.
    pub(crate) key: Key,
    /// The mark that counts the aggregate's events.
    pub(crate) aggregate: Subject,
    /// The number of its first event.
    pub(crate) first: u64,
    /// Rises with each intent of an aggregate.
    pub(crate) rev: u64,
    /// Its events' bytes.
    pub(crate) payload: Bytes,
    /// The correlation ids that all its events have.
    pub(crate) trace: onceward_core::audit::Trace,
}

/// Aggregates whose number is remembered; then all are forgotten.
const REACHED_MAX: usize = 65_536;
/// How long an append that names its number lets others of its aggregate go first.
const TURN_WITHIN: Duration = Duration::from_millis(50);

/// The numbers that aggregates have reached, as far as this process knows: each is there or passed.
/// Without, writers who race for one aggregate would each need a commit to hear that they lost.
#[derive(Debug, Default)]
pub(super) struct Reached(Mutex<HashMap<Subject, u64>>);

impl Reached {
    fn get(&self, aggregate: &Subject) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(aggregate).copied()
    }

    fn note(&self, aggregate: &Subject, number: u64) {
        let mut reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = reached.get_mut(aggregate) {
            *there = number.max(*there);
            return;
        }
        if reached.len() >= REACHED_MAX {
            reached.clear();
        }
        reached.insert(aggregate.clone(), number);
    }
}

impl Engine {
    /// Reserves the numbers of events, or says why not. The second value is the rev of the first
    /// record, when it was written now.
    pub(crate) async fn reserve(
        &self,
        append: &Append,
    ) -> Result<(Reservation, Option<u64>), EngineError> {
        append.validate()?;
        let aggregate = &append.aggregate;
        let mut drive = Drive::default();
        let turn = self.0.turns.wait(std::iter::once(aggregate));
        // Who names its number needs no turn, only saves a commit by it: a store that is silent
        // keeps nobody waiting behind others.
        let mut turn = match append.expected {
            Some(_) => tokio::time::timeout(TURN_WITHIN, turn).await.ok(),
            None => Some(turn.await),
        };
        match (append.expected, self.0.reached.get(aggregate)) {
            (Some(expected), Some(at)) if at > expected => {
                // No aggregate comes back to a number: all that is left to find out is whether
                // these events are there, and nobody has to wait for that.
                turn = None;
                let records = append.events.iter().map(|(key, _)| Look::Record(key.clone()));
                let looks: Vec<_> = records.chain([Look::Mark(aggregate.clone())]).collect();
                self.look_up(&looks, &mut drive.facts).await?;
            }
            (Some(_), _) => {}
            (None, Some(at)) => drive.facts.learn_position(aggregate, at),
            (None, None) => {
                self.look_up(&[Look::Mark(aggregate.clone())], &mut drive.facts).await?;
            }
        }
        let decide = |token, facts: &Facts| decide::append(append, token, facts);
        let driven = self.drive(append.events.first().map(|(key, _)| key), drive, decide).await?;
        let (reservation, rev) = match driven {
            End::Answer(answer) => (answer, None),
            End::Committed { meaning, applied, .. } => {
                let rev = applied.first.filter(|_| !applied.again).map(|(rev, _)| rev.0);
                (meaning, rev)
            }
            End::GaveUp => return Err(EngineError::Contended("time after time")),
        };
        match reservation {
            Reservation::Reserved(first) => {
                self.0.reached.note(aggregate, first + append.events.len() as u64 - 1);
            }
            Reservation::Expected { current } => self.0.reached.note(aggregate, current),
            _ => {}
        }
        drop(turn);
        Ok((reservation, rev))
    }

    /// Notes where events of one tenant lie. The caller sees to the bound of a batch.
    pub(crate) async fn settle(&self, events: &[Packed]) -> Result<(), EngineError> {
        let decide = |token: Token, _: &Facts| -> Step<(), ()> {
            Step::Commit(decide::settle(events, token), ())
        };
        self.drive(None, Drive::default(), decide).await.map(drop)
    }

    /// Moves a counter of the store's own forward.
    pub(crate) async fn advance(&self, subject: &Subject, to: u64) -> Result<(), EngineError> {
        let decide = |token: Token, _: &Facts| -> Step<(), ()> {
            let mut batch = Batch::new(token);
            let (subject, value) = (subject.clone(), Body::Keep);
            batch.writes.push(Write::Mark { subject, position: to, value });
            Step::Commit(batch, ())
        };
        self.drive(None, Drive::default(), decide).await.map(drop)
    }

    /// Many marks at one instant, in the order asked for.
    pub(crate) async fn marks(
        &self,
        subjects: Vec<Subject>,
    ) -> Result<Vec<Option<Mark>>, EngineError> {
        let Loaded { facts, .. } =
            self.0.store.load(subjects.into_iter().map(Read::Mark).collect()).await?;
        let marks = facts.into_iter().map(|fact| match fact {
            Fact::Mark(mark) => mark,
            Fact::Record(_) => None,
        });
        Ok(marks.collect())
    }

    /// Intents of a queue that wait to be packed, longest waiting first, and where to go on.
    pub(crate) async fn intents(
        &self,
        queue: &str,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<Waiting>, Option<Cursor>), EngineError> {
        let page = self.list(List::Due { queue: queue.to_owned() }, after, limit).await?;
        let Items::Records(listed) = page.items else { return Ok((Vec::new(), None)) };
        let reads =
            listed.into_iter().map(|record| Read::Record { key: record.key, payload: true });
        let reads: Vec<_> = reads.collect();
        if reads.is_empty() {
            return Ok((Vec::new(), page.next));
        }
        // Lists may lag; what is there now is what counts.
        let found = self.0.store.load(reads).await?.facts.into_iter().filter_map(|fact| {
            let Fact::Record(Some(found)) = fact else { return None };
            let record = found.stored.record;
            let guard = record.guard?;
            Some(Waiting {
                key: record.key,
                first: guard.rule.moves_to(),
                aggregate: guard.subject,
                rev: record.rev.0,
                payload: found.payload?,
                trace: record.trace,
            })
        });
        Ok((found.collect(), page.next))
    }
}
