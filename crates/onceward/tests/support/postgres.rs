//! How the test kit opens Postgres stores: each in a schema of its own, on a clock that tests move.
//!
//! Only the server that `ONCEWARD_TEST_POSTGRES_URL` names is used; without it a test fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::{Store, StoreError, StoreFuture};
use onceward::testing::harness::{Damage, Harness, START};
use tokio_postgres::{Client, NoTls};

/// Opens Postgres stores.
#[derive(Default)]
pub(crate) struct PostgresHarness {
    opened: Mutex<Option<Arc<Place>>>,
}

/// One schema and a connection that is not the store's.
struct Place {
    schema: String,
    sql: Client,
    store: Mutex<Arc<PostgresStore>>,
}

impl Place {
    fn options(schema: &str) -> PostgresOptions {
        PostgresOptions { schema: schema.to_string(), ..PostgresOptions::default() }
    }

    async fn new(schema: String) -> Result<Self, StoreError> {
        let sql = client().await;
        run(&sql, &format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await?;
        PostgresStore::migrate(&url(), Self::options(&schema)).await?;
        // Everything that the store dates, it dates by this function.
        let clock = format!(
            "CREATE TABLE {schema}.test_clock (now bigint NOT NULL); \
             INSERT INTO {schema}.test_clock VALUES ({}); \
             CREATE OR REPLACE FUNCTION {schema}.store_now_ms() RETURNS bigint \
                 LANGUAGE sql VOLATILE AS 'SELECT now FROM {schema}.test_clock'",
            START.0
        );
        run(&sql, &clock).await?;
        let store = PostgresStore::connect(&url(), Self::options(&schema)).await?;
        Ok(Self { schema, sql, store: Mutex::new(Arc::new(store)) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let drop_schema = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        // A runtime can't be blocked from within, so the schema is dropped from another thread.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let sql = client().await;
                // Sessions of the store may still be ending; what is left over does no harm.
                let patience = "SET lock_timeout = '2s'";
                run(&sql, patience).await.and(run(&sql, &drop_schema).await)
            })
        });
        let _ = dropped.join();
    }
}

static SCHEMAS: AtomicU64 = AtomicU64::new(0);

/// The server under test.
fn url() -> String {
    std::env::var("ONCEWARD_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!(
            "ONCEWARD_TEST_POSTGRES_URL is not set: these tests need a Postgres server, for \
             instance postgres://postgres@127.0.0.1:5432/postgres; `cargo xtask services up \
             postgres` starts one"
        )
    })
}

async fn client() -> Client {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls)
        .await
        .unwrap_or_else(|error| panic!("the test server at {} does not answer: {error}", url()));
    tokio::spawn(connection);
    client
}

async fn run(sql: &Client, statement: &str) -> Result<(), StoreError> {
    let ran = sql.batch_execute(statement).await;
    ran.map_err(|error| StoreError::NotApplied(format!("{statement}: {error:?}")))
}

impl PostgresHarness {
    fn place(&self) -> Arc<Place> {
        self.opened.lock().unwrap().clone().unwrap()
    }
}

impl Harness for PostgresHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let number = SCHEMAS.fetch_add(1, Ordering::SeqCst);
            let place = Place::new(format!("kit_{}_{number}", std::process::id())).await?;
            let store = place.store.lock().unwrap().clone();
            let before = self.opened.lock().unwrap().replace(Arc::new(place));
            drop(before);
            Ok(store as Arc<dyn Store>)
        })
    }

    fn reopen(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async move {
            let place = self.place();
            let before = place.store.lock().unwrap().clone();
            before.close().await?;
            let store = PostgresStore::connect(&url(), Place::options(&place.schema)).await?;
            let store = Arc::new(store);
            *place.store.lock().unwrap() = store.clone();
            Ok(Some(store as Arc<dyn Store>))
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let place = self.place();
            let schema = &place.schema;
            run(&place.sql, &format!("UPDATE {schema}.test_clock SET now = now + {ms}")).await?;
            Ok(true)
        })
    }

    fn damage(&self, what: Damage) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let place = self.place();
            let (key, update) = match &what {
                Damage::Outcome(key) => (key, "outcomes SET bytes = set_byte(bytes, 3, 0)"),
                Damage::Record(key) => (key, "records SET attempt = attempt + 1"),
            };
            let schema = &place.schema;
            let sql = format!("UPDATE {schema}.{update} WHERE tenant = $1 AND name = $2");
            let changed =
                place.sql.execute(&sql, &[&key.tenant_column(), &key.name_column()]).await;
            let changed = changed.map_err(|error| StoreError::NotApplied(error.to_string()))?;
            assert_eq!(changed, 1, "{what:?} must change a row");
            Ok(true)
        })
    }
}
