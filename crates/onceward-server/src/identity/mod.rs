//! Identity sources: from the configuration to who asks.
//!
//! The rule kept here: a request has one tenant and one caller, or nobody; what a client says about
//! itself counts only where a trusted proxy was asked for by name. The tenant under which the
//! server keeps its own things is nobody's.

mod base64url;
mod jwks;
mod jwt;
mod secret;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use onceward::http::{Caller, Identity, Unidentified, looks_like_jwt};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

pub(crate) use self::jwt::Jwt;
pub(crate) use self::secret::{PERMITS, Secret, seal_key};
use crate::config::Config;
use crate::config::sections::{Principal, Source};
use crate::failure::Failure;

/// The tenant of what belongs to nobody else.
pub(crate) const RESERVED_TENANT: &str = onceward::engine::STORE_TENANT;

/// What health has to tell about identity.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    jwt_seen: AtomicBool,
    jwt_came: Notify,
    /// Whether such a credential is refused.
    strict: bool,
}

impl Signs {
    /// Resolves once a JWT came where static credentials are expected, with what to do about it: a
    /// refreshed token is a new caller. For one who waits.
    pub(crate) async fn jwt_comes(&self) -> &'static str {
        self.jwt_came.notified().await;
        self.advice()
    }

    fn advice(&self) -> &'static str {
        match self.strict {
            true => {
                "a JWT came as credential and was refused, as [identity] strict = true asks for; \
                 to take them use source = \"jwt\""
            }
            false => {
                "a JWT came as credential: a refreshed token is a new caller and its retries run \
                 again; use [identity] source = \"jwt\", or strict = true to refuse it"
            }
        }
    }

    fn see_jwt(&self) {
        if !self.jwt_seen.load(Ordering::Relaxed) && !self.jwt_seen.swap(true, Ordering::Relaxed) {
            self.jwt_came.notify_one();
            tracing::warn!("{}", self.advice());
        }
    }
}

type Identify = Box<dyn Fn(&Parts) -> Result<Caller, Unidentified> + Send + Sync>;

/// What is said in the log when nobody could be told from a request.
pub(crate) const HINT: &str = "a request with a key was refused with 401, because nobody could be \
    told from it. What is looked for is [identity] source, or --identity: authorization (one \
    Authorization header, the default), header (what a proxy in front says), jwt, principals, or \
    single (one caller for everything: for development)";

/// Nobody, because what is looked for is not there.
const fn nothing(looked_for: &'static str) -> Unidentified {
    Unidentified { looked_for, token: None }
}

/// Nobody, because of the token that came.
const fn bad(token: &'static str) -> Unidentified {
    Unidentified { looked_for: "", token: Some(token) }
}

/// The identity that a configuration asks for, and what it has noticed so far.
pub(crate) fn from_config(
    config: &Config,
    secret: &Secret,
) -> Result<(Identity, Arc<Signs>), Failure> {
    let section = &config.identity;
    let signs = Arc::new(Signs { strict: section.strict, ..Signs::default() });
    let identify: Identify = match section.source {
        Source::Authorization => {
            let (secret, strict) = (secret.derive("identity"), section.strict);
            let inner = Identity::Authorization { secret, strict };
            let signs = signs.clone();
            Box::new(move |head| {
                let credential = head.headers.get(AUTHORIZATION);
                if credential.is_some_and(|value| looks_like_jwt(value.as_bytes())) {
                    signs.see_jwt();
                }
                inner.judge(head)
            })
        }
        Source::Header => {
            let (Some(tenant), Some(caller)) =
                (section.tenant_header.clone(), section.caller_header.clone())
            else {
                let message = "identity source header needs --tenant-header and \
                                   --caller-header";
                return Err(Failure::usage("identity.header", message));
            };
            let inner = Identity::Headers { tenant, caller };
            Box::new(move |head| inner.judge(head))
        }
        Source::Jwt => {
            let jwt = Jwt::open(section)?;
            Box::new(move |head| {
                let token = bearer(&head.headers)
                    .ok_or(nothing("send a JWT in one header `Authorization: Bearer <token>`"))?;
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                let since = since.map_err(|_| bad("the clock of this server is not set"))?;
                let verified = jwt.verify(token, since.as_secs(), Instant::now());
                verified.map_err(|refused| bad(refused.as_str()))
            })
        }
        Source::Principals => {
            let principals = principals(&config.principals)?;
            Box::new(move |head| {
                let missing = "send a token that is known here in one header `Authorization: \
                               Bearer <token>`";
                let token = bearer(&head.headers).ok_or(nothing(missing))?;
                principal(&principals, token).ok_or(bad("the token is not known here"))
            })
        }
        Source::Single => {
            let everybody = Caller { tenant: "single".into(), caller: "single".into() };
            Box::new(move |_| Ok(everybody.clone()))
        }
    };
    let identity = Identity::Judged(Arc::new(move |head| {
        let caller = identify(head)?;
        let is_ours = caller.tenant == RESERVED_TENANT;
        if is_ours { Err(nothing("this tenant is the server's own")) } else { Ok(caller) }
    }));
    Ok((identity, signs))
}

/// The token of the one `Authorization: Bearer` header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim_start_matches(' ');
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

type Known = Vec<([u8; 32], Caller)>;

fn principals(sections: &[Principal]) -> Result<Known, Failure> {
    let known = sections.iter().map(|section| {
        let hash = hash_from_hex(&section.token_sha256).ok_or_else(|| {
            let message = "a principal's token_sha256 is 64 hexadecimal digits";
            Failure::usage("identity.principals", message)
        })?;
        let Principal { tenant, caller, .. } = section.clone();
        Ok((hash, Caller { tenant, caller }))
    });
    known.collect()
}

/// Whose token this is. Every hash is compared to its end: how long it takes says nothing.
fn principal(known: &Known, token: &str) -> Option<Caller> {
    let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    let mut found = None;
    for (theirs, caller) in known {
        let differs = theirs.iter().zip(&hash).fold(0, |differs, (a, b)| differs | (a ^ b));
        if std::hint::black_box(differs) == 0 {
            found = Some(caller);
        }
    }
    found.cloned()
}

fn hash_from_hex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests;
