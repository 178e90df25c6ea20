//! Why an upstream failed a request, for the log alone.
//!
//! A client learns that its request failed and what that means for a retry. The cause (an address
//! that refuses, a name that nobody knows, a certificate, silence) belongs to whoever runs this,
//! and stands in the access line. Where the head of an answer was sent before the rest broke off,
//! that line is written already, and the cause gets one of its own.

use std::error::Error;
use std::sync::{Arc, OnceLock};

use http::HeaderValue;

/// Longest cause that is told.
const CAUSE_CHARS_MAX: usize = 400;

/// What went wrong with one request, shared by those who carry it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trouble(Arc<Told>);

#[derive(Debug, Default)]
struct Told {
    cause: OnceLock<String>,
    /// Its id, once the access line is written.
    answered: OnceLock<Option<HeaderValue>>,
}

impl Trouble {
    /// Notes why; the first cause is the one that counts.
    pub(super) fn note(&self, cause: &str) {
        let cause = shown(cause);
        if let Some(request_id) = self.0.answered.get() {
            let request_id = request_id.as_ref().and_then(|id| id.to_str().ok());
            tracing::warn!(target: "onceward::access", request_id, cause, "an answer broke off");
        }
        let _ = self.0.cause.set(cause);
    }

    /// Why, if anything went wrong.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.get().map(String::as_str)
    }

    /// The access line is written.
    pub(crate) fn answered(&self, request_id: Option<&HeaderValue>) {
        let _ = self.0.answered.set(request_id.cloned());
    }
}

/// What an error says, with what caused it: each link once.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let said = source.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = source.source();
    }
    text
}

/// A cause may repeat what others said, as a certificate's names: one line, and not for ever.
fn shown(cause: &str) -> String {
    let kept = cause.chars().take(CAUSE_CHARS_MAX);
    kept.map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[derive(Debug)]
    struct Outer(io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("can't connect")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn r09_a_cause_is_the_whole_chain_in_one_line() {
        let inner = io::Error::new(io::ErrorKind::ConnectionRefused, "refused");
        assert_eq!(chain(&Outer(inner)), "can't connect: refused");
        let repeated = io::Error::other(Outer(io::Error::other("can't connect")));
        assert_eq!(chain(&repeated), "can't connect");
        assert_eq!(shown("a\nb\u{1b}[1m"), "a b [1m");
        assert_eq!(shown(&"x".repeat(9_999)).len(), CAUSE_CHARS_MAX);
    }

    #[test]
    fn r09_the_first_cause_counts() {
        let trouble = Trouble::default();
        assert_eq!(trouble.cause(), None);
        trouble.note("one");
        trouble.clone().note("two");
        assert_eq!(trouble.cause(), Some("one"));
    }
}
