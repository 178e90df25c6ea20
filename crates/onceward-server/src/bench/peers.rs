//! Other job queues on the same Postgres, measured in rounds that alternate with ours.
//!
//! They are not part of this repository: `npm install` in `bench/peers` brings them by name, and
//! the driver there, ours, runs them tuned and batched. Where they are not installed, nothing is
//! measured.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::measure::{Latencies, Round};
use crate::failure::Failure;

/// Who is measured, by the names of their packages.
pub(crate) const NAMES: [&str; 2] = ["pg-boss", "graphile-worker"];
/// Where they are looked for without a flag.
const USUAL: &str = "bench/peers";

/// The driver's process. Ended when dropped.
pub(crate) struct Peers {
    _process: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// A line that the driver answers.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    jobs: u64,
    #[serde(default)]
    seconds: f64,
    error: Option<String>,
}

/// The folder with the driver and what it drives; none when none was named and none is there.
pub(crate) fn folder(named: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let folder = named.unwrap_or(Path::new(USUAL));
    let installed = NAMES.iter().all(|name| folder.join("node_modules").join(name).is_dir());
    if installed && folder.join("driver.mjs").is_file() {
        return Ok(Some(folder.to_path_buf()));
    }
    if named.is_none() {
        return Ok(None);
    }
    let message = format!(
        "{} has no installed peers; run npm install in bench/peers and name that folder",
        folder.display()
    );
    Err(Failure::usage("bench.peers", message))
}

impl Peers {
    /// Starts the driver against a database.
    pub(crate) fn start(folder: &Path, url: &str) -> Result<Self, Failure> {
        // What follows the question mark is for us.
        let url = url.split('?').next().unwrap_or(url);
        let mut process = Command::new("node")
            .arg("driver.mjs")
            .arg(url)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(format!("node can't be started: {error}")))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (commands, answers) = pipes.ok_or_else(|| failed("node has no pipes".into()))?;
        let answers = BufReader::new(answers).lines();
        Ok(Self { _process: process, commands, answers })
    }

    /// Makes jobs one by one from so many tasks for a time.
    pub(crate) async fn enqueue(
        &mut self,
        peer: &str,
        time: Duration,
        tasks: u64,
    ) -> Result<Round, Failure> {
        self.ask(&format!("enqueue {peer} {} {tasks}", time.as_secs_f64())).await
    }

    /// Makes jobs and processes all that wait. Only the second is measured.
    pub(crate) async fn process(&mut self, peer: &str, jobs: u64) -> Result<Round, Failure> {
        // What enqueues have left is not measured either.
        self.ask(&format!("process {peer}")).await?;
        self.ask(&format!("fill {peer} {jobs}")).await?;
        self.ask(&format!("process {peer}")).await
    }

    /// Removes what was made.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        self.ask("end").await.map(drop)
    }

    async fn ask(&mut self, command: &str) -> Result<Round, Failure> {
        let broken = |error: std::io::Error| failed(format!("the driver has ended: {error}"));
        self.commands.write_all(format!("{command}\n").as_bytes()).await.map_err(broken)?;
        let line = self.answers.next_line().await.map_err(broken)?;
        let line = line.ok_or_else(|| failed("the driver has ended".into()))?;
        let answer: Answer = serde_json::from_str(&line)
            .map_err(|error| failed(format!("the driver answered {line:?}: {error}")))?;
        if let Some(error) = answer.error {
            return Err(failed(format!("{command}: {error}")));
        }
        let elapsed = Duration::from_secs_f64(answer.seconds.max(0.0));
        let mut latencies = Latencies::default();
        // A round's latency is that of one job on average: jobs overlap.
        latencies.add(elapsed / u32::try_from(answer.jobs.max(1)).unwrap_or(u32::MAX));
        Ok(Round { operations: answer.jobs, elapsed, latencies })
    }
}

fn failed(message: String) -> Failure {
    Failure::failed("bench.peers", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_folder_without_peers_is_an_error_and_a_missing_usual_one_is_none() {
        let empty = std::env::temp_dir();
        let error = folder(Some(&empty)).unwrap_err();
        assert!(format!("{error:?}").contains("npm install"), "{error:?}");
    }
}
