//! Servers that come as Java archives: a JDK that is new enough, and archives from Maven.
//!
//! The rules kept here: what was fetched is kept in `.cache`, which git ignores, and is complete or
//! absent (fetched aside, then renamed); versions are fixed, so that every machine runs the same.
//! A missing tool is installed on Debian; elsewhere the error says what is needed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::apt;
use super::memory::Remembered;
use crate::shell;

/// What the tests that run other people's clients need, each with the package that brings it.
const TOOLS: &[(&str, &str)] =
    &[("javac", "default-jdk-headless"), ("mvn", "maven"), ("curl", "curl")];

/// Makes sure that the tests find a JDK, Maven and curl.
pub(crate) fn tools() -> Result<()> {
    for (program, package) in TOOLS {
        if shell::which(program).is_none() {
            apt::install(package)?;
            let missing = || format!("{package} was installed but {program} is not found");
            shell::which(program).with_context(missing)?;
        }
    }
    Ok(())
}

/// Where distributions keep their JDKs, one folder each.
const JDKS: &str = "/usr/lib/jvm";

/// An archive, with everything that it needs.
pub(super) struct Archive {
    /// The folder's name in the cache.
    pub(super) name: &'static str,
    /// `group:artifact:version`, one or more.
    pub(super) coordinates: &'static [&'static str],
}

impl Archive {
    /// The class path of the archive, fetched if it is not there yet.
    pub(super) fn class_path(&self) -> Result<String> {
        let cache = shell::root()?.join(".cache/services");
        let folder = cache.join(self.name);
        if !folder.is_dir() {
            let aside = cache.join(format!("{}.new-{}", self.name, std::process::id()));
            fs::create_dir_all(&aside)
                .with_context(|| format!("cannot create {}", aside.display()))?;
            let fetched = self.fetch(&aside);
            let kept = fetched.and_then(|()| {
                let jars = aside.join("jars");
                fs::rename(&jars, &folder)
                    .with_context(|| format!("cannot keep {}", folder.display()))
            });
            // Only what was aside goes; what is kept was renamed away.
            let _ = fs::remove_dir_all(&aside);
            kept?;
        }
        Ok(format!("{}/*", folder.display()))
    }

    fn fetch(&self, aside: &Path) -> Result<()> {
        let maven = match shell::which("mvn") {
            Some(maven) => maven,
            None => {
                apt::install("maven")?;
                shell::which("mvn").context("maven was installed but mvn is not found")?
            }
        };
        eprintln!("fetching {} with Maven; this happens once", self.name);
        fs::write(aside.join("pom.xml"), self.project()?).context("cannot write pom.xml")?;
        shell::capture(
            Command::new(maven)
                .args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"])
                .current_dir(aside),
        )
        .map(drop)
        .with_context(|| format!("Maven does not get {}", self.coordinates.join(", ")))
    }

    /// A project that is nothing but its dependencies.
    fn project(&self) -> Result<String> {
        let mut dependencies = String::new();
        for coordinates in self.coordinates {
            let parts: Vec<&str> = coordinates.split(':').collect();
            let [group, artifact, version] = parts[..] else {
                bail!("{coordinates} is not group:artifact:version");
            };
            dependencies.push_str(&format!(
                "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>\
                 <version>{version}</version></dependency>"
            ));
        }
        Ok(format!(
            "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\
             <modelVersion>4.0.0</modelVersion><groupId>onceward</groupId>\
             <artifactId>services</artifactId><version>1</version>\
             <dependencies>{dependencies}</dependencies></project>\n"
        ))
    }
}

/// A `java` of at least this version.
pub(super) fn java(version_min: u32) -> Result<PathBuf> {
    let home = std::env::var_os("JAVA_HOME").map(|home| PathBuf::from(home).join("bin/java"));
    let folders = fs::read_dir(JDKS).into_iter().flatten().flatten();
    let jdks = folders.map(|folder| folder.path().join("bin/java"));
    let found = home.into_iter().chain(shell::which("java")).chain(jdks);
    let mut seen = Vec::new();
    for java in found.filter(|java| java.is_file()) {
        if let Some(version) = version_of(&java) {
            if version >= version_min {
                return Ok(java);
            }
            seen.push(version);
        }
    }
    bail!("Java {version_min} or later is needed and not found (there is {seen:?}); set JAVA_HOME")
}

fn version_of(java: &Path) -> Option<u32> {
    // It says so on standard error.
    let output = Command::new(java).arg("-version").output().ok()?;
    major(&String::from_utf8_lossy(&output.stderr))
}

/// `openjdk version "17.0.13" 2024-10-15`
fn major(said: &str) -> Option<u32> {
    let quoted = said.split('"').nth(1)?;
    quoted.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Starts a server in its folder, with its output in `log` there.
pub(super) fn spawn(command: &mut Command, dir: &Path) -> Result<Child> {
    let log = File::create(dir.join("log")).context("the log of the server")?;
    command
        .current_dir(dir)
        // Ctrl-C at our terminal is not meant for it: it outlives us.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("the log of the server")?)
        .stderr(log)
        .spawn()
        .context("cannot start java")
}

/// Waits until a started server answers; one that does not is ended and its log told.
pub(super) fn answered(
    mut server: Child,
    url: String,
    dir: &Path,
    within: Duration,
    probe: fn(&str) -> Result<()>,
) -> Result<Remembered> {
    let begun = Instant::now();
    loop {
        let ended = server.try_wait().context("the state of the server")?;
        let said = || fs::read_to_string(dir.join("log")).unwrap_or_default();
        if let Some(status) = ended {
            bail!("the server ended ({status}); its log says:\n{}", said().trim());
        }
        let Err(error) = probe(&url) else {
            return Ok(Remembered { url, pid: server.id(), dir: dir.to_path_buf() });
        };
        if begun.elapsed() > within {
            let _ = server.kill();
            let _ = server.wait();
            return Err(error.context(format!("no answer; its log says:\n{}", said().trim())));
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_java_says() {
        assert_eq!(major("openjdk version \"17.0.13\" 2024-10-15\nOpenJDK"), Some(17));
        assert_eq!(major("openjdk version \"25\" 2025-09-16 LTS"), Some(25));
        assert_eq!(major("no quotes"), None);
    }

    #[test]
    fn a_project_names_every_archive() {
        let archive = Archive { name: "x", coordinates: &["a:b:1", "c:d:2"] };
        let project = archive.project().unwrap();
        assert!(project.contains("<artifactId>b</artifactId><version>1</version>"), "{project}");
        assert!(project.contains("<artifactId>d</artifactId><version>2</version>"), "{project}");
        let bad = Archive { name: "x", coordinates: &["a:b"] };
        bad.project().expect_err("a version is needed");
    }
}
