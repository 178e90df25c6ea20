//! From a store's URL to an open store, with errors that say what to do.
//!
//! Reading opens SQLite read-only, so that it works while a server holds the file. Only `migrate`
//! and servers make a file: elsewhere a mistyped path is an error, never a new empty store. A URL's
//! password is never shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward::engine::Engine;
#[cfg(feature = "dynamodb")]
use onceward::store::dynamodb::{DynamoDbCredentials, DynamoDbOptions, DynamoDbStore};
#[cfg(feature = "postgres")]
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{Store, StoreError};

use crate::failure::Failure;

/// What this build can open, for messages.
const SUPPORTED: &str = match (cfg!(feature = "postgres"), cfg!(feature = "dynamodb")) {
    (false, false) => "sqlite:PATH and memory:",
    (true, false) => "sqlite:PATH, memory: and postgres://USER@HOST/DATABASE",
    (false, true) => "sqlite:PATH, memory: and dynamodb://REGION/TABLE",
    (true, true) => {
        "sqlite:PATH, memory:, postgres://USER@HOST/DATABASE and dynamodb://REGION/TABLE"
    }
};

/// What a command wants to do with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Look.
    Read,
    /// Change what is there.
    Write,
    /// Change it, and make it if it is not there: for servers.
    Create,
}

/// Whether no other process can write to an engine's store: it is a file that this one holds, or
/// its memory.
pub(crate) fn is_alone(engine: &Engine) -> bool {
    matches!(engine.capabilities().name, "sqlite" | "memory")
}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// In memory, for as long as the process runs.
    Memory,
    /// A Postgres database.
    #[cfg(feature = "postgres")]
    Postgres(String),
    /// A DynamoDB table.
    #[cfg(feature = "dynamodb")]
    DynamoDb(Box<DynamoDbOptions>),
}

impl StoreUrl {
    /// Reads a URL.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            if path.is_empty() || path.starts_with("//") {
                let message = "--store sqlite: needs a path, as in sqlite:onceward.db or \
                               sqlite:/var/lib/onceward.db, without slashes for a host";
                return Err(Failure::usage("store.url", message));
            }
            return Ok(Self::Sqlite(path.into()));
        }
        if url == "memory:" {
            return Ok(Self::Memory);
        }
        #[cfg(feature = "postgres")]
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.into()));
        }
        if url.starts_with("dynamodb:") {
            return dynamodb(url);
        }
        // Only the scheme is repeated: the rest may hold a password.
        let scheme = url.split_once(':').map_or("without a scheme", |(scheme, _)| scheme);
        let message =
            format!("--store {scheme}: this build does not know it; it supports {SUPPORTED}");
        Err(Failure::usage("store.url", message))
    }

    /// The URL as it may be shown.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Memory => "memory:".into(),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => without_password(url),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(options) => options.shown(),
        }
    }

    /// Opens what is there.
    pub(crate) async fn open(&self, access: Access) -> Result<Arc<dyn Store>, Failure> {
        self.open_with(access, SqliteOptions::default()).await
    }

    /// Opens what is there; an embedded store with these options.
    pub(crate) async fn open_with(
        &self,
        access: Access,
        options: SqliteOptions,
    ) -> Result<Arc<dyn Store>, Failure> {
        match self {
            Self::Memory => Ok(Arc::new(onceward::store::memory::MemoryStore::new())),
            Self::Sqlite(path) => {
                if access != Access::Create {
                    exists(path)?;
                }
                let store = match access {
                    Access::Read => SqliteStore::open_read_only(path),
                    Access::Write | Access::Create => SqliteStore::open(path, options),
                };
                Ok(Arc::new(store.map_err(|error| self.failure(&error))?))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => {
                let store = PostgresStore::connect(url, PostgresOptions::default()).await;
                Ok(Arc::new(store.map_err(|error| self.failure(&error))?))
            }
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(options) => {
                let store = DynamoDbStore::connect(options).await;
                Ok(Arc::new(store.map_err(|error| self.failure(&error))?))
            }
        }
    }

    /// A store's error, with the place where it happened.
    pub(crate) fn failure(&self, error: &StoreError) -> Failure {
        let text = error.to_string();
        let message = match self {
            Self::Sqlite(path) if !text.contains(&path.display().to_string()) => {
                format!("{}: {text}", self.shown())
            }
            // Postgres' own messages say where.
            _ => text,
        };
        match error {
            // A migration has to be run first, or another version of the program.
            StoreError::Schema(_) => Failure::usage(error.code(), message),
            _ => Failure::failed(error.code(), message),
        }
    }
}

/// Reads the URL of a table. Who signs its requests comes from the variables that all of AWS's
/// programs read.
#[cfg(feature = "dynamodb")]
fn dynamodb(url: &str) -> Result<StoreUrl, Failure> {
    let mut options = DynamoDbOptions::parse(url)
        .map_err(|error| Failure::usage("store.url", format!("--store: {error}")))?;
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let (Some(access_key_id), Some(secret_access_key)) =
        (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"))
    {
        let session_token = variable("AWS_SESSION_TOKEN");
        options.credentials =
            Some(DynamoDbCredentials { access_key_id, secret_access_key, session_token });
    }
    Ok(StoreUrl::DynamoDb(Box::new(options)))
}

#[cfg(not(feature = "dynamodb"))]
fn dynamodb(_url: &str) -> Result<StoreUrl, Failure> {
    let message = "--store dynamodb: this build has no DynamoDB store; build it with `cargo build \
                   --release -p onceward-server --features dynamodb`";
    Err(Failure::usage("store.url", message))
}

fn exists(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let message = format!("{shown} is a folder; --store sqlite: takes the database file");
            Err(Failure::failed("store.open", message))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!(
                "there is no database at {shown} yet. It comes to be when a program opens the \
                 store there for the first time, or with `onceward migrate --store \
                 sqlite:{shown}`; another one is named with --store"
            );
            Err(Failure::failed("store.missing", message))
        }
        Err(error) => {
            let message = format!("can't look at {shown}: {error}");
            Err(Failure::failed("store.open", message))
        }
    }
}

/// A URL as it may be shown.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "no URL".into() };
    // Parameters can hold a password too, and say nothing about the place.
    let rest = rest.split_once('?').map_or(rest, |(place, _)| place);
    match rest.rsplit_once('@') {
        Some((login, place)) => {
            let user = login.split_once(':').map_or(login, |(user, _)| user);
            format!("{scheme}://{user}@{place}")
        }
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let read = |url| StoreUrl::parse(url).ok();
        assert_eq!(read("sqlite:a b.db"), Some(StoreUrl::Sqlite("a b.db".into())));
        assert_eq!(read("memory:"), Some(StoreUrl::Memory));
        for bad in ["", "sqlite:", "sqlite://x", "memory:x", "onceward.db", "redis://h"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[cfg(feature = "dynamodb")]
    #[test]
    fn d05_the_url_of_a_table_is_read() {
        let url = "dynamodb://eu-central-1/onceward?endpoint=http://127.0.0.1:8000";
        assert_eq!(StoreUrl::parse(url).unwrap().shown(), url);
        let error = StoreUrl::parse("dynamodb://eu-central-1").unwrap_err().message;
        assert!(error.contains("dynamodb://REGION/TABLE"), "{error}");
    }

    #[cfg(not(feature = "dynamodb"))]
    #[test]
    fn d05_a_build_without_dynamodb_names_the_feature() {
        let error = StoreUrl::parse("dynamodb://eu-central-1/onceward").unwrap_err().message;
        assert!(error.contains("--features dynamodb"), "{error}");
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://u:p@h:5432/d", "postgres://u@h:5432/d"),
            ("postgres://u:p@ss@h/d", "postgres://u@h/d"),
            ("postgresql://h/d?user=u&password=p", "postgresql://h/d"),
            ("postgres://h/d", "postgres://h/d"),
        ] {
            assert_eq!(StoreUrl::parse(url).unwrap().shown(), shown);
        }
    }
}
