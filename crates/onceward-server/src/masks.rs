//! Masks: which members of stored values are hidden wherever people see one.
//!
//! A record under a route's endpoint has that route's mask, every other one (jobs, claims of the
//! control API, events) the default. What a program needs to work on, a job's payload in its
//! worker's hands or an outcome that is replayed, is not shown to people and stays as it is.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LOCATION, LINK, LOCATION};
use http::{HeaderName, HeaderValue};
use onceward::http::{Route, Routes, StoredResponse};
use onceward_core::diff::default_mask;
use onceward_core::key::Key;
use onceward_core::mask::{mask_query, mask_shown};

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

/// Headers whose values have addresses in them, and so queries.
const ADDRESSES: [HeaderName; 3] = [LOCATION, CONTENT_LOCATION, LINK];

/// An outcome as people may see it: of a stored response its body is masked, and hidden as a whole
/// where it is encoded; so are the queries of the addresses among its headers.
pub(crate) fn masked_outcome<'b>(outcome: &'b [u8], mask: &[String]) -> Cow<'b, [u8]> {
    let Ok(mut stored) = StoredResponse::decode(outcome) else { return mask_shown(outcome, mask) };
    let mut is_masked = false;
    for (_, value) in stored.headers.iter_mut().filter(|(name, _)| ADDRESSES.contains(name)) {
        if let Some(shown) = masked_addresses(value, mask) {
            *value = shown;
            is_masked = true;
        }
    }
    if let Some(body) = &stored.body {
        let shown = match stored.headers.contains_key(CONTENT_ENCODING) {
            true => Cow::Borrowed(&b"***"[..]),
            false => mask_shown(body, mask),
        };
        if shown != body.as_ref() {
            stored.body = Some(Bytes::from(shown.into_owned()));
            is_masked = true;
        }
    }
    if is_masked { Cow::Owned(stored.encode()) } else { Cow::Borrowed(outcome) }
}

/// A header's value with the queries of its addresses masked; none where that changes nothing. An
/// address ends where it may in a `Link` (RFC 8288 section 3).
fn masked_addresses(value: &HeaderValue, mask: &[String]) -> Option<HeaderValue> {
    let text = String::from_utf8_lossy(value.as_bytes());
    let mut shown = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(at) = rest.find('?') {
        let (before, query) = rest.split_at(at + 1);
        let (query, behind) = query.split_at(query.find(['#', '>']).unwrap_or(query.len()));
        shown += before;
        shown += &mask_query(query, mask);
        rest = behind;
    }
    shown += rest;
    let is_other = shown.as_bytes() != value.as_bytes();
    is_other.then(|| HeaderValue::from_str(&shown).unwrap_or(HeaderValue::from_static("***")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, StatusCode};

    #[track_caller]
    fn check(name: &HeaderName, value: &'static str, expected: &str) {
        let headers = HeaderMap::from_iter([(name.clone(), HeaderValue::from_static(value))]);
        for body in [None, Some(Bytes::from_static(b"{}"))] {
            let stored =
                StoredResponse { status: StatusCode::CREATED, headers: headers.clone(), body };
            let outcome = stored.encode();
            let shown = masked_outcome(&outcome, &default_mask());
            let shown = StoredResponse::decode(&shown).unwrap();
            assert_eq!(shown.headers[name], expected, "{name}: {value}");
            assert_eq!(shown.body, stored.body);
        }
    }

    #[test]
    fn m5_masked_values_in_the_addresses_of_an_answer_are_hidden() {
        check(&LOCATION, "/paid?id=1&token=abc#top", "/paid?id=1&token=***#top");
        check(&CONTENT_LOCATION, "https://host/a?password=x?y", "https://host/a?password=***");
        check(
            &LINK,
            "</a?token=abc>; rel=\"next\", </b?n=1&token=def>; rel=\"last\"",
            "</a?token=***>; rel=\"next\", </b?n=1&token=***>; rel=\"last\"",
        );
        check(&LOCATION, "/paid?id=1", "/paid?id=1");
        check(&LOCATION, "/paid/token=abc", "/paid/token=abc");
        check(&http::header::ETAG, "\"a?token=abc\"", "\"a?token=abc\"");
    }
}
