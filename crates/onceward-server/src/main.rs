//! The `onceward` binary: the gateway, operations on a store, and its bench.
//!
//! Parses the command line, runs one command and turns what came of it into an exit code: 0 fine,
//! 1 failed, 2 wrong usage. Only this crate reads flags, files and environment; every decision and
//! every commit is the engine's.

mod admin;
mod authorize;
mod bench;
mod cache;
mod cli;
mod commands;
mod config;
mod demo;
mod events_place;
mod export;
mod failure;
mod gateway;
mod identity;
mod logs;
mod masks;
mod metrics;
mod open;
mod open_files;
mod output;
mod remote;
mod report;
mod signals;
mod times;
mod upkeep;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command};
use failure::Failure;
use output::Out;

/// A request is many small allocations on several threads: a fifth of its time with the system's
/// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return parse_ended(&error),
    };
    let out = Out::new(&cli.common);
    match run(&cli, &out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            out.failure(&failure);
            failure.exit_code()
        }
    }
}

fn run(cli: &Cli, out: &Out) -> Result<(), Failure> {
    match &cli.command {
        // These need neither a store nor a runtime.
        Command::Completions { shell } => commands::generate::completions(*shell, out),
        Command::Man { out: folder } => commands::generate::man(folder.as_deref(), out),
        Command::Openapi => commands::generate::openapi(out),
        Command::Config(command) => commands::config::run(command, &cli.common, out),
        command => {
            open_files::raise();
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| Failure::failed("runtime", format!("can't start: {error}")))?;
            let result = runtime.block_on(commands::run(command, &cli.common, out));
            // A baseline that is still at it after an interrupt has nothing to finish.
            runtime.shutdown_background();
            result
        }
    }
}

/// Help and version are answers; everything else is wrong usage, as JSON if that was asked for.
fn parse_ended(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Nothing is lost when nobody reads the help to its end.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ if cli::json_was_asked_for() => {
            let text = error.render().to_string();
            // Programs have no use for the pointer to the help that clap ends with.
            let text = text.split("\n\nFor more information").next().unwrap_or(&text).trim();
            let failure = Failure::usage("usage", text.strip_prefix("error: ").unwrap_or(text));
            Out::json().failure(&failure);
            failure.exit_code()
        }
        _ => {
            let _ = error.print();
            ExitCode::from(failure::EXIT_USAGE)
        }
    }
}
