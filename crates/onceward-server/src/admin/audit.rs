//! `GET /v1/audit`: entries as pages of JSON, or all of them as a stream of NDJSON or CSV.
//!
//! A stream is read page by page while the client takes it, so memory stays flat. When the store
//! fails on the way, the connection is broken off: an export that ends well is whole.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http_body::Frame;
use onceward::audit::{self, Bad, Verified};
use onceward::engine::{Engine, EngineError};
use onceward::store::{AuditFilter, Cursor, Items, List};
use onceward_core::audit::Audited;
use onceward_core::text::escape;
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::json;
use super::auth::Who;
use super::fields::Reading;
use super::opaque::cursor;
use super::params::{AboutKey, Limit, Param, params};
use super::problem::{Problem, ProblemBody};
use super::records::PageAnswer;
use crate::commands::audit::told;
use crate::export::{Format, entry_json};
use crate::times::Moment;

/// Entries that are read at once for a stream.
const PAGE: usize = 1_000;

impl Param for Format {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        match text {
            "json" => Some(Self::Json),
            "ndjson" => Some(Self::Ndjson),
            "csv" => Some(Self::Csv),
            _ => {
                reading.wrong(pointer, "must be json, ndjson or csv");
                None
            }
        }
    }

    fn absent() -> Self {
        Self::Json
    }
}

params! {
    /// Which entries. Times are half-open: not before `from`, before `to`.
    pub(crate) struct AuditParams {
        /// Only this tenant's. Default: the token's; the operator sees all.
        tenant: Option<String>,
        /// Only about this subject: endpoint, queue, aggregate.
        subject: Option<String>,
        /// Only about this key: a record's ref, `tenant:kind:scope:id`, or its hash as logs and
        /// entries show it.
        #[param(value_type = Option<String>)]
        key: Option<AboutKey>,
        /// Only this action, such as `request.done`.
        action: Option<String>,
        /// Not before: RFC 3339, a day, a while ago (`3h`), or milliseconds since 1970 (up to
        /// 3 digits, or 12 and more).
        #[param(value_type = Option<String>)]
        from: Option<Moment>,
        /// Before: as `from`.
        #[param(value_type = Option<String>)]
        to: Option<Moment>,
        /// `json` (default): a page. `ndjson`, `csv`: a stream of all.
        #[param(value_type = Option<String>)]
        format: Format,
        /// Goes on after a page: the cursor that it ended with.
        #[param(value_type = Option<String>)]
        after: Option<Cursor>,
        /// How many at most. Default: 100 in JSON, all in a stream.
        #[param(value_type = Option<u16>, minimum = 1, maximum = 1000)]
        limit: Limit,
    }
}

params! {
    /// Which entries to verify.
    pub(crate) struct VerifyParams {
        /// Only this tenant's. Default: the token's; the operator sees all.
        tenant: Option<String>,
    }
}

/// What a verification of the audit found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VerifyAnswer {
    /// Whether every sealed entry is as it was sealed.
    ok: bool,
    /// Tenants that were looked at.
    tenants: u64,
    /// Entries that were found as they were sealed.
    sealed: u64,
    /// Entries that are not sealed yet.
    unsealed: u64,
    /// Entries that retention dropped, as the chain's anchors say.
    dropped: u64,
    /// What is wrong first; none when nothing is.
    first_bad: Option<BadAnswer>,
    /// The first thing of each tenant that is wrong.
    bad: Vec<BadAnswer>,
}

/// Something that is not as it was sealed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct BadAnswer {
    /// Whose.
    tenant: String,
    /// The number of the entry, where it is one.
    entry: Option<u64>,
    /// The number of the segment, where it is a seal.
    segment: Option<u64>,
    /// `changed`, `missing`, `inserted`, `moved` or `seal`.
    wrong: &'static str,
    /// The same in a sentence.
    message: String,
}

impl From<Verified> for VerifyAnswer {
    fn from(found: Verified) -> Self {
        let bad: Vec<BadAnswer> = found.bad.iter().map(BadAnswer::from).collect();
        Self {
            ok: found.is_sound(),
            tenants: found.tenants,
            sealed: found.sealed,
            unsealed: found.unsealed,
            dropped: found.dropped,
            first_bad: bad.first().cloned(),
            bad,
        }
    }
}

impl From<&Bad> for BadAnswer {
    fn from(bad: &Bad) -> Self {
        Self {
            tenant: bad.tenant.clone(),
            entry: bad.entry,
            segment: bad.segment,
            wrong: bad.wrong.as_str(),
            message: told(bad),
        }
    }
}

/// Searches or exports the audit.
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "list_audit", tag = "audit", params(AuditParams),
    responses(
        (status = 200, description = "A page, or a stream", content(
            (PageAnswer = "application/json"),
            (String = "application/x-ndjson"),
            (String = "text/csv"),
        )),
        (status = 400, description = "Every bad parameter", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn list(
    State(state): State<AdminState>,
    who: Who,
    params: AuditParams,
) -> Result<Response, Problem> {
    let tenant = who.filter(params.tenant)?;
    if let Some(theirs) = params.key.as_ref().and_then(|key| key.tenant.as_deref()) {
        who.may(theirs)?;
    }
    let engine = state.engine();
    let now = engine.now().await?;
    let filter = AuditFilter {
        tenant: tenant.as_deref().map(|tenant| escape(tenant).into_owned()),
        subject: params.subject,
        key_hash: params.key.map(|key| key.hash.0),
        action: params.action,
        from: params.from.map(|moment| moment.resolve(now)),
        to: params.to.map(|moment| moment.resolve(now)),
    };
    match params.format {
        Format::Json => {
            let limit = params.limit.or_default().into();
            let page = engine.list(List::Audit(filter), params.after, limit).await?;
            let items = entries(page.items).iter().map(entry_json).collect();
            let next = page.next.as_ref().map(cursor);
            Ok(json(StatusCode::OK, &PageAnswer { items, next }))
        }
        format => {
            let most = params.limit.0.map_or(usize::MAX, usize::from);
            stream(engine, filter, (params.after, most), format).await
        }
    }
}

/// Compares the audit with its seals.
#[utoipa::path(
    get, path = "/v1/audit/verify", tag = "audit", params(VerifyParams),
    responses(
        (status = 200, description = "What was found", body = VerifyAnswer),
        (status = 403, description = "Another tenant's", body = ProblemBody),
    )
)]
pub(crate) async fn verify(
    State(state): State<AdminState>,
    who: Who,
    params: VerifyParams,
) -> Result<Response, Problem> {
    let tenant = who.filter(params.tenant)?.map(|tenant| escape(&tenant).into_owned());
    let key = state.seal_key();
    let found = audit::verify(state.engine(), &key, tenant.as_deref(), |_| ()).await?;
    Ok(json(StatusCode::OK, &VerifyAnswer::from(found)))
}

fn entries(items: Items) -> Vec<Audited> {
    match items {
        Items::Audit(entries) => entries,
        Items::Records(_) | Items::Marks(_) | Items::Settled(_) => Vec::new(),
    }
}

/// Answers with a stream. Its first page is read before, so that a bad cursor is a problem.
async fn stream(
    engine: &Engine,
    filter: AuditFilter,
    (after, most): (Option<Cursor>, usize),
    format: Format,
) -> Result<Response, Problem> {
    let what = List::Audit(filter);
    let mut page = engine.list(what.clone(), after, PAGE.min(most)).await?;
    let (sender, receiver) = mpsc::channel(1);
    let engine = engine.clone();
    tokio::spawn(async move {
        let mut left = most;
        let mut text = format.head();
        loop {
            let entries = entries(page.items);
            left -= entries.len().min(left);
            for entry in &entries {
                text.push_str(&format.line(&entry_json(entry), false));
            }
            let text = std::mem::take(&mut text);
            let after = page.next.filter(|_| left > 0);
            // A client that has gone ends it.
            if sender.send(Ok(text.into())).await.is_err() || after.is_none() {
                return;
            }
            page = match engine.list(what.clone(), after, PAGE.min(left)).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(error = %error, "an export was broken off");
                    // Whoever is gone needs no error either.
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            };
        }
    });
    let (media_type, name) = match format {
        Format::Csv => ("text/csv; charset=utf-8; header=present", "audit.csv"),
        Format::Json | Format::Ndjson => ("application/x-ndjson", "audit.ndjson"),
    };
    let disposition = format!("attachment; filename=\"{name}\"");
    let headers = [(CONTENT_TYPE, media_type.to_string()), (CONTENT_DISPOSITION, disposition)];
    Ok((headers, Body::new(Streamed(receiver))).into_response())
}

/// What a task sends, as a body.
struct Streamed(mpsc::Receiver<Result<Bytes, EngineError>>);

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = EngineError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EngineError>>> {
        self.0.poll_recv(context).map(|sent| sent.map(|sent| sent.map(Frame::data)))
    }
}
