//! `onceward config`: what a configuration comes to, and a file to begin with.

use serde_json::Value;

use crate::cli::{Common, ConfigCommand};
use crate::config::{Config, reference};
use crate::failure::Failure;
use crate::output::Out;

/// Runs a command about configuration.
pub(crate) fn run(command: &ConfigCommand, common: &Common, out: &Out) -> Result<(), Failure> {
    match command {
        ConfigCommand::Example => out.print(&reference::example()),
        ConfigCommand::Reference => out.print(&reference::page()),
        ConfigCommand::Check { flags } => {
            let mut flags = flags.as_ref().clone();
            flags.store.clone_from(&common.store);
            flags.cache.clone_from(&common.cache);
            let config = Config::load(common.config.as_deref(), &flags)?;
            let text = reference::effective(&config);
            if !out.is_json() {
                return out.print(&text);
            }
            let unreadable = |error: String| Failure::failed("config.output", error);
            let table: toml::Table =
                toml::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
            let value: Value =
                serde_json::to_value(table).map_err(|error| unreadable(error.to_string()))?;
            out.print_json(&value)
        }
    }
}
