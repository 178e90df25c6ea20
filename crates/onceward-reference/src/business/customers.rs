//! Customers: made or replaced as a whole, under an id that the client chooses.

use super::command::Command;
use super::fields;
use super::id::Id;
use super::problem::Answer;
use super::resource::Kind;

/// `PUT /customers/{id}`.
pub(super) async fn put(Id(id): Id, command: Command) -> Answer {
    fields::check(&command.body, &fields::CUSTOMER)?;
    let customer = command.replace(Kind::Customer, &id).await?;
    command.save(customer, "put")
}
