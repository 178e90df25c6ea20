//! Identity from a signed token (RFC 7519): issuer and subject are the caller, a claim the tenant.
//!
//! Signature, issuer, audience and times are checked, the times with a bounded difference of
//! clocks. The keys are read again when their file changes; a file that can't be read leaves the
//! keys that are known. Time is an argument.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use onceward::http::{Caller, is_carried};
use onceward_core::limits::MAX_PART_BYTES;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::base64url::decode;
use super::jwks::Jwks;
use crate::config::sections::IdentitySection;
use crate::failure::Failure;
use crate::output::hex;

/// Largest token that is looked at.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Largest file of keys.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// How often the file of keys is looked at while tokens come.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Verifies tokens.
pub(crate) struct Jwt {
    file: PathBuf,
    issuer: String,
    audience: Vec<String>,
    tenant_claim: String,
    skew_s: u64,
    keys: Mutex<Keys>,
}

struct Keys {
    known: Arc<Jwks>,
    /// The file as it was when the keys were read.
    stamp: Option<(SystemTime, u64)>,
    looked_at: Instant,
}

/// Why a token names nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is no token.
    Malformed,
    /// Its signature is not by a key that is known, under the algorithm of that key.
    Signature,
    /// It is by somebody else.
    Issuer,
    /// It is for somebody else.
    Audience,
    /// It is over, or has no end.
    Expired,
    /// It is not valid yet.
    Early,
    /// It names no subject that a header carries as it is.
    Subject,
    /// It names no tenant that a header carries as it is.
    Tenant,
}

impl Refused {
    /// The same in words, as a header can carry them; never anything of the token.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "the token is not readable as a JWT",
            Self::Signature => "the signature of the token is by no key that is known here",
            Self::Issuer => "the token is by another issuer",
            Self::Audience => "the token is for another audience",
            Self::Expired => "the token has expired, or has no exp",
            Self::Early => "the token is not valid yet",
            Self::Subject => "the token names no subject that can be used",
            Self::Tenant => "the token has no tenant claim that can be used",
        }
    }
}

impl Jwt {
    /// Reads the keys.
    pub(crate) fn open(section: &IdentitySection) -> Result<Self, Failure> {
        let (Some(file), Some(issuer)) = (section.jwks_file.clone(), section.issuer.clone()) else {
            let message = "identity source jwt needs jwks_file and issuer";
            return Err(Failure::usage("identity.jwt", message));
        };
        let (known, stamp) = read(&file).map_err(|why| {
            let message = format!("can't use the keys in {}: {why}", file.display());
            Failure::usage("identity.jwks", message)
        })?;
        Ok(Self {
            file,
            issuer,
            audience: section.audience.clone(),
            tenant_claim: section.tenant_claim.clone(),
            skew_s: section.clock_skew.0 / 1_000,
            keys: Mutex::new(Keys {
                known: Arc::new(known),
                stamp: Some(stamp),
                looked_at: Instant::now(),
            }),
        })
    }

    /// Whom a token names, at `now_s` seconds since 1970 and `at` on our own clock.
    pub(crate) fn verify(&self, token: &str, now_s: u64, at: Instant) -> Result<Caller, Refused> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refused::Malformed);
        }
        let (message, signature) = token.rsplit_once('.').ok_or(Refused::Malformed)?;
        let (head, payload) = message.split_once('.').ok_or(Refused::Malformed)?;
        let head = object(head).ok_or(Refused::Malformed)?;
        // A header that must be understood (RFC 7515 §4.1.11) is one that we don't know.
        if head.contains_key("crit") {
            return Err(Refused::Malformed);
        }
        let alg = head.get("alg").and_then(Value::as_str).ok_or(Refused::Malformed)?;
        let kid = match head.get("kid") {
            None => None,
            Some(kid) => Some(kid.as_str().ok_or(Refused::Malformed)?),
        };
        let signature = decode(signature).ok_or(Refused::Malformed)?;
        let keys = self.keys(kid, at);
        if !keys.verifies(kid, alg, message.as_bytes(), &signature) {
            return Err(Refused::Signature);
        }
        let claims = object(payload).ok_or(Refused::Malformed)?;
        self.check(&claims, now_s)?;
        self.caller(&claims)
    }

    fn check(&self, claims: &Map<String, Value>, now_s: u64) -> Result<(), Refused> {
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(Refused::Issuer);
        }
        let names = |value: &Value| {
            let name = value.as_str();
            name.is_some_and(|name| self.audience.iter().any(|ours| ours == name))
        };
        let meant = match claims.get("aud") {
            None => self.audience.is_empty(),
            Some(Value::Array(all)) => all.iter().any(names),
            Some(one) => names(one),
        };
        if !meant {
            return Err(Refused::Audience);
        }
        let (now, skew) = (now_s as f64, self.skew_s as f64);
        let end = claims.get("exp").and_then(Value::as_f64).ok_or(Refused::Expired)?;
        if now >= end + skew {
            return Err(Refused::Expired);
        }
        if let Some(start) = claims.get("nbf") {
            let start = start.as_f64().ok_or(Refused::Early)?;
            if now + skew < start {
                return Err(Refused::Early);
            }
        }
        Ok(())
    }

    fn caller(&self, claims: &Map<String, Value>) -> Result<Caller, Refused> {
        let text = |name: &str| {
            let text = claims.get(name)?.as_str()?;
            (!text.is_empty() && is_carried(text)).then_some(text)
        };
        let tenant = text(&self.tenant_claim).filter(|tenant| tenant.len() <= MAX_PART_BYTES);
        let tenant = tenant.ok_or(Refused::Tenant)?;
        let subject = text("sub").ok_or(Refused::Subject)?;
        // The issuer is the same for all: what follows it can't imitate another one.
        let caller = format!("{} {subject}", self.issuer);
        let caller = match caller.len() <= MAX_PART_BYTES {
            true => caller,
            false => format!("sha256:{}", hex(&Sha256::digest(caller.as_bytes()))),
        };
        Ok(Caller { tenant: tenant.into(), caller })
    }

    /// The keys, read again if the file has changed. A key that nobody knows is a reason to look
    /// soon: keys are often changed just before the first token is signed with them.
    fn keys(&self, kid: Option<&str>, at: Instant) -> Arc<Jwks> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = kid.is_some_and(|kid| !keys.known.has(kid));
        let pause = if unknown { LOOK_EVERY / 10 } else { LOOK_EVERY };
        if at.saturating_duration_since(keys.looked_at) >= pause {
            keys.looked_at = at;
            if stamp(&self.file).ok() != keys.stamp {
                match read(&self.file) {
                    Ok((known, stamp)) => {
                        keys.known = Arc::new(known);
                        keys.stamp = Some(stamp);
                    }
                    Err(why) => {
                        let file = self.file.display();
                        tracing::warn!(%file, why, "the changed keys can't be used; the old stay");
                    }
                }
            }
        }
        keys.known.clone()
    }
}

fn read(file: &PathBuf) -> Result<(Jwks, (SystemTime, u64)), String> {
    let stamp = stamp(file)?;
    if stamp.1 > MAX_FILE_BYTES {
        return Err(format!("{} bytes, at most {MAX_FILE_BYTES}", stamp.1));
    }
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    Ok((Jwks::parse(&text)?, stamp))
}

fn stamp(file: &PathBuf) -> Result<(SystemTime, u64), String> {
    let found = std::fs::metadata(file).map_err(|error| error.to_string())?;
    let changed = found.modified().map_err(|error| error.to_string())?;
    Ok((changed, found.len()))
}

/// A part of a token: a JSON object.
fn object(part: &str) -> Option<Map<String, Value>> {
    match serde_json::from_slice(&decode(part)?).ok()? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}
