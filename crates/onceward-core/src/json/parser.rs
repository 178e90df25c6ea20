//! The strict JSON parser.
//!
//! Rule: what is accepted is exactly RFC 8259 within the limits of `canonical.rs`, and no object
//! with duplicate keys (compared after unescaping). The first thing found wrong is the error.
//!
//! Not responsible for the grammar and spelling of numbers: `json/number.rs` does that.

use std::cmp::Ordering;

use super::{IN_ORDER, Node, Span, Tape, key_order, number, short, utf16_rank};
use crate::canonical::{CanonicalError, MAX_JSON_DEPTH, NotCanonical, NotJson};

/// A one in each of eight bytes.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Parses a whole document.
pub(super) fn parse(input: &str) -> Result<Tape<'_>, CanonicalError> {
    Parser::new(input).document()
}

/// Where the plain part of a string ends: at a quote, a backslash, a control character or the end.
///
/// Eight bytes at a time: a byte of `tested & HIGH` is set where the byte is below the bound. A
/// borrow can only disturb bytes above a true hit, so the lowest hit is always right.
pub(crate) fn plain_end(bytes: &[u8], from: usize) -> usize {
    const HIGH: u64 = 0x80 * ONES;
    let mut at = from;
    while let Some(&eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(eight);
        let control = word.wrapping_sub(ONES * 0x20) & !word;
        let quote = word ^ (ONES * 0x22);
        let quote = quote.wrapping_sub(ONES) & !quote;
        let slash = word ^ (ONES * 0x5C);
        let slash = slash.wrapping_sub(ONES) & !slash;
        let hits = (control | quote | slash) & HIGH;
        if hits != 0 {
            return at + (hits.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bytes.len() && !matches!(bytes[at], b'"' | b'\\' | 0x00..=0x1f) {
        at += 1;
    }
    at
}

/// The first eight bytes of a key as a number that sorts like them. A shorter key is filled up with
/// zeros, so equal prefixes settle nothing.
fn key_prefix(key: &[u8]) -> u64 {
    let word = if let Some(&eight) = key.first_chunk::<8>() {
        u64::from_be_bytes(eight)
    } else {
        // At most seven bytes. A copy of that few costs more than this.
        let shift = |word: u64, &byte: &u8| (word | u64::from(byte)) << 8;
        key.iter().fold(0, shift) << (8 * (7 - key.len()))
    };
    if word & (0x80 * ONES) == 0 {
        return word;
    }
    u64::from_be_bytes(word.to_be_bytes().map(utf16_rank))
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    tape: Tape<'a>,
    /// Keys of the objects that are still open, innermost last.
    open_keys: Vec<OpenKey>,
    /// Room for the digits of one number.
    digits: String,
    /// How often the input was found to be not canonical so far: space, spelling, order.
    deviations: usize,
}

/// What is remembered of a container while its inside is parsed.
struct Opened {
    start: usize,
    slot: usize,
    deviations: usize,
}

/// A key of an object that is not finished, with the start of its text: comparing two numbers
/// settles nearly every comparison without looking at the text.
#[derive(Clone, Copy)]
struct OpenKey {
    prefix: u64,
    node: u32,
}

impl<'a> Parser<'a> {
    fn new(input: &'a str) -> Self {
        let tape = Tape {
            input,
            scratch: String::new(),
            // Business documents have about one node in nine bytes; more grows by itself.
            nodes: Vec::with_capacity(input.len() / 8 + 4),
            orders: Vec::with_capacity(32),
        };
        Self {
            bytes: input.as_bytes(),
            at: 0,
            depth: 0,
            tape,
            open_keys: Vec::with_capacity(16),
            digits: String::new(),
            deviations: 0,
        }
    }

    fn document(mut self) -> Result<Tape<'a>, CanonicalError> {
        self.skip_space();
        self.value()?;
        self.skip_space();
        if self.at < self.bytes.len() {
            return Err(CanonicalError::not_json(self.at, NotJson::Trailing));
        }
        Ok(self.tape)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
            self.deviations += 1;
        }
    }

    /// The error for a byte that cannot stand here, or for the end.
    fn unexpected(&self) -> CanonicalError {
        let reason = self.peek().map_or(NotJson::End, NotJson::Byte);
        CanonicalError::not_json(self.at, reason)
    }

    fn value(&mut self) -> Result<(), CanonicalError> {
        match self.peek() {
            Some(b'"') => self.string().map(|_| ()),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            _ => Err(self.unexpected()),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), CanonicalError> {
        let start = self.at;
        for &expected in word {
            if self.peek() != Some(expected) {
                return Err(self.unexpected());
            }
            self.at += 1;
        }
        self.tape.nodes.push(Node::Plain { source: Span::new(start, self.at) });
        Ok(())
    }

    fn number(&mut self) -> Result<(), CanonicalError> {
        let start = self.at;
        let literal = number::scan(self.bytes, start)?;
        self.at = literal.end;
        let source = Span::new(start, literal.end);
        let written = self.tape.scratch.len();
        let node = match number::spell(
            &self.tape.input[start..literal.end],
            &literal,
            &mut self.digits,
            &mut self.tape.scratch,
        ) {
            Some(number::Spelling::AsWritten) => Node::Plain { source },
            Some(number::Spelling::Scratch) => {
                let scratch = Span::new(written, self.tape.scratch.len());
                self.deviations += 1;
                Node::Respelled { source, scratch }
            }
            None => return Err(CanonicalError::not_canonical(start, NotCanonical::NumberRange)),
        };
        self.tape.nodes.push(node);
        Ok(())
    }

    fn enter(&mut self) -> Result<Opened, CanonicalError> {
        if self.depth == MAX_JSON_DEPTH {
            return Err(CanonicalError::not_canonical(self.at, NotCanonical::TooDeep));
        }
        self.depth += 1;
        let (start, slot) = (self.at, self.tape.nodes.len());
        let opened = Opened { start, slot, deviations: self.deviations };
        // A place-holder; leaving the container replaces it.
        self.tape.nodes.push(Node::Plain { source: Span::new(start, start) });
        self.at += 1;
        self.skip_space();
        Ok(opened)
    }

    /// Goes past the closing bracket. Answers the source, the next node, and if it is verbatim.
    fn leave(&mut self, opened: &Opened) -> (Span, u32, bool) {
        self.at += 1;
        self.depth -= 1;
        let next = short(self.tape.nodes.len());
        (Span::new(opened.start, self.at), next, self.deviations == opened.deviations)
    }

    fn array(&mut self) -> Result<(), CanonicalError> {
        let opened = self.enter()?;
        if self.peek() != Some(b']') {
            loop {
                self.value()?;
                if !self.comma_or(b']')? {
                    break;
                }
            }
        }
        let (source, next, verbatim) = self.leave(&opened);
        self.tape.nodes[opened.slot] = Node::Array { source, next, verbatim };
        Ok(())
    }

    fn object(&mut self) -> Result<(), CanonicalError> {
        let opened = self.enter()?;
        let first_key = self.open_keys.len();
        if self.peek() != Some(b'}') {
            loop {
                self.key()?;
                self.value()?;
                if !self.comma_or(b'}')? {
                    break;
                }
            }
        }
        let order = self.close_keys(first_key)?;
        let (source, next, verbatim) = self.leave(&opened);
        self.tape.nodes[opened.slot] = Node::Object { source, next, order, verbatim };
        Ok(())
    }

    /// A key and the colon after it.
    fn key(&mut self) -> Result<(), CanonicalError> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected());
        }
        let (start, node) = (self.at + 1, self.tape.nodes.len());
        let is_escaped = self.string()?;
        // A plain key is taken from the input: its node was written only just now.
        let text = &self.bytes[start..self.at - 1];
        let prefix = key_prefix(if is_escaped { self.tape.text_bytes(node) } else { text });
        self.open_keys.push(OpenKey { prefix, node: short(node) });
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.unexpected());
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// After a member or an item: true at a comma, false at the end of the container.
    fn comma_or(&mut self, end: u8) -> Result<bool, CanonicalError> {
        self.skip_space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.skip_space();
                Ok(true)
            }
            Some(byte) if byte == end => Ok(false),
            _ => Err(self.unexpected()),
        }
    }

    /// Puts the keys of a finished object in order and refuses duplicates.
    fn close_keys(&mut self, first_key: usize) -> Result<u32, CanonicalError> {
        let tape = &self.tape;
        let compare = |a: &OpenKey, b: &OpenKey| {
            a.prefix.cmp(&b.prefix).then_with(|| {
                key_order(tape.text_bytes(a.node as usize), tape.text_bytes(b.node as usize))
            })
        };
        let keys = &mut self.open_keys[first_key..];
        let order = if keys.is_sorted_by(|a, b| compare(a, b) == Ordering::Less) {
            IN_ORDER
        } else {
            // The sort is by key, then by position, so that of two equal keys the second is named.
            keys.sort_unstable_by(|a, b| compare(a, b).then(a.node.cmp(&b.node)));
            let twin = keys.windows(2).find(|pair| compare(&pair[0], &pair[1]).is_eq());
            if let Some(twin) = twin {
                let offset = tape.nodes[twin[1].node as usize].source().start as usize;
                return Err(CanonicalError::not_canonical(offset, NotCanonical::DuplicateKey));
            }
            self.deviations += 1;
            let order = short(self.tape.orders.len());
            self.tape.orders.push(short(keys.len()));
            self.tape.orders.extend(keys.iter().map(|key| key.node));
            order
        };
        self.open_keys.truncate(first_key);
        Ok(order)
    }

    /// A string. Answers whether it had escapes.
    fn string(&mut self) -> Result<bool, CanonicalError> {
        let quote = self.at;
        let start = quote + 1;
        self.at = plain_end(self.bytes, start);
        if self.peek() == Some(b'"') {
            self.at += 1;
            self.tape.nodes.push(Node::Text { source: Span::new(quote, self.at) });
            return Ok(false);
        }
        let written = self.tape.scratch.len();
        let mut from = start;
        loop {
            self.tape.scratch.push_str(&self.tape.input[from..self.at]);
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(byte) => {
                    return Err(CanonicalError::not_json(self.at, NotJson::Control(byte)));
                }
                None => return Err(self.unexpected()),
            }
            from = self.at;
            self.at = plain_end(self.bytes, from);
        }
        self.at += 1;
        let scratch = Span::new(written, self.tape.scratch.len());
        let source = Span::new(quote, self.at);
        self.deviations += 1;
        self.tape.nodes.push(Node::Escaped { source, scratch });
        Ok(true)
    }

    fn escape(&mut self) -> Result<(), CanonicalError> {
        let backslash = self.at;
        let wrong = || CanonicalError::not_json(backslash, NotJson::Escape);
        self.at += 1;
        let plain = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                let unit = self.hex4().ok_or_else(wrong)?;
                let decoded = self.surrogates(unit);
                let lone = || CanonicalError::not_canonical(backslash, NotCanonical::LoneSurrogate);
                let character = decoded.ok_or_else(lone)?;
                self.tape.scratch.push(character);
                return Ok(());
            }
            Some(_) => return Err(wrong()),
            None => return Err(self.unexpected()),
        };
        self.at += 1;
        self.tape.scratch.push(plain);
        Ok(())
    }

    /// The character of a code unit, reading the second half of a pair if it is a first half.
    fn surrogates(&mut self, unit: u32) -> Option<char> {
        if !(0xD800..0xDC00).contains(&unit) {
            return char::from_u32(unit);
        }
        if !self.bytes[self.at..].starts_with(b"\\u") {
            return None;
        }
        self.at += 2;
        let low = self.hex4().filter(|low| (0xDC00..0xE000).contains(low))?;
        char::from_u32(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |unit, &digit| Some(unit << 4 | char::from(digit).to_digit(16)?))
    }
}
