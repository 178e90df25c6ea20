//! Broken stores: the memory store with one thing wrong at a time.
//!
//! Each mutant breaks one sentence of the store contract as an honest mistake would. A suite that
//! does not notice one of them is not worth its run.

use std::sync::{Arc, Mutex};

use onceward::core::batch::{Answer, Batch, Condition, There, Write};
use onceward::core::key::Key;
use onceward::core::limits::MAX_BATCH_WRITES;
use onceward::core::record::Body;
use onceward::core::stamp::{At, Token};
use onceward::store::clock::ManualClock;
use onceward::store::memory::MemoryStore;
use onceward::store::{
    Capabilities, Committed, Cursor, Fact, Items, List, Loaded, Page, Read, Store, StoreError,
    StoreFuture,
};
use onceward::testing::harness::{Harness, START};

/// One thing that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Nothing: the wrapper itself is no bug.
    None,
    /// The last condition of a batch is not checked.
    LastConditionIgnored,
    /// A refusal names only the first condition that failed.
    OneFailureNamed,
    /// A refusal comes without the outcome's bytes.
    RefusalWithoutOutcome,
    /// A refused batch leaves its audit entries.
    AuditOfRefusedKept,
    /// One refused batch refuses its whole group.
    RefusalSpreads,
    /// Answers of a group come in the reverse order.
    AnswersReversed,
    /// Facts come in the reverse order.
    FactsReversed,
    /// The payload comes unasked.
    PayloadUnasked,
    /// A delete leaves the bytes for the next record of its key.
    DeleteKeepsBodies,
    /// A mark's value is not cleared.
    ValueNotCleared,
    /// A recognised batch answers as new.
    AgainNotTold,
    /// A recognised batch answers without its stamps.
    AgainWithoutStamps,
    /// Only half of a token is compared.
    HalfToken,
    /// The last page of a list names a next one.
    NextAfterTheLast,
    /// A page skips one item after the cursor.
    PageSkipsOne,
    /// A filter of records by state is ignored.
    StateNotFiltered,
    /// Due jobs come in the order of their keys.
    DueByKey,
    /// Prefixes of marks are compared without regard to case.
    PrefixFoldsCase,
    /// The end of an audit range is included.
    AuditEndIncluded,
    /// One write too many is taken.
    OneWriteTooMany,
    /// A closed store goes on.
    CloseDoesNothing,
    /// Instants are those of the last commit.
    NowOfLastCommit,
}

impl Mutation {
    /// Every mutation that is a bug.
    pub(crate) const BUGS: [Self; 22] = [
        Self::LastConditionIgnored,
        Self::OneFailureNamed,
        Self::RefusalWithoutOutcome,
        Self::AuditOfRefusedKept,
        Self::RefusalSpreads,
        Self::AnswersReversed,
        Self::FactsReversed,
        Self::PayloadUnasked,
        Self::DeleteKeepsBodies,
        Self::ValueNotCleared,
        Self::AgainNotTold,
        Self::AgainWithoutStamps,
        Self::HalfToken,
        Self::NextAfterTheLast,
        Self::PageSkipsOne,
        Self::StateNotFiltered,
        Self::DueByKey,
        Self::PrefixFoldsCase,
        Self::AuditEndIncluded,
        Self::OneWriteTooMany,
        Self::CloseDoesNothing,
        Self::NowOfLastCommit,
    ];

    /// Whether random steps can show it: they take care not to break bounds, and never close.
    pub(crate) fn shows_in_random_steps(self) -> bool {
        !matches!(self, Self::OneWriteTooMany | Self::CloseDoesNothing)
    }
}

/// Opens mutants.
pub(crate) struct MutantHarness {
    pub(crate) mutation: Mutation,
    hand: Mutex<Option<ManualClock>>,
}

impl MutantHarness {
    pub(crate) fn new(mutation: Mutation) -> Self {
        Self { mutation, hand: Mutex::default() }
    }
}

impl Harness for MutantHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let (inner, hand) = MemoryStore::manual(START);
            *self.hand.lock().unwrap() = Some(hand);
            let last_now = Mutex::new(START);
            let mutant = Mutant { inner, mutation: self.mutation, last_now };
            Ok(Arc::new(mutant) as Arc<dyn Store>)
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            self.hand.lock().unwrap().as_ref().unwrap().advance(ms);
            Ok(true)
        })
    }
}

struct Mutant {
    inner: MemoryStore,
    mutation: Mutation,
    last_now: Mutex<At>,
}

impl Mutant {
    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    /// What reaches the store of a batch.
    fn sent(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        match self.mutation {
            Mutation::LastConditionIgnored => drop(batch.conditions.pop()),
            Mutation::HalfToken => batch.token = Token(batch.token.0 & u128::from(u64::MAX)),
            Mutation::OneWriteTooMany if batch.writes.len() > MAX_BATCH_WRITES => {
                batch.writes.truncate(MAX_BATCH_WRITES);
            }
            _ => {}
        }
        for write in &mut batch.writes {
            match write {
                Write::Mark { value, .. }
                    if self.is(Mutation::ValueNotCleared) && *value == Body::Clear =>
                {
                    *value = Body::Keep;
                }
                Write::Delete(key) if self.is(Mutation::DeleteKeepsBodies) => {
                    let state = self.inner.snapshot();
                    if let (Some(record), Some(outcome)) = (state.record(key), state.outcome(key)) {
                        // As good as deleted for whoever asks, but for its bytes.
                        let mut draft =
                            onceward::testing::conformance::bench::draft_of(&record.clone());
                        draft.outcome = Body::Set(outcome.clone());
                        draft.record.owner = Some("deleted".into());
                        *write = Write::Put(Box::new(draft));
                    }
                }
                _ => {}
            }
        }
        batch
    }

    fn answered(&self, batch: &Batch, answer: &mut Answer) {
        match answer {
            Answer::Applied(applied) => match self.mutation {
                Mutation::AgainNotTold => applied.again = false,
                Mutation::AgainWithoutStamps if applied.again => applied.first = None,
                Mutation::NowOfLastCommit => {
                    let mut last = self.last_now.lock().unwrap();
                    std::mem::swap(&mut *last, &mut applied.now);
                }
                _ => {}
            },
            Answer::Refused(refused) => match self.mutation {
                Mutation::OneFailureNamed => refused.failed.truncate(1),
                Mutation::RefusalWithoutOutcome => {
                    for (_, there) in &mut refused.failed {
                        if let There::Record(Some(stored)) = there {
                            stored.outcome = None;
                        }
                    }
                }
                Mutation::LastConditionIgnored => {
                    assert!(refused.failed.iter().all(|(n, _)| *n < batch.conditions.len()));
                }
                _ => {}
            },
            Answer::Contended => {}
        }
    }

    /// The audit entries of a refused batch, as a batch of their own.
    fn rest_of(batch: &Batch) -> Option<Arc<Batch>> {
        let is_audit = |write: &&Write| matches!(write, Write::Audit(_));
        let writes: Vec<_> = batch.writes.iter().filter(is_audit).cloned().collect();
        let token = Token(!batch.token.0);
        (!writes.is_empty()).then(|| Arc::new(Batch { token, conditions: vec![], writes }))
    }

    async fn commit(&self, group: Vec<Arc<Batch>>) -> Result<Committed, StoreError> {
        let sent: Vec<_> = group.iter().map(|batch| Arc::new(self.sent(batch))).collect();
        let never = Condition::RevIs(
            Key::parse("x:job:x:x").map_err(StoreError::from)?,
            onceward::core::stamp::Rev(1),
        );
        if self.is(Mutation::RefusalSpreads) && sent.len() > 1 {
            // A trial on a copy tells whether any would be refused.
            let now = self.inner.load(vec![]).await?.now;
            let mut trial = self.inner.snapshot();
            let answers = trial.apply_group(sent.iter().map(|batch| &**batch), now);
            if answers.iter().any(|answer| matches!(answer, Answer::Refused(_))) {
                let spoilt = sent.iter().map(|batch| {
                    let mut batch = (**batch).clone();
                    batch.conditions.push(never.clone());
                    Arc::new(batch)
                });
                return self.inner.commit(spoilt.collect()).await;
            }
        }
        let mut committed = self.inner.commit(sent).await?;
        for (batch, answer) in group.iter().zip(&mut committed.answers) {
            self.answered(batch, answer);
            if self.is(Mutation::AuditOfRefusedKept)
                && matches!(answer, Answer::Refused(_))
                && let Some(rest) = Self::rest_of(batch)
            {
                self.inner.commit(vec![rest]).await?;
            }
        }
        if self.is(Mutation::AnswersReversed) {
            committed.answers.reverse();
        }
        Ok(committed)
    }

    async fn list(
        &self,
        mut what: List,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let mut fold = None;
        match (self.mutation, &mut what) {
            (Mutation::StateNotFiltered, List::Records { state, .. }) => *state = None,
            (Mutation::PrefixFoldsCase, List::Marks { prefix, .. }) => {
                fold = Some(std::mem::take(prefix).to_lowercase());
            }
            (Mutation::AuditEndIncluded, List::Audit(filter)) => {
                filter.to = filter.to.map(|to| to.plus(1));
            }
            _ => {}
        }
        let skips = self.is(Mutation::PageSkipsOne) && after.is_some();
        let is_due = matches!(what, List::Due { .. });
        let mut page = self.inner.list(what, after, limit).await?;
        match &mut page.items {
            Items::Records(records) => {
                if is_due && self.is(Mutation::DueByKey) {
                    records.sort_by(|a, b| a.key.cmp(&b.key));
                }
                if skips && records.len() > 1 {
                    records.remove(0);
                }
            }
            Items::Marks(marks) => {
                if let Some(prefix) = fold {
                    let name = |subject: &onceward::core::key::Subject| {
                        subject.name_column().to_lowercase()
                    };
                    marks.retain(|(subject, _)| name(subject).starts_with(&prefix));
                }
            }
            Items::Audit(_) => {}
        }
        if self.is(Mutation::NextAfterTheLast)
            && page.next.is_none()
            && let Items::Records(records) = &page.items
            && let Some(last) = records.last()
            && !is_due
        {
            page.next = Some(Cursor(last.key.to_string()));
        }
        Ok(page)
    }

    async fn load(&self, mut reads: Vec<Read>) -> Result<Loaded, StoreError> {
        if self.is(Mutation::PayloadUnasked) {
            for read in &mut reads {
                if let Read::Record { payload, .. } = read {
                    *payload = true;
                }
            }
        }
        let mut loaded = self.inner.load(reads).await?;
        if self.is(Mutation::FactsReversed) {
            loaded.facts.reverse();
        }
        if self.is(Mutation::DeleteKeepsBodies) {
            for fact in &mut loaded.facts {
                if let Fact::Record(found) = fact
                    && found.as_ref().is_some_and(|found| {
                        found.stored.record.owner.as_deref() == Some("deleted")
                    })
                {
                    *found = None;
                }
            }
        }
        Ok(loaded)
    }
}

impl Store for Mutant {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        Box::pin(self.load(reads))
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(self.commit(group))
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(self.list(what, after, limit))
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        if self.is(Mutation::CloseDoesNothing) {
            return Box::pin(async { Ok(()) });
        }
        self.inner.close()
    }
}
