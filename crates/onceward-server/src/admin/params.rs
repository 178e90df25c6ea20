//! Parameters of a path and of a query, one by one: every bad one is named, unknown ones with a
//! suggestion. Nothing is read as something else: what is not UTF-8 is refused.

use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use http::Uri;
use http::request::Parts;
use onceward::store::Cursor;
use onceward_core::key::Kind;
use onceward_core::record::State;

use super::AdminState;
use super::fields::{Reading, unknown};
use super::opaque::{read_cursor, read_reference};
use super::problem::Problem;
use crate::cli::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::export::KeyHash;
use crate::times::{BadMoment, Moment};

/// A value that a parameter may have.
pub(crate) trait Param: Sized {
    /// Reads it; what is wrong is noted.
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self>;

    /// What an absent parameter means.
    fn absent() -> Self;
}

/// The first millisecond since 1970 that is asked for by its number.
const MS_MIN: u64 = 100_000_000_000;
/// What is said of bytes that are no text.
const NOT_UNICODE: &str = "must be UTF-8, percent-encoded";

/// The one parameter of a path.
#[derive(Debug)]
pub(crate) struct Segment(pub(crate) String);

impl FromRequestParts<AdminState> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &AdminState) -> Result<Self, Problem> {
        let rejected = match Path::<String>::from_request_parts(head, state).await {
            Ok(Path(text)) => return Ok(Self(text)),
            Err(rejected) => rejected,
        };
        let name = match &rejected {
            PathRejection::FailedToDeserializePathParams(failed) => match failed.kind() {
                ErrorKind::InvalidUtf8InPathParam { key } => key,
                _ => "",
            },
            _ => "",
        };
        Err(Problem::field(&format!("/{name}"), NOT_UNICODE))
    }
}

/// The parameters of a request that were not taken yet.
pub(crate) struct Given(Vec<(String, String)>);

impl Given {
    /// Reads the query of an address.
    pub(crate) fn of(uri: &Uri, reading: &mut Reading) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let mut given = Vec::new();
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decoded(name), decoded(value)) {
                (Some(name), Some(value)) => given.push((name, value)),
                // One whose name is no text either is named as it was written.
                (read, _) => {
                    let name = read.unwrap_or_else(|| name.into());
                    let shown: String = name.chars().take(64).collect();
                    reading.wrong(format!("/{shown}"), NOT_UNICODE);
                }
            }
        }
        Self(given)
    }

    /// Takes a parameter.
    pub(crate) fn take<T: Param>(&mut self, name: &str, reading: &mut Reading) -> Option<T> {
        let pointer = format!("/{name}");
        let Some(at) = self.0.iter().position(|(given, _)| given == name) else {
            return Some(T::absent());
        };
        let (_, text) = self.0.remove(at);
        if self.0.iter().any(|(given, _)| given == name) {
            self.0.retain(|(given, _)| given != name);
            reading.wrong(pointer, "comes more than once");
            return None;
        }
        T::read(&text, &pointer, reading)
    }

    /// Whatever was not taken is unknown.
    pub(crate) fn end(self, known: &[&str], reading: &mut Reading) {
        for (name, _) in self.0 {
            let shown: String = name.chars().take(64).collect();
            reading.wrong(format!("/{shown}"), unknown(&name, known));
        }
    }
}

/// A part of a query as a form writes it: `+` is a space, and a `%` that begins no encoding is
/// itself. None when it is no text.
fn decoded(part: &str) -> Option<String> {
    let bytes = part.as_bytes();
    let digit = |at: usize| char::from(*bytes.get(at)?).to_digit(16);
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let encoded = digit(at + 1).zip(digit(at + 2)).filter(|_| byte == b'%');
        let encoded = encoded.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        text.push(encoded.unwrap_or(if byte == b'+' { b' ' } else { byte }));
        at += if encoded.is_some() { 3 } else { 1 };
    }
    String::from_utf8(text).ok()
}

/// How many items of a list are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(pub(crate) Option<u16>);

impl Limit {
    /// As asked for, or the default.
    pub(crate) fn or_default(self) -> u16 {
        self.0.unwrap_or(LIMIT_DEFAULT)
    }
}

impl Param for Limit {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        match text.parse::<u16>() {
            Ok(limit) if (1..=LIMIT_MAX).contains(&limit) => Some(Self(Some(limit))),
            _ => {
                reading.wrong(pointer, format!("must be between 1 and {LIMIT_MAX}"));
                None
            }
        }
    }

    fn absent() -> Self {
        Self(None)
    }
}

impl Param for Option<String> {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        if text.is_empty() {
            reading.wrong(pointer, "is empty: leave it out, or give it a value");
            return None;
        }
        Some(Some(text.to_string()))
    }

    fn absent() -> Self {
        None
    }
}

impl Param for Option<State> {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let state = State::parse(text);
        if state.is_none() {
            let words = State::ALL.map(State::as_str).join(", ");
            reading.wrong(pointer, format!("must be one of {words}"));
        }
        state.map(Some)
    }

    fn absent() -> Self {
        None
    }
}

impl Param for Option<Kind> {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let kind = Kind::parse(text);
        if kind.is_none() {
            let words = Kind::ALL.map(Kind::as_str).join(", ");
            reading.wrong(pointer, format!("must be one of {words}"));
        }
        kind.map(Some)
    }

    fn absent() -> Self {
        None
    }
}

impl Param for Option<Moment> {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let moment = match text.parse::<u64>() {
            // Between them lie years, days without hyphens and counts of seconds.
            Ok(ms) if !(1_000..MS_MIN).contains(&ms) => {
                Some(Moment::At(onceward_core::stamp::At(ms)))
            }
            Ok(_) => None,
            Err(_) => text.parse().ok(),
        };
        if moment.is_none() {
            let message =
                format!("{BadMoment}; or milliseconds since 1970 (up to 3 digits, or 12 and more)");
            reading.wrong(pointer, message);
        }
        moment.map(Some)
    }

    fn absent() -> Self {
        None
    }
}

/// The key that entries are about.
#[derive(Debug)]
pub(crate) struct AboutKey {
    /// What they are found by.
    pub(crate) hash: KeyHash,
    /// Whose key it is; a hash does not tell.
    pub(crate) tenant: Option<String>,
}

impl Param for Option<AboutKey> {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let about = match read_reference(text) {
            Some(key) => {
                let tenant = Some(key.tenant().into_owned());
                Some(AboutKey { hash: KeyHash::of(&key), tenant })
            }
            None => KeyHash::read(text).ok().map(|hash| AboutKey { hash, tenant: None }),
        };
        if about.is_none() {
            let message = "must be a record's ref, its key (tenant:kind:scope:id) or the hash of \
                           it that logs and entries show";
            reading.wrong(pointer, message);
        }
        about.map(Some)
    }

    fn absent() -> Self {
        None
    }
}

impl Param for Option<Cursor> {
    fn read(text: &str, _: &str, _: &mut Reading) -> Option<Self> {
        Some(Some(read_cursor(text)))
    }

    fn absent() -> Self {
        None
    }
}

/// Declares the parameters of an endpoint: a struct, its reader and its description.
macro_rules! params {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field:ident : $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, utoipa::IntoParams)]
        #[into_params(parameter_in = Query)]
        $vis struct $name {
            $($(#[$field_meta])* $field: $type,)*
        }

        impl axum::extract::FromRequestParts<$crate::admin::AdminState> for $name {
            type Rejection = $crate::admin::problem::Problem;

            async fn from_request_parts(
                head: &mut http::request::Parts,
                _: &$crate::admin::AdminState,
            ) -> Result<Self, Self::Rejection> {
                let mut reading = $crate::admin::fields::Reading::default();
                let mut given = $crate::admin::params::Given::of(&head.uri, &mut reading);
                $(let $field = given.take(stringify!($field), &mut reading);)*
                given.end(&[$(stringify!($field)),*], &mut reading);
                let read = (|| Some(Self { $($field: $field?,)* }))();
                reading.end(read)
            }
        }
    };
}
pub(crate) use params;
