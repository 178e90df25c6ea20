//! A full-text index in the embedded store's file: one commit with the registry.
//!
//! Each generation has a table of documents and an FTS5 table of their words. The writer's thread
//! changes both in the transaction that records the event; searches read through a connection of
//! their own. The tenant is a word of each entry that every search asks for, so that one tenant's
//! words never weigh on another's.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use onceward_core::decide::{Claim, Completion};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::fold::{Fold, Folded};
use super::view::{Entry, View, ViewError, ViewFuture, entry_of};
use super::words::{words_of_json, words_of_text};
use crate::engine::{Engine, OwnSqlError, STORE_TENANT, random_u64};
use crate::events::Event;
use crate::handlers::{HandlerError, Work};
use crate::points::{Point, reach};
use crate::worker::Done;

/// Ids of one page.
const PAGE: usize = 1_000;
/// Segments of one size that FTS5 merges into one, and the share of deleted entries, in percent,
/// from which on it merges a segment again. Every update deletes an entry, and with FTS5's own 4
/// and 10 a fifth of the writer's time went into merges; a search looks into a few segments more.
const MERGE_SEGMENTS: u32 = 8;
const MERGE_DELETED: u32 = 40;

/// A full-text index in SQLite. Cheap to clone.
#[derive(Clone)]
pub struct SqliteIndex {
    engine: Engine,
    name: String,
    reader: Arc<Reader>,
}

struct Reader {
    path: PathBuf,
    connection: Mutex<Option<Connection>>,
}

impl SqliteIndex {
    /// The index of the view of this name, in the file of the engine's store.
    ///
    /// # Errors
    /// When the name is not letters, digits and `_`: it becomes the name of tables.
    pub fn new(
        engine: Engine,
        file: impl AsRef<Path>,
        name: impl Into<String>,
    ) -> Result<Self, ViewError> {
        let name = name.into();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || name.len() > 40 || !name.bytes().all(plain) {
            let why = format!("{name:?} must be 1 to 40 lower-case letters, digits or `_`");
            return Err(ViewError::Broken(why));
        }
        let path = file.as_ref().to_owned();
        let reader = Arc::new(Reader { path, connection: Mutex::default() });
        Ok(Self { engine, name, reader })
    }

    /// Ids and versions of a tenant's documents that hold every word of `text`, each as the
    /// beginning of a word; the latest made first. A page goes on behind the document with the id
    /// `after`, also when that one is deleted.
    ///
    /// # Errors
    /// When the file can't be read.
    pub async fn search(
        &self,
        generation: u64,
        tenant: &str,
        text: &str,
        (after, limit): (Option<&str>, usize),
    ) -> Result<Vec<(String, u64)>, ViewError> {
        let words = words_of_text(text);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: Vec<_> = words.iter().map(|word| format!("words : \"{word}\" *")).collect();
        let wanted = format!("tenant : \"{}\" AND {}", tenant_word(tenant), wanted.join(" AND "));
        let (docs, fts) = (self.docs(generation), self.fts(generation));
        let (tenant, after) = (tenant.to_owned(), after.map(str::to_owned));
        self.reading(move |connection| {
            let below = match &after {
                None => i64::MAX,
                Some(id) => {
                    let sql = format!("SELECT number FROM {docs} WHERE tenant = ?1 AND id = ?2");
                    let mut statement = connection.prepare_cached(&sql)?;
                    let number = statement.query_row(params![tenant, id], |row| row.get(0));
                    // Nothing lies behind what was never there.
                    number.optional()?.unwrap_or(0)
                }
            };
            let sql = format!(
                "SELECT d.id, d.version FROM {fts} f JOIN {docs} d ON d.number = f.rowid \
                 WHERE f.{fts} MATCH ?1 AND f.rowid < ?2 AND d.tenant = ?3 \
                 ORDER BY f.rowid DESC LIMIT ?4"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let most = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![wanted, below, tenant, most], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?.unsigned_abs()))
            })?;
            rows.collect()
        })
        .await
    }

    fn docs(&self, generation: u64) -> String {
        format!("view_{}_{generation}", self.name)
    }

    fn fts(&self, generation: u64) -> String {
        format!("view_{}_{generation}_words", self.name)
    }

    /// Runs statements on the writer's connection, in a transaction of their own.
    async fn writing(&self, sql: String) -> Result<(), ViewError> {
        let broken =
            |error: onceward_core::limits::LimitError| ViewError::Broken(error.to_string());
        let once = format!("{:016x}", random_u64());
        let key = Key::new(Kind::Request, STORE_TENANT, "onceward.view", &once).map_err(broken)?;
        let mut claim = Claim::new(key, fingerprint_bytes(sql.as_bytes()));
        (claim.terms.retain_ms, claim.terms.remember_ms) = (1, 0);
        let run = move |connection: &Connection| {
            connection.execute_batch(&sql)?;
            Ok::<_, rusqlite::Error>(Completion::new(b"done".as_slice().into()))
        };
        match self.engine.run_once_with(&claim, run).await {
            Ok(_) => Ok(()),
            Err(OwnSqlError::Engine(error)) => Err(error.into()),
            Err(error) => Err(ViewError::Broken(error.to_string())),
        }
    }

    async fn reading<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ViewError> {
        let reader = self.reader.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = reader.connection.lock().unwrap_or_else(PoisonError::into_inner);
            if connection.is_none() {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                *connection = Some(Connection::open_with_flags(&reader.path, flags)?);
            }
            match connection.as_ref() {
                Some(connection) => read(connection),
                None => Err(rusqlite::Error::QueryReturnedNoRows),
            }
        });
        let done = done.await.map_err(|error| ViewError::Unavailable(error.to_string()))?;
        done.map_err(|error| ViewError::Unavailable(error.to_string()))
    }
}

impl View for SqliteIndex {
    fn prepare(&self, generation: u64) -> ViewFuture<'_, ()> {
        let (docs, fts) = (self.docs(generation), self.fts(generation));
        // Words come in lower case with spaces between them: the tokenizer has nothing to decide.
        // One that knows an older Unicode would split words that are one to us, and a query for
        // such a word would be a phrase, which an index without positions can't answer.
        Box::pin(self.writing(format!(
            "CREATE TABLE IF NOT EXISTS {docs} (number INTEGER PRIMARY KEY, \
             tenant TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, body BLOB, \
             UNIQUE (tenant, id)); \
             CREATE VIRTUAL TABLE IF NOT EXISTS {fts} USING fts5(tenant, words, content='', \
             contentless_delete=1, detail=column, tokenize='ascii'); \
             INSERT INTO {fts} ({fts}, rank) VALUES ('automerge', {MERGE_SEGMENTS}), \
             ('deletemerge', {MERGE_DELETED})"
        )))
    }

    fn work(&self, generation: u64, fold: Arc<dyn Fold>) -> Work {
        let sql = Arc::new(Sql::new(&self.docs(generation), &self.fts(generation)));
        Work::own_sql(move |connection, event| apply(connection, &sql, &*fold, event))
    }

    fn get<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        id: &'a str,
    ) -> ViewFuture<'a, Option<Entry>> {
        let docs = self.docs(generation);
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        Box::pin(self.reading(move |connection| {
            let sql = format!("SELECT version, body FROM {docs} WHERE tenant = ?1 AND id = ?2");
            let mut statement = connection.prepare_cached(&sql)?;
            let found = statement.query_row(params![tenant, id], |row| {
                Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, Option<Vec<u8>>>(1)?))
            });
            let found = found.optional()?;
            Ok(found.map(|(version, body)| Entry {
                tenant,
                id,
                version,
                body: body.map(Bytes::from),
            }))
        }))
    }

    fn ids<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        after: Option<String>,
    ) -> ViewFuture<'a, (Vec<String>, Option<String>)> {
        let (docs, tenant) = (self.docs(generation), tenant.to_owned());
        Box::pin(self.reading(move |connection| {
            let sql = format!(
                "SELECT id FROM {docs} WHERE tenant = ?1 AND (?2 IS NULL OR id > ?2) \
                 AND body IS NOT NULL ORDER BY id LIMIT {PAGE}"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![tenant, after], |row| row.get(0))?;
            let ids: Vec<String> = rows.collect::<rusqlite::Result<_>>()?;
            let next = (ids.len() == PAGE).then(|| ids.last().cloned()).flatten();
            Ok((ids, next))
        }))
    }

    fn clear<'a>(&'a self, generation: u64, _: &'a [String]) -> ViewFuture<'a, ()> {
        let (docs, fts) = (self.docs(generation), self.fts(generation));
        Box::pin(self.writing(format!("DROP TABLE IF EXISTS {fts}; DROP TABLE IF EXISTS {docs}")))
    }
}

/// The statements of one generation.
struct Sql {
    find: String,
    insert: String,
    update: String,
    forget_words: String,
    add_words: String,
}

impl Sql {
    fn new(docs: &str, fts: &str) -> Self {
        Self {
            find: format!("SELECT number, version, body FROM {docs} WHERE tenant = ?1 AND id = ?2"),
            insert: format!(
                "INSERT INTO {docs} (tenant, id, version, body) VALUES (?1, ?2, ?3, ?4)"
            ),
            update: format!("UPDATE {docs} SET version = ?2, body = ?3 WHERE number = ?1"),
            forget_words: format!("DELETE FROM {fts} WHERE rowid = ?1"),
            add_words: format!("INSERT INTO {fts} (rowid, tenant, words) VALUES (?1, ?2, ?3)"),
        }
    }
}

/// Applies an event, in the writer's transaction.
fn apply(
    connection: &Connection,
    sql: &Sql,
    fold: &dyn Fold,
    event: &Event,
) -> Result<Done, HandlerError> {
    let failed = |error: rusqlite::Error| HandlerError::retryable(error);
    let mut find = connection.prepare_cached(&sql.find).map_err(failed)?;
    let found = find.query_row(params![event.tenant, event.aggregate_id], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<Vec<u8>>>(2)?))
    });
    let found = found.optional().map_err(failed)?;
    let version = i64::try_from(event.sequence_number).unwrap_or(i64::MAX);
    if found.as_ref().is_some_and(|(_, there, _)| *there >= version) {
        return Ok(Done::new());
    }
    let before = found.as_ref().and_then(|(_, _, body)| body.as_deref());
    let folded = fold.fold(event, before)?;
    let had_words = before.is_some();
    if matches!(folded, Folded::Keep) {
        return Ok(Done::new());
    }
    reach(Point::BeforeWrite);
    let body = entry_of(event, folded).and_then(|entry| entry.body);
    let run = |sql: &str, parameters: &[&dyn rusqlite::ToSql]| {
        connection.prepare_cached(sql)?.execute(parameters)
    };
    let number = match &found {
        Some((number, ..)) => {
            run(&sql.update, &[number, &version, &body.as_deref()]).map_err(failed)?;
            *number
        }
        None => {
            let row: [&dyn rusqlite::ToSql; 4] =
                [&event.tenant, &event.aggregate_id, &version, &body.as_deref()];
            run(&sql.insert, &row).map_err(failed)?;
            connection.last_insert_rowid()
        }
    };
    if had_words {
        run(&sql.forget_words, &[&number]).map_err(failed)?;
    }
    if let Some(body) = &body {
        let words: Vec<String> = words_of_json(body).into_iter().collect();
        let row: [&dyn rusqlite::ToSql; 3] =
            [&number, &tenant_word(&event.tenant), &words.join(" ")];
        run(&sql.add_words, &row).map_err(failed)?;
    }
    reach(Point::AfterWrite);
    Ok(Done::new())
}

/// A tenant as one word.
fn tenant_word(tenant: &str) -> String {
    format!("t{}", fingerprint_bytes(tenant.as_bytes())).chars().take(33).collect()
}
