//! Fair choice among due jobs: higher priority first, and within one priority one tenant after the
//! other, so that a tenant with a long queue does not starve the others.
//!
//! What is chosen from is the page of due jobs that a take looks at, and, where the queue is longer
//! than that, jobs of other tenants that this process saw being made: a store lists by time, so
//! they may lie far behind. Whose turn came last is remembered per queue.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use onceward_core::batch::{Batch, Write};
use onceward_core::key::{Key, Kind};
use onceward_core::record::{Record, State};

use super::behind::Behind;

/// Queues that are remembered; beyond, the memory starts anew.
const QUEUES_MAX: usize = 10_000;
/// Tenants of a queue, and jobs of a tenant, whose making is remembered.
const TENANTS_MAX: usize = 1_000;
const KEYS_MAX: usize = 32;

/// Which tenant was served last, and which jobs were made, per queue.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    last: Mutex<HashMap<String, String>>,
    made: Mutex<HashMap<String, Made>>,
    /// Jobs whose turn has not come.
    pub(super) behind: Behind,
}

/// Jobs that were made and wait, the oldest of each tenant.
type Made = BTreeMap<String, VecDeque<Key>>;

impl Rounds {
    /// Notes the jobs that a committed batch has made, and forgets those that wait no more.
    pub(super) fn note(&self, batch: &Batch) {
        self.behind.committed(batch);
        for write in &batch.writes {
            match write {
                Write::Put(draft) if draft.record.key.kind() == Kind::Job => {
                    match draft.record.state {
                        State::Pending if draft.fresh => self.note_one(&draft.record.key),
                        State::Pending | State::Failed => {}
                        _ => self.forget(&draft.record.key),
                    }
                }
                Write::Delete(key) if key.kind() == Kind::Job => self.forget(key),
                _ => {}
            }
        }
    }

    fn note_one(&self, key: &Key) {
        let mut made = self.made();
        if !made.contains_key(key.scope_column()) {
            if made.len() >= QUEUES_MAX {
                made.clear();
            }
            made.insert(key.scope_column().to_string(), Made::new());
        }
        let Some(tenants) = made.get_mut(key.scope_column()) else { return };
        if let Some(keys) = tenants.get_mut(key.tenant_column()) {
            if keys.len() < KEYS_MAX {
                keys.push_back(key.clone());
            }
            return;
        }
        if tenants.len() >= TENANTS_MAX {
            // An empty line is kept for the tenant's next job, as long as nobody needs its place.
            tenants.retain(|_, line| !line.is_empty());
        }
        if tenants.len() < TENANTS_MAX {
            tenants.insert(key.tenant_column().to_string(), VecDeque::from([key.clone()]));
        }
    }

    /// Forgets a job that waits no more.
    pub(super) fn forget(&self, key: &Key) {
        let mut made = self.made();
        if let Some(line) =
            made.get_mut(key.scope_column()).and_then(|made| made.get_mut(key.tenant_column()))
            && let Some(place) = line.iter().position(|one| one == key)
        {
            line.remove(place);
        }
    }

    /// Jobs of tenants that a page of due jobs has none of, in turn, at most this many; of one
    /// tenant alone where it is named. Those that are told are at the end of their lines then, so
    /// that what nobody wants now does not hide the others.
    pub(super) fn passed_over(
        &self,
        queue_column: &str,
        of_tenant: Option<&str>,
        page: &[Record],
        most: usize,
    ) -> Vec<Key> {
        let mut made = self.made();
        let Some(tenants) = made.get_mut(queue_column) else { return Vec::new() };
        let there: HashSet<&str> = page.iter().map(|job| job.key.tenant_column()).collect();
        let wanted = |tenant: &str| {
            !there.contains(tenant) && of_tenant.is_none_or(|of_tenant| of_tenant == tenant)
        };
        let mut lines: Vec<_> = tenants
            .iter_mut()
            .filter(|(tenant, line)| !line.is_empty() && wanted(tenant))
            .map(|(_, line)| line)
            .collect();
        let mut keys = Vec::new();
        for place in 0..KEYS_MAX {
            let before = keys.len();
            keys.extend(
                lines.iter().filter_map(|line| line.get(place)).take(most - before).cloned(),
            );
            if keys.len() == before {
                break;
            }
        }
        for line in &mut lines {
            let told = line.iter().filter(|key| keys.contains(key)).count();
            line.rotate_left(told);
        }
        keys
    }

    /// Puts due jobs, sorted by priority, into the order in which they are to be taken.
    pub(super) fn order(&self, queue: &str, due: Vec<Record>) -> Vec<Record> {
        let mut tenants = due.iter().map(|record| record.key.tenant_column());
        let Some(first) = tenants.next() else { return due };
        if tenants.all(|tenant| tenant == first) {
            return due;
        }
        let last = self.locked().get(queue).cloned();
        let mut ordered = Vec::with_capacity(due.len());
        let mut due = due.into_iter().peekable();
        while let Some(priority) = due.peek().map(|record| record.priority) {
            let mut of: BTreeMap<String, VecDeque<Record>> = BTreeMap::new();
            while let Some(record) = due.next_if(|record| record.priority == priority) {
                let tenant = record.key.tenant_column().to_string();
                of.entry(tenant).or_default().push_back(record);
            }
            let names: Vec<&String> = of.keys().collect();
            let start = last.as_ref().map_or(0, |last| names.partition_point(|name| *name <= last));
            let mut lines: VecDeque<_> = of.into_values().collect();
            let count = lines.len();
            lines.rotate_left(start % count.max(1));
            while let Some(mut line) = lines.pop_front() {
                ordered.extend(line.pop_front());
                if !line.is_empty() {
                    lines.push_back(line);
                }
            }
        }
        ordered
    }

    /// Notes whose job was taken last.
    pub(super) fn served(&self, queue: &str, tenant: &str) {
        let mut last = self.locked();
        if let Some(of) = last.get_mut(queue) {
            if of != tenant {
                tenant.clone_into(of);
            }
            return;
        }
        if last.len() >= QUEUES_MAX {
            last.clear();
        }
        last.insert(queue.to_string(), tenant.to_string());
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward_core::decide::NewJob;
    use onceward_core::fingerprint::fingerprint_bytes;
    use onceward_core::key::{Key, Kind};
    use onceward_core::record::{Body, Draft, FenceWrite, Time};
    use onceward_core::stamp::Token;

    fn job(tenant: &str, id: &str, priority: u8) -> Record {
        let key = Key::within(Kind::Job, tenant, "q", &["t"], id).unwrap();
        let mut new = NewJob::new(key, fingerprint_bytes(b""), [].into());
        new.priority = priority;
        let step = onceward_core::decide::enqueue(
            &new,
            Token(1),
            &onceward_core::decide::Facts::default(),
        );
        let onceward_core::decide::Step::Commit(batch, _) = step else { panic!("not made") };
        let Write::Put(draft) = &batch.writes[0] else { panic!("no put") };
        draft.record.clone()
    }

    fn ids(records: &[Record]) -> Vec<String> {
        let text = |record: &Record| format!("{}{}", record.key.tenant(), record.key.id());
        records.iter().map(text).collect()
    }

    #[test]
    fn tenants_take_turns_within_a_priority() {
        let rounds = Rounds::default();
        let due = || {
            vec![
                job("a", "9", 5),
                job("a", "1", 0),
                job("a", "2", 0),
                job("a", "3", 0),
                job("b", "1", 0),
                job("c", "1", 0),
            ]
        };
        assert_eq!(ids(&rounds.order("q", due())), ["a9", "a1", "b1", "c1", "a2", "a3"]);
        rounds.served("q", "a");
        assert_eq!(ids(&rounds.order("q", due())), ["a9", "b1", "c1", "a1", "a2", "a3"]);
        rounds.served("q", "c");
        assert_eq!(ids(&rounds.order("q", due())), ["a9", "a1", "b1", "c1", "a2", "a3"]);
    }

    /// A batch that writes a job so.
    fn wrote(job: Record, fresh: bool) -> Batch {
        let mut batch = Batch::new(Token(1));
        batch.writes.push(Write::Put(Box::new(Draft {
            record: job,
            fence: FenceWrite::Keep,
            fresh,
            due: Time::Clear,
            expires: Time::Clear,
            sweep: Time::Clear,
            outcome: Body::Keep,
            payload: Body::Keep,
        })));
        batch
    }

    fn told(rounds: &Rounds, of_tenant: Option<&str>, page: &[Record]) -> Vec<String> {
        let keys = rounds.passed_over("q", of_tenant, page, 3);
        keys.iter().map(|key| format!("{}{}", key.tenant(), key.id())).collect()
    }

    #[test]
    fn what_waits_no_more_makes_room_for_what_is_made_later() {
        let rounds = Rounds::default();
        for number in 0..2 * KEYS_MAX {
            let mut one = job("small", &number.to_string(), 0);
            rounds.note(&wrote(one.clone(), true));
            one.state = State::Running;
            rounds.note(&wrote(one, false));
        }
        assert!(told(&rounds, None, &[]).is_empty());
        rounds.note(&wrote(job("small", "new", 0), true));
        assert_eq!(told(&rounds, None, &[job("big", "1", 0)]), ["smallnew"]);
    }

    #[test]
    fn who_is_told_of_others_jobs_takes_none_of_them_away() {
        let rounds = Rounds::default();
        for (tenant, id) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1")] {
            rounds.note(&wrote(job(tenant, id, 0), true));
        }
        let page = [job("big", "1", 0), job("c", "0", 0)];
        assert_eq!(told(&rounds, Some("big"), &page), [""; 0]);
        assert_eq!(told(&rounds, Some("b"), &page), ["b1"]);
        assert_eq!(told(&rounds, None, &page), ["a1", "b1", "a2"]);
        assert_eq!(told(&rounds, None, &page), ["a3", "b1", "a1"], "those that were told are last");
        rounds.forget(&job("a", "3", 0).key);
        assert_eq!(told(&rounds, Some("a"), &page), ["a2", "a1"]);
    }
}
