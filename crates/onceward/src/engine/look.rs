//! Looking without touching: records, marks, lists, audit.

use std::time::Instant;

use onceward_core::key::{Key, Subject};
use onceward_core::record::Mark;
use onceward_core::stamp::At;

use super::{Engine, EngineError};
use crate::store::{Cursor, Fact, Found, List, Loaded, Page, Read, StoreError};

/// Items of one page at most.
pub(super) const PAGE_MAX: usize = 1_000;

impl Engine {
    /// The store's instant.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn now(&self) -> Result<At, EngineError> {
        Ok(self.0.store.load(Vec::new()).await?.now)
    }

    /// A record with its outcome and what is kept of its payload.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn look(&self, key: &Key) -> Result<Option<Found>, EngineError> {
        Ok(self.look_at(key).await?.1)
    }

    /// [`Engine::look`], with the store's instant of the look.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn look_at(&self, key: &Key) -> Result<(At, Option<Found>), EngineError> {
        let read = Read::Record { key: key.clone(), payload: true };
        let mut loaded = self.loaded(read).await?;
        match loaded.facts.pop() {
            Some(Fact::Record(found)) => Ok((loaded.now, found)),
            _ => Err(StoreError::Corrupt("the store answered another read".into()).into()),
        }
    }

    /// A mark, with its value if it is a document.
    ///
    /// # Errors
    /// When the store gives no answer.
    pub async fn mark(&self, subject: &Subject) -> Result<Option<Mark>, EngineError> {
        match self.loaded(Read::Mark(subject.clone())).await?.facts.pop() {
            Some(Fact::Mark(mark)) => Ok(mark),
            _ => Err(StoreError::Corrupt("the store answered another read".into()).into()),
        }
    }

    async fn loaded(&self, read: Read) -> Result<Loaded, EngineError> {
        let asked = Instant::now();
        let loaded = self.0.store.load(vec![read]).await?;
        self.0.heard.note(asked, loaded.now);
        Ok(loaded)
    }

    /// About what instant the store's clock shows, from what it last said: no earlier than it does,
    /// and later by no more than that answer took to come. `None` before the first answer.
    #[must_use]
    pub fn now_about(&self) -> Option<At> {
        self.0.heard.now()
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
