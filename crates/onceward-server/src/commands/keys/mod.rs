//! `onceward keys`: what is known of keys, and decisions by hand about them.

mod decide;
mod list;
mod show;

pub(crate) use decide::{
    check_flags, consent, erase, is_now, outcome_of, resolve, resolved, sure, told,
};
pub(crate) use list::{Wanted, find, list, print};
pub(crate) use show::{found_json, show};

use onceward_core::key::Key;
use onceward_core::record::Record;
use onceward_core::stamp::At;
use serde_json::{Value, json};

use crate::admin::reference;
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::times::rfc3339;

fn absent(key: &Key, url: &StoreUrl) -> Failure {
    let message = format!(
        "there is no record of {key} in {}; `onceward keys list` shows what there is",
        url.shown()
    );
    Failure::failed("key.absent", message)
}

/// A record for programs, as of the store's now.
pub(crate) fn record_json(record: &Record, now: At) -> Value {
    let key = &record.key;
    let within: Vec<_> = key.within_parts().collect();
    let at = |at: Option<At>| at.map(rfc3339);
    json!({
        "ref": reference(key),
        "key": key.to_string(),
        "key_hash": &**key.hash_hex(),
        "tenant": key.tenant(),
        "kind": key.kind().as_str(),
        "scope": key.scope(),
        "within": within,
        "id": key.id(),
        "state": record.shown_at(now).as_str(),
        "lapsed": record.lapsed_at(now),
        "attempt": record.attempt,
        "fence": record.last_fence.0,
        "held": record.fence.is_some(),
        "rev": record.rev.0,
        "priority": record.priority,
        "owner": record.owner.as_deref(),
        "fingerprint": record.fingerprint.to_string(),
        "error": record.error.as_deref(),
        "request_id": record.trace.request_id.as_deref(),
        "correlation_id": record.trace.correlation_id.as_deref(),
        "created_at": rfc3339(record.created_at),
        "updated_at": rfc3339(record.updated_at),
        "due_at": at(record.due_at),
        "expires_at": at(record.expires_at),
        "sweep_at": at(record.sweep_at),
    })
}
