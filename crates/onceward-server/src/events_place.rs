//! Where events are kept when nobody says: beside the store.

use std::path::{Path, PathBuf};

use crate::open::StoreUrl;

/// The folder of the events of a store; none when they live in memory with it.
pub(crate) fn folder(url: &StoreUrl, told: Option<&Path>) -> Option<PathBuf> {
    match (told, url) {
        (Some(told), _) => Some(told.to_owned()),
        (None, StoreUrl::Sqlite(path)) => Some(path.with_extension("events")),
        (None, StoreUrl::Memory) => None,
        #[cfg(feature = "postgres")]
        (None, StoreUrl::Postgres(_)) => Some("onceward.events".into()),
        #[cfg(feature = "dynamodb")]
        (None, StoreUrl::DynamoDb(_)) => Some("onceward.events".into()),
    }
}
