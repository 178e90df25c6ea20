//! An external HTTP call as an effect: the event is posted, under its effect key and fence.
//!
//! Once only if the other side accepts the `Idempotency-Key` or the `Onceward-Fence`; otherwise at
//! least once.

use std::time::Duration;

use crate::handlers::{HandlerError, Work, write_event};

/// Statuses that are worth another attempt although they begin with a four.
const RETRYABLE: [u16; 4] = [408, 409, 425, 429];

/// Posts each event, as [`write_event`] writes it, to `url`. Anything but 2xx within `timeout` is
/// tried again; 4xx that another attempt won't mend is a dead letter at once.
///
/// # Errors
/// When the client can't be made.
pub fn http_call(url: impl Into<String>, timeout: Duration) -> Result<Work, HandlerError> {
    // Another part of the program may have chosen one before, and that is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .timeout(timeout)
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(HandlerError::permanent)?;
    let url = url.into();
    Ok(Work::elsewhere(move |attempt| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            attempt.check()?;
            let event = attempt.event();
            let mut request = client
                .post(&url)
                .header("content-type", "application/json")
                .header("idempotency-key", format!("\"{}\"", key_of(attempt.effect_key())))
                .header("onceward-fence", attempt.fence())
                .header("onceward-attempt", attempt.attempt())
                .body(write_event(event));
            if let Some(id) = &event.correlation_id
                && let Ok(id) = http::HeaderValue::from_str(id)
            {
                request = request.header("x-correlation-id", id);
            }
            let answer = request.send().await.map_err(HandlerError::retryable)?;
            let status = answer.status();
            let why = || format!("{url} answered {status}");
            if status.is_success() {
                Ok(())
            } else if status.is_client_error() && !RETRYABLE.contains(&status.as_u16()) {
                Err(HandlerError::Permanent(why()))
            } else {
                Err(HandlerError::Retryable(why()))
            }
        }
    }))
}

/// The effect key as a header can carry it: a hash of it, because ids are any Unicode.
fn key_of(effect_key: &str) -> String {
    onceward_core::fingerprint::fingerprint_bytes(effect_key.as_bytes()).to_string()
}
