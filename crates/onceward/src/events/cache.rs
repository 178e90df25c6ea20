//! Segments that were read or written lately, up to a number of bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::segment::Segment;

/// The cache. Segments never change, so nothing is ever out of date.
#[derive(Debug)]
pub(super) struct Cache {
    inner: Mutex<Inner>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    segments: HashMap<u64, Arc<Segment>>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { inner: Mutex::default(), bytes_max }
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<Segment>> {
        self.locked().segments.get(&number).cloned()
    }

    /// Keeps a segment, and lets the oldest go.
    pub(super) fn keep(&self, segment: &Arc<Segment>) {
        let mut inner = self.locked();
        if inner.segments.insert(segment.number, segment.clone()).is_some() {
            return;
        }
        inner.order.push_back(segment.number);
        inner.bytes += segment.bytes;
        while inner.bytes > self.bytes_max && inner.order.len() > 1 {
            let Some(oldest) = inner.order.pop_front() else { break };
            if let Some(gone) = inner.segments.remove(&oldest) {
                inner.bytes -= gone.bytes;
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
