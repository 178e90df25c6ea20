//! Where records are: in memory as long as they are young, then in the index of names.

use std::collections::HashMap;

use onceward_core::key::Key;

use super::super::failure::Failure;
use super::super::rows::{self, bind_key, signed};
use super::super::sum::share;
use super::super::young::Place;
use super::Writes;

impl Writes<'_> {
    /// Reads the names of the young records from their rows: at the first transaction, and after
    /// another process has written.
    pub(super) fn read_young(&mut self) -> Result<(), Failure> {
        let mut names = HashMap::new();
        let mut found = self.list_young_names.query([signed(self.meta.indexed)])?;
        while let Some(row) = found.next()? {
            // A damaged name is nobody's; whoever looks at its record by another way is told.
            if let Ok(key) = rows::read_key(row, 1) {
                names.insert(key, row.get(0)?);
            }
        }
        drop(found);
        let pages = self.see_pages()?;
        // Nothing can fail from here on: both begin anew, or neither.
        self.shared.known.start(pages);
        let seen = self.shared.sync.seen();
        self.shared.young.fill(self.meta.indexed, self.meta.stamp, names, seen);
        Ok(())
    }

    /// Lets names be gathered according to the size of the file; answers how many pages it has.
    pub(super) fn see_pages(&mut self) -> Result<u64, Failure> {
        let pages = self.count_pages.query_row([], |row| rows::number(row, 0))?;
        self.shared.young.gather_for(pages);
        Ok(pages)
    }

    /// Remembers where a new record is. Its name comes to the index later.
    pub(super) fn add_name(&mut self, key: &Key, stamp: u64) {
        self.meta.names.add(share(&self.meta.key, key, signed(stamp)));
        let before = self.shared.young.insert(key, signed(stamp));
        self.names.added.push((key.clone(), before));
    }

    /// Where a record is.
    pub(super) fn find(&mut self, key: &Key) -> Result<Option<i64>, Failure> {
        match self.shared.young.place(key) {
            Some(Place::At(id)) => Ok(Some(id)),
            Some(Place::Gone(_)) => Ok(None),
            None if self.shared.known.lacks(key) => Ok(None),
            None => self.find_named(key),
        }
    }

    fn find_named(&mut self, key: &Key) -> Result<Option<i64>, Failure> {
        bind_key(&mut self.find_name, key)?;
        let mut found = self.find_name.raw_query();
        Ok(found.next()?.map(|row| row.get(0)).transpose()?)
    }

    /// Where a record is or was lately, for a write that names its rev or its fence.
    pub(super) fn guess(&mut self, key: &Key) -> Result<Option<i64>, Failure> {
        let place = self.shared.young.get(key).or_else(|| self.shared.places.get(key));
        if place.is_some() {
            return Ok(place);
        }
        let found = self.find_named(key)?;
        self.shared.places.note(found.map(|id| (key, id)).into_iter());
        Ok(found)
    }
}
