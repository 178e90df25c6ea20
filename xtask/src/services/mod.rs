//! Real servers for the tests: find or install, start on loopback, remember, stop.
//!
//! The rules kept here: ready means that a real request works; a server that was started is
//! remembered in `.services/<name>.json` and stopped by its own process id, never by its name;
//! a server that the environment points at is used as it is and never touched.
//! Each server has a file of its own and one row in [`SERVICES`]; what is not there is unknown.

pub(crate) mod apt;
mod daemon;
mod dynamodb;
pub(crate) mod java;
mod kafka;
mod memory;
mod opensearch;
mod postgres;
mod process;
mod redis;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::memory::Remembered;
use crate::shell;

/// The servers that can be started, in the order in which they are.
const SERVICES: &[Service] =
    &[postgres::SERVICE, redis::SERVICE, dynamodb::SERVICE, kafka::SERVICE, opensearch::SERVICE];

/// One kind of server.
struct Service {
    /// What people call it on the command line.
    name: &'static str,
    /// The variable that tells the tests where it is.
    variable: &'static str,
    /// Whether `up` without a name means it too.
    by_default: bool,
    /// Starts a new server and returns once its port answers.
    start: fn() -> Result<Remembered>,
    /// Sends one real request.
    probe: fn(url: &str) -> Result<()>,
    /// Whether the remembered process still runs and is the one that was started.
    is_running: fn(&Remembered) -> Result<bool>,
    /// Stops the remembered process and returns once it is gone.
    stop: fn(&Remembered) -> Result<()>,
}

/// Where a running server came from, which decides whether it is ours to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The environment pointed at it.
    Given,
    /// An earlier `up` started it.
    AlreadyUp,
    /// This call started it.
    Started,
}

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) variable: &'static str,
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

/// `cargo xtask services …`
pub(crate) fn main(words: &[&str]) -> Result<()> {
    let (action, rest) = match words {
        [action @ ("up" | "down" | "status"), rest @ ..] => (*action, rest),
        _ => bail!("say `services up`, `services down` or `services status`"),
    };
    let print_env = action == "up" && rest.contains(&"--print-env");
    let names: Vec<&str> =
        rest.iter().copied().filter(|word| !(print_env && *word == "--print-env")).collect();
    for service in chosen(action, &names)? {
        match action {
            "up" => report_up(service.name, &up(service.name)?, print_env),
            "down" => down(service.name)?,
            _ => status(service)?,
        }
    }
    Ok(())
}

/// Makes sure that the named server answers.
pub(crate) fn up(name: &str) -> Result<Up> {
    let service = find(name)?;
    let variable = service.variable;
    if let Some(url) = given(service) {
        (service.probe)(&url)
            .with_context(|| format!("{variable} points at a server that does not answer"))?;
        return Ok(Up { variable, url, origin: Origin::Given });
    }
    let folder = folder()?;
    let _only_one_at_a_time = lock(&folder)?;
    if let Some(known) = memory::read(&folder, name)? {
        if (service.is_running)(&known)? {
            (service.probe)(&known.url).with_context(|| {
                format!("process {} runs but does not answer; stop it first", known.pid)
            })?;
            return Ok(Up { variable, url: known.url, origin: Origin::AlreadyUp });
        }
        // It died with the machine or was killed: what is left of it is of no use to anybody.
        process::remove_folder(&known.dir)?;
        memory::forget(&folder, name)?;
    }
    let started = (service.start)()?;
    memory::write(&folder, name, &started)?;
    if let Err(error) = (service.probe)(&started.url) {
        stop_and_forget(service, &folder, &started)?;
        return Err(error.context(format!("{name} started but does not answer")));
    }
    Ok(Up { variable, url: started.url, origin: Origin::Started })
}

/// Stops the named server if an `up` started it, and removes its folder.
pub(crate) fn down(name: &str) -> Result<()> {
    let service = find(name)?;
    let folder = folder()?;
    let _only_one_at_a_time = lock(&folder)?;
    match memory::read(&folder, name)? {
        Some(known) => {
            stop_and_forget(service, &folder, &known)?;
            eprintln!("{name}: stopped (process {}), {} removed", known.pid, known.dir.display());
        }
        None => eprintln!("{name}: nothing to stop"),
    }
    Ok(())
}

fn stop_and_forget(service: &Service, folder: &Path, known: &Remembered) -> Result<()> {
    if (service.is_running)(known)? {
        (service.stop)(known)?;
    }
    process::remove_folder(&known.dir)?;
    memory::forget(folder, service.name)
}

fn status(service: &Service) -> Result<()> {
    let name = service.name;
    if let Some(url) = given(service) {
        let answers = if (service.probe)(&url).is_ok() { "answers" } else { "does not answer" };
        println!("{name}: given by {}, {answers}: {url}", service.variable);
        return Ok(());
    }
    match memory::read(&folder()?, name)? {
        Some(known) if (service.is_running)(&known)? => {
            let answers =
                if (service.probe)(&known.url).is_ok() { "answers" } else { "does not answer" };
            println!("{name}: up (process {}), {answers}: {}", known.pid, known.url);
        }
        Some(known) => println!("{name}: gone (was process {})", known.pid),
        None => println!("{name}: down"),
    }
    Ok(())
}

fn report_up(name: &str, up: &Up, print_env: bool) {
    let setting = format!("{}={}", up.variable, shell::quoted(&up.url));
    if print_env {
        // Without `export` the shell that evaluates the line would keep it from the tests.
        println!("export {setting}");
        return;
    }
    let origin = match up.origin {
        Origin::Given => "given by the environment, nothing was started",
        Origin::AlreadyUp => "was up already",
        Origin::Started => "started",
    };
    eprintln!("{name}: {origin}");
    println!("{setting}");
}

fn chosen(action: &str, names: &[&str]) -> Result<Vec<&'static Service>> {
    if names.is_empty() {
        let meant = |service: &&Service| action != "up" || service.by_default;
        return Ok(SERVICES.iter().filter(meant).collect());
    }
    names.iter().map(|name| find(name)).collect()
}

fn find(name: &str) -> Result<&'static Service> {
    SERVICES.iter().find(|service| service.name == name).with_context(|| {
        let known: Vec<_> = SERVICES.iter().map(|service| service.name).collect();
        format!("`{name}` is not a service; there is: {}", known.join(", "))
    })
}

fn given(service: &Service) -> Option<String> {
    std::env::var(service.variable).ok().filter(|url| !url.is_empty())
}

fn folder() -> Result<PathBuf> {
    let folder = shell::root()?.join(".services");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Two calls at once would both start a server, and one of them would be forgotten. The lock ends
/// with the returned file.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_service_is_an_error_that_lists_what_there_is() {
        let error = main(&["up", "mainframe"]).unwrap_err();
        let there = "postgres, redis, dynamodb, kafka, opensearch";
        assert_eq!(error.to_string(), format!("`mainframe` is not a service; there is: {there}"));
    }

    #[test]
    fn flags_belong_to_up_alone() {
        main(&["down", "--print-env"]).expect_err("down has no flags");
        main(&["restart"]).expect_err("restart is no action");
        main(&[]).expect_err("an action is needed");
    }

    #[test]
    fn without_a_name_up_means_what_tests_need_and_down_means_all() {
        let names = |action| -> Vec<&str> {
            chosen(action, &[]).unwrap().iter().map(|service| service.name).collect()
        };
        assert_eq!(names("up"), ["postgres", "redis", "dynamodb"]);
        assert_eq!(names("down").len(), SERVICES.len());
    }
}
