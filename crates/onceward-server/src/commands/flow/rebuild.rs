//! Views made anew, and views proved: with a bar for people who watch.

use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use onceward::projection::Projection;
use onceward::relay::Log;
use onceward_reference::ontology::Workers;
use serde_json::json;

use super::failed;
use crate::failure::Failure;
use crate::output::{Out, plain_line};

/// A bar over segments, hidden where nobody watches.
fn bar(out: &Out, what: &str) -> ProgressBar {
    if !out.shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let style = "{prefix} {wide_bar} {pos}/{len} segments, {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_prefix(what.to_owned());
    bar
}

/// Makes the next generation and swaps it in.
pub(super) async fn rebuild(
    workers: &Workers,
    projection: &Projection,
    out: &Out,
) -> Result<(), Failure> {
    let bar = bar(out, projection.name());
    let log: Arc<dyn Log> = workers.log().clone();
    let options = workers.consumer(projection.name()).map_err(failed)?;
    let rebuilt = projection
        .rebuild(log, options, |progress, end| {
            bar.set_length(end.segment);
            bar.set_position(progress.place.segment);
            bar.set_message(format!("{} events", progress.finished));
        })
        .await;
    bar.finish_and_clear();
    let rebuilt = rebuilt.map_err(failed)?;
    if out.is_json() {
        return out.print_json(&json!({
            "view": projection.name(),
            "generation": rebuilt.generation,
            "events": rebuilt.events,
        }));
    }
    out.print(&format!(
        "{} was made anew from {} events; generation {} is live.\n",
        projection.name(),
        rebuilt.events,
        rebuilt.generation
    ))
}

/// Compares a view with a fold of the events from zero.
pub(super) async fn verify(
    workers: &Workers,
    projection: &Projection,
    out: &Out,
) -> Result<(), Failure> {
    let spinner = bar(out, projection.name());
    let log: Arc<dyn Log> = workers.log().clone();
    let verified = projection
        .verify(&log, |events| spinner.set_message(format!("{events} events folded")))
        .await;
    spinner.finish_and_clear();
    let verified = verified.map_err(failed)?;
    if out.is_json() {
        let differences = verified
            .differences
            .iter()
            .map(|one| json!({ "tenant": one.tenant, "id": one.id, "what": one.what }));
        out.print_json(&json!({
            "view": projection.name(),
            "generation": verified.generation,
            "events": verified.events,
            "ahead": verified.ahead,
            "documents": verified.documents,
            "different": verified.different,
            "differences": differences.collect::<Vec<_>>(),
        }))?;
    } else {
        let mut text = format!(
            "{}@{}: {} documents compared with a fold of {} events, {} differ.\n",
            projection.name(),
            verified.generation,
            verified.documents,
            verified.events,
            verified.different
        );
        if verified.ahead > 0 {
            text.push_str(&format!(
                "{} more events lie behind the view's offset; of those, what each document has \
                 handled was compared too.\n",
                verified.ahead
            ));
        }
        for one in &verified.differences {
            let (tenant, id) = (plain_line(&one.tenant), plain_line(&one.id));
            text.push_str(&format!("  {tenant} {id}: {}\n", one.what));
        }
        out.print(&text)?;
    }
    if verified.holds() {
        return Ok(());
    }
    let message = format!(
        "{} is not what the events make of it; `onceward project rebuild {}` makes it anew",
        projection.name(),
        projection.name()
    );
    Err(Failure::failed("project.differs", message))
}
