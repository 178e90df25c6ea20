//! Configuration: one TOML file, with flags and variables above it.
//!
//! The rule kept here: whatever is wrong is told at once, with file, line and path, and nothing
//! starts with half a configuration. Every field is defined once, in `sections.rs` and `route.rs`;
//! the reference, the example and `config check` are made from that.
//!
//! Not responsible for opening what it names: stores, certificates and keys are opened later.

mod check;
pub(crate) mod field;
pub(crate) mod flags;
mod reading;
pub(crate) mod reference;
pub(crate) mod route;
pub(crate) mod sections;
#[cfg(test)]
mod tests;
mod told;
mod unreached;

use std::collections::HashMap;
use std::path::Path;

use http::HeaderName;
use onceward::engine::{Engine, EngineOptions, NoteWriting};
use onceward::http::{
    Authorize, Door, DoorLimits, Identity, MissingKey, PermitText, Policy, Route, Routes,
};
use onceward::store::sqlite::{SqliteDurability, SqliteOptions};
use onceward_core::record::Terms;
use toml::de::DeTable;

use self::field::{Section, Url};
use self::flags::Flags;
use self::reading::{Problems, Reading, Table};
use self::route::{Complete, RouteSection};
use self::sections::{
    Audit, AuditReplays, Cache, Durability, IdentitySection, Limits, Principal, Queue, Server,
    Source, Store,
};
use crate::failure::Failure;
use crate::identity::Secret;

/// The file that is read when none is named and it is there.
pub(crate) const DEFAULT_FILE: &str = "onceward.toml";
/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Most tables of one kind in a file.
const MAX_TABLES: usize = 10_000;

/// A whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    /// The file that was read, if one was.
    pub(crate) file: Option<String>,
    /// `[server]`
    pub(crate) server: Server,
    /// `[store]`
    pub(crate) store: Store,
    /// `[cache]`
    pub(crate) cache: Cache,
    /// `[identity]`
    pub(crate) identity: IdentitySection,
    /// `[limits]`
    pub(crate) limits: Limits,
    /// `[audit]`
    pub(crate) audit: Audit,
    /// `[[principal]]`
    pub(crate) principals: Vec<Principal>,
    /// `[[route]]`
    pub(crate) routes: Vec<RouteSection>,
    /// `[[queue]]`
    pub(crate) queues: Vec<Queue>,
    /// What every request falls under where no routes are written. Flags set it, no section does.
    pub(crate) unwritten: RouteSection,
}

impl Default for Config {
    fn default() -> Self {
        Self::read(&DeTable::new(), &mut Reading::default())
    }
}

impl Config {
    /// The configuration of a file (or of [`DEFAULT_FILE`], if it is there), with flags above it.
    pub(crate) fn load(file: Option<&Path>, flags: &Flags) -> Result<Self, Failure> {
        let (name, text) = match file {
            Some(file) => (file.display().to_string(), read(file)?),
            None if Path::new(DEFAULT_FILE).is_file() => {
                (DEFAULT_FILE.into(), read(Path::new(DEFAULT_FILE))?)
            }
            None => (String::new(), String::new()),
        };
        let config = Self::parse(&text, &name, flags)
            .map_err(|problems| Failure::usage("config.invalid", problems.to_string()))?;
        Ok(Self { file: (!name.is_empty()).then_some(name), ..config })
    }

    /// The configuration of a text.
    pub(crate) fn parse(text: &str, file: &str, flags: &Flags) -> Result<Self, Problems> {
        let mut reading = Reading::of(text);
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            reading.wrong(offset, "", error.message());
        }
        let mut config = Self::read(document.get_ref(), &mut reading);
        flags.apply(&mut config, &mut reading);
        check::check(&config, flags, &mut reading);
        match reading.end(file) {
            Some(problems) => Err(problems),
            None => Ok(config),
        }
    }

    fn read(document: &DeTable<'_>, reading: &mut Reading) -> Self {
        let mut table = Table::new(document, "");
        let config = Self {
            file: None,
            server: section(&mut table, "server", reading),
            store: section(&mut table, "store", reading),
            cache: section(&mut table, "cache", reading),
            identity: section(&mut table, "identity", reading),
            limits: section(&mut table, "limits", reading),
            audit: section(&mut table, "audit", reading),
            principals: sections(&mut table, "principal", reading),
            routes: sections(&mut table, "route", reading),
            queues: sections(&mut table, "queue", reading),
            unwritten: RouteSection {
                r#match: "* /*".into(),
                missing_key: Some(MissingKey::Allow),
                ..RouteSection::default()
            },
        };
        table.end(&elsewhere(), reading);
        config
    }

    /// The routes for the HTTP layer; `authorize` makes the hook of a route that names a URL, and
    /// `permit_text` writes permits for upstreams that complete requests themselves.
    pub(crate) fn http_routes(
        &self,
        authorize: impl Fn(&Url, &RouteSection) -> Authorize,
        permit_text: &PermitText,
    ) -> Result<Routes, Failure> {
        if self.routes.is_empty() {
            return Ok(Routes::every(self.unwritten.policy())?);
        }
        let route = |section: &RouteSection| {
            let hook = section.authorize.as_ref().map(|url| authorize(url, section));
            let text = (section.complete == Complete::Upstream).then(|| permit_text.clone());
            let policy = Policy { authorize: hook, permit_text: text, ..section.policy() };
            Route::new(&section.r#match, policy)
        };
        let routes: Result<Vec<_>, _> = self.routes.iter().map(route).collect();
        Ok(Routes::written(routes?))
    }

    /// The engine's bounds.
    pub(crate) fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            waiters_per_key_max: self.limits.waiters_per_key as usize,
            waiters_max: self.limits.waiters as usize,
            notes: match self.audit.replays {
                AuditReplays::Buffered => NoteWriting::Buffered,
                AuditReplays::Sync => NoteWriting::Sync,
            },
            ..EngineOptions::default()
        }
    }

    /// The bounds of the HTTP layer.
    pub(crate) fn door_limits(&self) -> DoorLimits {
        DoorLimits {
            in_flight_max: self.limits.in_flight as usize,
            tenant_in_flight_max: self.limits.tenant_in_flight as usize,
            body_bytes_max: self.limits.body_bytes.0,
            answer_bytes_max: self.limits.answer_bytes.0,
            replay_bytes_max: self.limits.replay_bytes.0,
            store_within_ms: self.store.answer_within.0,
            rate_callers_max: self.limits.rate_limit_callers as usize,
            shadow_keys_max: self.limits.shadow_keys as usize,
        }
    }

    /// What the jobs of each written queue carry.
    pub(crate) fn queue_terms(&self) -> HashMap<String, Terms> {
        self.queues.iter().map(|queue| (queue.name.clone(), queue.terms())).collect()
    }

    /// The headers that tell the service who was identified, unless identity is read from them.
    pub(crate) fn told_headers(&self) -> Option<(HeaderName, HeaderName)> {
        let IdentitySection { source, tenant_header, caller_header, .. } = &self.identity;
        match (source, tenant_header, caller_header) {
            (Source::Header, ..) => None,
            (_, Some(tenant), Some(caller)) => Some((tenant.clone(), caller.clone())),
            _ => None,
        }
    }

    /// The HTTP layer's door, with the bounds and headers of this configuration.
    pub(crate) fn door(
        &self,
        engine: Engine,
        identity: Identity,
        routes: Routes,
        secret: &Secret,
    ) -> Door {
        let door = Door::new(engine, identity, routes)
            .with_limits(self.door_limits())
            .with_unmatched(self.server.unmatched)
            .with_cache_bytes(self.cache.max_bytes.0)
            .with_secret(secret.derive("leaves"));
        match self.told_headers() {
            Some((tenant, caller)) => door.with_identity_headers(tenant, caller),
            None => door,
        }
    }

    /// How a SQLite store is opened.
    pub(crate) fn sqlite_options(&self) -> SqliteOptions {
        let durability = match self.store.durability {
            Durability::Full => SqliteDurability::Full,
            Durability::WalNormal => SqliteDurability::WalNormal,
        };
        SqliteOptions { durability, ..SqliteOptions::default() }
    }
}

fn section<S: Section + Default>(
    table: &mut Table<'_, '_>,
    name: &'static str,
    reading: &mut Reading,
) -> S {
    let Some((value, path)) = table.find(name, reading) else { return S::default() };
    match value.get_ref().as_table() {
        Some(entries) => one(entries, &path, reading),
        None => {
            let message = format!("is a section: write [{name}] on a line of its own");
            reading.wrong(value.span().start, &path, message);
            S::default()
        }
    }
}

fn sections<S: Section>(
    table: &mut Table<'_, '_>,
    name: &'static str,
    reading: &mut Reading,
) -> Vec<S> {
    let Some((value, path)) = table.find(name, reading) else { return Vec::new() };
    let items = value.get_ref().as_array().map(|items| items.iter().collect::<Vec<_>>());
    let Some(items) = items.filter(|items| items.len() <= MAX_TABLES) else {
        let message = format!("there may be up to {MAX_TABLES}, each begun with [[{name}]]");
        reading.wrong(value.span().start, &path, message);
        return Vec::new();
    };
    let mut found = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        match item.get_ref().as_table() {
            Some(entries) => {
                reading.stands_at(&path, item.span().start);
                found.push(one(entries, &path, reading));
            }
            None => reading.wrong(item.span().start, &path, format!("begins with [[{name}]]")),
        }
    }
    found
}

fn one<S: Section>(entries: &DeTable<'_>, path: &str, reading: &mut Reading) -> S {
    let mut table = Table::new(entries, path);
    let section = S::read_table(&mut table, reading);
    table.end(&elsewhere(), reading);
    section
}

/// Every field and the section that it belongs into, for fields in a wrong place.
fn elsewhere() -> Vec<(&'static str, &'static str)> {
    let of = |fields: Vec<field::Described>, section| {
        fields.into_iter().map(move |field| (field.name, section))
    };
    of(Server::default().fields(), "[server]")
        .chain(of(IdentitySection::default().fields(), "[identity]"))
        .chain(of(Store::default().fields(), "[store]"))
        .chain(of(Limits::default().fields(), "[limits]"))
        .chain(of(RouteSection::default().fields(), "[[route]]"))
        .collect()
}

fn read(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let failed = |why: String| {
        let message = format!("can't read the configuration {shown}: {why}");
        Failure::usage("config.file", message)
    };
    let found = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?;
    if found.is_file() && found.len() > MAX_FILE_BYTES {
        return Err(failed(format!("{} bytes, at most {MAX_FILE_BYTES}", found.len())));
    }
    std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))
}
