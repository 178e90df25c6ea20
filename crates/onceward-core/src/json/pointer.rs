//! JSON pointers (RFC 6901) and the walk over a document's leaves.
//!
//! Rule: every leaf is met once, in canonical order, under its own pointer; an empty array and an
//! empty object are leaves too, so that a document is known by its leaves.
//!
//! Not responsible for what is done with a leaf: `payload.rs` hashes it, `diff.rs` compares it.

use std::fmt::Write as _;

use super::{Node, Tape};

/// A pointer that grows and shrinks while a document is walked.
#[derive(Debug, Default)]
pub(crate) struct Pointer(String);

impl Pointer {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Goes down to a member; the answer is what `back` needs to come up again.
    pub(crate) fn member(&mut self, name: &str) -> usize {
        let mark = self.0.len();
        self.0.push('/');
        for character in name.chars() {
            match character {
                '~' => self.0.push_str("~0"),
                '/' => self.0.push_str("~1"),
                other => self.0.push(other),
            }
        }
        mark
    }

    /// Goes down to an item of an array.
    pub(crate) fn item(&mut self, index: usize) -> usize {
        let mark = self.0.len();
        // Writing to a String cannot fail.
        let _ = write!(self.0, "/{index}");
        mark
    }

    /// Comes up again.
    pub(crate) fn back(&mut self, mark: usize) {
        self.0.truncate(mark);
    }
}

/// What the walk has come to.
pub(crate) enum Seen<'t> {
    /// An array or object that holds something. The walk goes into it unless told otherwise.
    Container,
    /// Anything else: the node, and its canonical text (a string's is unescaped).
    Leaf(Node, &'t str),
}

/// How the walk goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Into the container, or on to the next value.
    On,
    /// Not into this container.
    Past,
    /// Not any further.
    Stop,
}

/// Walks a document in canonical order.
pub(crate) fn walk_leaves(tape: &Tape<'_>, mut visit: impl FnMut(&str, Seen<'_>) -> Flow) {
    walk(tape, 0, &mut Pointer::default(), &mut visit);
}

/// Recursion ends at `MAX_JSON_DEPTH`. Answers whether to stop.
fn walk(
    tape: &Tape<'_>,
    at: usize,
    pointer: &mut Pointer,
    visit: &mut impl FnMut(&str, Seen<'_>) -> Flow,
) -> bool {
    let node = tape.node(at);
    let is_object = matches!(node, Node::Object { .. });
    let is_leaf = tape.members(at).next().is_none() && tape.items(at).next().is_none();
    let seen = if is_leaf { Seen::Leaf(node, leaf_text(tape, at)) } else { Seen::Container };
    match visit(pointer.as_str(), seen) {
        Flow::Stop => return true,
        Flow::Past => return false,
        Flow::On => {}
    }
    if is_object {
        for key in tape.members(at) {
            let mark = pointer.member(tape.text(key));
            if walk(tape, key + 1, pointer, visit) {
                return true;
            }
            pointer.back(mark);
        }
    } else {
        for (index, item) in tape.items(at).enumerate() {
            let mark = pointer.item(index);
            if walk(tape, item, pointer, visit) {
                return true;
            }
            pointer.back(mark);
        }
    }
    false
}

fn leaf_text<'t>(tape: &'t Tape<'_>, at: usize) -> &'t str {
    match tape.node(at) {
        // The source of an empty container may have white space in it.
        Node::Array { .. } => "[]",
        Node::Object { .. } => "{}",
        _ => tape.text(at),
    }
}
