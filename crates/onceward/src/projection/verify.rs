//! Proof that a view is the fold of its log: folded anew from zero, in memory, and compared.
//!
//! The view may move on meanwhile: what differs is folded further and compared again, until the
//! view has come to rest there or the difference stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use onceward_core::key::Subject;

use super::fold::Folded;
use super::project::{Projection, ProjectionError};
use super::view::{Entry, entry_of};
use crate::events::{Event, Place};
use crate::handlers::order_space;
use crate::relay::Log;

/// Events of one read.
const READ: usize = 2_000;
/// Differences that are named.
const NAMED_MAX: usize = 20;
/// How often what differs is looked at again, and the pause between two looks.
const LOOKS_MAX: usize = 20;
const LOOK_PAUSE: Duration = Duration::from_millis(150);

/// A document that is not what the log makes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Whose.
    pub tenant: String,
    /// Which.
    pub id: String,
    /// What is wrong, in words; no contents.
    pub what: String,
}

/// What a verification came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// The generation that was looked at.
    pub generation: u64,
    /// Events that were folded: those up to the view's offset.
    pub events: u64,
    /// Events of the log that lie behind it. What a view has handled of an aggregate there is
    /// compared too; the offset itself moves only now and then.
    pub ahead: u64,
    /// Documents that were compared, deleted ones included.
    pub documents: u64,
    /// How many of them differ.
    pub different: u64,
    /// The first of those.
    pub differences: Vec<Difference>,
}

impl Verified {
    /// Whether the view is what the log makes of it.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.different == 0
    }
}

type Name = (String, String);

/// What the log makes of the documents.
#[derive(Default)]
struct Folding {
    at: Place,
    events: u64,
    /// The last number of each aggregate and its document, as the fold left it.
    known: BTreeMap<Name, (u64, Option<Entry>)>,
}

impl Projection {
    /// Folds the log from zero and compares with the live generation. `tell` hears how many events
    /// were folded.
    ///
    /// # Errors
    /// When something gives no answer.
    pub async fn verify(
        &self,
        log: &Arc<dyn Log>,
        mut tell: impl FnMut(u64),
    ) -> Result<Verified, ProjectionError> {
        let generation = self.generation().await?.live;
        let mut folding = Folding::default();
        self.fold_to(log, &mut folding, self.place().await?, &mut tell).await?;
        let mut different = self.compare_all(generation, &folding).await?;
        let (behind, count) = self.behind(log, folding.at).await?;
        let known = folding.events + count;
        for name in &behind {
            // What is behind the offset may be in the view already: not compared yet.
            different.entry(name.clone()).or_default();
        }
        for _ in 0..LOOKS_MAX {
            if different.is_empty() || self.generation().await?.live != generation {
                break;
            }
            // sleeps because what is under way in the view is recorded elsewhere
            tokio::time::sleep(LOOK_PAUSE).await;
            let place = self.place().await?;
            self.fold_to(log, &mut folding, place, &mut tell).await?;
            let mut still = BTreeMap::new();
            for name in different.into_keys() {
                if let Some(what) = self.differs(generation, &folding, &name).await? {
                    still.insert(name, what);
                }
            }
            different = still;
        }
        if !different.is_empty() {
            different = self.compare_ahead(generation, log, different.into_keys()).await?;
        }
        let named = different.iter().take(NAMED_MAX).map(|((tenant, id), what)| Difference {
            tenant: tenant.clone(),
            id: id.clone(),
            what: what.clone(),
        });
        Ok(Verified {
            generation,
            events: folding.events,
            ahead: known.saturating_sub(folding.events),
            documents: folding.known.keys().chain(&behind).collect::<BTreeSet<_>>().len() as u64,
            different: different.len() as u64,
            differences: named.collect(),
        })
    }

    async fn fold_to(
        &self,
        log: &Arc<dyn Log>,
        folding: &mut Folding,
        to: Place,
        tell: &mut impl FnMut(u64),
    ) -> Result<(), ProjectionError> {
        while folding.at < to {
            let events = log.read_after(folding.at, READ).await?;
            if events.is_empty() {
                break;
            }
            for (place, event) in events {
                if place > to {
                    return Ok(());
                }
                folding.at = place;
                folding.events += 1;
                self.fold_one(folding, &event);
            }
            tell(folding.events);
        }
        Ok(())
    }

    fn fold_one(&self, folding: &mut Folding, event: &Event) {
        let name = (event.tenant.clone(), event.aggregate_id.clone());
        let (number, entry) = folding.known.entry(name).or_default();
        if event.sequence_number <= *number {
            return;
        }
        *number = event.sequence_number;
        let before = entry.as_ref().and_then(|entry| entry.body.as_deref());
        // What makes no sense is a dead letter, and has no part in the view.
        let folded = self.fold.fold(event, before).unwrap_or(Folded::Keep);
        if let Some(next) = entry_of(event, folded) {
            *entry = Some(next);
        }
    }

    /// Whose events lie behind a place, and how many they are.
    async fn behind(
        &self,
        log: &Arc<dyn Log>,
        mut after: Place,
    ) -> Result<(BTreeSet<Name>, u64), ProjectionError> {
        let (mut names, mut count) = (BTreeSet::new(), 0);
        loop {
            let events = log.read_after(after, READ).await?;
            let Some((last, _)) = events.last() else { return Ok((names, count)) };
            after = *last;
            count += events.len() as u64;
            names.extend(events.into_iter().map(|(_, event)| (event.tenant, event.aggregate_id)));
        }
    }

    /// Compares documents that are not as the log is at the offset with the log as far as each was
    /// handled: what an event holds back is the offset and its own aggregate, and the others go on.
    async fn compare_ahead(
        &self,
        generation: u64,
        log: &Arc<dyn Log>,
        names: impl Iterator<Item = Name>,
    ) -> Result<BTreeMap<Name, String>, ProjectionError> {
        let space = order_space(&self.handler_name(generation));
        let mut handled = BTreeMap::new();
        for name in names {
            let mark = self.engine.mark(&Subject::new(&name.0, &space, &name.1)?).await?;
            let there = self.view.get(generation, &name.0, &name.1).await?;
            let recorded = mark.map_or(0, |mark| mark.position);
            // A view elsewhere is written before that is recorded.
            let number = recorded.max(there.as_ref().map_or(0, |there| there.version));
            handled.insert(name, (number, there));
        }
        let mut folding = Folding::default();
        loop {
            let events = log.read_after(folding.at, READ).await?;
            let Some((last, _)) = events.last() else { break };
            folding.at = *last;
            for (_, event) in &events {
                let name = (event.tenant.clone(), event.aggregate_id.clone());
                if handled.get(&name).is_some_and(|(number, _)| event.sequence_number <= *number) {
                    self.fold_one(&mut folding, event);
                }
            }
        }
        // As they were then: by now they may have moved on.
        let different = handled.into_iter().filter_map(|(name, (_, there))| {
            let what = difference(folding.entry(&name), there.as_ref())?;
            Some((name, what))
        });
        Ok(different.collect())
    }

    async fn compare_all(
        &self,
        generation: u64,
        folding: &Folding,
    ) -> Result<BTreeMap<Name, String>, ProjectionError> {
        let mut different = BTreeMap::new();
        for name in folding.known.keys() {
            if let Some(what) = self.differs(generation, folding, name).await? {
                different.insert(name.clone(), what);
            }
        }
        let tenants: BTreeSet<&String> = folding.known.keys().map(|(tenant, _)| tenant).collect();
        for tenant in tenants {
            let mut after = None;
            loop {
                let (ids, next) = self.view.ids(generation, tenant, after).await?;
                for id in ids {
                    let name = (tenant.clone(), id);
                    if !folding.known.contains_key(&name) {
                        different.insert(name, "it is in no event".to_owned());
                    }
                }
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(different)
    }

    /// What is wrong with a document, if anything.
    async fn differs(
        &self,
        generation: u64,
        folding: &Folding,
        name: &Name,
    ) -> Result<Option<String>, ProjectionError> {
        let there = self.view.get(generation, &name.0, &name.1).await?;
        Ok(difference(folding.entry(name), there.as_ref()))
    }
}

impl Folding {
    /// The document as the fold left it.
    fn entry(&self, name: &Name) -> Option<&Entry> {
        self.known.get(name).and_then(|(_, entry)| entry.as_ref())
    }
}

/// What is wrong with a document, if anything, in words.
fn difference(wanted: Option<&Entry>, there: Option<&Entry>) -> Option<String> {
    let shows = |entry: &Entry| match &entry.body {
        Some(_) => format!("version {}", entry.version),
        None => format!("deleted at version {}", entry.version),
    };
    match (wanted, there) {
        (None, None) => None,
        (Some(wanted), Some(there)) if wanted == there => None,
        (Some(wanted), Some(there)) if shows(wanted) == shows(there) => {
            Some(format!("{} has another content", shows(there)))
        }
        (Some(wanted), Some(there)) => {
            Some(format!("it is {}, the log makes it {}", shows(there), shows(wanted)))
        }
        (Some(wanted), None) => Some(format!("it is missing, the log makes it {}", shows(wanted))),
        (None, Some(there)) => Some(format!("it is {}, the log makes none", shows(there))),
    }
}
