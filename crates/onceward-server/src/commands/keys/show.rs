//! `onceward keys show`: every field of one record, with its outcome and what is kept of its
//! payload, masked.

use onceward::store::{Fact, Found, Read};
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::{Key, Kind};
use onceward_core::mask::{mask_query, mask_shown};
use onceward_core::payload::KeptPayload;
use onceward_core::record::{OnAbandoned, OnDead, Record, Terms};
use onceward_core::stamp::At;
use serde_json::{Value, json};

use super::{absent, record_json};
use crate::commands::reading;
use crate::failure::Failure;
use crate::masks::{Masks, masked_outcome};
use crate::open::StoreUrl;
use crate::output::{Out, hex, plain, plain_line};
use crate::times::{relative, rfc3339, span};

/// Bytes of a text that people are shown; programs get all of it.
const SHOWN_BYTES: usize = 4_096;
/// Bytes of a binary body that people are shown, in hexadecimal.
const HEX_HEAD_BYTES: usize = 32;

/// Shows a record.
pub(crate) async fn show(
    url: &StoreUrl,
    key: &Key,
    masks: &Masks,
    out: &Out,
) -> Result<(), Failure> {
    let read = Read::Record { key: key.clone(), payload: true };
    let loaded = reading(url, |store| async move { Ok(store.load(vec![read]).await?) }).await?;
    let now = loaded.now;
    let Some(Fact::Record(found)) = loaded.facts.into_iter().next() else {
        return Err(Failure::failed("store.corrupt", "the store answered another read"));
    };
    let found = found.ok_or_else(|| absent(key, url))?;
    let mask = masks.of(key);
    if out.is_json() {
        return out.print_json(&found_json(&found, now, mask));
    }
    out.print(&out.fields(&fields(&found, now, mask)))
}

/// A record with its outcome and payload, for programs. These members of both are hidden.
pub(crate) fn found_json(found: &Found, now: At, mask: &[String]) -> Value {
    let record = &found.stored.record;
    let mut value = record_json(record, now);
    value["attempt_id"] = json!(record.attempt_id.as_deref());
    value["token"] = json!(format!("{:032x}", record.token.0));
    value["guard"] = json!(record.guard.as_ref().map(guard_text));
    value["terms"] = json!({
        "lease_ms": record.terms.lease_ms,
        "on_abandoned": on_abandoned(&record.terms),
        "retain_ms": record.terms.retain_ms,
        "remember_ms": record.terms.remember_ms,
        "max_attempts": record.terms.max_attempts,
        "on_dead": on_dead(&record.terms),
    });
    value["trace"] = json!({
        "actor": record.trace.actor.as_deref(),
        "request_id": record.trace.request_id.as_deref(),
        "correlation_id": record.trace.correlation_id.as_deref(),
    });
    let outcome = found.stored.outcome.as_deref();
    value["outcome"] = json!(outcome.map(|bytes| body_json(bytes, &masked_outcome(bytes, mask))));
    if let (Value::Object(outcome), Some(digest)) = (&mut value["outcome"], record.outcome) {
        outcome.insert("digest".into(), digest.to_string().into());
    }
    value["payload"] = json!(found.payload.as_deref().map(|bytes| match kept(record, bytes) {
        Kept::Job => json!({ "kept": "full", "body": masked_json(bytes, mask) }),
        Kept::Of(KeptPayload::None) => json!({ "kept": "none" }),
        Kept::Of(KeptPayload::Full(full)) => {
            let mut kept = json!({ "kept": "full", "body": masked_json(&full.body, mask) });
            if full.is_form {
                kept["form"] = json!(true);
            }
            if !full.query.is_empty() {
                kept["query"] = json!(mask_query(&full.query, mask));
            }
            kept
        }
        Kept::Of(KeptPayload::Hashed(leaves)) => json!({
            "kept": "hashed",
            "pointers": leaves.leaves().iter().map(|(pointer, _)| pointer).collect::<Vec<_>>(),
            "truncated": leaves.truncated(),
        }),
        Kept::Unreadable(why) => json!({ "kept": "unreadable", "why": why }),
    }));
    value
}

fn masked_json(bytes: &[u8], mask: &[String]) -> Value {
    body_json(bytes, &mask_shown(bytes, mask))
}

/// A body for programs: what may be shown of it as text if it is UTF-8, otherwise hexadecimal.
fn body_json(stored: &[u8], shown: &[u8]) -> Value {
    match std::str::from_utf8(shown) {
        Ok(text) => json!({ "bytes": stored.len(), "text": text }),
        Err(_) => json!({ "bytes": stored.len(), "hex": hex(shown) }),
    }
}

fn fields(found: &Found, now: At, mask: &[String]) -> Vec<(&'static str, String)> {
    let record = &found.stored.record;
    let mut fields = Vec::new();
    let mut add = |name, value: Option<String>| fields.extend(value.map(|value| (name, value)));
    let when = |at: At| Some(format!("{}  ({})", rfc3339(at), relative(at, now)));
    let text = |text: &Option<onceward_core::Text>| text.as_deref().map(plain_line);
    add("key", Some(plain_line(&record.key.to_string())));
    add("state", Some(state_text(record, now)));
    add("attempt", Some(attempts(record)));
    add("fence", Some(fence_text(record)));
    add("rev", Some(record.rev.0.to_string()));
    add("owner", text(&record.owner));
    add("attempt id", text(&record.attempt_id));
    add("priority", (record.key.kind() == Kind::Job).then(|| record.priority.to_string()));
    add("guard", record.guard.as_ref().map(guard_text));
    add("created", when(record.created_at));
    add("updated", when(record.updated_at));
    let due = if record.fence.is_some() { "leased until" } else { "due" };
    add(due, record.due_at.and_then(when));
    add("expires", record.expires_at.and_then(when));
    add("swept from", record.sweep_at.and_then(when));
    add("error", text(&record.error));
    add(
        "fingerprint",
        Some(format!("{} (rules {})", record.fingerprint, record.fingerprint.rules())),
    );
    add("terms", Some(terms_text(&record.terms)));
    add("actor", text(&record.trace.actor));
    add("request id", text(&record.trace.request_id));
    add("correlation id", text(&record.trace.correlation_id));
    add("payload", found.payload.as_deref().map(|bytes| payload_text(record, bytes, mask)));
    add("outcome digest", record.outcome.map(|digest| digest.to_string()));
    let outcome = found.stored.outcome.as_deref();
    add("outcome", outcome.map(|bytes| body_text(&masked_outcome(bytes, mask))));
    fields
}

fn state_text(record: &Record, now: At) -> String {
    let state = record.shown_at(now).as_str();
    match (record.lapsed_at(now), record.terms.on_abandoned) {
        (false, _) => state.into(),
        (true, OnAbandoned::Rerun) => format!("{state}, its lease has run out: may be run again"),
        (true, OnAbandoned::Hold) => format!("{state}, its lease has run out: needs a hand"),
    }
}

fn attempts(record: &Record) -> String {
    match record.terms.max_attempts {
        0 => record.attempt.to_string(),
        most => format!("{} of {most}", record.attempt),
    }
}

fn fence_text(record: &Record) -> String {
    match (record.fence, record.last_fence.0) {
        (Some(fence), _) => format!("{fence}, held"),
        (None, 0) => "none yet".into(),
        (None, last) => format!("{last}, held by nobody"),
    }
}

fn guard_text(guard: &Guard) -> String {
    let rule = match guard.rule {
        Rule::Exactly { expected } => format!("exactly {expected}"),
        Rule::Next { position } => format!("next {position}"),
        Rule::Above { position } => format!("above {position}"),
        Rule::NotBefore { at, grace_ms } => format!("not before {at}, grace {}", span(grace_ms)),
    };
    format!("{rule} of {}", plain_line(&guard.subject.to_string()))
}

fn on_abandoned(terms: &Terms) -> &'static str {
    match terms.on_abandoned {
        OnAbandoned::Rerun => "rerun",
        OnAbandoned::Hold => "hold",
    }
}

fn on_dead(terms: &Terms) -> &'static str {
    match terms.on_dead {
        OnDead::Skip => "skip",
        OnDead::Block => "block",
    }
}

fn terms_text(terms: &Terms) -> String {
    let attempts = match terms.max_attempts {
        0 => "any number of attempts".to_string(),
        most => format!("{most} attempts"),
    };
    format!(
        "lease {}, when abandoned {}, retain {}, remember {}, {attempts}, when dead {}",
        span(terms.lease_ms),
        on_abandoned(terms),
        span(terms.retain_ms),
        span(terms.remember_ms),
        on_dead(terms),
    )
}

enum Kept {
    /// A job's payload is what its worker gets.
    Job,
    Of(KeptPayload),
    Unreadable(String),
}

fn kept(record: &Record, bytes: &[u8]) -> Kept {
    if record.key.kind() == Kind::Job {
        return Kept::Job;
    }
    match KeptPayload::decode(bytes) {
        Ok(kept) => Kept::Of(kept),
        Err(error) => Kept::Unreadable(error.to_string()),
    }
}

fn payload_text(record: &Record, bytes: &[u8], mask: &[String]) -> String {
    match kept(record, bytes) {
        Kept::Job => body_text(&mask_shown(bytes, mask)),
        Kept::Of(KeptPayload::None) => "nothing is kept".into(),
        Kept::Of(KeptPayload::Full(full)) => {
            let query = match &*full.query {
                "" => String::new(),
                query => format!("\nquery: {}", plain_line(&mask_query(query, mask))),
            };
            format!("kept in full: {}{query}", body_text(&mask_shown(&full.body, mask)))
        }
        Kept::Of(KeptPayload::Hashed(leaves)) => {
            let more = if leaves.truncated() { ", truncated" } else { "" };
            format!("kept as {} hashed leaves{more}", leaves.leaves().len())
        }
        Kept::Unreadable(why) => format!("{} bytes that are not readable: {why}", bytes.len()),
    }
}

/// A body for people: text if it is UTF-8, otherwise its length and how it starts.
fn body_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok("") => "empty".into(),
        Ok(text) if text.len() <= SHOWN_BYTES => plain(text).into_owned(),
        Ok(text) => {
            let head = &text[..text.floor_char_boundary(SHOWN_BYTES)];
            format!("{}\n… {} bytes in all; --json shows them", plain(head), bytes.len())
        }
        Err(_) => {
            let head = hex(&bytes[..bytes.len().min(HEX_HEAD_BYTES)]);
            let more = if bytes.len() > HEX_HEAD_BYTES { "…" } else { "" };
            format!("{} bytes, not text: {head}{more}", bytes.len())
        }
    }
}
