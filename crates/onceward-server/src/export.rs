//! Audit entries for programs: JSON, a JSON object per line, or CSV.
//!
//! One form for the control API and the command line. Entries hold what callers sent: in every
//! format what would steer a terminal is escaped.

use onceward_core::audit::Audited;
use onceward_core::key::Key;
use onceward_core::text::{plain_json, unescape};
use onceward_reference::csv;
use serde_json::{Value, json};

use crate::times::rfc3339;

/// The columns of an export, in their order: the members of an entry.
pub(crate) const COLUMNS: [&str; 14] = [
    "id",
    "at",
    "tenant",
    "action",
    "subject",
    "key_hash",
    "payload_hash",
    "version_before",
    "version_after",
    "fence",
    "actor",
    "request_id",
    "correlation_id",
    "detail",
];

/// Characters of a key's hash, as entries and logs show it.
const HASH_CHARS: usize = 16;

/// What entries about one key are found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) String);

impl KeyHash {
    /// Of this key.
    pub(crate) fn of(key: &Key) -> Self {
        Self(key.hash_hex().to_string())
    }

    /// Of a key that is written out, or the hash itself, as whoever reads a log has it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == HASH_CHARS && text.bytes().all(is_digit) {
            return Ok(Self(text.into()));
        }
        Key::parse(text).map(|key| Self::of(&key)).map_err(|error| error.to_string())
    }
}

/// How entries are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A JSON array, or a page of it.
    Json,
    /// A JSON object per line.
    Ndjson,
    /// RFC 4180, with a header.
    Csv,
}

impl Format {
    /// What stands before the first entry.
    pub(crate) fn head(self) -> String {
        match self {
            Self::Json => "[".into(),
            Self::Ndjson => String::new(),
            Self::Csv => COLUMNS.join(",") + "\r\n",
        }
    }

    /// An entry, as [`entry_json`] gives it; `first` when none was written before.
    pub(crate) fn line(self, entry: &Value, first: bool) -> String {
        match self {
            Self::Json => {
                format!("{}\n{}", if first { "" } else { "," }, plain_json(&entry.to_string()))
            }
            Self::Ndjson => format!("{}\n", plain_json(&entry.to_string())),
            Self::Csv => csv::line(entry, &COLUMNS),
        }
    }

    /// What stands behind the last entry.
    pub(crate) fn end(self) -> &'static str {
        match self {
            Self::Json => "\n]\n",
            Self::Ndjson | Self::Csv => "",
        }
    }
}

/// An entry for programs.
pub(crate) fn entry_json(audited: &Audited) -> Value {
    let entry = &audited.entry;
    let tenant = unescape(&entry.tenant);
    json!({
        "id": audited.id,
        "at": rfc3339(audited.at),
        "tenant": tenant.as_deref().unwrap_or(&entry.tenant),
        "action": &*entry.action,
        "subject": entry.subject.as_deref(),
        "key_hash": entry.key_hash.as_deref(),
        "payload_hash": entry.payload_hash.as_deref(),
        "version_before": entry.version_before,
        "version_after": entry.version_after,
        "fence": entry.fence,
        "actor": entry.trace.actor.as_deref(),
        "request_id": entry.trace.request_id.as_deref(),
        "correlation_id": entry.trace.correlation_id.as_deref(),
        "detail": entry.detail.as_deref(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward_core::text::steers;

    #[test]
    fn l10_no_export_steers_a_terminal() {
        let said = "\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{7}\r";
        let entry = json!({ "id": 1, "tenant": said, "detail": "caf\u{e9}" });
        for format in [Format::Json, Format::Ndjson, Format::Csv] {
            let line = format.line(&entry, true);
            let body = line.trim_end_matches("\r\n");
            assert!(!body.contains(steers), "{format:?}: {body:?}");
            assert!(body.contains("caf\u{e9}"), "{body}");
        }
        // JSON says the same as before, to whoever reads it as JSON.
        let read: Value = serde_json::from_str(&Format::Ndjson.line(&entry, true)).unwrap();
        assert_eq!(read, entry);
        let cells = Format::Csv.line(&entry, true);
        assert!(cells.contains("\\u{1b}[2J"), "{cells}");
    }

    #[test]
    fn the_columns_are_the_members_of_an_entry() {
        let entry = onceward_core::audit::Entry::new("acme", "request.done");
        let audited = Audited { id: 1, at: onceward_core::stamp::At(0), entry };
        let value = entry_json(&audited);
        let members: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(members.len(), COLUMNS.len());
        assert!(members.iter().all(|member| COLUMNS.contains(&member.as_str())), "{members:?}");
    }

    #[test]
    fn every_format_of_no_and_of_two_entries_is_whole() {
        let entry = json!({ "id": 1 });
        let written = |format: Format, count: usize| {
            let lines: String = (0..count).map(|n| format.line(&entry, n == 0)).collect();
            format.head() + &lines + format.end()
        };
        for count in 0..3 {
            let array: Value = serde_json::from_str(&written(Format::Json, count)).unwrap();
            assert_eq!(array.as_array().unwrap().len(), count);
            assert_eq!(written(Format::Ndjson, count).lines().count(), count);
            assert_eq!(written(Format::Csv, count).lines().count(), count + 1);
        }
    }
}
