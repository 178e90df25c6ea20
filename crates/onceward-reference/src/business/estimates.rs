//! Estimates: what something would cost, as a draft that people look at.

use super::command::Command;
use super::fields;
use super::problem::Answer;
use super::resource::Kind;

/// `POST /estimates/draft`.
pub(super) async fn draft(command: Command) -> Answer {
    fields::check(&command.body, &fields::ESTIMATE)?;
    let mut estimate = command.make(Kind::Estimate);
    estimate.set("status", "draft");
    command.save(estimate, "create")
}
