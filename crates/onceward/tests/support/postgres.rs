//! How the test kit opens Postgres stores: each in a schema of its own, on a clock that tests move.
//!
//! The clock is a table that `store_now_ms` is made to read. Runs only against the server that
//! `ONCEWARD_TEST_POSTGRES_URL` names, and fails without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::{Store, StoreError, StoreFuture};
use onceward::testing::harness::{Damage, Harness, START};
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

/// Opens Postgres stores.
#[derive(Default)]
pub(crate) struct PostgresHarness {
    opened: Mutex<Option<Place>>,
}

/// One schema, the store in it and a connection that is not the store's.
struct Place {
    schema: String,
    store: Arc<PostgresStore>,
    client: Client,
}

static SCHEMAS: AtomicU64 = AtomicU64::new(0);

fn url() -> String {
    std::env::var("ONCEWARD_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!(
            "ONCEWARD_TEST_POSTGRES_URL is not set: these tests need a Postgres server, for \
             instance postgres://postgres@127.0.0.1:5432/postgres; \
             `cargo xtask services up postgres` starts one"
        )
    })
}

fn options(schema: &str) -> PostgresOptions {
    PostgresOptions { schema: schema.into(), ..PostgresOptions::default() }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn failed(error: tokio_postgres::Error) -> StoreError {
    StoreError::NotApplied(error.to_string())
}

impl Place {
    async fn new() -> Result<Self, StoreError> {
        let number = SCHEMAS.fetch_add(1, Ordering::SeqCst);
        let schema = format!("kit_{}_{number}", std::process::id());
        let (client, connection) = tokio_postgres::connect(&url(), NoTls).await.map_err(failed)?;
        tokio::spawn(connection);
        let drop = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
        client.batch_execute(&drop).await.map_err(failed)?;
        PostgresStore::migrate(&url(), options(&schema)).await?;
        let clock = format!(
            "SET search_path = {schema}; \
             CREATE TABLE test_clock (now bigint NOT NULL); \
             INSERT INTO test_clock VALUES ({}); \
             CREATE OR REPLACE FUNCTION store_now_ms() RETURNS bigint \
                 LANGUAGE sql VOLATILE SECURITY DEFINER \
                 AS 'SELECT now FROM {schema}.test_clock'",
            START.0
        );
        client.batch_execute(&clock).await.map_err(failed)?;
        let store = Arc::new(PostgresStore::connect(&url(), options(&schema)).await?);
        Ok(Self { schema, store, client })
    }
}

impl Drop for Place {
    /// Removes the schema, from a thread and a runtime of its own: a test's may be at its end.
    fn drop(&mut self) {
        let drop = format!("SET lock_timeout = 5000; DROP SCHEMA {} CASCADE", self.schema);
        let remove = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url(), NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(&drop).await
            })?;
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        });
        // What can't be removed is left in the test database, under the kit's name.
        let _ = remove.join();
    }
}

impl Harness for PostgresHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let place = Place::new().await?;
            let store = place.store.clone();
            *self.opened.lock().await = Some(place);
            Ok(store as Arc<dyn Store>)
        })
    }

    fn reopen(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async move {
            let mut opened = self.opened.lock().await;
            let place = opened.as_mut().unwrap();
            place.store.close().await?;
            let store = PostgresStore::connect(&url(), options(&place.schema)).await?;
            place.store = Arc::new(store);
            Ok(Some(place.store.clone() as Arc<dyn Store>))
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let opened = self.opened.lock().await;
            let advance = format!("UPDATE test_clock SET now = now + {ms}");
            opened.as_ref().unwrap().client.batch_execute(&advance).await.map_err(failed)?;
            Ok(true)
        })
    }

    /// Entries settle when no older transaction of the server runs: those of tests beside this one
    /// count too.
    fn settle(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let opened = self.opened.lock().await;
            let client = &opened.as_ref().unwrap().client;
            let now = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
            let now: String = client.query_one(now, &[]).await.map_err(failed)?.get(0);
            let over = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8";
            while !client.query_one(over, &[&now]).await.map_err(failed)?.get::<_, bool>(0) {
                // sleeps because a server tells nobody when a transaction ends
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            Ok(())
        })
    }

    fn damage(&self, what: Damage) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let opened = self.opened.lock().await;
            let (key, sql) = match &what {
                Damage::Outcome(key) => (
                    key,
                    "UPDATE outcomes SET bytes = set_byte(bytes, 0, get_byte(bytes, 0) # 1) \
                     WHERE id IN (SELECT outcome_id FROM records WHERE tenant = $1 AND name = $2)",
                ),
                Damage::Record(key) => (
                    key,
                    "UPDATE records SET attempt = attempt + 1 WHERE tenant = $1 AND name = $2",
                ),
            };
            let client = &opened.as_ref().unwrap().client;
            let (tenant, name) = (key.tenant_column(), key.name_column());
            let changed = client.execute(sql, &[&tenant, &name]).await.map_err(failed)?;
            assert_eq!(changed, 1, "{what:?} must change a row");
            Ok(true)
        })
    }
}
