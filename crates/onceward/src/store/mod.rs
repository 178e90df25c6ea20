//! The store contract: a map of records, marks and audit entries with atomic conditional batches.
//!
//! A store holds no policy. It loads by key, applies groups of batches under their conditions, and
//! lists what is due. Whatever is decided, is decided above it. The sentences below are the
//! contract; the conformance suite in `testing` has a case for each.
//!
//! # Batches
//! - All conditions of a batch hold and all its writes happen, or none of its writes happens.
//! - A refusal names each condition that failed and what is there now.
//! - A batch that comes again under the same token answers as applied and changes nothing.
//! - Every put draws a stamp above all stamps drawn before, across deletion and re-creation. A
//!   store that counts in several places promises this for each key, and across keys for what the
//!   process that writes has seen.
//! - Marks never move back.
//! - Numbers of audit entries are not used again after old entries were dropped.
//! - Instants of a draft are the store's now, read once per group after every lock was taken.
//!
//! # Groups
//! - Each batch of a group is answered on its own; a refusal never touches its neighbours.
//! - The caller sees to it that no two batches of a group touch the same record or mark.
//!
//! # Failures
//! - [`StoreError::NotApplied`] means that nothing happened and nothing will.
//! - [`StoreError::Unknown`] means that it may have happened, or may still happen. The caller sends
//!   the same batch again.
//!
//! # Reads
//! - `load` sees every commit that was answered before it was called.
//! - Stored bytes that were changed behind our back are refused as corrupt, never returned.

pub mod clock;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod timed;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use onceward_core::Bytes;
use onceward_core::audit::Audited;
use onceward_core::batch::{Answer, Batch};
use onceward_core::key::{Key, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::{Mark, Record, State, Stored};
use onceward_core::seal::Settled;
use onceward_core::stamp::{At, Rev};

/// What every method of a store returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place that keeps records, marks and audit entries. See the module for the contract.
pub trait Store: Send + Sync + 'static {
    /// What this store can do. Never changes while it is open.
    fn capabilities(&self) -> Capabilities;

    /// Looks things up, all at one instant. Facts come in the order of the reads.
    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded>;

    /// Applies a group of batches in one durable transaction. Answers come in their order.
    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed>;

    /// Applies one batch, together with whatever else is handed in meanwhile. Stores that gather
    /// by themselves ([`Capabilities::gathers`]) have it in their hands when this returns.
    fn commit_one(self: Arc<Self>, batch: Arc<Batch>) -> StoreFuture<'static, Answer> {
        Box::pin(async move {
            let committed = self.commit(vec![batch]).await?;
            let missing = || StoreError::Unknown("the store left out an answer".into());
            committed.answers.into_iter().next().ok_or_else(missing)
        })
    }

    /// Lists what the question asks for, a page at a time.
    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page>;

    /// Resolves when one of the keys may have changed. Stores without it answer `Unsupported`.
    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()>;

    /// Runs the caller's own SQL in the transaction of the batch that it makes, once the conditions
    /// of its template hold: many in one durable transaction, each on its own. Answers come in
    /// their order; `Contended` for one that made no batch. Other stores than SQLite answer
    /// `Unsupported`.
    #[cfg(feature = "sqlite")]
    fn commit_own(&self, group: Vec<Arc<dyn sqlite::OwnSql>>) -> StoreFuture<'_, Committed> {
        drop(group);
        let store = self.capabilities().name;
        let what = "the caller's own SQL in its transaction";
        Box::pin(async move { Err(StoreError::Unsupported { store, what }) })
    }

    /// Resolves when what was deleted before the call is in none of the files that the store keeps
    /// itself. False when somebody has kept it from that for longer than may be waited: it is tried
    /// further, and [`Store::standing`] says so meanwhile.
    fn scrub(&self) -> StoreFuture<'_, bool> {
        Box::pin(async { Ok(true) })
    }

    /// How the store is now. Cheap: it is asked every second.
    fn standing(&self) -> Standing {
        Standing::default()
    }

    /// Finishes what is under way and lets go of files and connections. Later calls fail.
    fn close(&self) -> StoreFuture<'_, ()>;
}

/// What someone who runs a store should know about how it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Something was lost, or may have been: a person has to look. Each says what to do.
    pub alarms: Vec<String>,
    /// Something is not as people expect, and nothing is lost.
    pub warnings: Vec<String>,
    /// How far the check of names has come.
    pub names: NamesCheck,
}

/// Whether the names of all keys were compared with what the store knows of them. A store that has
/// no such check of its own is done with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NamesCheck {
    /// It has ended.
    #[default]
    Checked,
    /// It is under way.
    Checking,
}

impl NamesCheck {
    /// The word in health.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Checked => "checked",
            Self::Checking => "checking",
        }
    }
}

/// Leases that were granted before the machine was started again, and from when on they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasesAnew {
    /// The last record of that time, by its rev.
    pub upto: Rev,
    /// The store's instant at which the first store was opened after the start.
    pub since: At,
}

/// What a store can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name in messages and metrics.
    pub name: &'static str,
    /// Whether `now` is its own clock. Without, leases are judged by watching revs.
    pub clock: bool,
    /// Most batches in one group.
    pub group_max: usize,
    /// Groups that are worth having under way at once.
    pub lanes: usize,
    /// Whether it makes its groups by itself and keeps batches of one row in the order in which
    /// they come: then each is handed in on its own ([`Store::commit_one`]).
    pub gathers: bool,
    /// Whether [`Store::watch`] works.
    pub watch: bool,
    /// Whether lists see every commit that was answered before.
    pub lists_are_current: bool,
    /// Leases that are counted anew, when the machine was started again: nobody knows for how long
    /// it was off.
    pub leases_anew: Option<LeasesAnew>,
    /// What survives a power loss.
    pub durability: Durability,
    /// What someone who runs it should know: weaker settings that were asked for by name.
    pub warnings: Vec<String>,
}

/// What survives a power loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Durability {
    /// Everything that was answered.
    Full,
    /// Less, because someone asked for it by this name.
    Weak(&'static str),
    /// Nothing: it lives in memory.
    None,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Weak(how) => write!(f, "weak ({how})"),
            Self::None => f.write_str("none (memory)"),
        }
    }
}

/// Something to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// A record with its outcome, and with its payload if asked for.
    Record {
        /// Which.
        key: Key,
        /// Whether the payload is wanted too.
        payload: bool,
    },
    /// A mark with its value.
    Mark(Subject),
}

/// The answer to one read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly every fact is a record")]
pub enum Fact {
    /// A record, or none.
    Record(Option<Found>),
    /// A mark, or none.
    Mark(Option<Mark>),
}

/// A record that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The record and its outcome.
    pub stored: Stored,
    /// The payload, if it was asked for and there is one.
    pub payload: Option<Bytes>,
}

/// What was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The store's instant of the look. Without a clock: a date that is about right.
    pub now: At,
    /// One per read, in their order.
    pub facts: Vec<Fact>,
}

/// The answer to a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// One per batch, in their order.
    pub answers: Vec<Answer>,
}

/// What to list. Columns (tenant, scope, names) are given as stores keep them: escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    /// Records in the order of tenant, kind and name.
    Records {
        /// Only this tenant's.
        tenant: Option<String>,
        /// Only of this scope.
        scope: Option<String>,
        /// Only in this state, as written.
        state: Option<State>,
    },
    /// Jobs of a queue that may be taken by the store's clock: due ones, and running ones whose
    /// lease has run out. Higher priority first, then the one that is due longest.
    Due {
        /// The queue.
        queue: String,
    },
    /// Records that the sweep has to look at by the store's clock, longest due first.
    Sweepable,
    /// Marks whose name starts with this, in the order of tenant and name.
    Marks {
        /// Only this tenant's.
        tenant: Option<String>,
        /// Start of the name.
        prefix: String,
    },
    /// Audit entries in the order of their numbers.
    Audit(AuditFilter),
    /// Audit entries in the order in which they settle: what is committed later stands behind all
    /// that was listed. Entries that another one may still precede are left for later. A page that
    /// is not empty always ends with a cursor: it is where to go on once there is more.
    Settled {
        /// Only this tenant's.
        tenant: Option<String>,
    },
}

impl List {
    /// Whether a page of it may have to look through very much that does not fit, for people who
    /// search. Such lists are kept from taking the places of those that look one thing up.
    #[cfg_attr(not(any(feature = "sqlite", feature = "postgres")), expect(dead_code))]
    pub(crate) fn may_be_long(&self) -> bool {
        match self {
            Self::Records { .. } | Self::Marks { .. } | Self::Audit(_) => true,
            Self::Due { .. } | Self::Sweepable | Self::Settled { .. } => false,
        }
    }

    /// The mark that a page of [`List::Marks`] ended with: of one tenant its name, of all of them
    /// the tenant too. A cursor of the one list says nothing about the other, and is refused.
    pub(crate) fn mark_after(
        tenant: Option<&str>,
        after: Option<&str>,
    ) -> Result<Option<Subject>, StoreError> {
        let Some(cursor) = after else { return Ok(None) };
        let columns = tenant.map_or_else(|| cursor.split_once(':'), |of| Some((of, cursor)));
        let (of, name) = columns.ok_or_else(StoreError::bad_cursor)?;
        Subject::from_columns(of, name).map(Some).map_err(|_| StoreError::bad_cursor())
    }

    /// The cursor of a page of [`List::Marks`] that ends with a mark.
    pub(crate) fn mark_cursor(tenant: Option<&str>, last: &Subject) -> Cursor {
        Cursor(tenant.map_or_else(|| last.to_string(), |_| last.name_column().to_string()))
    }
}

/// Which audit entries are wanted. Times are half-open: `from <= at < to`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only this tenant's.
    pub tenant: Option<String>,
    /// Only about this subject.
    pub subject: Option<String>,
    /// Only with this key hash.
    pub key_hash: Option<String>,
    /// Only this action.
    pub action: Option<String>,
    /// Not before.
    pub from: Option<At>,
    /// Before.
    pub to: Option<At>,
}

/// Where a page ended. Opaque: only the store that made it can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub String);

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The store's instant of the look.
    pub now: At,
    /// What was found.
    pub items: Items,
    /// Payloads of listed due jobs that came along, by their places in the list; of those that have
    /// none here they are looked up. A store that keeps them elsewhere leaves it empty.
    pub payloads: Vec<Option<Bytes>>,
    /// Where the next page starts; none when this was the last.
    pub next: Option<Cursor>,
}

/// What was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Items {
    /// Records, without outcomes and payloads.
    Records(Vec<Record>),
    /// Marks with their values.
    Marks(Vec<(Subject, Mark)>),
    /// Audit entries.
    Audit(Vec<Audited>),
    /// Audit entries with their places.
    Settled(Vec<Settled>),
}

/// Why a store could not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing happened, and nothing will. Safe to try again.
    #[error("the store did nothing: {0}")]
    NotApplied(String),
    /// It may have happened, or may still happen.
    #[error("the store's answer was lost: {0}")]
    Unknown(String),
    /// This store can't do that.
    #[error("the {store} store does not support {what}")]
    Unsupported {
        /// Which store.
        store: &'static str,
        /// What.
        what: &'static str,
    },
    /// The request breaks a bound.
    #[error(transparent)]
    Invalid(#[from] LimitError),
    /// What is stored is not what was written.
    #[error("stored data is damaged: {0}")]
    Corrupt(String),
    /// The store can't be opened as it is: locked, refused settings.
    #[error("{0}")]
    Open(String),
    /// The store's tables are missing, older or newer than this program needs.
    #[error("{0}")]
    Schema(String),
}

impl StoreError {
    /// A cursor that no page of this store ended with.
    pub(crate) fn bad_cursor() -> Self {
        let bound = "one that a page of the same list ended with";
        Self::Invalid(LimitError::new("cursor", "not readable", bound))
    }

    /// A stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotApplied(_) => "store.unavailable",
            Self::Unknown(_) => "store.answer_lost",
            Self::Unsupported { .. } => "store.unsupported",
            Self::Invalid(_) => "store.limit",
            Self::Corrupt(_) => "store.corrupt",
            Self::Open(_) => "store.open",
            Self::Schema(_) => "store.schema",
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::NotApplied(_) | Self::Unknown(_))
    }
}
