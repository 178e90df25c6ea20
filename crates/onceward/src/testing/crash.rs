//! The crash harness: your handler in a real process, killed or frozen at every boundary.
//!
//! Each run starts a child process that works on one job. At the boundary that it was told, the
//! child says so and waits; the harness then hits it: `SIGKILL`, or `SIGSTOP` until its lease has
//! run out, followed by `SIGCONT`. What remains is picked up by another child, or by the same one.
//! Afterwards you count the effects. Nothing is simulated: processes, signals and files are real.
//!
//! The child's side is [`Points`]: the worker reports three boundaries by itself, the two around
//! the effect are reported by the handler.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward_core::key::Key;
use onceward_core::record::State;

use crate::engine::{Engine, EngineError};
use crate::worker::{Builder, Happened, WorkerError};

/// What a child says starts so; whatever else it prints is passed over.
const SAYS: &str = "onceward-crash:";
/// Pause between two looks of a child at its job.
const LOOK: Duration = Duration::from_millis(10);

/// Where a process is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Boundary {
    /// The job is leased; the handler has not started.
    AfterClaim,
    /// The handler is about to have its effect.
    BeforeEffect,
    /// The effect has happened; nothing is recorded.
    AfterEffect,
    /// The handler has returned; nothing is recorded.
    BeforeComplete,
    /// The completion is committed; nobody has heard of it.
    AfterCommit,
}

impl Boundary {
    /// All of them, in the order in which an attempt meets them.
    pub const ALL: [Self; 5] = [
        Self::AfterClaim,
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::BeforeComplete,
        Self::AfterCommit,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AfterClaim => "after-claim",
            Self::BeforeEffect => "before-effect",
            Self::AfterEffect => "after-effect",
            Self::BeforeComplete => "before-complete",
            Self::AfterCommit => "after-commit",
        }
    }

    /// Reads [`Boundary::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|boundary| boundary.as_str() == text)
    }
}

/// How a process is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blow {
    /// `SIGKILL`: no unwinding, no destructors, no flush.
    Kill,
    /// `SIGSTOP` until the lease has run out, then `SIGCONT`.
    Freeze,
}

impl Blow {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Kill, Self::Freeze];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Freeze => "frozen past its lease",
        }
    }
}

/// The child's side: stops where it was told, once.
#[derive(Debug)]
pub struct Points {
    at: Option<Boundary>,
    met: AtomicBool,
}

impl Points {
    /// Stops at the boundary of this name; at none when it is another word.
    #[must_use]
    pub fn at(name: &str) -> Arc<Self> {
        Arc::new(Self { at: Boundary::parse(name), met: AtomicBool::new(false) })
    }

    /// The process is at a boundary. Where it was told to stop, it says so and waits for the blow.
    pub fn reach(&self, boundary: Boundary) {
        if self.at != Some(boundary) || self.met.swap(true, Ordering::SeqCst) {
            return;
        }
        say("reached");
        // A line, or the end of the input, is the word to go on.
        let _ = std::io::stdin().lock().read(&mut [0]);
    }

    /// Lets a worker report the boundaries that are its own.
    pub fn watch(self: &Arc<Self>, builder: Builder) -> Builder {
        let points = self.clone();
        builder.on_event(move |event| match event.happened {
            Happened::Taken => points.reach(Boundary::AfterClaim),
            Happened::Returned => points.reach(Boundary::BeforeComplete),
            Happened::Done => points.reach(Boundary::AfterCommit),
            _ => {}
        })
    }

    /// Works until the job is done, then says so.
    ///
    /// # Errors
    /// When the worker can't start or the store gives no answer.
    pub async fn work(
        self: &Arc<Self>,
        engine: &Engine,
        builder: Builder,
        job: &Key,
    ) -> Result<(), CrashError> {
        let worker = self.watch(builder).start()?;
        loop {
            let found = engine.look(job).await?;
            if found.is_some_and(|found| found.stored.record.state == State::Done) {
                break;
            }
            // sleeps because another attempt may be the one that ends it: nothing tells
            tokio::time::sleep(LOOK).await;
        }
        worker.drain(Duration::from_secs(60)).await;
        say("done");
        Ok(())
    }
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that has gone needs no word.
    let _ = writeln!(out, "\n{SAYS} {word}").and_then(|()| out.flush());
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrashError {
    /// A process can't be started, hit or heard.
    #[error("{what}: {error}")]
    Process {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
    /// The child ended without the word that was waited for.
    #[error("the child ended before it said {0:?}")]
    Silent(&'static str),
    /// The worker can't start.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The store gives no answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Starts children, hits them, and waits until the job is done.
///
/// `start` makes the command of a child that works on the job and stops at the boundary of the
/// given name, which [`Points::at`] reads; a name that is no boundary stops nowhere.
pub struct Harness<F> {
    start: F,
    lease: Duration,
}

impl<F: Fn(&str) -> Command> Harness<F> {
    /// A harness for children whose jobs are leased this long.
    pub fn new(lease: Duration, start: F) -> Self {
        Self { start, lease }
    }

    /// One run: a child is hit at the boundary, and the job ends all the same.
    ///
    /// # Errors
    /// When a process can't be started or ends without a word.
    pub fn hit(&self, boundary: Boundary, blow: Blow) -> Result<(), CrashError> {
        let mut hit = Running::start((self.start)(boundary.as_str()))?;
        hit.wait_for("reached")?;
        match blow {
            Blow::Kill => {
                hit.child.kill().map_err(failed("kill the child"))?;
                hit.child.wait().map_err(failed("wait for the child"))?;
                Running::start((self.start)("nowhere"))?.wait_for("done")
            }
            Blow::Freeze => {
                hit.signal("-STOP")?;
                // sleeps because the lease must run out while the process stands still
                std::thread::sleep(self.lease + self.lease / 4);
                hit.input.write_all(b"\n").map_err(failed("tell the child to go on"))?;
                hit.signal("-CONT")?;
                hit.wait_for("done")
            }
        }
    }
}

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Result<Self, CrashError> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().map_err(failed("start the child"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CrashError::Silent("anything"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn wait_for(&mut self, word: &'static str) -> Result<(), CrashError> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.output.read_line(&mut line).map_err(failed("hear the child"))?;
            if read == 0 {
                return Err(CrashError::Silent(word));
            }
            if line.strip_prefix(SAYS).is_some_and(|said| said.trim() == word) {
                return Ok(());
            }
        }
    }

    fn signal(&self, name: &str) -> Result<(), CrashError> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status();
        let sent = sent.map_err(failed("run kill"))?;
        if sent.success() {
            return Ok(());
        }
        let error = std::io::Error::other(format!("kill {name} answered {sent}"));
        Err(failed("signal the child")(error))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> CrashError {
    move |error| CrashError::Process { what, error }
}

/// What one run left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Where it was hit.
    pub boundary: Boundary,
    /// How.
    pub blow: Blow,
    /// Effects that committed with the job.
    pub transactional: usize,
    /// The fences of the effects elsewhere, in the order in which they happened.
    pub foreign: Vec<u64>,
}

impl Left {
    /// What is wrong with it: an exact effect that is not there once, a foreign one that never
    /// happened, or one that was repeated without a higher fence.
    #[must_use]
    pub fn wrong(&self) -> Option<&'static str> {
        if self.transactional != 1 {
            return Some("a transactional effect must be there exactly once");
        }
        if self.foreign.is_empty() {
            return Some("a foreign effect must have happened");
        }
        if !self.foreign.is_sorted_by(|earlier, later| earlier < later) {
            return Some("a repeated foreign effect must carry a higher fence");
        }
        None
    }
}

/// The table of effects per boundary, as Markdown.
#[must_use]
pub fn table(runs: &[Left]) -> String {
    let mut text = String::from(
        "| hit | at | transactional effects | foreign effects | their fences rise |\n\
         |---|---|---|---|---|\n",
    );
    for run in runs {
        let rise = run.foreign.is_sorted_by(|earlier, later| earlier < later);
        // Writing into a string can't fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            run.blow.as_str(),
            run.boundary.as_str(),
            run.transactional,
            run.foreign.len(),
            if rise { "yes" } else { "no" }
        );
    }
    text
}
