//! The description of the control API, generated from the code that serves it.

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Onceward control API",
        description = "Claims, permits, jobs, records and audit: every effect once, always forward."
    ),
    tags(
        (name = "claims", description = "May this run?"),
        (name = "permits", description = "What a permit's holder does"),
        (name = "jobs", description = "Making and taking jobs"),
        (name = "records", description = "What is remembered, and decisions by hand"),
        (name = "audit", description = "What happened"),
        (name = "server", description = "How the server is"),
    )
)]
struct Head;

/// The document without its paths.
pub(super) fn head() -> Document {
    let mut head = Head::openapi();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = head.components.get_or_insert_default();
    components.security_schemes.insert("bearer".into(), bearer.into());
    head.security = Some(vec![SecurityRequirement::new("bearer", [] as [&str; 0])]);
    head
}

/// The whole document.
pub(crate) fn document() -> Document {
    super::described().into_openapi()
}

/// This description.
#[utoipa::path(
    get, path = "/openapi.json", tag = "server", security(()),
    responses((status = 200, description = "This document", body = Object))
)]
pub(crate) async fn serve() -> Response {
    // Made anew each time: it is asked for rarely, and a static would outlive its use.
    let text = document().to_json().unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}
