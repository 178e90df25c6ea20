//! Documents: versioned state under optimistic concurrency, in the same batches as everything else.

use std::time::Instant;

use futures_util::future::join_all;
use onceward_core::Bytes;
use onceward_core::audit::{Entry, Trace};
use onceward_core::batch::{Batch, Condition, Write};
use onceward_core::decide::{self, Change, Effects, Facts, Refusal, Step, Verdict};
use onceward_core::drive::{Drive, End};
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::Subject;
use onceward_core::limits::LimitError;
use onceward_core::record::Body;
use onceward_core::stamp::{At, Token};
use onceward_core::text::escape;
use tokio::sync::OwnedMutexGuard;

use super::look::PAGE_MAX;
use super::{Engine, EngineError};
use crate::store::{Cursor, Fact, Items, List, Read};

/// A document and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Which.
    pub subject: Subject,
    /// Its position: 1 after the first write, one more with each.
    pub version: u64,
    /// Its bytes.
    pub value: Bytes,
}

/// A document as it was seen: what a write of it is guarded by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub subject: Subject,
    /// Its version; 0 when it was never written.
    pub version: u64,
    /// Its bytes; none when it was never written or is deleted.
    pub value: Option<Bytes>,
}

impl Seen {
    /// A write over what was seen, and the version that it makes.
    ///
    /// # Errors
    /// When the version can't rise any more.
    pub fn change(&self, value: Body) -> Result<(Change, u64), LimitError> {
        let rule = Rule::Exactly { expected: self.version };
        let guard = Guard::new(self.subject.clone(), rule)?;
        Ok((Change { guard, value }, rule.moves_to()))
    }
}

/// A turn at a subject, for as long as it is held.
#[derive(Debug)]
pub struct Turn {
    _guards: Vec<OwnedMutexGuard<()>>,
}

/// The answer to a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// Written, and this is its version now.
    Written(u64),
    /// Someone else was first.
    Conflict {
        /// The version that is there.
        current: u64,
    },
}

impl Engine {
    /// A document, or none when it was never written or is deleted.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn get(&self, subject: &Subject) -> Result<Option<Document>, EngineError> {
        Ok(self.mark(subject).await?.and_then(|mark| {
            let value = mark.value?;
            Some(Document { subject: subject.clone(), version: mark.position, value })
        }))
    }

    /// Many documents at one instant, in the order asked for.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn get_many(
        &self,
        subjects: &[Subject],
    ) -> Result<Vec<Option<Document>>, EngineError> {
        let reads = subjects.iter().map(|subject| Read::Mark(subject.clone())).collect();
        let facts = self.0.store.load(reads).await?.facts;
        let found = subjects.iter().zip(facts).map(|(subject, fact)| {
            let Fact::Mark(mark) = fact else { return None };
            let (version, value) = mark.and_then(|mark| Some((mark.position, mark.value?)))?;
            Some(Document { subject: subject.clone(), version, value })
        });
        Ok(found.collect())
    }

    /// Many subjects at one instant, in the order asked for, with the versions that writes of them
    /// expect, and the store's instant of the look.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn see_many(&self, subjects: Vec<Subject>) -> Result<(At, Vec<Seen>), EngineError> {
        let reads = subjects.iter().cloned().map(Read::Mark).collect();
        let asked = Instant::now();
        let loaded = self.0.store.load(reads).await?;
        self.0.heard.note(asked, loaded.now);
        let seen = subjects.into_iter().zip(loaded.facts).map(|(subject, fact)| {
            let mark = if let Fact::Mark(mark) = fact { mark } else { None };
            let (version, value) = mark.map_or((0, None), |mark| (mark.position, mark.value));
            Seen { subject, version, value }
        });
        Ok((loaded.now, seen.collect()))
    }

    /// Waits until no one else of this process who lost a race for this subject is at it; it is
    /// free again when the turn is dropped. For whoever looks again and writes again.
    pub async fn turn_at(&self, subject: &Subject) -> Turn {
        Turn { _guards: self.0.turns.wait(std::iter::once(subject)).await }
    }

    /// Commits effects that follow no key, all or none. None: it is done; otherwise why it is not.
    ///
    /// # Errors
    /// When the store gives no answer, or the effects break a bound or are another tenant's.
    pub async fn write(
        &self,
        tenant: &str,
        effects: &Effects,
    ) -> Result<Option<Verdict>, EngineError> {
        effects.validate(&escape(tenant))?;
        let trace = Trace::default();
        let decide = |token, facts: &Facts| decide::write(None, effects, &trace, token, facts);
        match self.drive(None, Drive::default(), decide).await? {
            End::Answer(verdict) => Ok(Some(verdict)),
            End::Committed { .. } => Ok(None),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// A document with the version that a write of it expects, also when there is none.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn see(&self, subject: Subject) -> Result<Seen, EngineError> {
        let mark = self.mark(&subject).await?;
        let (version, value) = mark.map_or((0, None), |mark| (mark.position, mark.value));
        Ok(Seen { subject, version, value })
    }

    /// Writes a document if it is at version `expected` (0: it was never written). `None` deletes
    /// it; its version stays, so that it is not written again by someone who saw the old one.
    ///
    /// # Errors
    /// When the store gives no answer, a bound is broken, or the space is one of the queues' own.
    pub async fn put(
        &self,
        subject: &Subject,
        expected: u64,
        value: Option<Bytes>,
    ) -> Result<Put, EngineError> {
        decide::check_writable(subject)?;
        let guard = Guard::new(subject.clone(), Rule::Exactly { expected })?;
        let decide = |token, facts: &Facts| decide_put(&guard, value.as_ref(), token, facts);
        match self.drive(None, Drive::default(), decide).await? {
            End::Answer(refusal) => Ok(Put::Conflict { current: refusal.current }),
            End::Committed { .. } => Ok(Put::Written(expected + 1)),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// [`Engine::put`] for many, each on its own, in one group where the store has groups.
    pub async fn put_many(
        &self,
        puts: &[(Subject, u64, Option<Bytes>)],
    ) -> Vec<Result<Put, EngineError>> {
        join_all(
            puts.iter()
                .map(|(subject, expected, value)| self.put(subject, *expected, value.clone())),
        )
        .await
    }

    /// Documents of a space whose id starts with `prefix`, in the order of their ids.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn documents(
        &self,
        tenant: &str,
        space: &str,
        prefix: &str,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<Document>, Option<Cursor>), EngineError> {
        let prefix = format!("{}:{}", escape(space), escape(prefix));
        let what = List::Marks { tenant: Some(escape(tenant).into_owned()), prefix };
        let page = self.list(what, after, limit.min(PAGE_MAX)).await?;
        let Items::Marks(marks) = page.items else { return Ok((Vec::new(), None)) };
        let documents = marks.into_iter().filter_map(|(subject, mark)| {
            let value = mark.value?;
            Some(Document { subject, version: mark.position, value })
        });
        Ok((documents.collect(), page.next))
    }

    /// Commits these writes if these conditions hold. False: one does not.
    pub(crate) async fn commit_if(
        &self,
        conditions: &[Condition],
        writes: &[Write],
    ) -> Result<bool, EngineError> {
        let decide = |token, facts: &Facts| -> Step<(), ()> {
            let holds = |condition: &Condition| match condition.key() {
                Some(key) => facts
                    .record(key)
                    .is_none_or(|there| condition.holds_for(there.map(|stored| &stored.record))),
                None => {
                    let position = condition.subject().and_then(|subject| facts.position(subject));
                    position.is_none_or(|position| condition.holds_at(position))
                }
            };
            if !conditions.iter().all(holds) {
                return Step::Answer(());
            }
            let mut batch = Batch::new(token);
            batch.conditions.extend_from_slice(conditions);
            batch.writes.extend_from_slice(writes);
            Step::Commit(batch, ())
        };
        match self.drive(None, Drive::default(), decide).await? {
            End::Committed { .. } => Ok(true),
            End::Answer(()) => Ok(false),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// Commits effects under the order of one subject, with no record to stand for them. The
    /// verdict says why nothing was committed.
    ///
    /// # Errors
    /// When the store gives no answer or something breaks a bound.
    #[cfg(feature = "events")]
    pub(crate) async fn apply(
        &self,
        guard: &Guard,
        effects: &Effects,
        trace: &Trace,
    ) -> Result<Option<Verdict>, EngineError> {
        guard.rule.validate()?;
        effects.validate(guard.subject.tenant_column())?;
        let decide =
            |token, facts: &Facts| decide::write(Some(guard), effects, trace, token, facts);
        match self.drive(None, Drive::default(), decide).await? {
            End::Committed { .. } => Ok(None),
            End::Answer(verdict) => Ok(Some(verdict)),
            End::GaveUp => Err(EngineError::Contended("time after time")),
        }
    }

    /// Appends an audit entry of its own, for what has no batch to ride in.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn audit(&self, entry: &Entry) -> Result<(), EngineError> {
        let decide = |token, _: &Facts| -> Step<(), ()> {
            let mut batch = Batch::new(token);
            batch.writes.push(Write::Audit(Box::new(entry.clone())));
            Step::Commit(batch, ())
        };
        self.drive(None, Drive::default(), decide).await.map(drop)
    }
}

fn decide_put(
    guard: &Guard,
    value: Option<&Bytes>,
    token: Token,
    facts: &Facts,
) -> Step<(), Refusal> {
    if let Some(current) = facts.position(&guard.subject)
        && let Err(why) = guard.rule.judge(current)
    {
        return Step::Answer(Refusal { subject: guard.subject.clone(), why, current });
    }
    let Rule::Exactly { expected } = guard.rule else { return Step::Look(Vec::new()) };
    let mut batch = Batch::new(token);
    batch.conditions.push(Condition::PositionIs(guard.subject.clone(), expected));
    batch.writes.push(Write::Mark {
        subject: guard.subject.clone(),
        position: expected + 1,
        value: value.map_or(Body::Clear, |value| Body::Set(value.clone())),
    });
    Step::Commit(batch, ())
}
