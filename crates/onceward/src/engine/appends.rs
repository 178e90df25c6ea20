//! Appends through the engine: numbers are reserved, and where events lie is noted.
//!
//! Where events lie and who waits for them is the event store's business, not this file's.

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

impl Engine {
    /// Reserves the numbers of events, or says why not. The second value is the rev of the first
    /// record, when it was written now.
    pub(crate) async fn reserve(
        &self,
        append: &Append,
    ) -> Result<(Reservation, Option<u64>), EngineError> {
        append.validate()?;
        let mut drive = Drive::default();
        let free = append.expected.is_none().then_some(&append.aggregate);
        let _turn = self.0.turns.wait(free.into_iter()).await;
        if free.is_some() {
            self.look_up(&[Look::Mark(append.aggregate.clone())], &mut drive.facts).await?;
        }
        let decide = |token, facts: &Facts| decide::append(append, token, facts);
        match self.drive(append.events.first().map(|(key, _)| key), drive, decide).await? {
            End::Answer(answer) => Ok((answer, None)),
            End::Committed { meaning, applied, .. } => {
                let rev = applied.first.filter(|_| !applied.again).map(|(rev, _)| rev.0);
                Ok((meaning, rev))
            }
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
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
