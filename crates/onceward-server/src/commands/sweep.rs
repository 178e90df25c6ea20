//! `onceward sweep`: drops what is past its time, and shows how far it is when that takes a while.

use onceward::engine::SweepReport;
use serde_json::json;

use super::spinner::Spinner;
use super::writing;
use crate::cache::{self, SharedCache};
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;

/// Sweeps the store.
pub(crate) async fn sweep(
    url: &StoreUrl,
    cache: Option<&SharedCache>,
    out: &Out,
) -> Result<(), Failure> {
    let mut bar = Spinner::new(out);
    let result = writing(url, |engine| {
        let bar = &mut bar;
        async move { Ok(cache::sweep(&engine, cache, |report| bar.show(|| told(report))).await?) }
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
