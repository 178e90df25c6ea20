//! The command line of what follows events: `relay`, `worker`, `project`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Where events are, and what a process that follows them writes once it does.
#[derive(Debug, Args)]
pub(crate) struct FlowAt {
    /// The folder that events are kept in. Default: beside a SQLite store, `NAME.events`; with
    /// another store `onceward.events`.
    #[arg(long, global = true, value_name = "PATH", env = "ONCEWARD_EVENTS")]
    pub(crate) events: Option<PathBuf>,
    /// Writes the process id there once it works. Default: none.
    #[arg(long, global = true, value_name = "PATH", env = "ONCEWARD_READY_FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

/// The relay.
#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// What to do. Default: publish until told to stop.
    #[command(subcommand)]
    pub(crate) what: Option<RelayWhat>,
    #[command(flatten)]
    pub(crate) at: FlowAt,
}

/// What to do about the relay.
#[derive(Debug, Subcommand)]
pub(crate) enum RelayWhat {
    /// Tells how far it has come, and what holds it back.
    Status,
}

/// The instance worker and the ontology worker.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// What to do. Default: handle events until told to stop.
    #[command(subcommand)]
    pub(crate) what: Option<WorkerWhat>,
    #[command(flatten)]
    pub(crate) at: FlowAt,
}

/// What to do about the workers.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerWhat {
    /// Tells how far they have come, and what holds them back.
    Status,
}

/// Projections.
#[derive(Debug, Args)]
pub(crate) struct ProjectArgs {
    /// What to do. Default: keep the search up to date until told to stop.
    #[command(subcommand)]
    pub(crate) what: Option<ProjectWhat>,
    #[command(flatten)]
    pub(crate) at: FlowAt,
}

/// What to do about projections.
#[derive(Debug, Subcommand)]
pub(crate) enum ProjectWhat {
    /// Tells how far all views have come, and what holds them back.
    Status,
    /// Makes the next generation of a view from zero, and swaps it in.
    Rebuild {
        /// Which view.
        #[arg(default_value = "search")]
        view: ViewName,
    },
    /// Folds the events from zero and compares: exit code 1 when the view differs.
    Verify {
        /// Which view.
        #[arg(default_value = "search")]
        view: ViewName,
    },
}

/// A view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewName {
    /// The documents of instances.
    Instances,
    /// The documents of classes.
    Classes,
    /// The search index.
    Search,
}

impl ViewName {
    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Instances => "instances",
            Self::Classes => "classes",
            Self::Search => "search",
        }
    }
}
