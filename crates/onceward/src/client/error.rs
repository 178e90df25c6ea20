//! What can go wrong for a client, apart from answers of the server, which are answers.

use super::conflict::Conflict;

/// Why a call has no answer that can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server refuses: the key or the version is at odds with what it has.
    #[error("{0}")]
    Conflict(Box<Conflict>),
    /// No try brought a whole answer. Unless `nothing_sent`, the request may have had its effect:
    /// send it again with the same key.
    #[error("no whole answer after {attempts} tries: {why}")]
    NoAnswer {
        /// How often it was tried.
        attempts: u32,
        /// The key to try again with.
        key: Option<String>,
        /// No try reached the server.
        nothing_sent: bool,
        /// Why the last try had none.
        why: String,
    },
    /// The answer is larger than the options allow. The request had its effect.
    #[error("the answer is larger than {most} bytes; raise answer_bytes_max")]
    TooLarge {
        /// The bound.
        most: u64,
    },
    /// The request can't be made: a bad URL, header or key.
    #[error("the request can't be made: {0}")]
    Request(String),
    /// The file of keys can't be read or written. Nothing was sent.
    #[error("the stored keys can't be used, nothing was sent: {0}")]
    Keys(#[from] std::io::Error),
    /// TLS can't be set up.
    #[error("the client can't be set up: {0}")]
    Setup(String),
    /// The answer's body is not what was asked for.
    #[error("the answer can't be read as that: {0}")]
    Body(String),
}

impl ClientError {
    /// The conflict, when that is what went wrong.
    #[must_use]
    pub fn conflict(&self) -> Option<&Conflict> {
        match self {
            Self::Conflict(conflict) => Some(conflict),
            _ => None,
        }
    }
}
