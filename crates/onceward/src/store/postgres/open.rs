//! Connections: sessions with their settings and prepared statements, and the pools that lend them.
//!
//! Rule: whoever has a lease owns the session to the end, and only a session whose transaction has
//! ended comes back; any other is dropped, which closes the connection, and the server rolls back.
//! A lost connection is opened again by the next call, with back-off when that fails. What runs on
//! a session is not this file's business.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error, NoTls, Statement};

use super::super::StoreError;
use super::failure::{Failure, describe};
use super::lean::Prospects;
use super::sql::Sql;
use super::standing::{self, Standing};
use super::{PostgresOptions, Weakness};

/// Wait after the first failed attempt to connect; doubles with each further one.
pub(super) const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between two attempts to connect.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Silence on a connection before the kernel asks whether the other side is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// Where to connect, and how.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) options: PostgresOptions,
}

impl Target {
    pub(super) fn new(url: &str, mut options: PostgresOptions) -> Result<Self, StoreError> {
        options.validate()?;
        let url = options.take_allowed(url)?;
        let mut config: Config = url.parse().map_err(|error| {
            let why = describe(&error);
            StoreError::Open(format!("the Postgres URL can't be read: {why}"))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("onceward");
        }
        config.connect_timeout(options.connect_timeout());
        config.tcp_user_timeout(options.answer_timeout());
        // Of several hosts, the one that writes: a replica would be read behind its commits. Of
        // one, whatever it is: what is wrong with it is then told by name.
        if config.get_hosts().len() > 1 && !options.allows(Weakness::Replica) {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        config.keepalives(true).keepalives_idle(KEEPALIVE_IDLE);
        Ok(Self { config, options })
    }

    /// The URL without its password, for messages.
    pub(super) fn shown(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".into(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        let user = self.config.get_user().map(|user| in_url(user) + "@").unwrap_or_default();
        format!("postgres://{user}{host}:{port}/{database}", database = in_url(database))
    }

    /// Opens a bare connection, driven by a task of its own until its client is dropped.
    pub(super) async fn connect(&self) -> Result<(Client, JoinHandle<()>), StoreError> {
        let limit = self.options.connect_timeout();
        let connected = tokio::time::timeout(limit, self.config.connect(NoTls)).await;
        let (client, connection) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => {
                let (at, ms) = (self.shown(), limit.as_millis());
                let text = format!("{at} did not answer within {ms} ms");
                return Err(StoreError::NotApplied(text));
            }
        };
        // What ends the connection reaches the requests under way; there is nobody else to tell.
        Ok((client, tokio::spawn(async move { drop(connection.await) })))
    }

    /// Whether a hand is needed (password, database, TLS) or time (down, starting, full).
    pub(super) fn unreachable(&self, error: &Error) -> StoreError {
        let text = format!("can't connect to {}: {}", self.shown(), describe(error));
        let needs_a_hand = error.code().is_some_and(|code| {
            code.code().starts_with("28") || *code == SqlState::INVALID_CATALOG_NAME
        });
        if needs_a_hand { StoreError::Open(text) } else { StoreError::NotApplied(text) }
    }
}

/// A text as a part of a URL.
fn in_url(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let spelled = |byte| match byte {
        byte if plain(byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(spelled).collect()
}

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Commits.
    Writer,
    /// Loads and lists: each transaction is of one snapshot and can't write.
    Reader,
    /// Hears the bells of other processes, and asks for them.
    Listener,
}

/// A connection that is ready to work.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) standing: Standing,
    statements: Vec<Statement>,
    driver: JoinHandle<()>,
    answer_timeout: Duration,
    tokens: AtomicU32,
    pub(super) prospects: Prospects,
}

impl Session {
    async fn open(target: &Target, role: Role) -> Result<Self, StoreError> {
        let (client, driver) = target.connect().await?;
        Self::ready(client, driver, target, role).await
    }

    /// Makes a bare connection ready to work, in good time.
    pub(super) async fn ready(
        client: Client,
        driver: JoinHandle<()>,
        target: &Target,
        role: Role,
    ) -> Result<Self, StoreError> {
        let limit = target.options.answer_timeout();
        let prepared = tokio::time::timeout(limit, Self::prepare(client, driver, target, role));
        prepared.await.unwrap_or_else(|_| {
            let (at, ms) = (target.shown(), limit.as_millis());
            Err(StoreError::NotApplied(format!("{at} was not ready within {ms} ms")))
        })
    }

    async fn prepare(
        client: Client,
        driver: JoinHandle<()>,
        target: &Target,
        role: Role,
    ) -> Result<Self, StoreError> {
        let failed = |error: Error| target.unreachable(&error);
        client.batch_execute(&settings(&target.options, role)).await.map_err(failed)?;
        let standing = standing::take(&client, target).await?;
        let texts = Sql::ALL.iter().map(|sql| client.prepare(sql.text()));
        let statements = try_join_all(texts).await.map_err(failed)?;
        let answer_timeout = target.options.answer_timeout();
        let tokens = AtomicU32::new(0);
        let prospects = Prospects::default();
        Ok(Self { client, standing, statements, driver, answer_timeout, tokens, prospects })
    }

    /// A prepared statement.
    pub(super) fn prepared(&self, sql: Sql) -> &Statement {
        &self.statements[sql as usize]
    }

    /// Waits for the answers of statements that were sent together, but not for ever.
    pub(super) async fn flight<T>(&self, answers: impl Future<Output = T>) -> Result<T, Failure> {
        let ms = self.answer_timeout.as_millis();
        tokio::time::timeout(self.answer_timeout, answers)
            .await
            .map_err(|_| Failure::Gone(format!("Postgres did not answer within {ms} ms")))
    }

    /// Counts tokens that are being written. True once every `each` of them.
    pub(super) fn tokens_written(&self, more: u32, each: u32) -> bool {
        let written = self.tokens.load(Ordering::Relaxed).saturating_add(more);
        let full = written >= each;
        self.tokens.store(if full { 0 } else { written }, Ordering::Relaxed);
        full
    }

    async fn end(self) {
        drop(self.client);
        // The driver says good-bye to the server and ends; how it ends no longer matters.
        drop(self.driver.await);
    }
}

/// The settings of every session. The statements look a few rows up by their keys; without these
/// settings a table that was never analysed, or was empty when the plan was made, is read whole.
fn settings(options: &PostgresOptions, role: Role) -> String {
    let PostgresOptions { schema, statement_timeout_ms: statement, .. } = options;
    let idle = options.idle_in_transaction_timeout_ms;
    let role = match role {
        // Read committed, whatever the database's default is: each statement of the group's
        // function has to see what was committed before the locks were taken.
        Role::Writer | Role::Listener => {
            "SET default_transaction_isolation = 'read committed'; \
             SET default_transaction_read_only = off; \
             SET plan_cache_mode = force_generic_plan;"
        }
        Role::Reader => {
            "SET default_transaction_isolation = 'repeatable read'; \
             SET default_transaction_read_only = on;"
        }
    };
    format!(
        "SET search_path = \"{schema}\", pg_temp; \
         SET statement_timeout = {statement}; \
         SET idle_in_transaction_session_timeout = {idle}; \
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
         SET enable_bitmapscan = off; \
         SET jit = off; SET row_security = on; {role}"
    )
}

/// Sessions of one role, lent one at a time.
pub(super) struct Pool {
    target: Target,
    role: Role,
    size: u32,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
    backoff: Mutex<Option<Backoff>>,
}

struct Backoff {
    wait: Duration,
    until: Instant,
    why: String,
}

impl Pool {
    pub(super) fn new(target: Target, role: Role, size: u32) -> Self {
        let permits = Arc::new(Semaphore::new(size as usize));
        Self { target, role, size, permits, idle: Mutex::default(), backoff: Mutex::default() }
    }

    /// Opens the first session and says what it is like.
    pub(super) async fn warm(self: &Arc<Self>) -> Result<Standing, StoreError> {
        let session = Session::open(&self.target, self.role).await?;
        let standing = session.standing.clone();
        locked(&self.idle).push(session);
        Ok(standing)
    }

    /// Lends a session, opening one when none is idle.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, StoreError> {
        let closed = |_| StoreError::NotApplied("the postgres store is closed".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(closed)?;
        loop {
            let idle = locked(&self.idle).pop();
            match idle {
                Some(session) if session.client.is_closed() => {}
                Some(session) => return Ok(Lease { session, pool: self.clone(), _permit: permit }),
                None => break,
            }
        }
        let session = self.reopen().await?;
        Ok(Lease { session, pool: self.clone(), _permit: permit })
    }

    /// Opens a session; fails at once while the server was found missing a moment ago, so that
    /// callers hear it while they can still do something else.
    async fn reopen(&self) -> Result<Session, StoreError> {
        if let Some(backoff) = &*locked(&self.backoff)
            && let left = backoff.until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            let text = format!("{}; next try in {} ms", backoff.why, left.as_millis());
            return Err(StoreError::NotApplied(text));
        }
        match Session::open(&self.target, self.role).await {
            Ok(session) => {
                *locked(&self.backoff) = None;
                Ok(session)
            }
            Err(error) => {
                let why = match error {
                    // It is said once, by the error that this becomes.
                    StoreError::NotApplied(why) => why,
                    error => error.to_string(),
                };
                let mut backoff = locked(&self.backoff);
                let wait = backoff.as_ref().map_or(BACKOFF_FIRST, |last| last.wait * 2);
                let wait = wait.min(BACKOFF_MAX);
                let until = Instant::now() + wait;
                *backoff = Some(Backoff { wait, until, why: why.clone() });
                // The store was open before: for who calls it now, this is an outage like any.
                Err(StoreError::NotApplied(why))
            }
        }
    }

    /// Waits for every lease, then ends every session. Later calls fail.
    pub(super) async fn close(&self) {
        let all = self.permits.acquire_many(self.size).await;
        self.permits.close();
        drop(all);
        let idle = std::mem::take(&mut *locked(&self.idle));
        for session in idle {
            session.end().await;
        }
    }
}

/// A session on loan. Dropped instead of given back, its connection closes.
pub(super) struct Lease {
    pub(super) session: Session,
    pool: Arc<Pool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    /// The transaction has ended: the session may serve others.
    pub(super) fn give_back(self) {
        let Self { session, pool, _permit } = self;
        if !session.client.is_closed() {
            locked(&pool.idle).push(session);
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is replaced in one step, so a panic leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
