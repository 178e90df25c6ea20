//! The HTTP client that keeps its key across retries (contract A14, E08).
//!
//! A write gets a key when it has none, and every try of it carries the same one, so that a lost
//! answer costs a retry and never a second effect. What is retried, when and how often is in
//! `retry`; how a server's refusals read is in `conflict`; keys that outlive the process are in
//! `keys`. Nothing here reads the environment: a proxy is a matter of the `reqwest` client that you
//! bring.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use onceward::client::Client;
//!
//! let client = Client::new()?;
//! let paid = client
//!     .post("http://127.0.0.1:7600/v1/payments")
//!     .json(&serde_json::json!({ "amount": 5 }))
//!     .with_idempotency_key("order-17")
//!     .send()
//!     .await?;
//! assert!(paid.status.is_success());
//! # Ok(())
//! # }
//! ```

mod answer;
mod call;
mod conflict;
mod error;
mod keys;
mod retry;

pub use answer::Answer;
pub use call::Call;
pub use conflict::{Conflict, ConflictKind};
pub use error::ClientError;
pub use keys::{KEYS_MAX, KeyStore, NAME_BYTES_MAX, new_key};
pub use retry::{BUDGET_RESERVE, ClientOptions};

use std::sync::Arc;

use http::Method;

use retry::Budget;

/// Sends requests, each with one key for all its tries. Cheap to clone; clones share the budget.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    options: Arc<ClientOptions>,
    budget: Arc<Budget>,
}

impl Client {
    /// A client with default options.
    ///
    /// # Errors
    /// When the TLS of this machine can't be set up.
    pub fn new() -> Result<Self, ClientError> {
        Self::with_options(ClientOptions::default())
    }

    /// A client with these options.
    ///
    /// # Errors
    /// When the TLS of this machine can't be set up.
    pub fn with_options(options: ClientOptions) -> Result<Self, ClientError> {
        // Refused when the program has chosen a provider itself: then that one counts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            // A redirected POST becomes a GET: the answer would not be this request's.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| ClientError::Setup(error.to_string()))?;
        Ok(Self::with_http(http, options))
    }

    /// A client over a `reqwest` client of your own: proxies, certificates, DNS. It should not
    /// follow redirects nor retry by itself.
    #[must_use]
    pub fn with_http(http: reqwest::Client, options: ClientOptions) -> Self {
        Self { http, options: Arc::new(options), budget: Arc::default() }
    }

    /// A request to be sent.
    pub fn request(&self, method: Method, url: impl Into<String>) -> Call {
        Call::new(self.clone(), method, url.into())
    }

    /// A GET: retried without a key, because it writes nothing.
    pub fn get(&self, url: impl Into<String>) -> Call {
        self.request(Method::GET, url)
    }

    /// A POST with a key of its own.
    pub fn post(&self, url: impl Into<String>) -> Call {
        self.request(Method::POST, url)
    }

    /// A PUT with a key of its own.
    pub fn put(&self, url: impl Into<String>) -> Call {
        self.request(Method::PUT, url)
    }

    /// A PATCH with a key of its own.
    pub fn patch(&self, url: impl Into<String>) -> Call {
        self.request(Method::PATCH, url)
    }

    /// A DELETE with a key of its own.
    pub fn delete(&self, url: impl Into<String>) -> Call {
        self.request(Method::DELETE, url)
    }
}
