//! The sections of the file, each field with its words, its kind and its default.
//!
//! The reference, the example, the reader and the output of `config check` all come from here.
//! Rules between fields are in `check.rs`; routes have a file of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use http::HeaderName;
use onceward::http::Unmatched;
use onceward_core::record::{OnAbandoned, OnDead, Terms};

use super::field::{Size, Span, Url, section, words};
use crate::gateway::settings::{EncodedSlash, Spelling};

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Whose requests may follow each other on one connection to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamReuse {
    /// Anybody's.
    Shared,
    /// One tenant's.
    Tenant,
    /// Nobody's.
    None,
}

words! { UpstreamReuse {
    "shared" => UpstreamReuse::Shared,
    "tenant" => UpstreamReuse::Tenant,
    "none" => UpstreamReuse::None,
} }

section! {
    /// Where the server listens, and how long it waits for others. Paths are taken from the
    /// current folder.
    Server {
        /// Where clients connect. Port 0 takes a free one.
        listen: SocketAddr = loopback(7600);
        /// Where operators connect: control API, health, metrics.
        admin: SocketAddr = loopback(7601);
        /// The HTTP API that requests go to, for every route that names no other.
        upstream: Option<Url> = None, like "\"http://127.0.0.1:8080\"";
        /// A file that is written once everything accepts connections.
        ready_file: Option<PathBuf> = None, like "\"onceward.ready\"";
        /// The certificate chain (PEM) for clients. With it and `tls_key` they speak TLS.
        tls_cert: Option<PathBuf> = None, like "\"server.pem\"";
        /// The private key (PEM) of the certificate.
        tls_key: Option<PathBuf> = None, like "\"server.key\"";
        /// What becomes of a request that matches no `[[route]]`, where there are any: it passes
        /// unprotected (pass), it passes unless it has a key and is no GET, HEAD, OPTIONS or TRACE,
        /// which is 400 `idempotency.unprotected` (refuse_keyed), or it is 404 `route.unmatched`
        /// unless it is a GET, HEAD or OPTIONS (refuse). The last is the sure way, and the one to
        /// deploy: no route leads around it either, by a header or query that names another method,
        /// by one that names another path, or by a path whose `..` leads out of the route, which
        /// are 400. The answer to a key that no route protects has `Idempotency-Protected: none`.
        unmatched: Unmatched = Unmatched::Pass;
        /// What `%2F` and `%5C` in a path may be to the upstream: as good as a slash (separator),
        /// as with many servers, so that a path which would be a protected one that way is 400; or
        /// part of a value (data), as in names of packages and objects.
        encoded_slash: EncodedSlash = EncodedSlash::Separator;
        /// What a path is that differs from a protected one only in case or by one slash at its
        /// end: 400, since many servers take it for the same (strict), or another path that
        /// passes (exact). Where both are written as routes, both are taken.
        spelling: Spelling = Spelling::Strict;
        /// How long the head of a request may take to come.
        header_timeout: Span = Span::seconds(30);
        /// How long the body of a request may be waited for beyond what its bytes earn.
        body_timeout: Span = Span::seconds(30);
        /// How long a client may take no byte of an answer, and how long it may take for an answer
        /// beyond what its bytes earn (`limits.write_bytes_per_second`).
        write_timeout: Span = Span::seconds(30);
        /// How long connecting to an upstream may take.
        connect_timeout: Span = Span::seconds(5);
        /// How long an upstream may say nothing.
        upstream_timeout: Span = Span::seconds(60);
        /// How long a connection to an upstream is kept while idle; less than the upstream keeps
        /// it.
        upstream_idle_timeout: Span = Span::seconds(4);
        /// Whose requests may follow each other on one connection to an upstream: anybody's
        /// (shared), those of one tenant (tenant; a request of nobody has one of its own), or each
        /// has its own (none). An upstream that says more than it was asked for answers whoever
        /// comes next on that connection.
        upstream_reuse: UpstreamReuse = UpstreamReuse::Shared;
        /// How long what runs may take to end after the signal to stop.
        drain_timeout: Span = Span::seconds(25);
        /// Whether `/metrics` needs no token.
        open_metrics: bool = false;
        /// Whether requests are counted per tenant too; the first 1,000 tenants by their own name.
        tenant_metrics: bool = false;
    }
}

words! { Unmatched {
    "pass" => Unmatched::Pass,
    "refuse_keyed" => Unmatched::RefuseKeyed,
    "refuse" => Unmatched::Refuse,
} }
words! { EncodedSlash {
    "separator" => EncodedSlash::Separator,
    "data" => EncodedSlash::Data,
} }
words! { Spelling { "strict" => Spelling::Strict, "exact" => Spelling::Exact } }

/// What survives a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Everything that was acknowledged.
    Full,
    /// All but the last moments.
    WalNormal,
}

words! { Durability { "full" => Durability::Full, "wal-normal" => Durability::WalNormal } }

/// Whether a database that is not there is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Create {
    /// If need be.
    Auto,
    /// Never: it has to be there.
    Never,
}

words! { Create { "auto" => Create::Auto, "never" => Create::Never } }

section! {
    /// Where keys, outcomes and the audit are kept.
    Store {
        /// `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `dynamodb://REGION/TABLE` or `memory:`.
        /// A database file that is made here is readable by its owner only.
        url: String = "sqlite:onceward.db".into();
        /// What survives a power loss: everything that was acknowledged (full), or all but the
        /// last moments before it (wal-normal), which health and log show.
        durability: Durability = Durability::Full;
        /// Whether a SQLite database that is not there is made (auto), or a server does not start
        /// without one (never): a folder that is not mounted is then no new, empty store.
        create: Create = Create::Auto;
        /// How often outcomes past their retention and keys past their remembrance are dropped.
        sweep_every: Span = Span::hours(1);
        /// How long a request waits for the store, beside the `wait` of its route, before it is
        /// answered 503 `store.unavailable`. What was asked of the store is settled behind it.
        answer_within: Span = Span::seconds(3);
    }
}

section! {
    /// Outcomes that are done, kept near at hand so that a replay needs no look at their record.
    /// Whatever happens to a cache costs time only.
    Cache {
        /// How much memory they may take in this process; 0 keeps none there.
        max_bytes: Size = Size(64 << 20);
        /// A Redis that several processes share: `redis://HOST:PORT/DATABASE`. Outcomes are kept
        /// there as they are sent, readable to whoever may read that Redis.
        url: Option<String> = None, like "\"redis://127.0.0.1:6379/0\"";
        /// The name of this deployment in the keys of Redis, so that several can share one; 1 to
        /// 64 bytes.
        env: String = "default".into();
        /// How long Redis may take to answer before the store is asked; 1ms to 5s.
        timeout: Span = Span(50);
    }
}

/// Where identity comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A keyed hash of the `Authorization` header.
    Authorization,
    /// Two headers that a trusted proxy sets.
    Header,
    /// A signed token.
    Jwt,
    /// The file's own tokens.
    Principals,
    /// One caller for everything.
    Single,
}

words! { Source {
    "authorization" => Source::Authorization,
    "header" => Source::Header,
    "jwt" => Source::Jwt,
    "principals" => Source::Principals,
    "single" => Source::Single,
} }

section! {
    /// Who asks: every claim has a tenant and a caller. Requests that claim nothing (GET, HEAD,
    /// OPTIONS, paths without a route, no key under `missing_key = "allow"`) need no identity.
    IdentitySection {
        /// authorization: tenant and caller are a keyed hash of the Authorization header, for
        /// static credentials. header: two headers that a trusted proxy sets. jwt: a bearer token,
        /// verified with the keys in `jwks_file`. principals: the tokens of `[[principal]]`.
        /// single: one caller for everything, for development.
        source: Source = Source::Authorization;
        /// With source authorization: whether a JWT there is refused. A refreshed token would be a
        /// new caller, and its retries would run again; without this it is only warned of.
        strict: bool = false;
        /// The header that names the tenant. With source header it is read (and has to be set
        /// here); with any other, what a client sends in it is replaced by what was identified.
        tenant_header: Option<HeaderName> = None, like "\"x-tenant-id\"";
        /// The header that names the caller; read or replaced in the same way.
        caller_header: Option<HeaderName> = None, like "\"x-caller-id\"";
        /// With source jwt: the file with the public keys (JWKS). It is read again when it changes.
        jwks_file: Option<PathBuf> = None, like "\"jwks.json\"";
        /// With source jwt: the issuer that a token has to name.
        issuer: Option<String> = None, like "\"https://login.example\"";
        /// With source jwt: audiences, one of which a token has to name. Without any, a token that
        /// names an audience is meant for somebody else and is refused.
        audience: Vec<String> = Vec::new();
        /// With source jwt: the claim that names the tenant.
        tenant_claim: String = "tenant".into();
        /// With source jwt: by how much the issuer's clock and ours may differ; at most 5m.
        clock_skew: Span = Span::seconds(60);
        /// A file with the secret (32 bytes or more) behind the keyed hashes, the same for all
        /// processes on one store. Without it one is made at the first start and kept in the store.
        secret_file: Option<PathBuf> = None, like "\"onceward.secret\"";
    }
}

section! {
    /// Bounds of the process. What is over them is refused, never queued without end.
    Limits {
        /// Requests that wait for the answer to one key.
        waiters_per_key: u32 = 1_000;
        /// Requests that wait for the answer to any key.
        waiters: u32 = 100_000;
        /// Protected requests at once, those that wait included; more get 503 `overload.shed`,
        /// replays excepted.
        in_flight: u32 = 100_000;
        /// The same of one tenant; more get 429 `rate.limited`, replays excepted.
        tenant_in_flight: u32 = 10_000;
        /// Bytes of protected requests' bodies that are held in memory, all together; more get 503
        /// `overload.shed`. A tenant has at most half of it beside its first. Bodies up to 16 KiB
        /// are not counted, nor is the copy of a payload that `keep_payload = "full"` keeps.
        body_bytes: Size = Size(256 << 20);
        /// Bytes of the first answers to them that are held in memory, all together, until they are
        /// recorded and the client has taken them. A tenant has at most half of it beside its
        /// first, and one caller of several in it three quarters of that. While it is full, what is
        /// new gets 503 `overload.shed`; an answer for which there is no room is passed on
        /// unstored, as one over `max_stored_bytes`. Answers up to 16 KiB are not counted.
        answer_bytes: Size = Size(256 << 20);
        /// The same of replays: while it is full, they get 503 `overload.shed`, and what is new
        /// runs on.
        replay_bytes: Size = Size(256 << 20);
        /// Connections at a time; more wait in the kernel. Fewer where so many files may not be
        /// open: some are kept for upstreams, the store and the control API.
        connections: u32 = 16_384;
        /// The head of a request.
        header_bytes: Size = Size(64 << 10);
        /// Headers of a request.
        headers: u32 = 128;
        /// Requests at a time on one HTTP/2 connection.
        streams: u32 = 128;
        /// Connections to an upstream that are kept while idle.
        upstream_idle_connections: u32 = 256;
        /// Bytes of an answer that earn a client a second to take it, beyond `write_timeout`. Who
        /// takes less is cut, and its answer is let go of. An answer that is passed on live only
        /// has to make progress.
        write_bytes_per_second: u32 = 8_000;
        /// Callers that a rate limit remembers. Beyond it, new callers share one allowance.
        rate_limit_callers: u32 = 100_000;
        /// Keys that shadow mode remembers.
        shadow_keys: u32 = 100_000;
    }
}

/// How entries about replays are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuditReplays {
    /// Through a bounded buffer, durable within a second.
    Buffered,
    /// Before the replay is sent.
    Sync,
}

words! { AuditReplays { "buffered" => AuditReplays::Buffered, "sync" => AuditReplays::Sync } }

section! {
    /// What is written about requests.
    Audit {
        /// Entries about replays: through a bounded buffer and durable within a second (buffered),
        /// or before the replay is sent (sync).
        replays: AuditReplays = AuditReplays::Buffered;
        /// How long sealed entries are kept. Older ones are dropped, a whole segment at a time, and
        /// an anchor stays that `onceward audit verify` accepts.
        retain: Span = Span::hours(365 * 24);
    }
}

section! {
    /// A token of the file's own, for `source = "principals"` and for the control API. Only its
    /// hash is written here: `printf %s TOKEN | sha256sum`.
    Principal {
        /// The SHA-256 of the token, in 64 hexadecimal digits.
        token_sha256: String = String::new(),
            like "\"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"";
        /// The tenant that it stands for.
        tenant: String = String::new(), like "\"acme\"";
        /// The caller that it stands for.
        caller: String = String::new(), like "\"alice\"";
        /// Whether the token opens the control API too. There it stands for the whole tenant: its
        /// records, jobs and audit entries, those of other callers included.
        control: bool = true;
    }
}

words! { OnDead { "skip" => OnDead::Skip, "block" => OnDead::Block } }

section! {
    /// What a queue of jobs allows. A queue that is not written has these defaults.
    Queue {
        /// Its name.
        name: String = String::new(), like "\"mail\"";
        /// How long a worker holds a job without renewal.
        lease: Span = Span::seconds(30);
        /// Attempts before a job is dead, 1 to 1,000.
        attempts: u32 = 5;
        /// How long an outcome is kept.
        retain: Span = Span::hours(24);
        /// How long an expired key is still known. Default: as `retain`, at most 7d.
        remember: Option<Span> = None, like "\"24h\"";
        /// What the jobs behind a dead one of the same subject do: go on (skip) or wait (block).
        on_dead: OnDead = OnDead::Skip;
    }
}

/// Longest time that an expired key is remembered unless a field says more.
pub(super) const REMEMBER_MAX: Span = Span::hours(7 * 24);

impl Queue {
    /// What a job of this queue carries.
    pub(crate) fn terms(&self) -> Terms {
        Terms {
            lease_ms: self.lease.0,
            on_abandoned: OnAbandoned::Rerun,
            retain_ms: self.retain.0,
            remember_ms: self.remember.unwrap_or(self.retain.min(REMEMBER_MAX)).0,
            max_attempts: self.attempts,
            on_dead: self.on_dead,
        }
    }
}
