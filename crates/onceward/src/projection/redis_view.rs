//! Documents in Redis: a view elsewhere, written by version.
//!
//! A hash per generation and tenant; a field per document, whose value is its version, a mark for
//! content or deletion, and the content. A script compares versions where the data is, so that a
//! late write changes nothing. What Redis forgets, a rebuild makes again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use onceward_core::text::escape;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue};
use tokio::sync::Mutex;

use super::fold::Fold;
use super::view::{Entry, Versioned, View, ViewError, ViewFuture, versioned_work};
use crate::handlers::Work;

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(2);
/// Writes a field unless it has this version or a higher one. The race it closes: two attempts at
/// two numbers of one document, the older one late.
const PUT: &str = "local was = redis.call('HGET', KEYS[1], ARGV[1]) \
                   if was and tonumber(string.match(was, '^%d+')) >= tonumber(ARGV[2]) then \
                   return 0 end redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[3]) return 1";

/// A view in Redis. Cheap to clone.
#[derive(Clone)]
pub struct RedisView(Arc<Inner>);

struct Inner {
    client: Client,
    name: String,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl RedisView {
    /// The view of this name in the Redis at `url`. Nothing is reached yet.
    ///
    /// # Errors
    /// When the URL can't be read.
    pub fn new(url: &str, name: impl Into<String>) -> Result<Self, ViewError> {
        let client = Client::open(url)
            .map_err(|_| ViewError::Broken("its URL is not one of a Redis".into()))?;
        let (name, connection) = (name.into(), Mutex::default());
        Ok(Self(Arc::new(Inner { client, name, connection })))
    }

    fn key(&self, generation: u64, tenant: &str) -> String {
        format!("view:{}:{generation}:{}", escape(&self.0.name), escape(tenant))
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, ViewError> {
        let said = |error: redis::RedisError| ViewError::Unavailable(error.to_string());
        let mut slot = self.0.connection.lock().await;
        let mut connection = match slot.as_ref() {
            Some(connection) => connection.clone(),
            None => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(WITHIN))
                    .set_response_timeout(Some(WITHIN));
                let made = self.0.client.get_multiplexed_async_connection_with_config(&config);
                let made = made.await.map_err(said)?;
                *slot = Some(made.clone());
                made
            }
        };
        drop(slot);
        match command.query_async(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                *self.0.connection.lock().await = None;
                Err(said(error))
            }
        }
    }
}

impl View for RedisView {
    fn prepare(&self, _: u64) -> ViewFuture<'_, ()> {
        Box::pin(async { Ok(()) })
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
        Box::pin(self.read_one(generation, tenant, id))
    }

    fn ids<'a>(
        &'a self,
        generation: u64,
        tenant: &'a str,
        after: Option<String>,
    ) -> ViewFuture<'a, (Vec<String>, Option<String>)> {
        Box::pin(async move {
            let mut command = redis::cmd("HSCAN");
            command.arg(self.key(generation, tenant)).arg(after.unwrap_or_else(|| "0".into()));
            let (next, fields): (String, Vec<(String, Vec<u8>)>) = self.ask(&command).await?;
            let live = fields.into_iter().filter(|(_, value)| parts(value).is_some_and(|p| p.1));
            Ok((live.map(|(id, _)| id).collect(), (next != "0").then_some(next)))
        })
    }

    fn clear<'a>(&'a self, generation: u64, tenants: &'a [String]) -> ViewFuture<'a, ()> {
        Box::pin(async move {
            for tenant in tenants {
                let _: i64 =
                    self.ask(redis::cmd("UNLINK").arg(self.key(generation, tenant))).await?;
            }
            Ok(())
        })
    }
}

impl RedisView {
    async fn read_one(
        &self,
        generation: u64,
        tenant: &str,
        id: &str,
    ) -> Result<Option<Entry>, ViewError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.key(generation, tenant)).arg(id);
        let found: Option<Vec<u8>> = self.ask(&command).await?;
        let Some(value) = found else { return Ok(None) };
        let (version, live, body) =
            parts(&value).ok_or_else(|| ViewError::Broken("a value is damaged".into()))?;
        Ok(Some(Entry {
            tenant: tenant.to_owned(),
            id: id.to_owned(),
            version,
            body: live.then(|| Bytes::copy_from_slice(body)),
        }))
    }

    async fn write_one(&self, generation: u64, entry: &Entry) -> Result<(), ViewError> {
        let mut rest = vec![if entry.body.is_some() { b'+' } else { b'-' }];
        rest.extend_from_slice(entry.body.as_deref().unwrap_or_default());
        let mut command = redis::cmd("EVAL");
        command.arg(PUT).arg(1).arg(self.key(generation, &entry.tenant)).arg(&entry.id);
        command.arg(entry.version).arg(rest);
        self.ask::<i64>(&command).await.map(drop)
    }
}

/// One connection takes many commands without waiting for their answers.
impl Versioned for RedisView {
    fn read<'a>(
        &'a self,
        generation: u64,
        ids: &'a [(&'a str, &'a str)],
    ) -> ViewFuture<'a, Vec<Option<Entry>>> {
        let each = ids.iter().map(move |(tenant, id)| self.read_one(generation, tenant, id));
        Box::pin(try_join_all(each))
    }

    fn write<'a>(&'a self, generation: u64, entries: &'a [Entry]) -> ViewFuture<'a, ()> {
        let each = entries.iter().map(move |entry| self.write_one(generation, entry));
        let all = try_join_all(each);
        Box::pin(async move { all.await.map(drop) })
    }
}

/// Version, whether it is not deleted, and content.
fn parts(value: &[u8]) -> Option<(u64, bool, &[u8])> {
    let end = value.iter().position(|byte| !byte.is_ascii_digit())?;
    let version = std::str::from_utf8(&value[..end]).ok()?.parse().ok()?;
    match value[end] {
        b'+' => Some((version, true, &value[end + 1..])),
        b'-' => Some((version, false, &[])),
        _ => None,
    }
}
