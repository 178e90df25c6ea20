//! What the conformance cases share: a store under test, short ways to ask it, and failures.
//!
//! Cases return a [`Failure`] in place of panicking, so that a run over all of them can report
//! every one that failed. Everything that is written here is something a store must take.

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward_core::Bytes;
use onceward_core::audit::{Audited, Entry, Trace};
use onceward_core::batch::{Answer, Applied, Batch, Condition, Refused, Write};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::{Body, Draft, FenceWrite, Mark, Record, State, Terms, Time};
use onceward_core::stamp::{At, Fence, Rev, Token};

use crate::store::{
    Capabilities, Cursor, Fact, Found, Items, List, Read, Store, StoreError, StoreFuture,
};
use crate::testing::harness::{Damage, Harness};

/// What a case comes to.
pub type Checked = Result<(), Failure>;

/// A case that is under way.
pub type CaseFuture<'a> = Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// A failure, told where it was noticed.
    #[must_use]
    #[track_caller]
    pub fn new(what: impl fmt::Display) -> Self {
        let at = Location::caller();
        Self(format!("{what} ({}:{})", at.file(), at.line()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for Failure {
    #[track_caller]
    fn from(error: StoreError) -> Self {
        Self::new(format!("unexpected error {}: {error}", error.code()))
    }
}

impl From<LimitError> for Failure {
    #[track_caller]
    fn from(error: LimitError) -> Self {
        Self::new(format!("unexpected limit: {error}"))
    }
}

impl From<tokio::task::JoinError> for Failure {
    #[track_caller]
    fn from(error: tokio::task::JoinError) -> Self {
        Self::new(format!("a task of the case failed: {error}"))
    }
}

/// Fails the case unless something holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err($crate::testing::conformance::bench::Failure::new(format!($($message)+)));
        }
    };
}

/// Fails the case unless two values are equal: what is there, then what must be there.
macro_rules! ensure_eq {
    ($is:expr, $must_be:expr, $($message:tt)+) => {
        match (&$is, &$must_be) {
            (is, must_be) => {
                if *is != *must_be {
                    let what = format!($($message)+);
                    return Err($crate::testing::conformance::bench::Failure::new(format!(
                        "{what}:\n   is      {is:?}\n   must be {must_be:?}"
                    )));
                }
            }
        }
    };
}

pub(crate) use {ensure, ensure_eq};

/// A freshly opened store under test.
pub struct Bench<'a> {
    harness: &'a dyn Harness,
    /// The store.
    pub store: Arc<dyn Store>,
    /// What it says it can do.
    pub can: Capabilities,
    tokens: AtomicU64,
}

impl<'a> Bench<'a> {
    /// Opens an empty store.
    ///
    /// # Errors
    /// When the harness can't.
    pub async fn open(harness: &'a dyn Harness) -> Result<Self, StoreError> {
        let store = harness.open().await?;
        let can = store.capabilities();
        Ok(Self { harness, store, can, tokens: AtomicU64::new(1) })
    }

    /// The same data, opened again; none when the store keeps nothing.
    ///
    /// # Errors
    /// When it can't be opened.
    pub async fn reopen(&mut self) -> Result<bool, Failure> {
        let Some(store) = self.harness.reopen().await? else { return Ok(false) };
        self.store = store;
        Ok(true)
    }

    /// Lets time pass by the store's clock.
    ///
    /// # Errors
    /// When the harness can't.
    pub async fn pass(&self, ms: u64) -> Checked {
        if !self.harness.advance(ms).await? {
            // sleeps because a clock that nobody can move has to be waited for
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        Ok(())
    }

    /// Moves the store's clock if it can be moved, and says whether it could.
    ///
    /// # Errors
    /// When the harness fails.
    pub async fn advance(&self, ms: u64) -> Result<bool, Failure> {
        Ok(self.harness.advance(ms).await?)
    }

    /// Changes stored bytes behind the store's back; false when nobody can.
    ///
    /// # Errors
    /// When the harness fails.
    pub async fn damage(&self, what: Damage) -> Result<bool, Failure> {
        Ok(self.harness.damage(what).await?)
    }

    /// A batch of these conditions and writes under a token of its own.
    #[must_use]
    pub fn batch(&self, conditions: Vec<Condition>, writes: Vec<Write>) -> Batch {
        let number = self.tokens.fetch_add(1, Ordering::SeqCst);
        // All 128 bits are used, so that a store which keeps fewer is noticed.
        let token = Token(u128::from(number) | u128::from(u64::MAX - number) << 64);
        Batch { token, conditions, writes }
    }

    /// Commits one batch as a group of its own.
    ///
    /// # Errors
    /// When the store fails or answers for another number of batches.
    pub async fn commit(&self, batch: &Batch) -> Result<Answer, Failure> {
        commit_to(&*self.store, batch).await
    }

    /// Commits batches in as few groups as the store can take.
    ///
    /// # Errors
    /// When the store fails or does not answer for every batch.
    pub async fn commit_all(&self, batches: &[Batch]) -> Result<Vec<Answer>, Failure> {
        let mut answers = Vec::with_capacity(batches.len());
        for group in batches.chunks(self.can.group_max.max(1)) {
            let group: Vec<_> = group.iter().cloned().map(Arc::new).collect();
            let size = group.len();
            let committed = self.store.commit(group).await?;
            ensure_eq!(committed.answers.len(), size, "one answer per batch");
            answers.extend(committed.answers);
        }
        Ok(answers)
    }

    /// Commits a batch that must be applied.
    ///
    /// # Errors
    /// When it is not.
    pub async fn apply(&self, batch: &Batch) -> Result<Applied, Failure> {
        applied(self.commit(batch).await?)
    }

    /// Commits a batch that must be refused.
    ///
    /// # Errors
    /// When it is not.
    pub async fn refuse(&self, batch: &Batch) -> Result<Refused, Failure> {
        match self.commit(batch).await? {
            Answer::Refused(refused) => Ok(refused),
            answer => Err(Failure::new(format!("must be refused, but got {answer:?}"))),
        }
    }

    /// Commits a batch that must break a bound.
    ///
    /// # Errors
    /// When it does not.
    pub async fn invalid(&self, batch: &Batch) -> Result<LimitError, Failure> {
        match self.store.commit(vec![Arc::new(batch.clone())]).await {
            Err(StoreError::Invalid(limit)) => Ok(limit),
            answer => Err(Failure::new(format!("must be Invalid, but got {answer:?}"))),
        }
    }

    /// Puts a draft without conditions and gives the record as it must be stored now.
    ///
    /// # Errors
    /// When it is not applied.
    pub async fn insert(&self, draft: &Draft) -> Result<Record, Failure> {
        let batch = self.batch(vec![], vec![put(draft.clone())]);
        let applied = self.apply(&batch).await?;
        Ok(draft.resolve(batch.token, applied.now, first(&applied)?.0.0))
    }

    /// Looks things up.
    ///
    /// # Errors
    /// When the store fails or does not answer every read.
    pub async fn load(&self, reads: Vec<Read>) -> Result<Vec<Fact>, Failure> {
        let asked = reads.len();
        let loaded = self.store.load(reads).await?;
        ensure_eq!(loaded.facts.len(), asked, "one fact per read");
        Ok(loaded.facts)
    }

    /// The store's now.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn now(&self) -> Result<At, Failure> {
        Ok(self.store.load(vec![]).await?.now)
    }

    /// A record with outcome and payload, or none.
    ///
    /// # Errors
    /// When the store fails or answers something else.
    pub async fn found(&self, key: &Key) -> Result<Option<Found>, Failure> {
        let read = Read::Record { key: key.clone(), payload: true };
        match self.load(vec![read]).await?.pop() {
            Some(Fact::Record(found)) => Ok(found),
            fact => Err(Failure::new(format!("asked for a record, got {fact:?}"))),
        }
    }

    /// A record that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub async fn record(&self, key: &Key) -> Result<Record, Failure> {
        match self.found(key).await? {
            Some(found) => Ok(found.stored.record),
            None => Err(Failure::new(format!("{key} must be there"))),
        }
    }

    /// A mark, or none.
    ///
    /// # Errors
    /// When the store fails or answers something else.
    pub async fn mark(&self, subject: &Subject) -> Result<Option<Mark>, Failure> {
        match self.load(vec![Read::Mark(subject.clone())]).await?.pop() {
            Some(Fact::Mark(mark)) => Ok(mark),
            fact => Err(Failure::new(format!("asked for a mark, got {fact:?}"))),
        }
    }

    /// The position of a subject; 0 when it has no mark.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn position(&self, subject: &Subject) -> Result<u64, Failure> {
        Ok(self.mark(subject).await?.map_or(0, |mark| mark.position))
    }

    /// Returns when lists see every commit that was answered.
    ///
    /// # Errors
    /// When the harness can't.
    pub async fn settle(&self) -> Checked {
        Ok(self.harness.settle().await?)
    }

    /// Everything that a list has, walked in pages of `limit` after the lists have settled.
    ///
    /// # Errors
    /// When the store fails, a page is too long or the walk does not end.
    pub async fn walk(&self, what: &List, limit: usize) -> Result<Vec<Items>, Failure> {
        self.harness.settle().await?;
        walk(&*self.store, what, limit).await
    }

    /// The records of a list.
    ///
    /// # Errors
    /// As [`Bench::walk`].
    pub async fn list_records(&self, what: &List, limit: usize) -> Result<Vec<Record>, Failure> {
        let mut all = Vec::new();
        for items in self.walk(what, limit).await? {
            match items {
                Items::Records(records) => all.extend(records),
                other => return Err(Failure::new(format!("asked for records, got {other:?}"))),
            }
        }
        Ok(all)
    }

    /// The keys of a list of records.
    ///
    /// # Errors
    /// As [`Bench::walk`].
    pub async fn list_keys(&self, what: &List, limit: usize) -> Result<Vec<Key>, Failure> {
        let records = self.list_records(what, limit).await?;
        Ok(records.into_iter().map(|record| record.key).collect())
    }

    /// The marks of a list.
    ///
    /// # Errors
    /// As [`Bench::walk`].
    pub async fn list_marks(
        &self,
        what: &List,
        limit: usize,
    ) -> Result<Vec<(Subject, Mark)>, Failure> {
        let mut all = Vec::new();
        for items in self.walk(what, limit).await? {
            match items {
                Items::Marks(marks) => all.extend(marks),
                other => return Err(Failure::new(format!("asked for marks, got {other:?}"))),
            }
        }
        Ok(all)
    }

    /// The audit entries of a list.
    ///
    /// # Errors
    /// As [`Bench::walk`].
    pub async fn list_audit(&self, what: &List, limit: usize) -> Result<Vec<Audited>, Failure> {
        let mut all = Vec::new();
        for items in self.walk(what, limit).await? {
            match items {
                Items::Audit(entries) => all.extend(entries),
                other => return Err(Failure::new(format!("asked for audit, got {other:?}"))),
            }
        }
        Ok(all)
    }
}

/// Pages that a walk may have before it counts as endless.
const MAX_PAGES: usize = 10_000;

/// Every page of a list.
///
/// # Errors
/// When the store fails, a page is too long or the walk does not end.
pub async fn walk(store: &dyn Store, what: &List, limit: usize) -> Result<Vec<Items>, Failure> {
    let mut pages = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let page = store.list(what.clone(), after.clone(), limit).await?;
        let length = match &page.items {
            Items::Records(items) => items.len(),
            Items::Marks(items) => items.len(),
            Items::Audit(items) => items.len(),
            Items::Settled(items) => items.len(),
        };
        ensure!(length <= limit, "a page of {limit} has {length} items");
        ensure!(page.next.is_none() || length > 0, "an empty page that has a next one");
        pages.push(page.items);
        ensure!(pages.len() < MAX_PAGES, "the walk does not end: {what:?}");
        match page.next {
            Some(cursor) => after = Some(cursor),
            None => return Ok(pages),
        }
    }
}

/// Commits one batch to a store.
///
/// # Errors
/// When the store fails or answers for another number of batches.
pub async fn commit_to(store: &dyn Store, batch: &Batch) -> Result<Answer, Failure> {
    let mut answers = store.commit(vec![Arc::new(batch.clone())]).await?.answers;
    match (answers.pop(), answers.is_empty()) {
        (Some(answer), true) => Ok(answer),
        (answer, _) => Err(Failure::new(format!("one answer per batch: {answer:?}, {answers:?}"))),
    }
}

/// The answer of a batch that must be applied.
///
/// # Errors
/// When it is another one.
#[track_caller]
pub fn applied(answer: Answer) -> Result<Applied, Failure> {
    match answer {
        Answer::Applied(applied) => Ok(applied),
        answer => Err(Failure::new(format!("must be applied, but got {answer:?}"))),
    }
}

/// The stamps of the first record that a batch put.
///
/// # Errors
/// When there are none.
#[track_caller]
pub fn first(applied: &Applied) -> Result<(Rev, Option<Fence>), Failure> {
    applied.first.ok_or_else(|| Failure::new("a batch that puts a record must answer its stamps"))
}

/// The tenant of most cases.
pub const TENANT: &str = "acme";
/// The scope, or queue, of most cases.
pub const SCOPE: &str = "mail";

/// A request's key.
///
/// # Errors
/// When the id is out of bounds.
pub fn key(id: &str) -> Result<Key, LimitError> {
    Key::new(Kind::Request, TENANT, SCOPE, id)
}

/// A job's key.
///
/// # Errors
/// When the id is out of bounds.
pub fn job(id: &str) -> Result<Key, LimitError> {
    Key::new(Kind::Job, TENANT, SCOPE, id)
}

/// A subject.
///
/// # Errors
/// When the id is out of bounds.
pub fn subject(id: &str) -> Result<Subject, LimitError> {
    Subject::new(TENANT, "doc", id)
}

/// Shared bytes.
#[must_use]
pub fn bytes(text: &str) -> Bytes {
    text.as_bytes().into()
}

/// A draft of a fresh running record of this key, without outcome and payload.
#[must_use]
pub fn draft(key: &Key) -> Draft {
    let record = Record {
        key: key.clone(),
        state: State::Running,
        fingerprint: fingerprint_bytes(b"payload"),
        rev: Rev(0),
        fence: None,
        last_fence: Fence(0),
        token: Token(0),
        attempt: 1,
        terms: Terms::default(),
        owner: None,
        attempt_id: None,
        guard: None,
        priority: 0,
        created_at: At(0),
        updated_at: At(0),
        due_at: None,
        expires_at: None,
        sweep_at: None,
        outcome: None,
        has_payload: false,
        error: None,
        trace: Trace::default(),
    };
    Draft {
        record,
        fence: FenceWrite::Grant,
        fresh: true,
        due: Time::In(30_000),
        expires: Time::Keep,
        sweep: Time::Keep,
        outcome: Body::Keep,
        payload: Body::Keep,
    }
}

/// A draft that follows a stored record and changes nothing but its stamps.
#[must_use]
pub fn draft_of(record: &Record) -> Draft {
    Draft {
        record: record.clone(),
        fence: FenceWrite::Keep,
        fresh: false,
        due: Time::Keep,
        expires: Time::Keep,
        sweep: Time::Keep,
        outcome: Body::Keep,
        payload: Body::Keep,
    }
}

/// The same draft with an outcome.
#[must_use]
pub fn with_outcome(mut draft: Draft, outcome: &Bytes) -> Draft {
    draft.record.outcome = Some(fingerprint_bytes(outcome));
    draft.outcome = Body::Set(outcome.clone());
    draft
}

/// The same draft with a payload.
#[must_use]
pub fn with_payload(mut draft: Draft, payload: &Bytes) -> Draft {
    draft.record.has_payload = true;
    draft.payload = Body::Set(payload.clone());
    draft
}

/// A write that puts a draft.
#[must_use]
pub fn put(draft: Draft) -> Write {
    Write::Put(Box::new(draft))
}

/// A write that moves a mark and leaves its value.
#[must_use]
pub fn mark_at(subject: &Subject, position: u64) -> Write {
    Write::Mark { subject: subject.clone(), position, value: Body::Keep }
}

/// A write that appends an audit entry.
#[must_use]
pub fn audit(action: &str) -> Write {
    Write::Audit(Box::new(Entry::new(TENANT, action)))
}

/// All records, of every tenant.
#[must_use]
pub fn all_records() -> List {
    List::Records { tenant: None, scope: None, state: None }
}

/// All audit entries of [`TENANT`].
#[must_use]
pub fn all_audit() -> List {
    let tenant = Some(TENANT.to_string());
    List::Audit(crate::store::AuditFilter { tenant, ..Default::default() })
}

/// Keeps a future's type short where cases are collected.
pub(super) fn boxed<'a>(case: impl Future<Output = Checked> + Send + 'a) -> CaseFuture<'a> {
    Box::pin(case)
}

/// Whether a store can't be asked any more: every method fails with `NotApplied`.
///
/// # Errors
/// When a call does anything else.
pub async fn gone<T: fmt::Debug + Send>(call: StoreFuture<'_, T>, what: &str) -> Checked {
    match call.await {
        Err(StoreError::NotApplied(_)) => Ok(()),
        other => Err(Failure::new(format!("{what} must answer NotApplied, but got {other:?}"))),
    }
}
