//! `onceward audit list`: audit entries, filtered, a page at a time.

use comfy_table::Cell;
use onceward::store::{AuditFilter, Cursor, Items, List, Store};
use onceward_core::audit::Audited;
use onceward_core::stamp::At;
use onceward_core::text::{escape, unescape};
use serde_json::{Value, json};

use super::reading;
use crate::cli::AuditList;
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line};
use crate::times::{Moment, rfc3339};

/// Lists audit entries.
pub(crate) async fn list(url: &StoreUrl, args: &AuditList, out: &Out) -> Result<(), Failure> {
    let page = reading(url, |store| async move {
        let what = List::Audit(filter(&*store, args).await?);
        let after = args.page.after.clone().map(Cursor);
        Ok(store.list(what, after, args.page.limit.into()).await?)
    })
    .await?;
    let Items::Audit(entries) = page.items else {
        return Err(Failure::failed("store.corrupt", "the store listed something else"));
    };
    let next = page.next.map(|cursor| cursor.0);
    if out.is_json() {
        let items: Vec<Value> = entries.iter().map(entry_json).collect();
        return out.print_json(&json!({ "items": items, "next": next }));
    }
    let mut text = if entries.is_empty() {
        format!("No audit entries in {} fit.\n", url.shown())
    } else {
        table(&entries, out)
    };
    if let Some(next) = next {
        text.push_str(&format!("\nThere are more: go on with --after '{}'\n", plain_line(&next)));
    }
    out.print(&text)
}

async fn filter(store: &dyn Store, args: &AuditList) -> Result<AuditFilter, Failure> {
    let ago = |moment: Option<Moment>| matches!(moment, Some(Moment::Ago(_)));
    // "Three hours ago" is by the store's clock; an empty look tells what it shows.
    let now =
        if ago(args.from) || ago(args.to) { store.load(Vec::new()).await?.now } else { At(0) };
    Ok(AuditFilter {
        tenant: args.tenant.as_deref().map(|tenant| escape(tenant).into_owned()),
        subject: args.subject.clone(),
        key_hash: args.key.as_ref().map(onceward_core::key::Key::hash_hex),
        action: args.action.clone(),
        from: args.from.map(|moment| moment.resolve(now)),
        to: args.to.map(|moment| moment.resolve(now)),
    })
}

fn table(entries: &[Audited], out: &Out) -> String {
    let headers =
        ["NO", "AT", "TENANT", "ACTION", "SUBJECT", "KEY HASH", "FENCE", "ACTOR", "DETAIL"];
    let mut table = out.table(&headers);
    for Audited { id, at, entry } in entries {
        let text = |text: &Option<onceward_core::Text>| {
            Cell::new(text.as_deref().map(plain_line).unwrap_or_default())
        };
        table.add_row([
            Cell::new(id),
            Cell::new(rfc3339(*at)),
            Cell::new(plain_line(&tenant(&entry.tenant))),
            Cell::new(plain_line(&entry.action)),
            text(&entry.subject),
            text(&entry.key_hash),
            Cell::new(entry.fence.map(|fence| fence.to_string()).unwrap_or_default()),
            text(&entry.trace.actor),
            text(&entry.detail),
        ]);
    }
    out.render(&table)
}

/// An entry for programs.
pub(crate) fn entry_json(audited: &Audited) -> Value {
    let entry = &audited.entry;
    json!({
        "id": audited.id,
        "at": rfc3339(audited.at),
        "tenant": tenant(&entry.tenant),
        "action": &*entry.action,
        "subject": entry.subject.as_deref(),
        "key_hash": entry.key_hash.as_deref(),
        "payload_hash": entry.payload_hash.as_deref(),
        "version_before": entry.version_before,
        "version_after": entry.version_after,
        "fence": entry.fence,
        "actor": entry.trace.actor.as_deref(),
        "request_id": entry.trace.request_id.as_deref(),
        "correlation_id": entry.trace.correlation_id.as_deref(),
        "detail": entry.detail.as_deref(),
    })
}

fn tenant(column: &str) -> String {
    unescape(column).map_or_else(|| column.to_string(), std::borrow::Cow::into_owned)
}
