//! What is wrong with what a mutant answers.

use onceward::core::batch::{Answer, There};
use onceward::core::stamp::Rev;
use onceward::store::{Cursor, Fact, Items, List, Loaded, Page, Store, StoreError};

use super::requests::passes_for_deleted;
use super::{Mutant, Mutation};

/// A rev that falls where it should rise; applied twice it is the rev again.
pub(super) fn fallen(rev: Rev) -> Rev {
    Rev(u64::from(u32::MAX).wrapping_sub(rev.0))
}

impl Mutant {
    pub(super) fn answer(&self, answer: &mut Answer) {
        match (self.mutation, answer) {
            (Mutation::AgainAlways, Answer::Applied(applied)) => applied.again = true,
            (Mutation::AgainNotTold, Answer::Applied(applied)) => applied.again = false,
            (Mutation::AgainWithoutStamps, Answer::Applied(applied)) if applied.again => {
                applied.first = None;
            }
            (Mutation::RevsFall, Answer::Applied(applied)) => {
                applied.first = applied.first.map(|(rev, fence)| (fallen(rev), fence));
            }
            (Mutation::NowOfLastCommit, Answer::Applied(applied)) => {
                std::mem::swap(&mut *self.last_now.lock().unwrap(), &mut applied.now);
            }
            (Mutation::OneFailureNamed, Answer::Refused(refused)) => refused.failed.truncate(1),
            (Mutation::RefusalWithoutOutcome, Answer::Refused(refused)) => {
                for (_, there) in &mut refused.failed {
                    if let There::Record(Some(stored)) = there {
                        stored.outcome = None;
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) fn loaded(&self, loaded: &mut Loaded) {
        match self.mutation {
            Mutation::FactsReversed => loaded.facts.reverse(),
            Mutation::DeleteKeepsBodies => {
                for fact in &mut loaded.facts {
                    if passes_for_deleted(fact) {
                        *fact = Fact::Record(None);
                    }
                }
            }
            Mutation::RevsFall => {
                for fact in &mut loaded.facts {
                    if let Fact::Record(Some(found)) = fact {
                        found.stored.record.rev = fallen(found.stored.record.rev);
                    }
                }
            }
            _ => {}
        }
    }

    pub(super) async fn listed(
        &self,
        mut what: List,
        mut after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.check_open()?;
        let mut prefix_folded = None;
        match (self.mutation, &mut what) {
            (Mutation::StateNotFiltered, List::Records { state, .. }) => *state = None,
            (Mutation::PrefixFoldsCase, List::Marks { prefix, .. }) => {
                prefix_folded = Some(std::mem::take(prefix).to_lowercase());
            }
            (Mutation::AuditEndIncluded, List::Audit(filter)) => {
                filter.to = filter.to.map(|to| to.plus(1));
            }
            (Mutation::AuditHashNotFiltered, List::Audit(filter)) => filter.key_hash = None,
            _ => {}
        }
        if self.is(Mutation::CursorFollowsRecord) {
            let ends = self.ends.lock().unwrap();
            let state = self.inner.snapshot();
            after = after
                .filter(|cursor| ends.get(&cursor.0).is_none_or(|key| state.record(key).is_some()));
        }
        let follows = after.is_some();
        let mut listed = self.inner.list(what.clone(), after, limit).await;
        if let (Err(StoreError::Invalid(_)), Mutation::BadCursorStartsAgain) =
            (&listed, self.mutation)
        {
            listed = self.inner.list(what.clone(), None, limit).await;
        }
        let mut page = listed?;
        if let (Items::Records(records), Some(next)) = (&page.items, &page.next)
            && let Some(last) = records.last()
        {
            self.ends.lock().unwrap().insert(next.0.clone(), last.key.clone());
        }
        if let (Items::Marks(marks), Some(prefix)) = (&mut page.items, prefix_folded) {
            let fits = |name: &str| name.to_lowercase().starts_with(&prefix);
            marks.retain(|(subject, _)| fits(subject.name_column()));
        }
        self.page(&what, follows, &mut page);
        if self.is(Mutation::EmptyListFails) && is_empty(&page.items) {
            return Err(StoreError::NotApplied("an empty list".into()));
        }
        Ok(page)
    }

    fn page(&self, what: &List, follows: bool, page: &mut Page) {
        match (self.mutation, &mut page.items) {
            (Mutation::NextAfterTheLast, Items::Audit(entries)) if page.next.is_none() => {
                page.next = entries.last().map(|last| Cursor(last.id.to_string()));
            }
            (Mutation::NextAfterTheLast, Items::Records(records)) if page.next.is_none() => {
                if let List::Records { .. } = what {
                    page.next = records.last().map(|last| Cursor(last.key.to_string()));
                }
            }
            (Mutation::PageSkipsOne, Items::Records(records)) if follows && records.len() > 1 => {
                records.remove(0);
            }
            (Mutation::NewestNotListed, Items::Records(records)) => {
                let newest = self.inner.snapshot().records().map(|record| record.rev).max();
                records.retain(|record| Some(record.rev) != newest);
            }
            (Mutation::RecordsReversed, Items::Records(records)) => records.reverse(),
            (Mutation::DueByKey, Items::Records(records)) => {
                if let List::Due { .. } = what {
                    records.sort_by(|a, b| a.key.cmp(&b.key));
                }
            }
            (Mutation::DueIsLate, Items::Records(records)) => {
                if let List::Due { .. } = what {
                    records.retain(|record| record.due_at != Some(page.now));
                }
            }
            (Mutation::RevsFall, Items::Records(records)) => {
                for record in records {
                    record.rev = fallen(record.rev);
                }
            }
            (Mutation::MarksReversed, Items::Marks(marks)) => marks.reverse(),
            (Mutation::SettledReversed, Items::Settled(entries)) => entries.reverse(),
            (Mutation::AuditLosesDetail, Items::Audit(entries)) => {
                for audited in entries {
                    audited.entry.detail = None;
                }
            }
            _ => {}
        }
    }
}

fn is_empty(items: &Items) -> bool {
    match items {
        Items::Records(items) => items.is_empty(),
        Items::Marks(items) => items.is_empty(),
        Items::Audit(items) => items.is_empty(),
        Items::Settled(items) => items.is_empty(),
    }
}
