//! `onceward audit list|export|verify`: audit entries, filtered, a page at a time or as a stream,
//! and what became of them since they were sealed.

use std::sync::Arc;

use comfy_table::Cell;
use onceward::audit::{Bad, SealKey, Verified};
use onceward::engine::Engine;
use onceward::store::{AuditFilter, Cursor, Items, List, Store};
use onceward_core::audit::Audited;
use onceward_core::seal::Wrong;
use onceward_core::stamp::At;
use onceward_core::text::{escape, unescape};
use serde_json::{Value, json};

use super::reading;
use super::spinner::Spinner;
use crate::admin::VerifyAnswer;
use crate::cli::{AuditExport, AuditList, AuditWanted, Common};
use crate::config::Config;
use crate::config::flags::Flags;
use crate::export::{Format, entry_json};
use crate::failure::Failure;
use crate::identity::Secret;
use crate::open::StoreUrl;
use crate::output::{Out, plain_line};
use crate::times::{Moment, rfc3339};

/// Entries that are read at once for an export.
const EXPORT_PAGE: usize = 1_000;

/// Lists audit entries.
pub(crate) async fn list(url: &StoreUrl, args: &AuditList, out: &Out) -> Result<(), Failure> {
    let page = reading(url, |store| async move {
        let what = List::Audit(filter(&*store, &args.filter).await?);
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

/// Writes every entry that fits, page by page, so that memory stays flat.
pub(crate) async fn export(url: &StoreUrl, args: &AuditExport, out: &Out) -> Result<(), Failure> {
    let export = |store: Arc<dyn Store>| async move {
        let what = List::Audit(filter(&*store, &args.filter).await?);
        // Only now: where the store can't be read, a server may be asked instead.
        let mut written = Written::begin(args.format, out)?;
        let mut after = None;
        loop {
            let page = store.list(what.clone(), after, EXPORT_PAGE).await?;
            let Items::Audit(entries) = page.items else {
                let message = "the store listed something else";
                return Err(Failure::failed("store.corrupt", message));
            };
            written.add(entries.iter().map(entry_json))?;
            after = page.next;
            if after.is_none() {
                return written.end();
            }
        }
    };
    reading(url, export).await
}

/// An export on its way to standard output.
pub(crate) struct Written<'o> {
    format: Format,
    count: u64,
    bar: Spinner,
    out: &'o Out,
}

impl<'o> Written<'o> {
    /// Writes what stands before the first entry.
    pub(crate) fn begin(format: Format, out: &'o Out) -> Result<Self, Failure> {
        out.print(&format.head())?;
        Ok(Self { format, count: 0, bar: Spinner::new(out), out })
    }

    /// Writes a page.
    pub(crate) fn add(&mut self, entries: impl Iterator<Item = Value>) -> Result<(), Failure> {
        let mut text = String::new();
        for entry in entries {
            text.push_str(&self.format.line(&entry, self.count == 0));
            self.count += 1;
        }
        self.bar.show(|| format!("{} entries", self.count));
        self.out.print(&text)
    }

    /// Writes what stands behind the last entry: an export that ends with it is whole.
    pub(crate) fn end(self) -> Result<(), Failure> {
        self.bar.end();
        self.out.print(self.format.end())
    }
}

/// Compares the audit with its seals.
pub(crate) async fn verify(
    url: &StoreUrl,
    tenant: Option<&str>,
    common: &Common,
    out: &Out,
) -> Result<(), Failure> {
    let config = Config::load(common.config.as_deref(), &Flags::default())?;
    let secret_file = config.identity.secret_file;
    let column = tenant.map(|tenant| escape(tenant).into_owned());
    let mut bar = Spinner::new(out);
    let result = reading(url, |store| {
        let bar = &mut bar;
        async move {
            let engine = Engine::new(store);
            // Without a secret nothing was ever sealed, under any key.
            let secret = Secret::find(secret_file.as_deref(), &engine).await?;
            let key = secret.map_or_else(|| SealKey::new([0; 32]), |secret| secret.seal_key());
            let told = |found: &Verified| bar.show(|| counted(found));
            Ok(onceward::audit::verify(&engine, &key, column.as_deref(), told).await?)
        }
    })
    .await;
    bar.end();
    let found = result?;
    let answer = serde_json::to_value(VerifyAnswer::from(found)).unwrap_or_default();
    verified(&answer, &url.shown(), out)
}

/// Prints what a verification found; one that found something wrong has failed.
pub(crate) fn verified(answer: &Value, place: &str, out: &Out) -> Result<(), Failure> {
    if out.is_json() {
        out.print_json(answer)?;
    } else {
        let mut text = format!(
            "Verified {place}: {} sealed entries of {} tenants, {} not sealed yet, {} dropped by \
             retention.\n",
            answer["sealed"], answer["tenants"], answer["unsealed"], answer["dropped"]
        );
        for bad in answer["bad"].as_array().into_iter().flatten() {
            text.push_str(&plain_line(bad["message"].as_str().unwrap_or_default()));
            text.push('\n');
        }
        out.print(&text)?;
    }
    if answer["ok"] == true {
        return Ok(());
    }
    let first = answer["first_bad"]["message"].as_str().unwrap_or("the audit is not sound");
    Err(Failure::failed("audit.unsound", first))
}

/// What is wrong, in a sentence.
pub(crate) fn told(bad: &Bad) -> String {
    let Bad { tenant, entry, segment, wrong } = bad;
    let number = entry.or(*segment).unwrap_or_default();
    match wrong {
        Wrong::Changed => format!("entry {number} of {tenant} was changed since it was sealed"),
        Wrong::Missing => format!("entry {number} of {tenant} was sealed and is not in its place"),
        Wrong::Inserted => {
            format!("entry {number} of {tenant} is under no seal, though later ones are")
        }
        Wrong::Moved => format!("entry {number} of {tenant} stands where another was sealed"),
        Wrong::Seal if number == 0 => {
            format!("the head of the seals of {tenant} was changed, removed or taken back")
        }
        Wrong::Seal => {
            format!("seal {number} of {tenant} was changed, removed or taken back")
        }
    }
}

fn counted(found: &Verified) -> String {
    format!("{} entries of {} tenants", found.sealed + found.unsealed, found.tenants)
}

async fn filter(store: &dyn Store, args: &AuditWanted) -> Result<AuditFilter, Failure> {
    let ago = |moment: Option<Moment>| matches!(moment, Some(Moment::Ago(_)));
    // "Three hours ago" is by the store's clock; an empty look tells what it shows.
    let now =
        if ago(args.from) || ago(args.to) { store.load(Vec::new()).await?.now } else { At(0) };
    Ok(AuditFilter {
        tenant: args.tenant.as_deref().map(|tenant| escape(tenant).into_owned()),
        subject: args.subject.clone(),
        key_hash: args.key.as_ref().map(|key| key.0.clone()),
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

fn tenant(column: &str) -> String {
    unescape(column).map_or_else(|| column.to_string(), std::borrow::Cow::into_owned)
}
