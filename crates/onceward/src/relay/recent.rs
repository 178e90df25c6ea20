//! Ids of events that were published lately: best effort against sending one again.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::events::Event;

/// A tenant and an id.
pub(super) type Id = Arc<(String, String)>;

/// The last ids, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent {
    known: HashSet<Id>,
    order: VecDeque<Id>,
    most: usize,
}

impl Recent {
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub(super) fn has(&self, event: &Event) -> bool {
        !self.known.is_empty() && self.known.contains(&id_of(event))
    }

    pub(super) fn add(&mut self, event: &Event) {
        self.add_id(id_of(event));
    }

    pub(super) fn add_id(&mut self, id: Id) {
        if self.most == 0 || !self.known.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        while self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// The last `most` of them, the oldest first.
    pub(super) fn last(&self, most: usize) -> impl Iterator<Item = &Id> {
        self.order.iter().skip(self.order.len().saturating_sub(most))
    }
}

fn id_of(event: &Event) -> Id {
    Arc::new((event.tenant.clone(), event.event_id.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c07_the_oldest_ids_are_forgotten_first() {
        let id = |n: u64| Arc::new(("acme".to_owned(), n.to_string()));
        let mut recent = Recent::new(3);
        for n in [1, 2, 3, 2, 4] {
            recent.add_id(id(n));
        }
        let kept: Vec<_> = recent.last(9).map(|id| id.1.clone()).collect();
        assert_eq!(kept, ["2", "3", "4"]);
        assert_eq!(recent.last(1).count(), 1);
        let mut none = Recent::new(0);
        none.add_id(id(1));
        assert_eq!(none.last(9).count(), 0);
    }
}
