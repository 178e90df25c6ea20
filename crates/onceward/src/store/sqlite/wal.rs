//! The write-ahead log, read as SQLite reads it when it opens a database: to tell a log that is
//! damaged from one that just ends.
//!
//! SQLite takes the frames up to the last commit before the first one whose checksum is wrong, and
//! drops the rest without a word: that is how the end of a log looks after a power loss. When a
//! whole commit of the same log stands behind such a break, that rule has dropped what was
//! written, and one flipped bit is enough for it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// What SQLite's file format says of the log.
const MAGIC: u32 = 0x377f_0682;
const VERSION: u32 = 3_007_000;
const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const PAGE_BYTES: std::ops::RangeInclusive<u32> = 512..=65_536;

/// The two random numbers that every frame of one log repeats. A log that starts again at its
/// beginning has others.
pub(super) type Salts = [u8; 8];

/// What a log holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Which log it is. None: it is empty, or its header is not whole.
    pub(super) salts: Option<Salts>,
    /// Frames up to the last commit that SQLite takes.
    pub(super) frames: u32,
    /// The first commit behind a break that is whole and belongs to the same log.
    pub(super) behind: Option<u32>,
}

/// The salts in the first bytes of a log, as they are.
pub(super) fn salts(header: &[u8]) -> Option<Salts> {
    header.get(16..24).and_then(|salts| salts.try_into().ok())
}

/// The salts of a log, if its frame of this number ends a commit of the same log. Others may have
/// begun the log anew since that frame was counted; an empty one has nothing.
pub(super) fn committed(log: &File, frame: u32) -> Option<Salts> {
    let mut head = [0; HEADER_BYTES];
    log.read_exact_at(&mut head, 0).ok()?;
    let header = Header::read(&head)?;
    let before = u64::from(frame.checked_sub(1)?);
    let frame_bytes = FRAME_HEADER_BYTES as u64 + u64::from(header.page_bytes);
    let mut frame = [0; FRAME_HEADER_BYTES];
    log.read_exact_at(&mut frame, HEADER_BYTES as u64 + before * frame_bytes).ok()?;
    let same = frame[8..16] == header.salts && word(&frame, 4, true) > 0;
    same.then_some(header.salts)
}

/// Walks a log. `page_bytes` is the size of the database's pages, for a log whose header is not
/// whole.
pub(super) fn walk(mut log: impl Read, page_bytes: u32) -> io::Result<Walk> {
    let mut head = [0; HEADER_BYTES];
    if !fill(&mut log, &mut head)? {
        return Ok(Walk::default());
    }
    let header = Header::read(&head);
    let page_bytes = header.map_or(page_bytes, |header| header.page_bytes);
    if !PAGE_BYTES.contains(&page_bytes) {
        return Ok(Walk::default());
    }
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes as usize];
    let mut place = Place::new(header);
    while fill(&mut log, &mut frame)? {
        place.pass(&frame);
    }
    Ok(place.walk)
}

/// Where a walk is.
struct Place {
    walk: Walk,
    /// The number of the latest frame.
    number: u32,
    /// The orders of bytes in which the checksums may be: which one, a whole header tells.
    orders: Vec<Order>,
    /// The salts that the next frame must have.
    salts: Option<Salts>,
    /// Whether SQLite reads on.
    whole: bool,
    /// The checksum that stands in the latest frame.
    stored: Sum,
}

/// One way of reading checksums, with the sum over all that was passed.
struct Order {
    big: bool,
    sum: Sum,
}

impl Place {
    fn new(header: Option<Header>) -> Self {
        let orders = match header {
            Some(header) => vec![Order { big: header.big, sum: header.sum }],
            None => [false, true].map(|big| Order { big, sum: Sum::default() }).into(),
        };
        let salts = header.map(|header| header.salts);
        let stored = header.map(|header| header.sum).unwrap_or_default();
        let walk = Walk { salts, ..Walk::default() };
        Self { walk, number: 0, orders, salts, whole: header.is_some(), stored }
    }

    fn pass(&mut self, frame: &[u8]) {
        self.number += 1;
        let salts = [8, 9, 10, 11, 12, 13, 14, 15].map(|at| frame[at]);
        let (page, commits) = (word(frame, 0, true), word(frame, 4, true) > 0);
        let stored = Sum(word(frame, 16, true), word(frame, 20, true));
        let same = self.salts.is_none_or(|known| known == salts) && page > 0;
        // Behind a break a frame may follow from what stands in the one before it, or from what
        // should stand there.
        let (mut goes_on, mut follows) = (false, false);
        for order in &mut self.orders {
            // As long as all is whole, the two are the same.
            follows |= !self.whole && self.stored.over(frame, order.big) == stored;
            order.sum = order.sum.over(frame, order.big);
            goes_on |= order.sum == stored;
        }
        self.whole &= same && goes_on;
        if self.whole && commits {
            self.walk.frames = self.number;
        }
        // The first frame of a log without a header follows from nothing.
        let known = self.walk.salts.is_some() || self.number > 1;
        if !self.whole && known && same && commits && (goes_on || follows) {
            self.walk.behind.get_or_insert(self.number);
        }
        if self.walk.salts.is_none() {
            self.salts = Some(salts);
        }
        self.stored = stored;
    }
}

/// A header that is whole.
#[derive(Clone, Copy)]
struct Header {
    big: bool,
    page_bytes: u32,
    salts: Salts,
    sum: Sum,
}

impl Header {
    fn read(head: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = word(head, 0, true);
        let big = magic & 1 == 1;
        let page_bytes = word(head, 8, true);
        let sum = Sum::default().add(&head[..24], big);
        let whole = magic & !1 == MAGIC
            && word(head, 4, true) == VERSION
            && page_bytes.is_power_of_two()
            && PAGE_BYTES.contains(&page_bytes)
            && sum == Sum(word(head, 24, true), word(head, 28, true));
        whole.then_some(Self { big, page_bytes, salts: salts(head)?, sum })
    }
}

/// SQLite's checksum of a log: two sums that feed each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u32, u32);

impl Sum {
    fn add(self, bytes: &[u8], big: bool) -> Self {
        let Self(mut first, mut second) = self;
        for pair in bytes.chunks_exact(8) {
            first = first.wrapping_add(word(pair, 0, big)).wrapping_add(second);
            second = second.wrapping_add(word(pair, 4, big)).wrapping_add(first);
        }
        Self(first, second)
    }

    /// The sum over a frame: its page, and what its header says of it.
    fn over(self, frame: &[u8], big: bool) -> Self {
        self.add(&frame[..8], big).add(&frame[FRAME_HEADER_BYTES..], big)
    }
}

fn word(bytes: &[u8], at: usize, big: bool) -> u32 {
    let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
}

/// Reads so many bytes. False at the end.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(into) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 512;
    const FRAME: usize = FRAME_HEADER_BYTES + PAGE;
    const SALTS: Salts = *b"saltsalt";

    /// A log of these frames, each a commit or not, as SQLite writes it.
    fn log(commits: &[bool], salts: Salts, big: bool) -> Vec<u8> {
        let mut log = Vec::new();
        for word in [MAGIC | u32::from(big), VERSION, 512, 0] {
            log.extend(word.to_be_bytes());
        }
        log.extend(salts);
        let mut sum = Sum::default().add(&log, big);
        let put = |log: &mut Vec<u8>, sum: Sum| {
            log.extend(sum.0.to_be_bytes());
            log.extend(sum.1.to_be_bytes());
        };
        put(&mut log, sum);
        for (number, commit) in commits.iter().enumerate() {
            let mut head = (number as u32 + 1).to_be_bytes().to_vec();
            head.extend(u32::from(*commit).to_be_bytes());
            let page = vec![number as u8 + 1; PAGE];
            sum = sum.add(&head, big).add(&page, big);
            log.extend(head);
            log.extend(salts);
            put(&mut log, sum);
            log.extend(page);
        }
        log
    }

    fn walked(log: &[u8]) -> Walk {
        walk(log, PAGE as u32).unwrap()
    }

    /// Where the frame of a number begins.
    fn at(number: usize) -> usize {
        HEADER_BYTES + (number - 1) * FRAME
    }

    #[test]
    fn a_whole_log_is_read_to_its_last_commit() {
        for big in [false, true] {
            let table: [(&[bool], u32); 5] = [
                (&[], 0),
                (&[false], 0),
                (&[true], 1),
                (&[false, true, true, false], 3),
                (&[true, false, false], 1),
            ];
            for (commits, frames) in table {
                let expected = Walk { salts: Some(SALTS), frames, behind: None };
                assert_eq!(walked(&log(commits, SALTS, big)), expected, "{commits:?}");
            }
        }
        assert_eq!(walked(&[]), Walk::default());
        assert_eq!(walked(&[0; 4_096]), Walk::default());
    }

    #[test]
    fn m1_only_a_commit_of_the_log_that_is_there_is_noted() {
        let name = format!("onceward-wal-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut bytes = log(&[true; 9], *b"earliers", false);
        let later = log(&[true, false, true], SALTS, false);
        let found = |bytes: &[u8], frame| {
            std::fs::write(&path, bytes).unwrap();
            committed(&File::open(&path).unwrap(), frame)
        };
        assert_eq!(found(&bytes, 9), Some(*b"earliers"));
        // Somebody else began it anew since the frames were counted.
        bytes[..later.len()].copy_from_slice(&later);
        let (one, three) = (found(&bytes, 1), found(&bytes, 3));
        assert_eq!((one, three), (Some(SALTS), Some(SALTS)));
        for frame in [0, 2, 4, 9, 10] {
            assert_eq!(found(&bytes, frame), None, "{frame}");
        }
        assert_eq!(found(&[], 1), None);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn m1_a_flipped_bit_before_a_commit_is_told_from_a_torn_end() {
        let commits = [false, true, true, false, true];
        for big in [false, true] {
            let whole = log(&commits, SALTS, big);
            for byte in 0..whole.len() {
                let mut damaged = whole.clone();
                damaged[byte] ^= 1 << (byte % 8);
                let walk = walked(&damaged);
                // In the last commit's own frame nothing stands behind it.
                assert_eq!(walk.behind.is_some(), byte < at(5), "byte {byte}: {walk:?}");
                let commits_before = [at(3), at(4)].map(|end| usize::from(byte >= end));
                let frames = [0, 2, 3][commits_before.iter().sum::<usize>()];
                assert_eq!(walk.frames, frames, "byte {byte}");
            }
        }
    }

    #[test]
    fn m1_a_log_that_ends_anywhere_is_no_damage() {
        let whole = log(&[false, true, true, false, true], SALTS, false);
        for length in 0..whole.len() {
            assert_eq!(walked(&whole[..length]).behind, None, "{length}");
            // What a file system leaves that had made room for the rest.
            let mut zeros = whole.clone();
            zeros[length..].fill(0);
            assert_eq!(walked(&zeros).behind, None, "{length}");
        }
    }

    #[test]
    fn m1_what_an_earlier_log_left_is_no_damage() {
        let mut earlier = log(&[true; 9], *b"earliers", false);
        let later = log(&[true, false, true], SALTS, false);
        earlier[..later.len()].copy_from_slice(&later);
        let expected = Walk { salts: Some(SALTS), frames: 3, behind: None };
        assert_eq!(walked(&earlier), expected);
        // Nor is a commit that was cut short and overwritten by a shorter one.
        let mut cut = log(&[true, false, false, false, true], SALTS, false);
        let length = cut.len();
        cut[length - 9..].fill(0);
        let shorter = log(&[true, true], SALTS, false);
        cut[at(3)..at(4)].fill(7);
        cut[..shorter.len()].copy_from_slice(&shorter);
        assert_eq!(walked(&cut).behind, None);
    }
}
