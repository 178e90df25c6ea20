//! `cargo xtask ci`: everything that must be green, in one command.
//!
//! The rules kept here: any failing step makes the whole fail; nothing is skipped quietly; what a
//! run started it stops again, also after a failure. All but two lint steps build with one set of
//! features, the whole workspace with all of them, so that no crate is compiled twice.
//! Not responsible for what a step checks: that is cargo's, or another module's.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::services::{self, Origin};
use crate::{deny, python, shell, tidy};

/// The steps, in the order in which they run: quick ones first.
const STEPS: &[Step] = &[
    Step { name: "fmt", about: "formatting", run: fmt },
    Step { name: "tidy", about: "invariants and style", run: |_| tidy::main() },
    Step { name: "clippy", about: "lints, default features", run: clippy },
    Step { name: "clippy-all", about: "lints, all features", run: clippy_all },
    Step { name: "clippy-none", about: "lints, the library without features", run: clippy_none },
    Step { name: "doc", about: "documentation without warnings", run: doc },
    Step { name: "services", about: "real servers for the tests", run: Run::start_services },
    Step { name: "test", about: "all tests, all features", run: test },
    Step { name: "examples", about: "each example runs and exits with 0", run: examples },
    Step {
        name: "deny",
        about: "licences, bans and sources of dependencies",
        run: |_| deny::main(deny::Scope::Graph),
    },
];

/// The servers that the tests talk to.
const SERVICES: &[&str] = &["postgres", "redis", "dynamodb"];

/// The tests that drive the reference services.
const SERVICE_SUITES: &[&str] = &["planning", "measurements", "business", "ontology"];

/// Those that run on DynamoDB too.
const DYNAMODB_SUITES: &[&str] = &["planning", "measurements"];

/// Where the library's examples are.
const EXAMPLES: &str = "crates/onceward/examples";

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&mut Run) -> Result<()>,
}

/// What one run of the steps has to remember.
#[derive(Default)]
struct Run {
    /// Names and addresses for the tests' environment.
    environment: Vec<(&'static str, String)>,
    /// The servers that this run started and has to stop.
    started: Vec<&'static str>,
}

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    list: bool,
    keep_going: bool,
    only: Vec<String>,
}

/// How a step ended.
enum Ending {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

/// `cargo xtask ci …`
pub(crate) fn main(words: &[&str]) -> Result<()> {
    let options = parse(words)?;
    if options.list {
        for step in STEPS {
            println!("{:12} {}", step.name, step.about);
        }
        return Ok(());
    }
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|step| options.only.is_empty() || options.only.iter().any(|o| o == step.name))
        .collect();
    let mut run = Run::default();
    let mut endings = walk(&chosen, options.keep_going, &mut run);
    let stopping = Instant::now();
    if !run.started.is_empty() {
        headline("services down");
        let ending = match run.stop_services() {
            Ok(()) => Ending::Passed(stopping.elapsed()),
            Err(error) => {
                eprintln!("error: {error:#}");
                Ending::Failed(stopping.elapsed())
            }
        };
        endings.push(("services down", ending));
    }
    summarise(&endings)
}

fn parse(words: &[&str]) -> Result<Options> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--list" => options.list = true,
            "--keep-going" => options.keep_going = true,
            "--only" => {
                let name = words.next().context("--only needs the name of a step")?;
                if !STEPS.iter().any(|step| step.name == *name) {
                    let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
                    bail!("`{name}` is not a step; there is: {}", known.join(", "));
                }
                options.only.push((*name).to_owned());
            }
            other => bail!("`ci` does not know `{other}`; `cargo xtask help` tells what it does"),
        }
    }
    Ok(options)
}

/// Runs the steps; after a failure the rest are left out unless all were asked for.
fn walk(steps: &[&Step], keep_going: bool, run: &mut Run) -> Vec<(&'static str, Ending)> {
    let mut endings = Vec::new();
    let mut failed = false;
    for (index, step) in steps.iter().enumerate() {
        if failed && !keep_going {
            endings.push((step.name, Ending::NotRun));
            continue;
        }
        headline(&format!("{}/{} {}: {}", index + 1, steps.len(), step.name, step.about));
        let begun = Instant::now();
        let ending = match (step.run)(run) {
            Ok(()) => Ending::Passed(begun.elapsed()),
            Err(error) => {
                eprintln!("error: {error:#}");
                failed = true;
                Ending::Failed(begun.elapsed())
            }
        };
        endings.push((step.name, ending));
    }
    endings
}

fn headline(text: &str) {
    println!("\n── {text} {}", "─".repeat(70_usize.saturating_sub(text.len())));
}

/// Prints how each step ended; an error if one of them failed.
fn summarise(endings: &[(&str, Ending)]) -> Result<()> {
    headline("summary");
    let mut total = Duration::ZERO;
    for (name, ending) in endings {
        match ending {
            Ending::Passed(took) => println!("  ok       {name:14} {:7.1} s", took.as_secs_f64()),
            Ending::Failed(took) => println!("  FAILED   {name:14} {:7.1} s", took.as_secs_f64()),
            Ending::NotRun => println!("  not run  {name}"),
        }
        if let Ending::Passed(took) | Ending::Failed(took) = ending {
            total += *took;
        }
    }
    println!("  total    {:14} {:7.1} s", "", total.as_secs_f64());
    let first = endings.iter().find(|(_, ending)| matches!(ending, Ending::Failed(_)));
    match first {
        None => Ok(()),
        Some(("services down", _)) => {
            bail!("the servers could not be stopped; repeat with: cargo xtask services down")
        }
        Some((name, _)) => bail!("{name} failed; repeat it with: cargo xtask ci --only {name}"),
    }
}

fn fmt(_: &mut Run) -> Result<()> {
    shell::run(&mut shell::cargo(&["fmt", "--all", "--check"])?)
}

fn clippy(_: &mut Run) -> Result<()> {
    lint(&["--workspace"])
}

fn clippy_all(_: &mut Run) -> Result<()> {
    lint(&["--workspace", "--all-features"])
}

fn clippy_none(_: &mut Run) -> Result<()> {
    lint(&["--package", "onceward", "--no-default-features"])
}

fn lint(what: &[&str]) -> Result<()> {
    let mut command = shell::cargo(&["clippy", "--all-targets"])?;
    // After `--` only our own crates are meant: dependencies keep their build.
    shell::run(command.args(what).args(["--", "-D", "warnings"]))
}

fn doc(_: &mut Run) -> Result<()> {
    let mut command = shell::cargo(&["doc", "--no-deps", "--workspace", "--all-features"])?;
    shell::run(command.env("RUSTDOCFLAGS", "-Dwarnings"))
}

fn test(run: &mut Run) -> Result<()> {
    run.start_services()?;
    services::java::tools()?;
    let mut command = shell::cargo(&["test", "--workspace", "--all-features", "--no-fail-fast"])?;
    shell::run(command.envs(run.environment.iter().map(|(name, url)| (name, url))))?;
    // The reference services run on any store, unchanged: their suites once more, elsewhere.
    for (store, suites) in [("postgres", SERVICE_SUITES), ("dynamodb", DYNAMODB_SUITES)] {
        let mut again = shell::cargo(&["test", "--workspace", "--all-features"])?;
        again.args(suites.iter().flat_map(|suite| ["--test", suite]));
        again.envs(run.environment.iter().map(|(name, url)| (name, url)));
        shell::run(again.env("ONCEWARD_TEST_SERVICES_ON", store))?;
    }
    Ok(())
}

fn examples(run: &mut Run) -> Result<()> {
    run.start_services()?;
    let names = example_names(&shell::root()?.join(EXAMPLES))?;
    for name in &names {
        // No `--package`: at the root this unifies features over all members, as `--workspace`
        // does for the tests, and so nothing is compiled again.
        let mut command = shell::cargo(&["run", "--all-features", "--example", name])?;
        shell::run(command.envs(run.environment.iter().map(|(name, url)| (name, url))))?;
    }
    println!("{} examples ran", names.len());
    Ok(())
}

/// The examples in a folder, as cargo finds them: files, and folders with a `main.rs`.
fn example_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    if folder.is_dir() {
        let cannot = || format!("cannot list {}", folder.display());
        for entry in fs::read_dir(folder).with_context(cannot)? {
            let path = entry.with_context(cannot)?.path();
            if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file() {
                names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
    }
    names.sort();
    Ok(names)
}

impl Run {
    /// Brings up what the tests need, once per run.
    fn start_services(&mut self) -> Result<()> {
        if !self.environment.is_empty() {
            return Ok(());
        }
        for name in SERVICES {
            let up = services::up(name)?;
            println!("{name}: {}", up.url);
            if up.origin == Origin::Started {
                self.started.push(name);
            }
            self.environment.push((up.variable, up.url));
        }
        self.environment.push(python::path()?);
        Ok(())
    }

    /// Stops what this run started; a server that was up before it stays up.
    fn stop_services(&mut self) -> Result<()> {
        for name in self.started.drain(..) {
            services::down(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Step = Step { name: "good", about: "passes", run: |_| Ok(()) };
    const BAD: Step = Step { name: "bad", about: "fails", run: |_| bail!("broken") };

    fn letters(endings: &[(&str, Ending)]) -> String {
        let letter = |ending: &Ending| match ending {
            Ending::Passed(_) => 'p',
            Ending::Failed(_) => 'f',
            Ending::NotRun => '-',
        };
        endings.iter().map(|(_, ending)| letter(ending)).collect()
    }

    #[test]
    fn the_first_failure_ends_the_run_and_is_named() {
        let endings = walk(&[&GOOD, &BAD, &GOOD], false, &mut Run::default());
        assert_eq!(letters(&endings), "pf-");
        let error = summarise(&endings).unwrap_err().to_string();
        assert_eq!(error, "bad failed; repeat it with: cargo xtask ci --only bad");
    }

    #[test]
    fn keep_going_runs_the_rest_and_still_fails() {
        let endings = walk(&[&BAD, &GOOD, &BAD], true, &mut Run::default());
        assert_eq!(letters(&endings), "fpf");
        summarise(&endings).expect_err("one failure is enough");
        summarise(&walk(&[&GOOD], true, &mut Run::default())).expect("nothing failed");
    }

    #[test]
    fn only_takes_names_of_steps() {
        let options = parse(&["--only", "fmt", "--only", "tidy"]).unwrap();
        assert_eq!(options.only, ["fmt", "tidy"]);
        let error = parse(&["--only", "lunch"]).unwrap_err().to_string();
        assert!(error.starts_with("`lunch` is not a step; there is: fmt, tidy,"), "{error}");
        assert!(parse(&["--only"]).is_err());
        assert!(parse(&["everything"]).is_err());
    }

    #[test]
    fn examples_are_files_and_folders_with_a_main() {
        let root = shell::root().unwrap();
        // Any folder with sources will do to see the rule: this crate's own has two kinds.
        let names = example_names(&root.join("xtask/src")).unwrap();
        assert!(names.contains(&"ci".to_owned()) && !names.contains(&"services".to_owned()));
        assert!(example_names(&root.join("no/such/folder")).unwrap().is_empty());
    }
}
