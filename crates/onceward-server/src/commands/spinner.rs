//! A spinner for work that takes a while: people see that it goes on, programs see nothing.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Out;

/// How long work may take before it shows that it goes on.
const QUIET_FOR: Duration = Duration::from_secs(1);

/// Appears on standard error once the work has taken longer than [`QUIET_FOR`].
pub(crate) struct Spinner {
    started: Instant,
    allowed: bool,
    shown: Option<ProgressBar>,
}

impl Spinner {
    /// Nothing to see yet.
    pub(crate) fn new(out: &Out) -> Self {
        Self { started: Instant::now(), allowed: out.shows_progress(), shown: None }
    }

    /// Tells how far the work is.
    pub(crate) fn show(&mut self, told: impl FnOnce() -> String) {
        if !self.allowed || self.started.elapsed() < QUIET_FOR {
            return;
        }
        let bar = self.shown.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}  {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        bar.set_message(told());
    }

    /// Takes it away.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
