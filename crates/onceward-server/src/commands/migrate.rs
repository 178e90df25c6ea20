//! `onceward migrate`: makes a store's tables, or brings them to this program's version.

use onceward::store::Store;
#[cfg(feature = "dynamodb")]
use onceward::store::dynamodb::DynamoDbStore;
#[cfg(feature = "postgres")]
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::json;

use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;

/// Migrates the store.
pub(crate) async fn migrate(url: &StoreUrl, out: &Out) -> Result<(), Failure> {
    let version = match url {
        StoreUrl::Memory => {
            let message = "a memory store has no tables to migrate; --store names another";
            return Err(Failure::usage("store.url", message));
        }
        StoreUrl::Sqlite(path) => {
            // Opening is migrating: that is all a server does too.
            let opened = SqliteStore::open(path, SqliteOptions::default());
            let store = opened.map_err(|error| url.failure(&error))?;
            store.close().await.map_err(|error| url.failure(&error))?;
            SqliteStore::schema_version()
        }
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(address) => {
            let migrated = PostgresStore::migrate(address, PostgresOptions::default()).await;
            migrated.map_err(|error| url.failure(&error))?;
            PostgresStore::schema_version()
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::DynamoDb(options) => {
            DynamoDbStore::migrate(options).await.map_err(|error| url.failure(&error))?;
            DynamoDbStore::schema_version()
        }
    };
    if out.is_json() {
        return out.print_json(&json!({ "store": url.shown(), "version": version }));
    }
    out.print(&format!("{} is at schema version {version}.\n", url.shown()))
}
