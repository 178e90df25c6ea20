//! The pure heart of Onceward: facts about a key + a request + now → one decision → one batch.
//!
//! No I/O, no clock, no randomness, no async: every instant, token and random number is passed in.
//! The engine in the `onceward` crate loads facts, asks [`decide`] and commits what it says.
//!
//! Words are used as the glossary in `ARCHITECTURE.md` fixes them.

pub mod audit;
pub mod batch;
pub mod canonical;
pub mod codec;
pub mod content_type;
pub mod decide;
pub mod diff;
pub mod drive;
pub mod fingerprint;
pub mod form;
pub mod guard;
pub mod header_key;
mod json;
pub mod key;
pub mod limits;
pub mod mask;
mod multipart;
pub mod note;
pub mod outcome_policy;
pub mod patch;
pub mod payload;
pub mod record;
pub mod retry;
pub mod seal;
pub mod stamp;
pub mod text;
pub mod zoo;

/// Short shared text: owners, ids, error texts.
pub type Text = std::sync::Arc<str>;

/// Shared bytes: outcomes, payloads, documents.
pub type Bytes = std::sync::Arc<[u8]>;

/// The longest prefix of `text` that has at most `bytes` bytes and ends between characters.
pub(crate) fn text_cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
