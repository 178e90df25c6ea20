//! Routes: what one allows, as the file says it, and the policy that the HTTP layer gets.
//!
//! Bounds and the rules between lengths of time are the policy's own; this file only translates.

use http::HeaderName;
use onceward::http::{BreakerPolicy, Dialect, IfMatch, MissingKey, Mode, Policy, RateLimit};
use onceward_core::canonical::Arrays;
use onceward_core::diff::default_mask;
use onceward_core::fingerprint::{Body, FingerprintPolicy};
use onceward_core::outcome_policy::Statuses;
use onceward_core::payload::KeepPayload;
use onceward_core::record::OnAbandoned;

use super::field::{
    Field, Section, Size, Span, Url, expected, inline, quoted, section, show_inline, words,
};
use super::reading::{Reading, Value};
use super::sections::REMEMBER_MAX;

/// A dialect that a file can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DialectName {
    /// RFC 9457 problems.
    Standard,
    /// The planning API's.
    Planning,
    /// The measurements API's.
    Measurements,
    /// The business API's.
    Business,
}

words! { DialectName {
    "standard" => DialectName::Standard,
    "planning" => DialectName::Planning,
    "measurements" => DialectName::Measurements,
    "business" => DialectName::Business,
} }

words! { MissingKey {
    "require" => MissingKey::Require,
    "derive" => MissingKey::Derive,
    "allow" => MissingKey::Allow,
} }
words! { OnAbandoned { "rerun" => OnAbandoned::Rerun, "hold" => OnAbandoned::Hold } }
words! { IfMatch {
    "off" => IfMatch::Off,
    "allow" => IfMatch::Allow,
    "require" => IfMatch::Require,
} }
words! { Mode { "enforce" => Mode::Enforce, "shadow" => Mode::Shadow, "off" => Mode::Off } }
words! { KeepPayload {
    "none" => KeepPayload::None,
    "hashed" => KeepPayload::Hashed,
    "full" => KeepPayload::Full,
} }
words! { Arrays { "ordered" => Arrays::Ordered, "unordered" => Arrays::Unordered } }

/// How a file can say that bodies are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyForm {
    /// As JSON.
    Json,
    /// By field.
    Form,
    /// By part.
    Multipart,
    /// Byte for byte.
    Bytes,
}

words! { BodyForm {
    "json" => BodyForm::Json,
    "form" => BodyForm::Form,
    "multipart" => BodyForm::Multipart,
    "bytes" => BodyForm::Bytes,
} }

/// A part of what a key is unique in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScopePart {
    /// The organisation.
    Tenant,
    /// Who of it.
    Caller,
    /// Method, template and path values.
    Endpoint,
}

words! { ScopePart {
    "tenant" => ScopePart::Tenant,
    "caller" => ScopePart::Caller,
    "endpoint" => ScopePart::Endpoint,
} }

/// Who says that a request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Complete {
    /// The gateway, when the upstream has answered.
    Gateway,
    /// The upstream, in its own transaction.
    Upstream,
}

words! { Complete { "gateway" => Complete::Gateway, "upstream" => Complete::Upstream } }

section! {
    /// What counts as the same payload.
    Fingerprint {
        /// Fields that don't count: names at any depth, JSON pointers (`/meta/at`) at their place.
        /// A pointer leads through objects only, never into an array: `/items/0/at` is the member
        /// `0` of an object. For fields of array items write their name. Of a form or an upload
        /// whole fields and parts are left out, by name or as `/name`.
        ignore: Vec<String> = Vec::new();
        /// Whether the order of array items counts, and that of fields or parts of one name, where
        /// no other has their root.
        arrays: Arrays = Arrays::Ordered;
        /// How a body is compared: as JSON, by the fields of a form, by the parts of an upload, or
        /// byte for byte. Named, it holds for every media type but one that says JSON, form or
        /// upload and means another than the named: those are then compared as bytes, and so is
        /// what is not well-formed. Default: as the media type says; without one as JSON.
        body: Option<BodyForm> = None, like "\"form\"";
    }
}

const FINGERPRINT_FORM: &str =
    "a table such as { ignore = [\"sent_at\"], arrays = \"ordered\", body = \"json\" }";

impl Field for Fingerprint {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        inline(value, path, FINGERPRINT_FORM, reading)
    }

    fn show(&self) -> Option<String> {
        Some(show_inline(self))
    }

    fn form() -> String {
        FINGERPRINT_FORM.into()
    }
}

/// A rate limit, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) Option<RateLimit>);

section! {
    /// A rate limit.
    RateTable {
        /// Requests per second, minute or hour.
        rate: String = String::new();
        /// Requests at once.
        burst: Option<u32> = None;
    }
}

const RATE_FORM: &str =
    "\"off\", a rate such as \"100/s\" or \"600/m\", or { rate = \"100/s\", burst = 200 }";

fn rate(text: &str, burst: Option<u32>) -> Option<RateLimit> {
    let (count, unit) = text.split_once('/')?;
    let per_ms = match unit.trim() {
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let count: u32 = count.trim().parse().ok()?;
    RateLimit::new(count, per_ms, burst.unwrap_or(count)).ok()
}

impl Field for Rate {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let limit = match value.get_ref().as_str() {
            Some("off") => return Some(Self(None)),
            Some(text) => rate(text, None),
            None if value.get_ref().as_bool() == Some(false) => return Some(Self(None)),
            None => {
                let table: RateTable = inline(value, path, RATE_FORM, reading)?;
                rate(&table.rate, table.burst)
            }
        };
        if limit.is_none() {
            expected(value, path, RATE_FORM, reading);
        }
        limit.map(|limit| Self(Some(limit)))
    }

    fn show(&self) -> Option<String> {
        let Some(limit) = self.0 else { return Some("\"off\"".into()) };
        let unit = match limit.per_ms() {
            1_000 => "s",
            60_000 => "m",
            _ => "h",
        };
        Some(format!("{{ rate = \"{}/{unit}\", burst = {} }}", limit.count(), limit.burst()))
    }

    fn form() -> String {
        RATE_FORM.into()
    }
}

/// A breaker, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Breaker(pub(crate) Option<BreakerPolicy>);

section! {
    /// A circuit breaker.
    BreakerTable {
        /// Failures in a row that open it.
        failures: u32 = BreakerPolicy::default().failures;
        /// How long it stays open before it lets a trial pass.
        open: Span = Span(BreakerPolicy::default().open_ms);
        /// Trials that have to succeed before it closes.
        trials: u32 = BreakerPolicy::default().trials;
    }
}

const BREAKER_FORM: &str = "\"off\", \"on\", or { failures = 5, open = \"10s\", trials = 1 }";

impl Field for Breaker {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let on = match (value.get_ref().as_str(), value.get_ref().as_bool()) {
            (Some("off"), _) | (_, Some(false)) => return Some(Self(None)),
            (Some("on"), _) | (_, Some(true)) => BreakerTable::default(),
            _ => inline(value, path, BREAKER_FORM, reading)?,
        };
        let BreakerTable { failures, open, trials } = on;
        let policy = BreakerPolicy { failures, open_ms: open.0, trials };
        match policy.validate() {
            Ok(()) => Some(Self(Some(policy))),
            Err(error) => {
                reading.wrong(value.span().start, path, error.to_string());
                None
            }
        }
    }

    fn show(&self) -> Option<String> {
        let Some(policy) = self.0 else { return Some("\"off\"".into()) };
        let BreakerPolicy { failures, open_ms, trials } = policy;
        Some(show_inline(&BreakerTable { failures, open: Span(open_ms), trials }))
    }

    fn form() -> String {
        BREAKER_FORM.into()
    }
}

section! {
    /// A route that is protected. With routes written, `[server] unmatched` says what becomes of a
    /// path that matches none; without any, every POST, PUT, PATCH and DELETE is a route with
    /// these defaults and `missing_key = "allow"`. The first route that matches a request counts.
    RouteSection {
        /// Method and path; a segment in braces matches any value, which belongs to the key. A
        /// request that is none of a route's as it stands and may be one to a server behind is
        /// refused with 400: a method in another case; a path that matches once `.`, `..`, empty
        /// segments, `;` and what follows it, encoded slashes (`[server] encoded_slash`), `\\` and
        /// other encodings are read as servers read them, or in another spelling (`[server]
        /// spelling`); another method in `X-HTTP-Method-Override`, `X-HTTP-Method`,
        /// `X-Method-Override` or the query's `_method`; another path in `X-Original-URL` or
        /// `X-Rewrite-URL`. A `_method` in a form is not looked for: where the upstream reads it,
        /// write routes for POST too. Where it takes further paths for the same, such as
        /// `/payments.json`, write them as routes.
        r#match: String = String::new(), like "\"POST /v1/projects/{project_id}/missions\"";
        /// Where its requests go. Default: the upstream of `[server]`.
        upstream: Option<Url> = None, like "\"http://127.0.0.1:8080\"";
        /// How verdicts are said.
        dialect: DialectName = DialectName::Standard;
        /// A request without a key is refused (require), gets one from its payload (derive) or is
        /// processed without protection (allow). Default: require; in the business dialect derive,
        /// in the measurements dialect allow, with a Warning.
        missing_key: Option<MissingKey> = None, like "\"require\"";
        /// What a key is unique in. Only `caller` may be left out: then all callers of a tenant
        /// share their keys.
        scope: Vec<ScopePart> = vec![ScopePart::Tenant, ScopePart::Caller, ScopePart::Endpoint];
        /// What counts as the same payload.
        fingerprint: Fingerprint = Fingerprint::default();
        /// How long the outcome of a success is kept: longer than all retries of a client take
        /// (attempts × back-off + lease + wait).
        retain: Span = Span::hours(24);
        /// How long a final error is kept. Default: 4h, or `retain` where that is shorter.
        retain_errors: Option<Span> = None, like "\"4h\"";
        /// How long an expired key is still known. Default: as `retain`, at most 7d.
        remember: Option<Span> = None, like "\"24h\"";
        /// How long a duplicate waits for the answer to a running request; at most 1m.
        wait: Span = Span::seconds(2);
        /// How long a claim holds without renewal; it is renewed before half of it has passed.
        lease: Span = Span::seconds(30);
        /// What a retry does when nobody knows how the first attempt ended: run again with a
        /// higher fence (rerun), or be refused until someone resolves it (hold). Nobody knows after
        /// a crash, a lost connection or a time-out, and after an answer of 408, of 503 without
        /// Retry-After, or of any other 5xx but 501.
        on_abandoned: OnAbandoned = OnAbandoned::Rerun;
        /// Error statuses that are final: stored, and replayed for as long as `retain_errors`,
        /// although they would not be: 409 and 423 that ask for a retry, 401, 403, 408, 425, 429
        /// and 5xx.
        r#final: Vec<u16> = Vec::new();
        /// Error statuses that say that nothing was done: the key is released, and a retry runs.
        /// So do 401, 403, 425, 429, 501, 503 with Retry-After, and 409 and 423 with Retry-After or
        /// with a problem that says `\"retryable\": true`. Without any route, 404 and 405 do too.
        retryable: Vec<u16> = Vec::new();
        /// Whether If-Match has to be there (require; 428 without it, also for a request without a
        /// key) or not (allow, off). It is always passed on: matching is the upstream's work.
        if_match: IfMatch = IfMatch::Allow;
        /// The largest request body; at most 64MiB. Of JSON that is compared as JSON never more
        /// than 8MiB. A request without a key is only held to it if it tells its length.
        max_request_bytes: Size = Size(8 << 20);
        /// The largest response body that is stored; a larger one is passed on once. At most
        /// 1536KiB.
        max_stored_bytes: Size = Size(1 << 20);
        /// Response headers that are stored beside content-type, -encoding, -language,
        /// -disposition, -location, etag, last-modified, location, link and x-correlation-id.
        store_headers: Vec<HeaderName> = Vec::new();
        /// Who says that a request is done: the gateway when the upstream has answered, or the
        /// upstream itself, which calls `onceward.complete` of the Postgres store with the permit
        /// from the header Onceward-Permit, in the transaction of its own writes. What it recorded
        /// is what the gateway answers.
        complete: Complete = Complete::Gateway;
        /// A URL that is asked before a claim and before a replay, with the method, the path (in
        /// the spelling that keys have: `a` for `%61`) and the headers of the request. Any answer
        /// but 2xx is passed on and nothing is stored. It is asked about requests without a key
        /// too, so that whoever sends one has to be known there: nobody is 401.
        /// Without it a replay is as safe as the credential that identified the caller.
        authorize: Option<Url> = None, like "\"http://127.0.0.1:9000/may\"";
        /// How often a caller may ask, counted per tenant and caller; more is 429.
        rate_limit: Rate = Rate(None);
        /// Whether failures in a row stop requests for a while with 503; replays go on.
        breaker: Breaker = Breaker(None);
        /// Protect (enforce), only report what would have been done (shadow), or neither (off).
        mode: Mode = Mode::Enforce;
        /// What is kept of a payload, to explain a mismatch with: nothing, a keyed hash per
        /// value, or all of it; of one over 1MiB never more than hashes. Of a form or an upload
        /// it is kept by field; a value of over 16KiB, or one that is no text, as its hash; what
        /// is compared byte for byte always as one hash. The query is kept the same way. Default:
        /// hashed; in the business and measurements dialects full.
        keep_payload: Option<KeepPayload> = None, like "\"hashed\"";
        /// Members of JSON, and fields of forms and queries, whose values are shown to nobody who
        /// looks at what is stored, at any depth; their case does not count. What else is stored
        /// (jobs, claims of the control API) has the default mask. A replay is what was answered.
        mask: Vec<String> = default_mask();
    }
}

impl RouteSection {
    /// The policy that the HTTP layer gets; who is asked for permission is added by the server.
    pub(crate) fn policy(&self) -> Policy {
        let dialect = match self.dialect {
            DialectName::Standard => Dialect::Standard,
            DialectName::Planning => Dialect::Planning,
            DialectName::Measurements => Dialect::Measurements,
            DialectName::Business => Dialect::Business,
        };
        let explains = matches!(self.dialect, DialectName::Business | DialectName::Measurements);
        let kept = if explains { KeepPayload::Full } else { KeepPayload::Hashed };
        let missing = match self.dialect {
            DialectName::Standard | DialectName::Planning => MissingKey::Require,
            DialectName::Measurements => MissingKey::Allow,
            DialectName::Business => MissingKey::Derive,
        };
        let Fingerprint { ignore, arrays, body } = self.fingerprint.clone();
        Policy {
            dialect,
            mode: self.mode,
            missing_key: self.missing_key.unwrap_or(missing),
            per_caller: self.scope.contains(&ScopePart::Caller),
            fingerprint: FingerprintPolicy { ignore, arrays, body: compared(body) },
            retain_ms: self.retain.0,
            retain_errors_ms: self.retain_errors.unwrap_or(Span::hours(4).min(self.retain)).0,
            remember_ms: Some(self.remember.unwrap_or(self.retain.min(REMEMBER_MAX)).0),
            wait_ms: self.wait.0,
            lease_ms: self.lease.0,
            on_abandoned: self.on_abandoned,
            if_match: self.if_match,
            max_request_bytes: self.max_request_bytes.0,
            max_stored_bytes: self.max_stored_bytes.0,
            store_headers: self.store_headers.clone(),
            keep_payload: self.keep_payload.unwrap_or(kept),
            statuses: Statuses { stored: self.r#final.clone(), released: self.retryable.clone() },
            mask: self.mask.clone(),
            rate_limit: self.rate_limit.0,
            breaker: self.breaker.0,
            authorize: None,
            ..Policy::default()
        }
    }

    /// How messages name it.
    pub(crate) fn told(&self) -> String {
        quoted(&self.r#match)
    }
}

fn compared(body: Option<BodyForm>) -> Body {
    match body {
        None => Body::ByMediaType,
        Some(BodyForm::Json) => Body::Json,
        Some(BodyForm::Form) => Body::Form,
        Some(BodyForm::Multipart) => Body::Multipart,
        Some(BodyForm::Bytes) => Body::Bytes,
    }
}

/// The fields of inline tables, for the reference.
pub(super) fn inline_tables() -> Vec<(&'static str, Vec<super::field::Described>)> {
    vec![
        ("fingerprint", Fingerprint::default().fields()),
        ("rate_limit", RateTable::default().fields()),
        ("breaker", BreakerTable::default().fields()),
    ]
}
