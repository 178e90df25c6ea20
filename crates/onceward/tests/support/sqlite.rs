//! How the test kit opens SQLite stores: each in a folder of its own, on a clock that tests move.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use onceward::store::clock::{ManualClock, StoreClock};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{Store, StoreError, StoreFuture};
use onceward::testing::harness::{Damage, Harness, START};
use rusqlite::Connection;

/// Opens SQLite stores.
#[derive(Default)]
pub(crate) struct SqliteHarness {
    opened: Mutex<Option<Place>>,
}

/// One file, the store in it and the hand of its clock.
struct Place {
    folder: PathBuf,
    store: Arc<SqliteStore>,
    clock: StoreClock,
    hand: ManualClock,
}

impl Place {
    fn file(&self) -> PathBuf {
        self.folder.join("onceward.db")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What can't be removed lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl SqliteHarness {
    /// Runs statements behind the store's back.
    pub(crate) fn execute(&self, sql: &str) {
        let file = self.opened.lock().unwrap().as_ref().unwrap().file();
        Connection::open(file).unwrap().execute_batch(sql).unwrap();
    }
}

static FOLDERS: AtomicU64 = AtomicU64::new(0);

impl Harness for SqliteHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
            let name = format!("onceward-sqlite-{}-{number}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let (clock, hand) = StoreClock::manual(START);
            let file = folder.join("onceward.db");
            let store =
                SqliteStore::open_with_clock(file, SqliteOptions::default(), clock.clone())?;
            let store = Arc::new(store);
            let place = Place { folder, store: store.clone(), clock, hand };
            *self.opened.lock().unwrap() = Some(place);
            Ok(store as Arc<dyn Store>)
        })
    }

    fn reopen(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async move {
            let store = self.opened.lock().unwrap().as_ref().unwrap().store.clone();
            store.close().await?;
            let mut opened = self.opened.lock().unwrap();
            let place = opened.as_mut().unwrap();
            let clock = place.clock.clone();
            let store =
                SqliteStore::open_with_clock(place.file(), SqliteOptions::default(), clock)?;
            place.store = Arc::new(store);
            Ok(Some(place.store.clone() as Arc<dyn Store>))
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            self.opened.lock().unwrap().as_ref().unwrap().hand.advance(ms);
            Ok(true)
        })
    }

    fn damage(&self, what: Damage) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let opened = self.opened.lock().unwrap();
            let failed = |error: rusqlite::Error| StoreError::NotApplied(error.to_string());
            let file = Connection::open(opened.as_ref().unwrap().file()).map_err(failed)?;
            let (key, sql) = match &what {
                Damage::Outcome(key) => (
                    key,
                    "UPDATE outcomes \
                     SET body = CAST(substr(body, 1, 3) || x'00' || substr(body, 5) AS BLOB) \
                     WHERE id = (SELECT outcome_id FROM records WHERE tenant = ?1 AND name = ?2)",
                ),
                Damage::Record(key) => (
                    key,
                    "UPDATE records SET attempt = attempt + 1 WHERE tenant = ?1 AND name = ?2",
                ),
            };
            let columns = (key.tenant_column(), key.name_column());
            let changed = file.execute(sql, columns).map_err(failed)?;
            assert_eq!(changed, 1, "{what:?} must change a row");
            Ok(true)
        })
    }
}
