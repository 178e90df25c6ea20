//! Permission: a hook that is asked before a claim and before a replay (B06).
//!
//! Whoever answers sees method, path and headers, never the body; the path in the one spelling that
//! the key is made of, so that none leads around a rule about paths. A refusal is a whole response;
//! it is passed on and nothing is stored. Without a hook a replay is as safe as the credential that
//! identified the caller.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http::request::Parts;

use super::identity::Caller;

/// What an authorisation comes to: allowed, or the response that says why not.
pub type Authorized<'a> = BoxFuture<'a, Result<(), Response<Bytes>>>;

type AuthorizeFn = dyn for<'a> Fn(&'a Parts, &'a Caller) -> Authorized<'a> + Send + Sync;

/// Asks whether a caller may do something.
#[derive(Clone)]
pub struct Authorize(Arc<AuthorizeFn>);

impl Authorize {
    /// A hook from a function.
    #[must_use]
    pub fn new(
        ask: impl for<'a> Fn(&'a Parts, &'a Caller) -> Authorized<'a> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(ask))
    }

    /// Whether this caller may send this request.
    ///
    /// # Errors
    /// The response that says why not.
    pub async fn ask(&self, head: &Parts, caller: &Caller) -> Result<(), Response<Bytes>> {
        (self.0)(head, caller).await
    }
}

impl fmt::Debug for Authorize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorize")
    }
}
