//! `onceward sweep`: drops what is past its time, and shows how far it is when that takes a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use onceward::engine::SweepReport;
use serde_json::json;

use super::writing;
use crate::cache::{self, SharedCache};
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;

/// How long a sweep may take before it shows that it is at work.
const QUIET_FOR: Duration = Duration::from_secs(1);

/// Sweeps the store.
pub(crate) async fn sweep(
    url: &StoreUrl,
    cache: Option<&SharedCache>,
    out: &Out,
) -> Result<(), Failure> {
    let mut bar = Bar::new(out);
    let result = writing(url, |engine| {
        let bar = &mut bar;
        async move { Ok(cache::sweep(&engine, cache, |report| bar.show(report)).await?) }
    })
    .await;
    bar.end();
    let report = result?;
    if out.is_json() {
        return out.print_json(&json!({
            "expired": report.expired,
            "forgotten": report.forgotten,
            "unknown": report.unknown,
        }));
    }
    out.print(&format!("Swept {}: {}.\n", url.shown(), told(&report)))
}

fn told(report: &SweepReport) -> String {
    format!(
        "{} outcomes dropped, {} keys forgotten, {} abandoned and held",
        report.expired, report.forgotten, report.unknown
    )
}

/// A spinner that appears once the sweep has taken longer than [`QUIET_FOR`].
struct Bar {
    started: Instant,
    allowed: bool,
    shown: Option<ProgressBar>,
}

impl Bar {
    fn new(out: &Out) -> Self {
        Self { started: Instant::now(), allowed: out.shows_progress(), shown: None }
    }

    fn show(&mut self, report: &SweepReport) {
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
        bar.set_message(told(report));
    }

    fn end(&self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
