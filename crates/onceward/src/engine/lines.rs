//! Who may go: batches wait in line at every row that they touch, and go when they are first at
//! all of them.
//!
//! A batch that goes keeps its places until it is finished, so no two that are under way touch the
//! same row. Order is kept per row, and a long line at one row costs the others nothing: nothing is
//! ever searched. Rows are hashes; a collision only makes someone wait.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Spreads numbers that nobody chose: rows are hashes already, tickets are counted.
#[derive(Default)]
pub(super) struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Numbered<T> = HashMap<u64, T, BuildHasherDefault<Same>>;

/// The line at one row: whoever is first, and those behind.
#[derive(Debug)]
struct Line {
    first: u64,
    behind: VecDeque<u64>,
}

/// One who waits: for how many rows he is not first yet.
#[derive(Debug)]
struct Waiter<T> {
    item: T,
    rows: Vec<u64>,
    missing: usize,
}

/// The lines at all rows.
#[derive(Debug)]
pub(super) struct Lines<T> {
    lines: Numbered<Line>,
    waiting: Numbered<Waiter<T>>,
    ready: VecDeque<(T, Vec<u64>)>,
    next: u64,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self {
            lines: HashMap::default(),
            waiting: HashMap::default(),
            ready: VecDeque::new(),
            next: 0,
        }
    }
}

impl<T> Lines<T> {
    /// Queues up at these rows, each named once.
    pub(super) fn push(&mut self, item: T, rows: Vec<u64>) {
        let ticket = self.next;
        self.next = self.next.wrapping_add(1);
        let mut missing = 0;
        for row in &rows {
            match self.lines.get_mut(row) {
                Some(line) => {
                    line.behind.push_back(ticket);
                    missing += 1;
                }
                None => {
                    self.lines.insert(*row, Line { first: ticket, behind: VecDeque::new() });
                }
            }
        }
        if missing == 0 {
            self.ready.push_back((item, rows));
        } else {
            self.waiting.insert(ticket, Waiter { item, rows, missing });
        }
    }

    /// Takes one who may go. It keeps its places until [`Lines::leave`].
    pub(super) fn pop(&mut self) -> Option<(T, Vec<u64>)> {
        self.ready.pop_front()
    }

    /// Gives up the places at these rows; those who are first then may go.
    pub(super) fn leave(&mut self, rows: &[u64]) {
        for row in rows {
            let Some(line) = self.lines.get_mut(row) else { continue };
            let Some(next) = line.behind.pop_front() else {
                self.lines.remove(row);
                continue;
            };
            line.first = next;
            let Some(waiter) = self.waiting.get_mut(&next) else { continue };
            waiter.missing -= 1;
            if waiter.missing == 0
                && let Some(waiter) = self.waiting.remove(&next)
            {
                self.ready.push_back((waiter.item, waiter.rows));
            }
        }
    }

    /// How many may go.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// How many wait, those who may go included.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.ready.len()
    }

    /// Whether someone may go.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends everyone who waits away.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_per_row_and_others_pass() {
        let mut lines = Lines::default();
        lines.push("a1", vec![1]);
        lines.push("a2", vec![1]);
        lines.push("ab", vec![1, 2]);
        lines.push("b", vec![2]);
        lines.push("c", vec![3]);
        let (first, rows) = lines.pop().unwrap();
        assert_eq!(first, "a1");
        assert_eq!(lines.pop().unwrap().0, "c", "another row's");
        assert!(lines.pop().is_none(), "b must not overtake ab at row 2");
        assert_eq!(lines.len(), 3);
        lines.leave(&rows);
        let (second, rows) = lines.pop().unwrap();
        assert_eq!(second, "a2");
        lines.leave(&rows);
        let (both, rows) = lines.pop().unwrap();
        assert_eq!(both, "ab");
        assert!(lines.pop().is_none());
        lines.leave(&rows);
        assert_eq!(lines.pop().unwrap().0, "b");
        lines.leave(&[2]);
        lines.leave(&[3]);
        assert!(lines.is_empty() && lines.lines.is_empty());
    }

    #[test]
    fn a_long_line_at_one_row_hides_nobody() {
        let mut lines = Lines::default();
        for number in 0..100_000 {
            lines.push(number, vec![1]);
        }
        lines.push(-1, vec![2]);
        assert_eq!(lines.pop().unwrap().0, 0);
        assert_eq!(lines.pop().unwrap().0, -1);
    }
}
