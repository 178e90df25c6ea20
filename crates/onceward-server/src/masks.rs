//! Masks: which members of stored values are hidden wherever people see one.
//!
//! A record under a route's endpoint has that route's mask, every other one (jobs, claims of the
//! control API, events) the default. What a program needs to work on, a job's payload in its
//! worker's hands or an outcome that is replayed, is not shown to people and stays as it is.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use onceward::http::{Route, Routes, StoredResponse};
use onceward_core::diff::default_mask;
use onceward_core::key::Key;
use onceward_core::mask::mask_shown;

use crate::cli::Common;
use crate::config::Config;
use crate::config::flags::Flags;
use crate::config::route::RouteSection;
use crate::failure::Failure;

/// Which names are masked, by endpoint.
#[derive(Debug)]
pub(crate) struct Masks {
    routes: HashMap<String, Vec<String>>,
    others: Vec<String>,
}

impl Default for Masks {
    fn default() -> Self {
        Self { routes: HashMap::new(), others: default_mask() }
    }
}

impl Masks {
    /// Those of these routes.
    pub(crate) fn of_routes(routes: &Routes) -> Self {
        let masks = routes.list().map(|(endpoint, policy)| (endpoint, policy.mask.clone()));
        Self { routes: masks.collect(), ..Self::default() }
    }

    /// Those of the configuration that a command runs under.
    pub(crate) fn of_config(common: &Common) -> Result<Self, Failure> {
        let config = Config::load(common.config.as_deref(), &Flags::default())?;
        let route = |section: &RouteSection| Route::new(&section.r#match, section.policy());
        let routes: Result<Vec<_>, _> = config.routes.iter().map(route).collect();
        Ok(Self::of_routes(&Routes::written(routes?)))
    }

    /// Which names are masked in the values of this key.
    pub(crate) fn of(&self, key: &Key) -> &[String] {
        self.routes.get(&*key.scope()).unwrap_or(&self.others)
    }
}

/// An outcome as people may see it: of a stored response its body is masked, and hidden as a whole
/// where it is encoded.
pub(crate) fn masked_outcome<'b>(outcome: &'b [u8], mask: &[String]) -> Cow<'b, [u8]> {
    let Ok(mut stored) = StoredResponse::decode(outcome) else { return mask_shown(outcome, mask) };
    let Some(body) = &stored.body else { return Cow::Borrowed(outcome) };
    let shown = match stored.headers.contains_key(CONTENT_ENCODING) {
        true => Cow::Borrowed(&b"***"[..]),
        false => mask_shown(body, mask),
    };
    if shown == body.as_ref() {
        return Cow::Borrowed(outcome);
    }
    stored.body = Some(Bytes::from(shown.into_owned()));
    Cow::Owned(stored.encode())
}
