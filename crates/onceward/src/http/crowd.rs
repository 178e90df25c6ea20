//! How many requests of each tenant are under way: the crowd of one must not take every place.
//!
//! Counted are requests that claim, those that wait for a duplicate included. Memory is bounded by
//! what is under way: a tenant without a request is forgotten.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Independent parts of the map, so that tenants rarely wait for each other.
const SHARDS: usize = 16;

/// The requests under way.
pub(super) struct Crowd {
    shards: Vec<Mutex<HashMap<u64, usize>>>,
    most: usize,
    hasher: RandomState,
}

impl Crowd {
    /// At most so many of one tenant.
    pub(super) fn new(most: usize) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Self { shards, most, hasher: RandomState::new() })
    }

    /// Whether this tenant has no place left.
    pub(super) fn is_full(&self, tenant: &str) -> bool {
        let id = self.hasher.hash_one(tenant);
        self.shard(id).get(&id).is_some_and(|under_way| *under_way >= self.most)
    }

    /// A place for one more request of this tenant, if there is one.
    pub(super) fn enter(self: &Arc<Self>, tenant: &str) -> Option<Within> {
        // By a keyed hash: names are long, and nobody can choose them to collide.
        let id = self.hasher.hash_one(tenant);
        let mut shard = self.shard(id);
        let under_way = shard.entry(id).or_insert(0);
        if *under_way >= self.most {
            return None;
        }
        *under_way += 1;
        Some(Within { crowd: self.clone(), id })
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, usize>> {
        let shard = &self.shards[(id >> 32) as usize % SHARDS];
        // A panic elsewhere leaves numbers that are still numbers.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way; counted out when it is dropped.
pub(super) struct Within {
    crowd: Arc<Crowd>,
    id: u64,
}

impl Drop for Within {
    fn drop(&mut self) {
        let mut shard = self.crowd.shard(self.id);
        if let Some(under_way) = shard.get_mut(&self.id) {
            *under_way -= 1;
            if *under_way == 0 {
                shard.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_own_places_and_leaves_nothing_behind() {
        let crowd = Crowd::new(2);
        let (one, two) = (crowd.enter("a"), crowd.enter("a"));
        assert!(one.is_some() && two.is_some());
        assert!(crowd.is_full("a") && crowd.enter("a").is_none());
        assert!(!crowd.is_full("b") && crowd.enter("b").is_some());
        drop(one);
        assert!(!crowd.is_full("a"));
        drop(two);
        assert!(crowd.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }
}
