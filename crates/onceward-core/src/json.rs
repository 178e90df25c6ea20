//! A parsed JSON document: a flat tape of nodes that borrows from its input.
//!
//! Rule: each object's members can be walked in RFC 8785 order, and no two of them have the same
//! key. One body costs a handful of allocations, however many values it has: this runs on every
//! request.
//!
//! Not responsible for reading (`json/parser.rs`) or writing JSON (`canonical.rs`).

mod number;
mod parser;
mod pointer;

use std::cmp::Ordering;
use std::ops::Range;

use crate::canonical::{CanonicalError, MAX_BODY_BYTES, NotCanonical, NotJson};

pub(crate) use parser::plain_end;
pub(crate) use pointer::{Flow, Pointer, Seen, walk_leaves};

/// One value, or one key of an object. A key is directly followed by its value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Node {
    /// `null`, `true`, `false`, or a number that is spelled canonically in the input.
    Plain {
        source: Span,
    },
    /// A number whose canonical spelling is in the scratch text.
    Respelled {
        source: Span,
        scratch: Span,
    },
    /// A string without escapes: its canonical form is what stands in the input, quotes included.
    Text {
        source: Span,
    },
    /// A string that had escapes; the scratch text holds it unescaped.
    Escaped {
        source: Span,
        scratch: Span,
    },
    /// `verbatim` says that the whole of it stands canonically in the input.
    Array {
        source: Span,
        next: u32,
        verbatim: bool,
    },
    Object {
        source: Span,
        next: u32,
        order: u32,
        verbatim: bool,
    },
}

impl Node {
    fn source(self) -> Span {
        match self {
            Self::Plain { source }
            | Self::Respelled { source, .. }
            | Self::Text { source }
            | Self::Escaped { source, .. }
            | Self::Array { source, .. }
            | Self::Object { source, .. } => source,
        }
    }

    /// Whether what stands in the input is already the canonical form.
    pub(crate) fn is_verbatim(self) -> bool {
        match self {
            Self::Plain { .. } | Self::Text { .. } => true,
            Self::Respelled { .. } | Self::Escaped { .. } => false,
            Self::Array { verbatim, .. } | Self::Object { verbatim, .. } => verbatim,
        }
    }
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

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
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
        parser::parse(text)
    }

    pub(crate) fn node(&self, at: usize) -> Node {
        self.nodes[at]
    }

    pub(crate) fn source_len(&self) -> usize {
        self.input.len()
    }

    /// The text of a string (unescaped), or the canonical spelling of another scalar.
    pub(crate) fn text(&self, at: usize) -> &str {
        let (text, span) = self.text_span(at);
        text.get(span.range()).unwrap_or_default()
    }

    /// The bytes of `text`, without the price of finding out that they are whole characters.
    pub(crate) fn text_bytes(&self, at: usize) -> &[u8] {
        let (text, span) = self.text_span(at);
        &text.as_bytes()[span.range()]
    }

    fn text_span(&self, at: usize) -> (&str, Span) {
        match self.nodes[at] {
            Node::Text { source } => {
                (self.input, Span { start: source.start + 1, end: source.end - 1 })
            }
            Node::Respelled { scratch, .. } | Node::Escaped { scratch, .. } => {
                (&self.scratch, scratch)
            }
            other => (self.input, other.source()),
        }
    }

    /// A value as it stands in the input, without the space around it. If the input is canonical,
    /// so is this.
    pub(crate) fn source(&self, at: usize) -> &[u8] {
        &self.input.as_bytes()[self.nodes[at].source().range()]
    }

    /// Where a value stands in the input, without the space around it.
    pub(crate) fn source_range(&self, at: usize) -> Range<usize> {
        self.nodes[at].source().range()
    }

    /// A member from its key to the end of its value, if all of that stands canonically in the
    /// input: most members do, and can be copied in one piece.
    pub(crate) fn verbatim_member(&self, key: usize) -> Option<&[u8]> {
        let (name, value) = (self.nodes[key], self.nodes[key + 1]);
        let (name_source, value_source) = (name.source(), value.source());
        let is_adjacent = name_source.end + 1 == value_source.start;
        let whole = Span { start: name_source.start, end: value_source.end };
        (is_adjacent && name.is_verbatim() && value.is_verbatim())
            .then(|| &self.input.as_bytes()[whole.range()])
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
pub(crate) fn key_order(a: &[u8], b: &[u8]) -> Ordering {
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

#[cfg(test)]
mod tests;
