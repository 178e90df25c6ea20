//! What is remembered of a started server: `.services/<name>.json`.
//!
//! The rule kept here: the file is complete or absent (written aside, then renamed), and a file
//! that cannot be understood is an error, never "nothing runs": that would leak a server.
//! The format is one flat JSON object, so a reader for just that is all there is.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A server that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// Where clients reach it.
    pub(crate) url: String,
    /// Its process.
    pub(crate) pid: u32,
    /// The temporary folder that holds all it wrote.
    pub(crate) dir: PathBuf,
}

/// Reads what is remembered of `name`, if anything is.
pub(crate) fn read(folder: &Path, name: &str) -> Result<Option<Remembered>> {
    let path = file(folder, name);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let known = parse(&text).with_context(|| {
        format!("{} is damaged; stop the server by hand and delete it", path.display())
    })?;
    Ok(Some(known))
}

/// Remembers a server.
pub(crate) fn write(folder: &Path, name: &str, known: &Remembered) -> Result<()> {
    let aside = folder.join(format!("{name}.json.new"));
    fs::write(&aside, render(known)?)
        .and_then(|()| fs::rename(&aside, file(folder, name)))
        .with_context(|| format!("cannot write {}", file(folder, name).display()))
}

/// Forgets a server.
pub(crate) fn forget(folder: &Path, name: &str) -> Result<()> {
    let path = file(folder, name);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

fn render(known: &Remembered) -> Result<String> {
    let dir = known.dir.to_str().context("the temporary folder's path is not UTF-8")?;
    for text in [known.url.as_str(), dir] {
        if text.chars().any(|c| c == '"' || c == '\\' || c.is_control()) {
            bail!("{text:?} holds a quote, backslash or control character");
        }
    }
    let Remembered { url, pid, .. } = known;
    Ok(format!("{{\n  \"url\": \"{url}\",\n  \"pid\": {pid},\n  \"dir\": \"{dir}\"\n}}\n"))
}

fn parse(text: &str) -> Result<Remembered> {
    let url = value(text, "url")?.to_owned();
    let pid = value(text, "pid")?.parse().context("`pid` is not a process id")?;
    let dir = PathBuf::from(value(text, "dir")?);
    Ok(Remembered { url, pid, dir })
}

/// The value of one field, of which [`render`] writes one per line.
fn value<'a>(text: &'a str, field: &str) -> Result<&'a str> {
    text.lines()
        .find_map(|line| line.trim().strip_prefix(&format!("\"{field}\": ")))
        .map(|rest| rest.trim_end_matches(',').trim_matches('"'))
        .filter(|value| !value.is_empty())
        .with_context(|| format!("field `{field}` is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Remembered {
        Remembered {
            url: "postgres://postgres@127.0.0.1:40123/postgres".to_owned(),
            pid: 4711,
            dir: PathBuf::from("/tmp/onceward pg,1"),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(parse(&render(&sample()).unwrap()).unwrap(), sample());
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_the_field() {
        let text = render(&sample()).unwrap();
        for field in ["url", "pid", "dir"] {
            let damaged = text.replace(field, "else");
            let error = parse(&damaged).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        parse(&text.replace("4711", "x")).expect_err("a pid is a number");
    }

    #[test]
    fn what_could_not_be_read_back_is_refused() {
        let quoted = Remembered { dir: PathBuf::from("/tmp/a\"b"), ..sample() };
        render(&quoted).expect_err("a quote would end the string");
    }
}
