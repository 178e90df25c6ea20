//! How servers read a path otherwise than it stands: one table, for the check and for its tests.
//!
//! Nobody reads a path so to rewrite it: the key would then name another resource than the upstream
//! serves. These readings say what a request may come to behind us, and only refuse.

use std::borrow::Cow;

use onceward::http::one_spelling;

use super::settings::{EncodedSlash, PathRules, Spelling};

/// How often one path may be decoded on its way: proxies and servers do it in turn.
pub(super) const DECODINGS_MAX: usize = 3;
/// Readings of one path. No path that anybody means has as many.
const READINGS_MAX: usize = 512;
/// Bytes of all readings of one path.
const READINGS_BYTES_MAX: usize = 1 << 20;

/// What is done to a path where it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Habit {
    /// This stands for a slash between segments.
    Slash(&'static str),
    /// What follows this in a segment is no part of the path.
    Parameters(char),
    /// `.` and `..` lead to another place.
    Dots,
    /// Several slashes are one.
    Merged,
    /// Encodings are undone once more, but those of slashes.
    Decoded,
    /// This is left out at the end.
    End(&'static str),
    /// Upper and lower case are one.
    Case,
    /// With a slash at the end or without is one.
    LastSlash,
}

/// A row of the table: a habit, and what is said of a path that would be protected under it.
pub(super) struct Row {
    pub(super) habit: Habit,
    pub(super) told: &'static str,
}

const SLASHES: &str = "its path would be a protected one where encoded slashes and `\\` separate \
                       segments, as many servers read them: send it with plain slashes";
const TIDIED: &str = "its path would be a protected one without `.`, `..` and empty segments: send \
                      it without them";
pub(super) const ENCODED: &str = "its path would be a protected one without its encodings: encode \
                                  only what has to be";
pub(super) const RESPELT: &str = "its path is a protected one in upper or lower case, or with a \
                                  slash more or less at its end: send it as the route has it";

/// The table. Who has which habit:
pub(super) const TABLE: [Row; 10] = [
    // WSGI servers (so Flask and Django), Tomcat where it is told to, and IIS.
    Row { habit: Habit::Slash("%2F"), told: SLASHES },
    Row { habit: Habit::Slash("%5C"), told: SLASHES },
    // IIS, and whatever follows the rules for addresses in browsers.
    Row { habit: Habit::Slash("\\"), told: SLASHES },
    // Tomcat, Jetty, and Spring on them; `/..;/` leads up there.
    Row {
        habit: Habit::Parameters(';'),
        told: "its path would be a protected one without what follows `;` in a segment, as many \
               servers read it: send it without that",
    },
    // Nearly all, each in its own measure.
    Row { habit: Habit::Dots, told: TIDIED },
    Row { habit: Habit::Merged, told: TIDIED },
    // All decode once, IIS and a proxy in front of a server twice.
    Row { habit: Habit::Decoded, told: ENCODED },
    // Regular expressions of Python that end with `$`, as in Django's routes.
    Row {
        habit: Habit::End("%0A"),
        told: "its path would be a protected one without the new line at its end: send it without \
               that",
    },
    // Express and ASP.NET.
    Row { habit: Habit::Case, told: RESPELT },
    // Express, Flask, Spring before 6, and others.
    Row { habit: Habit::LastSlash, told: RESPELT },
];

impl Habit {
    /// Whether the rules say that servers behind us may have it.
    pub(super) fn is_on(self, rules: PathRules) -> bool {
        match self {
            Self::Slash("%2F" | "%5C") => rules.encoded_slash == EncodedSlash::Separator,
            Self::Case | Self::LastSlash => rules.spelling == Spelling::Strict,
            _ => true,
        }
    }

    /// The path as it is read under this habit; none where that is as it stands. Whether case and
    /// the last slash count is a question of comparing.
    pub(super) fn read(self, path: &str) -> Option<String> {
        let read = match self {
            Self::Slash(spelled) => path.contains(spelled).then(|| path.replace(spelled, "/"))?,
            Self::Parameters(begin) => {
                path.contains(begin).then(|| without_parameters(path, begin))?
            }
            Self::Dots => resolved(path)?,
            Self::Merged => path.contains("//").then(|| merged(path))?,
            Self::Decoded => match decoded(path) {
                Cow::Owned(decoded) => one_spelling(&decoded).into_owned(),
                Cow::Borrowed(_) => return None,
            },
            Self::End(end) => path.strip_suffix(end)?.to_string(),
            Self::Case | Self::LastSlash => return None,
        };
        (read != path).then_some(read)
    }
}

/// A path as somebody may read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) path: String,
    /// What is said of the habit that it began with; none of the path as it stands.
    pub(super) told: Option<&'static str>,
    decoded: usize,
}

/// Every reading of a path (in its one spelling) under any habits in any order, the path itself
/// first; none when there are too many to look at.
pub(super) fn readings(path: &str, rules: PathRules) -> Option<Vec<Reading>> {
    let mut all = vec![Reading { path: path.into(), told: None, decoded: 0 }];
    let mut bytes = path.len();
    let mut at = 0;
    while at < all.len() {
        for row in TABLE.iter().filter(|row| row.habit.is_on(rules)) {
            let from = &all[at];
            let decoded = from.decoded + usize::from(row.habit == Habit::Decoded);
            if decoded > DECODINGS_MAX {
                continue;
            }
            let Some(path) = row.habit.read(&from.path) else { continue };
            let told = from.told.or(Some(row.told));
            if let Some(known) = all.iter_mut().find(|known| known.path == path) {
                known.decoded = known.decoded.min(decoded);
                continue;
            }
            bytes += path.len();
            if all.len() == READINGS_MAX || bytes > READINGS_BYTES_MAX {
                return None;
            }
            all.push(Reading { path, told, decoded });
        }
        at += 1;
    }
    Some(all)
}

/// Whether a path leads above its root, empty segments not counted.
pub(super) fn climbs(path: &str) -> bool {
    let mut depth = 0_usize;
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        match &*one_spelling(segment) {
            "." => {}
            ".." if depth == 0 => return true,
            ".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

fn without_parameters(path: &str, begin: char) -> String {
    let segments = path.split('/').map(|segment| segment.split(begin).next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

fn merged(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// Whether a segment of a path leads to another place.
pub(super) fn has_dots(path: &str) -> bool {
    path.split('/').any(is_dots)
}

fn is_dots(segment: &str) -> bool {
    [".", ".."].contains(&segment)
}

/// A path whose `.` and `..` are resolved (RFC 3986, section 5.2.4); none when it has none. Above
/// the root it stays there.
fn resolved(path: &str) -> Option<String> {
    if !has_dots(path) {
        return None;
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut is_open = false;
    for segment in path.split('/').skip(1) {
        is_open = is_dots(segment);
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    let end = if is_open && !kept.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", kept.join("/")))
}

/// A path with what is encoded undone once, but slashes and what is no text: what separates
/// segments is another question, and no two texts become one.
pub(super) fn decoded(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len());
    let mut changed = false;
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let byte = encoded(&from.as_bytes()[1..])
            .filter(|byte| (b' '..=b'~').contains(byte) && !b"/\\".contains(byte));
        match byte {
            Some(byte) => {
                out.push(char::from(byte));
                changed = true;
                rest = &from[3..];
            }
            None => {
                out.push('%');
                rest = &from[1..];
            }
        }
    }
    out.push_str(rest);
    if changed { Cow::Owned(out) } else { Cow::Borrowed(path) }
}

/// A segment as it is compared where case does not count: as text, in one case.
pub(super) fn folded(segment: &str) -> String {
    if segment.is_ascii() && !segment.contains('%') {
        return segment.to_ascii_lowercase();
    }
    let bytes = undone(segment);
    let text = String::from_utf8_lossy(&bytes);
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// What encoded text stands for; a `%` that begins no encoding is one.
pub(super) fn undone(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        match (byte, encoded(after)) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    bytes
}

/// The byte that the two digits at the beginning stand for.
fn encoded(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}
