//! The shared cache: from `[cache] url` to Redis behind the door.
//!
//! The rule kept here: a cache that can't be reached is no failure of anything, only one that can't
//! work as it is set up is refused, at the start. The URL's password is never shown.

use onceward::engine::{Engine, EngineError, SweepReport};
use onceward::http::Door;
use onceward_core::key::Key;

use crate::config::sections::Cache;
use crate::failure::Failure;
use crate::open::without_password;

#[cfg(feature = "redis")]
use onceward::cache::{RedisCache, RedisCacheOptions};

/// What a shared cache has done so far.
#[cfg(feature = "redis")]
pub(crate) use onceward::cache::RedisStats as Stats;

/// A cache that several processes share.
#[cfg(feature = "redis")]
#[derive(Debug, Clone)]
pub(crate) struct SharedCache(RedisCache);

#[cfg(feature = "redis")]
impl SharedCache {
    /// The cache that the configuration names, if it names one. Nothing is reached yet.
    pub(crate) fn open(section: &Cache, secret: [u8; 32]) -> Result<Option<Self>, Failure> {
        let Some(url) = &section.url else { return Ok(None) };
        let env = section.env.clone();
        let options = RedisCacheOptions { env, within: section.timeout.duration(), secret };
        match RedisCache::open(url, options) {
            Ok(cache) => Ok(Some(Self(cache))),
            Err(error) => Err(Failure::usage("cache.url", error.to_string())),
        }
    }

    /// Puts it behind a door.
    pub(crate) fn behind(&self, door: Door) -> Door {
        door.with_redis(self.0.clone())
    }

    /// Whether it answers.
    pub(crate) async fn is_up(&self) -> bool {
        self.0.is_up().await
    }

    /// Drops what was erased or swept; false when it gave no answer. What it then still holds is
    /// not replayed: its age and the tenant's erasures tell.
    pub(crate) async fn purge(&self, keys: &[Key]) -> bool {
        self.0.purge(keys).await.is_ok()
    }

    /// What it has done so far.
    pub(crate) fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The one behind a door.
    pub(crate) fn of(door: Option<&Door>) -> Option<Self> {
        door?.redis().cloned().map(Self)
    }
}

/// What a shared cache has done so far: nothing, in a build without one.
#[cfg(not(feature = "redis"))]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) errors: u64,
    pub(crate) refused: u64,
    pub(crate) stale: u64,
    pub(crate) fills: u64,
}

/// A build without shared caches has none.
#[cfg(not(feature = "redis"))]
#[derive(Debug, Clone)]
pub(crate) enum SharedCache {}

#[cfg(not(feature = "redis"))]
impl SharedCache {
    /// Only "none" can be had.
    pub(crate) fn open(section: &Cache, _: [u8; 32]) -> Result<Option<Self>, Failure> {
        if section.url.is_some() {
            let message = "this build has no shared cache: leave [cache] url and --cache out";
            return Err(Failure::usage("cache.url", message));
        }
        Ok(None)
    }

    pub(crate) fn behind(&self, _: Door) -> Door {
        match *self {}
    }

    pub(crate) async fn is_up(&self) -> bool {
        match *self {}
    }

    pub(crate) async fn purge(&self, _: &[Key]) -> bool {
        match *self {}
    }

    pub(crate) fn stats(&self) -> Stats {
        match *self {}
    }

    pub(crate) fn of(_: Option<&Door>) -> Option<Self> {
        None
    }
}

/// Sweeps a store and the cache that is shared by those on it.
pub(crate) async fn sweep(
    engine: &Engine,
    cache: Option<&SharedCache>,
    mut progress: impl FnMut(&SweepReport),
) -> Result<SweepReport, EngineError> {
    let Some(cache) = cache else { return engine.sweep(progress).await };
    // The sweep goes on while the cache is told; a page of keys takes little room.
    let (told, mut gone) = tokio::sync::mpsc::unbounded_channel();
    let sweeping = async move {
        let swept = engine.sweep_telling(|report, keys| {
            progress(report);
            let _ = told.send(keys);
        });
        swept.await
    };
    let purging = async {
        while let Some(keys) = gone.recv().await {
            cache.purge(&keys).await;
        }
    };
    tokio::join!(sweeping, purging).0
}

/// The URL of a cache as it may be shown.
pub(crate) fn shown(url: &str) -> String {
    without_password(url)
}
