//! Logs: set up once at the start, one access line per protected request and per failed one.
//!
//! A line carries tenant, a truncated hash of the key, endpoint, status, replay flag and the ids
//! of request and correlation (A27, A25), and why an upstream failed it. Never a key, a body, a
//! token or a header's value. Logs go to standard error; standard output is for answers. A reader
//! that does not read, as of a pipe that is full, costs lines and never a request: lines wait in a
//! bounded queue for a thread that writes them, and those that find it full are counted and
//! dropped.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use onceward_core::stamp::At;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;
use crate::times::rfc3339;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// What is logged at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing.
    Off,
    /// What failed and needs a hand.
    Error,
    /// What went wrong and was coped with.
    Warn,
    /// What happens, with a line per protected request.
    Info,
    /// More than one wants to read.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

/// Lines that wait to be written.
const LINES_MAX: usize = 8_192;
/// How long the last lines may take at the end.
const FLUSH_WITHIN: Duration = Duration::from_millis(500);

/// Where lines wait.
#[derive(Clone)]
struct Lines {
    queue: SyncSender<Line>,
    dropped: Arc<AtomicU64>,
}

enum Line {
    Text(Vec<u8>),
    /// Everything before it was written: tell so.
    End(SyncSender<()>),
}

static LINES: OnceLock<Lines> = OnceLock::new();

impl Lines {
    fn start(format: LogFormat) -> Result<Self, Failure> {
        let (queue, waiting) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let lines = Self { queue, dropped: dropped.clone() };
        let thread = std::thread::Builder::new().name("onceward-logs".into());
        thread
            .spawn(move || write_lines(&waiting, &dropped, format))
            .map_err(|error| Failure::failed("logs", format!("logs can't be set up: {error}")))?;
        Ok(lines)
    }
}

/// How long a line waits for others, to be written with them: waking a thread and a call of the
/// system for each line would cost more than the line.
const GATHERED_FOR: Duration = Duration::from_millis(5);

fn write_lines(waiting: &Receiver<Line>, dropped: &AtomicU64, format: LogFormat) {
    let mut out = io::stderr();
    while let Ok(first) = waiting.recv() {
        if matches!(first, Line::Text(_)) {
            std::thread::sleep(GATHERED_FOR);
        }
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for line in std::iter::once(first).chain(waiting.try_iter().take(LINES_MAX)) {
            match line {
                Line::Text(line) => text.extend_from_slice(&line),
                Line::End(written) => ends.push(written),
            }
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            text.extend_from_slice(lost_lines(lost, format).as_bytes());
        }
        // Whoever reads standard error may be gone; nobody is left to be told.
        let _ = out.write_all(&text);
        for written in ends {
            let _ = written.send(());
        }
    }
}

/// A line about lines that were dropped: it can't stand in the queue that they found full.
fn lost_lines(lost: u64, format: LogFormat) -> String {
    let message = format!("{lost} lines of the log were dropped: nobody reads fast enough");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = rfc3339(At(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)));
    match format {
        LogFormat::Human => format!("{at}  WARN {}: {message}\n", module_path!()),
        LogFormat::Json => {
            let line = serde_json::json!({
                "timestamp": at, "level": "WARN", "message": message, "target": module_path!(),
            });
            format!("{line}\n")
        }
    }
}

impl Write for Lines {
    /// A line comes as a whole: the formatter writes each event at once.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Line::Text(text.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until what was logged is written, but not long.
pub(crate) fn flush() {
    let Some(lines) = LINES.get() else { return };
    let (written, heard) = sync_channel(1);
    if lines.queue.try_send(Line::End(written)).is_ok() {
        let _ = heard.recv_timeout(FLUSH_WITHIN);
    }
}

/// Sets logging up for the whole process. Call it once, from a command that serves.
pub(crate) fn init(format: LogFormat, level: LogLevel) -> Result<(), Failure> {
    let lines = Lines::start(format)?;
    let _ = LINES.set(lines.clone());
    let writer = move || lines.clone();
    let registry = tracing_subscriber::registry().with(level.filter());
    let started = match format {
        LogFormat::Human => {
            let layer = fmt::layer().with_writer(writer);
            registry.with(layer.with_ansi(io::stderr().is_terminal())).try_init()
        }
        LogFormat::Json => {
            let layer = fmt::layer().json().flatten_event(true).with_current_span(false);
            registry.with(layer.with_span_list(false).with_writer(writer)).try_init()
        }
    };
    started.map_err(|error| Failure::failed("logs", format!("logs can't be set up: {error}")))
}

/// What is told of one answered request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access<'a> {
    /// Whose, when it is known.
    pub(crate) tenant: Option<&'a str>,
    /// Truncated hash of the key (`Key::hash_hex`), never the key.
    pub(crate) key_hash: Option<&'a str>,
    /// The route's template.
    pub(crate) endpoint: &'a str,
    /// What was answered.
    pub(crate) status: u16,
    /// Whether the answer was a replay.
    pub(crate) replayed: bool,
    /// The verdict or refusal, in a word.
    pub(crate) verdict: &'a str,
    /// Why, where the verdict alone does not say enough.
    pub(crate) reason: Option<&'a str>,
    /// Why its upstream failed it, if it did.
    pub(crate) cause: Option<&'a str>,
    /// `X-Request-ID`.
    pub(crate) request_id: &'a str,
    /// `X-Correlation-ID`, when there is one.
    pub(crate) correlation_id: Option<&'a str>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// Writes the access line of a request.
pub(crate) fn access(line: &Access<'_>) {
    tracing::info!(
        target: "onceward::access",
        tenant = line.tenant,
        key_hash = line.key_hash,
        endpoint = line.endpoint,
        status = line.status,
        replayed = line.replayed,
        verdict = line.verdict,
        reason = line.reason,
        cause = line.cause,
        request_id = line.request_id,
        correlation_id = line.correlation_id,
        took_us = u64::try_from(line.took.as_micros()).unwrap_or(u64::MAX),
        "answered"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn r10_text_lines_have_their_level_as_a_word() {
        let written = Written::default();
        let writer = written.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(LogLevel::Debug.filter()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("e");
            tracing::warn!("w");
            tracing::info!("i");
            tracing::debug!("d");
        });
        let mut text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        text.push_str(&lost_lines(7, LogFormat::Human));
        let levels = [" ERROR ", " WARN ", " INFO ", " DEBUG ", " WARN "];
        assert_eq!(text.lines().count(), levels.len(), "{text}");
        for (line, level) in text.lines().zip(levels) {
            assert!(line.contains(level), "{line}");
        }
        let line: serde_json::Value =
            serde_json::from_str(&lost_lines(7, LogFormat::Json)).unwrap();
        assert_eq!((&line["level"], line.get("message").is_some()), (&"WARN".into(), true));
    }

    #[test]
    fn a27_an_access_line_carries_what_the_contract_names() {
        let written = Written::default();
        let writer = written.clone();
        let layer = fmt::layer().json().flatten_event(true).with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(LogLevel::Info.filter()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            access(&Access {
                tenant: Some("acme"),
                key_hash: Some("0123456789abcdef"),
                endpoint: "POST /v1/claims",
                status: 200,
                replayed: true,
                verdict: "replay",
                reason: None,
                cause: None,
                request_id: "r-1",
                correlation_id: None,
                took: Duration::from_micros(250),
            });
        });
        let line: serde_json::Value = serde_json::from_slice(&written.0.lock().unwrap()).unwrap();
        for (field, value) in [
            ("tenant", "acme"),
            ("key_hash", "0123456789abcdef"),
            ("endpoint", "POST /v1/claims"),
            ("request_id", "r-1"),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert_eq!((&line["status"], &line["replayed"]), (&200.into(), &true.into()));
        assert_eq!(line["took_us"], 250);
    }
}
