//! Jobs: work at a customer's, made or replaced as a whole, under an id that the client chooses.

use super::command::Command;
use super::fields;
use super::id::Id;
use super::problem::Answer;
use super::resource::Kind;

/// `PUT /jobs/{id}`.
pub(super) async fn put(Id(id): Id, command: Command) -> Answer {
    fields::check(&command.body, &fields::JOB)?;
    let mut job = command.replace(Kind::Job, &id).await?;
    if job.text("status").is_empty() {
        job.set("status", "open");
    }
    command.save(job, "put")
}
