//! Reads: one resource by its id. Nothing here writes (A04).
//!
//! Reads don't pass the layer, so who asks and how often is looked at here. What another
//! organisation has under an id is not there.

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use onceward::http::Caller;

use super::id::Id;
use super::problem::{Answer, Problem};
use super::resource::{Kind, Resource, subject};
use super::{Business, expiry, instant};

/// Someone who may read.
pub(super) struct Reader(Caller);

impl FromRequestParts<Business> for Reader {
    type Rejection = Response;

    async fn from_request_parts(head: &mut Parts, business: &Business) -> Result<Self, Response> {
        let caller = business.known(head).map_err(|unknown| Problem::of_read(&unknown))?;
        match business.door().allows(&caller) {
            Ok(()) => Ok(Self(caller)),
            Err(refusal) => Err(Problem::of_read(&refusal)),
        }
    }
}

/// `GET /bookings/hold/{id}`.
pub(super) async fn hold(State(business): State<Business>, reader: Reader, Id(id): Id) -> Response {
    show(&business, &reader, Kind::Hold, &id).await
}

/// `GET /estimates/draft/{id}`.
pub(super) async fn estimate(
    State(business): State<Business>,
    reader: Reader,
    Id(id): Id,
) -> Response {
    show(&business, &reader, Kind::Estimate, &id).await
}

/// `GET /payments/link/{id}`.
pub(super) async fn payment_link(
    State(business): State<Business>,
    reader: Reader,
    Id(id): Id,
) -> Response {
    show(&business, &reader, Kind::PaymentLink, &id).await
}

/// `GET /customers/{id}`.
pub(super) async fn customer(
    State(business): State<Business>,
    reader: Reader,
    Id(id): Id,
) -> Response {
    show(&business, &reader, Kind::Customer, &id).await
}

/// `GET /jobs/{id}`.
pub(super) async fn job(State(business): State<Business>, reader: Reader, Id(id): Id) -> Response {
    show(&business, &reader, Kind::Job, &id).await
}

async fn show(business: &Business, reader: &Reader, kind: Kind, id: &str) -> Response {
    match look(business, reader, kind, id).await {
        Ok(response) => response,
        Err(Problem::Refused(refusal)) => Problem::of_read(&refusal),
        Err(problem) => problem.into_response(),
    }
}

async fn look(business: &Business, Reader(caller): &Reader, kind: Kind, id: &str) -> Answer {
    // An id that none can have is one that nothing has.
    let Ok(subject) = subject(&caller.tenant, kind, id) else { return Err(Problem::not_found()) };
    let found = business.engine().get(&subject).await?;
    let found = found.and_then(|found| Resource::of_document(kind, &found));
    let resource = found.ok_or_else(Problem::not_found)?;
    let now = instant(business.engine().now().await?);
    Ok(axum::Json(expiry::as_of(resource, now).body()).into_response())
}
