//! The description of the control API, generated from the code that serves it.

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Content, ContentBuilder, OpenApi as Document, Ref, RefOr, Response as Answer, ResponseBuilder,
};

const JSON: &str = "application/json";
const PROBLEM_JSON: &str = "application/problem+json";

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
    let mut document = super::described().into_openapi();
    for path in document.paths.paths.values_mut() {
        let methods = [&mut path.get, &mut path.post, &mut path.put, &mut path.delete];
        methods.into_iter().filter_map(Option::as_mut).for_each(add_common_answers);
    }
    document
}

/// Answers that every endpoint of a kind may give, and the media type of problems.
fn add_common_answers(operation: &mut Operation) {
    let is_open = operation
        .security
        .as_ref()
        .is_some_and(|security| security.iter().all(|one| *one == SecurityRequirement::default()));
    let has_body = operation.request_body.is_some();
    let answers = &mut operation.responses.responses;
    for answer in answers.values_mut() {
        if let RefOr::T(answer) = answer
            && answer.content.get(JSON).is_some_and(is_problem)
            && let Some(content) = answer.content.shift_remove(JSON)
        {
            answer.content.insert(PROBLEM_JSON.into(), content);
        }
    }
    let common = [
        ("400", !is_open, "Something in the request is wrong"),
        ("401", !is_open, "No token, or one that nobody has"),
        ("403", !is_open, "Not this token's to do or to see"),
        ("408", has_body, "The body did not arrive in time"),
        ("413", has_body, "The body is too large"),
        ("429", !is_open, "Too many wrong tokens came from this address"),
        ("503", !is_open, "The store gives no answer, or the server goes down"),
    ];
    for (status, may_be, description) in common {
        if may_be {
            answers.entry(status.into()).or_insert_with(|| RefOr::T(problem(description)));
        }
    }
}

fn is_problem(content: &RefOr<Content>) -> bool {
    let RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. }) = content else { return false };
    schema.ref_location.ends_with("/Problem")
}

fn problem(description: &str) -> Answer {
    let schema = Ref::from_schema_name("Problem");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build()
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
