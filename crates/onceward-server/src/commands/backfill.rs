//! `onceward backfill measurements FILE`: takes in what was measured before there were keys.
//!
//! NDJSON, a measurement per line. Lines are taken in by their ids, a chunk at a time, so that a
//! run that was killed is simply run again. Bad lines are told with their numbers, and the others
//! are taken in all the same.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use onceward::engine::Engine;
use onceward_reference::measurements::{BackfillReport, Line, backfill};
use onceward_reference::principals::ORGANISATION_A;
use serde_json::json;

use crate::demo::measurements::environment::Environment;
use crate::failure::Failure;
use crate::open::{Access, StoreUrl};
use crate::output::Out;

/// Lines that are taken in together.
const CHUNK: usize = 1_000;
/// Longest line.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// What some programs begin a text with; it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// Bad lines that are told; the others are counted.
const TOLD_MAX: usize = 50;

/// What to take in.
#[derive(Debug, Subcommand)]
pub(crate) enum Backfill {
    /// Measurements, as NDJSON: `user_id`, `measurement_id`, `weight`, `unit`, `timestamp`,
    /// `source`.
    Measurements(Measurements),
}

/// Which measurements.
#[derive(Debug, Args)]
pub(crate) struct Measurements {
    /// The file.
    pub(crate) file: PathBuf,
    /// Whose they are. Default: the organisation of demo-a.
    #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
    #[arg(default_value = ORGANISATION_A, hide_default_value = true)]
    pub(crate) tenant: String,
}

/// Takes everything in; fails when a line could not be.
pub(crate) async fn run(args: &Backfill, url: &StoreUrl, out: &Out) -> Result<(), Failure> {
    let Backfill::Measurements(args) = args;
    let settings = Environment::read()?.settings;
    let mut lines = Lines::open(args, out)?;
    let engine = Engine::new(url.open(Access::Create).await?);
    let taken = async {
        let mut report = BackfillReport::default();
        loop {
            let chunk = lines.chunk(&mut report)?;
            if chunk.is_empty() {
                return Ok::<_, Failure>(report);
            }
            report.add(backfill(&engine, &args.tenant, &settings, &chunk).await?);
        }
    };
    let taken = taken.await;
    lines.bar.finish_and_clear();
    let closed = engine.close().await;
    let mut report = taken?;
    closed?;
    report.refused.sort();
    tell(args, &report, out)
}

fn tell(args: &Measurements, report: &BackfillReport, out: &Out) -> Result<(), Failure> {
    let BackfillReport { made, keyed, there, refused } = report;
    let file = args.file.display();
    let mut told: Vec<String> = refused
        .iter()
        .take(TOLD_MAX)
        .map(|(number, why)| format!("{file}, line {number}: {why}"))
        .collect();
    if refused.len() > TOLD_MAX {
        told.push(format!("and {} lines more", refused.len() - TOLD_MAX));
    }
    if out.is_json() {
        let refused: Vec<_> =
            refused.iter().map(|(number, why)| json!({ "line": number, "message": why })).collect();
        out.print_json(
            &json!({ "made": made, "keyed": keyed, "there": there, "refused": refused }),
        )?;
    } else {
        out.print(&format!(
            "Taken in: {made} measurements. There before: {there}, and {keyed} that got a key.\n"
        ))?;
    }
    if refused.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{} lines were not taken in; mend them and run it again, the others stay:\n{}",
        refused.len(),
        told.join("\n")
    );
    Err(Failure::failed("backfill.lines", message))
}

/// The lines of a file, with a bar that tells how far they are read.
struct Lines {
    reader: BufReader<File>,
    shown: String,
    number: u64,
    bar: ProgressBar,
}

impl Lines {
    fn open(args: &Measurements, out: &Out) -> Result<Self, Failure> {
        let shown = args.file.display().to_string();
        let broken = |error: std::io::Error| {
            Failure::usage("backfill.file", format!("can't read {shown}: {error}"))
        };
        let file = File::open(&args.file).map_err(broken)?;
        let bytes = file.metadata().map_err(broken)?.len();
        let bar =
            if out.shows_progress() { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
        let template = "{spinner} {elapsed} {wide_bar} {bytes}/{total_bytes} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Ok(Self { reader: BufReader::new(file), shown, number: 0, bar })
    }

    /// The next lines; none when there are no more. Empty ones don't count.
    fn chunk(&mut self, report: &mut BackfillReport) -> Result<Vec<Line>, Failure> {
        let mut chunk = Vec::new();
        let mut bytes = Vec::new();
        while chunk.len() < CHUNK {
            bytes.clear();
            let read = self.reader.read_until(b'\n', &mut bytes).map_err(|error| {
                let message = format!("can't read {} any further: {error}", self.shown);
                Failure::failed("backfill.file", message)
            })?;
            if read == 0 {
                break;
            }
            self.number += 1;
            self.bar.inc(read as u64);
            if self.number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if bytes.len() > LINE_BYTES_MAX {
                let why = format!("is longer than {LINE_BYTES_MAX} bytes");
                report.refused.push((self.number, why));
                continue;
            }
            match std::str::from_utf8(&bytes) {
                Ok(text) if text.trim().is_empty() => {}
                Ok(text) => {
                    chunk.push(Line { number: self.number, json: text.trim().to_string() });
                }
                Err(_) => report.refused.push((self.number, "is not UTF-8".into())),
            }
        }
        Ok(chunk)
    }
}
