//! Bookings: a hold keeps a time for a customer, and ends by itself.

use axum::extract::State;

use super::Business;
use super::command::Command;
use super::problem::Answer;
use super::resource::Kind;
use super::{expiry, fields};

/// `POST /bookings/hold`.
pub(super) async fn hold(State(business): State<Business>, mut command: Command) -> Answer {
    fields::check(&command.body, &fields::HOLD)?;
    let hold_for = business.0.hold_for;
    let mut hold = command.make(Kind::Hold);
    hold.set("status", expiry::HELD);
    hold.set(expiry::EXPIRES_AT, business.in_a_while(hold_for).await?.to_string());
    // The job that ends it is there exactly when the hold is.
    let job = expiry::job(command.caller(), &hold, hold_for)?;
    command.enqueue(job);
    command.save(hold, "create")
}
