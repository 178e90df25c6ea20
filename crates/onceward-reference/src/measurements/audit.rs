//! `GET /v1/users/{user_id}/audit`: every attempt of a user, by time and measurement (D07).
//!
//! JSON comes in pages; NDJSON and CSV are read page by page while the client takes them.

use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use onceward::core::audit::about_user;
use onceward::core::text::{escape, plain_json};
use onceward::engine::{Engine, EngineError};
use onceward::store::{AuditFilter, Cursor, Items, List};
use serde::{Deserialize, Serialize};

use super::attempt::{COLUMNS, Shown, shown};
use super::measurement::key_of;
use super::reads::{Reader, User, Wanted};
use super::{Measurements, answer};
use crate::csv;
use crate::instant;
use crate::paging;

/// Entries that are read at once for a stream.
const PAGE: usize = 1_000;

/// What is asked for.
#[derive(Deserialize)]
pub(super) struct Asked {
    from: Option<String>,
    to: Option<String>,
    measurement_id: Option<String>,
    format: Option<String>,
}

/// How entries are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Ndjson,
    Csv,
}

impl Asked {
    fn format(&self) -> Result<Format, &'static str> {
        match self.format.as_deref() {
            None | Some("json") => Ok(Format::Json),
            Some("ndjson") => Ok(Format::Ndjson),
            Some("csv") => Ok(Format::Csv),
            Some(_) => Err("format must be json, ndjson or csv"),
        }
    }

    fn filter(&self, tenant: &str, user_id: &str) -> Result<AuditFilter, String> {
        let moment = |name: &str, text: &Option<String>| {
            let at = text.as_deref().map(instant::asked);
            at.transpose().map_err(|why| format!("{name} {why}"))
        };
        let key_hash = match &self.measurement_id {
            Some(id) => {
                let key = key_of(tenant, user_id, id).map_err(|limit| limit.to_string())?;
                Some(key.hash_hex().to_string())
            }
            None => None,
        };
        Ok(AuditFilter {
            tenant: Some(escape(tenant).into_owned()),
            subject: Some(about_user(user_id)),
            key_hash,
            action: None,
            from: moment("from", &self.from)?,
            to: moment("to", &self.to)?,
        })
    }
}

/// The handler.
pub(super) async fn list(
    State(service): State<Measurements>,
    Reader(caller): Reader,
    Wanted(page): Wanted,
    User(user_id): User,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let asked = match asked {
        Ok(Query(asked)) => asked,
        Err(error) => return answer::malformed(error.body_text()),
    };
    let format = match asked.format() {
        Ok(format) => format,
        Err(why) => return answer::malformed(why),
    };
    let filter = match asked.filter(&caller.tenant, &user_id) {
        Ok(filter) => filter,
        Err(why) => return answer::malformed(why),
    };
    let search = Search { engine: service.engine().clone(), filter };
    if format == Format::Json {
        return match search.read(page.after, page.limit).await {
            Ok((items, next)) => {
                let page = Page { items, next: next.as_ref().map(paging::shown) };
                let body = serde_json::to_vec(&page).unwrap_or_default();
                answer::json_of(StatusCode::OK, body.into())
            }
            Err(error) => answer::no_answer(&error),
        };
    }
    let (media_type, name) = match format {
        Format::Csv => ("text/csv; charset=utf-8; header=present", "audit.csv"),
        Format::Json | Format::Ndjson => ("application/x-ndjson", "audit.ndjson"),
    };
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [(CONTENT_TYPE, media_type.to_string()), (CONTENT_DISPOSITION, disposition)];
    (headers, Body::from_stream(search.stream(format, page.after))).into_response()
}

/// A page of entries.
#[derive(Serialize)]
struct Page {
    items: Vec<Shown>,
    next: Option<String>,
}

/// A search through the attempts of one user.
struct Search {
    engine: Engine,
    filter: AuditFilter,
}

impl Search {
    /// Entries after a cursor, and where the rest begins.
    async fn read(
        &self,
        mut after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<Shown>, Option<Cursor>), EngineError> {
        let mut found = Vec::new();
        loop {
            let what = List::Audit(self.filter.clone());
            let page = self.engine.list(what, after, limit - found.len()).await?;
            if let Items::Audit(entries) = page.items {
                found.extend(entries.iter().filter_map(shown));
            }
            after = page.next;
            if after.is_none() || found.len() >= limit {
                return Ok((found, after));
            }
        }
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
                    for entry in entries {
                        match format {
                            Format::Csv => text += &csv::line(&entry.cells(), &COLUMNS),
                            Format::Json | Format::Ndjson => {
                                let line = serde_json::to_string(&entry).unwrap_or_default();
                                text += &plain_json(&line);
                                text += "\n";
                            }
                        }
                    }
                    let rest = next.map(|next| (search, Some(next), String::new()));
                    Some((Ok(text.into()), rest))
                }
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}
