//! A table with a text index in Postgres: a view elsewhere, written by version.
//!
//! A connection of its own, beside the engine's: a write is repeated when nobody recorded it, and
//! the version keeps it from changing anything then. Deleted documents stay as rows without a body
//! for as long as their generation lives.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use onceward_core::text::escape;
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row, Statement};

use super::fold::Fold;
use super::view::{Entry, Versioned, View, ViewError, ViewFuture, versioned_work};
use super::words::{words_of_json, words_of_text};
use crate::handlers::Work;

/// Ids of one page.
const PAGE: i64 = 1_000;
/// Statements that are kept prepared: four of each generation.
const STATEMENTS_MAX: usize = 32;

/// A view in Postgres. Cheap to clone.
#[derive(Clone)]
pub struct PostgresIndex(Arc<Inner>);

struct Inner {
    url: String,
    name: String,
    connected: Mutex<Option<Arc<Connected>>>,
}

/// A connection, and what was prepared on it.
struct Connected {
    client: Client,
    statements: Mutex<HashMap<String, Statement>>,
}

impl Connected {
    async fn prepared(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let mut statements = self.statements.lock().await;
        if let Some(statement) = statements.get(sql) {
            return Ok(statement.clone());
        }
        if statements.len() >= STATEMENTS_MAX {
            // Those of generations that are gone.
            statements.clear();
        }
        let statement = self.client.prepare(sql).await?;
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

impl PostgresIndex {
    /// The view of this name in the database at `url`. Nothing is reached yet.
    ///
    /// # Errors
    /// When the name is not lower-case letters, digits and `_`: it becomes the name of tables.
    pub fn new(url: impl Into<String>, name: impl Into<String>) -> Result<Self, ViewError> {
        let name = name.into();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if name.is_empty() || name.len() > 30 || !name.bytes().all(plain) {
            let why = format!("{name:?} must be 1 to 30 lower-case letters, digits or `_`");
            return Err(ViewError::Broken(why));
        }
        Ok(Self(Arc::new(Inner { url: url.into(), name, connected: Mutex::default() })))
    }

    /// Ids and versions of a tenant's documents that hold every word of `text`, each as the
    /// beginning of a word, in the order of their ids, behind `after`.
    ///
    /// # Errors
    /// When the server gives no answer.
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
        let wanted: Vec<_> = words.iter().map(|word| format!("'{word}':*")).collect();
        let sql = format!(
            "SELECT id, version FROM {} WHERE tenant = $1 AND words @@ $2::text::tsquery \
             AND body IS NOT NULL AND id > $3 ORDER BY id LIMIT $4",
            self.table(generation)
        );
        let (tenant, most) = (escape(tenant), i64::try_from(limit).unwrap_or(i64::MAX));
        let (wanted, after) = (wanted.join(" & "), escape(after.unwrap_or_default()));
        let rows = self.query(&sql, &[&tenant, &wanted, &after, &most]).await?;
        Ok(rows.iter().map(|row| (plain(row.get(0)), version(row.get(1)))).collect())
    }

    fn table(&self, generation: u64) -> String {
        format!("onceward_view_{}_{generation}", self.0.name)
    }

    async fn connected(&self) -> Result<Arc<Connected>, ViewError> {
        let mut slot = self.0.connected.lock().await;
        if let Some(there) = slot.as_ref().filter(|there| !there.client.is_closed()) {
            return Ok(there.clone());
        }
        let connected = tokio_postgres::connect(&self.0.url, NoTls).await;
        let (client, connection) = connected.map_err(|error| said(&error))?;
        tokio::spawn(async move {
            // Its end is seen by whoever asks next.
            let _ = connection.await;
        });
        // Plans are kept: one that was made for an empty table must be right for a full one.
        let plans =
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
        client.batch_execute(plans).await.map_err(|error| said(&error))?;
        let connected = Arc::new(Connected { client, statements: Mutex::default() });
        *slot = Some(connected.clone());
        Ok(connected)
    }

    /// Asks by a statement that is prepared once for each connection.
    async fn query(&self, sql: &str, row: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, ViewError> {
        let connected = self.connected().await?;
        let prepared = connected.prepared(sql).await;
        let statement = self.heard(prepared).await?;
        self.heard(connected.client.query(&statement, row).await).await
    }

    /// An answer; after an error the connection is made anew.
    async fn heard<T>(&self, answer: Result<T, tokio_postgres::Error>) -> Result<T, ViewError> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                *self.0.connected.lock().await = None;
                Err(said(&error))
            }
        }
    }

    async fn execute(&self, sql: &str) -> Result<(), ViewError> {
        let connected = self.connected().await?;
        self.heard(connected.client.batch_execute(sql).await).await
    }
}

impl View for PostgresIndex {
    fn prepare(&self, generation: u64) -> ViewFuture<'_, ()> {
        let table = self.table(generation);
        Box::pin(async move {
            // Two processes that make it at once would meet in the catalogue: one at a time.
            self.execute(&format!(
                "BEGIN; SELECT pg_advisory_xact_lock(hashtext('{table}')); \
                 CREATE TABLE IF NOT EXISTS {table} (tenant text COLLATE \"C\" NOT NULL, \
                 id text COLLATE \"C\" NOT NULL, version bigint NOT NULL, body bytea, \
                 words tsvector, PRIMARY KEY (tenant, id)); \
                 CREATE INDEX IF NOT EXISTS {table}_words ON {table} USING gin (words); COMMIT"
            ))
            .await
        })
    }

    fn work(&self, generation: u64, fold: Arc<dyn Fold>) -> Work {
        versioned_work(Arc::new(self.clone()), generation, fold)
    }

    fn get<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        id: &'a str,
    ) -> ViewFuture<'a, Option<Entry>> {
        Box::pin(async move { Ok(self.read(generation, &[(tenant, id)]).await?.pop().flatten()) })
    }

    fn ids<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        after: Option<String>,
    ) -> ViewFuture<'a, (Vec<String>, Option<String>)> {
        Box::pin(async move {
            let sql = format!(
                "SELECT id FROM {} WHERE tenant = $1 AND id > $2 AND body IS NOT NULL \
                 ORDER BY id LIMIT $3",
                self.table(generation)
            );
            let after = after.unwrap_or_default();
            let rows = self.query(&sql, &[&escape(tenant), &after, &PAGE]).await?;
            let last = rows.last().map(|row| row.get::<_, String>(0));
            let next = last.filter(|_| rows.len() as i64 == PAGE);
            Ok((rows.iter().map(|row| plain(row.get(0))).collect(), next))
        })
    }

    fn clear<'a>(&'a self, generation: u64, _: &'a [String]) -> ViewFuture<'a, ()> {
        Box::pin(async move {
            self.execute(&format!("DROP TABLE IF EXISTS {}", self.table(generation))).await
        })
    }
}

impl Versioned for PostgresIndex {
    fn read<'a>(
        &'a self,
        generation: u64,
        ids: &'a [(&'a str, &'a str)],
    ) -> ViewFuture<'a, Vec<Option<Entry>>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT k.at, t.version, t.body \
                 FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (tenant, id, at) \
                 JOIN {} AS t ON t.tenant = k.tenant AND t.id = k.id",
                self.table(generation)
            );
            let column = |of: fn(&(&'a str, &'a str)) -> &'a str| -> Vec<_> {
                ids.iter().map(|id| escape(of(id))).collect()
            };
            let rows = self.query(&sql, &[&column(|id| id.0), &column(|id| id.1)]).await?;
            let mut found = vec![None; ids.len()];
            for row in rows {
                let at = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
                let (Some(slot), Some((tenant, id))) = (found.get_mut(at), ids.get(at)) else {
                    continue;
                };
                *slot = Some(Entry {
                    tenant: (*tenant).to_owned(),
                    id: (*id).to_owned(),
                    version: version(row.get(1)),
                    body: row.get::<_, Option<Vec<u8>>>(2).map(Bytes::from),
                });
            }
            Ok(found)
        })
    }

    /// In the order of their ids: another who writes some of them at the same time takes their rows
    /// in the same order.
    fn write<'a>(&'a self, generation: u64, entries: &'a [Entry]) -> ViewFuture<'a, ()> {
        Box::pin(async move {
            let sql = format!(
                "INSERT INTO {} AS t (tenant, id, version, body, words) \
                 SELECT tenant, id, version, body, array_to_tsvector(string_to_array(words, ' ')) \
                 FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::text[]) \
                 AS n (tenant, id, version, body, words) ORDER BY tenant, id \
                 ON CONFLICT (tenant, id) DO UPDATE SET version = excluded.version, \
                 body = excluded.body, words = excluded.words WHERE t.version < excluded.version",
                self.table(generation)
            );
            let words = |entry: &Entry| {
                let words = entry.body.as_deref().map(words_of_json).unwrap_or_default();
                words.into_iter().collect::<Vec<_>>().join(" ")
            };
            let tenants: Vec<_> = entries.iter().map(|entry| escape(&entry.tenant)).collect();
            let ids: Vec<_> = entries.iter().map(|entry| escape(&entry.id)).collect();
            let versions = entries.iter().map(|e| i64::try_from(e.version).unwrap_or(i64::MAX));
            let versions: Vec<_> = versions.collect();
            let bodies: Vec<_> = entries.iter().map(|entry| entry.body.as_deref()).collect();
            let words: Vec<_> = entries.iter().map(words).collect();
            let rows: [&(dyn ToSql + Sync); 5] = [&tenants, &ids, &versions, &bodies, &words];
            self.query(&sql, &rows).await.map(drop)
        })
    }
}

fn plain(column: &str) -> String {
    onceward_core::text::unescape(column)
        .map_or_else(|| column.to_owned(), std::borrow::Cow::into_owned)
}

fn version(column: i64) -> u64 {
    column.unsigned_abs()
}

fn said(error: &tokio_postgres::Error) -> ViewError {
    let what = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
    ViewError::Unavailable(what)
}
