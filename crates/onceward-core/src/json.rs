//! A strict JSON parser into a flat tape of nodes that borrows from its input.
//!
//! Rule: what is accepted is exactly RFC 8259 within the limits of `canonical.rs`, each object's
//! members can be walked in RFC 8785 order, and no two of them have the same key. One body costs a
//! handful of allocations, however many values it has: this runs on every request.
//!
//! Not responsible for writing JSON (`canonical.rs`), nor for the spelling of numbers beyond
//! calling `json/number.rs` once per number.

mod number;
mod pointer;

use std::cmp::Ordering;

use crate::canonical::{CanonicalError, MAX_BODY_BYTES, MAX_JSON_DEPTH, NotCanonical, NotJson};

pub(crate) use pointer::{Flow, Pointer, Seen, walk_leaves};

/// One value, or one key of an object. A key is directly followed by its value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Node {
    Null,
    True,
    False,
    /// A number that is spelled canonically in the input.
    Number {
        source: Span,
    },
    /// A number whose canonical spelling is in the scratch text.
    NumberOwned {
        source: Span,
        scratch: Span,
    },
    /// A string without escapes: its canonical form is what stands in the input, quotes included.
    Text {
        source: Span,
    },
    /// A string that had escapes; the scratch text holds it unescaped.
    TextOwned {
        source: Span,
        scratch: Span,
    },
    Array {
        source: Span,
        next: u32,
    },
    Object {
        source: Span,
        next: u32,
        order: u32,
    },
}

/// A range of bytes. `MAX_BODY_BYTES` keeps every offset far below `u32::MAX`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        Self { start: short(start), end: short(end) }
    }

    fn of(self, text: &str) -> &str {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The members of this object already stand in canonical order.
const IN_ORDER: u32 = u32::MAX;

/// A parsed document. Node 0 is the whole value; a container is followed by what it holds.
#[derive(Debug)]
pub(crate) struct Tape<'a> {
    input: &'a str,
    scratch: String,
    nodes: Vec<Node>,
    /// For each object that is out of order: the number of members, then their keys in order.
    orders: Vec<u32>,
}

impl<'a> Tape<'a> {
    /// Parses a whole document.
    pub(crate) fn parse(input: &'a [u8]) -> Result<Self, CanonicalError> {
        if input.len() > MAX_BODY_BYTES {
            let reason = NotCanonical::TooLarge { bytes: input.len() };
            return Err(CanonicalError::not_canonical(MAX_BODY_BYTES, reason));
        }
        let text = std::str::from_utf8(input)
            .map_err(|error| CanonicalError::not_json(error.valid_up_to(), NotJson::Utf8))?;
        Parser::new(text).document()
    }

    pub(crate) fn node(&self, at: usize) -> Node {
        self.nodes[at]
    }

    pub(crate) fn source_len(&self) -> usize {
        self.input.len()
    }

    /// The text of a string (unescaped), or the canonical spelling of another scalar.
    pub(crate) fn text(&self, at: usize) -> &str {
        match self.nodes[at] {
            Node::Text { source } => {
                Span { start: source.start + 1, end: source.end - 1 }.of(self.input)
            }
            Node::NumberOwned { scratch, .. } | Node::TextOwned { scratch, .. } => {
                scratch.of(&self.scratch)
            }
            _ => self.source(at),
        }
    }

    /// A value as it stands in the input, without the space around it. If the input is canonical,
    /// so is this.
    pub(crate) fn source(&self, at: usize) -> &str {
        match self.nodes[at] {
            Node::Null => "null",
            Node::True => "true",
            Node::False => "false",
            Node::Number { source }
            | Node::NumberOwned { source, .. }
            | Node::Text { source }
            | Node::TextOwned { source, .. }
            | Node::Array { source, .. }
            | Node::Object { source, .. } => source.of(self.input),
        }
    }

    /// The keys of an object in canonical order. Each value is the node after its key.
    pub(crate) fn members(&self, at: usize) -> Children<'_> {
        match self.nodes[at] {
            Node::Object { next, order: IN_ORDER, .. } => {
                Children::Walk { nodes: &self.nodes, at: at + 1, end: next as usize, key: true }
            }
            Node::Object { order, .. } => {
                let order = order as usize;
                let count = self.orders[order] as usize;
                Children::Listed(self.orders[order + 1..=order + count].iter())
            }
            _ => Children::Listed([].iter()),
        }
    }

    /// The items of an array.
    pub(crate) fn items(&self, at: usize) -> Children<'_> {
        match self.nodes[at] {
            Node::Array { next, .. } => {
                Children::Walk { nodes: &self.nodes, at: at + 1, end: next as usize, key: false }
            }
            _ => Children::Listed([].iter()),
        }
    }
}

/// Walks what a container holds: the items of an array, the keys of an object.
pub(crate) enum Children<'t> {
    Walk { nodes: &'t [Node], at: usize, end: usize, key: bool },
    Listed(std::slice::Iter<'t, u32>),
}

impl Iterator for Children<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Self::Walk { nodes, at, end, key } => {
                if *at >= *end {
                    return None;
                }
                let found = *at;
                *at = after(nodes, found + usize::from(*key));
                Some(found)
            }
            Self::Listed(list) => list.next().map(|&at| at as usize),
        }
    }
}

/// RFC 8785 section 3.2.3: keys compare by UTF-16 code units.
///
/// UTF-8 bytes compare by code point, which is the same except that UTF-16 puts everything above
/// U+FFFF (lead bytes F0–F4) before U+E000–U+FFFF (lead bytes EE and EF). Lead bytes occur nowhere
/// else in UTF-8, so it is enough to move these two behind the others at the first difference.
pub(crate) fn key_order(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    match a.iter().zip(b).find(|(x, y)| x != y) {
        Some((&x, &y)) => utf16_rank(x).cmp(&utf16_rank(y)),
        None => a.len().cmp(&b.len()),
    }
}

const fn utf16_rank(byte: u8) -> u8 {
    if byte == 0xEE || byte == 0xEF { byte + 0x10 } else { byte }
}

/// The node that follows a value and all it holds.
fn after(nodes: &[Node], at: usize) -> usize {
    match nodes[at] {
        Node::Array { next, .. } | Node::Object { next, .. } => next as usize,
        _ => at + 1,
    }
}

/// Offsets and counts are at most a few times `MAX_BODY_BYTES`, so nothing is cut off.
const fn short(value: usize) -> u32 {
    value as u32
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    tape: Tape<'a>,
    /// Keys of the objects that are still open, innermost last.
    open_keys: Vec<u32>,
    /// Room for the digits of one number.
    digits: String,
    /// Whether any text may hold U+E000 and above, where byte order is not UTF-16 order.
    wide: bool,
}

impl<'a> Parser<'a> {
    fn new(input: &'a str) -> Self {
        let tape = Tape {
            input,
            scratch: String::new(),
            // One node per eleven bytes is what business documents have; more grows by itself.
            nodes: Vec::with_capacity(input.len() / 11 + 4),
            orders: Vec::new(),
        };
        let bytes = input.as_bytes();
        let wide = bytes.iter().any(|&byte| byte >= 0xEE);
        Self { bytes, at: 0, depth: 0, tape, open_keys: Vec::new(), digits: String::new(), wide }
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
        }
    }

    /// The error for a byte that cannot stand here, or for the end.
    fn unexpected(&self) -> CanonicalError {
        let reason = self.peek().map_or(NotJson::End, NotJson::Byte);
        CanonicalError::not_json(self.at, reason)
    }

    fn value(&mut self) -> Result<(), CanonicalError> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word(b"true", Node::True),
            Some(b'f') => self.word(b"false", Node::False),
            Some(b'n') => self.word(b"null", Node::Null),
            _ => Err(self.unexpected()),
        }
    }

    fn word(&mut self, word: &[u8], node: Node) -> Result<(), CanonicalError> {
        for &expected in word {
            if self.peek() != Some(expected) {
                return Err(self.unexpected());
            }
            self.at += 1;
        }
        self.tape.nodes.push(node);
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
            Some(number::Spelling::AsWritten) => Node::Number { source },
            Some(number::Spelling::Scratch) => {
                let scratch = Span::new(written, self.tape.scratch.len());
                Node::NumberOwned { source, scratch }
            }
            None => return Err(CanonicalError::not_canonical(start, NotCanonical::NumberRange)),
        };
        self.tape.nodes.push(node);
        Ok(())
    }

    fn enter(&mut self) -> Result<(usize, usize), CanonicalError> {
        if self.depth == MAX_JSON_DEPTH {
            return Err(CanonicalError::not_canonical(self.at, NotCanonical::TooDeep));
        }
        self.depth += 1;
        let opened = (self.at, self.tape.nodes.len());
        // A place-holder; leaving the container replaces it.
        self.tape.nodes.push(Node::Null);
        self.at += 1;
        self.skip_space();
        Ok(opened)
    }

    fn leave(&mut self, start: usize) -> (Span, u32) {
        self.at += 1;
        self.depth -= 1;
        (Span::new(start, self.at), short(self.tape.nodes.len()))
    }

    fn array(&mut self) -> Result<(), CanonicalError> {
        let (start, slot) = self.enter()?;
        if self.peek() != Some(b']') {
            loop {
                self.value()?;
                if !self.comma_or(b']')? {
                    break;
                }
            }
        }
        let (source, next) = self.leave(start);
        self.tape.nodes[slot] = Node::Array { source, next };
        Ok(())
    }

    fn object(&mut self) -> Result<(), CanonicalError> {
        let (start, slot) = self.enter()?;
        let first_key = self.open_keys.len();
        if self.peek() != Some(b'}') {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(self.unexpected());
                }
                self.open_keys.push(short(self.tape.nodes.len()));
                self.string()?;
                self.skip_space();
                if self.peek() != Some(b':') {
                    return Err(self.unexpected());
                }
                self.at += 1;
                self.skip_space();
                self.value()?;
                if !self.comma_or(b'}')? {
                    break;
                }
            }
        }
        let (source, next) = self.leave(start);
        let order = self.close_keys(first_key)?;
        self.tape.nodes[slot] = Node::Object { source, next, order };
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
        let wide = self.wide;
        let compare = |a: u32, b: u32| {
            let (a, b) = (tape.text(a as usize), tape.text(b as usize));
            if wide { key_order(a, b) } else { a.cmp(b) }
        };
        let keys = &mut self.open_keys[first_key..];
        let order = if keys.is_sorted_by(|&a, &b| compare(a, b) == Ordering::Less) {
            IN_ORDER
        } else {
            // The sort is by key, then by position, so that of two equal keys the second is named.
            keys.sort_unstable_by(|&a, &b| compare(a, b).then(a.cmp(&b)));
            let twin = keys.windows(2).find(|pair| compare(pair[0], pair[1]) == Ordering::Equal);
            if let Some(twin) = twin {
                let offset = match tape.nodes[twin[1] as usize] {
                    Node::Text { source } | Node::TextOwned { source, .. } => source.start as usize,
                    _ => self.at,
                };
                return Err(CanonicalError::not_canonical(offset, NotCanonical::DuplicateKey));
            }
            let order = short(self.tape.orders.len());
            self.tape.orders.push(short(keys.len()));
            self.tape.orders.extend_from_slice(keys);
            order
        };
        self.open_keys.truncate(first_key);
        Ok(order)
    }

    fn string(&mut self) -> Result<(), CanonicalError> {
        let quote = self.at;
        let start = quote + 1;
        self.at = plain_end(self.bytes, start);
        if self.peek() == Some(b'"') {
            self.at += 1;
            self.tape.nodes.push(Node::Text { source: Span::new(quote, self.at) });
            return Ok(());
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
        self.tape.nodes.push(Node::TextOwned { source, scratch });
        Ok(())
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
                self.wide |= character >= '\u{E000}';
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

/// Where the plain part of a string ends: at a quote, a backslash, a control character or the end.
///
/// Eight bytes at a time: a byte of `tested & HIGH` is set where the byte is below the bound. A
/// borrow can only disturb bytes above a true hit, so the lowest hit is always right.
fn plain_end(bytes: &[u8], from: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
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

#[cfg(test)]
mod tests;
