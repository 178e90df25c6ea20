//! `onceward jobs`: what waits, runs and failed in the queues; queues paused and resumed.
//!
//! A job is a record, so listing and showing it is what `keys` does, narrowed to jobs.

use onceward::store::Cursor;
use onceward_core::key::Kind;
use serde_json::json;

use super::{by_hand, keys, writing};
use crate::cli::{Common, Jobs, QueueArgs};
use crate::failure::Failure;
use crate::masks::Masks;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line};

/// Runs a command about jobs.
pub(crate) async fn run(
    command: &Jobs,
    (url, common): (&StoreUrl, &Common),
    out: &Out,
) -> Result<(), Failure> {
    match command {
        Jobs::List(args) => {
            let wanted = keys::Wanted {
                tenant: args.tenant.clone(),
                kind: Some(Kind::Job),
                scope: args.queue.clone(),
                state: args.state,
                limit: args.page.limit,
                after: args.page.after.clone().map(Cursor),
            };
            keys::print(url, wanted, out).await
        }
        Jobs::Show { key } => keys::show(url, key, &Masks::of_config(common)?, out).await,
        Jobs::Pause(args) => set_paused(url, args, true, out).await,
        Jobs::Resume(args) => set_paused(url, args, false, out).await,
    }
}

async fn set_paused(
    url: &StoreUrl,
    args: &QueueArgs,
    paused: bool,
    out: &Out,
) -> Result<(), Failure> {
    let by = by_hand(&args.actor);
    let queue = args.queue.as_str();
    let changed =
        writing(url, |engine| async move { Ok(engine.set_paused(queue, paused, &by).await?) })
            .await?;
    told(queue, paused, changed, out)
}

/// Tells whether a queue is paused now.
pub(crate) fn told(queue: &str, paused: bool, changed: bool, out: &Out) -> Result<(), Failure> {
    if out.is_json() {
        return out.print_json(&json!({ "queue": queue, "paused": paused, "changed": changed }));
    }
    let is = match (paused, changed) {
        (true, true) => "is paused: nothing is taken from it until it is resumed",
        (true, false) => "was paused already",
        (false, true) => "gives jobs again",
        (false, false) => "was not paused",
    };
    out.print(&format!("{} {is}.\n", plain_line(queue)))
}
