//! The command line, as clap reads it. Help, completions and man pages come from these definitions.
//!
//! Every flag has a variable `ONCEWARD_…` and says its default. Nothing here opens or decides
//! anything; values that clap can't check are checked by the command that uses them.

mod bench;
mod flow;
mod streams;

pub(crate) use bench::{Bench, BenchEvents, BenchHttp, BenchJobs, BenchStore};
pub(crate) use flow::{FlowAt, ProjectArgs, ProjectWhat, RelayArgs, RelayWhat, WorkerArgs};
pub(crate) use streams::{EventsAt, Streams};

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use onceward_core::key::Key;
use onceward_core::record::State;

use crate::cache::SharedCache;
use crate::commands::backfill::Backfill;
use crate::config::Config;
use crate::config::flags::Flags;
use crate::export::{Format, KeyHash};
use crate::failure::Failure;
use crate::logs::{LogFormat, LogLevel};
use crate::report::args::Report;
use crate::times::Moment;

/// Items of one page when `--limit` is not given.
pub(crate) const LIMIT_DEFAULT: u16 = 100;
/// Items of one page at most.
pub(crate) const LIMIT_MAX: u16 = 1_000;

/// Every effect once, always forward: look at a store, decide by hand, sweep, measure.
#[derive(Debug, Parser)]
#[command(name = "onceward", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub(crate) common: Common,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// The configuration. Default: `onceward.toml` in the current folder, if it is there.
    #[arg(long, global = true, value_name = "FILE", env = "ONCEWARD_CONFIG")]
    #[arg(help_heading = "Common options")]
    pub(crate) config: Option<PathBuf>,

    /// The store: `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `dynamodb://REGION/TABLE` or
    /// `memory:`. Default: what the configuration says, otherwise `sqlite:onceward.db`.
    #[arg(long, global = true, value_name = "URL", env = "ONCEWARD_STORE", hide_env_values = true)]
    #[arg(help_heading = "Common options")]
    pub(crate) store: Option<String>,

    /// A cache that several processes share: `redis://HOST:PORT/DATABASE`. Default: what the
    /// configuration says, otherwise none.
    #[arg(long, global = true, value_name = "URL", env = "ONCEWARD_CACHE", hide_env_values = true)]
    #[arg(help_heading = "Common options")]
    pub(crate) cache: Option<String>,

    /// Goes through the control API at this address instead of opening the store. Default: opens
    /// it; where a running server holds it, what changes it goes through that server by itself.
    #[arg(long, global = true, value_name = "URL", env = "ONCEWARD_SERVER")]
    #[arg(help_heading = "Common options")]
    pub(crate) server: Option<String>,

    /// The token for `--server`. Default: none.
    #[arg(long, global = true, value_name = "TOKEN", env = "ONCEWARD_TOKEN")]
    #[arg(hide_env_values = true, help_heading = "Common options")]
    pub(crate) token: Option<String>,

    /// How log lines look.
    #[arg(long, global = true, value_name = "FORMAT", env = "ONCEWARD_LOG_FORMAT")]
    #[arg(default_value = "human", help_heading = "Common options")]
    pub(crate) log_format: LogFormat,

    /// What is logged at least.
    #[arg(long, global = true, value_name = "LEVEL", env = "ONCEWARD_LOG_LEVEL")]
    #[arg(default_value = "info", help_heading = "Common options")]
    pub(crate) log_level: LogLevel,

    /// Prints JSON for programs instead of tables for people. Default: off.
    #[arg(long, global = true, env = "ONCEWARD_JSON", value_parser = switch)]
    #[arg(help_heading = "Common options")]
    pub(crate) json: bool,

    /// When to use colour; `auto` means on a terminal, unless `NO_COLOR` is set.
    #[arg(long, global = true, value_name = "WHEN", env = "ONCEWARD_COLOR")]
    #[arg(default_value = "auto", help_heading = "Common options")]
    pub(crate) color: Color,
}

impl Common {
    /// The URL of the store: the flag's, the file's, or the default. A file that was named is read
    /// whatever the flag says: one that is not there, or wrong, is no help to anybody.
    pub(crate) fn store_url(&self) -> Result<String, Failure> {
        match &self.store {
            Some(url) if self.config.is_none() => Ok(url.clone()),
            store => {
                let flags = Flags { store: store.clone(), ..Flags::default() };
                Ok(Config::load(self.config.as_deref(), &flags)?.store.url)
            }
        }
    }

    /// The shared cache, for a command that drops outcomes.
    pub(crate) fn shared_cache(&self) -> Result<Option<SharedCache>, Failure> {
        let flags = Flags { cache: self.cache.clone(), ..Flags::default() };
        let config = Config::load(self.config.as_deref(), &flags)?;
        // Dropping reads no value, so no secret is needed.
        SharedCache::open(&config.cache, [0; 32])
    }
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Protects any HTTP API: a gateway in front of it, and the control API beside.
    Serve(Box<Serve>),
    /// Runs the reference services on the embedded store, with live traffic to watch.
    Demo(Demo),
    /// Lists, shows, resolves and erases records.
    #[command(subcommand, arg_required_else_help = true)]
    Keys(Keys),
    /// Lists and shows jobs, pauses and resumes queues.
    #[command(subcommand, arg_required_else_help = true)]
    Jobs(Jobs),
    /// Lists, shows, retries and discards dead letters.
    #[command(subcommand, arg_required_else_help = true)]
    Dead(Dead),
    /// Searches the audit entries.
    #[command(subcommand, arg_required_else_help = true)]
    Audit(Audit),
    /// Tells who uses keys, how often they conflict, and how long they are kept.
    Report(Report),
    /// Drops outcomes past their retention and keys past their remembrance.
    Sweep,
    /// Makes the store's tables, or brings them to the version of this program.
    Migrate,
    /// Measures, beside baselines measured in the same run.
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Bench),
    /// Takes in what came before there were keys.
    #[command(subcommand, arg_required_else_help = true)]
    Backfill(Backfill),
    /// Looks at events: aggregates, their events, all in order.
    #[command(subcommand, arg_required_else_help = true)]
    Streams(Streams),
    /// Publishes events to the log, until told to stop.
    Relay(RelayArgs),
    /// Handles events: instances and classes, until told to stop.
    Worker(WorkerArgs),
    /// Keeps the search up to date, until told to stop; rebuilds and verifies views.
    Project(ProjectArgs),
    /// Prints the description of the control API (OpenAPI 3.1).
    Openapi,
    /// Tells what a configuration comes to, or prints one to begin with.
    #[command(subcommand, arg_required_else_help = true)]
    Config(ConfigCommand),
    /// Prints the completions of a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Prints the man page, or writes the page of every command into a folder.
    Man {
        /// The folder; it is made if need be. Default: print the main page.
        #[arg(long, value_name = "DIR", env = "ONCEWARD_OUT")]
        out: Option<PathBuf>,
    },
}

/// How to serve.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// The operator's token for the control API; better set as a variable. Default: one is made
    /// and printed once.
    #[arg(long, value_name = "TOKEN", env = "ONCEWARD_ADMIN_TOKEN", hide_env_values = true)]
    pub(crate) admin_token: Option<String>,
    /// Opens a SQLite database that is older than the note beside it says, for once: keys that came
    /// since then run again. Default: off.
    #[arg(long, env = "ONCEWARD_ACCEPT_OLDER", value_parser = switch)]
    pub(crate) accept_older: bool,
}

/// How to show the reference services.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Which service.
    #[arg(default_value = "all")]
    pub(crate) service: DemoService,
    /// Where requests come in, on loopback only; port 0 takes any free one. Default:
    /// 127.0.0.1:7600.
    #[arg(long, value_name = "ADDR", env = "ONCEWARD_LISTEN", default_value = "127.0.0.1:7600")]
    pub(crate) listen: SocketAddr,
    /// Where the control API listens, on loopback only; port 0 takes any free one. Default:
    /// 127.0.0.1:7601.
    #[arg(long, value_name = "ADDR", env = "ONCEWARD_ADMIN", default_value = "127.0.0.1:7601")]
    pub(crate) admin: SocketAddr,
    /// Writes addresses and process id there once everything accepts connections. Default: none.
    #[arg(long, value_name = "PATH", env = "ONCEWARD_READY_FILE")]
    pub(crate) ready_file: Option<PathBuf>,
    /// The folder that events are kept in. Default: beside a SQLite store, `NAME.events`; with
    /// another store `onceward.events`.
    #[arg(long, value_name = "PATH", env = "ONCEWARD_EVENTS")]
    pub(crate) events: Option<PathBuf>,
    /// Serves without traffic of its own. Default: off.
    #[arg(long, env = "ONCEWARD_NO_TRAFFIC", value_parser = switch)]
    pub(crate) no_traffic: bool,
}

/// A reference service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoService {
    /// Projects, missions and assignments, with ETags and idempotency keys.
    Planning,
    /// Measurements in the order of their time.
    Measurements,
    /// Holds, estimates, payment links, customers and jobs.
    Business,
    /// Events, once and in order.
    Ontology,
    /// Every service that this version has.
    All,
}

/// Configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Tells everything that is wrong with the configuration, or what it comes to, as TOML.
    Check {
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Prints a file with every field, its default and what it does.
    Example,
    /// Prints the reference of every field, as Markdown.
    Reference,
}

/// Records.
#[derive(Debug, Subcommand)]
pub(crate) enum Keys {
    /// Lists records in the order of their keys.
    List(KeysList),
    /// Shows everything that is known of one key.
    Show {
        /// The key: `tenant:kind:scope:id`, with `%3A` for a colon inside a part.
        #[arg(value_parser = key)]
        key: Key,
    },
    /// Decides by hand about a record that nobody may run: unknown, dead, failed or abandoned.
    Resolve(KeysResolve),
    /// Forgets a key with its outcome and payload. The audit keeps a note, without the key.
    Erase {
        /// The key: `tenant:kind:scope:id`, with `%3A` for a colon inside a part.
        #[arg(value_parser = key)]
        key: Key,
        /// Does not ask. Default: ask on a terminal, refuse elsewhere.
        #[arg(long, env = "ONCEWARD_YES", value_parser = switch)]
        yes: bool,
        #[command(flatten)]
        actor: Actor,
    },
}

/// Which records to list.
#[derive(Debug, Args)]
pub(crate) struct KeysList {
    /// Only this tenant's. Default: all.
    #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
    pub(crate) tenant: Option<String>,
    /// Only of this scope: endpoint, queue, handler. Default: all.
    #[arg(long, value_name = "SCOPE", env = "ONCEWARD_SCOPE")]
    pub(crate) scope: Option<String>,
    /// Only in this state by the store's clock. Default: all.
    #[arg(long, value_name = "STATE", env = "ONCEWARD_STATE", value_parser = state)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which page of a list.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// How many at most, up to 1,000.
    #[arg(long, value_name = "N", env = "ONCEWARD_LIMIT", default_value_t = LIMIT_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(LIMIT_MAX)))]
    pub(crate) limit: u16,
    /// Goes on after a page: the cursor that it ended with. Default: from the start.
    #[arg(long, value_name = "CURSOR", env = "ONCEWARD_AFTER")]
    pub(crate) after: Option<String>,
}

/// A decision by hand.
#[derive(Debug, Args)]
pub(crate) struct KeysResolve {
    /// The key: `tenant:kind:scope:id`, with `%3A` for a colon inside a part.
    #[arg(value_parser = key)]
    pub(crate) key: Key,
    /// What becomes of it: run again, it happened, or it never will.
    #[arg(long = "as", value_name = "WHAT", env = "ONCEWARD_AS")]
    pub(crate) what: ResolveAs,
    /// With `--as done`: the outcome to replay, as text or from `@FILE`; JSON where a server holds
    /// the store. Default: null.
    #[arg(long, value_name = "TEXT|@FILE", env = "ONCEWARD_OUTCOME")]
    pub(crate) outcome: Option<String>,
    /// With `--as dead`: why. Default: "resolved by hand".
    #[arg(long, value_name = "TEXT", env = "ONCEWARD_REASON")]
    pub(crate) reason: Option<String>,
    /// With `--as rerun`: also when its subject has moved past it. Default: off.
    #[arg(long, env = "ONCEWARD_FORCE", value_parser = switch)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) actor: Actor,
}

/// Who decides by hand.
#[derive(Debug, Args)]
pub(crate) struct Actor {
    /// Who does it, for the audit. Default: the user who runs the command.
    #[arg(long, value_name = "NAME", env = "ONCEWARD_ACTOR")]
    pub(crate) actor: Option<String>,
}

/// Jobs and their queues.
#[derive(Debug, Subcommand)]
pub(crate) enum Jobs {
    /// Lists jobs in the order of their keys.
    List(JobsList),
    /// Shows everything that is known of one job.
    Show {
        /// The key: `tenant:job:queue:type:resource`, with `%3A` for a colon inside a part.
        #[arg(value_parser = key)]
        key: Key,
    },
    /// Pauses a queue for every process: it gives no jobs until it is resumed.
    Pause(QueueArgs),
    /// Resumes a queue.
    Resume(QueueArgs),
}

/// Which jobs to list.
#[derive(Debug, Args)]
pub(crate) struct JobsList {
    /// Only this tenant's. Default: all.
    #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
    pub(crate) tenant: Option<String>,
    /// Only of this queue. Default: all.
    #[arg(long, value_name = "QUEUE", env = "ONCEWARD_QUEUE")]
    pub(crate) queue: Option<String>,
    /// Only in this state by the store's clock. Default: all.
    #[arg(long, value_name = "STATE", env = "ONCEWARD_STATE", value_parser = state)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which queue, and who decides.
#[derive(Debug, Args)]
pub(crate) struct QueueArgs {
    /// The queue.
    pub(crate) queue: String,
    #[command(flatten)]
    pub(crate) actor: Actor,
}

/// Dead letters: what no attempt is left for.
#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// Lists dead letters in the order of their keys.
    List(DeadList),
    /// Shows everything that is known of one dead letter.
    Show {
        /// The key: `tenant:kind:scope:id`, with `%3A` for a colon inside a part.
        #[arg(value_parser = key)]
        key: Key,
    },
    /// Lets a dead letter run again, or all that fit, under the keys that they have.
    Retry(DeadRetry),
    /// Drops a dead letter, or all that fit, for good. The audit keeps a note of each.
    Discard(DeadDiscard),
}

/// Which dead letters to list.
#[derive(Debug, Args)]
pub(crate) struct DeadList {
    #[command(flatten)]
    pub(crate) which: DeadWhich,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which dead letters.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeadWhich {
    /// Only this tenant's. Default: all.
    #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
    pub(crate) tenant: Option<String>,
    /// Only of this queue, endpoint or handler. Default: all.
    #[arg(long, value_name = "QUEUE", env = "ONCEWARD_QUEUE")]
    pub(crate) queue: Option<String>,
}

/// One dead letter, or all that fit.
#[derive(Debug, Args)]
pub(crate) struct DeadOnes {
    /// The key: `tenant:kind:scope:id`, with `%3A` for a colon inside a part.
    #[arg(value_parser = key, required_unless_present = "all", conflicts_with = "all")]
    pub(crate) key: Option<Key>,
    /// All that `--tenant` and `--queue` leave. Default: off.
    #[arg(long, env = "ONCEWARD_ALL", value_parser = switch)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) which: DeadWhich,
    #[command(flatten)]
    pub(crate) actor: Actor,
}

/// What to retry.
#[derive(Debug, Args)]
pub(crate) struct DeadRetry {
    #[command(flatten)]
    pub(crate) ones: DeadOnes,
    /// Also when its subject has moved past it: it runs outside the order. Default: off.
    #[arg(long, env = "ONCEWARD_FORCE", value_parser = switch)]
    pub(crate) force: bool,
}

/// What to discard.
#[derive(Debug, Args)]
pub(crate) struct DeadDiscard {
    #[command(flatten)]
    pub(crate) ones: DeadOnes,
    /// Does not ask. Default: ask on a terminal, refuse elsewhere.
    #[arg(long, env = "ONCEWARD_YES", value_parser = switch)]
    pub(crate) yes: bool,
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResolveAs {
    /// Run again: a job becomes pending, a request may be retried.
    Rerun,
    /// It happened: the outcome is replayed from now on.
    Done,
    /// It will never run.
    Dead,
}

/// The audit.
#[derive(Debug, Subcommand)]
pub(crate) enum Audit {
    /// Lists audit entries in the order of their numbers.
    List(AuditList),
    /// Writes all entries that fit to standard output, as a stream.
    Export(AuditExport),
    /// Compares the audit with its seals and names the first entry that is not as it was sealed.
    Verify {
        /// Only this tenant's. Default: all.
        #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
        tenant: Option<String>,
    },
}

/// Which audit entries to export, and how.
#[derive(Debug, Args)]
pub(crate) struct AuditExport {
    #[command(flatten)]
    pub(crate) filter: AuditWanted,
    /// How entries are written.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "ONCEWARD_FORMAT",
        default_value = "ndjson"
    )]
    pub(crate) format: Format,
}

/// Which audit entries to list.
#[derive(Debug, Args)]
pub(crate) struct AuditList {
    #[command(flatten)]
    pub(crate) filter: AuditWanted,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Which audit entries. Times are half-open: not before `--from`, before `--to`.
#[derive(Debug, Clone, Args)]
pub(crate) struct AuditWanted {
    /// Only this tenant's. Default: all.
    #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
    pub(crate) tenant: Option<String>,
    /// Only about this subject: endpoint, queue, aggregate. Default: all.
    #[arg(long, value_name = "SUBJECT", env = "ONCEWARD_SUBJECT")]
    pub(crate) subject: Option<String>,
    /// Only about this key: `tenant:kind:scope:id`, or its hash as logs and entries show it.
    /// Default: all.
    #[arg(long, value_name = "KEY", env = "ONCEWARD_KEY", value_parser = KeyHash::read)]
    pub(crate) key: Option<KeyHash>,
    /// Only this action, such as `request.done`. Default: all.
    #[arg(long, value_name = "ACTION", env = "ONCEWARD_ACTION")]
    pub(crate) action: Option<String>,
    /// Not before: an instant (`2026-11-15T08:00:00Z`), a day, or a while ago (`3h`). Default: all.
    #[arg(long, value_name = "WHEN", env = "ONCEWARD_FROM")]
    pub(crate) from: Option<Moment>,
    /// Before: as `--from`. Default: all.
    #[arg(long, value_name = "WHEN", env = "ONCEWARD_TO")]
    pub(crate) to: Option<Moment>,
}

/// Whether `--json` was asked for on a command line that could not be parsed.
pub(crate) fn json_was_asked_for() -> bool {
    let flag = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    let variable = std::env::var("ONCEWARD_JSON").unwrap_or_default();
    flag || switch(&variable) == Ok(true)
}

/// What the variable of a flag without a value says. A word that says neither is a mistake that
/// would switch something, one way or the other.
fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "" | "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err("it is switched by true or false, yes or no, on or off, 1 or 0".into()),
    }
}

fn key(text: &str) -> Result<Key, String> {
    Key::parse(text).map_err(|error| error.to_string())
}

fn state(text: &str) -> Result<State, String> {
    let words = || State::ALL.map(State::as_str).join(", ");
    State::parse(text).ok_or_else(|| format!("a state is one of {}", words()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn every_argument(command: &clap::Command, check: &mut impl FnMut(&str, &clap::Arg)) {
        for argument in command.get_arguments() {
            check(command.get_name(), argument);
        }
        for below in command.get_subcommands() {
            every_argument(below, check);
        }
    }

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_has_its_variable_and_says_its_default() {
        every_argument(&Cli::command(), &mut |command, argument| {
            let Some(long) = argument.get_long() else { return };
            if long == "help" || long == "version" {
                return;
            }
            let variable = format!("ONCEWARD_{}", long.to_uppercase().replace('-', "_"));
            let found = argument.get_env().and_then(|name| name.to_str());
            assert_eq!(found, Some(variable.as_str()), "{command} --{long}");
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let said = help.contains("Default: ") || !argument.get_default_values().is_empty();
            assert!(said || argument.is_required_set(), "{command} --{long}: {help}");
        });
    }
}
