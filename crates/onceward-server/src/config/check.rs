//! Rules between fields: what each kind of field can't know by itself.
//!
//! A rule names the field, the value and the bound. Bounds of policies are the HTTP layer's own,
//! asked for here so that they are told with everything else that is wrong.

use std::collections::HashSet;

use onceward::http::{Policy, Route, is_carried, names};
use onceward_core::limits::{LimitError, MAX_PART_BYTES, MAX_RETAIN_MS};

use super::field::{Field as _, Span, Url};
use super::flags::Flags;
use super::route::{Complete, RouteSection, ScopePart};
use super::sections::{IdentitySection, Limits, Principal, Queue, Server, Source};
use super::unreached::Before;
use super::{Config, reading::Reading};
use crate::cache::SharedCache;
use crate::gateway::headers::{as_services_read, is_hop_by_hop};
use crate::gateway::settings::{UPSTREAM_FORM, Upstream};
use crate::identity::RESERVED_TENANT;
use crate::open::StoreUrl;

/// Longest time-out.
const TIMEOUT_MAX: Span = Span::hours(24);
/// Most that two clocks may differ by.
const CLOCK_SKEW_MAX: Span = Span::seconds(300);
/// Shortest time that audit entries are kept.
const AUDIT_MIN: Span = Span::hours(1);
/// Shortest pause between two sweeps.
const SWEEP_MIN: Span = Span::seconds(1);
/// What the store may be given to answer a request.
const ANSWER_WITHIN_MIN: Span = Span(100);
const ANSWER_WITHIN_MAX: Span = Span::hours(1);

/// What is said of an identity that a header would carry as another one.
const NOT_CARRIED: &str = "no control characters, and no blanks at its ends: a header would not \
                           carry it as it is";

/// Notes every rule that is broken.
pub(super) fn check(config: &Config, flags: &Flags, reading: &mut Reading) {
    server(&config.server, reading);
    match StoreUrl::parse(&config.store.url) {
        Ok(url) => completes(config, &url, reading),
        Err(failure) => {
            let message = failure.message.trim_start_matches("--store ").to_string();
            reading.breaks("store.url", message);
        }
    }
    let within = config.store.answer_within;
    if within < ANSWER_WITHIN_MIN || within > ANSWER_WITHIN_MAX {
        reading.breaks("store.answer_within", "\"100ms\" to \"1h\"");
    }
    if config.store.sweep_every < SWEEP_MIN {
        reading.breaks("store.sweep_every", "at least \"1s\"");
    }
    if config.audit.retain < AUDIT_MIN {
        reading.breaks("audit.retain", "at least \"1h\"");
    }
    if let Err(failure) = SharedCache::open(&config.cache, [0; 32]) {
        reading.breaks("cache.url", failure.message);
    }
    identity(config, flags, reading);
    limits(&config.limits, reading);
    principals(&config.principals, reading);
    flags.check_routes(config, reading);
    let mut before = Before::default();
    for (at, section) in config.routes.iter().enumerate() {
        let path = format!("route[{at}]");
        let Some(shape) = route(section, &path, reading) else { continue };
        if let Some(why) = before.unreached(&shape, &section.told()) {
            reading.breaks(&format!("{path}.match"), why);
        }
    }
    queues(&config.queues, reading);
}

/// Only in Postgres can an upstream complete a request in a transaction of its own.
fn completes(config: &Config, url: &StoreUrl, reading: &mut Reading) {
    #[cfg(feature = "postgres")]
    if matches!(url, StoreUrl::Postgres(_)) {
        return;
    }
    for (at, route) in config.routes.iter().enumerate() {
        if route.complete == Complete::Upstream {
            let message = format!(
                "\"upstream\" needs a Postgres store, where the upstream calls onceward.complete \
                 in its own transaction; the store is {}",
                url.shown()
            );
            reading.breaks(&format!("route[{at}].complete"), message);
        }
    }
}

/// Whether requests can go there.
fn upstream(path: &str, url: Option<&Url>, reading: &mut Reading) {
    if let Some(Err(why)) = url.map(|url| Upstream::read(&url.0.to_string())) {
        reading.breaks(path, format!("{why}; {UPSTREAM_FORM}"));
    }
}

fn server(server: &Server, reading: &mut Reading) {
    upstream("server.upstream", server.upstream.as_ref(), reading);
    match (&server.tls_cert, &server.tls_key) {
        (Some(_), None) => {
            reading.breaks("server.tls_cert", "needs `tls_key` beside it (or --tls-key PATH)");
        }
        (None, Some(_)) => {
            reading.breaks("server.tls_key", "needs `tls_cert` beside it (or --tls-cert PATH)");
        }
        _ => {}
    }
    for (name, span) in [
        ("header_timeout", server.header_timeout),
        ("body_timeout", server.body_timeout),
        ("write_timeout", server.write_timeout),
        ("upstream_idle_timeout", server.upstream_idle_timeout),
        ("connect_timeout", server.connect_timeout),
        ("upstream_timeout", server.upstream_timeout),
        ("drain_timeout", server.drain_timeout),
    ] {
        if span.0 == 0 || span > TIMEOUT_MAX {
            reading.breaks(&format!("server.{name}"), "more than nothing and at most \"24h\"");
        }
    }
}

fn identity(config: &Config, flags: &Flags, reading: &mut Reading) {
    let identity = &config.identity;
    let missing = |name: &str, reading: &mut Reading| {
        let source = identity.source.show().unwrap_or_default();
        // A field that is there and can't be read was told already.
        if !reading.is_wrong_at(&format!("identity.{name}")) {
            let flag = name.replace('_', "-");
            let message = match name {
                "tenant_header" | "caller_header" => {
                    format!("is missing: `source = {source}` needs it (or --{flag} NAME)")
                }
                _ => format!("is missing: `source = {source}` needs it"),
            };
            reading.breaks(&format!("identity.{name}"), message);
        }
    };
    match identity.source {
        Source::Header => {
            if identity.tenant_header.is_none() {
                missing("tenant_header", reading);
            }
            if identity.caller_header.is_none() {
                missing("caller_header", reading);
            }
        }
        Source::Jwt => {
            if identity.issuer.as_deref().is_some_and(|issuer| !is_carried(issuer)) {
                reading.breaks("identity.issuer", NOT_CARRIED);
            }
            if identity.jwks_file.is_none() {
                missing("jwks_file", reading);
            }
            if identity.issuer.is_none() {
                missing("issuer", reading);
            }
        }
        Source::Principals if config.principals.is_empty() => {
            reading.breaks("identity.source", "\"principals\" needs at least one [[principal]]");
        }
        _ => {}
    }
    if identity.clock_skew > CLOCK_SKEW_MAX {
        reading.breaks("identity.clock_skew", "at most \"5m\"");
    }
    headers(identity, reading);
    // With the source from a flag, the rest of the section may be for another occasion.
    if flags.identity.is_none() {
        unused(identity, reading);
    }
}

fn headers(identity: &IdentitySection, reading: &mut Reading) {
    let taken = ["authorization", "host", "content-length", "content-type", "cookie", "expect"];
    let pairs =
        [("tenant_header", &identity.tenant_header), ("caller_header", &identity.caller_header)];
    for (name, header) in pairs {
        let Some(header) = header else { continue };
        let text = header.as_str();
        // The gateway removes other spellings of what it speaks of.
        let read = as_services_read(header);
        let keys = [names::IDEMPOTENCY_KEY, names::X_IDEMPOTENCY_KEY, names::X_REQUEST_ID];
        let respelt = text != read
            && (*names::X_CORRELATION_ID.as_str() == *read || read.starts_with("x-forwarded-"));
        let is_taken = taken.contains(&&*read) || keys.iter().any(|key| *key == *read);
        if is_taken || is_hop_by_hop(&read) || respelt || names::is_ours(&read) {
            let message = format!("`{text}` has a meaning of its own; name another header");
            reading.breaks(&format!("identity.{name}"), message);
        }
    }
    match (&identity.tenant_header, &identity.caller_header) {
        (Some(_), None) if identity.source != Source::Header => {
            reading.breaks("identity.tenant_header", "needs `caller_header` beside it");
        }
        (None, Some(_)) if identity.source != Source::Header => {
            reading.breaks("identity.caller_header", "needs `tenant_header` beside it");
        }
        _ => {}
    }
    let [tenant, caller] = [&identity.tenant_header, &identity.caller_header]
        .map(|header| header.as_ref().map(as_services_read));
    if tenant.is_some() && tenant == caller {
        reading.breaks("identity.caller_header", "is the tenant's header too; name another one");
    }
}

/// A field that does nothing under this source was meant for another one: whoever wrote it relies
/// on a check that never happens.
fn unused(identity: &IdentitySection, reading: &mut Reading) {
    let default = IdentitySection::default();
    for (name, is_set, needed, word) in [
        ("strict", identity.strict, Source::Authorization, "authorization"),
        ("jwks_file", identity.jwks_file.is_some(), Source::Jwt, "jwt"),
        ("issuer", identity.issuer.is_some(), Source::Jwt, "jwt"),
        ("audience", !identity.audience.is_empty(), Source::Jwt, "jwt"),
        ("tenant_claim", identity.tenant_claim != default.tenant_claim, Source::Jwt, "jwt"),
        ("clock_skew", identity.clock_skew != default.clock_skew, Source::Jwt, "jwt"),
    ] {
        if is_set && identity.source != needed {
            let message = format!("does nothing without `source = \"{word}\"`");
            reading.breaks(&format!("identity.{name}"), message);
        }
    }
}

fn limits(limits: &Limits, reading: &mut Reading) {
    for (name, value) in [
        ("waiters_per_key", limits.waiters_per_key),
        ("waiters", limits.waiters),
        ("in_flight", limits.in_flight),
        ("tenant_in_flight", limits.tenant_in_flight),
        ("connections", limits.connections),
        ("headers", limits.headers),
        ("streams", limits.streams),
        ("upstream_idle_connections", limits.upstream_idle_connections),
        ("rate_limit_callers", limits.rate_limit_callers),
        ("shadow_keys", limits.shadow_keys),
        ("write_bytes_per_second", limits.write_bytes_per_second),
    ] {
        if value == 0 || value > 10_000_000 {
            reading.breaks(&format!("limits.{name}"), format!("{value}: 1 to 10,000,000"));
        }
    }
    for (name, size) in [
        ("body_bytes", limits.body_bytes),
        ("answer_bytes", limits.answer_bytes),
        ("replay_bytes", limits.replay_bytes),
    ] {
        if size.0 < 1 << 20 {
            reading.breaks(&format!("limits.{name}"), "at least \"1MiB\"");
        }
    }
    let least = 1 << 10;
    if limits.header_bytes.0 < least || limits.header_bytes.0 > 1 << 20 {
        reading.breaks("limits.header_bytes", "\"1KiB\" to \"1MiB\"");
    }
}

fn principals(principals: &[Principal], reading: &mut Reading) {
    let mut seen = HashSet::new();
    for (at, principal) in principals.iter().enumerate() {
        let path = |name: &str| format!("principal[{at}].{name}");
        let hash = principal.token_sha256.to_ascii_lowercase();
        if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let message = "64 hexadecimal digits: printf %s TOKEN | sha256sum";
            reading.breaks(&path("token_sha256"), message);
        } else if !seen.insert(hash) {
            reading.breaks(&path("token_sha256"), "another principal has this token");
        }
        for (name, text) in [("tenant", &principal.tenant), ("caller", &principal.caller)] {
            if !(1..=MAX_PART_BYTES).contains(&text.len()) {
                reading.breaks(&path(name), format!("1 to {MAX_PART_BYTES} bytes"));
            } else if !is_carried(text) {
                reading.breaks(&path(name), NOT_CARRIED);
            }
        }
        if principal.tenant == RESERVED_TENANT {
            reading.breaks(&path("tenant"), "is reserved; choose another");
        }
    }
}

/// Notes what is wrong with a route; which requests it matches, if it is one.
fn route(route: &RouteSection, path: &str, reading: &mut Reading) -> Option<String> {
    if route.r#match.is_empty() {
        if !reading.is_wrong_at(&format!("{path}.match")) {
            let message = "is missing: write `match = \"POST /path/{parameter}\"`";
            reading.breaks(&format!("{path}.match"), message);
        }
        return None;
    }
    if !route.scope.contains(&ScopePart::Tenant) || !route.scope.contains(&ScopePart::Endpoint) {
        let message = "\"tenant\" and \"endpoint\" can't be left out, only \"caller\" can";
        reading.breaks(&format!("{path}.scope"), message);
    }
    upstream(&format!("{path}.upstream"), route.upstream.as_ref(), reading);
    let (mut policy, fine) = (route.policy(), Policy::default());
    // The policy tells of one field at a time: each that is told is put right for the next look.
    while let Err(error) = policy.validate() {
        reading.breaks(&format!("{path}.{}", field(&error)), bound(&error));
        if !put_right(&mut policy, field(&error)) {
            break;
        }
        if route.retain_errors.is_none() {
            // It followed from what was put right.
            policy.retain_errors_ms = policy.retain_ms.min(fine.retain_errors_ms);
        }
    }
    match Route::new(&route.r#match, Policy::default()) {
        Ok(route) => Some(route.shape()),
        Err(error) => {
            reading.breaks(&format!("{path}.{}", field(&error)), bound(&error));
            None
        }
    }
}

/// Gives a field of a policy a value that breaks no bound; whether there is such a field.
fn put_right(policy: &mut Policy, field: &str) -> bool {
    let fine = Policy::default();
    match field {
        "lease" => policy.lease_ms = fine.lease_ms,
        "wait" => policy.wait_ms = fine.wait_ms,
        "retain" => policy.retain_ms = MAX_RETAIN_MS,
        // Both have to be there for a while, and no error longer than a success.
        "retain_errors" => {
            policy.retain_ms = MAX_RETAIN_MS;
            policy.retain_errors_ms = MAX_RETAIN_MS;
        }
        "remember" => policy.remember_ms = None,
        "max_request_bytes" => policy.max_request_bytes = fine.max_request_bytes,
        "max_stored_bytes" => policy.max_stored_bytes = fine.max_stored_bytes,
        "store_headers" => policy.store_headers = fine.store_headers,
        "final" => policy.statuses.stored.clear(),
        "retryable" => policy.statuses.released.clear(),
        _ => return false,
    }
    true
}

fn queues(queues: &[Queue], reading: &mut Reading) {
    let mut seen = HashSet::new();
    for (at, queue) in queues.iter().enumerate() {
        let path = |name: &str| format!("queue[{at}].{name}");
        if !(1..=MAX_PART_BYTES).contains(&queue.name.len()) {
            reading.breaks(&path("name"), format!("1 to {MAX_PART_BYTES} bytes"));
        } else if !seen.insert(&queue.name) {
            reading.breaks(&path("name"), "another queue has this name");
        }
        if queue.attempts == 0 {
            reading.breaks(&path("attempts"), "at least 1");
        }
        if let Err(error) = queue.terms().validate() {
            let field = match error.field {
                "max_attempts" => "attempts",
                _ => field(&error),
            };
            reading.breaks(&path(field), bound(&error));
        }
    }
}

/// The field that an error is about, as files call it.
pub(super) fn field(error: &LimitError) -> &str {
    error.field.trim_end_matches("_ms")
}

/// What an error says, with lengths of time as files write them.
pub(super) fn bound(error: &LimitError) -> String {
    let is_time = ["lease", "wait", "retain", "retain_errors", "remember"].contains(&field(error));
    let [value, bound] = [&error.value, &error.bound].map(|text| match is_time {
        true => times(text),
        false => text.clone(),
    });
    format!("{value} is out of bounds: {bound}")
}

/// A text whose numbers are milliseconds, with units.
fn times(text: &str) -> String {
    let text = text.replace(" ms", "");
    let mut told = String::with_capacity(text.len() + 16);
    let mut rest = &*text;
    while let Some(at) = rest.find(|character: char| character.is_ascii_digit()) {
        let digits = rest[at..].bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest[at..].split_at(digits);
        told.push_str(&rest[..at]);
        match number.parse() {
            Ok(ms) => told.push_str(&Span(ms).show().unwrap_or_default()),
            Err(_) => told.push_str(number),
        }
        rest = after;
    }
    told + rest
}
