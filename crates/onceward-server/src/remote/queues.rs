//! Jobs, queues and dead letters through a running server.

use http::Method;
use onceward_core::key::Key;
use serde_json::{Value, json};

use super::{Asked, RECORD_COLUMNS, Remote, by, encoded, print_page, query, show};
use crate::cli::{Dead, DeadOnes, DeadWhich, Jobs, QueueArgs};
use crate::commands::{dead as letters, jobs as queues, keys};
use crate::failure::Failure;
use crate::output::Out;

/// Runs a command about jobs.
pub(super) async fn jobs(remote: &Remote, command: &Jobs, out: &Out) -> Result<(), Failure> {
    match command {
        Jobs::List(args) => {
            let query = query(&[
                ("tenant", args.tenant.clone()),
                ("kind", Some("job".into())),
                ("scope", args.queue.clone()),
                ("state", args.state.map(|state| state.as_str().into())),
                ("after", args.page.after.clone()),
                ("limit", Some(args.page.limit.to_string())),
            ]);
            let path = format!("/v1/records?{query}");
            let page = remote.call(Method::GET, &path, None, None).await?;
            print_page(remote, &page, &RECORD_COLUMNS, out)
        }
        Jobs::Show { key } => show(remote, key, out).await,
        Jobs::Pause(args) => set_paused(remote, args, "pause", out).await,
        Jobs::Resume(args) => set_paused(remote, args, "resume", out).await,
    }
}

async fn set_paused(
    remote: &Remote,
    args: &QueueArgs,
    word: &str,
    out: &Out,
) -> Result<(), Failure> {
    let path = format!("/v1/queues/{}/{word}", encoded(&args.queue));
    let actor = by(&args.actor);
    let answer = remote.call(Method::POST, &path, actor.as_deref(), None).await?;
    let is = |member: &str| answer[member].as_bool().unwrap_or(false);
    queues::told(&args.queue, is("paused"), is("changed"), out)
}

/// Runs a command about dead letters.
pub(super) async fn dead(
    remote: &Remote,
    command: &Dead,
    asked: Asked,
    out: &Out,
) -> Result<(), Failure> {
    match command {
        Dead::List(args) => {
            let mut filters = which(&args.which);
            filters.push(("after", args.page.after.clone()));
            filters.push(("limit", Some(args.page.limit.to_string())));
            let path = format!("/v1/dead?{}", query(&filters));
            let page = remote.call(Method::GET, &path, None, None).await?;
            print_page(remote, &page, &RECORD_COLUMNS, out)
        }
        Dead::Show { key } => show(remote, key, out).await,
        Dead::Retry(args) => {
            let body = json!({ "force": args.force });
            decide(remote, &args.ones, ("retry", "may run again"), Some(&body), out).await
        }
        Dead::Discard(args) => {
            if asked == Asked::No && !letters::sure(args)? {
                return out.print("Nothing was discarded.\n");
            }
            decide(remote, &args.ones, ("discard", "is discarded"), None, out).await
        }
    }
}

fn which(which: &DeadWhich) -> Vec<(&'static str, Option<String>)> {
    vec![("tenant", which.tenant.clone()), ("scope", which.queue.clone())]
}

async fn decide(
    remote: &Remote,
    ones: &DeadOnes,
    (word, is_now): (&str, &str),
    body: Option<&Value>,
    out: &Out,
) -> Result<(), Failure> {
    let actor = by(&ones.actor);
    let one = async |key: &str| {
        let path = format!("/v1/dead/{}/{word}", encoded(key));
        remote.call(Method::POST, &path, actor.as_deref(), body).await
    };
    letters::must_fit(ones)?;
    if let Some(key) = &ones.key {
        one(&Key::to_string(key)).await?;
        return keys::told(key, is_now, out);
    }
    let mut decided = letters::Decided::default();
    let mut after: Option<String> = None;
    loop {
        let mut filters = which(&ones.which);
        filters.push(("after", after));
        let path = format!("/v1/dead?{}", query(&filters));
        let page = remote.call(Method::GET, &path, None, None).await?;
        for item in page["items"].as_array().into_iter().flatten() {
            match one(item["key"].as_str().unwrap_or_default()).await {
                Ok(_) => decided.done += 1,
                Err(failure) if failure.code == "key.stale" => decided.passed += 1,
                Err(failure) if ["key.not_now", "key.absent"].contains(&failure.code) => {
                    decided.left += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        after = page["next"].as_str().map(String::from);
        if after.is_none() {
            return letters::told(&decided, is_now, out);
        }
    }
}
