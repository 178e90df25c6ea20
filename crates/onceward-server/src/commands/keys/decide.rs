//! `onceward keys resolve` and `erase`: a person decides about a record. What is allowed is decided
//! in the core; this file asks, checks the flags and tells what came of it.

use std::io::{self, IsTerminal, Write};

use onceward_core::Bytes;
use onceward_core::decide::{Resolution, Resolved};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::Key;
use onceward_core::limits::MAX_BATCH_BYTES;
use onceward_core::record::{Record, State};
use serde_json::json;

use super::absent;
use crate::cache::SharedCache;
use crate::cli::{Actor, KeysResolve, ResolveAs};
use crate::commands::{by_hand, writing};
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line};

/// Bytes of an outcome that is given by hand: room is left in the batch for what goes with it.
const OUTCOME_BYTES_MAX: usize = MAX_BATCH_BYTES / 2;

/// Resolves a record.
pub(crate) async fn resolve(url: &StoreUrl, args: &KeysResolve, out: &Out) -> Result<(), Failure> {
    let resolution = resolution(args)?;
    decide(url, &args.key, &resolution, &args.actor).await?;
    told(&args.key, is_now(args.what), out)
}

/// What a key is after a decision.
pub(crate) fn is_now(what: ResolveAs) -> &'static str {
    match what {
        ResolveAs::Rerun => "may run again",
        ResolveAs::Done => "is done",
        ResolveAs::Dead => "is dead",
    }
}

/// Erases a record.
pub(crate) async fn erase(
    (url, cache): (&StoreUrl, Option<&SharedCache>),
    key: &Key,
    yes: bool,
    actor: &Actor,
    out: &Out,
) -> Result<(), Failure> {
    if !yes && !sure(key)? {
        return out.print("Nothing was erased.\n");
    }
    decide(url, key, &Resolution::Erase, actor).await?;
    if let Some(cache) = cache
        && !cache.purge(std::slice::from_ref(key)).await
    {
        out.note("the cache gives no answer; what it still holds of the key is not replayed");
    }
    told(key, "is erased", out)
}

/// Tells what a key is now.
pub(crate) fn told(key: &Key, what: &str, out: &Out) -> Result<(), Failure> {
    if out.is_json() {
        return out.print_json(&json!({ "key": key.to_string(), "result": what }));
    }
    out.print(&format!("{} {what}.\n", plain_line(&key.to_string())))
}

/// A flag that does not belong to the decision is an error, not ignored.
pub(crate) fn check_flags(args: &KeysResolve) -> Result<(), Failure> {
    let stray = [
        (args.outcome.is_some() && args.what != ResolveAs::Done, "--outcome", "done"),
        (args.reason.is_some() && args.what != ResolveAs::Dead, "--reason", "dead"),
        (args.force && args.what != ResolveAs::Rerun, "--force", "rerun"),
    ];
    if let Some((_, flag, with)) = stray.into_iter().find(|(given, ..)| *given) {
        let message = format!("{flag} goes with --as {with} only; leave it out");
        return Err(Failure::usage("usage", message));
    }
    Ok(())
}

fn resolution(args: &KeysResolve) -> Result<Resolution, Failure> {
    check_flags(args)?;
    Ok(match args.what {
        ResolveAs::Rerun => Resolution::Rerun { force: args.force },
        ResolveAs::Dead => {
            let reason = args.reason.clone().unwrap_or_else(|| "resolved by hand".into());
            Resolution::Dead { reason }
        }
        ResolveAs::Done => {
            let outcome = outcome_of(args)?;
            let digest = fingerprint_bytes(&outcome);
            Resolution::Done { outcome: (outcome, digest) }
        }
    })
}

/// The outcome as it is given on the command line; nothing is null, as for the control API.
pub(crate) fn outcome_of(args: &KeysResolve) -> Result<Bytes, Failure> {
    let text = args.outcome.as_deref().unwrap_or("null");
    let bytes: Bytes = match text.strip_prefix('@') {
        None => text.as_bytes().into(),
        Some(path) => match std::fs::read(path) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                let message = format!("can't read the outcome from {path}: {error}");
                return Err(Failure::usage("outcome.file", message));
            }
        },
    };
    if bytes.len() > OUTCOME_BYTES_MAX {
        let message =
            format!("--outcome is {} bytes, but must be at most {OUTCOME_BYTES_MAX}", bytes.len());
        return Err(Failure::usage("limit", message));
    }
    Ok(bytes)
}

async fn decide(
    url: &StoreUrl,
    key: &Key,
    resolution: &Resolution,
    actor: &Actor,
) -> Result<(), Failure> {
    let trace = by_hand(actor);
    let resolved =
        writing(url, |engine| async move { Ok(engine.resolve(key, resolution, &trace).await?) })
            .await?;
    self::resolved(url, key, resolved)
}

/// What a decision came to, as a command says it.
pub(crate) fn resolved(url: &StoreUrl, key: &Key, resolved: Resolved) -> Result<(), Failure> {
    match resolved {
        Resolved::Ok => Ok(()),
        Resolved::Absent => Err(absent(key, url)),
        Resolved::NotNow(record) => Err(not_now(key, &record)),
        Resolved::Stale { current } => {
            let message = format!(
                "{key} was passed by its subject, which is at {current} now: to run it all the \
                 same, outside the order, add --force"
            );
            Err(Failure::failed("key.stale", message))
        }
    }
}

fn not_now(key: &Key, record: &Record) -> Failure {
    let why = match record.state {
        State::Running => {
            let owner = record.owner.as_deref().unwrap_or("someone");
            format!("is running: {owner} holds its lease. Wait until it ends")
        }
        State::Done | State::Expired => {
            "has its outcome, which is final; it can only be erased".into()
        }
        state => format!("is {} already; nothing was changed", state.as_str()),
    };
    Failure::failed("key.not_now", format!("{key} {why}"))
}

/// Asks whoever sits at the terminal whether a key may be erased.
pub(crate) fn sure(key: &Key) -> Result<bool, Failure> {
    let question =
        format!("Erase {} with its outcome and payload, for good?", plain_line(&key.to_string()));
    consent(&format!("erasing {key}"), &question)
}

/// Asks whoever sits at the terminal. `what` can't be undone.
pub(crate) fn consent(what: &str, question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        let message =
            format!("{what} can't be undone: say --yes, because there is no terminal to ask on");
        return Err(Failure::usage("confirm", message));
    }
    let asked = (|| {
        let mut stderr = io::stderr();
        write!(stderr, "{question} [y/N] ")?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes"))
    })();
    asked.map_err(|error: io::Error| {
        Failure::failed("confirm", format!("can't ask: {error}; say --yes instead"))
    })
}
