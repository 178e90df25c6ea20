//! A schema of its own for each test, batches in a line, and a clock that tests move.
//!
//! Rule: tests run only against the server that `ONCEWARD_TEST_POSTGRES_URL` names, and fail
//! without it. Nothing here knows how the store works inside, but for the names of its locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onceward::core::batch::{Answer, Applied, Batch, Condition, Refused, Write};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::record::{Body, Draft, FenceWrite, Record, State, Terms, Time};
use onceward::core::stamp::{At, Fence, Rev, Token};
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::{Fact, Found, Read, Store, StoreError};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

/// The server under test.
pub(crate) fn url() -> String {
    std::env::var("ONCEWARD_TEST_POSTGRES_URL").expect(
        "ONCEWARD_TEST_POSTGRES_URL is not set: these tests need a Postgres server, for instance \
         postgres://postgres@127.0.0.1:5432/postgres; \
         `cargo xtask services up postgres` starts one",
    )
}

/// Its host and port.
pub(crate) fn server() -> (String, u16) {
    let config: Config = url().parse().unwrap();
    let Some(Host::Tcp(host)) = config.get_hosts().first() else { panic!("the URL has no host") };
    (host.clone(), config.get_ports().first().copied().unwrap_or(5432))
}

/// A connection that is not the store's.
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.expect("the test server answers");
    tokio::spawn(connection);
    client
}

/// A schema of its own.
pub(crate) struct Place {
    pub(crate) schema: String,
    pub(crate) sql: Client,
}

impl Place {
    /// Makes the schema; `name` is the test's.
    pub(crate) async fn new(name: &str) -> Self {
        let place = Self::empty(name).await;
        PostgresStore::migrate(&url(), place.options()).await.unwrap();
        place.sql(&format!("SET search_path = {}", place.schema)).await;
        place
    }

    /// As [`Place::new`], without the schema.
    pub(crate) async fn empty(name: &str) -> Self {
        let schema = format!("t_{name}_{}", std::process::id());
        let sql = client(&url()).await;
        sql.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await.unwrap();
        Self { schema, sql }
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions { schema: self.schema.clone(), ..PostgresOptions::default() }
    }

    /// Opens a store whose sessions the server lists under the schema's name.
    pub(crate) async fn store(&self) -> PostgresStore {
        self.store_with(&[]).await.unwrap()
    }

    /// Opens a store with some parameters of the connection set otherwise.
    pub(crate) async fn store_with(
        &self,
        parameters: &[(&str, &str)],
    ) -> Result<PostgresStore, StoreError> {
        let config: Config = url().parse().unwrap();
        let (host, port) = server();
        let (port, user) = (port.to_string(), config.get_user().unwrap_or("postgres"));
        let password = config.get_password().map(|bytes| String::from_utf8(bytes.into()).unwrap());
        let mut all = BTreeMap::from([
            ("host", host.as_str()),
            ("port", &port),
            ("user", user),
            ("dbname", config.get_dbname().unwrap_or(user)),
            ("application_name", &self.schema),
        ]);
        all.extend(password.as_deref().map(|password| ("password", password)));
        all.extend(parameters.iter().copied());
        let text: Vec<String> =
            all.iter().map(|(name, value)| format!("{name}='{value}'")).collect();
        PostgresStore::connect(&text.join(" "), self.options()).await
    }

    pub(crate) async fn sql(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap();
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// From here on the store's clock shows what [`Place::set_clock`] says.
    pub(crate) async fn manual_clock(&self, at: u64) {
        let schema = &self.schema;
        self.sql(&format!(
            "CREATE TABLE {schema}.test_clock (now bigint NOT NULL); \
             INSERT INTO {schema}.test_clock VALUES ({at}); \
             CREATE OR REPLACE FUNCTION {schema}.store_now_ms() RETURNS bigint \
                 LANGUAGE sql VOLATILE SECURITY DEFINER \
                 AS 'SELECT now FROM {schema}.test_clock'"
        ))
        .await;
    }

    /// Stamps and entries count as the oracle's do, as long as each batch puts one record and notes
    /// at most one entry: then what the stores answer can be compared as it is.
    pub(crate) async fn count_as_the_oracle(&self) {
        let from_one = "ALTER SEQUENCE stamps MINVALUE 0 INCREMENT BY 1 RESTART WITH 0";
        self.sql(from_one).await;
    }

    pub(crate) async fn set_clock(&self, at: u64) {
        self.sql(&format!("UPDATE test_clock SET now = {at}")).await;
    }

    /// An open transaction of someone else that holds a lock of the store, by its name's parts.
    pub(crate) async fn hold(&self, name: &[&str]) -> Client {
        let other = client(&url()).await;
        let mut parts = vec![self.schema.as_str()];
        parts.extend(name);
        other
            .batch_execute(&format!("BEGIN; SET LOCAL search_path = {}", self.schema))
            .await
            .unwrap();
        let take = "SELECT pg_try_advisory_xact_lock(lock_of(VARIADIC $1::text[]))";
        assert!(other.query_one(take, &[&parts]).await.unwrap().get::<_, bool>(0));
        other
    }

    /// An open transaction of someone else that lets this table be read and not written.
    pub(crate) async fn freeze(&self, table: &str) -> Client {
        let other = client(&url()).await;
        let schema = &self.schema;
        let freeze = format!("BEGIN; LOCK TABLE {schema}.{table} IN SHARE ROW EXCLUSIVE MODE");
        other.batch_execute(&freeze).await.unwrap();
        other
    }

    /// Returns once a session of the store waits for a lock of someone else.
    pub(crate) async fn until_one_waits(&self) {
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = '{}' AND cardinality(pg_blocking_pids(pid)) > 0",
            self.schema
        );
        while self.count(&waiting).await == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Ends every session of the store from outside. Returns how many there were.
    pub(crate) async fn kill_sessions(&self) -> usize {
        let kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
                    WHERE application_name = $1";
        let rows = self.sql.query(kill, &[&self.schema]).await.unwrap();
        assert!(rows.iter().all(|row| row.get(0)), "a session outlived its end");
        rows.len()
    }

    /// Returns once no session of the store has a transaction open: an answer is heard a moment
    /// before the server has ended its transaction.
    pub(crate) async fn until_no_transaction_is_open(&self) {
        let open = format!(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE application_name = '{}' AND xact_start IS NOT NULL",
            self.schema
        );
        let ended = async {
            while self.count(&open).await != 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), ended).await.expect("one stays open");
    }

    /// Removes the schema. A test that fails leaves it, to be looked at.
    pub(crate) async fn remove(self) {
        self.sql(&format!("DROP SCHEMA {} CASCADE", self.schema)).await;
    }
}

/// A key of a tenant that all tests share; the schema keeps them apart.
pub(crate) fn key(kind: Kind, id: &str) -> Key {
    Key::new(kind, "acme", "scope", id).unwrap()
}

pub(crate) fn request(id: &str) -> Key {
    key(Kind::Request, id)
}

pub(crate) fn subject(id: &str) -> Subject {
    Subject::new("acme", "space", id).unwrap()
}

/// A token that nobody has used yet.
pub(crate) fn token() -> Token {
    static LAST: AtomicU64 = AtomicU64::new(0);
    Token(LAST.fetch_add(1, Ordering::Relaxed).into())
}

pub(crate) fn record(key: &Key, state: State) -> Record {
    Record {
        key: key.clone(),
        state,
        fingerprint: fingerprint_bytes(b"payload"),
        rev: Rev::default(),
        fence: None,
        last_fence: Fence::default(),
        token: Token::default(),
        attempt: 1,
        terms: Terms::default(),
        owner: Some("worker 1".into()),
        attempt_id: None,
        guard: None,
        priority: 0,
        created_at: At::default(),
        updated_at: At::default(),
        due_at: None,
        expires_at: None,
        sweep_at: None,
        outcome: None,
        has_payload: false,
        error: Some("a\0b".into()),
        trace: Default::default(),
    }
}

/// A first claim's draft: running, leased for 30 s.
pub(crate) fn draft(record: Record) -> Draft {
    Draft {
        record,
        fence: FenceWrite::Grant,
        fresh: true,
        due: Time::In(30_000),
        expires: Time::Clear,
        sweep: Time::Clear,
        outcome: Body::Keep,
        payload: Body::Keep,
    }
}

/// A draft that finishes a record with this outcome.
pub(crate) fn done(mut record: Record, outcome: &[u8]) -> Draft {
    record.state = State::Done;
    record.outcome = Some(fingerprint_bytes(outcome));
    Draft {
        fence: FenceWrite::End,
        fresh: false,
        due: Time::Clear,
        expires: Time::In(60_000),
        sweep: Time::In(60_000),
        outcome: Body::Set(outcome.into()),
        ..draft(record)
    }
}

pub(crate) fn put(draft: Draft) -> Write {
    Write::Put(Box::new(draft))
}

pub(crate) fn mark(id: &str, position: u64, value: Body) -> Write {
    Write::Mark { subject: subject(id), position, value }
}

pub(crate) fn batch(conditions: Vec<Condition>, writes: Vec<Write>) -> Arc<Batch> {
    Arc::new(Batch { token: token(), conditions, writes })
}

/// A first claim.
pub(crate) fn claim(key: &Key) -> Arc<Batch> {
    batch(vec![Condition::Absent(key.clone())], vec![put(draft(record(key, State::Running)))])
}

/// Commits one batch.
pub(crate) async fn commit(store: &PostgresStore, batch: &Arc<Batch>) -> Answer {
    try_commit(store, batch).await.unwrap()
}

pub(crate) async fn try_commit(
    store: &PostgresStore,
    batch: &Arc<Batch>,
) -> Result<Answer, StoreError> {
    let mut committed = store.commit(vec![batch.clone()]).await?;
    assert_eq!(committed.answers.len(), 1);
    Ok(committed.answers.remove(0))
}

#[track_caller]
pub(crate) fn applied(answer: &Answer) -> Applied {
    let Answer::Applied(applied) = answer else { panic!("not applied: {answer:?}") };
    *applied
}

#[track_caller]
pub(crate) fn refused(answer: &Answer) -> Refused {
    let Answer::Refused(refused) = answer else { panic!("not refused: {answer:?}") };
    refused.clone()
}

pub(crate) async fn find(store: &PostgresStore, key: &Key) -> Option<Found> {
    let read = Read::Record { key: key.clone(), payload: true };
    let mut loaded = store.load(vec![read]).await.unwrap();
    let Fact::Record(found) = loaded.facts.remove(0) else { panic!("not a record") };
    found
}
