//! The command line of `onceward bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::switch;
use crate::bench::batch::BenchBatch;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Claims, completions and replays on a store, beside what the file system and SQLite can do.
    Store(BenchStore),
    /// The layer and the gateway over HTTP, beside the same handler without them.
    Http(BenchHttp),
    /// Jobs from enqueue to done, with a handler that does nothing.
    Jobs(BenchJobs),
    /// Measurements in batches beside one by one, and with checks beside without.
    Batch(BenchBatch),
    /// Appends of events that are durable when they are answered, and what follows them.
    Events(BenchEvents),
    /// Prints a page (Markdown) of what benches have printed with `--json`.
    Page {
        /// Files with one report each.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

/// How to measure events. SQLite and the folder of events are measured in a temporary folder beside
/// the `--store` path, which itself is not touched; Postgres in schemas of their own, removed at
/// the end.
#[derive(Debug, Args)]
pub(crate) struct BenchEvents {
    /// How long each part is measured, in seconds: about that, where events are counted.
    #[arg(long, value_name = "N", env = "ONCEWARD_SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// Events that a store holds before appends are measured, the fewest and the most compared;
    /// one number leaves that part out.
    #[arg(long, value_name = "N,…", env = "ONCEWARD_HELD", value_delimiter = ',')]
    #[arg(default_value = "10000,1000000")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) held: Vec<u64>,
}

/// How to measure a store. SQLite is measured in a temporary folder beside the `--store` path,
/// which itself is not touched; Postgres under a tenant of its own, erased at the end.
#[derive(Debug, Args)]
pub(crate) struct BenchStore {
    /// How long each part is measured, in seconds.
    #[arg(long, value_name = "N", env = "ONCEWARD_SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// Concurrent callers.
    #[arg(long, value_name = "N", env = "ONCEWARD_CALLERS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub(crate) callers: u32,
    /// Live records that the store holds before the pairs are measured, one figure each.
    #[arg(long, value_name = "N,…", env = "ONCEWARD_RECORDS", value_delimiter = ',')]
    #[arg(default_value = "1000,1000000")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) records: Vec<u64>,
    /// Adds 10,000,000 to `--records`: takes tens of gigabytes and many minutes. Default: off.
    #[arg(long, env = "ONCEWARD_BIG", value_parser = switch)]
    pub(crate) big: bool,
    /// Which parts to measure: writes, replays, sizes. Default: all.
    #[arg(long, value_name = "PART,…", env = "ONCEWARD_PARTS", value_delimiter = ',')]
    #[arg(value_parser = ["writes", "replays", "sizes"])]
    pub(crate) parts: Vec<String>,
    /// Only makes pairs, in this schema of another bench, and says how many: how a bench measures
    /// several processes. Default: measures everything.
    #[arg(long, value_name = "SCHEMA", env = "ONCEWARD_BESIDE", hide = true)]
    pub(crate) beside: Option<String>,
}

/// How to measure over HTTP. It happens on loopback, with stores in a temporary folder beside the
/// `--store` path, which itself is not touched. nginx is measured beside it when it is installed.
#[derive(Debug, Args)]
pub(crate) struct BenchHttp {
    /// How long each part is measured, in seconds.
    #[arg(long, value_name = "N", env = "ONCEWARD_SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// Concurrent connections.
    #[arg(long, value_name = "N", env = "ONCEWARD_CONNECTIONS", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) connections: u32,
    /// Keys of which every connection sends a duplicate at once.
    #[arg(long, value_name = "N", env = "ONCEWARD_KEYS", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: u32,
    /// Which parts to measure: layer, duplicates, latency, gateway, crowd. Default: all.
    #[arg(long, value_name = "PART,…", env = "ONCEWARD_PARTS", value_delimiter = ',')]
    #[arg(value_parser = ["layer", "duplicates", "latency", "gateway", "crowd"])]
    pub(crate) parts: Vec<String>,
}

/// How to measure jobs. SQLite is measured in a temporary folder beside the `--store` path, which
/// itself is not touched; Postgres under a tenant of its own, erased at the end.
#[derive(Debug, Args)]
pub(crate) struct BenchJobs {
    /// How long each part is measured, in seconds: about that, where jobs are counted.
    #[arg(long, value_name = "N", env = "ONCEWARD_SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub(crate) seconds: u32,
    /// Jobs that wait while the last part is measured; 0 leaves it out.
    #[arg(long, value_name = "N", env = "ONCEWARD_WAITING", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub(crate) waiting: u64,
    /// The folder where other job queues are installed to be measured beside ours, on Postgres.
    /// Default: `bench/peers`, if they are installed there.
    #[arg(long, value_name = "FOLDER", env = "ONCEWARD_PEERS")]
    pub(crate) peers: Option<PathBuf>,
    /// Which parts to measure: enqueue, process, pickup, waiting, peers. Default: all.
    #[arg(long, value_name = "PART,…", env = "ONCEWARD_PARTS", value_delimiter = ',')]
    #[arg(value_parser = ["enqueue", "process", "pickup", "waiting", "peers"])]
    pub(crate) parts: Vec<String>,
}
