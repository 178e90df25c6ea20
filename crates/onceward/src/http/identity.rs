//! Who asks: tenant and caller of a request.
//!
//! There is no anonymous shared scope: no identity, no claim. Where credentials come from and how
//! they are checked is told by whoever builds the layer; this file never reads a file or a flag.

use std::fmt;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use onceward_core::limits::MAX_PART_BYTES;
use sha2::{Digest, Sha256};

/// Tenant and caller, as identified at the door.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The organisation that everything is scoped by.
    pub tenant: String,
    /// Who of it.
    pub caller: String,
}

type Custom = dyn Fn(&Parts) -> Option<Caller> + Send + Sync;
type Judge = dyn Fn(&Parts) -> Result<Caller, Unidentified> + Send + Sync;

/// Why nobody can be told: for whoever asks, and for the log. Never a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unidentified {
    /// What is looked for, and so what to send.
    pub looked_for: &'static str,
    /// What is wrong with the bearer token that came, if one did (RFC 6750, section 3.1): visible
    /// ASCII and blanks, without `"` and `\`.
    pub token: Option<&'static str>,
}

/// Where identity comes from.
#[derive(Clone)]
pub enum Identity {
    /// Tenant and caller are a keyed hash of the `Authorization` header: for static credentials.
    Authorization {
        /// The key of the hash; the same for all processes on one store.
        secret: [u8; 32],
        /// Refuses a JWT there: a refreshed token would be a new caller.
        strict: bool,
    },
    /// Two headers that a trusted proxy sets.
    Headers {
        /// Names the tenant.
        tenant: HeaderName,
        /// Names the caller.
        caller: HeaderName,
    },
    /// One caller for everything: for development, asked for by name.
    Single(Caller),
    /// Anything else: a function from the request's head.
    Custom(Arc<Custom>),
    /// The same, of one that says why it knows nobody.
    Judged(Arc<Judge>),
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Authorization { .. } => "Authorization",
            Self::Headers { .. } => "Headers",
            Self::Single(_) => "Single",
            Self::Custom(_) => "Custom",
            Self::Judged(_) => "Judged",
        })
    }
}

impl Identity {
    /// Who sends this request, or none when nobody can be told.
    #[must_use]
    pub fn identify(&self, head: &Parts) -> Option<Caller> {
        // Services behind would read another one, or none.
        self.named(head).filter(Caller::is_carried)
    }

    fn named(&self, head: &Parts) -> Option<Caller> {
        match self {
            Self::Authorization { secret, strict } => {
                let credential = credential(single(&head.headers, &AUTHORIZATION)?)?;
                if *strict && looks_like_jwt(credential) {
                    return None;
                }
                let hash = keyed_hash(secret, credential);
                Some(Caller { tenant: hash.clone(), caller: hash })
            }
            Self::Headers { tenant, caller } => {
                let text = |name| {
                    let value = std::str::from_utf8(single(&head.headers, name)?).ok()?;
                    (1..=MAX_PART_BYTES).contains(&value.len()).then(|| value.to_string())
                };
                Some(Caller { tenant: text(tenant)?, caller: text(caller)? })
            }
            Self::Single(caller) => Some(caller.clone()),
            Self::Custom(identify) => identify(head),
            Self::Judged(judge) => judge(head).ok(),
        }
    }
}

impl Identity {
    /// Who sends this request, or why nobody can be told.
    ///
    /// # Errors
    /// When nobody can be told.
    pub fn judge(&self, head: &Parts) -> Result<Caller, Unidentified> {
        let mut token = None;
        let looked_for = match self {
            Self::Judged(judge) => {
                let named = judge(head)?;
                let looked_for = "a tenant and a caller that a header carries as they are";
                let unidentified = Unidentified { looked_for, token: None };
                return named.is_carried().then_some(named).ok_or(unidentified);
            }
            Self::Authorization { strict, .. } => {
                let credential = single(&head.headers, &AUTHORIZATION);
                if *strict && credential.is_some_and(looks_like_jwt) {
                    token = Some("a JWT is not taken here, only static credentials");
                }
                "send credentials in one Authorization header: callers are told apart by it"
            }
            Self::Headers { .. } => {
                "two headers that the proxy in front sets say who asks, and they are not there"
            }
            Self::Single(_) | Self::Custom(_) => "send credentials",
        };
        self.identify(head).ok_or(Unidentified { looked_for, token })
    }
}

impl Caller {
    /// Whether services behind can be told of it.
    fn is_carried(&self) -> bool {
        is_carried(&self.tenant) && is_carried(&self.caller)
    }
}

/// Whether a header carries a text as it is: control characters are refused on the way, and blanks
/// at its ends are lost.
#[must_use]
pub fn is_carried(text: &str) -> bool {
    text.trim() == text && !text.contains(char::is_control)
}

/// Schemes that say nothing by themselves (RFC 9110, section 11.1, and those in use).
const SCHEMES: [&str; 17] = [
    "apikey",
    "api-key",
    "aws4-hmac-sha256",
    "basic",
    "bearer",
    "digest",
    "dpop",
    "gnap",
    "hawk",
    "hoba",
    "jwt",
    "key",
    "mutual",
    "negotiate",
    "ntlm",
    "oauth",
    "token",
];

/// An `Authorization` value that has a credential: behind its scheme, or instead of one. Everybody
/// who sends none would be the same caller.
fn credential(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    let scheme = value.split(u8::is_ascii_whitespace).next()?;
    let rest = value[scheme.len()..].trim_ascii();
    let is_scheme = |known: &&str| known.as_bytes().eq_ignore_ascii_case(scheme);
    if rest.is_empty() && (value.is_empty() || SCHEMES.iter().any(is_scheme)) {
        return None;
    }
    // A user without a name and a password.
    let is_empty_basic = scheme.eq_ignore_ascii_case(b"basic")
        && std::str::from_utf8(rest)
            .ok()
            .and_then(|rest| base64url(rest.trim_end_matches('=')))
            .is_some_and(|login| login.is_empty() || login == b":");
    (!is_empty_basic).then_some(value)
}

/// Whether an `Authorization` value carries a JWT, which changes when it is refreshed: signed
/// (three parts) or encrypted (five), its first part an encoded JSON object however it is spaced.
#[must_use]
pub fn looks_like_jwt(credential: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(credential) else { return false };
    let apart = |character: char| character.is_whitespace() || "\",".contains(character);
    // As a parameter (`token=…`), or padded, which naive encoders do.
    text.split(apart).any(|word| {
        let parameter = word.split_once('=').map_or("", |(_, value)| value);
        is_jwt(word) || is_jwt(parameter)
    })
}

fn is_jwt(token: &str) -> bool {
    let head = token.split('.').next().unwrap_or_default().trim_end_matches('=');
    let is_object = |head: Vec<u8>| serde_json::from_slice::<Object>(&head).is_ok();
    matches!(token.split('.').count(), 3 | 5)
        && (head.starts_with("eyJ") || base64url(head).is_some_and(is_object))
}

type Object = serde_json::Map<String, serde_json::Value>;

/// What base64url stands for (RFC 4648, section 5), without padding.
fn base64url(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut held, mut bits) = (Vec::with_capacity(text.len()), 0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits & 0xff) as u8);
        }
    }
    Some(out)
}

/// The value of a header that comes exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    match values.next() {
        None if !first.is_empty() => Some(first.as_bytes()),
        _ => None,
    }
}

/// SHA-256 over the key, twice, as HMAC does for a key of this length.
fn keyed_hash(secret: &[u8; 32], text: &[u8]) -> String {
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        for (place, key) in block.iter_mut().zip(secret) {
            *place ^= key;
        }
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
    let outer = Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize();
    outer[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn head(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_same_credential_is_the_same_caller_and_the_secret_matters() {
        let identity = |secret| Identity::Authorization { secret, strict: false };
        let alice = head(&[("authorization", "Bearer alice")]);
        let bob = head(&[("authorization", "Bearer bob")]);
        let one = identity([1; 32]).identify(&alice).unwrap();
        assert_eq!(one, identity([1; 32]).identify(&alice).unwrap());
        assert_ne!(one, identity([2; 32]).identify(&alice).unwrap());
        assert_ne!(one, identity([1; 32]).identify(&bob).unwrap());
        assert!(!one.tenant.contains("alice"));
    }

    #[test]
    fn no_identity_or_two_is_none() {
        let identity = Identity::Authorization { secret: [1; 32], strict: false };
        assert_eq!(identity.identify(&head(&[])), None);
        assert_eq!(identity.identify(&head(&[("authorization", "")])), None);
        let twice = head(&[("authorization", "a"), ("authorization", "b")]);
        assert_eq!(identity.identify(&twice), None);
        let headers = Identity::Headers {
            tenant: HeaderName::from_static("x-tenant"),
            caller: HeaderName::from_static("x-caller"),
        };
        assert_eq!(headers.identify(&head(&[("x-tenant", "a")])), None);
        let both = headers.identify(&head(&[("x-tenant", "a"), ("x-caller", "b")])).unwrap();
        assert_eq!(both, Caller { tenant: "a".into(), caller: "b".into() });
    }

    #[test]
    fn l6_a_scheme_without_a_credential_is_nobody() {
        let identity = Identity::Authorization { secret: [1; 32], strict: false };
        let who = |value: &str| identity.identify(&head(&[("authorization", value)]));
        for empty in [
            "Bearer",
            "bearer ",
            "Bearer \t ",
            "Basic",
            "Basic Og==",
            "basic  Og",
            "Basic Oh==",
            "Basic =",
            "Token",
            "Digest ",
            "Negotiate",
            " ",
        ] {
            assert_eq!(who(empty), None, "{empty:?}");
        }
        let mut seen = std::collections::HashSet::new();
        for somebody in
            ["Bearer a", "a", "Basic Og==x", "Basic OnB3", "Basic c2s6", "Custom", "Bearer Bearer"]
        {
            assert!(seen.insert(who(somebody).unwrap()), "{somebody:?}");
        }
        assert_eq!(who("Bearer a "), who("Bearer a"), "as HTTP/1 has it already");
    }

    #[test]
    fn l5_what_a_header_does_not_carry_as_it_is_is_nobody() {
        let headers = Identity::Headers {
            tenant: HeaderName::from_static("x-tenant"),
            caller: HeaderName::from_static("x-caller"),
        };
        let who = |tenant: &str| {
            headers.identify(&head(&[("x-tenant", tenant), ("x-caller", "ada")])).is_some()
        };
        for (tenant, is_known) in [
            ("acme", true),
            ("acme inc", true),
            ("größe", true),
            (" acme", false),
            ("acme ", false),
            ("acme\t", false),
            ("ac\tme", false),
            ("acme\u{a0}", false),
            ("ac\u{85}me", false),
        ] {
            assert_eq!(who(tenant), is_known, "{tenant:?}");
        }
        for (tenant, caller) in [("a\nb", "c"), ("a", "b\u{7f}"), ("a", " b")] {
            let named = Caller { tenant: tenant.into(), caller: caller.into() };
            let custom = Identity::Custom(Arc::new(move |_| Some(named.clone())));
            assert_eq!(custom.identify(&head(&[])), None, "{tenant:?} {caller:?}");
        }
    }

    #[test]
    fn i30_a_jwt_is_noticed_and_refused_under_strict() {
        let jwt = "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.x";
        assert!(looks_like_jwt(jwt.as_bytes()));
        let strict = Identity::Authorization { secret: [1; 32], strict: true };
        for jwt in [
            jwt,
            // Encrypted, and with white space before, in and behind the header's object.
            "Bearer eyJhbGciOiJkaXIiLCJlbmMiOiJBMjU2R0NNIn0..aXY.Y2lwaGVy.dGFn",
            "Bearer eyAiYWxnIjogIm5vbmUiIH0.eyJzdWIiOiJhIn0.",
            "Bearer ewogICJhbGciOiAibm9uZSIKfQ.eyJzdWIiOiJhIn0.x",
            "Bearer IHsiYWxnIjoibm9uZSJ9.eyJzdWIiOiJhIn0.x",
            "Bearer\teyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.x",
            "Token token=\"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.x\"",
            "Token token=eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.x",
            // Padded, though RFC 7515 has no padding.
            "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0=.c2ln",
            "Bearer eyAiYWxnIjoiSFMyNTYifQ==.eyJzdWIiOiJhIn0=.c2ln",
        ] {
            assert!(looks_like_jwt(jwt.as_bytes()), "{jwt}");
            assert_eq!(strict.identify(&head(&[("authorization", jwt)])), None, "{jwt}");
        }
        for other in ["Bearer sk_live_1.2", "Bearer a.b.c", "Bearer ey.es.on", "Basic YTpi", ""] {
            assert!(!looks_like_jwt(other.as_bytes()), "{other}");
        }
        assert!(strict.identify(&head(&[("authorization", "Bearer sk_1")])).is_some());
    }

    /// RFC 4231, test case 2 has a short key; a key of 32 bytes behaves the same once padded.
    #[test]
    fn the_keyed_hash_is_hmac() {
        let mut secret = [0; 32];
        secret[..4].copy_from_slice(b"Jefe");
        let hash = keyed_hash(&secret, b"what do ya want for nothing?");
        assert_eq!(hash, "5bdcc146bf60754e6a042426089575c7");
    }
}
