//! Output: tables and colour for people, JSON for programs, errors on standard error.
//!
//! Stored text is other people's: what could steer a terminal is shown escaped, never sent. A
//! reader that goes away early (`| head`) ends the command quietly.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use onceward_core::record::State;
pub(crate) use onceward_core::text::plain;
use onceward_core::text::plain_json;
use serde_json::{Value, json};

use crate::cli::{self, Common};
use crate::failure::Failure;

/// How a command talks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    json: bool,
    colour: bool,
    colour_errors: bool,
}

impl Out {
    /// As the common flags say.
    pub(crate) fn new(common: &Common) -> Self {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let wanted = |terminal: bool| match common.color {
            cli::Color::Always => true,
            cli::Color::Never => false,
            cli::Color::Auto => terminal && !forbidden,
        };
        Self {
            json: common.json,
            colour: wanted(io::stdout().is_terminal()),
            colour_errors: wanted(io::stderr().is_terminal()),
        }
    }

    /// JSON without colour, for a command line that could not be parsed.
    pub(crate) fn json() -> Self {
        Self { json: true, colour: false, colour_errors: false }
    }

    /// Whether programs read this.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a progress bar may be drawn: people are watching standard error.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }

    /// Prints a text.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::reader_gone()),
            Err(error) => {
                let message = format!("can't write to standard output: {error}");
                Err(Failure::failed("output.failed", message))
            }
        }
    }

    /// Prints one JSON value.
    pub(crate) fn print_json(&self, value: &Value) -> Result<(), Failure> {
        self.print(&format!("{}\n", plain_json(&format!("{value:#}"))))
    }

    /// Tells something on standard error, once: it is no part of the output.
    #[expect(clippy::print_stderr, reason = "what people are told beside the output")]
    pub(crate) fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    /// Tells a failure on standard error.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.silent {
            return;
        }
        let text = if self.json {
            json!({ "error": { "code": failure.code, "message": failure.message } }).to_string()
        } else if self.colour_errors {
            format!("\u{1b}[1;31merror:\u{1b}[0m {}", plain(&failure.message))
        } else {
            format!("error: {}", plain(&failure.message))
        };
        // Nobody is left to hear that nobody can be told.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// A table without lines: keys stay whole, so that they can be copied.
    pub(crate) fn table(&self, headers: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if self.colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        let bold = |header: &&str| Cell::new(header).add_attribute(Attribute::Bold);
        table.set_header(headers.iter().map(bold));
        table
    }

    /// A table's text.
    pub(crate) fn render(&self, table: &Table) -> String {
        let mut text = table.trim_fmt();
        text.push('\n');
        text
    }

    /// Field after field, with the names in one column.
    pub(crate) fn fields(&self, fields: &[(&str, String)]) -> String {
        let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let mut text = String::new();
        for (name, value) in fields {
            let (on, off) = if self.colour { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
            let value = value.replace('\n', &format!("\n{:width$}", "", width = width + 2));
            // Writing into a string can't fail.
            let _ = writeln!(text, "{on}{name:width$}{off}  {value}");
        }
        text
    }
}

/// A state as a cell: what needs a hand stands out.
pub(crate) fn state_cell(state: State) -> Cell {
    let cell = Cell::new(state.as_str());
    match state {
        State::Dead | State::Unknown => cell.fg(Color::Red),
        State::Failed => cell.fg(Color::Yellow),
        State::Running => cell.fg(Color::Cyan),
        State::Done => cell.fg(Color::Green),
        State::Expired => cell.fg(Color::DarkGrey),
        State::Pending => cell,
    }
}

/// Text for one line of a table.
pub(crate) fn plain_line(text: &str) -> String {
    plain(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing into a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_text_can_not_steer_a_terminal() {
        assert_eq!(plain("caf\u{e9}\n\tok"), "caf\u{e9}\n\tok");
        assert_eq!(plain("\u{1b}[2J\u{9b}1m\r"), "\\u{1b}[2J\\u{9b}1m\\u{d}");
        assert_eq!(plain("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(plain_line("a\nb"), "a\\nb");
        assert_eq!(hex(&[0, 255]), "00ff");
    }
}
