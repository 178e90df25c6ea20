//! How the Postgres store is opened: every setting with its default and its bounds.
//!
//! Rule: a value outside its bounds is refused by name before anything is connected.

use std::time::Duration;

use onceward_core::limits::{LimitError, in_range};

/// Longest name that Postgres gives a schema.
const MAX_SCHEMA_BYTES: usize = 63;
/// Most connections that read.
const MAX_READERS: u64 = 64;
/// Longest of the time-outs: one hour.
const MAX_TIMEOUT_MS: u64 = 3_600_000;

/// Something weaker than the store insists on, unless it is allowed by this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Weakness {
    /// `synchronous_commit=off`: a crash of the server loses what was answered just before.
    AsyncCommit,
    /// `fsync=off`: a power loss may lose everything.
    NoFsync,
    /// A server that can't write: it only shows what was, a moment ago.
    Replica,
    /// A role that row-level security does not bind: only the program keeps tenants apart.
    BypassRls,
}

impl Weakness {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AsyncCommit, Self::NoFsync, Self::Replica, Self::BypassRls];

    /// The name by which it is allowed, as in `postgres://…?allow=async_commit`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsyncCommit => "async_commit",
            Self::NoFsync => "no_fsync",
            Self::Replica => "replica",
            Self::BypassRls => "bypass_rls",
        }
    }
}

/// Settings of the Postgres store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// The schema that holds everything: a lower-case letter or `_`, then letters, digits and `_`.
    /// Default: `onceward`.
    pub schema: String,
    /// Connections that serve loads and lists, opened as they are needed. Default: 4.
    pub readers: usize,
    /// How long the server works on one statement before it gives up. Default: 5 s.
    pub statement_timeout_ms: u64,
    /// How long the server lets a transaction of ours lie idle, with its locks, before it ends the
    /// connection: a stopped process holds nobody up for longer. Default: 2 s.
    pub idle_in_transaction_timeout_ms: u64,
    /// How long an answer is waited for before the connection is given up; more than the
    /// statement's time-out, which is the gentler end. Default: 10 s.
    pub answer_timeout_ms: u64,
    /// How long opening a connection may take. Default: 5 s.
    pub connect_timeout_ms: u64,
    /// What is weaker than it should be, and allowed by name; `allow=a,b` in the URL adds to it.
    /// What applies of it shows in the store's capabilities. Default: nothing.
    pub allow: Vec<Weakness>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            schema: "onceward".into(),
            readers: 4,
            statement_timeout_ms: 5_000,
            idle_in_transaction_timeout_ms: 2_000,
            answer_timeout_ms: 10_000,
            connect_timeout_ms: 5_000,
            allow: Vec::new(),
        }
    }
}

impl PostgresOptions {
    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that lies outside its bounds.
    pub fn validate(&self) -> Result<(), LimitError> {
        check_schema(&self.schema)?;
        in_range("readers", self.readers as u64, 1, MAX_READERS)?;
        in_range("statement_timeout_ms", self.statement_timeout_ms, 100, MAX_TIMEOUT_MS)?;
        let idle = self.idle_in_transaction_timeout_ms;
        in_range("idle_in_transaction_timeout_ms", idle, 100, MAX_TIMEOUT_MS)?;
        let least = self.statement_timeout_ms + 1;
        in_range("answer_timeout_ms", self.answer_timeout_ms, least, 2 * MAX_TIMEOUT_MS)?;
        in_range("connect_timeout_ms", self.connect_timeout_ms, 100, MAX_TIMEOUT_MS)
    }

    /// Takes our own parameter out of a URL: Postgres' client knows only its own.
    ///
    /// # Errors
    /// When a name is not one of [`Weakness::as_str`].
    pub(super) fn take_allowed(&mut self, url: &str) -> Result<String, LimitError> {
        let Some((place, query)) = url.split_once('?') else { return Ok(url.into()) };
        let mut left = Vec::new();
        for parameter in query.split('&') {
            let Some(names) = parameter.strip_prefix("allow=") else {
                left.push(parameter);
                continue;
            };
            for name in names.split(',').flat_map(|name| name.split("%2C")) {
                let known = Weakness::ALL.into_iter().find(|weakness| weakness.as_str() == name);
                let Some(weakness) = known else {
                    let all = Weakness::ALL.map(Weakness::as_str).join(", ");
                    return Err(LimitError::new("allow", format!("{name:?}"), all));
                };
                self.allow.push(weakness);
            }
        }
        let left = left.join("&");
        Ok(if left.is_empty() { place.into() } else { format!("{place}?{left}") })
    }

    pub(super) fn allows(&self, weakness: Weakness) -> bool {
        self.allow.contains(&weakness)
    }

    pub(super) fn answer_timeout(&self) -> Duration {
        Duration::from_millis(self.answer_timeout_ms)
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}

/// A schema's name goes into SQL as it is, so it holds nothing that has to be quoted; and no `:`,
/// which ends it in the names of locks.
fn check_schema(schema: &str) -> Result<(), LimitError> {
    let starts = schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let follows = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let fits = starts && schema.chars().all(follows) && schema.len() <= MAX_SCHEMA_BYTES;
    if fits && !schema.starts_with("pg_") && schema != "information_schema" {
        return Ok(());
    }
    let bound = "1 to 63 of a-z, 0-9 and _, not starting with a digit or pg_";
    Err(LimitError::new("schema", format!("{schema:?}"), bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_schemas() {
        for schema in ["onceward", "_t1", "a"] {
            assert_eq!(check_schema(schema), Ok(()), "{schema:?}");
        }
        let long = "x".repeat(64);
        for schema in ["", "1a", "A", "a-b", "a\"", "a:b", "pg_x", "a b", &long] {
            assert!(check_schema(schema).is_err(), "{schema:?}");
        }
    }

    #[test]
    fn what_is_allowed_is_taken_out_of_the_url() {
        let mut options = PostgresOptions::default();
        let url = "postgres://u@h/d?allow=async_commit,replica&application_name=x";
        assert_eq!(options.take_allowed(url).unwrap(), "postgres://u@h/d?application_name=x");
        assert_eq!(options.allow, [Weakness::AsyncCommit, Weakness::Replica]);
        assert_eq!(
            options.take_allowed("postgres://h/d?allow=no_fsync").unwrap(),
            "postgres://h/d"
        );
        let unknown = options.take_allowed("postgres://h/d?allow=everything").unwrap_err();
        assert_eq!(unknown.field, "allow");
    }

    #[test]
    fn an_answer_is_waited_for_longer_than_a_statement_runs() {
        let options = PostgresOptions { answer_timeout_ms: 5_000, ..PostgresOptions::default() };
        assert_eq!(options.validate().unwrap_err().field, "answer_timeout_ms");
    }
}
