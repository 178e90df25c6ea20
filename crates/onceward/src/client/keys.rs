//! Keys: made at random, or kept in a file so that a process that starts anew goes on with them.
//!
//! The file is a log of lines that is synced before a key is handed out: a key that was sent is a
//! key that is on the disk. One process holds a file at a time. A line that a crash cut short was
//! never answered for, so it is dropped; any other line that can't be read is an error, because the
//! keys in it may have been sent.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::engine::random_u64;

/// Names that a store may hold.
pub const KEYS_MAX: usize = 100_000;
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 512;
/// Lines beyond twice the live ones before the log is written anew.
const SPARE_LINES: usize = 1_024;

/// A new key, in the form of a random UUID.
#[must_use]
pub fn new_key() -> String {
    let (high, low) = (random_u64(), random_u64());
    let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
    let (d, e) = (low >> 48 & 0x3fff | 0x8000, low & 0xffff_ffff_ffff);
    format!("{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{e:012x}")
}

/// Keys by name, in a file.
#[derive(Debug)]
pub struct KeyStore {
    path: PathBuf,
    log: Mutex<Log>,
    /// Held for as long as the store is open.
    _lock: File,
}

#[derive(Debug)]
struct Log {
    file: File,
    keys: BTreeMap<String, String>,
    lines: usize,
    /// A write failed: what is in the file is not known.
    broken: bool,
}

#[derive(Serialize, Deserialize)]
struct Line {
    name: String,
    key: Option<String>,
}

impl KeyStore {
    /// Opens a file of keys; it is made if need be.
    ///
    /// # Errors
    /// When the file can't be read, written or synced, is held by another process, or is damaged.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let lock = File::create(beside(&path, ".lock"))?;
        lock.try_lock().map_err(|error| {
            let text = format!("{}: another process holds these keys: {error}", path.display());
            io::Error::new(io::ErrorKind::WouldBlock, text)
        })?;
        let keys = match std::fs::read(&path) {
            Ok(bytes) => read(&bytes, &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let log = Log::rewrite(&path, keys)?;
        Ok(Self { path, log: Mutex::new(log), _lock: lock })
    }

    /// The key of this name; made, and synced to the disk, if there is none yet.
    ///
    /// # Errors
    /// When it can't be written, or a bound is broken.
    pub fn key(&self, name: &str) -> io::Result<String> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = log.keys.get(name) {
            return Ok(key.clone());
        }
        log.set(&self.path, name, Some(new_key()))
    }

    /// A new key for this name, in place of the old one: when a server advises `rotate` and the
    /// request is sent anew with what has changed.
    ///
    /// # Errors
    /// As [`KeyStore::key`].
    pub fn rotate(&self, name: &str) -> io::Result<String> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.set(&self.path, name, Some(new_key()))
    }

    /// Forgets a name: what it stood for is done and recorded.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if !log.keys.contains_key(name) {
            return Ok(());
        }
        log.set(&self.path, name, None).map(drop)
    }

    /// Names whose request has not been recorded as done: what a process that starts anew goes on
    /// with.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.keys.keys().cloned().collect()
    }
}

impl Log {
    /// Writes the live keys into a new file and puts it in the old one's place.
    fn rewrite(path: &Path, keys: BTreeMap<String, String>) -> io::Result<Self> {
        let fresh = beside(path, ".new");
        let mut text = Vec::new();
        for (name, key) in &keys {
            line(&mut text, name, Some(key))?;
        }
        let mut file = File::create(&fresh)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        sync_folder(path)?;
        let file = OpenOptions::new().append(true).open(path)?;
        Ok(Self { file, lines: keys.len(), keys, broken: false })
    }

    /// Sets or removes a key: on the disk first, then in memory.
    fn set(&mut self, path: &Path, name: &str, key: Option<String>) -> io::Result<String> {
        if self.broken {
            return Err(io::Error::other(format!("{}: open it again", path.display())));
        }
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            let text =
                format!("name has {} bytes, but must have 1 to {NAME_BYTES_MAX}", name.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if key.is_some() && self.keys.len() >= KEYS_MAX && !self.keys.contains_key(name) {
            let text = format!("keys are {KEYS_MAX}, the most there may be: forget what is done");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        let mut text = Vec::new();
        line(&mut text, name, key.as_deref())?;
        self.broken = true;
        self.file.write_all(&text)?;
        self.file.sync_data()?;
        self.broken = false;
        self.lines += 1;
        let set = key.clone().unwrap_or_default();
        match key {
            Some(key) => self.keys.insert(name.to_string(), key),
            None => self.keys.remove(name),
        };
        if self.lines > 2 * self.keys.len() + SPARE_LINES {
            *self = Self::rewrite(path, std::mem::take(&mut self.keys))?;
        }
        Ok(set)
    }
}

fn line(text: &mut Vec<u8>, name: &str, key: Option<&str>) -> io::Result<()> {
    let line = Line { name: name.to_string(), key: key.map(str::to_string) };
    serde_json::to_writer(&mut *text, &line)?;
    text.push(b'\n');
    Ok(())
}

fn read(bytes: &[u8], path: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut keys = BTreeMap::new();
    let mut lines = bytes.split(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((number, text)) = lines.next() {
        if lines.peek().is_none() {
            // Whatever follows the last line's end was cut short.
            break;
        }
        let line: Line = serde_json::from_slice(text).map_err(|error| {
            let text = format!("{}, line {}: {error}", path.display(), number + 1);
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        match line.key {
            Some(key) => keys.insert(line.name, key),
            None => keys.remove(&line.name),
        };
    }
    Ok(keys)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

/// Makes the file's name as durable as its bytes.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("onceward-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(test);
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn keys_look_like_random_uuids() {
        let key = new_key();
        assert_eq!((key.len(), &key[14..15]), (36, "4"));
        assert!(matches!(&key[19..20], "8" | "9" | "a" | "b"), "{key}");
        assert_ne!(key, new_key());
    }

    #[test]
    fn a_key_comes_back_after_a_restart_until_it_is_forgotten_or_rotated() {
        let path = path("restart");
        let keys = KeyStore::open(&path).unwrap();
        let (one, two) = (keys.key("one").unwrap(), keys.key("two\n\"x").unwrap());
        assert_eq!(keys.key("one").unwrap(), one);
        assert_ne!(one, two);
        drop(keys);
        let keys = KeyStore::open(&path).unwrap();
        assert_eq!(keys.key("one").unwrap(), one);
        let rotated = keys.rotate("one").unwrap();
        keys.forget("two\n\"x").unwrap();
        keys.forget("nobody").unwrap();
        drop(keys);
        let keys = KeyStore::open(&path).unwrap();
        assert_eq!((keys.key("one").unwrap(), keys.names()), (rotated, vec!["one".to_string()]));
    }

    #[test]
    fn a_line_that_a_crash_cut_short_is_dropped_and_a_damaged_one_is_an_error() {
        let path = path("torn");
        let keys = KeyStore::open(&path).unwrap();
        let one = keys.key("one").unwrap();
        keys.key("two").unwrap();
        drop(keys);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let keys = KeyStore::open(&path).unwrap();
        assert_eq!((keys.key("one").unwrap(), keys.names().len()), (one, 1));
        drop(keys);
        let mut damaged = whole;
        damaged[0] = b'x';
        std::fs::write(&path, &damaged).unwrap();
        let error = KeyStore::open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("line 1"), "{error}");
    }

    #[test]
    fn one_process_at_a_time() {
        let path = path("held");
        let keys = KeyStore::open(&path).unwrap();
        assert_eq!(KeyStore::open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(keys);
        KeyStore::open(&path).unwrap();
    }

    #[test]
    fn the_log_is_written_anew_when_most_of_it_is_history() {
        let path = path("compact");
        let keys = KeyStore::open(&path).unwrap();
        let mut last = String::new();
        for _ in 0..SPARE_LINES + 10 {
            last = keys.rotate("one").unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 20, "{lines}");
        assert_eq!(keys.key("one").unwrap(), last);
        drop(keys);
        assert_eq!(KeyStore::open(&path).unwrap().key("one").unwrap(), last);
    }

    #[test]
    fn names_are_bounded() {
        let keys = KeyStore::open(path("bounds")).unwrap();
        for name in ["", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert_eq!(keys.key(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
