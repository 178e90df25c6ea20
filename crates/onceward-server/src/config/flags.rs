//! Flags and variables that win over the file, read by the same rules as its fields.
//!
//! Each is a text here: whether it fits is told together with everything else that is wrong.

use clap::Args;
use toml::Spanned;
use toml::de::DeValue;

use super::Config;
use super::check::{bound, field};
use super::field::Field;
use super::reading::Reading;

/// What flags and variables say about the configuration.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Flags {
    /// Where requests go: `http://HOST:PORT` or `https://HOST`, with a path in front if need be.
    /// Default: `[server] upstream`.
    #[arg(long, value_name = "URL", env = "ONCEWARD_UPSTREAM")]
    pub(crate) upstream: Option<String>,
    /// Where requests come in; port 0 takes any free one. Default: 127.0.0.1:7600.
    #[arg(long, value_name = "ADDR", env = "ONCEWARD_LISTEN")]
    pub(crate) listen: Option<String>,
    /// Where the control API listens; port 0 takes any free one. Default: 127.0.0.1:7601.
    #[arg(long, value_name = "ADDR", env = "ONCEWARD_ADMIN")]
    pub(crate) admin: Option<String>,
    /// Writes addresses and process id there once everything accepts connections. Default: none.
    #[arg(long, value_name = "PATH", env = "ONCEWARD_READY_FILE")]
    pub(crate) ready_file: Option<String>,
    /// Whether a SQLite database that is not there is made (auto) or missed (never). Default: auto.
    #[arg(long, value_name = "WHEN", env = "ONCEWARD_CREATE")]
    pub(crate) create: Option<String>,
    /// Who asks: authorization, header, jwt, principals or single. Default: authorization.
    #[arg(long, value_name = "SOURCE", env = "ONCEWARD_IDENTITY")]
    pub(crate) identity: Option<String>,
    /// With `--identity header`: the header that names the tenant. Default: none.
    #[arg(long, value_name = "NAME", env = "ONCEWARD_TENANT_HEADER")]
    pub(crate) tenant_header: Option<String>,
    /// With `--identity header`: the header that names the caller. Default: none.
    #[arg(long, value_name = "NAME", env = "ONCEWARD_CALLER_HEADER")]
    pub(crate) caller_header: Option<String>,
    /// Serves TLS with this certificate chain, a PEM file. Default: none, plain HTTP.
    #[arg(long, value_name = "PATH", env = "ONCEWARD_TLS_CERT")]
    pub(crate) tls_cert: Option<String>,
    /// The private key of `--tls-cert`, a PEM file. Default: none.
    #[arg(long, value_name = "PATH", env = "ONCEWARD_TLS_KEY")]
    pub(crate) tls_key: Option<String>,
    /// How long a claim holds without renewal, where no routes are written. Default: 30s.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_LEASE")]
    pub(crate) lease: Option<String>,
    /// How long a duplicate waits for the first's answer, where no routes are written. Default: 2s.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_WAIT")]
    pub(crate) wait: Option<String>,
    /// What happens to a request whose outcome nobody knows (rerun, hold), where no routes are
    /// written. Default: rerun.
    #[arg(long, value_name = "WHAT", env = "ONCEWARD_ON_ABANDONED")]
    pub(crate) on_abandoned: Option<String>,
    /// Largest body of a protected request, where no routes are written. Default: 8MiB.
    #[arg(long, value_name = "BYTES", env = "ONCEWARD_MAX_REQUEST_BYTES")]
    pub(crate) max_request_bytes: Option<String>,
    /// Largest answer that is stored, where no routes are written. Default: 1MiB.
    #[arg(long, value_name = "BYTES", env = "ONCEWARD_MAX_STORED_BYTES")]
    pub(crate) max_stored_bytes: Option<String>,
    /// Connections at a time; more wait. Default: 16384.
    #[arg(long, value_name = "N", env = "ONCEWARD_MAX_CONNECTIONS")]
    pub(crate) max_connections: Option<String>,
    /// How long a request's head may take to come. Default: 30s.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_HEADER_TIMEOUT")]
    pub(crate) header_timeout: Option<String>,
    /// How long a client may neither send a body that it began nor take an answer. Default: 30s.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_BODY_TIMEOUT")]
    pub(crate) body_timeout: Option<String>,
    /// How long the upstream may say nothing. Default: 60s.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_UPSTREAM_TIMEOUT")]
    pub(crate) upstream_timeout: Option<String>,
    /// How long what runs may take to end after SIGTERM. Default: 25s.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_DRAIN_TIMEOUT")]
    pub(crate) drain_timeout: Option<String>,
    /// `--store`, which every command takes.
    #[arg(skip)]
    pub(crate) store: Option<String>,
    /// `--cache`, which every command takes.
    #[arg(skip)]
    pub(crate) cache: Option<String>,
}

impl Flags {
    /// Puts every flag that is there in the place of the file's field.
    pub(super) fn apply(&self, config: &mut Config, reading: &mut Reading) {
        let Config { server, store, cache, identity, limits, unwritten, .. } = config;
        let mut set = Setter(reading);
        set.put("--store", &self.store, &mut store.url);
        set.put("--cache", &self.cache, &mut cache.url);
        set.put("--create", &self.create, &mut store.create);
        set.put("--upstream", &self.upstream, &mut server.upstream);
        set.put("--listen", &self.listen, &mut server.listen);
        set.put("--admin", &self.admin, &mut server.admin);
        set.put("--ready-file", &self.ready_file, &mut server.ready_file);
        set.put("--tls-cert", &self.tls_cert, &mut server.tls_cert);
        set.put("--tls-key", &self.tls_key, &mut server.tls_key);
        set.put("--header-timeout", &self.header_timeout, &mut server.header_timeout);
        set.put("--body-timeout", &self.body_timeout, &mut server.body_timeout);
        set.put("--body-timeout", &self.body_timeout, &mut server.write_timeout);
        set.put("--upstream-timeout", &self.upstream_timeout, &mut server.upstream_timeout);
        set.put("--drain-timeout", &self.drain_timeout, &mut server.drain_timeout);
        set.put("--identity", &self.identity, &mut identity.source);
        set.put("--tenant-header", &self.tenant_header, &mut identity.tenant_header);
        set.put("--caller-header", &self.caller_header, &mut identity.caller_header);
        set.put("--max-connections", &self.max_connections, &mut limits.connections);
        set.put("--lease", &self.lease, &mut unwritten.lease);
        set.put("--wait", &self.wait, &mut unwritten.wait);
        set.put("--on-abandoned", &self.on_abandoned, &mut unwritten.on_abandoned);
        set.put("--max-request-bytes", &self.max_request_bytes, &mut unwritten.max_request_bytes);
        set.put("--max-stored-bytes", &self.max_stored_bytes, &mut unwritten.max_stored_bytes);
    }

    /// Flags about routes that nobody wrote have no place where routes are written.
    pub(super) fn check_routes(&self, config: &Config, reading: &mut Reading) {
        let about_routes = [
            ("--lease", &self.lease),
            ("--wait", &self.wait),
            ("--on-abandoned", &self.on_abandoned),
            ("--max-request-bytes", &self.max_request_bytes),
            ("--max-stored-bytes", &self.max_stored_bytes),
        ];
        if config.routes.is_empty() {
            if let Err(error) = config.unwritten.policy().validate() {
                let field = field(&error);
                let flag = format!("--{}", field.replace('_', "-"));
                let message = bound(&error);
                if about_routes.iter().any(|(known, _)| *known == flag) {
                    reading.breaks(&flag, message);
                } else {
                    // Another flag has put it out of bounds, and only a file can change it.
                    let message = format!("{message}; change the flags, or write a [[route]]");
                    reading.breaks(field, message);
                }
            }
            return;
        }
        for (flag, value) in about_routes {
            if value.is_some() {
                reading.breaks(flag, "the file has routes of its own: say it there, per route");
            }
        }
    }
}

struct Setter<'r>(&'r mut Reading);

impl Setter<'_> {
    fn put<T: Field>(&mut self, flag: &str, text: &Option<String>, place: &mut T) {
        let Some(text) = text else { return };
        // Flags have no line: what is wrong with them is collected apart.
        let mut apart = Reading::default();
        let value = Spanned::new(0..0, DeValue::String(text.into()));
        if let Some(value) = T::read(&value, flag, &mut apart) {
            *place = value;
            return;
        }
        // A bare number may be one.
        let number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.then(|| DeValue::parse(text).ok()).flatten();
        match number.and_then(|value| T::read(&value, flag, &mut Reading::default())) {
            Some(value) => *place = value,
            None => self.0.adopt(apart),
        }
    }
}
