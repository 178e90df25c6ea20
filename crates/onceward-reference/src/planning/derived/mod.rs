//! What is derived from writes by jobs, and may lag behind them (A02).
//!
//! Each handler runs in one commit with the completion of its job: what it counts, tells or indexes
//! is there exactly when the job is done, however often a worker was killed on the way.

pub(super) mod notifications;
pub(super) mod search;
pub(super) mod summary;
