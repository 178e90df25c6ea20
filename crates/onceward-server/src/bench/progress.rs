//! Progress of a bench: what is measured now, on standard error, when people watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Out;

/// A bar, or nothing when nobody watches.
#[derive(Debug, Clone)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar, if people watch.
    pub(crate) fn new(out: &Out) -> Self {
        if !out.shows_progress() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(0);
        let template = "{spinner} {elapsed} {msg:40} {wide_bar} {pos}/{len}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// A part begins that has this many steps.
    pub(crate) fn part(&self, name: &str, steps: u64) {
        self.0.set_length(steps);
        self.0.set_position(0);
        self.0.set_message(name.to_string());
    }

    /// One step is done.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Counts steps that many tasks do at once.
    pub(crate) fn counter(&self) -> impl Fn(u64) + Send + Sync + 'static + use<> {
        let (bar, done) = (self.0.clone(), Arc::new(AtomicU64::new(0)));
        move |_| {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            // The bar has a lock: not for every record.
            if done.is_multiple_of(1_024) {
                bar.set_position(done);
            }
        }
    }

    /// Everything is done.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
