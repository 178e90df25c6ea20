//! `GET /v1/audit`: what was done, by whom and under which ids; for admins (A26, B09).
//!
//! JSON comes in pages; NDJSON and CSV are read page by page while the client takes them. Entries
//! hold hashes, never keys or bodies. The service's own entries are `mission.lock` and the like;
//! beside them stand the library's about requests, jobs and replays.

use std::borrow::Cow;
use std::collections::HashSet;

use axum::body::Body;
use axum::extract::{FromRequestParts, Query, State};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::request::Parts;
use jiff::Timestamp;
use onceward::core::audit::Audited;
use onceward::core::header_key::parse_header_key;
use onceward::core::key::Kind as KeyKind;
use onceward::core::stamp::At;
use onceward::core::text::{escape, plain_json};
use onceward::engine::{Engine, EngineError};
use onceward::http::Preconditions;
use onceward::store::{AuditFilter, Cursor, Items, List};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Planning;
use super::problem::{Answer, Problem};
use super::reads::{Page, Reader, page};
use crate::csv;
use crate::instant;

/// Entries that are read at once for a stream, and records that are looked through for a key.
const PAGE: usize = 1_000;

/// The columns of an export: the members of an entry.
const COLUMNS: [&str; 14] = [
    "id",
    "at",
    "action",
    "subject",
    "actor",
    "endpoint",
    "payload_hash",
    "version",
    "prior_revision",
    "new_revision",
    "request_id",
    "correlation_id",
    "key_hash",
    "detail",
];

/// What is asked for.
#[derive(Deserialize)]
struct AuditQuery {
    subject: Option<String>,
    key: Option<String>,
    action: Option<String>,
    from: Option<String>,
    to: Option<String>,
    format: Option<String>,
}

/// What is asked for, read.
pub(super) struct Asked {
    subject: Option<String>,
    key: Option<String>,
    action: Option<String>,
    from: Option<At>,
    to: Option<At>,
    format: Format,
}

/// How entries are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Ndjson,
    Csv,
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<AuditQuery>::from_request_parts(head, state).await;
        let Query(query) = query.map_err(|error| Problem::malformed(error.body_text()))?;
        let AuditQuery { subject, key, action, from, to, format } = query;
        let format = match format.as_deref() {
            None | Some("json") => Format::Json,
            Some("ndjson") => Format::Ndjson,
            Some("csv") => Format::Csv,
            Some(_) => return Err(Problem::malformed("format must be json, ndjson or csv")),
        };
        let from = from.as_deref().map(|text| moment("from", text)).transpose()?;
        let to = to.as_deref().map(|text| moment("to", text)).transpose()?;
        Ok(Self { subject, key, action, from, to, format })
    }
}

/// An instant of the query.
fn moment(name: &str, text: &str) -> Result<At, Problem> {
    instant::asked(text).map_err(|why| Problem::malformed(format!("{name} {why}")))
}

/// `GET /v1/audit`.
pub(super) async fn list(
    State(planning): State<Planning>,
    reader: Reader,
    preconditions: Preconditions,
    wanted: Page,
    asked: Asked,
) -> Answer {
    reader.must_be_admin()?;
    let format = asked.format;
    let search = Search::new(planning.engine().clone(), reader.tenant(), asked).await?;
    if format == Format::Json {
        let (entries, next) = search.read(wanted.after, wanted.limit).await?;
        let entries: Vec<Value> = entries.iter().map(shown).collect();
        return page(&entries, next.as_ref(), &preconditions);
    }
    let (media_type, name) = match format {
        Format::Csv => ("text/csv; charset=utf-8; header=present", "audit.csv"),
        Format::Json | Format::Ndjson => ("application/x-ndjson", "audit.ndjson"),
    };
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [(CONTENT_TYPE, media_type.to_string()), (CONTENT_DISPOSITION, disposition)];
    Ok((headers, Body::from_stream(search.stream(format, wanted.after))).into_response())
}

/// A search through the entries of one organisation.
struct Search {
    engine: Engine,
    filter: AuditFilter,
    /// The id of a resource, whatever its kind.
    id: Option<String>,
    /// Hashes of keys, when a key is asked for.
    key_hashes: Option<HashSet<String>>,
}

impl Search {
    async fn new(engine: Engine, organisation: &str, asked: Asked) -> Result<Self, EngineError> {
        let tenant = escape(organisation).into_owned();
        let key_hashes = match asked.key {
            Some(key) => Some(hashes_of(&engine, &tenant, key).await?),
            None => None,
        };
        let Asked { action, from, to, .. } = asked;
        let mut filter =
            AuditFilter { tenant: Some(tenant), action, from, to, ..Default::default() };
        // A whole name is looked for by the store; a bare id here.
        let (whole, id) = asked.subject.into_iter().partition::<Vec<_>, _>(|it| it.contains('/'));
        filter.subject = whole.into_iter().next();
        Ok(Self { engine, filter, id: id.into_iter().next(), key_hashes })
    }

    /// Entries after a cursor, and where the rest begins.
    async fn read(
        &self,
        mut after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<Audited>, Option<Cursor>), EngineError> {
        let mut found = Vec::new();
        loop {
            let what = List::Audit(self.filter.clone());
            let page = self.engine.list(what, after, limit - found.len()).await?;
            if let Items::Audit(entries) = page.items {
                found.extend(entries.into_iter().filter(|entry| self.wants(entry)));
            }
            after = page.next;
            if after.is_none() || found.len() >= limit {
                return Ok((found, after));
            }
        }
    }

    fn wants(&self, audited: &Audited) -> bool {
        let entry = &audited.entry;
        let about = |id: &String| {
            let subject = entry.subject.as_deref().unwrap_or_default();
            subject.rsplit('/').next() == Some(id)
        };
        let under = |hashes: &HashSet<String>| {
            entry.key_hash.as_deref().is_some_and(|hash| hashes.contains(hash))
        };
        self.id.as_ref().is_none_or(about) && self.key_hashes.as_ref().is_none_or(under)
    }

    /// Everything after a cursor, as text. A store that fails on the way breaks the stream off, so
    /// that an export which ends well is whole.
    fn stream(
        self,
        format: Format,
        after: Option<Cursor>,
    ) -> impl stream::Stream<Item = Result<Bytes, EngineError>> + use<> {
        let head = if format == Format::Csv { COLUMNS.join(",") + "\r\n" } else { String::new() };
        let begin = Some((self, after, head));
        stream::unfold(begin, move |state| async move {
            let (search, after, mut text) = state?;
            match search.read(after, PAGE).await {
                Ok((entries, next)) => {
                    entries.iter().for_each(|entry| text.push_str(&line(&shown(entry), format)));
                    let rest = next.map(|next| (search, Some(next), String::new()));
                    Some((Ok(text.into()), rest))
                }
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

/// The hashes that stand for a client's key: one for each endpoint and caller that used it, as long
/// as its record is remembered. The hash itself, as entries show it, is found at any time.
async fn hashes_of(
    engine: &Engine,
    tenant: &str,
    key: String,
) -> Result<HashSet<String>, EngineError> {
    // A key may be said in quotes, here as in its header.
    let key = parse_header_key(key.as_bytes()).map_or(key.clone(), Cow::into_owned);
    let mut hashes = HashSet::new();
    let mut after = None;
    loop {
        let what = List::Records { tenant: Some(tenant.into()), scope: None, state: None };
        let page = engine.list(what, after, PAGE).await?;
        if let Items::Records(records) = page.items {
            let keys = records.into_iter().map(|record| record.key);
            let these = keys.filter(|known| known.kind() == KeyKind::Request && known.id() == key);
            hashes.extend(these.map(|known| known.hash_hex().to_string()));
        }
        after = page.next;
        if after.is_none() {
            hashes.insert(key);
            return Ok(hashes);
        }
    }
}

/// An entry as it is shown.
fn shown(audited: &Audited) -> Value {
    let entry = &audited.entry;
    let at = i64::try_from(audited.at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let revision = |version: Option<u64>| version.map(|version| version.to_string());
    // The service's own entries are about resources and say the endpoint beside; the library's
    // about requests have it as their subject.
    let starts = |words: &[&str]| words.iter().any(|word| entry.action.starts_with(word));
    let own = starts(&["organization.", "project.", "mission.", "assignment.", "collaborator."]);
    let of_request = starts(&["request.", "audit.", "idempotency_"]);
    let detail = entry.detail.as_deref();
    // A job says which write it follows: `POST /v1/projects → project/7@1`.
    let follows = detail.filter(|_| starts(&["job."])).and_then(|detail| detail.split_once(" → "));
    let (endpoint, detail) = match follows {
        Some((endpoint, resource)) => (Some(endpoint), Some(resource)),
        None if own => (detail, None),
        None if of_request => (entry.subject.as_deref(), detail),
        None => (None, detail),
    };
    let of_job = follows.and_then(|(_, resource)| resource.rsplit('@').next()?.parse().ok());
    json!({
        "id": audited.id,
        "at": at.map(|at| at.to_string()),
        "action": &*entry.action,
        "subject": entry.subject.as_deref(),
        "actor": entry.trace.actor.as_deref(),
        "endpoint": endpoint,
        "payload_hash": entry.payload_hash.as_deref(),
        "version": entry.version_after.or(of_job),
        "prior_revision": revision(entry.version_before),
        "new_revision": revision(entry.version_after),
        "request_id": entry.trace.request_id.as_deref(),
        "correlation_id": entry.trace.correlation_id.as_deref(),
        "key_hash": entry.key_hash.as_deref(),
        "detail": detail,
    })
}

fn line(entry: &Value, format: Format) -> String {
    match format {
        Format::Csv => csv::line(entry, &COLUMNS),
        Format::Json | Format::Ndjson => format!("{}\n", plain_json(&entry.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward::core::audit::Entry;

    #[test]
    fn b09_an_entry_holds_both_revisions() {
        let mut entry = Entry::new("org", "mission.lock");
        entry.subject = Some("mission/7".into());
        (entry.version_before, entry.version_after) = (Some(2), Some(3));
        entry.detail = Some("POST /v1/missions/{id}/lock".into());
        let entry = shown(&Audited { id: 5, at: At(0), entry });
        assert_eq!(entry["prior_revision"], "2");
        assert_eq!(entry["new_revision"], "3");
        assert_eq!(entry["endpoint"], "POST /v1/missions/{id}/lock");
        assert_eq!(entry["at"], "1970-01-01T00:00:00Z");
        assert_eq!(entry.as_object().unwrap().len(), COLUMNS.len());
        let csv = line(&entry, Format::Csv);
        assert!(csv.starts_with("5,1970-01-01T00:00:00Z,mission.lock,mission/7,"), "{csv}");
    }
}
