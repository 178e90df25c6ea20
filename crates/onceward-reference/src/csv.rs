//! CSV as RFC 4180 has it, for exports of the audit. Entries hold what callers sent: a text that a
//! spreadsheet would run as a formula is led by an apostrophe, and what would steer a terminal is
//! escaped.

use onceward::core::text::plain;
use serde_json::Value;

/// A line of these members, each as a cell.
#[must_use]
pub fn line(object: &Value, columns: &[&str]) -> String {
    let cells: Vec<String> = columns.iter().map(|name| cell(&object[*name])).collect();
    cells.join(",") + "\r\n"
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => {
            let runs = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
            format!("{}{}", if runs { "'" } else { "" }, plain(text))
        }
        other => other.to_string(),
    };
    if text.contains([',', '"', '\r', '\n']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_holds_what_it_must() {
        let object = json!({ "a": "a,\"b\"\n", "b": null, "c": 7 });
        assert_eq!(line(&object, &["a", "b", "c"]), "\"a,\"\"b\"\"\n\",,7\r\n");
    }

    #[test]
    fn l10_no_cell_steers_a_terminal() {
        let object = json!({ "a": "\u{1b}[2J\u{9b}1m\u{202e}caf\u{e9}" });
        assert_eq!(line(&object, &["a"]), "\\u{1b}[2J\\u{9b}1m\\u{202e}caf\u{e9}\r\n");
    }

    #[test]
    fn abuse_no_cell_is_a_formula() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=HYPERLINK(\"x\",\"y\")"] {
            let cell = cell(&json!(text));
            assert!(cell.starts_with('\'') || cell.starts_with("\"'"), "{cell}");
        }
        assert_eq!(cell(&json!(-1)), "-1");
    }
}
