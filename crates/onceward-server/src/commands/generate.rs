//! Shell completions and man pages, from the same definitions as the help, and the description of
//! the control API, from the code that serves it.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::Out;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell, out: &Out) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "onceward", &mut text);
    out.print(&String::from_utf8_lossy(&text))
}

/// Prints the main man page, or writes the page of every command into a folder.
pub(crate) fn man(folder: Option<&Path>, out: &Out) -> Result<(), Failure> {
    let command = Cli::command();
    let failed = |place: &Path, error: std::io::Error| {
        let message = format!("can't write man pages to {}: {error}", place.display());
        Failure::failed("man.write", message)
    };
    let Some(folder) = folder else {
        let mut text = Vec::new();
        let rendered = Man::new(command).render(&mut text);
        rendered.map_err(|error| failed(Path::new("memory"), error))?;
        return out.print(&String::from_utf8_lossy(&text));
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    clap_mangen::generate_to(command, folder).map_err(|error| failed(folder, error))?;
    out.print(&format!("The man pages are in {}.\n", folder.display()))
}

/// Prints the description of the control API.
pub(crate) fn openapi(out: &Out) -> Result<(), Failure> {
    let text = crate::admin::document().to_pretty_json().map_err(|error| {
        Failure::failed("openapi", format!("the description can't be written: {error}"))
    })?;
    out.print(&format!("{text}\n"))
}
