//! Which header blocks of an HTTP/2 connection hold a pseudo-header (RFC 7541).
//!
//! A block can only be read by someone who has read all before it: fields are sent as places in a
//! table that the blocks themselves fill. Of each entry only its size, the length of its name and
//! whether that is a pseudo-header's are kept; no name or value is.

use std::collections::VecDeque;

/// How large the table may be: what the library never says otherwise.
const TABLE_BYTES_MAX: u32 = 4_096;
/// What an entry counts beside its name and value.
const ENTRY_BYTES: u32 = 32;
/// The first entries of the fixed table are the pseudo-headers.
const PSEUDO_MAX: u32 = 14;
/// The lengths of the names in the fixed table (RFC 7541, appendix A).
const NAME_BYTES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];
/// How many characters have a code of so many bits (RFC 7541, appendix B): the code is canonical,
/// so that this is all it takes to tell where each character ends. The last is the end of string.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];
/// The code of a colon, in seven bits.
const COLON: u8 = 0x5c;

/// What was read of a connection's blocks so far.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    bytes: u32,
    bytes_max: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    name: Name,
    bytes: u32,
}

#[derive(Debug, Clone, Copy)]
struct Name {
    bytes: u32,
    is_pseudo: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: VecDeque::new(), bytes: 0, bytes_max: TABLE_BYTES_MAX }
    }
}

impl Table {
    /// Reads the next block: whether it holds a pseudo-header. None when it can't be read, and so
    /// none behind it can.
    pub(super) fn read(&mut self, mut block: &[u8]) -> Option<bool> {
        let mut has_pseudo = false;
        while let Some(first) = block.first() {
            let name = match first {
                0x80.. => self.name(integer(&mut block, 7)?)?,
                0x40.. => {
                    let name = self.literal_name(&mut block, 6)?;
                    let value = text(&mut block)?.bytes;
                    self.keep(name, value);
                    name
                }
                0x20.. => {
                    let size = integer(&mut block, 5)?;
                    if size > TABLE_BYTES_MAX {
                        return None;
                    }
                    self.bytes_max = size;
                    self.shrink(size);
                    continue;
                }
                _ => {
                    let name = self.literal_name(&mut block, 4)?;
                    text(&mut block)?;
                    name
                }
            };
            has_pseudo |= name.is_pseudo;
        }
        Some(has_pseudo)
    }

    fn literal_name(&self, block: &mut &[u8], bits: u32) -> Option<Name> {
        match integer(block, bits)? {
            0 => text(block),
            place => self.name(place),
        }
    }

    fn name(&self, place: u32) -> Option<Name> {
        let place = place.checked_sub(1)? as usize;
        match NAME_BYTES.get(place) {
            Some(bytes) => {
                Some(Name { bytes: u32::from(*bytes), is_pseudo: place < PSEUDO_MAX as usize })
            }
            None => self.entries.get(place - NAME_BYTES.len()).map(|entry| entry.name),
        }
    }

    /// The newest entry is the first; the oldest make room for it.
    fn keep(&mut self, name: Name, value_bytes: u32) {
        let bytes = name.bytes.saturating_add(value_bytes).saturating_add(ENTRY_BYTES);
        self.shrink(self.bytes_max.saturating_sub(bytes));
        if bytes <= self.bytes_max {
            self.bytes += bytes;
            self.entries.push_front(Entry { name, bytes });
        }
    }

    fn shrink(&mut self, most: u32) {
        while self.bytes > most {
            let Some(oldest) = self.entries.pop_back() else { return };
            self.bytes -= oldest.bytes;
        }
    }
}

/// A number whose first bits share a byte with something else (section 5.1).
fn integer(block: &mut &[u8], bits: u32) -> Option<u32> {
    let full = (1_u32 << bits) - 1;
    let mut number = u32::from(next(block)?) & full;
    if number < full {
        return Some(number);
    }
    for shift in [0, 7, 14, 21] {
        let byte = u32::from(next(block)?);
        number += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn next(block: &mut &[u8]) -> Option<u8> {
    let (first, rest) = block.split_first()?;
    *block = rest;
    Some(*first)
}

/// A text (section 5.2): how long it is once decoded, and whether a pseudo-header is named so.
fn text(block: &mut &[u8]) -> Option<Name> {
    let is_coded = block.first()? & 0x80 != 0;
    let length = integer(block, 7)? as usize;
    let (text, rest) = block.split_at_checked(length)?;
    *block = rest;
    let first = text.first().copied().unwrap_or_default();
    Some(match is_coded {
        true => Name { bytes: decoded_bytes(text), is_pseudo: first >> 1 == COLON },
        false => Name { bytes: u32::try_from(length).ok()?, is_pseudo: first == b':' },
    })
}

/// How many characters a coded text has; what is left at its end is padding.
fn decoded_bytes(text: &[u8]) -> u32 {
    let (mut characters, mut code, mut first, mut bits) = (0, 0_u32, 0_u32, 0);
    for byte in text {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            first <<= 1;
            bits += 1;
            let codes = CODES.get(bits).copied().unwrap_or_default();
            if bits < CODES.len() && code.wrapping_sub(first) >= codes {
                first += codes;
                continue;
            }
            characters += 1;
            (code, first, bits) = (0, 0, 0);
        }
    }
    characters
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7541, appendix C.4 and C.6: coded texts and their lengths.
    #[test]
    fn coded_texts_have_the_length_of_what_they_stand_for() {
        for (text, length) in [
            (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..], 15),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], 8),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], 10),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf], 12),
            (&[0x64, 0x02], 3),
            (&[0xae, 0xc3, 0x77, 0x1a, 0x4b], 7),
            (&[], 0),
        ] {
            assert_eq!(decoded_bytes(text), length, "{text:x?}");
        }
        let all: u64 = CODES.iter().map(|codes| u64::from(*codes)).sum();
        let room = |(bits, codes): (usize, &u32)| u64::from(*codes) << (30 - bits);
        let filled: u64 = CODES.iter().enumerate().map(room).sum();
        assert_eq!((all, filled), (257, 1 << 30), "a full code of 257 characters");
    }

    /// RFC 7541, appendix C.3: three requests on one connection.
    #[test]
    fn pseudo_headers_are_known_by_place_by_name_and_by_what_was_kept() {
        let mut table = Table::default();
        let first = b"\x82\x86\x84\x41\x0fwww.example.com";
        assert_eq!(table.read(first), Some(true));
        assert_eq!((table.entries.len(), table.bytes), (1, 57));
        // Kept by the first: the newest entry has place 62.
        assert_eq!(table.read(b"\xbe"), Some(true));
        assert_eq!(table.read(b"\x58\x08no-cache"), Some(false));
        assert_eq!((table.entries.len(), table.bytes), (2, 110));
        assert_eq!((table.read(b"\xbe"), table.read(b"\xbf")), (Some(false), Some(true)));
        assert_eq!(table.read(b"\x40\x0acustom-key\x0ccustom-value"), Some(false));
        assert_eq!((table.entries.len(), table.bytes), (3, 164));
        // Named anew: plain, and coded.
        assert_eq!(table.read(b"\x00\x05:path\x01/"), Some(true));
        assert_eq!(table.read(b"\x10\x84\xb9\x58\xd3\x3f\x01/"), Some(true));
        assert_eq!(table.read(b"\x0f\x2a\x01x"), Some(false), "a place of more than one byte");
        // Without room nothing is kept, and what was kept is gone.
        assert_eq!(table.read(b"\x20"), Some(false));
        assert_eq!((table.entries.len(), table.bytes), (0, 0));
        assert_eq!(table.read(b"\xbe"), None);
    }

    #[test]
    fn what_can_not_be_read_is_none() {
        for bad in [
            &b"\x80"[..],
            b"\xff",
            b"\xff\xff\xff\xff\xff\xff",
            b"\x41\x05abc",
            b"\x00\x01",
            b"\x3f\xe2\x1f",
            b"\xbe",
        ] {
            assert_eq!(Table::default().read(bad), None, "{bad:x?}");
        }
    }
}
