//! Done outcomes in Redis, shared by every process on one store.
//!
//! Key `idempo:{env}:{org_id}:{endpoint}:{idempotency_key}` (A11): five parts, each escaped; caller
//! and path values are parts of the endpoint. Whatever Redis does (no answer in time, an error, a
//! value that is not ours) is a miss. A breaker of its own keeps an outage from costing every
//! request a time-out. Whether a value may still be replayed is judged by the caller.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward_core::key::Key;
use onceward_core::text::escape;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, FromRedisValue};
use tokio::sync::Semaphore;

use super::value::Value;
use crate::http::BreakerPolicy;
use crate::http::breaker::{Breaker, Ended, Leave};

/// Fills that are under way at once; beyond it an outcome is not kept this time.
const FILLS_MAX: usize = 64;
/// Keys of one purge.
const PURGE_MAX: usize = 256;
/// Failures in a row that stop the questions, and for how long.
const BREAKER: BreakerPolicy = BreakerPolicy { failures: 3, open_ms: 500, trials: 1 };
/// Bounds of [`RedisCacheOptions::within`].
const WITHIN: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(5);

/// How a cache in Redis is used.
#[derive(Debug, Clone)]
pub struct RedisCacheOptions {
    /// The first part of every key after `idempo`: which deployment it is. Default: `default`.
    pub env: String,
    /// How long an answer may take before it counts as a miss. Default: 50 ms.
    pub within: Duration,
    /// Keys the seals of values. All processes on one store must use the same secret, and no other
    /// store should: then its values are not read. Default: no secret.
    pub secret: [u8; 32],
}

impl Default for RedisCacheOptions {
    fn default() -> Self {
        Self { env: "default".into(), within: Duration::from_millis(50), secret: [0; 32] }
    }
}

/// Why a cache can't be used as it is set up, or did not do as it was told.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RedisCacheError {
    /// The URL is not one of a Redis that this build can reach.
    #[error("the cache's URL {0}; it takes one as in redis://127.0.0.1:6379/0")]
    Url(&'static str),
    /// An option is out of its bounds.
    #[error("the cache's {0}")]
    Option(String),
    /// Redis gave no answer, or an error.
    #[error("the cache gives no answer: {0}")]
    NoAnswer(String),
}

/// What a cache has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RedisStats {
    /// Outcomes that were replayed.
    pub hits: u64,
    /// Questions that it had no value for.
    pub misses: u64,
    /// Questions without an answer, and those that an open breaker spared.
    pub errors: u64,
    /// Values that were not ours: damaged, swapped, of another store or form.
    pub refused: u64,
    /// Values that were ours and too old: expired, or erased since.
    pub stale: u64,
    /// Outcomes that were kept.
    pub fills: u64,
}

/// A cache in Redis. Cheap to clone.
#[derive(Clone)]
pub struct RedisCache(Arc<Inner>);

struct Inner {
    client: Client,
    options: RedisCacheOptions,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    breaker: Mutex<Breaker>,
    begun: Instant,
    fills: Arc<Semaphore>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    errors: AtomicU64,
    refused: AtomicU64,
    stale: AtomicU64,
    fills: AtomicU64,
}

impl RedisCache {
    /// A cache at `url`. Nothing is reached yet: an outage now is one that costs time only.
    ///
    /// # Errors
    /// When URL or options can't work.
    pub fn open(url: &str, options: RedisCacheOptions) -> Result<Self, RedisCacheError> {
        let schemes = ["redis://", "redis+unix://", "unix://"];
        if url.starts_with("rediss://") {
            return Err(RedisCacheError::Url("asks for TLS, which this build does not speak"));
        }
        if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(RedisCacheError::Url("does not begin with redis://"));
        }
        let client = Client::open(url).map_err(|_| RedisCacheError::Url("can't be read"))?;
        if options.env.is_empty() || options.env.len() > 64 {
            let why = format!("env is {} bytes, but must be 1 to 64 bytes", options.env.len());
            return Err(RedisCacheError::Option(why));
        }
        if !WITHIN.contains(&options.within) {
            let why = format!("time-out is {:?}, but must be 1 ms to 5 s", options.within);
            return Err(RedisCacheError::Option(why));
        }
        Ok(Self(Arc::new(Inner {
            client,
            options,
            connection: tokio::sync::Mutex::default(),
            breaker: Mutex::new(Breaker::new(BREAKER)),
            begun: Instant::now(),
            fills: Arc::new(Semaphore::new(FILLS_MAX)),
            counts: Counts::default(),
        })))
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let counts = &self.0.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RedisStats {
            hits: read(&counts.hits),
            misses: read(&counts.misses),
            errors: read(&counts.errors),
            refused: read(&counts.refused),
            stale: read(&counts.stale),
            fills: read(&counts.fills),
        }
    }

    /// Whether it answers now.
    pub async fn is_up(&self) -> bool {
        self.send::<String>(&redis::cmd("PING")).await.is_ok()
    }

    /// Drops the outcomes of keys that were erased or swept.
    ///
    /// # Errors
    /// When Redis gives no answer: what it holds is refused later by its age, or because its tenant
    /// has seen an erasure since.
    pub async fn purge(&self, keys: &[Key]) -> Result<(), RedisCacheError> {
        for keys in keys.chunks(PURGE_MAX) {
            let mut command = redis::cmd("UNLINK");
            for key in keys {
                command.arg(self.name(key));
            }
            self.send::<u64>(&command).await?;
        }
        Ok(())
    }

    /// The name under which a key's outcome is kept.
    #[must_use]
    pub fn name(&self, key: &Key) -> String {
        let mut endpoint = key.scope_column().to_string();
        for part in key.within_parts() {
            endpoint.push(':');
            endpoint.push_str(&escape(&part));
        }
        format!(
            "idempo:{}:{}:{}:{}",
            escape(&self.0.options.env),
            key.tenant_column(),
            escape(&endpoint),
            escape(&key.id())
        )
    }

    /// What is kept of a key, if anything that is ours is.
    pub(super) async fn get(&self, key: &Key) -> Option<Value> {
        let name = self.name(key);
        let Some(asking) = self.ask() else {
            count(&self.0.counts.errors);
            return None;
        };
        let found = self.send::<Option<Vec<u8>>>(redis::cmd("GET").arg(&name)).await;
        asking.ended(found.is_ok());
        match found {
            Ok(Some(bytes)) => {
                let value = Value::open(&self.0.options.secret, &name, &bytes);
                if value.is_none() {
                    count(&self.0.counts.refused);
                }
                value
            }
            Ok(None) => {
                count(&self.0.counts.misses);
                None
            }
            Err(_) => {
                count(&self.0.counts.errors);
                None
            }
        }
    }

    /// A value was replayed.
    pub(super) fn hit(&self) {
        count(&self.0.counts.hits);
    }

    /// A value was ours and too old.
    pub(super) fn stale(&self) {
        count(&self.0.counts.stale);
    }

    /// Keeps a value for as long as its retention has left. Nobody waits for it.
    pub(super) fn put(&self, key: &Key, value: &Value, left: Duration) {
        let Ok(place) = self.0.fills.clone().try_acquire_owned() else { return };
        let name = self.name(key);
        let sealed = value.seal(&self.0.options.secret, &name);
        let this = self.clone();
        tokio::spawn(async move {
            let Some(asking) = this.ask() else { return };
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
            let mut command = redis::cmd("SET");
            command.arg(name).arg(sealed).arg("PX").arg(left_ms);
            let kept = this.send::<()>(&command).await;
            asking.ended(kept.is_ok());
            count(if kept.is_ok() { &this.0.counts.fills } else { &this.0.counts.errors });
            drop(place);
        });
    }

    /// Leave to ask, unless it gave no answer of late.
    fn ask(&self) -> Option<Asking<'_>> {
        let leave = self.breaker().ask(self.now_ms()).ok()?;
        Some(Asking { cache: self, leave: Some(leave) })
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.0.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Sends a command; connects first if need be. All of it within the time-out.
    async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisCacheError> {
        let within = self.0.options.within;
        let work = async {
            let mut connection = self.connection().await?;
            let answer = command.query_async(&mut connection).await;
            if let Err(error) = &answer
                && error.is_unrecoverable_error()
            {
                *self.0.connection.lock().await = None;
            }
            answer
        };
        match tokio::time::timeout(within, work).await {
            Ok(Ok(answer)) => Ok(answer),
            // The category alone: what a server says may repeat what it was sent.
            Ok(Err(error)) => Err(RedisCacheError::NoAnswer(error.category().to_string())),
            Err(_) => {
                // It may be silent for ever; the next question finds out on a connection anew.
                if let Ok(mut kept) = self.0.connection.try_lock() {
                    *kept = None;
                }
                Err(RedisCacheError::NoAnswer(format!("none within {within:?}")))
            }
        }
    }

    async fn connection(&self) -> Result<MultiplexedConnection, redis::RedisError> {
        let mut kept = self.0.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        // Our own time-out holds for everything; the client's would only cut it in two.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection =
            self.0.client.get_multiplexed_async_connection_with_config(&config).await?;
        *kept = Some(connection.clone());
        Ok(connection)
    }
}

impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only where it is: the URL may hold a password.
        let at = match self.0.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => format!("{host}:{port}"),
            other => other.to_string(),
        };
        f.debug_struct("RedisCache").field("at", &at).finish_non_exhaustive()
    }
}

/// A question under way. Dropped unanswered, because its asker left, it says nothing about Redis.
struct Asking<'a> {
    cache: &'a RedisCache,
    leave: Option<Leave>,
}

impl Asking<'_> {
    fn ended(mut self, well: bool) {
        self.tell(if well { Ended::Well } else { Ended::Badly });
    }

    fn tell(&mut self, ended: Ended) {
        if let Some(leave) = self.leave.take() {
            let now_ms = self.cache.now_ms();
            self.cache.breaker().tell(leave, ended, now_ms);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.tell(Ended::Unused);
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward_core::key::Kind;

    fn cache(env: &str) -> RedisCache {
        let options = RedisCacheOptions { env: env.into(), ..RedisCacheOptions::default() };
        RedisCache::open("redis://127.0.0.1:1/", options).unwrap()
    }

    #[test]
    fn a11_a_name_has_five_parts_and_none_can_imitate_another() {
        let key = |tenant, scope, within: &[&str], id| {
            Key::within(Kind::Request, tenant, scope, within, id).unwrap()
        };
        let plain = key("org-1", "POST /v1/things/{id}", &["alice", "7"], "k-1");
        assert_eq!(
            cache("prod").name(&plain),
            "idempo:prod:org-1:POST /v1/things/{id}%3Aalice%3A7:k-1"
        );
        let names = [
            cache("a:b").name(&key("c", "d", &[""], "e")),
            cache("a").name(&key("b:c", "d", &[""], "e")),
            cache("a").name(&key("b", "c:d", &[""], "e")),
            cache("a").name(&key("b", "c", &["d"], "e")),
            cache("a").name(&key("b", "c", &["", "d"], "e")),
            cache("a").name(&key("b", "c", &["d:"], "e")),
            cache("a").name(&key("b", "c", &[""], "d:e")),
            cache("a").name(&key("b", "c", &[""], "d%3Ae")),
        ];
        for (at, name) in names.iter().enumerate() {
            assert_eq!(name.split(':').count(), 5, "{name}");
            assert!(!names[..at].contains(name), "{name} comes twice");
        }
    }

    #[test]
    fn what_can_not_work_is_refused_and_no_password_is_shown() {
        let open = |url: &str| RedisCache::open(url, RedisCacheOptions::default());
        for bad in ["", "http://h", "redis", "rediss://h", "redis://h:port", "redis://u:secret@"] {
            let error = open(bad).unwrap_err().to_string();
            assert!(!error.contains("secret") && error.contains("redis://127"), "{bad}: {error}");
        }
        let cache = open("redis://u:secret@127.0.0.1:6379/2").unwrap();
        assert!(!format!("{cache:?}").contains("secret"));
        let options = RedisCacheOptions { within: Duration::ZERO, ..RedisCacheOptions::default() };
        RedisCache::open("redis://h", options).expect_err("no time at all");
        let options = RedisCacheOptions { env: String::new(), ..RedisCacheOptions::default() };
        RedisCache::open("redis://h", options).expect_err("no name");
    }
}
