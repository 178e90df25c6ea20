//! What DynamoDB reports, sorted by what it says about the request.
//!
//! Rule: a request counts as not applied only when its answer says so, or when nothing of it can
//! have reached the server. A time-out, a broken connection and an internal error leave it open.
//! What was throttled, or met a transaction under way, is tried again after a while that grows and
//! varies.

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Error;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use onceward_core::codec::CodecError;
use onceward_core::limits::LimitError;

use super::super::StoreError;

/// How long a request that did nothing is tried again.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(4);
/// The first pause is at most this long, and each further one twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// Why a request was not answered as hoped.
#[derive(Debug)]
pub(super) enum Failure {
    /// A condition did not hold: nothing was written.
    Condition,
    /// A transaction under way has one of the items: nothing was written.
    Conflict(String),
    /// The server has no room for it now, or was not reached: nothing was written.
    Busy(String),
    /// Nobody knows whether it was applied, or will be.
    Lost(String),
    /// A body is not there any more: its owner has moved on since it was read.
    Moved,
    /// Anything else: nothing was written, and trying again would not help.
    Store(StoreError),
}

impl Failure {
    /// As callers see it who asked for nothing to be written.
    pub(super) fn of_read(self) -> StoreError {
        match self {
            Self::Lost(why) => StoreError::NotApplied(why),
            other => other.of_write(),
        }
    }

    /// As callers see it whose write it was.
    pub(super) fn of_write(self) -> StoreError {
        match self {
            Self::Lost(why) => StoreError::Unknown(why),
            Self::Conflict(why) | Self::Busy(why) => StoreError::NotApplied(why),
            Self::Condition => StoreError::NotApplied("another writer was faster".into()),
            Self::Moved => StoreError::Corrupt("a stored body is not there".into()),
            Self::Store(error) => error,
        }
    }

    /// A stored item is not what was written.
    pub(super) fn corrupt(what: impl Into<String>) -> Self {
        Self::Store(StoreError::Corrupt(what.into()))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::corrupt(error.to_string())
    }
}

impl From<LimitError> for Failure {
    fn from(error: LimitError) -> Self {
        Self::Store(error.into())
    }
}

/// Sorts an error of the client.
pub(super) fn sort<E>(error: SdkError<E, HttpResponse>) -> Failure
where
    E: std::error::Error + Send + Sync + 'static,
    Error: From<SdkError<E, HttpResponse>>,
{
    match &error {
        SdkError::ConstructionFailure(_) => {
            Failure::Store(StoreError::NotApplied(text(&error, "the request can't be made")))
        }
        SdkError::TimeoutError(_) => Failure::Lost("no answer in time".into()),
        SdkError::DispatchFailure(_) if was_refused(&error) => {
            Failure::Busy(text(&error, "the server can't be reached"))
        }
        SdkError::DispatchFailure(_) | SdkError::ResponseError(_) => {
            Failure::Lost(text(&error, "the connection broke"))
        }
        SdkError::ServiceError(answer) => {
            let internal = answer.raw().status().is_server_error();
            sort_answer(&Error::from(error), internal)
        }
        _ => Failure::Lost(text(&error, "an answer that is not understood")),
    }
}

fn sort_answer(error: &Error, internal: bool) -> Failure {
    if let Error::TransactionCanceledException(canceled) = error {
        let codes = canceled.cancellation_reasons().iter().filter_map(|reason| reason.code());
        let why = canceled.message().unwrap_or("a transaction was cancelled");
        return sort_reasons(&codes.collect::<Vec<_>>(), why);
    }
    let code = error.code().unwrap_or("no code").to_string();
    let why = format!("{code}: {}", error.message().unwrap_or("no message"));
    match code.as_str() {
        "ConditionalCheckFailedException" => Failure::Condition,
        "TransactionConflictException" => Failure::Conflict(why),
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "Throttling"
        | "RequestLimitExceeded"
        | "LimitExceededException" => Failure::Busy(why),
        // Ours alone under its name, so an earlier try of it is on its way.
        "TransactionInProgressException" => Failure::Lost(why),
        "ResourceNotFoundException" => Failure::Store(StoreError::Schema(format!(
            "the table is not there ({why}); `onceward migrate` makes it"
        ))),
        _ if internal => Failure::Lost(why),
        _ => Failure::Store(StoreError::NotApplied(why)),
    }
}

/// Sorts a cancelled transaction by the reasons of its items: a condition that failed is the one
/// that counts, because a conflict beside it may be gone and change nothing.
fn sort_reasons(codes: &[&str], why: &str) -> Failure {
    let any = |wanted: &[&str]| codes.iter().any(|code| wanted.contains(code));
    if any(&["ConditionalCheckFailed"]) {
        Failure::Condition
    } else if any(&["TransactionConflict"]) {
        Failure::Conflict(why.to_string())
    } else if any(&["ThrottlingError", "ProvisionedThroughputExceeded"]) {
        Failure::Busy(why.to_string())
    } else {
        Failure::Store(StoreError::NotApplied(why.to_string()))
    }
}

/// Whether nobody took the connection, so that nothing can have been sent.
fn was_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        next = error.source();
    }
    false
}

/// The innermost cause, which says most.
fn text(error: &dyn std::error::Error, what: &str) -> String {
    let (mut cause, mut next) = (error.to_string(), error.source());
    while let Some(error) = next {
        cause = error.to_string();
        next = error.source();
    }
    format!("{what}: {cause}")
}

/// Pauses between tries.
#[derive(Debug)]
pub(super) struct Pauses {
    until: Instant,
    longest: Duration,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + RETRY_FOR, longest: FIRST_PAUSE }
    }

    /// Waits a while before the next try; false when the time for tries is over.
    pub(super) async fn next(&mut self) -> bool {
        // Any part of the longest, so that those who collided don't meet again.
        let part = getrandom::u32().map_or(0.5, |number| f64::from(number) / f64::from(u32::MAX));
        let pause = self.longest.mul_f64(part);
        self.longest = (self.longest * 2).min(LONGEST_PAUSE);
        if Instant::now() + pause > self.until {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

/// Does something that may be done again until it is answered: reads, and writes whose repetition
/// does no harm.
pub(super) async fn again<T, F>(mut ask: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut pauses = Pauses::new();
    loop {
        match ask().await {
            Err(failure @ (Failure::Conflict(_) | Failure::Busy(_) | Failure::Lost(_))) => {
                if !pauses.next().await {
                    return Err(failure);
                }
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_transaction_is_sorted_by_what_counts_most() {
        let sorted = |codes: &[&str]| sort_reasons(codes, "why");
        let condition = sorted(&["None", "TransactionConflict", "ConditionalCheckFailed"]);
        assert!(matches!(condition, Failure::Condition));
        assert!(matches!(sorted(&["TransactionConflict", "None"]), Failure::Conflict(_)));
        assert!(matches!(sorted(&["None", "ThrottlingError"]), Failure::Busy(_)));
        let refused = sorted(&["ValidationError"]);
        assert!(matches!(refused, Failure::Store(StoreError::NotApplied(_))), "{refused:?}");
    }

    #[test]
    fn i09_only_a_write_s_lost_answer_is_unknown() {
        let lost = || Failure::Lost("x".into());
        assert!(matches!(lost().of_write(), StoreError::Unknown(_)));
        assert!(matches!(lost().of_read(), StoreError::NotApplied(_)));
        assert!(matches!(Failure::Busy("x".into()).of_write(), StoreError::NotApplied(_)));
    }

    #[tokio::test]
    async fn what_was_decided_is_not_asked_again() {
        let mut tries = 0;
        let failed: Result<(), _> = again(|| {
            tries += 1;
            let answer = if tries < 3 { Failure::Busy("full".into()) } else { Failure::Condition };
            async { Err(answer) }
        })
        .await;
        assert!(matches!(failed, Err(Failure::Condition)) && tries == 3, "{failed:?}, {tries}");
    }
}
