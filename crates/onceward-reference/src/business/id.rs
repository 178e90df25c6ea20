//! The id in a path.

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;

use super::problem::Problem;

/// The one id in the path of a request, decoded. An id that is no text is one that nothing has.
pub(super) struct Id(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(head, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(_) => Err(Problem::not_found()),
        }
    }
}
