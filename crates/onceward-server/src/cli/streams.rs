//! The command line of `onceward streams`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::switch;

/// Looks at events.
#[derive(Debug, Subcommand)]
pub(crate) enum Streams {
    /// Lists aggregates with their last numbers.
    List {
        /// Whose. Default: of every tenant that has events, one tenant after the other.
        #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
        tenant: Option<String>,
        /// Goes on behind this aggregate of the tenant. Default: from the first.
        #[arg(long, value_name = "ID", env = "ONCEWARD_AFTER", requires = "tenant")]
        after: Option<String>,
        /// How many at most.
        #[arg(long, value_name = "N", env = "ONCEWARD_LIMIT", default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=999))]
        limit: u16,
        #[command(flatten)]
        at: EventsAt,
    },
    /// Shows the events of one aggregate, in order.
    Show {
        /// Which aggregate.
        #[arg(value_name = "AGGREGATE")]
        aggregate: String,
        /// Whose. Default: the tenant that has it, if only one does.
        #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
        tenant: Option<String>,
        /// Goes on behind this number.
        #[arg(long, value_name = "NUMBER", env = "ONCEWARD_AFTER", default_value_t = 0)]
        after: u64,
        /// How many at most.
        #[arg(long, value_name = "N", env = "ONCEWARD_LIMIT", default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
        limit: u16,
        #[command(flatten)]
        at: EventsAt,
    },
    /// Shows the last events of all tenants in the order of all; `--json`: one per line.
    Tail {
        /// How many at first.
        #[arg(long, value_name = "N", env = "ONCEWARD_LAST", default_value_t = 20)]
        last: u64,
        /// Goes on with those that come. Default: off.
        #[arg(long, env = "ONCEWARD_FOLLOW", value_parser = switch)]
        follow: bool,
        #[command(flatten)]
        at: EventsAt,
    },
}

/// Where events are.
#[derive(Debug, Args)]
pub(crate) struct EventsAt {
    /// The folder that events are kept in. Default: beside a SQLite store, `NAME.events`; with
    /// another store `onceward.events`.
    #[arg(long, value_name = "PATH", env = "ONCEWARD_EVENTS")]
    pub(crate) events: Option<PathBuf>,
    /// The event store's name.
    #[arg(long, value_name = "NAME", env = "ONCEWARD_EVENT_STORE", default_value = "ontology")]
    pub(crate) event_store: String,
}
