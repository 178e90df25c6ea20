//! The window: events that were read and are not final yet, each aggregate in its own lane.
//!
//! Rule: the lowest number of a lane goes first and one at a time; lanes go side by side. The
//! frontier is the last place before which everything is final: what waits holds it back, by name.
//! Pure: time is an argument.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::events::{Event, Place};

/// Names an entry of the window.
pub(super) type Ticket = u64;

type Name = Arc<(String, String)>;

/// Events on their way.
#[derive(Default)]
pub(super) struct Window {
    entries: VecDeque<Entry>,
    /// The ticket of the first entry.
    first: Ticket,
    frontier: Option<Place>,
    finished: u64,
    /// Events of the log up to the frontier.
    passed: u64,
    lanes: HashMap<Name, Lane>,
    ready: VecDeque<Name>,
    timers: BinaryHeap<Reverse<(Instant, u64, TimerName)>>,
    timers_made: u64,
}

struct Entry {
    name: Name,
    /// None: it came from elsewhere than the log, such as the spool.
    place: Option<Place>,
    finished: bool,
    event: Arc<Event>,
    /// What it waits for, in words.
    waits: Option<String>,
}

#[derive(Default)]
struct Lane {
    waiting: BTreeMap<(u64, Ticket), Arc<Event>>,
    running: bool,
    ready: bool,
    /// The lane's lowest one waits until then; the number tells a timer that was overtaken.
    timer: Option<u64>,
}

/// A lane's name in the heap: not compared.
struct TimerName(Name);

impl PartialEq for TimerName {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for TimerName {}
impl PartialOrd for TimerName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TimerName {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Window {
    /// Events that are not past the frontier.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an event that was read.
    pub(super) fn add(&mut self, place: Option<Place>, event: Arc<Event>) -> Ticket {
        let ticket = self.first + self.entries.len() as u64;
        let name: Name = Arc::new((event.tenant.clone(), event.aggregate_id.clone()));
        let entry =
            Entry { name: name.clone(), place, finished: false, event: event.clone(), waits: None };
        self.entries.push_back(entry);
        self.put(&name, ticket, event);
        ticket
    }

    /// The next event that may run.
    pub(super) fn next(&mut self) -> Option<(Ticket, Arc<Event>)> {
        while let Some(name) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            lane.ready = false;
            if lane.running {
                continue;
            }
            let Some(((_, ticket), event)) = lane.waiting.pop_first() else { continue };
            lane.running = true;
            lane.timer = None;
            return Some((ticket, event));
        }
        None
    }

    /// An event is final.
    pub(super) fn finish(&mut self, ticket: Ticket) {
        let Some(entry) = self.entry(ticket) else { return };
        entry.finished = true;
        let name = entry.name.clone();
        self.finished += 1;
        self.leave(&name);
        while self.entries.front().is_some_and(|entry| entry.finished) {
            let place = self.entries.pop_front().and_then(|entry| entry.place);
            self.first += 1;
            self.passed += u64::from(place.is_some());
            self.frontier = place.or(self.frontier);
        }
    }

    /// An event has to wait until `at`, for what `waits` says.
    pub(super) fn again(&mut self, ticket: Ticket, at: Instant, waits: String) {
        let Some(entry) = self.entry(ticket) else { return };
        entry.waits = Some(waits);
        let (event, name) = (entry.event.clone(), entry.name.clone());
        self.timers_made += 1;
        let number = self.timers_made;
        let lane = self.lanes.entry(name.clone()).or_default();
        lane.running = false;
        let lower = lane.waiting.keys().next().is_some_and(|(low, _)| *low < event.sequence_number);
        lane.waiting.insert((event.sequence_number, ticket), event);
        if lower {
            // A lower number came meanwhile: it is what this one waits for.
            self.make_ready(&name);
            return;
        }
        lane.timer = Some(number);
        self.timers.push(Reverse((at, number, TimerName(name))));
    }

    /// Wakes lanes whose time has come; says when the next one's does.
    pub(super) fn wake(&mut self, now: Instant) -> Option<Instant> {
        while let Some(Reverse((at, number, _))) = self.timers.peek() {
            let (at, number) = (*at, *number);
            let Some(Reverse((_, _, TimerName(name)))) = self.timers.pop() else { break };
            if self.lanes.get(&name).is_none_or(|lane| lane.timer != Some(number)) {
                continue;
            }
            if at > now {
                self.timers.push(Reverse((at, number, TimerName(name))));
                return Some(at);
            }
            if let Some(lane) = self.lanes.get_mut(&name) {
                lane.timer = None;
            }
            self.make_ready(&name);
        }
        None
    }

    /// The last place before which everything is final.
    pub(super) fn frontier(&self) -> Option<Place> {
        self.frontier
    }

    /// The event of a ticket.
    pub(super) fn event(&mut self, ticket: Ticket) -> Option<Arc<Event>> {
        self.entry(ticket).map(|entry| entry.event.clone())
    }

    /// Events of the log up to the frontier: those behind it come again after a crash.
    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// Events that became final.
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// What holds the frontier back, in words, if it waits for something.
    pub(super) fn held_by(&self) -> Option<String> {
        let entry = self.entries.front()?;
        let waits = entry.waits.as_deref()?;
        let Event { event_id, aggregate_id, sequence_number, .. } = &*entry.event;
        Some(format!("event {event_id} ({aggregate_id:?} number {sequence_number}): {waits}"))
    }

    fn put(&mut self, name: &Name, ticket: Ticket, event: Arc<Event>) {
        let lane = self.lanes.entry(name.clone()).or_default();
        let lowest = lane.waiting.keys().next().is_none_or(|(low, _)| event.sequence_number < *low);
        lane.waiting.insert((event.sequence_number, ticket), event);
        // What waits behind a timer goes on waiting, unless this is what it waited for.
        if lane.timer.is_none() || lowest {
            lane.timer = None;
            self.make_ready(name);
        }
    }

    fn make_ready(&mut self, name: &Name) {
        if let Some(lane) = self.lanes.get_mut(name)
            && !lane.running
            && !lane.ready
            && !lane.waiting.is_empty()
        {
            lane.ready = true;
            self.ready.push_back(name.clone());
        }
    }

    fn leave(&mut self, name: &Name) {
        let Some(lane) = self.lanes.get_mut(name) else { return };
        lane.running = false;
        if lane.waiting.is_empty() {
            self.lanes.remove(name);
        } else {
            lane.timer = None;
            self.make_ready(name);
        }
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let index = ticket.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event(aggregate: &str, number: u64) -> Arc<Event> {
        Arc::new(Event {
            tenant: "acme".into(),
            aggregate_id: aggregate.into(),
            event_id: format!("{aggregate}{number}"),
            sequence_number: number,
            kind: "update".into(),
            payload: bytes::Bytes::new(),
            correlation_id: None,
        })
    }

    fn place(offset: u32) -> Option<Place> {
        Some(Place { segment: 1, offset })
    }

    #[test]
    fn lanes_go_side_by_side_and_the_frontier_waits_for_the_first() {
        let mut window = Window::default();
        for (offset, (aggregate, number)) in [("a", 1), ("b", 1), ("a", 2)].iter().enumerate() {
            window.add(place(offset as u32), event(aggregate, *number));
        }
        let (a1, _) = window.next().unwrap();
        let (b1, _) = window.next().unwrap();
        assert!(window.next().is_none(), "a2 waits for a1");
        window.finish(b1);
        assert_eq!((window.frontier(), window.passed(), window.finished()), (None, 0, 1));
        window.finish(a1);
        assert_eq!((window.frontier(), window.passed()), (place(1), 2));
        let (a2, next) = window.next().unwrap();
        assert_eq!(next.event_id, "a2");
        window.finish(a2);
        assert_eq!((window.frontier(), window.len(), window.finished()), (place(2), 0, 3));
    }

    #[test]
    fn c10_a_number_that_came_too_early_waits_for_the_lower_one() {
        let mut window = Window::default();
        let now = Instant::now();
        let a2 = window.add(place(0), event("a", 2));
        assert_eq!(window.next().unwrap().0, a2);
        window.again(a2, now + Duration::from_secs(9), "number 1 is missing".into());
        assert!(window.next().is_none());
        assert!(window.held_by().unwrap().contains("number 1 is missing"));
        let a1 = window.add(place(1), event("a", 1));
        assert_eq!(window.next().unwrap().0, a1, "the lower one wakes the lane");
        window.finish(a1);
        assert_eq!(window.next().unwrap().0, a2, "and then the higher one's time has come");
        window.finish(a2);
        assert_eq!(window.frontier(), place(1));
    }

    #[test]
    fn a_lane_that_waits_is_woken_by_its_time_and_not_by_what_comes_behind() {
        let mut window = Window::default();
        let now = Instant::now();
        let a1 = window.add(place(0), event("a", 1));
        window.next().unwrap();
        window.again(a1, now + Duration::from_secs(1), "it failed".into());
        window.add(place(1), event("a", 2));
        assert!(window.next().is_none());
        assert_eq!(window.wake(now), Some(now + Duration::from_secs(1)));
        assert!(window.next().is_none());
        assert_eq!(window.wake(now + Duration::from_secs(1)), None);
        assert_eq!(window.next().unwrap().0, a1);
    }
}
