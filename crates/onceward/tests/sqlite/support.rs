//! What the tests of the embedded store share: a folder of its own, keys, drafts, batches.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail the test"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward::core::audit::{Entry, Trace};
use onceward::core::batch::{Answer, Applied, Batch, Condition, Write};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::record::{Body, Draft, FenceWrite, Record, State, Terms, Time};
use onceward::core::stamp::{At, Fence, Rev, Token};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{Fact, Found, Read, Store, StoreError};

/// A folder that is removed at the end of the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sqlite-{name}-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("store.db")
    }

    pub(crate) fn open(&self) -> SqliteStore {
        SqliteStore::open(self.database(), SqliteOptions::default()).unwrap()
    }

    pub(crate) fn refusal(&self) -> String {
        refusal(SqliteStore::open(self.database(), SqliteOptions::default()))
    }

    /// A plain connection to the file, to do what nobody should.
    pub(crate) fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.database()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The sentence with which a store refuses to open.
pub(crate) fn refusal(opened: Result<SqliteStore, StoreError>) -> String {
    match opened {
        Err(StoreError::Open(why)) => why,
        other => panic!("should have refused to open, but: {other:?}"),
    }
}

pub(crate) fn key(id: &str) -> Key {
    Key::new(Kind::Request, "acme", "POST /orders", id).unwrap()
}

pub(crate) fn subject(id: &str) -> Subject {
    Subject::new("acme", "orders", id).unwrap()
}

pub(crate) fn record(key: &Key, state: State) -> Record {
    Record {
        key: key.clone(),
        state,
        fingerprint: fingerprint_bytes(b"payload"),
        rev: Rev(0),
        fence: None,
        last_fence: Fence(0),
        token: Token(0),
        attempt: 1,
        terms: Terms::default(),
        owner: Some("worker".into()),
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
    }
}

pub(crate) fn draft(record: Record) -> Draft {
    Draft {
        record,
        fence: FenceWrite::Keep,
        fresh: false,
        due: Time::Clear,
        expires: Time::Clear,
        sweep: Time::Clear,
        outcome: Body::Keep,
        payload: Body::Keep,
    }
}

/// A token that was never used before in this process.
pub(crate) fn token() -> Token {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Token(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64 | 0x5eed)
}

pub(crate) fn batch(conditions: Vec<Condition>, writes: Vec<Write>) -> Arc<Batch> {
    Arc::new(Batch { token: token(), conditions, writes })
}

pub(crate) fn put(draft: Draft) -> Write {
    Write::Put(Box::new(draft))
}

/// A first claim: the key must be absent, and the record is running under a new fence.
pub(crate) fn claim(key: &Key) -> Arc<Batch> {
    let mut draft = draft(record(key, State::Running));
    draft.fence = FenceWrite::Grant;
    draft.fresh = true;
    draft.due = Time::In(30_000);
    draft.sweep = Time::In(60_000);
    batch(vec![Condition::Absent(key.clone())], vec![put(draft)])
}

/// The completion of a claim, with an outcome and an audit entry.
pub(crate) fn complete(key: &Key, fence: Fence, outcome: &[u8]) -> Arc<Batch> {
    let mut done = record(key, State::Done);
    done.outcome = Some(fingerprint_bytes(outcome));
    done.last_fence = fence;
    let mut draft = draft(done);
    draft.fence = FenceWrite::End;
    draft.expires = Time::In(86_400_000);
    draft.sweep = Time::In(86_400_000);
    draft.outcome = Body::Set(outcome.into());
    let entry = Entry::about(key, "done", &fingerprint_bytes(b"payload"), &Trace::default());
    let writes = vec![put(draft), Write::Audit(Box::new(entry))];
    batch(vec![Condition::FenceIs(key.clone(), fence)], writes)
}

pub(crate) async fn one(store: &dyn Store, batch: &Arc<Batch>) -> Answer {
    let mut answers = store.commit(vec![batch.clone()]).await.unwrap().answers;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

#[track_caller]
pub(crate) fn applied(answer: &Answer) -> Applied {
    match answer {
        Answer::Applied(applied) => *applied,
        other => panic!("should have been applied, but: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn fence(answer: &Answer) -> Fence {
    applied(answer).first.and_then(|(_, fence)| fence).expect("a grant has a fence")
}

pub(crate) async fn find(store: &dyn Store, key: &Key) -> Result<Option<Found>, StoreError> {
    let reads = vec![Read::Record { key: key.clone(), payload: true }];
    match store.load(reads).await?.facts.remove(0) {
        Fact::Record(found) => Ok(found),
        Fact::Mark(_) => panic!("a record was asked for"),
    }
}

/// Claims and completes a key.
pub(crate) async fn finish(store: &dyn Store, key: &Key, outcome: &[u8]) {
    let fence = fence(&one(store, &claim(key)).await);
    applied(&one(store, &complete(key, fence, outcome)).await);
}
