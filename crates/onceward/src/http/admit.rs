//! From a request to a claim: identity, key, shape, fingerprint; nothing is stored before it fits.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, IF_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use onceward_core::audit::Trace;
use onceward_core::canonical::{Arrays, CanonicalError, MAX_BODY_BYTES, NotCanonical};
use onceward_core::content_type::ContentType;
use onceward_core::decide::Claim;
use onceward_core::diff::{DifferingPointers, diff_payloads, differing_pointers, differs_text};
use onceward_core::fingerprint::{
    CanonicalBody, Fingerprint, FingerprintBuilder, FingerprintPolicy, canonical_bytes,
    content_hash16, fingerprint_bytes,
};
use onceward_core::header_key::{MAX_HEADER_KEY_CHARS, parse_header_key};
use onceward_core::key::{Key, Kind};
use onceward_core::mask::{has_masked_text, mask_kept, mask_kept_query, mask_shown};
use onceward_core::payload::{FullPayload, KeepPayload, KeptPayload, Payload};

use super::identity::Caller;
use super::names;
use super::policy::{IfMatch, MissingKey, Policy};
use super::preconditions::{Preconditions, TagRules};
use super::refusal::{Code, Conflict, Refusal};
use super::route::Place;
use super::spelling::one_spelling;
use crate::cache::Sight;

/// Digits of a hash that a conflict shows (E01).
const HASH_DIGITS: usize = 16;
/// Digits of the hash that stands for a part of a derived key that is too long: three such parts
/// and E01's hash fit into a key.
const SHORT_DIGITS: usize = 32;
/// The media type whose payloads have E01's plain hash.
const JSON: &[u8] = b"application/json";
/// What is said to differ when it is neither the body nor the query.
const MEDIA_TYPE: &str = "the media type of the body";

/// The key that a request brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Brought {
    /// This one.
    Key(String),
    /// None.
    Nothing,
}

/// Reads the key from the headers that the dialect allows.
pub(super) fn brought(headers: &HeaderMap, policy: &Policy) -> Result<Brought, Refusal> {
    let mut found: Option<String> = None;
    for name in policy.dialect.speaker().key_headers() {
        let mut lines = headers.get_all(name).iter();
        let Some(line) = lines.next() else { continue };
        if lines.next().is_some() {
            return Err(Refusal::new(Code::KeyInvalid, format!("{name} comes more than once")));
        }
        let key = parse_header_key(line.as_bytes())
            .map_err(|error| Refusal::new(Code::KeyInvalid, error.to_string()))?;
        if found.as_deref().is_some_and(|earlier| earlier != key) {
            return Err(Refusal::new(Code::KeyInvalid, "two headers carry different keys"));
        }
        found = Some(key.into_owned());
    }
    Ok(found.map_or(Brought::Nothing, Brought::Key))
}

/// A request that may be claimed.
pub(super) struct Admitted {
    pub(super) claim: Claim,
    /// The key as the client knows it.
    pub(super) key: String,
    /// Under which sight its record may be kept in caches.
    pub(super) sight: Sight,
    /// The canonical form of a body that has one, until it was kept: large ones are not held twice.
    canonical: Option<CanonicalBody<'static>>,
    /// The body as it came.
    sent: Bytes,
    content_type: ContentType,
    query: Box<str>,
}

impl Admitted {
    /// Keeps of the payload what the policy asks for: only needed once the claim is made. One that
    /// is too large to be kept in full is kept as hashes: explaining a mismatch is a courtesy, and
    /// no reason to refuse the request.
    pub(super) fn keep_payload(&mut self, policy: &Policy, leaf_key: &[u8; 32]) {
        let body = self.canonical.take();
        let body = body.unwrap_or_else(|| self.body(&policy.fingerprint));
        let payload = Payload { body: &body, query: &self.query };
        let kept = KeptPayload::keep(payload, policy.keep_payload, leaf_key);
        let kept = kept.and_then(|kept| match kept {
            // What is masked is nowhere to be read, not even in the store's files.
            KeptPayload::Full(full) => match masked(full, policy, leaf_key)? {
                Some(full) => Ok(KeptPayload::Full(full)),
                None => KeptPayload::keep(payload, KeepPayload::Hashed, leaf_key),
            },
            kept => Ok(kept),
        });
        self.claim.payload = kept.ok().map(|kept| kept.encode().into());
    }

    /// What differs between this payload and the one that the key was used with.
    pub(super) fn conflict(
        &self,
        (original, kept): (&Fingerprint, &KeptPayload),
        policy: &Policy,
        leaf_key: &[u8; 32],
    ) -> Conflict {
        let rules = &policy.fingerprint;
        let body = self.body(rules);
        let mut conflict = Conflict {
            key: self.key.clone(),
            current_hash: content_hash16(body.bytes()),
            ..Conflict::default()
        };
        let (mut shown, mut query) = (body, Cow::Borrowed(&*self.query));
        if let KeptPayload::Full(before) = kept {
            // Of a body that was masked before it was kept, the hash is not known.
            let is_whole = matches!(mask_shown(&before.body, &policy.mask), Cow::Borrowed(_));
            conflict.original_hash = is_whole.then(|| content_hash16(&before.body));
            if let CanonicalBody::Json(_) = &shown {
                shown = self.in_sent_order(rules).unwrap_or(shown);
            }
            shown = as_kept(shown, &policy.mask, leaf_key);
            query = Cow::Owned(mask_kept_query(&self.query, &policy.mask, leaf_key));
            let payload = Payload { body: &shown, query: &query };
            conflict.changes = diff_payloads(before, payload, rules.arrays, &policy.mask).ok();
        }
        let payload = Payload { body: &shown, query: &query };
        let differing = differing_pointers(kept, payload, rules.arrays, leaf_key);
        conflict.pointers = differing.ok().flatten().and_then(DifferingPointers::named);
        conflict.words = conflict.pointers.as_deref().map(differs_text);
        if let Some(pointers) = conflict.pointers.as_mut().filter(|pointers| pointers.is_empty()) {
            // Method and path belong to the key: nothing else is left.
            pointers.push(String::new());
            conflict.words = Some(MEDIA_TYPE.into());
        }
        let told = conflict.original_hash.as_ref();
        if told.is_none_or(|original| *original == conflict.current_hash) {
            // Two equal hashes would deny the conflict: the bodies are the same, and what is around
            // them is not. Of a body that was not kept nothing else is known. What differs in both
            // cases is the whole requests.
            conflict.original_hash = Some(original.short_hex(HASH_DIGITS));
            conflict.current_hash = self.claim.fingerprint.short_hex(HASH_DIGITS);
        }
        conflict
    }

    /// What is compared, with items where the client sees them: for people, never for hashes.
    fn in_sent_order(&self, rules: &FingerprintPolicy) -> Option<CanonicalBody<'_>> {
        let rules = FingerprintPolicy { arrays: Arrays::Ordered, ..rules.clone() };
        canonical_bytes(&self.sent, &rules).ok().map(CanonicalBody::Json)
    }

    /// What of the body is compared, made anew: it had a canonical form when it came.
    fn body(&self, rules: &FingerprintPolicy) -> CanonicalBody<'_> {
        let body = CanonicalBody::of_type(&self.sent, &self.content_type, rules);
        body.unwrap_or(CanonicalBody::Bytes(&self.sent))
    }
}

/// A payload as it is kept in full. None when it can't be: hashes may be longer than what they
/// hide, and a text that holds masked values of its own is kept as a hash.
fn masked(
    mut full: FullPayload,
    policy: &Policy,
    leaf_key: &[u8; 32],
) -> Result<Option<FullPayload>, CanonicalError> {
    let arrays = if full.is_form { Arrays::Ordered } else { policy.fingerprint.arrays };
    let masked = mask_kept(&full.body, &policy.mask, arrays, leaf_key)?;
    full.body = masked.unwrap_or(full.body);
    full.query = mask_kept_query(&full.query, &policy.mask, leaf_key);
    let is_kept = full.fits() && !(full.is_form && has_masked_text(&full.body, &policy.mask)?);
    Ok(is_kept.then_some(full))
}

/// A new payload with masked values hidden as they are in one that was kept.
fn as_kept<'b>(
    payload: CanonicalBody<'b>,
    mask: &[String],
    leaf_key: &[u8; 32],
) -> CanonicalBody<'b> {
    let (CanonicalBody::Json(body) | CanonicalBody::Form(body) | CanonicalBody::Multipart(body)) =
        &payload
    else {
        return payload;
    };
    match (mask_kept(body, mask, Arrays::Ordered, leaf_key), &payload) {
        (Ok(Some(masked)), CanonicalBody::Form(_)) => CanonicalBody::Form(masked),
        (Ok(Some(masked)), CanonicalBody::Multipart(_)) => CanonicalBody::Multipart(masked),
        (Ok(Some(masked)), _) => CanonicalBody::Json(masked),
        _ => payload,
    }
}

/// Makes the claim of a request whose body is whole.
pub(super) fn admit(
    head: &Parts,
    body: &Bytes,
    (policy, place): (&Policy, &Place),
    caller: &Caller,
    brought: Brought,
) -> Result<Admitted, Refusal> {
    let lines = |name: HeaderName| -> Vec<&[u8]> {
        head.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    };
    let content_type = ContentType::of_lines(&lines(CONTENT_TYPE), &lines(CONTENT_ENCODING));
    let canonical = CanonicalBody::of_type(body, &content_type, &policy.fingerprint)
        .map_err(no_canonical_form)?;
    let media = canonical.compared_type(&content_type);
    let query = head.uri.query().unwrap_or_default();
    let key = match (brought, policy.missing_key) {
        (Brought::Key(key), _) => key,
        (Brought::Nothing, MissingKey::Derive) => {
            derived(caller, place, (query, &media), &canonical)
        }
        (Brought::Nothing, _) => {
            let detail = "send an Idempotency-Key header: 1 to 128 visible ASCII characters";
            return Err(Refusal::new(Code::KeyRequired, detail));
        }
    };
    required_if_match(head, policy)?;
    let fingerprint = FingerprintBuilder::new()
        .part("method", head.method.as_str().as_bytes())
        .part("path", one_spelling(head.uri.path()).as_bytes())
        .part("query", query.as_bytes())
        .part("media", &media)
        .body(&canonical)
        .finish();
    let record_key = record_key((policy, place), caller, &key)?;
    let mut claim = Claim::new(record_key, fingerprint);
    claim.terms = policy.terms();
    claim.trace = trace(&head.headers, caller);
    let canonical = match canonical {
        CanonicalBody::Json(canonical) => Some(CanonicalBody::Json(canonical)),
        CanonicalBody::Form(canonical) => Some(CanonicalBody::Form(canonical)),
        CanonicalBody::Multipart(canonical) => Some(CanonicalBody::Multipart(canonical)),
        CanonicalBody::Bytes(_) => None,
    };
    let (query, sent) = (query.into(), body.clone());
    let sight = Sight::default();
    Ok(Admitted { claim, key, sight, canonical, sent, content_type, query })
}

/// The key of the record that a request with this key of the client's is claimed under.
pub(super) fn record_key(
    (policy, place): (&Policy, &Place),
    caller: &Caller,
    key: &str,
) -> Result<Key, Refusal> {
    let mut within = vec![if policy.per_caller { caller.caller.as_str() } else { "" }];
    within.extend(place.values.iter().map(String::as_str));
    Key::within(Kind::Request, &caller.tenant, &place.endpoint, &within, key)
        .map_err(|error| Refusal::new(Code::BadRequest, error.to_string()))
}

/// A body that can't be compared is refused; one that is only too large for that is told so.
fn no_canonical_form(error: CanonicalError) -> Refusal {
    match error {
        CanonicalError::NotCanonical { reason: NotCanonical::TooLarge { .. }, .. } => {
            let detail = format!(
                "at most {MAX_BODY_BYTES} bytes of JSON can be compared; what is not JSON needs a \
                 Content-Type that says so"
            );
            Refusal::new(Code::BodyTooLarge, detail)
        }
        error => Refusal::new(Code::BodyNotCanonical, error.to_string()),
    }
}

/// `If-Match` has to be there, if the policy asks for it. Where the dialect is strict, its form is
/// judged too; what it is compared with is the handler's to know.
pub(super) fn required_if_match(head: &Parts, policy: &Policy) -> Result<(), Refusal> {
    if policy.if_match != IfMatch::Require {
        return Ok(());
    }
    if !head.headers.contains_key(IF_MATCH) {
        let detail = "send If-Match with the ETag that you have seen";
        return Err(Refusal::new(Code::PreconditionRequired, detail));
    }
    let rules = TagRules { strict: true, altered: policy.altered_etags };
    if policy.dialect.speaker().strict_tags() {
        Preconditions::read(&head.method, &head.headers, rules)?;
    }
    Ok(())
}

/// E01: tenant without hyphens, method and route, first 16 hex digits of the payload's hash; every
/// part escaped, so that a colon in one can't imitate another. A query and a media type that is not
/// plain JSON belong to the payload: who sends something else in them means another request, not a
/// conflict.
fn derived(
    caller: &Caller,
    place: &Place,
    (query, media): (&str, &[u8]),
    canonical: &CanonicalBody<'_>,
) -> String {
    let body = canonical.bytes();
    let hash = match (media, query) {
        (JSON, "") => content_hash16(body),
        (JSON, query) => content_hash16(&[query.as_bytes(), b"\n", body].concat()),
        (media, query) => {
            let parts = [media, b"\n", query.as_bytes(), b"\n", body];
            content_hash16(&parts.concat())
        }
    };
    let (method, path) = place.endpoint.split_once(' ').unwrap_or_default();
    let route = path.trim_matches('/').replace('/', "-");
    let mut parts = [&caller.tenant.replace('-', ""), method, &route].map(key_part);
    // As few as have to be, the longest first: a key stays readable where it can.
    while parts.iter().map(|part| part.len() + 1).sum::<usize>() + hash.len() > MAX_HEADER_KEY_CHARS
    {
        let Some(longest) = parts.iter_mut().max_by_key(|part| part.len()) else { break };
        *longest = format!("%~{}", fingerprint_bytes(longest.as_bytes()).short_hex(SHORT_DIGITS));
    }
    format!("{}:{hash}", parts.join(":"))
}

/// A part of a key in the characters that a key may have: every other byte is `%XX`. No part that
/// was written out begins with `%~`, so none can imitate one that was shortened.
fn key_part(text: &str) -> String {
    let mut part = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | b':' => part.push_str(&format!("%{byte:02X}")),
            b'!'..=b'~' => part.push(char::from(byte)),
            _ => part.push_str(&format!("%{byte:02X}")),
        }
    }
    part
}

fn trace(headers: &HeaderMap, caller: &Caller) -> Trace {
    let text = |name| {
        let value = headers.get(name)?.to_str().ok()?;
        Some(super::route::bounded(value).into())
    };
    Trace {
        actor: Some(super::route::bounded(&caller.caller).into()),
        request_id: text(names::X_REQUEST_ID),
        correlation_id: text(names::X_CORRELATION_ID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key that is derived for a tenant and an endpoint.
    fn key(tenant: &str, endpoint: &str, asked: (&str, &[u8])) -> String {
        let caller = Caller { tenant: tenant.into(), caller: "ada".into() };
        let place = Place { endpoint: endpoint.into(), values: Vec::new(), route: None };
        derived(&caller, &place, asked, &CanonicalBody::Json(b"{}".to_vec()))
    }

    #[test]
    fn e01_a_derived_key_is_one_that_a_client_could_have_sent() {
        let plain = ("", JSON);
        assert_eq!(key("a-b", "POST /x/y", plain), "ab:POST:x-y:44136fa355b3678a");
        assert_eq!(key("ü 1:%", "POST /x", plain), "%C3%BC%201%3A%25:POST:x:44136fa355b3678a");
        let (long, longer) = ("a".repeat(512), "ä".repeat(256));
        let route = format!("POST /{}", "r".repeat(400));
        let mut seen = std::collections::HashSet::new();
        for tenant in ["a", "b", &long, &long[1..], &longer] {
            for endpoint in ["POST /x", "PUT /x", &route, &route[..399]] {
                let key = key(tenant, endpoint, plain);
                assert_eq!(parse_header_key(key.as_bytes()).unwrap(), key);
                assert!(seen.insert(key), "{tenant} {endpoint}");
            }
        }
        assert!(key(&long, "POST /x", plain).ends_with(":POST:x:44136fa355b3678a"));
    }

    #[test]
    fn e01_another_query_or_media_type_is_another_derived_key() {
        let asked =
            [("", JSON), ("a=1", JSON), ("", b""), ("", b"text/plain"), ("a=1", b"text/plain")];
        let keys: std::collections::HashSet<_> =
            asked.into_iter().map(|asked| key("t", "POST /x", asked)).collect();
        assert_eq!(keys.len(), asked.len());
    }
}
