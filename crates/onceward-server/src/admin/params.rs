//! Parameters of a query, one by one: every bad one is named, unknown ones with a suggestion.

use axum::extract::Query;
use http::Uri;
use onceward::store::Cursor;
use onceward_core::key::Kind;
use onceward_core::record::State;

use super::fields::{Reading, unknown};
use super::opaque::{read_cursor, read_reference};
use crate::cli::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::export::KeyHash;
use crate::times::Moment;

/// A value that a parameter may have.
pub(crate) trait Param: Sized {
    /// Reads it; what is wrong is noted.
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self>;

    /// What an absent parameter means.
    fn absent() -> Self;
}

/// The parameters of a request that were not taken yet.
pub(crate) struct Given(Vec<(String, String)>);

impl Given {
    /// Reads the query of an address.
    pub(crate) fn of(uri: &Uri, reading: &mut Reading) -> Self {
        match Query::<Vec<(String, String)>>::try_from_uri(uri) {
            Ok(Query(given)) => Self(given),
            Err(_) => {
                reading.wrong("", "the query is not name=value&…, percent-encoded");
                Self(Vec::new())
            }
        }
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
        if let Ok(ms) = text.parse::<u64>() {
            return Some(Some(Moment::At(onceward_core::stamp::At(ms))));
        }
        match text.parse() {
            Ok(moment) => Some(Some(moment)),
            Err(error) => {
                let error: crate::times::BadMoment = error;
                reading.wrong(pointer, error.to_string());
                None
            }
        }
    }

    fn absent() -> Self {
        None
    }
}

impl Param for Option<KeyHash> {
    fn read(text: &str, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let hash = read_reference(text).map(|key| KeyHash::of(&key));
        let hash = hash.or_else(|| KeyHash::read(text).ok());
        if hash.is_none() {
            let message = "must be a record's ref, its key (tenant:kind:scope:id) or the hash of \
                           it that logs and entries show";
            reading.wrong(pointer, message);
        }
        hash.map(Some)
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
