//! The response cache of reads (A17): what writes have made, kept in memory.
//!
//! Only the successful first execution of a write fills or replaces an entry; a failed or replayed
//! one never touches it, and neither does a read. While a write of a resource is under way, its
//! reads go to the store, so that nobody is shown less than was committed. For stores that this
//! process has to itself: writes of another process are not seen here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use onceward::http::Caller;

use super::resource::Resource;
use crate::percent::decoded;

/// What a first execution has made; found in the extensions of its response.
#[derive(Debug, Clone)]
pub(super) struct Fresh {
    place: Place,
    entry: Entry,
}

/// Organisation and path.
type Place = (String, String);

/// A version of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) version: u64,
    /// Its body; none when it is deleted.
    pub(super) body: Option<Bytes>,
}

impl Fresh {
    /// A resource as it is now.
    pub(super) fn new(caller: &Caller, resource: &Resource) -> Self {
        let body = Some(resource.body().bytes().into());
        Self { place: place(caller, resource), entry: Entry { version: resource.version, body } }
    }

    /// A resource that is deleted.
    pub(super) fn gone(caller: &Caller, resource: &Resource) -> Self {
        let version = resource.version.saturating_add(1);
        Self { place: place(caller, resource), entry: Entry { version, body: None } }
    }
}

fn place(caller: &Caller, resource: &Resource) -> Place {
    (caller.tenant.clone(), resource.kind.path(&resource.id))
}

/// The cache.
#[derive(Debug)]
pub(super) struct ResponseCache {
    entries_max: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Place, Entry>,
    /// Paths that are being written, and by how many.
    writing: HashMap<String, usize>,
}

impl ResponseCache {
    /// A cache of at most so many entries; with 0 it keeps nothing.
    pub(super) fn new(entries_max: usize) -> Self {
        Self { entries_max, inner: Mutex::default() }
    }

    /// What is kept of a resource that nobody is writing.
    pub(super) fn get(&self, tenant: &str, path: &str) -> Option<Entry> {
        let inner = self.locked();
        if inner.writing.contains_key(path) {
            return None;
        }
        let entry = inner.entries.get(&(tenant.to_string(), path.to_string()))?;
        entry.body.as_ref().map(|_| entry.clone())
    }

    /// A write begins; until the guard is dropped, reads of its resource go to the store.
    pub(super) fn writing(&self, path: &str) -> Writing<'_> {
        // The resource, without the action: /v1/missions/7/lock is about /v1/missions/7.
        let end = path.match_indices('/').nth(3).map_or(path.len(), |(at, _)| at);
        // Its entry has the id as it is, however this one spells it.
        let path = decoded(&path[..end]).unwrap_or_else(|| path[..end].to_string());
        *self.locked().writing.entry(path.clone()).or_default() += 1;
        Writing { cache: self, path }
    }

    /// Keeps what a first execution has made, unless something newer is there.
    pub(super) fn fill(&self, fresh: Fresh) {
        if self.entries_max == 0 {
            return;
        }
        let mut inner = self.locked();
        let Inner { entries, writing } = &mut *inner;
        if entries.len() >= self.entries_max && !entries.contains_key(&fresh.place) {
            // Full: it starts anew. What is being written stays, or an older version of it could
            // come in after a newer one.
            entries.retain(|(_, path), _| writing.contains_key(path));
        }
        let newer = |kept: &Entry| kept.version >= fresh.entry.version;
        if !entries.get(&fresh.place).is_some_and(newer) {
            entries.insert(fresh.place, fresh.entry);
        }
    }

    /// Forgets what is kept of the resource that is being written, whoever has it.
    pub(super) fn forget(&self, writing: &Writing<'_>) {
        self.locked().entries.retain(|(_, path), _| *path != writing.path);
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write under way.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    cache: &'a ResponseCache,
    path: String,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut inner = self.cache.locked();
        if let Some(count) = inner.writing.get_mut(&self.path) {
            *count -= 1;
            if *count == 0 {
                inner.writing.remove(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;
    use crate::planning::resource::Kind;

    fn fresh(version: u64) -> Fresh {
        let caller = Caller { tenant: "org".into(), caller: "ada".into() };
        let mut mission = Resource::new(Kind::Mission, "7", Members::default());
        mission.version = version;
        Fresh::new(&caller, &mission)
    }

    fn version(cache: &ResponseCache) -> Option<u64> {
        cache.get("org", "/v1/missions/7").map(|entry| entry.version)
    }

    #[test]
    fn a17_an_older_write_that_comes_later_changes_nothing() {
        let cache = ResponseCache::new(10);
        cache.fill(fresh(2));
        cache.fill(fresh(1));
        assert_eq!(version(&cache), Some(2));
        assert_eq!(cache.get("other", "/v1/missions/7"), None, "A01");
    }

    #[test]
    fn while_a_write_is_under_way_reads_go_to_the_store() {
        let cache = ResponseCache::new(10);
        cache.fill(fresh(1));
        let (first, second) =
            (cache.writing("/v1/missions/7/lock"), cache.writing("/v1/missions/7"));
        assert_eq!(version(&cache), None);
        drop(first);
        assert_eq!(version(&cache), None);
        drop(second);
        assert_eq!(version(&cache), Some(1), "a failed write invalidates nothing");
    }

    #[test]
    fn a17_a_write_by_another_spelling_is_of_the_same_resource() {
        let cache = ResponseCache::new(10);
        cache.fill(fresh(1));
        let writing = cache.writing("/v1/missions/%37/lock");
        assert_eq!(version(&cache), None);
        cache.forget(&writing);
        drop(writing);
        assert_eq!(version(&cache), None, "nobody knows what became of it");
    }

    #[test]
    fn it_is_bounded_and_0_keeps_nothing() {
        let cache = ResponseCache::new(0);
        cache.fill(fresh(1));
        assert_eq!(version(&cache), None);
        let cache = ResponseCache::new(1);
        let mut other = fresh(1);
        other.place.1 = "/v1/missions/8".into();
        cache.fill(other);
        cache.fill(fresh(1));
        assert_eq!(cache.locked().entries.len(), 1);
    }
}
