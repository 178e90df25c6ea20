//! `PATH.reach`: what the database had reached when its files were last known to be whole, noted
//! beside it, so that an older copy or a cut log is told when it is opened.
//!
//! Rule: the note is never ahead of what is on the disk. It is written after the sync of what it
//! tells, about once a second, so it may be behind, and what came after it is not watched over. It
//! may be absent: then nothing is compared. Two places in the file are written in turns, each with
//! a number and a checksum: whatever becomes of one write, the note before it is still there.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use onceward_core::codec::{SEAL_BYTES, seal_parts};

use rusqlite::{Connection, OptionalExtension};

use super::wal::{Salts, Walk};
use super::{open, rows, sql};
use crate::points::{Point, reach};

/// What a note of this version begins with.
const MAGIC: &[u8; 8] = b"onreach1";
const PLACE_BYTES: usize = 64;
const BODY_BYTES: usize = PLACE_BYTES - SEAL_BYTES;
/// The two places, in blocks of their own: one write that is torn can't reach both.
const PLACES: [u64; 2] = [0, 4_096];
/// Stamps that may have been dealt after the last note was written: four times what a second
/// brings.
const STAMPS_AHEAD: u64 = 1 << 22;

/// The numbers of a database that only rise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) stamp: u64,
    pub(super) audit: u64,
    pub(super) now: u64,
}

impl Reached {
    /// Whether something of the other is missing here.
    fn is_behind(self, other: Self) -> bool {
        self.stamp < other.stamp || self.audit < other.audit || self.now < other.now
    }
}

/// What a database has reached; none if it is new. Changes nothing, and knows every schema.
pub(super) fn reached(connection: &Connection) -> rusqlite::Result<Option<Reached>> {
    let there = "SELECT count(*) FROM sqlite_schema WHERE name = 'meta'";
    if connection.query_row(there, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    let read = connection.query_row(sql::READ_REACHED, [], |row| {
        let (stamp, audit) = (rows::number(row, 0)?, rows::number(row, 1)?);
        Ok(Reached { stamp, audit, now: rows::number(row, 2)? })
    });
    read.optional()
}

/// A part of a log that is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Synced {
    pub(super) salts: Salts,
    /// Frames up to a commit.
    pub(super) frames: u32,
}

/// What is noted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) reached: Reached,
    pub(super) synced: Option<Synced>,
    /// Whether the log was found damaged, and nobody has looked yet.
    pub(super) damaged: bool,
}

impl Note {
    fn encode(&self, number: u64) -> [u8; PLACE_BYTES] {
        let synced = self.synced.unwrap_or(Synced { salts: [0; 8], frames: 0 });
        let Reached { stamp, audit, now } = self.reached;
        let mut place = [0; PLACE_BYTES];
        place[..8].copy_from_slice(MAGIC);
        for (at, value) in [(8, number), (16, stamp), (24, audit), (32, now)] {
            place[at..at + 8].copy_from_slice(&value.to_be_bytes());
        }
        place[40..48].copy_from_slice(&synced.salts);
        place[48..52].copy_from_slice(&synced.frames.to_be_bytes());
        place[52] = u8::from(self.damaged);
        let seal = seal_parts(&[&place[..BODY_BYTES]]);
        place[BODY_BYTES..].copy_from_slice(&seal);
        place
    }

    /// The note in a place, and its number; none if it is not whole.
    fn decode(place: &[u8]) -> Option<(u64, Self)> {
        let (body, seal) = place.split_at_checked(BODY_BYTES)?;
        if body[..8] != MAGIC[..] || *seal != seal_parts(&[body]) {
            return None;
        }
        let number = |at: usize| body[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        let reached = Reached { stamp: number(16)?, audit: number(24)?, now: number(32)? };
        let salts: Salts = body[40..48].try_into().ok()?;
        let frames = body[48..52].try_into().map(u32::from_be_bytes).ok()?;
        let synced = (frames > 0).then_some(Synced { salts, frames });
        Some((number(8)?, Self { reached, synced, damaged: body[52] > 0 }))
    }
}

/// The note in the bytes of its file: the later of two. `Err` when there are bytes and no note.
fn latest(bytes: &[u8]) -> Result<Option<(u64, Note)>, ()> {
    let place = |at: u64| {
        let at = usize::try_from(at).ok()?;
        bytes.get(at..at + PLACE_BYTES)
    };
    let notes = PLACES.iter().filter_map(|at| Note::decode(place(*at)?));
    match notes.max_by_key(|(number, _)| *number) {
        None if !bytes.is_empty() => Err(()),
        latest => Ok(latest),
    }
}

/// The file that the note is in.
#[derive(Debug)]
pub(super) struct NoteFile {
    file: File,
    /// The number of the latest note.
    number: u64,
    /// What it says, if it could be read.
    pub(super) noted: Option<Note>,
    /// Goes into every note from now on.
    pub(super) damaged: bool,
}

impl NoteFile {
    /// Opens the note of a database. None when it has none and none is to be made. The second says
    /// whether what is there can't be read as a note.
    pub(super) fn open(database: &Path, make: bool) -> io::Result<(Option<Self>, bool)> {
        let path = open::beside(database, ".reach");
        let mut file = match open::open_ours(&path, make) {
            Err(error) if error.kind() == ErrorKind::NotFound && !make => return Ok((None, false)),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.by_ref().take(PLACES[1] + PLACE_BYTES as u64).read_to_end(&mut bytes)?;
        let latest = latest(&bytes);
        let unreadable = latest.is_err();
        let (number, noted) = latest.ok().flatten().map_or((0, None), |(n, note)| (n, Some(note)));
        let damaged = noted.is_some_and(|note| note.damaged);
        Ok((Some(Self { file, number, noted, damaged }), unreadable))
    }

    /// Writes a note and brings it to the disk.
    pub(super) fn write(&mut self, note: Note) -> io::Result<()> {
        let note = Note { damaged: self.damaged, ..note };
        let number = self.number + 1;
        reach(Point::BeforeNote);
        self.file
            .write_all_at(&note.encode(number), PLACES[usize::from(number.is_multiple_of(2))])?;
        reach(Point::NoteWritten);
        self.file.sync_data()?;
        (self.number, self.noted) = (number, Some(note));
        reach(Point::AfterNote);
        Ok(())
    }
}

/// What an opening finds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) noted: Option<Note>,
    /// The log, where nobody else may be writing to it.
    pub(super) log: Option<Walk>,
    /// What the database has reached, log included; none when it is new.
    pub(super) there: Option<Reached>,
}

/// What is to be said of what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// Nothing.
    Whole,
    /// The log breaks before commits: the first of them that is whole.
    Broken { after: u32, behind: u32 },
    /// The log has fewer frames than were synced to it.
    Short { frames: u32, noted: u32 },
    /// What is there has not reached what was noted.
    Older { there: Reached, noted: Reached },
}

impl Found {
    pub(super) fn judge(&self) -> Judged {
        let log = self.log.unwrap_or_default();
        if let Some(behind) = log.behind {
            return Judged::Broken { after: log.frames, behind };
        }
        let Some(noted) = self.noted else { return Judged::Whole };
        if let Some(Synced { salts, frames }) = noted.synced
            && log.salts == Some(salts)
            && log.frames < frames
        {
            return Judged::Short { frames: log.frames, noted: frames };
        }
        let there = self.there.unwrap_or_default();
        if there.is_behind(noted.reached) {
            return Judged::Older { there, noted: noted.reached };
        }
        Judged::Whole
    }

    /// The stamp that the next ones lie above: what is there, what was noted and may have been
    /// dealt since, and, so that fences rise after any copy was put back, the clock.
    pub(super) fn leap(&self, clock_ms: u64) -> u64 {
        let there = self.there.unwrap_or_default().stamp;
        let older = matches!(self.judge(), Judged::Whole).then_some(0);
        let noted = self.noted.map_or(0, |note| note.reached.stamp);
        let noted = older.unwrap_or(noted.saturating_add(STAMPS_AHEAD));
        let clock = clock_ms.saturating_mul(STAMPS_A_MS).min(LEAP_MAX);
        (there + 1).max(noted).max(clock)
    }
}

/// Stamps that a millisecond has room for, so that a stamp from the clock is above all that were
/// dealt before.
const STAMPS_A_MS: u64 = 1_024;
/// No clock, however wrong, takes stamps nearer than this to 2^53, up to which a number of JSON is
/// exact.
const LEAP_MAX: u64 = (1 << 53) - (1 << 43);

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(stamp: u64, audit: u64, now: u64) -> Reached {
        Reached { stamp, audit, now }
    }

    fn note(stamp: u64, frames: u32) -> Note {
        let synced = (frames > 0).then_some(Synced { salts: *b"saltsalt", frames });
        Note { reached: reached(stamp, 7, 1_000), synced, damaged: stamp == u64::MAX }
    }

    fn log(salts: &[u8; 8], frames: u32) -> Option<Walk> {
        Some(Walk { salts: Some(*salts), frames, behind: None })
    }

    #[test]
    fn a_note_is_read_back_and_any_flipped_bit_is_noticed() {
        for note in [Note::default(), note(51, 0), note(u64::MAX, u32::MAX)] {
            let place = note.encode(3);
            assert_eq!(Note::decode(&place), Some((3, note)));
            for byte in 0..PLACE_BYTES {
                let mut damaged = place;
                damaged[byte] ^= 1 << (byte % 8);
                assert_eq!(Note::decode(&damaged), None, "byte {byte}");
            }
            assert_eq!(Note::decode(&place[1..]), None);
        }
    }

    #[test]
    fn the_later_note_counts_and_a_torn_one_leaves_the_one_before() {
        let mut bytes = vec![0; PLACES[1] as usize + PLACE_BYTES];
        bytes[..PLACE_BYTES].copy_from_slice(&note(5, 0).encode(2));
        bytes[PLACES[1] as usize..].copy_from_slice(&note(4, 0).encode(1));
        assert_eq!(latest(&bytes), Ok(Some((2, note(5, 0)))));
        bytes[20] ^= 1;
        assert_eq!(latest(&bytes), Ok(Some((1, note(4, 0)))));
        bytes.truncate(PLACES[1] as usize);
        assert_eq!(latest(&bytes), Err(()));
        assert_eq!(latest(&[]), Ok(None));
    }

    #[test]
    #[rustfmt::skip]
    fn m1_h2_what_is_found_is_judged() {
        let (same, other) = (b"saltsalt", b"othersal");
        let behind = Some(Walk { salts: Some(*same), frames: 3, behind: Some(9) });
        let there = |stamp| Some(reached(stamp, 7, 1_000));
        let table = [
            // Without a note only a break in the log tells.
            (None, log(same, 3), there(5), Judged::Whole),
            (None, None, None, Judged::Whole),
            (None, behind, there(5), Judged::Broken { after: 3, behind: 9 }),
            // The note is behind, or level.
            (Some(note(5, 3)), log(same, 3), there(5), Judged::Whole),
            (Some(note(5, 3)), log(same, 9), there(8), Judged::Whole),
            // The log was cut, or started again: the database has it all.
            (Some(note(5, 3)), Some(Walk::default()), there(5), Judged::Whole),
            (Some(note(5, 3)), log(other, 1), there(6), Judged::Whole),
            // The same log, and less of it.
            (Some(note(5, 3)), log(same, 2), there(5), Judged::Short { frames: 2, noted: 3 }),
            (Some(note(5, 3)), log(same, 2), there(1), Judged::Short { frames: 2, noted: 3 }),
            // Less than was reached, by whatever way.
            (Some(note(5, 3)), Some(Walk::default()), there(4),
                Judged::Older { there: reached(4, 7, 1_000), noted: reached(5, 7, 1_000) }),
            (Some(note(5, 0)), None, Some(reached(9, 6, 1_000)),
                Judged::Older { there: reached(9, 6, 1_000), noted: reached(5, 7, 1_000) }),
            (Some(note(5, 0)), None, Some(reached(9, 9, 999)),
                Judged::Older { there: reached(9, 9, 999), noted: reached(5, 7, 1_000) }),
            (Some(note(5, 0)), None, None,
                Judged::Older { there: Reached::default(), noted: reached(5, 7, 1_000) }),
        ];
        for (noted, log, there, expected) in table {
            let found = Found { noted, log, there };
            assert_eq!(found.judge(), expected, "{found:?}");
        }
    }

    #[test]
    fn m9_stamps_leap_over_what_may_have_been_dealt() {
        let found = |noted, stamp| {
            let there = Some(reached(stamp, 7, 1_000));
            Found { noted, log: None, there }
        };
        assert_eq!(found(None, 5).leap(0), 6);
        assert_eq!(found(None, 5).leap(1_000), 1_024_000);
        assert_eq!(found(Some(note(5, 0)), 5).leap(0), 6);
        assert_eq!(found(Some(note(9, 0)), 5).leap(0), 9 + STAMPS_AHEAD);
        // A clock that is wrong by centuries leaves room below 2^53.
        assert_eq!(found(None, 5).leap(u64::MAX), LEAP_MAX);
        assert_eq!(found(None, LEAP_MAX + 5).leap(u64::MAX), LEAP_MAX + 6);
    }
}
