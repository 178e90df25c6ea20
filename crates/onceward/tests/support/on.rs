//! Every store that the layer's tests run on: memory, SQLite, Postgres, Postgres with every replay
//! from Redis, and DynamoDB. Real servers are those that the environment names; without them the
//! test fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward::cache::{RedisCache, RedisCacheOptions};
use onceward::http::Door;
use onceward::store::Store;
use onceward::testing::harness::{Harness, MemoryHarness};

use super::postgres::PostgresHarness;
use super::redis::shared_url;
use super::sqlite::SqliteHarness;

/// What keeps the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Memory,
    Sqlite,
    Postgres,
    PostgresAndRedis,
    #[cfg(feature = "dynamodb")]
    DynamoDb,
}

/// A fresh store and the hand of its clock.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    harness: Arc<dyn Harness>,
}

static DEPLOYMENTS: AtomicU64 = AtomicU64::new(0);

impl On {
    /// Opens a fresh store.
    pub(crate) async fn open(self) -> Opened {
        let harness: Arc<dyn Harness> = match self {
            Self::Memory => Arc::new(MemoryHarness::default()),
            Self::Sqlite => Arc::new(SqliteHarness::default()),
            Self::Postgres | Self::PostgresAndRedis => Arc::new(PostgresHarness::default()),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb => Arc::new(super::dynamodb::DynamoDbHarness::default()),
        };
        Opened { store: harness.open().await.unwrap(), harness }
    }

    /// A door with the caches of this place. Where Redis is one, nothing is kept in memory.
    pub(crate) fn cached(self, door: Door) -> Door {
        if self != Self::PostgresAndRedis {
            return door;
        }
        // All tests share the server: each door is a deployment of its own.
        let number = DEPLOYMENTS.fetch_add(1, Ordering::SeqCst);
        let env = format!("layer-{}-{number}", std::process::id());
        let options = RedisCacheOptions { env, ..RedisCacheOptions::default() };
        door.with_cache_bytes(0).with_redis(RedisCache::open(&shared_url(), options).unwrap())
    }
}

impl Opened {
    /// Moves the store's clock forward.
    pub(crate) async fn advance(&self, ms: u64) {
        assert!(self.harness.advance(ms).await.unwrap(), "its clock can be moved");
    }
}

/// Makes a test of each case on each store.
#[macro_export]
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        on_every_store! { @on memory, Memory, $($name),* }
        on_every_store! { @on sqlite, Sqlite, $($name),* }
        on_every_store! { @on postgres, Postgres, $($name),* }
        on_every_store! { @on postgres_and_redis, PostgresAndRedis, $($name),* }
        #[cfg(feature = "dynamodb")]
        on_every_store! { @on dynamodb, DynamoDb, $($name),* }
    };
    (@on $module:ident, $on:ident, $($name:ident),*) => {
        mod $module {
            $(#[tokio::test]
            async fn $name() {
                super::$name($crate::support::on::On::$on).await;
            })*
        }
    };
}
