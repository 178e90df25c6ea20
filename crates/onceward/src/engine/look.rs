//! Looking without touching: records, marks, lists, audit.

use onceward_core::key::{Key, Subject};
use onceward_core::record::Mark;

use super::{Engine, EngineError};
use crate::store::{Cursor, Fact, Found, List, Page, Read, StoreError};

/// Items of one page at most.
pub(super) const PAGE_MAX: usize = 1_000;

impl Engine {
    /// A record with its outcome and what is kept of its payload.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn look(&self, key: &Key) -> Result<Option<Found>, EngineError> {
        let read = Read::Record { key: key.clone(), payload: true };
        match self.0.store.load(vec![read]).await?.facts.pop() {
            Some(Fact::Record(found)) => Ok(found),
            _ => Err(StoreError::Corrupt("the store answered another read".into()).into()),
        }
    }

    /// A mark, with its value if it is a document.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn mark(&self, subject: &Subject) -> Result<Option<Mark>, EngineError> {
        match self.0.store.load(vec![Read::Mark(subject.clone())]).await?.facts.pop() {
            Some(Fact::Mark(mark)) => Ok(mark),
            _ => Err(StoreError::Corrupt("the store answered another read".into()).into()),
        }
    }

    /// A page of a list.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn list(
        &self,
        what: List,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, EngineError> {
        Ok(self.0.store.list(what, after, limit.clamp(1, PAGE_MAX)).await?)
    }
}
