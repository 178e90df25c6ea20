//! Where a run takes place: a folder, and a store in it or a schema of its own in Postgres.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onceward::engine::Engine;
use onceward::events::{Append, AppendVerdict, EventStore, EventStoreOptions, Objects};
use onceward::store::Store;
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

/// Aggregates, and events of each. Their ids differ only in case, space and special characters.
pub(crate) const AGGREGATES: [&str; 3] = ["A:1", "a:1", "a:1 "];
pub(crate) const EACH: u64 = 4;
/// Events of a run.
pub(crate) const EVENTS: usize = AGGREGATES.len() * EACH as usize;
pub(crate) const TENANT: &str = "acme";

static RUNS: AtomicU64 = AtomicU64::new(0);

/// What keeps the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Sqlite,
    Postgres,
}

impl On {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "Postgres",
        }
    }
}

/// Where a run takes place.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) on: On,
    pub(crate) folder: PathBuf,
    /// The schema in Postgres, and the name of the view there.
    pub(crate) name: String,
}

pub(crate) fn url() -> String {
    std::env::var("ONCEWARD_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!(
            "ONCEWARD_TEST_POSTGRES_URL is not set: this test needs a Postgres server; \
             `cargo xtask services up postgres` starts one"
        )
    })
}

impl Place {
    pub(crate) fn make(on: On) -> Self {
        let number = RUNS.fetch_add(1, Ordering::SeqCst);
        let name = format!("crash_{}_{number}", std::process::id());
        let folder = std::env::temp_dir().join(format!("onceward-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        Self { on, folder, name }
    }

    /// Tells a child where it is.
    pub(crate) fn tell(&self, command: &mut Command) {
        command
            .env("ONCEWARD_TEST_CRASH_FOLDER", &self.folder)
            .env("ONCEWARD_TEST_CRASH_ON", self.on.as_str())
            .env("ONCEWARD_TEST_CRASH_NAME", &self.name);
    }

    /// Where this child was told that it is.
    pub(crate) fn told() -> Option<Self> {
        let var = |name: &str| std::env::var(format!("ONCEWARD_TEST_CRASH_{name}")).ok();
        let on = var("ON")?;
        let on = [On::Sqlite, On::Postgres].into_iter().find(|one| one.as_str() == on)?;
        Some(Self { on, folder: var("FOLDER")?.into(), name: var("NAME")? })
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("crash.db")
    }

    fn options(&self) -> PostgresOptions {
        PostgresOptions { schema: self.name.clone(), ..PostgresOptions::default() }
    }

    pub(crate) async fn engine(&self) -> Engine {
        let store: Arc<dyn Store> = match self.on {
            On::Sqlite => {
                Arc::new(SqliteStore::open(self.file(), SqliteOptions::default()).unwrap())
            }
            On::Postgres => Arc::new(PostgresStore::connect(&url(), self.options()).await.unwrap()),
        };
        Engine::new(store)
    }

    pub(crate) async fn events(&self, engine: &Engine) -> EventStore {
        let objects = Objects::folder(self.folder.join("events")).unwrap();
        let options = EventStoreOptions { lease_ms: 500, ..EventStoreOptions::default() };
        EventStore::open(engine.clone(), objects, options).await.unwrap()
    }

    /// Makes the store and appends the events of a run.
    pub(crate) async fn append(&self) {
        if self.on == On::Postgres {
            PostgresStore::migrate(&url(), self.options()).await.unwrap();
        }
        let engine = self.engine().await;
        let events = self.events(&engine).await;
        for number in 1..=EACH {
            for aggregate in AGGREGATES {
                let append = Append {
                    tenant: TENANT.into(),
                    aggregate_id: aggregate.into(),
                    event_id: format!("{aggregate}/{number}"),
                    kind: if number == 3 { "delete" } else { "update" }.into(),
                    payload: format!("{{\"name\":\"boat {number}\"}}").into(),
                    expected_seq: Some(number - 1),
                    correlation_id: None,
                };
                let verdict = events.append(&append).await.unwrap();
                assert!(matches!(verdict, AppendVerdict::Appended(_)), "{verdict:?}");
            }
        }
        events.close().await.unwrap();
        engine.close().await.unwrap();
    }

    pub(crate) fn remove(&self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
        if self.on == On::Postgres {
            let (schema, table) = (self.name.clone(), format!("onceward_view_{}_1", self.name));
            super::runtime().block_on(async move {
                let client = connect().await;
                let drop =
                    format!("DROP SCHEMA {schema} CASCADE; DROP TABLE IF EXISTS public.{table}");
                client.batch_execute(&drop).await.unwrap();
            });
        }
    }
}

pub(crate) async fn connect() -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
