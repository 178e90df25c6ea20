//! Reads: a page of a user's measurements, as they were answered. Nothing here writes.
//!
//! Reads don't pass the layer, so who asks and how often is looked at here.

use axum::extract::{FromRequestParts, Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use onceward::http::Caller;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Measurements;
use super::answer;
use super::measurement::{ITEMS, prefix};
use crate::paging::{Page, shown};

/// Someone who may read.
pub(super) struct Reader(pub(super) Caller);

impl FromRequestParts<Measurements> for Reader {
    type Rejection = Response;

    async fn from_request_parts(
        head: &mut Parts,
        service: &Measurements,
    ) -> Result<Self, Response> {
        service.admit(head).map(Self).map_err(|refusal| answer::refused(&refusal))
    }
}

#[derive(Deserialize)]
struct PageQuery {
    after: Option<String>,
    limit: Option<String>,
}

/// The user in the path of a request, decoded. A name that is no text is one that nobody has.
pub(super) struct User(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for User {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::from_request_parts(head, state).await {
            Ok(Path(user_id)) => Ok(Self(user_id)),
            Err(_) => Err(answer::not_found()),
        }
    }
}

/// The page that a query asks for.
pub(super) struct Wanted(pub(super) Page);

impl<S: Send + Sync> FromRequestParts<S> for Wanted {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Response> {
        let query = Query::<PageQuery>::from_request_parts(head, state).await;
        let Query(query) = query.map_err(|error| answer::malformed(error.body_text()))?;
        let page = Page::read(query.after.as_deref(), query.limit.as_deref());
        page.map(Self).map_err(answer::malformed)
    }
}

/// `GET /v1/users/{user_id}/measurements`, in the order of their ids.
pub(super) async fn list(
    State(service): State<Measurements>,
    Reader(caller): Reader,
    Wanted(page): Wanted,
    User(user_id): User,
) -> Response {
    #[derive(Serialize)]
    struct List<'a> {
        items: Vec<&'a RawValue>,
        next: Option<String>,
    }
    let prefix = prefix(&user_id);
    let found =
        service.engine().documents(&caller.tenant, ITEMS, &prefix, page.after, page.limit).await;
    let (documents, next) = match found {
        Ok(found) => found,
        Err(error) => return answer::no_answer(&error),
    };
    let items = documents.iter().filter_map(|found| serde_json::from_slice(&found.value).ok());
    let list = List { items: items.collect(), next: next.as_ref().map(shown) };
    answer::json_of(StatusCode::OK, serde_json::to_vec(&list).unwrap_or_default().into())
}
