//! Payment links: open, then paid or cancelled, or expired when nobody did either.

use axum::extract::State;

use super::command::Command;
use super::expiry::{EXPIRES_AT, OPEN, as_of};
use super::id::Id;
use super::problem::{Answer, Problem};
use super::resource::Kind;
use super::{Business, fields, instant};

/// `POST /payments/link`.
pub(super) async fn link(State(business): State<Business>, command: Command) -> Answer {
    fields::check(&command.body, &fields::PAYMENT_LINK)?;
    let mut link = command.make(Kind::PaymentLink);
    link.set("state", OPEN);
    link.set("url", link.kind.path(&link.id));
    link.set(EXPIRES_AT, business.in_a_while(business.0.link_for).await?.to_string());
    command.save(link, "create")
}

/// `POST /payments/link/{id}/pay`.
pub(super) async fn pay(State(business): State<Business>, Id(id): Id, command: Command) -> Answer {
    close(&business, &id, command, ("pay", "paid")).await
}

/// `POST /payments/link/{id}/cancel`.
pub(super) async fn cancel(
    State(business): State<Business>,
    Id(id): Id,
    command: Command,
) -> Answer {
    close(&business, &id, command, ("cancel", "cancelled")).await
}

async fn close(
    business: &Business,
    id: &str,
    command: Command,
    (action, state): (&str, &str),
) -> Answer {
    let link = command.load(Kind::PaymentLink, id).await?;
    let mut link = as_of(link, instant(business.engine().now().await?));
    if link.text("state") != OPEN {
        return Err(Problem::link_closed(&link.text("state")));
    }
    link.set("state", state);
    command.save(link, action)
}
