//! Public keys from a JWKS file (RFC 7517), each good for one algorithm only.
//!
//! A key says what it can verify; a token never chooses. That closes the two classic holes: `none`,
//! and a public RSA key used as the secret of an HMAC. Keys that sign with secrets are not read.

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;

use super::base64url::decode;

/// Most keys of a file.
const MAX_KEYS: usize = 100;

/// The public keys of an issuer.
#[derive(Debug, Default)]
pub(super) struct Jwks(Vec<Key>);

#[derive(Debug)]
struct Key {
    kid: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rs256 { n: Vec<u8>, e: Vec<u8> },
    Es256(Vec<u8>),
    EdDsa(Vec<u8>),
}

#[derive(Deserialize)]
struct File {
    keys: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Jwks {
    /// Reads a file's text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text)
            .map_err(|error| format!("it is no JWKS ({{\"keys\":[…]}}): {error}"))?;
        if file.keys.len() > MAX_KEYS {
            return Err(format!("it has {} keys, at most {MAX_KEYS}", file.keys.len()));
        }
        let keys: Vec<Key> = file.keys.into_iter().filter_map(Key::read).collect();
        let mut seen = std::collections::HashSet::new();
        let twice = keys.iter().filter_map(|key| key.kid.as_deref()).find(|kid| !seen.insert(*kid));
        if let Some(kid) = twice {
            return Err(format!("two of its keys have the kid {kid:?}"));
        }
        if keys.is_empty() {
            return Err("it has no public key for RS256, ES256 or EdDSA".into());
        }
        Ok(Self(keys))
    }

    /// Whether a key has this id.
    pub(super) fn has(&self, kid: &str) -> bool {
        self.0.iter().any(|key| key.kid.as_deref() == Some(kid))
    }

    /// Whether the one key that is meant verifies this signature under this algorithm. Without an
    /// id only a file with a single key for the algorithm tells which one is meant.
    pub(super) fn verifies(
        &self,
        kid: Option<&str>,
        alg: &str,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let mut fitting = self.0.iter().filter(|key| {
            key.public.alg() == alg && kid.is_none_or(|kid| key.kid.as_deref() == Some(kid))
        });
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => key.public.verifies(message, signature),
            _ => false,
        }
    }
}

impl Key {
    /// A key that this program can use; others are passed over.
    fn read(entry: Entry) -> Option<Self> {
        if entry.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| decode(text.as_deref()?);
        let public = match (entry.kty.as_str(), entry.crv.as_deref()) {
            ("RSA", _) => Public::Rs256 { n: bytes(&entry.n)?, e: bytes(&entry.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (bytes(&entry.x)?, bytes(&entry.y)?);
                if x.len() != 32 || y.len() != 32 {
                    return None;
                }
                Public::Es256([&[4], x.as_slice(), &y].concat())
            }
            ("OKP", Some("Ed25519")) => Public::EdDsa(bytes(&entry.x)?),
            _ => return None,
        };
        let fits = entry.alg.as_deref().is_none_or(|alg| alg == public.alg());
        fits.then_some(Self { kid: entry.kid, public })
    }
}

impl Public {
    fn alg(&self) -> &'static str {
        match self {
            Self::Rs256 { .. } => "RS256",
            Self::Es256(_) => "ES256",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Rs256 { n, e } => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            Self::Es256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Self::EdDsa(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}
