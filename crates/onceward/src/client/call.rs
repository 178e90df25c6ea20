//! One call: a request, one key, and as many tries as it takes within time and budget.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, IF_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use onceward_core::header_key::parse_header_key;
use serde::Serialize;

use super::Client;
use super::answer::Answer;
use super::conflict::Conflict;
use super::error::ClientError;
use super::keys::{KeyStore, new_key};
use super::retry::{Next, a_little_later};
use crate::engine::random_u64;

/// A request to be sent. Build it, then [`Call::send`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is sent"]
pub struct Call {
    client: Client,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Bytes,
    key: KeyChoice,
    bad: Option<ClientError>,
}

#[derive(Debug)]
enum KeyChoice {
    /// One is made for a write.
    Made,
    Given(String),
    Stored(Arc<KeyStore>, String),
    Without,
}

/// What one try came to.
enum Tried {
    Answered(Answer),
    Failed { why: String, nothing_sent: bool },
}

impl Call {
    pub(super) fn new(client: Client, method: Method, url: String) -> Self {
        let (headers, body) = (HeaderMap::new(), Bytes::new());
        Self { client, method, url, headers, body, key: KeyChoice::Made, bad: None }
    }

    /// Sends this key with every try, instead of one that is made.
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = KeyChoice::Given(key.into());
        self
    }

    /// Sends the key that is stored under this name; made and synced to the disk before the first
    /// try, so that a process that starts anew goes on with the same one. It stays until
    /// [`KeyStore::forget`]: call that once you have recorded the answer.
    pub fn with_stored_key(mut self, keys: &Arc<KeyStore>, name: impl Into<String>) -> Self {
        self.key = KeyChoice::Stored(keys.clone(), name.into());
        self
    }

    /// Sends no key. A write is then retried only when it certainly was not sent.
    pub fn without_idempotency_key(mut self) -> Self {
        self.key = KeyChoice::Without;
        self
    }

    /// Sends a header; a later one of the same name replaces it.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            (Ok(name), Ok(value)) => {
                self.headers.insert(name, value);
            }
            // The value may be a credential: only the name is repeated.
            _ => self.bad = Some(ClientError::Request(format!("header {name:?} can't be sent"))),
        }
        self
    }

    /// Writes only over the version with this ETag.
    pub fn if_match(self, etag: &str) -> Self {
        self.header(IF_MATCH.as_str(), etag)
    }

    /// Sends these bytes.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, body: &T) -> Self {
        match serde_json::to_vec(body) {
            Ok(json) => self.body = json.into(),
            Err(error) => self.bad = Some(ClientError::Request(error.to_string())),
        }
        let json = HeaderValue::from_static("application/json");
        self.headers.entry(CONTENT_TYPE).or_insert(json);
        self
    }

    /// Sends it, again if need be, and answers with the last answer.
    ///
    /// # Errors
    /// When there is no whole answer, or the server refuses the key or the version.
    pub async fn send(mut self) -> Result<Answer, ClientError> {
        if let Some(bad) = self.bad.take() {
            return Err(bad);
        }
        let key = self.choose_key().await?;
        let client = self.client.clone();
        let (options, budget) = (&*client.options, &*client.budget);
        let deadline = Instant::now() + options.total_timeout;
        budget.earn();
        let mut nothing_sent = true;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let tried = self.try_once(key.as_deref(), attempt, deadline).await?;
            let (next, conflict) = self.judge(&tried, key.is_some());
            if let Tried::Failed { nothing_sent: unsent, .. } = &tried {
                nothing_sent &= unsent;
            }
            let pause = match next {
                Next::Final => None,
                Next::Again => options.backoff.delay_ms(attempt, random_u64()),
                Next::AgainAfter(after) if attempt < options.backoff.attempts => {
                    let pause = a_little_later(after, random_u64());
                    u64::try_from(pause.as_millis()).ok()
                }
                Next::AgainAfter(_) => None,
            };
            let pause = pause.map(Duration::from_millis).filter(|pause| {
                let fits = Instant::now().checked_add(*pause).is_some_and(|then| then < deadline);
                fits && budget.spend()
            });
            let Some(pause) = pause else {
                return ended(tried, conflict, key, attempt, nothing_sent);
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn choose_key(&mut self) -> Result<Option<String>, ClientError> {
        let writes = !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let key = match std::mem::replace(&mut self.key, KeyChoice::Without) {
            KeyChoice::Without => return Ok(None),
            KeyChoice::Made if writes => new_key(),
            KeyChoice::Made => return Ok(None),
            KeyChoice::Given(key) => key,
            KeyChoice::Stored(keys, name) => {
                let stored = tokio::task::spawn_blocking(move || keys.key(&name)).await;
                stored.map_err(std::io::Error::other)??
            }
        };
        let fits = parse_header_key(key.as_bytes());
        fits.map_err(|error| ClientError::Request(error.to_string()))?;
        Ok(Some(key))
    }

    async fn try_once(
        &self,
        key: Option<&str>,
        attempt: u32,
        deadline: Instant,
    ) -> Result<Tried, ClientError> {
        let options = &*self.client.options;
        let left = deadline.saturating_duration_since(Instant::now());
        let mut request = self
            .client
            .http
            .request(self.method.clone(), &self.url)
            .headers(self.headers.clone())
            .timeout(options.try_timeout.min(left))
            .body(self.body.clone());
        if let Some(key) = key {
            request = request.header(&options.key_header, key);
        }
        let failed = |error: &reqwest::Error| {
            let nothing_sent = error.is_connect();
            Tried::Failed { why: told(error), nothing_sent }
        };
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_builder() => return Err(ClientError::Request(told(&error))),
            Err(error) => return Ok(failed(&error)),
        };
        let mut body = BytesMut::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                // Half an answer is none: what the request did is not known.
                Err(error) => return Ok(failed(&error)),
            }
            if body.len() as u64 > options.answer_bytes_max {
                return Err(ClientError::TooLarge { most: options.answer_bytes_max });
            }
        }
        Ok(Tried::Answered(Answer {
            status: response.status(),
            headers: std::mem::take(response.headers_mut()),
            body: body.freeze(),
            key: key.map(str::to_string),
            attempts: attempt,
        }))
    }

    fn judge(&self, tried: &Tried, keyed: bool) -> (Next, Option<Conflict>) {
        let repeatable = keyed || self.method.is_safe();
        match tried {
            Tried::Failed { nothing_sent, .. } if repeatable || *nothing_sent => {
                (Next::Again, None)
            }
            Tried::Failed { .. } => (Next::Final, None),
            Tried::Answered(answer) => {
                let conflict = Conflict::read(answer.status, &answer.body);
                let options = &self.client.options;
                let next = options.judge(answer.status, &answer.headers, conflict.as_ref());
                (if repeatable { next } else { Next::Final }, conflict)
            }
        }
    }
}

fn ended(
    tried: Tried,
    conflict: Option<Conflict>,
    key: Option<String>,
    attempts: u32,
    nothing_sent: bool,
) -> Result<Answer, ClientError> {
    match (tried, conflict) {
        (Tried::Failed { why, .. }, _) => {
            Err(ClientError::NoAnswer { attempts, key, nothing_sent, why })
        }
        (Tried::Answered(_), Some(conflict)) => {
            Err(ClientError::Conflict(Box::new(Conflict { key, ..conflict })))
        }
        (Tried::Answered(answer), None) => Ok(answer),
    }
}

/// An error with its causes, but without the URL, whose query may hold what is nobody's business.
fn told(error: &reqwest::Error) -> String {
    let mut text = match error.is_timeout() {
        true => "time-out".to_string(),
        false => "no whole answer".to_string(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
