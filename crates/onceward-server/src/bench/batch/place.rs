//! Where a bench of batches keeps its stores: in a folder beside the file, or in a schema.

use std::path::{Path, PathBuf};

use onceward::engine::Engine;
#[cfg(feature = "postgres")]
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use std::sync::Arc;

use super::super::folder::Folder;
use crate::failure::Failure;
use crate::open::{Access, StoreUrl};

/// The place.
pub(super) enum Place {
    /// SQLite: a file for each store.
    Folder(Folder),
    /// Postgres: one schema for all.
    #[cfg(feature = "postgres")]
    Schema {
        /// The server.
        url: String,
        /// The schema.
        schema: String,
    },
    /// Whatever else can be opened.
    Elsewhere(StoreUrl),
}

/// One store, to be opened on the runtime that uses it.
#[derive(Debug, Clone)]
pub(super) enum StoreAt {
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Schema(String, String),
    Elsewhere(StoreUrl),
}

impl Place {
    /// Makes the place.
    pub(super) async fn make(url: &StoreUrl) -> Result<Self, Failure> {
        match url {
            StoreUrl::Sqlite(path) => Ok(Self::Folder(Folder::beside(path)?)),
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => {
                let schema = format!("onceward_bench_{}", std::process::id());
                let options =
                    PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
                PostgresStore::migrate(url, options).await?;
                Ok(Self::Schema { url: url.clone(), schema })
            }
            other => Ok(Self::Elsewhere(other.clone())),
        }
    }

    /// The folder, where it is one.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder.path()),
            _ => None,
        }
    }

    /// A store of this name.
    pub(super) fn store(&self, name: &str) -> StoreAt {
        match self {
            Self::Folder(folder) => StoreAt::File(folder.path().join(format!("{name}.db"))),
            #[cfg(feature = "postgres")]
            Self::Schema { url, schema } => StoreAt::Schema(url.clone(), schema.clone()),
            Self::Elsewhere(url) => StoreAt::Elsewhere(url.clone()),
        }
    }

    /// Removes everything.
    pub(super) async fn remove(self) -> Result<(), Failure> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Schema { url, schema } => {
                let bare = super::super::postgres::connect(&url).await?;
                let drop = format!("DROP SCHEMA \"{schema}\" CASCADE");
                let removed = bare.batch_execute(&drop).await;
                removed.map_err(|error| super::super::postgres::failed(&error))
            }
            _ => Ok(()),
        }
    }
}

impl StoreAt {
    /// An engine on it.
    pub(super) async fn open(&self) -> Result<Engine, Failure> {
        Ok(match self {
            Self::File(path) => {
                Engine::new(Arc::new(SqliteStore::open(path, SqliteOptions::default())?))
            }
            #[cfg(feature = "postgres")]
            Self::Schema(url, schema) => {
                let options =
                    PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
                Engine::new(Arc::new(PostgresStore::connect(url, options).await?))
            }
            Self::Elsewhere(url) => Engine::new(url.open(Access::Write).await?),
        })
    }
}
