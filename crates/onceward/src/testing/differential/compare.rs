//! Compares two answers, where stamps are the same by a map and not by their numbers.
//!
//! The map between the store's stamps and the oracle's grows as pairs are seen together. It must be
//! one to one and keep the order: whatever the numbers are, they must rise alike.

use std::collections::BTreeMap;
use std::fmt::Debug;

use onceward_core::audit::Audited;
use onceward_core::batch::{Answer, Applied, There};
use onceward_core::record::{Record, Stored};

use super::Differs;
use crate::store::{Committed, Fact, Items, List, Loaded, StoreError};

/// Which stamp of the store is which of the oracle.
#[derive(Debug)]
pub(super) struct Stamps {
    of_oracle: BTreeMap<u64, u64>,
    of_store: BTreeMap<u64, u64>,
}

impl Default for Stamps {
    fn default() -> Self {
        // No fence was ever granted: that is 0 on every store.
        Self { of_oracle: BTreeMap::from([(0, 0)]), of_store: BTreeMap::from([(0, 0)]) }
    }
}

/// What two values of one place come to.
type Same = Result<(), Differs>;

impl Stamps {
    /// Two stamps in the same place.
    fn same_stamp(&mut self, store: u64, oracle: u64) -> Result<(), String> {
        match (self.of_oracle.get(&store), self.of_store.get(&oracle)) {
            (Some(o), Some(s)) if (*o, *s) == (oracle, store) => return Ok(()),
            (None, None) => {}
            (o, s) => {
                return Err(format!(
                    "stamps are not one to one: {store} and {oracle}, before {o:?} and {s:?}"
                ));
            }
        }
        let below = self.of_oracle.range(..store).next_back();
        let above = self.of_oracle.range(store..).next();
        let rises =
            below.is_none_or(|(_, o)| *o < oracle) && above.is_none_or(|(_, o)| *o > oracle);
        if !rises {
            return Err(format!(
                "stamps do not rise alike: {store} and {oracle} between {below:?} and {above:?}"
            ));
        }
        self.of_oracle.insert(store, oracle);
        self.of_store.insert(oracle, store);
        Ok(())
    }

    fn same_stamp_or_none(
        &mut self,
        store: Option<u64>,
        oracle: Option<u64>,
    ) -> Result<(), String> {
        match (store, oracle) {
            (Some(store), Some(oracle)) => self.same_stamp(store, oracle),
            (None, None) => Ok(()),
            _ => Err(format!("a stamp is missing: {store:?} and {oracle:?}")),
        }
    }

    fn same_record(&mut self, store: &Record, oracle: &Record) -> Result<(), String> {
        same(&store.key, &oracle.key, "another record")?;
        self.same_stamp(store.rev.0, oracle.rev.0)?;
        self.same_stamp(store.last_fence.0, oracle.last_fence.0)?;
        self.same_stamp_or_none(store.fence.map(|f| f.0), oracle.fence.map(|f| f.0))?;
        let mut store = store.clone();
        (store.rev, store.fence, store.last_fence) = (oracle.rev, oracle.fence, oracle.last_fence);
        if store == *oracle { Ok(()) } else { Err("a record differs".into()) }
    }

    fn same_stored(
        &mut self,
        store: Option<&Stored>,
        oracle: Option<&Stored>,
    ) -> Result<(), String> {
        match (store, oracle) {
            (Some(store), Some(oracle)) => {
                self.same_record(&store.record, &oracle.record)?;
                same(&store.outcome, &oracle.outcome, "an outcome differs")
            }
            (None, None) => Ok(()),
            _ => Err("one has the record, the other has not".into()),
        }
    }

    fn same_fact(&mut self, store: &Fact, oracle: &Fact) -> Result<(), String> {
        match (store, oracle) {
            (Fact::Record(store), Fact::Record(oracle)) => {
                let (s, o) = (store.as_ref(), oracle.as_ref());
                self.same_stored(s.map(|s| &s.stored), o.map(|o| &o.stored))?;
                let payload = |found: Option<&crate::store::Found>| {
                    found.and_then(|found| found.payload.clone())
                };
                same(&payload(s), &payload(o), "a payload differs")
            }
            (Fact::Mark(store), Fact::Mark(oracle)) => same(store, oracle, "a mark differs"),
            _ => Err("a record in a mark's place, or the other way round".into()),
        }
    }

    /// Two looks at the same instant.
    pub(super) fn same_load(
        &mut self,
        store: &Result<Loaded, StoreError>,
        oracle: &Result<Loaded, StoreError>,
    ) -> Same {
        let (Ok(s), Ok(o)) = (store, oracle) else {
            return Err(Differs::new("a load failed", store, oracle));
        };
        if s.now != o.now || s.facts.len() != o.facts.len() {
            return Err(Differs::new("a load's instant or size differs", s, o));
        }
        for (store, oracle) in s.facts.iter().zip(&o.facts) {
            let same = self.same_fact(store, oracle);
            same.map_err(|why| Differs::new(why, store, oracle))?;
        }
        Ok(())
    }

    fn same_answer(&mut self, store: &Answer, oracle: &Answer) -> Result<(), String> {
        match (store, oracle) {
            (Answer::Applied(store), Answer::Applied(oracle)) => {
                let put = |applied: &Applied| applied.first.map(|(rev, _)| rev.0);
                self.same_stamp_or_none(put(store), put(oracle))?;
                let fence =
                    |applied: &Applied| applied.first.and_then(|(_, fence)| fence).map(|f| f.0);
                self.same_stamp_or_none(fence(store), fence(oracle))?;
                same(&(store.now, store.again), &(oracle.now, oracle.again), "an answer differs")
            }
            (Answer::Refused(store), Answer::Refused(oracle)) => {
                same(&store.now, &oracle.now, "a refusal's instant differs")?;
                same(&store.failed.len(), &oracle.failed.len(), "failed conditions differ")?;
                for ((s, store), (o, oracle)) in store.failed.iter().zip(&oracle.failed) {
                    same(s, o, "other conditions failed")?;
                    match (store, oracle) {
                        (There::Record(store), There::Record(oracle)) => {
                            self.same_stored(store.as_deref(), oracle.as_deref())?;
                        }
                        (store, oracle) => same(store, oracle, "what is there differs")?,
                    }
                }
                Ok(())
            }
            _ => Err("answers differ".into()),
        }
    }

    /// Two answers to the same group.
    pub(super) fn same_commit(
        &mut self,
        store: &Result<Committed, StoreError>,
        oracle: &Result<Committed, StoreError>,
    ) -> Same {
        let (Ok(s), Ok(o)) = (store, oracle) else {
            return Err(Differs::new("a commit failed", store, oracle));
        };
        if s.answers.len() != o.answers.len() {
            return Err(Differs::new("the number of answers differs", s, o));
        }
        for (store, oracle) in s.answers.iter().zip(&o.answers) {
            let same = self.same_answer(store, oracle);
            same.map_err(|why| Differs::new(why, store, oracle))?;
        }
        Ok(())
    }

    /// Two walks of the same list; gives the number of items.
    pub(super) fn same_list(
        &mut self,
        what: &List,
        store: Result<Vec<Items>, StoreError>,
        oracle: Result<Vec<Items>, StoreError>,
    ) -> Result<usize, Differs> {
        let (store, oracle) = match (store, oracle) {
            (Ok(store), Ok(oracle)) => (store, oracle),
            // A store may be without these lists; conformance sees to it that it says so.
            (Err(StoreError::Unsupported { .. }), _) if matches!(what, List::Settled { .. }) => {
                return Ok(0);
            }
            (store, oracle) => return Err(Differs::new("a list failed", &store, &oracle)),
        };
        let ends_empty = matches!(what, List::Settled { .. });
        if !ends_empty
            && store.len() > 1
            && flat(store.iter().rev().take(1).cloned().collect()).is_empty()
        {
            return Err(Differs::new("a page was promised and is empty", &store, &oracle));
        }
        if let List::Audit(_) | List::Settled { .. } = what {
            return same_audit(audit_of(store), audit_of(oracle));
        }
        let (store, oracle) = (flat(store), flat(oracle));
        let differs = |why: String| Differs::new(why, &store, &oracle);
        if store.len() != oracle.len() {
            let (s, o) = (store.len(), oracle.len());
            return Err(differs(format!("one lists {s} items, the other {o}")));
        }
        for pair in store.iter().zip(&oracle) {
            let same = match pair {
                (Item::Record(store), Item::Record(oracle)) => self.same_record(store, oracle),
                (store, oracle) => same(store, oracle, "a listed item differs"),
            };
            same.map_err(differs)?;
        }
        Ok(oracle.len())
    }
}

/// Audit entries are numbered within one tenant, so each tenant's are compared on their own.
fn same_audit(store: Vec<Audited>, oracle: Vec<Audited>) -> Result<usize, Differs> {
    let count = oracle.len();
    let (store, oracle) = (by_tenant(store), by_tenant(oracle));
    for entries in store.values() {
        if !entries.windows(2).all(|pair| pair[0].id < pair[1].id) {
            return Err(Differs::new("audit numbers do not rise", &entries, &""));
        }
    }
    let entries = |of: BTreeMap<String, Vec<Audited>>| -> Vec<_> {
        of.into_values().flatten().map(|audited| (audited.at, audited.entry)).collect()
    };
    let (store, oracle) = (entries(store), entries(oracle));
    let pairs = store.iter().zip(&oracle);
    if let Some((store, oracle)) = pairs.into_iter().find(|(store, oracle)| store != oracle) {
        return Err(Differs::new("an audit entry differs", store, oracle));
    }
    if store.len() != oracle.len() {
        return Err(Differs::new("audit entries are missing", &store.len(), &oracle.len()));
    }
    Ok(count)
}

fn by_tenant(entries: Vec<Audited>) -> BTreeMap<String, Vec<Audited>> {
    let mut tenants: BTreeMap<String, Vec<Audited>> = BTreeMap::new();
    for audited in entries {
        tenants.entry(audited.entry.tenant.to_string()).or_default().push(audited);
    }
    tenants
}

#[derive(Debug, PartialEq)]
enum Item {
    Record(Box<Record>),
    Mark(Box<(onceward_core::key::Subject, onceward_core::record::Mark)>),
    Audit(Box<Audited>),
}

fn flat(pages: Vec<Items>) -> Vec<Item> {
    let items = |items: Items| -> Vec<Item> {
        match items {
            Items::Records(items) => items.into_iter().map(|i| Item::Record(Box::new(i))).collect(),
            Items::Marks(items) => items.into_iter().map(|i| Item::Mark(Box::new(i))).collect(),
            Items::Audit(items) => items.into_iter().map(|i| Item::Audit(Box::new(i))).collect(),
            Items::Settled(items) => {
                items.into_iter().map(|i| Item::Audit(Box::new(i.audited))).collect()
            }
        }
    };
    pages.into_iter().flat_map(items).collect()
}

fn audit_of(pages: Vec<Items>) -> Vec<Audited> {
    let entries = |item: Item| match item {
        Item::Audit(audited) => Some(*audited),
        Item::Record(_) | Item::Mark(_) => None,
    };
    flat(pages).into_iter().filter_map(entries).collect()
}

fn same<T: PartialEq + Debug>(store: &T, oracle: &T, why: &str) -> Result<(), String> {
    if store == oracle { Ok(()) } else { Err(format!("{why}: {store:?} and {oracle:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_must_be_one_to_one_and_rise_alike() {
        let mut stamps = Stamps::default();
        stamps.same_stamp(10, 1).unwrap();
        stamps.same_stamp(30, 3).unwrap();
        stamps.same_stamp(10, 1).unwrap();
        stamps.same_stamp(20, 2).unwrap();
        for (store, oracle) in [(10, 2), (11, 1), (40, 2), (25, 4), (40, 1), (0, 5), (5, 0)] {
            assert!(stamps.same_stamp(store, oracle).is_err(), "{store} and {oracle}");
        }
        stamps.same_stamp(0, 0).unwrap();
        stamps.same_stamp(41, 4).unwrap();
    }
}
