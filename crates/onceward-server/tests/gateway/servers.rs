//! What a case stands on: a file, a database of its own on the shared Postgres, with or without the
//! shared Redis, or a table of its own on the shared DynamoDB.
//!
//! Databases are copies of one that `onceward migrate` made, and go when the next run begins;
//! tables are made by it and go with the server. The servers are those that
//! `ONCEWARD_TEST_POSTGRES_URL`, `ONCEWARD_TEST_REDIS_URL` and `ONCEWARD_TEST_DYNAMODB_URL` name; a
//! case that needs one fails without it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, OnceCell};
use tokio_postgres::NoTls;

use super::redis_server::shared_url;
use super::target::{command, folder};

/// What keeps the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum On {
    /// A file in the case's folder.
    #[default]
    Sqlite,
    /// A database of its own.
    Postgres,
    /// The same, with every replay from Redis: nothing is kept in the gateway's memory.
    PostgresAndRedis,
    /// A table of its own.
    #[cfg(feature = "dynamodb")]
    DynamoDb,
}

impl On {
    /// The database of a case, if it has one.
    pub(crate) async fn database(self) -> Option<Database> {
        match self {
            Self::Sqlite => None,
            Self::Postgres | Self::PostgresAndRedis => Some(Database::new().await),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb => Some(Database::table()),
        }
    }

    /// The shared Redis, for a case that uses it.
    pub(crate) fn redis_url(self) -> Option<String> {
        (self == Self::PostgresAndRedis).then(shared_url)
    }
}

/// Every database of the suite is called this, the process of its run, and a number.
const PREFIX: &str = "onceward_gateway_";

static NUMBERS: AtomicU64 = AtomicU64::new(0);
static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static COPYING: Mutex<()> = Mutex::const_new(());

/// A database, or a table, of a case's own.
pub(crate) struct Database {
    pub(crate) name: String,
    url: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let template = TEMPLATE.get_or_init(migrated).await;
        let number = NUMBERS.fetch_add(1, Ordering::SeqCst);
        let name = format!("{PREFIX}{}_{number}", std::process::id());
        // One copy at a time: nobody may be connected to the template meanwhile.
        let _alone = COPYING.lock().await;
        ask(&format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        let url = url_of(&name);
        Self { name, url }
    }

    /// A table, as `onceward migrate` makes it.
    #[cfg(feature = "dynamodb")]
    fn table() -> Self {
        let endpoint = std::env::var("ONCEWARD_TEST_DYNAMODB_URL").expect(
            "ONCEWARD_TEST_DYNAMODB_URL is not set: these tests need a DynamoDB server; \
             `cargo xtask services up dynamodb` starts one",
        );
        let number = NUMBERS.fetch_add(1, Ordering::SeqCst);
        let name = format!("{PREFIX}{}_{number}", std::process::id());
        let url = format!("dynamodb://eu-central-1/{name}?endpoint={endpoint}");
        let folder = folder(&format!("migrate-{number}"));
        let output = command(&folder, &["migrate", "--store", &url]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { name, url }
    }

    /// Where the gateway finds it.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }
}

/// The database that all others are copies of, as `onceward migrate` makes it.
async fn migrated() -> String {
    remove_leftovers().await;
    let name = format!("{PREFIX}{}_template", std::process::id());
    ask(&format!("CREATE DATABASE {name}")).await;
    let output = command(&folder("migrate"), &["migrate", "--store", &url_of(&name)]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    name
}

fn server_url() -> String {
    std::env::var("ONCEWARD_TEST_POSTGRES_URL").unwrap_or_else(|_| {
        panic!(
            "ONCEWARD_TEST_POSTGRES_URL is not set: these tests need a Postgres server, for \
             instance postgres://postgres@127.0.0.1:5432/postgres; \
             `cargo xtask services up postgres` starts one"
        )
    })
}

/// The server's URL with another database.
fn url_of(database: &str) -> String {
    let url = server_url();
    let (server, _) = url.rsplit_once('/').expect("a URL with a database at its end");
    format!("{server}/{database}")
}

/// Removes the databases of earlier runs. Dropping one makes the server write down everything that
/// it holds in memory: dear right after a case, next to nothing before a run.
async fn remove_leftovers() {
    let (client, connection) = tokio_postgres::connect(&server_url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let names = "SELECT datname::text FROM pg_database WHERE starts_with(datname::text, $1)";
    for row in client.query(names, &[&PREFIX]).await.unwrap() {
        let name: String = row.get(0);
        let run = name[PREFIX.len()..].split('_').next().unwrap_or_default();
        // Another run may be under way on the same server.
        if !std::path::Path::new(&format!("/proc/{run}")).exists() {
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            client.batch_execute(&drop).await.unwrap();
        }
    }
}

async fn ask(sql: &str) {
    let (client, connection) = tokio_postgres::connect(&server_url(), NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    drop(client);
    let _ = connection.await;
}
