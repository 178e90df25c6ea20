//! Broken stores: the memory store with one thing wrong at a time.
//!
//! Each mutant breaks one sentence of the store contract as an honest mistake would. A suite that
//! does not notice one of them is not worth its run, and neither is a case that notices none.

mod answers;
mod requests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::core::batch::{Answer, Batch};
use onceward::core::key::Key;
use onceward::core::stamp::At;
use onceward::store::clock::ManualClock;
use onceward::store::memory::MemoryStore;
use onceward::store::{
    Capabilities, Committed, Cursor, List, Loaded, Page, Read, Store, StoreError, StoreFuture,
};
use onceward::testing::harness::{Damage, Harness, START};
use tokio::sync::Notify;

macro_rules! mutations {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// One thing that is wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Mutation {
            /// Nothing: the wrapper itself is no bug.
            None,
            $($(#[doc = $doc])* $name,)*
        }
        impl Mutation {
            /// Every mutation that is a bug.
            pub(crate) const BUGS: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

mutations! {
    /// `Absent` never holds.
    AbsentNeverHolds,
    /// `RevIs` compares with the rev after.
    RevOffByOne,
    /// `PositionIs` compares with the position after.
    PositionOffByOne,
    /// `PositionAtMost` means below.
    AtMostIsBelow,
    /// The last condition of a batch is not checked.
    LastConditionIgnored,
    /// Conditions are checked, and the batch is written a moment later.
    LookThenWrite,
    /// A refusal names only the first condition that failed.
    OneFailureNamed,
    /// A refusal comes without the outcome's bytes.
    RefusalWithoutOutcome,
    /// A refused batch leaves its audit entries.
    AuditOfRefusedKept,
    /// One refused batch refuses its whole group.
    RefusalSpreads,
    /// A delete of what is not there is refused.
    DeleteOfNothingRefused,
    /// A delete leaves the bytes for the next record of its key.
    DeleteKeepsBodies,
    /// Outcomes and payloads are not cleared.
    BodiesNotCleared,
    /// Bodies are kept as text.
    BodiesAreText,
    /// An empty group is an error.
    EmptyGroupFails,
    /// Answers of a group come in the reverse order.
    AnswersReversed,
    /// A group is applied up to the batch that is invalid.
    InvalidLeavesPart,
    /// Nothing survives a reopen.
    LosesAll,
    /// A closed store goes on.
    CloseDoesNothing,
    /// What is damaged is returned all the same.
    DamageReturned,
    /// Facts come in the reverse order.
    FactsReversed,
    /// The payload comes unasked.
    PayloadUnasked,
    /// An empty load does not look at the clock.
    EmptyLoadWithoutTime,
    /// Reads of one load look one after the other.
    LoadsOneByOne,
    /// Every other load looks at a clock that is behind.
    ClockStepsBack,
    /// Instants are those of the last commit.
    NowOfLastCommit,
    /// A first try answers as recognised.
    AgainAlways,
    /// A recognised batch answers as new.
    AgainNotTold,
    /// A recognised batch answers without its stamps.
    AgainWithoutStamps,
    /// Only half of a token is compared.
    HalfToken,
    /// Revs fall.
    RevsFall,
    /// A renewal draws a new fence.
    KeepGrants,
    /// A permit does not end.
    EndKeeps,
    /// A grant that ends at once is a plain grant.
    OnceGrants,
    /// A mark that is there does not move.
    MarkSticks,
    /// A mark at 0 is not written.
    MarkAtZeroDropped,
    /// A mark's value is not cleared.
    ValueNotCleared,
    /// A mark goes with the record of its name.
    MarkGoesWithRecord,
    /// Names of marks are kept in lower case.
    MarkNamesFold,
    /// The last page of a list names a next one.
    NextAfterTheLast,
    /// A page skips one item after the cursor.
    PageSkipsOne,
    /// A list starts again when the record that a page ended with is gone.
    CursorFollowsRecord,
    /// A list starts again after a cursor that can't be read.
    BadCursorStartsAgain,
    /// An empty list is an error.
    EmptyListFails,
    /// The newest record is not listed yet.
    NewestNotListed,
    /// Records are listed in the reverse order.
    RecordsReversed,
    /// A filter of records by state is ignored.
    StateNotFiltered,
    /// Due jobs come in the order of their keys.
    DueByKey,
    /// A job is due after its instant.
    DueIsLate,
    /// Marks are listed in the reverse order.
    MarksReversed,
    /// Prefixes of marks are compared without regard to case.
    PrefixFoldsCase,
    /// The end of an audit range is included.
    AuditEndIncluded,
    /// Audit entries are not filtered by key hash.
    AuditHashNotFiltered,
    /// Audit entries lose their detail.
    AuditLosesDetail,
    /// Settled entries are listed in the reverse order.
    SettledReversed,
    /// A write less than the most is too many.
    OneWriteTooFew,
    /// One write too many is taken.
    OneWriteTooMany,
    /// The most bytes are too many.
    OneByteTooFew,
    /// Too many bytes are cut.
    BytesCut,
    /// Of two writes of one row the last one counts.
    RowTwiceTaken,
    /// Long keys are refused.
    LongKeysRefused,
    /// A watch is unsupported although it is promised.
    WatchUnsupported,
}

impl Mutation {
    /// Whether random steps can show it: they break no bounds, never close nor watch, run one at a
    /// time, and use short plain keys.
    pub(crate) fn shows_in_random_steps(self) -> bool {
        !matches!(
            self,
            Self::LookThenWrite
                | Self::EmptyGroupFails
                | Self::InvalidLeavesPart
                | Self::CloseDoesNothing
                | Self::DamageReturned
                | Self::LoadsOneByOne
                | Self::BadCursorStartsAgain
                | Self::CursorFollowsRecord
                | Self::OneWriteTooFew
                | Self::OneWriteTooMany
                | Self::OneByteTooFew
                | Self::BytesCut
                | Self::RowTwiceTaken
                | Self::LongKeysRefused
                | Self::MarkGoesWithRecord
                | Self::MarkNamesFold
                | Self::WatchUnsupported
        )
    }
}

/// Opens mutants. Their memory outlives a reopen, as a file would.
pub(crate) struct MutantHarness {
    mutation: Mutation,
    opened: Mutex<Option<(Arc<Mutant>, ManualClock)>>,
}

impl MutantHarness {
    pub(crate) fn new(mutation: Mutation) -> Self {
        Self { mutation, opened: Mutex::default() }
    }

    fn put(&self, mutant: Mutant, hand: ManualClock) -> Arc<dyn Store> {
        let mutant = Arc::new(mutant);
        *self.opened.lock().unwrap() = Some((mutant.clone(), hand));
        mutant
    }
}

impl Harness for MutantHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let (inner, hand) = MemoryStore::manual(START);
            Ok(self.put(Mutant::new(self.mutation, Arc::new(inner)), hand))
        })
    }

    fn reopen(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async move {
            let (mutant, hand) = self.opened.lock().unwrap().clone().unwrap();
            mutant.close().await?;
            if self.mutation == Mutation::LosesAll {
                let (inner, hand) = MemoryStore::manual(hand.now());
                return Ok(Some(self.put(Mutant::new(self.mutation, Arc::new(inner)), hand)));
            }
            Ok(Some(self.put(Mutant::new(self.mutation, mutant.inner.clone()), hand)))
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            self.opened.lock().unwrap().as_ref().unwrap().1.advance(ms);
            Ok(true)
        })
    }

    fn damage(&self, _what: Damage) -> StoreFuture<'_, bool> {
        // A store that does not look at its seals is one whose damage changes nothing.
        Box::pin(async move { Ok(self.mutation == Mutation::DamageReturned) })
    }
}

struct Mutant {
    mutation: Mutation,
    inner: Arc<MemoryStore>,
    closed: AtomicBool,
    calls: AtomicU64,
    last_now: Mutex<At>,
    deleted: Mutex<HashSet<String>>,
    /// The record that each page ended with.
    ends: Mutex<HashMap<String, Key>>,
    changed: Notify,
}

impl Mutant {
    fn new(mutation: Mutation, inner: Arc<MemoryStore>) -> Self {
        Self {
            mutation,
            inner,
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            last_now: Mutex::new(START),
            deleted: Mutex::default(),
            ends: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::SeqCst) && !self.is(Mutation::CloseDoesNothing) {
            return Err(StoreError::NotApplied("the mutant is closed".into()));
        }
        Ok(())
    }

    async fn commit(&self, group: Vec<Arc<Batch>>) -> Result<Committed, StoreError> {
        self.check_open()?;
        if group.is_empty() && self.is(Mutation::EmptyGroupFails) {
            return Err(StoreError::NotApplied("an empty group".into()));
        }
        let mut sent = Vec::new();
        for batch in &group {
            sent.push(Arc::new(self.request(batch)?));
        }
        let invalid = sent.iter().any(|batch| batch.validate().is_err());
        if invalid && self.is(Mutation::InvalidLeavesPart) {
            for batch in &sent {
                self.inner.commit(vec![batch.clone()]).await?;
            }
        }
        self.spoil(&mut sent).await?;
        if let Some(refused) = self.look_then_strip(&mut sent).await? {
            return Ok(refused);
        }
        let mut committed = self.inner.commit(sent).await?;
        for (batch, answer) in group.iter().zip(&mut committed.answers) {
            self.answer(answer);
            if self.is(Mutation::AuditOfRefusedKept)
                && matches!(answer, Answer::Refused(_))
                && let Some(rest) = requests::audit_of(batch)
            {
                self.inner.commit(vec![rest]).await?;
            }
        }
        if self.is(Mutation::AnswersReversed) {
            committed.answers.reverse();
        }
        self.changed.notify_waiters();
        Ok(committed)
    }

    async fn load(&self, mut reads: Vec<Read>) -> Result<Loaded, StoreError> {
        self.check_open()?;
        self.requested(&mut reads);
        if self.is(Mutation::LoadsOneByOne) && reads.len() > 1 {
            let last = reads.split_off(1);
            let mut loaded = self.inner.load(reads).await?;
            // Until something is committed in between, or nothing is on its way.
            let between = self.changed.notified();
            let _ = tokio::time::timeout(Duration::from_millis(20), between).await;
            loaded.facts.extend(self.inner.load(last).await?.facts);
            return Ok(loaded);
        }
        let empty = reads.is_empty();
        let mut loaded = self.inner.load(reads).await?;
        self.loaded(&mut loaded);
        if empty && self.is(Mutation::EmptyLoadWithoutTime) {
            loaded.now = At(0);
        }
        if self.is(Mutation::ClockStepsBack)
            && self.calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
        {
            loaded.now = At(loaded.now.0.saturating_sub(100));
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
        Box::pin(self.listed(what, after, limit))
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        if let Err(closed) = self.check_open() {
            return Box::pin(async { Err(closed) });
        }
        if self.is(Mutation::WatchUnsupported) {
            let unsupported = StoreError::Unsupported { store: "mutant", what: "watch" };
            return Box::pin(async { Err(unsupported) });
        }
        self.inner.watch(keys)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::SeqCst);
            Ok(())
        })
    }
}
