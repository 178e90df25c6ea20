//! What is said about configuration: the example file, the reference page, the effective file.
//!
//! All of it is made from the definitions that are enforced; a test keeps the page in step.

use std::fmt::Write as _;

use super::Config;
use super::field::{Described, Section};
use super::route::{RouteSection, inline_tables};
use super::sections::{Audit, Cache, IdentitySection, Limits, Principal, Queue, Server, Store};
use crate::open::StoreUrl;

/// What no field by itself tells: how requests are compared.
const SAME_REQUEST: &str = include_str!("same_request.md");

/// A section as it is described: its heading, what it is for, its fields.
struct Chapter {
    heading: &'static str,
    about: String,
    fields: Vec<Described>,
}

fn chapters() -> Vec<Chapter> {
    fn chapter<S: Section + Default>(heading: &'static str) -> Chapter {
        Chapter { heading, about: sentence(S::ABOUT), fields: S::default().fields() }
    }
    vec![
        chapter::<Server>("[server]"),
        chapter::<Store>("[store]"),
        chapter::<Cache>("[cache]"),
        chapter::<IdentitySection>("[identity]"),
        chapter::<Limits>("[limits]"),
        chapter::<Audit>("[audit]"),
        chapter::<Principal>("[[principal]]"),
        chapter::<RouteSection>("[[route]]"),
        chapter::<Queue>("[[queue]]"),
    ]
}

/// A file with every field at its default. What has no default, and what may come any number of
/// times, stands behind a `#`: take it away to use it.
pub(crate) fn example() -> String {
    let mut text = String::from(
        "# Onceward's configuration: every field, at its default. A line `#name = value` shows a \
         field\n# that is not set, or a table that may come any number of times.\n",
    );
    for Chapter { heading, about, fields } in chapters() {
        let off = if heading.starts_with("[[") { "#" } else { "" };
        comment(&mut text, &format!("\n{about}"));
        let _ = writeln!(text, "{off}{heading}");
        for field in fields {
            comment(&mut text, &sentence(field.about));
            // A field that has to be written is empty by default; its example says more.
            let value = match (&field.value, field.like) {
                (Some(value), None) => format!("{off}{} = {value}", field.name),
                (_, Some(like)) => format!("#{} = {like}", field.name),
                (None, None) => continue,
            };
            let _ = writeln!(text, "{value}");
        }
    }
    text
}

/// The reference page.
pub(crate) fn page() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         One TOML file, named with `--config` (default: `onceward.toml` in the current folder, if \
         it is there). Flags and `ONCEWARD_…` variables win over it; a file that is named is read \
         whatever they say. `onceward config example` prints a file with every field, `onceward \
         config check` tells everything that is wrong with one, or what it comes to.\n\n\
         Lengths of time have a unit: `\"500ms\"`, `\"30s\"`, `\"15m\"`, `\"24h\"`, `\"7d\"`. \
         Sizes are a number of bytes or have a unit: `\"64KiB\"`, `\"8MiB\"`. A field that is not \
         known is an error.\n",
    );
    for Chapter { heading, about, fields } in chapters() {
        let _ = write!(text, "\n## `{heading}`\n\n{about}\n\n");
        table(&mut text, &fields);
        if heading == "[[route]]" {
            for (name, fields) in inline_tables() {
                let _ = write!(text, "\n### `{name} = {{ … }}`\n\n");
                table(&mut text, &fields);
            }
        }
    }
    text.push_str(SAME_REQUEST);
    text
}

fn table(text: &mut String, fields: &[Described]) {
    text.push_str("| field | default | what it does |\n|---|---|---|\n");
    for field in fields {
        let about = sentence(field.about);
        let (about, said) = match about.split_once(" Default: ") {
            Some((about, said)) => (about.to_string(), Some(said.trim_end_matches('.').into())),
            None => (about, None),
        };
        let needed = field.value.as_deref() == Some("\"\"");
        let default = said.unwrap_or_else(|| match &field.value {
            _ if needed => "has to be written".into(),
            Some(value) => format!("`{value}`"),
            None => "not set".into(),
        });
        let form = field.form.replace('|', "\\|");
        let about = about.replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {default} | {about} Takes {form}. |", field.name);
    }
}

/// The configuration as a file that comes to the same. Passwords in URLs are left out.
pub(crate) fn effective(config: &Config) -> String {
    let mut store = config.store.clone();
    if let Ok(url) = StoreUrl::parse(&store.url) {
        store.url = url.shown();
    }
    let mut cache = config.cache.clone();
    cache.url = cache.url.as_deref().map(crate::cache::shown);
    let mut text = String::new();
    write(&mut text, "[server]", &config.server);
    write(&mut text, "[store]", &store);
    write(&mut text, "[cache]", &cache);
    write(&mut text, "[identity]", &config.identity);
    write(&mut text, "[limits]", &config.limits);
    write(&mut text, "[audit]", &config.audit);
    config.principals.iter().for_each(|section| write(&mut text, "[[principal]]", section));
    config.routes.iter().for_each(|section| write(&mut text, "[[route]]", section));
    config.queues.iter().for_each(|section| write(&mut text, "[[queue]]", section));
    text
}

fn write<S: Section>(text: &mut String, heading: &str, section: &S) {
    let blank = if text.is_empty() { "" } else { "\n" };
    let _ = writeln!(text, "{blank}{heading}");
    for field in section.fields() {
        if let Some(value) = field.value {
            let _ = writeln!(text, "{} = {value}", field.name);
        }
    }
}

/// Lines of a doc comment as one text.
fn sentence(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// A text as comment lines of at most about a hundred columns.
fn comment(text: &mut String, about: &str) {
    for paragraph in about.split('\n') {
        if paragraph.is_empty() {
            text.push('\n');
            continue;
        }
        let mut line = String::from("#");
        for word in paragraph.split(' ') {
            if line.len() + word.len() > 98 {
                let _ = writeln!(text, "{line}");
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        let _ = writeln!(text, "{line}");
    }
}
