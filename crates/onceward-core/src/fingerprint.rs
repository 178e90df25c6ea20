//! Fingerprints: what tells a retry from another request under the same key (A06, A07, E02).
//!
//! Rule: two requests have the same fingerprint exactly when the policy calls them the same. What
//! is hashed is injective (every part is labelled and length-prefixed) and carries its kind and the
//! version of these rules, so that a JSON body, a form, raw bytes and a list of parts never meet.
//!
//! Not responsible for which parts of a request count (the HTTP layer passes them), nor for keeping
//! what is needed to explain a mismatch (`payload.rs`).

use std::borrow::Cow;
use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::canonical::{Arrays, CanonicalError, Form, member_at};
use crate::content_type::ContentType;
use crate::form::{Fields, urlencoded};
use crate::json::Tape;
use crate::multipart::parts;
use crate::zoo::{Bug, planted};

/// The version of the rules by which fingerprints are made. It is hashed in and kept beside the
/// hash. Fingerprints made under other rules differ, also of the same request: whoever changes the
/// number makes every retry of a request that was recorded before a mismatch.
pub const FINGERPRINT_RULES: u8 = 1;

/// What E02 leaves out of the hash at any depth: fields that change from one try to the next.
pub const VOLATILE_FIELDS: [&str; 7] =
    ["created_at", "updated_at", "timestamp", "_metadata", "request_id", "trace_id", "session_id"];

/// The SHA-256 of a canonical payload, and the version of the rules that made it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    rules: u8,
    hash: [u8; 32],
}

impl Fingerprint {
    /// A fingerprint as a store kept it.
    #[must_use]
    pub const fn from_stored(rules: u8, hash: [u8; 32]) -> Self {
        Self { rules, hash }
    }

    /// The 32 bytes of the hash.
    #[must_use]
    pub const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The version of the rules it was made by.
    #[must_use]
    pub const fn rules(&self) -> u8 {
        self.rules
    }

    /// The first `digits` of the 64 hexadecimal digits: enough to tell two apart in a log.
    #[must_use]
    pub fn short_hex(&self, digits: usize) -> String {
        let mut text = self.to_string();
        text.truncate(digits);
        text
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex(&self.hash))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Fingerprint(v{}, {self})", self.rules)
    }
}

/// What counts as the same payload.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FingerprintPolicy {
    /// Fields that don't count: a name (`sent_at`) at any depth, a JSON pointer (`/meta/sent_at`)
    /// through objects at its place; of a form its fields or parts, whole. Default: none.
    pub ignore: Vec<String>,
    /// Whether the order of array items counts, and in a form that of fields of one name where no
    /// other shares its root. Default:
    /// ordered.
    pub arrays: Arrays,
    /// How the body is compared. Default: as its media type says.
    pub body: Body,
}

impl FingerprintPolicy {
    /// The policy of E02: volatile fields and the order of items don't count.
    #[must_use]
    pub fn volatile() -> Self {
        Self {
            ignore: VOLATILE_FIELDS.map(String::from).to_vec(),
            arrays: Arrays::Unordered,
            body: Body::ByMediaType,
        }
    }
}

/// How a body is compared. One that is not well-formed in its form is compared byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Body {
    /// JSON, URL-encoded forms and `multipart/form-data` as what they are, everything else byte for
    /// byte. What has no media type may be JSON.
    #[default]
    ByMediaType,
    /// As JSON, unless its media type says that it is a form or an upload.
    Json,
    /// As the fields of a URL-encoded form, unless its media type says JSON or an upload.
    Form,
    /// As parts between the boundary that its media type names, unless that says JSON or a form.
    Multipart,
    /// Byte for byte.
    Bytes,
}

/// A body in the form that is hashed, kept and compared.
#[derive(Clone, PartialEq, Eq)]
pub enum CanonicalBody<'a> {
    /// Canonical JSON.
    Json(Vec<u8>),
    /// The fields of a form by name, as canonical JSON (see [`crate::form`]).
    Form(Vec<u8>),
    /// The same of the parts of an upload.
    Multipart(Vec<u8>),
    /// The bytes as they came.
    Bytes(&'a [u8]),
}

impl<'a> CanonicalBody<'a> {
    /// Brings a body without a media type into the form that the policy compares.
    ///
    /// # Errors
    /// As [`CanonicalBody::of_type`].
    pub fn new(body: &'a [u8], policy: &FingerprintPolicy) -> Result<Self, CanonicalError> {
        Self::of_type(body, &ContentType::default(), policy)
    }

    /// Brings a body into the form that the policy compares. A body that should be JSON, a form or
    /// an upload and is none at all is taken as bytes and left to the handler.
    ///
    /// # Errors
    /// When it is JSON without a canonical form.
    pub fn of_type(
        body: &'a [u8],
        media_type: &ContentType,
        policy: &FingerprintPolicy,
    ) -> Result<Self, CanonicalError> {
        let write = |fields: Fields| fields.write(&policy.ignore, policy.arrays);
        match by_media_type(policy.body, media_type) {
            Body::Form => {
                let form = urlencoded(body).and_then(write);
                Ok(form.map_or(Self::Bytes(body), Self::Form))
            }
            Body::Multipart => {
                let boundary = media_type.param(BOUNDARY);
                let form = boundary.and_then(|boundary| parts(body, &boundary)).and_then(write);
                Ok(form.map_or(Self::Bytes(body), Self::Multipart))
            }
            Body::Json => match canonical_bytes(body, policy) {
                Ok(canonical) => Ok(Self::Json(canonical)),
                Err(error) if error.is_not_json() => Ok(Self::Bytes(body)),
                Err(error) => Err(error),
            },
            Body::Bytes | Body::ByMediaType => Ok(Self::Bytes(body)),
        }
    }

    /// The bytes that are hashed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Json(canonical) | Self::Form(canonical) | Self::Multipart(canonical) => canonical,
            Self::Bytes(bytes) => bytes,
        }
    }

    /// What of its media type belongs to what a body says: of JSON no charset, since it has one of
    /// its own, and JSON that nobody called so is JSON all the same; of parts no boundary.
    #[must_use]
    pub fn compared_type<'t>(&self, media_type: &'t ContentType) -> Cow<'t, [u8]> {
        match self {
            Self::Json(_) if media_type.essence().is_empty() => Cow::Borrowed(JSON),
            Self::Json(_) => media_type.compared(Some("charset")),
            Self::Multipart(_) => media_type.compared(Some(BOUNDARY)),
            Self::Form(_) | Self::Bytes(_) => media_type.compared(None),
        }
    }

    /// The fingerprint of this body alone.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = self.kind().hasher();
        hasher.update(self.bytes());
        finish(hasher)
    }

    const fn kind(&self) -> Kind {
        match self {
            Self::Json(_) => Kind::Json,
            Self::Form(_) => Kind::Form,
            Self::Multipart(_) => Kind::Multipart,
            Self::Bytes(_) => Kind::Bytes,
        }
    }
}

/// The media type that JSON has when nothing else is said.
const JSON: &[u8] = b"application/json";

/// The parameter that separates parts.
const BOUNDARY: &str = "boundary";

/// How a body of this type is compared. What says of itself that it is something else than the
/// policy names is never read as what it is not.
fn by_media_type(body: Body, media_type: &ContentType) -> Body {
    if media_type.is_opaque() {
        return Body::Bytes;
    }
    let says = match media_type.essence() {
        "application/x-www-form-urlencoded" => Body::Form,
        "multipart/form-data" => Body::Multipart,
        "" => Body::ByMediaType,
        _ if media_type.is_json() => Body::Json,
        _ => Body::Bytes,
    };
    match (body, says) {
        (Body::ByMediaType, Body::ByMediaType) => Body::Json,
        (Body::ByMediaType, says) => says,
        (named, Body::Json | Body::Form | Body::Multipart) if named != says => Body::Bytes,
        (named, _) => named,
    }
}

/// A body is never shown in a log (A27), only how long it is.
impl fmt::Debug for CanonicalBody<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Json(_) => "Json",
            Self::Form(_) => "Form",
            Self::Multipart(_) => "Multipart",
            Self::Bytes(_) => "Bytes",
        };
        write!(formatter, "{kind}({} bytes)", self.bytes().len())
    }
}

/// The canonical bytes of a JSON body under a policy: what is hashed, and kept for diffs.
pub fn canonical_bytes(body: &[u8], policy: &FingerprintPolicy) -> Result<Vec<u8>, CanonicalError> {
    let tape = Tape::parse(body)?;
    let skip = policy.ignore.iter().filter_map(|ignored| member_at(&tape, ignored)).collect();
    Form { ignore: &policy.ignore, mask: &[], arrays: policy.arrays, skip }.document(&tape)
}

/// The fingerprint of a JSON body.
pub fn fingerprint_json(
    body: &[u8],
    policy: &FingerprintPolicy,
) -> Result<Fingerprint, CanonicalError> {
    canonical_bytes(body, policy).map(|canonical| CanonicalBody::Json(canonical).fingerprint())
}

/// The fingerprint of a body that is compared byte for byte.
#[must_use]
pub fn fingerprint_bytes(body: &[u8]) -> Fingerprint {
    CanonicalBody::Bytes(body).fingerprint()
}

/// E01's content hash: the first 16 hexadecimal digits of the plain SHA-256 of the canonical bytes,
/// which a client in any language can compute without knowing our prefixes.
#[must_use]
pub fn content_hash16(canonical: &[u8]) -> String {
    let mut digits = hex(&Sha256::digest(canonical));
    digits.truncate(16);
    digits
}

/// Hashes a list of labelled parts, so that no two different lists have the same fingerprint.
///
/// ```
/// use onceward_core::fingerprint::{CanonicalBody, FingerprintBuilder, FingerprintPolicy};
///
/// let body = CanonicalBody::new(br#"{"qty": 1}"#, &FingerprintPolicy::default())?;
/// let fingerprint = FingerprintBuilder::new()
///     .part("method", b"POST")
///     .part("path", b"/v1/orders")
///     .part("query", b"")
///     .part("media_type", b"application/json")
///     .body(&body)
///     .finish();
/// assert_eq!(fingerprint.to_string().len(), 64);
/// # Ok::<(), onceward_core::canonical::CanonicalError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct FingerprintBuilder {
    hasher: Sha256,
}

impl FingerprintBuilder {
    /// An empty list of parts.
    pub fn new() -> Self {
        Self { hasher: Kind::Parts.hasher() }
    }

    /// Adds a part. Order, labels, and empty parts count.
    pub fn part(mut self, label: &str, value: &[u8]) -> Self {
        if planted(Bug::FingerprintWithoutPath) && label == "path" {
            return self;
        }
        self.add(Kind::Bytes, label, value);
        self
    }

    /// Adds the body, by its kind: JSON, forms and raw bytes never count as the same.
    pub fn body(mut self, body: &CanonicalBody<'_>) -> Self {
        self.add(body.kind(), "body", body.bytes());
        self
    }

    /// The fingerprint of all parts.
    #[must_use]
    pub fn finish(self) -> Fingerprint {
        finish(self.hasher)
    }

    /// Kind, then both lengths before the bytes they count: the list can be read back from what is
    /// hashed, hence no two lists hash the same bytes.
    fn add(&mut self, kind: Kind, label: &str, value: &[u8]) {
        self.hasher.update([kind as u8]);
        self.hasher.update((label.len() as u64).to_le_bytes());
        self.hasher.update(label.as_bytes());
        self.hasher.update((value.len() as u64).to_le_bytes());
        self.hasher.update(value);
    }
}

impl Default for FingerprintBuilder {
    fn default() -> Self {
        Self::new()
    }
}

/// What is hashed. The numbers are part of the rules: changing one changes every fingerprint.
#[derive(Clone, Copy)]
enum Kind {
    Json = 1,
    Bytes = 2,
    Parts = 3,
    Form = 4,
    Multipart = 5,
}

impl Kind {
    fn hasher(self) -> Sha256 {
        let mut hasher = Sha256::new();
        hasher.update(b"onceward.fingerprint");
        hasher.update([FINGERPRINT_RULES, self as u8]);
        hasher
    }
}

fn finish(hasher: Sha256) -> Fingerprint {
    Fingerprint { rules: FINGERPRINT_RULES, hash: hasher.finalize().into() }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests;
