//! Reading a TOML file so that every problem in it is told at once, with its line and path.
//!
//! The rule kept here: a value that can't be read leaves the default in its place and a problem in
//! the list, and reading goes on. Nothing here knows what a field means.

use std::collections::BTreeMap;
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::field::Field;

/// A value and where it stands.
pub(crate) type Value<'i> = Spanned<DeValue<'i>>;

/// Something that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The line from 1; none for a flag, or for what is missing.
    pub(crate) line: Option<usize>,
    /// The field, as in `route[0].retain`, or the flag.
    pub(crate) path: String,
    /// What is wrong and what would be right.
    pub(crate) message: String,
}

/// Everything that is wrong with a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Problems {
    /// The file, as it was named.
    pub(crate) file: String,
    /// In the order of lines.
    pub(crate) all: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.all.iter().enumerate() {
            let Problem { line, path, message } = problem;
            if at > 0 {
                f.write_str("\n")?;
            }
            match line {
                Some(line) => write!(f, "{}:{line}: ", self.file)?,
                None if !self.file.is_empty() && !path.starts_with("--") => {
                    write!(f, "{}: ", self.file)?;
                }
                None => {}
            }
            match path.is_empty() {
                true => write!(f, "{message}")?,
                false => write!(f, "{path}: {message}")?,
            }
        }
        Ok(())
    }
}

/// What reading collects: problems, and the line of every field that was there.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    problems: Vec<Problem>,
    lines: BTreeMap<String, usize>,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl Reading {
    /// A reading of this text.
    pub(super) fn of(text: &str) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { starts: std::iter::once(0).chain(starts).collect(), ..Self::default() }
    }

    /// Notes that something is wrong at an offset.
    pub(super) fn wrong(&mut self, offset: usize, path: &str, message: impl Into<String>) {
        let line = (!self.starts.is_empty()).then(|| self.line(offset));
        self.problems.push(Problem { line, path: path.into(), message: message.into() });
    }

    /// Notes that a field that was read breaks a rule; told with the nearest line that is known.
    pub(super) fn breaks(&mut self, path: &str, message: impl Into<String>) {
        let mut place = path;
        let line = loop {
            if let Some(line) = self.lines.get(place) {
                break Some(*line);
            }
            match place.rfind(['.', '[']) {
                Some(at) => place = &place[..at],
                None => break None,
            }
        };
        self.problems.push(Problem { line, path: path.into(), message: message.into() });
    }

    /// Notes where something stands that has no name of its own.
    pub(super) fn stands_at(&mut self, path: &str, offset: usize) {
        let line = self.line(offset);
        self.lines.insert(path.into(), line);
    }

    /// Takes over what another reading found wrong.
    pub(super) fn adopt(&mut self, other: Self) {
        self.problems.extend(other.problems);
    }

    /// Whether something was wrong at or below this path.
    pub(super) fn is_wrong_at(&self, path: &str) -> bool {
        self.problems.iter().any(|problem| problem.path.starts_with(path))
    }

    /// All problems, in the order of lines; none when there are none.
    pub(super) fn end(mut self, file: &str) -> Option<Problems> {
        // Where the syntax is broken, what was read there is nobody's fault.
        let broken = |problem: &&Problem| problem.path.is_empty();
        let broken: Vec<_> = self.problems.iter().filter(broken).map(|one| one.line).collect();
        let counts = |problem: &Problem| problem.path.is_empty() || !broken.contains(&problem.line);
        self.problems.retain(counts);
        self.problems.sort_by_key(|problem| problem.line);
        (!self.problems.is_empty()).then(|| Problems { file: file.into(), all: self.problems })
    }

    fn line(&self, offset: usize) -> usize {
        self.starts.partition_point(|start| *start <= offset)
    }
}

/// A table whose fields are taken out one by one; what is left at the end is unknown.
pub(crate) struct Table<'t, 'i> {
    entries: &'t DeTable<'i>,
    path: String,
    known: Vec<&'static str>,
}

impl<'t, 'i> Table<'t, 'i> {
    /// The table at a path.
    pub(super) fn new(entries: &'t DeTable<'i>, path: &str) -> Self {
        Self { entries, path: path.into(), known: Vec::new() }
    }

    /// A field's value and path, if it is there.
    pub(super) fn find(
        &mut self,
        name: &'static str,
        reading: &mut Reading,
    ) -> Option<(&'t Value<'i>, String)> {
        self.known.push(name);
        let path = join(&self.path, name);
        let (key, value) = self.entries.iter().find(|(key, _)| key.get_ref() == name)?;
        let line = reading.line(key.span().start);
        reading.lines.insert(path.clone(), line);
        Some((value, path))
    }

    /// A field, or its default when it is not there or can't be read.
    pub(super) fn take<T: Field>(
        &mut self,
        name: &'static str,
        default: T,
        reading: &mut Reading,
    ) -> T {
        let Some((value, path)) = self.find(name, reading) else { return default };
        T::read(value, &path, reading).unwrap_or(default)
    }

    /// Tells what nobody asked for, with the name that was probably meant.
    pub(super) fn end(self, elsewhere: &[(&str, &str)], reading: &mut Reading) {
        for (key, _) in self.entries.iter() {
            let name = key.get_ref().as_ref();
            if self.known.contains(&name) {
                continue;
            }
            let place = elsewhere.iter().find(|(field, _)| *field == name);
            let message = match (place, meant(name, &self.known)) {
                (Some((_, section)), None) => {
                    format!("unknown field; `{name}` belongs into {section}")
                }
                (_, Some(meant)) => format!("unknown field; did you mean `{meant}`?"),
                (None, None) => {
                    format!("unknown field; there are {}", self.known.join(", "))
                }
            };
            reading.wrong(key.span().start, &join(&self.path, name), message);
        }
    }
}

/// The known word that was probably meant: few letters apart, for the length that it has.
pub(super) fn meant<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let likeness = |candidate: &&'w str| (distance(word, candidate), *candidate);
    let (apart, best) = known.iter().map(likeness).min()?;
    let starts = |short: &str, long: &str| short.len() >= 4 && long.starts_with(short);
    let starts = starts(word, best) || starts(best, word);
    (apart <= (best.len() / 3).max(1) || starts).then_some(best)
}

/// A path that has one more step.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

/// Insertions, deletions, replacements and swaps of neighbours from one word to the other.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for (at, row) in rows.iter_mut().enumerate() {
        row[0] = at;
    }
    rows[0] = (0..=right.len()).collect();
    for i in 1..=left.len() {
        for j in 1..=right.len() {
            let replace = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_meant_if_it_is_near_enough() {
        let known = ["retain", "retain_errors", "wait", "lease", "on_abandoned"];
        for (word, found) in [
            ("retian", Some("retain")),
            ("retention", None),
            ("retain_error", Some("retain_errors")),
            ("wiat", Some("wait")),
            ("on_abandon", Some("on_abandoned")),
            ("frobnicate", None),
        ] {
            assert_eq!(meant(word, &known), found, "{word}");
        }
    }
}
