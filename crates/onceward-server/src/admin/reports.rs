//! `GET /v1/reports/{report}`: usage, conflicts and retention of keys (E07).
//!
//! A tenant's token asks about that tenant alone. A report reads every record of those it is
//! about; it is for people who look now and then, not for a scraper: that one has `/metrics`.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::AdminState;
use super::answer::json;
use super::auth::Who;
use super::params::{Segment, params};
use super::problem::{Problem, ProblemBody};
use crate::report::{Asked, Question, answer};
use crate::times::Moment;

/// How far back a report looks when nobody says.
const SINCE_MS: u64 = 24 * 3_600_000;

params! {
    /// What is asked.
    pub(crate) struct ReportParams {
        /// Only this tenant's. Default: the token's; the operator sees all.
        tenant: Option<String>,
        /// Only what began since then: RFC 3339, a day, a while ago (`3h`), or milliseconds since
        /// 1970. Default: 24h; `retention` is about all that is there.
        #[param(value_type = Option<String>)]
        since: Option<Moment>,
    }
}

/// A report.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReportAnswer {
    /// Which report it is.
    report: String,
    /// The store's instant.
    now: String,
    /// Since when; absent where it is about everything.
    since: Option<String>,
    /// The rows.
    #[schema(value_type = Vec<Object>)]
    items: Vec<Value>,
    /// Whether there are more rows than a report holds.
    truncated: bool,
}

/// Usage, conflicts or retention of keys.
#[utoipa::path(
    get, path = "/v1/reports/{report}", operation_id = "show_report", tag = "records",
    params(
        ("report" = String, Path, description = "usage, conflicts or retention"),
        ReportParams,
    ),
    responses(
        (status = 200, description = "The report", body = ReportAnswer),
        (status = 400, description = "Every bad parameter", body = ProblemBody),
        (status = 403, description = "Another tenant's", body = ProblemBody),
        (status = 404, description = "No such report", body = ProblemBody),
    )
)]
pub(crate) async fn show(
    State(state): State<AdminState>,
    who: Who,
    Segment(report): Segment,
    params: ReportParams,
) -> Result<Response, Problem> {
    let question = Question::parse(&report).ok_or_else(|| {
        Problem::absent("report.unknown", "there is usage, conflicts and retention")
    })?;
    let tenant = who.filter(params.tenant)?;
    let since = params.since.unwrap_or(Moment::Ago(SINCE_MS));
    let asked = Asked { question, tenant, since };
    Ok(json(StatusCode::OK, &answer(state.engine(), &asked, |_| ()).await?))
}
