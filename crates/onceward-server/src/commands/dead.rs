//! `onceward dead`: dead letters looked at, retried and discarded by hand, one or all that fit.
//!
//! A retried one keeps its key, payload and ids and starts with its first attempt. What becomes of
//! each is decided in the core; one that can't be decided now is counted and left.

use futures_util::future::join_all;
use onceward::engine::{Engine, EngineError};
use onceward::store::{Cursor, Items, List};
use onceward_core::audit::Trace;
use onceward_core::decide::{Resolution, Resolved};
use onceward_core::key::Key;
use onceward_core::record::State;
use onceward_core::text::escape;
use serde_json::json;

use super::{by_hand, keys, writing};
use crate::cli::{Common, Dead, DeadDiscard, DeadList, DeadOnes, DeadWhich};
use crate::failure::Failure;
use crate::masks::Masks;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line};

/// Dead letters that are decided about at once.
const PAGE: usize = 256;

/// What a decision about many came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    /// Done as asked.
    pub(crate) done: u64,
    /// Left: their subject has passed them, and nobody said `--force`.
    pub(crate) passed: u64,
    /// Left: someone else decided meanwhile.
    pub(crate) left: u64,
}

/// Runs a command about dead letters.
pub(crate) async fn run(
    command: &Dead,
    (url, common): (&StoreUrl, &Common),
    out: &Out,
) -> Result<(), Failure> {
    match command {
        Dead::List(args) => keys::print(url, wanted(args), out).await,
        Dead::Show { key } => keys::show(url, key, &Masks::of_config(common)?, out).await,
        Dead::Retry(args) => {
            let resolution = Resolution::Rerun { force: args.force };
            decide(url, &args.ones, &resolution, "may run again", out).await
        }
        Dead::Discard(args) => {
            if !sure(args)? {
                return out.print("Nothing was discarded.\n");
            }
            decide(url, &args.ones, &Resolution::Discard, "is discarded", out).await
        }
    }
}

fn wanted(args: &DeadList) -> keys::Wanted {
    keys::Wanted {
        tenant: args.which.tenant.clone(),
        kind: None,
        scope: args.which.queue.clone(),
        state: Some(State::Dead),
        limit: args.page.limit,
        after: args.page.after.clone().map(Cursor),
    }
}

/// Whether a discard was meant.
pub(crate) fn sure(args: &DeadDiscard) -> Result<bool, Failure> {
    if args.yes {
        return Ok(true);
    }
    let what = match &args.ones.key {
        Some(key) => plain_line(&key.to_string()),
        None => "all dead letters that fit".into(),
    };
    keys::consent(&format!("discarding {what}"), &format!("Discard {what}, for good?"))
}

async fn decide(
    url: &StoreUrl,
    ones: &DeadOnes,
    resolution: &Resolution,
    is_now: &str,
    out: &Out,
) -> Result<(), Failure> {
    let by = by_hand(&ones.actor);
    must_fit(ones)?;
    if let Some(key) = &ones.key {
        dead_one(url, key, resolution, &by).await?;
        return keys::told(key, is_now, out);
    }
    let decided = writing(url, |engine| async move {
        Ok(decide_all(&engine, &ones.which, resolution, &by).await?)
    })
    .await?;
    told(&decided, is_now, out)
}

/// A key that `--tenant` or `--queue` leave out was not meant.
pub(crate) fn must_fit(ones: &DeadOnes) -> Result<(), Failure> {
    let Some(key) = &ones.key else { return Ok(()) };
    let DeadWhich { tenant, queue } = &ones.which;
    for (flag, wanted, is) in [("--tenant", tenant, key.tenant()), ("--queue", queue, key.scope())]
    {
        if let Some(wanted) = wanted
            && *wanted != is
        {
            let key = plain_line(&key.to_string());
            let message = format!("{key} does not fit {flag} {}", plain_line(wanted));
            return Err(Failure::usage("usage", message));
        }
    }
    Ok(())
}

/// Tells what a decision about many came to.
pub(crate) fn told(decided: &Decided, is_now: &str, out: &Out) -> Result<(), Failure> {
    let Decided { done, passed, left } = decided;
    if out.is_json() {
        return out.print_json(&json!({ "done": done, "passed": passed, "left": left }));
    }
    let mut text = format!("{done} × {is_now}.\n");
    if *passed > 0 {
        text.push_str(&format!(
            "{passed} were left: their subject has passed them; --force runs them all the same.\n"
        ));
    }
    if *left > 0 {
        text.push_str(&format!("{left} were left: someone else decided about them meanwhile.\n"));
    }
    out.print(&text)
}

/// Decides about one, if it is dead.
async fn dead_one(
    url: &StoreUrl,
    key: &Key,
    resolution: &Resolution,
    by: &Trace,
) -> Result<(), Failure> {
    let resolved = writing(url, |engine| async move {
        let found = engine.look_at(key).await?;
        Ok(match found {
            (now, Some(found)) if found.stored.record.state_at(now) != State::Dead => {
                Resolved::NotNow(Box::new(found.stored.record))
            }
            _ => engine.resolve(key, resolution, by).await?,
        })
    })
    .await?;
    keys::resolved(url, key, resolved)
}

async fn decide_all(
    engine: &Engine,
    which: &DeadWhich,
    resolution: &Resolution,
    by: &Trace,
) -> Result<Decided, EngineError> {
    let what = List::Records {
        tenant: which.tenant.as_deref().map(|tenant| escape(tenant).into_owned()),
        scope: which.queue.as_deref().map(|queue| escape(queue).into_owned()),
        state: Some(State::Dead),
    };
    let mut decided = Decided::default();
    let mut after = None;
    loop {
        let page = engine.list(what.clone(), after, PAGE).await?;
        let Items::Records(records) = page.items else { return Ok(decided) };
        let each = records.iter().map(|record| engine.resolve(&record.key, resolution, by));
        for resolved in join_all(each).await {
            match resolved? {
                Resolved::Ok => decided.done += 1,
                Resolved::Stale { .. } => decided.passed += 1,
                Resolved::Absent | Resolved::NotNow(_) => decided.left += 1,
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(decided);
        }
    }
}
