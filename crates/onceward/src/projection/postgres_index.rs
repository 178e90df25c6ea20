//! A table with a text index in Postgres: a view elsewhere, written by version.
//!
//! A connection of its own, beside the engine's: a write is repeated when nobody recorded it, and
//! the version keeps it from changing anything then. Deleted documents stay as rows without a body
//! for as long as their generation lives.

use std::sync::Arc;

use bytes::Bytes;
use onceward_core::text::escape;
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use super::fold::Fold;
use super::view::{Entry, Versioned, View, ViewError, ViewFuture, versioned_work};
use super::words::{words_of_json, words_of_text};
use crate::handlers::Work;

/// Ids of one page.
const PAGE: i64 = 1_000;

/// A view in Postgres. Cheap to clone.
#[derive(Clone)]
pub struct PostgresIndex(Arc<Inner>);

struct Inner {
    url: String,
    name: String,
    client: Mutex<Option<Arc<Client>>>,
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
        Ok(Self(Arc::new(Inner { url: url.into(), name, client: Mutex::default() })))
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
        let client = self.client().await?;
        let (tenant, most) = (escape(tenant), i64::try_from(limit).unwrap_or(i64::MAX));
        let (wanted, after) = (wanted.join(" & "), escape(after.unwrap_or_default()));
        let rows = client.query(&sql, &[&tenant.as_ref(), &wanted, &after.as_ref(), &most]).await;
        let rows = self.heard(rows).await?;
        Ok(rows.iter().map(|row| (plain(row.get(0)), version(row.get(1)))).collect())
    }

    fn table(&self, generation: u64) -> String {
        format!("onceward_view_{}_{generation}", self.0.name)
    }

    async fn client(&self) -> Result<Arc<Client>, ViewError> {
        let mut slot = self.0.client.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let connected = tokio_postgres::connect(&self.0.url, NoTls).await;
        let (client, connection) = connected.map_err(|error| said(&error))?;
        tokio::spawn(async move {
            // Its end is seen by whoever asks next.
            let _ = connection.await;
        });
        let client = Arc::new(client);
        *slot = Some(client.clone());
        Ok(client)
    }

    /// An answer; after an error the connection is made anew.
    async fn heard<T>(&self, answer: Result<T, tokio_postgres::Error>) -> Result<T, ViewError> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                *self.0.client.lock().await = None;
                Err(said(&error))
            }
        }
    }

    async fn execute(&self, sql: &str) -> Result<(), ViewError> {
        let client = self.client().await?;
        self.heard(client.batch_execute(sql).await).await
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
        self.read(generation, tenant, id)
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
            let client = self.client().await?;
            let after = after.unwrap_or_default();
            let rows = client.query(&sql, &[&escape(tenant).as_ref(), &after, &PAGE]).await;
            let rows = self.heard(rows).await?;
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
        tenant: &'a str,
        id: &'a str,
    ) -> ViewFuture<'a, Option<Entry>> {
        Box::pin(async move {
            let table = self.table(generation);
            let sql = format!("SELECT version, body FROM {table} WHERE tenant = $1 AND id = $2");
            let client = self.client().await?;
            let columns = (escape(tenant), escape(id));
            let found = client.query_opt(&sql, &[&columns.0.as_ref(), &columns.1.as_ref()]).await;
            Ok(self.heard(found).await?.map(|row| Entry {
                tenant: tenant.to_owned(),
                id: id.to_owned(),
                version: version(row.get(0)),
                body: row.get::<_, Option<Vec<u8>>>(1).map(Bytes::from),
            }))
        })
    }

    fn write(&self, generation: u64, entry: Entry) -> ViewFuture<'_, ()> {
        Box::pin(async move {
            let table = self.table(generation);
            let sql = format!(
                "INSERT INTO {table} AS t (tenant, id, version, body, words) \
                 VALUES ($1, $2, $3, $4, array_to_tsvector($5)) \
                 ON CONFLICT (tenant, id) DO UPDATE SET version = excluded.version, \
                 body = excluded.body, words = excluded.words WHERE t.version < excluded.version"
            );
            let words: Vec<String> =
                entry.body.as_deref().map(words_of_json).unwrap_or_default().into_iter().collect();
            let version = i64::try_from(entry.version).unwrap_or(i64::MAX);
            let (tenant, id) = (escape(&entry.tenant), escape(&entry.id));
            let client = self.client().await?;
            let body = entry.body.as_deref();
            let row: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&tenant.as_ref(), &id.as_ref(), &version, &body, &words];
            self.heard(client.execute(&sql, &row).await).await.map(drop)
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
