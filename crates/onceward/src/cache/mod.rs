//! The replay cache: outcomes that are done, kept in memory and, with feature `redis`, in Redis.
//!
//! A cache answers replays of done records and nothing else: never a claim, never a mismatch. It is
//! filled from a record that the store has shown, so never ahead of the durable commit, and keeps
//! it no longer than the record's retention. Whatever is wrong with a cache or a cached value is a
//! miss: the store answers, and that costs time only. What was erased is told apart by the notes in
//! `erasures.rs`.

mod erasures;
mod local;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod value;

use std::sync::Arc;
use std::time::Duration;

use onceward_core::Bytes;
use onceward_core::fingerprint::Fingerprint;
use onceward_core::key::Key;
use onceward_core::note::Original;
use onceward_core::record::Stored;

pub use self::erasures::ERASED_SEEN_WITHIN;
#[cfg(feature = "redis")]
pub use self::redis::{RedisCache, RedisCacheError, RedisCacheOptions, RedisStats};

use self::erasures::Erasures;
use self::local::{Entry, Local};
use crate::engine::Engine;

/// What a look came to.
pub(crate) enum Looked {
    /// The outcome of this key with this very payload, and what it points back to.
    Hit(Bytes, Arc<Original>),
    /// The store has to be asked; what it shows may be kept under this sight.
    Miss(Sight),
}

/// The note of the latest erasure as it was known before a record was looked at; unknown, what is
/// looked at is not kept.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sight(Option<u128>);

/// Everything that keeps outcomes near at hand.
pub(crate) struct Replays {
    local: Local,
    #[cfg(feature = "redis")]
    redis: Option<RedisCache>,
    erasures: Erasures,
}

impl Replays {
    /// A cache in memory of at most about `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            local: Local::new(bytes),
            #[cfg(feature = "redis")]
            redis: None,
            erasures: Erasures::new(),
        }
    }

    /// Bounds what is kept in memory.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.local = Local::new(bytes);
    }

    /// Keeps outcomes in Redis too.
    #[cfg(feature = "redis")]
    pub(crate) fn set_redis(&mut self, redis: RedisCache) {
        self.redis = Some(redis);
    }

    /// The cache in Redis, if there is one.
    #[cfg(feature = "redis")]
    pub(crate) fn redis(&self) -> Option<&RedisCache> {
        self.redis.as_ref()
    }

    /// Looks for the outcome of a key with this payload.
    pub(crate) async fn look(
        &self,
        engine: &Engine,
        key: &Key,
        fingerprint: &Fingerprint,
    ) -> Looked {
        if let Some(entry) = self.local.get(key, fingerprint) {
            if self.erasures.fresh(engine, key).await == Some(entry.erasures) {
                return Looked::Hit(entry.outcome, entry.original);
            }
            self.local.remove(key);
        }
        #[cfg(feature = "redis")]
        if let Some(entry) = self.look_in_redis(engine, key, fingerprint).await {
            return Looked::Hit(entry.outcome, entry.original);
        }
        Looked::Miss(Sight(self.erasures.known(engine, key).await))
    }

    #[cfg(feature = "redis")]
    async fn look_in_redis(
        &self,
        engine: &Engine,
        key: &Key,
        fingerprint: &Fingerprint,
    ) -> Option<Entry> {
        let redis = self.redis.as_ref()?;
        let value = redis.get(key).await?;
        if value.fingerprint != *fingerprint {
            // Another payload: the store says what that means.
            return None;
        }
        let erasures = self.erasures.fresh(engine, key).await?;
        // Asked after the note, which has heard the store's clock if nothing else has.
        let left = Duration::from_millis(value.expires_at.since(engine.now_about()?));
        if value.erasures != erasures || left.is_zero() {
            redis.stale();
            return None;
        }
        redis.hit();
        let original = value.original(key);
        let entry = Entry::new(value.fingerprint, value.outcome, original, erasures, left);
        self.local.put(key, entry.clone());
        Some(entry)
    }

    /// Keeps the outcome of a done record that the store has shown after `sight`.
    pub(crate) fn put(
        &self,
        engine: &Engine,
        stored: &Stored,
        sight: Sight,
        original: Arc<Original>,
    ) {
        let Stored { record, outcome: Some(outcome) } = stored else { return };
        let (Some(erasures), Some(expires_at)) = (sight.0, record.expires_at) else { return };
        let Some(now) = engine.now_about() else { return };
        let left = Duration::from_millis(expires_at.since(now));
        if left.is_zero() {
            return;
        }
        let entry = Entry::new(record.fingerprint, outcome.clone(), original, erasures, left);
        self.local.put(&record.key, entry);
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            let value = value::Value {
                erasures,
                expires_at,
                fingerprint: record.fingerprint,
                rev: record.rev,
                at: record.updated_at,
                fence: record.last_fence,
                trace: record.trace.clone(),
                outcome: outcome.clone(),
            };
            redis.put(&record.key, &value, left);
        }
    }

    /// Forgets an outcome that was erased or swept. A cache that can't be reached is no error: what
    /// it holds is not replayed any more.
    pub(crate) async fn forget(&self, key: &Key) {
        self.local.remove(key);
        self.erasures.forget(key);
        #[cfg(feature = "redis")]
        if let Some(redis) = &self.redis {
            let _ = redis.purge(std::slice::from_ref(key)).await;
        }
    }
}
