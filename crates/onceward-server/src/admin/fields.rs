//! Bodies and parameters, field by field: every bad field is named, not only the first.
//!
//! A body is declared once with [`body!`] (parameters with [`params!`]); its fields, its unknown
//! fields and its description in the OpenAPI document follow from that. What a field means is
//! decided by the endpoint that declares it.

use std::fmt;

use onceward_core::fingerprint::{CanonicalBody, FingerprintPolicy, canonical_bytes};
use onceward_core::limits::{
    MAX_BATCH_BYTES, MAX_LEASE_MS, MAX_PART_BYTES, MAX_POSITION, MAX_RETAIN_MS, MIN_LEASE_MS,
};
use onceward_core::stamp::At;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::AdminState;
use super::opaque::Shown;
use super::problem::{FieldError, Problem};
use crate::times::{Moment, rfc3339};

/// Errors of one request that are told at most.
const ERRORS_MAX: usize = 10_000;
/// Longest wait for an outcome or a job: five minutes.
pub(crate) const WAIT_MS_MAX: u64 = 300_000;
/// Bytes of a payload: room is left in its batch for what goes with it.
const PAYLOAD_BYTES_MAX: usize = MAX_BATCH_BYTES / 2;
/// Most differing characters for a name to be suggested.
const SUGGESTED_WITHIN: usize = 3;

/// What is noted while a request is read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    errors: Vec<FieldError>,
    /// The tenant of the token, for requests that leave theirs out.
    tenant: Option<String>,
    /// Reads permits.
    state: Option<AdminState>,
}

impl Reading {
    /// For a caller whose token is this tenant's, or the operator's.
    pub(crate) fn of(tenant: Option<&str>) -> Self {
        Self { tenant: tenant.map(String::from), ..Self::default() }
    }

    /// For a request that shows a permit.
    pub(crate) fn with_permits(state: &AdminState) -> Self {
        Self { state: Some(state.clone()), ..Self::default() }
    }

    /// Notes what is wrong with a field.
    pub(crate) fn wrong(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(FieldError { pointer: pointer.into(), message: message.into() });
        }
    }

    /// The value if nothing was wrong, otherwise the problem that names all that was.
    pub(crate) fn end<T>(self, value: Option<T>) -> Result<T, Problem> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(self.into()),
        }
    }

    /// Everything that was wrong.
    pub(crate) fn into_errors(self) -> Vec<FieldError> {
        self.errors
    }
}

/// A value that a field may have.
pub(crate) trait Field: Sized {
    /// Whether `null` is a value like any other; otherwise it stands for an absent field.
    const NULL_COUNTS: bool = false;

    /// Reads it; what is wrong is noted.
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self>;

    /// What an absent field means.
    fn absent(pointer: &str, reading: &mut Reading) -> Option<Self> {
        reading.wrong(pointer, "is required");
        None
    }
}

/// A body that is read field by field.
pub(crate) trait FromFields: Sized {
    /// Takes every field.
    fn from_fields(fields: &mut Fields<'_>, reading: &mut Reading) -> Option<Self>;
}

/// The fields of one object that were not taken yet.
pub(crate) struct Fields<'a> {
    at: &'a str,
    given: Vec<(String, &'a RawValue)>,
}

impl Fields<'_> {
    /// Whether a field was given and is not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(given, raw)| given == name && raw.get() != "null")
    }

    /// Whether a field was given, be it null.
    pub(crate) fn has_any(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| given == name)
    }

    /// Whether a field was given as this JSON text.
    pub(crate) fn is(&self, name: &str, text: &str) -> bool {
        self.given.iter().any(|(given, raw)| given == name && raw.get() == text)
    }

    /// Notes what is wrong with a field, or with the object when the name is empty.
    pub(crate) fn wrong(&self, name: &str, message: &str, reading: &mut Reading) {
        let slash = if name.is_empty() { "" } else { "/" };
        reading.wrong(format!("{}{slash}{name}", self.at), message);
    }

    /// Takes a field.
    pub(crate) fn take<T: Field>(&mut self, name: &str, reading: &mut Reading) -> Option<T> {
        let pointer = format!("{}/{name}", self.at);
        match self.given.iter().position(|(given, _)| given == name) {
            Some(at) => T::read(self.given.swap_remove(at).1, &pointer, reading),
            None => T::absent(&pointer, reading),
        }
    }

    /// Whatever was not taken is unknown.
    pub(crate) fn end(&mut self, known: &[&str], reading: &mut Reading) {
        for (name, _) in self.given.drain(..) {
            let pointer = format!("{}/{}", self.at, escaped(&name));
            reading.wrong(pointer, unknown(&name, known));
        }
    }
}

/// Reads a whole body.
pub(crate) fn read_body<T: FromFields>(body: &[u8], reading: &mut Reading) -> Option<T> {
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(raw) => read_object(raw, "", reading),
        Err(error) => {
            let message = format!("the body is not JSON: {}", syntax(&error));
            reading.wrong("", message);
            None
        }
    }
}

/// Reads an object at a pointer.
pub(crate) fn read_object<T: FromFields>(
    raw: &RawValue,
    at: &str,
    reading: &mut Reading,
) -> Option<T> {
    let Ok(Object { given, twice }) = serde_json::from_str(raw.get()) else {
        reading.wrong(at, "must be an object");
        return None;
    };
    for name in twice {
        reading.wrong(format!("{at}/{}", escaped(&name)), "comes more than once");
    }
    T::from_fields(&mut Fields { at, given }, reading)
}

/// Where a JSON text breaks off, without repeating any of it.
fn syntax(error: &serde_json::Error) -> String {
    format!("it breaks off at line {}, column {}", error.line(), error.column())
}

/// What is said of an unknown name.
pub(crate) fn unknown(name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|known| (distance(name, known), *known))
        .filter(|(distance, known)| *distance <= SUGGESTED_WITHIN.min(known.len() / 2))
        .min();
    match nearest {
        Some((_, nearest)) => format!("is unknown; did you mean {nearest}?"),
        None => format!("is unknown; known are {}", known.join(", ")),
    }
}

/// How many characters have to be inserted, removed or replaced. Long names are cut: they are far
/// from every known one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// A name as a JSON pointer spells it, cut to what an answer should repeat.
fn escaped(name: &str) -> String {
    let cut: String = name.chars().take(64).collect();
    cut.replace('~', "~0").replace('/', "~1")
}

struct Object<'a> {
    given: Vec<(String, &'a RawValue)>,
    twice: Vec<String>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut object = Object { given: Vec::new(), twice: Vec::new() };
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if object.given.iter().any(|(given, _)| *given == name) {
                        object.twice.push(name);
                    } else {
                        object.given.push((name, value));
                    }
                }
                Ok(object)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// Text of 1 to 512 bytes: a part of a key, an owner, an id.
#[derive(Debug, Clone)]
pub(crate) struct Part(pub(crate) String);

/// The tenant; left out, it is the token's.
#[derive(Debug, Clone)]
pub(crate) struct Tenant(pub(crate) String);

/// Any JSON value, as it was written.
#[derive(Debug, Clone)]
pub(crate) struct Json(pub(crate) Box<RawValue>);

/// A whole number within bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole<const LOW: u64, const HIGH: u64>(pub(crate) u64);

/// A lease in milliseconds.
pub(crate) type LeaseMs = Whole<MIN_LEASE_MS, MAX_LEASE_MS>;
/// A wait in milliseconds.
pub(crate) type WaitMs = Whole<0, WAIT_MS_MAX>;
/// A retention in milliseconds.
pub(crate) type RetainMs = Whole<1, MAX_RETAIN_MS>;
/// A position that is expected to be there.
pub(crate) type Expected = Whole<0, { MAX_POSITION - 1 }>;
/// A claim's own position, or a time or a span as one.
pub(crate) type Position = Whole<0, MAX_POSITION>;

/// JSON that has a canonical form.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    /// As it was written.
    pub(crate) raw: Box<RawValue>,
    /// In the form that is hashed and compared.
    pub(crate) canonical: Vec<u8>,
}

impl Payload {
    /// The canonical form.
    pub(crate) fn body(&self) -> CanonicalBody<'static> {
        CanonicalBody::Json(self.canonical.clone())
    }
}

/// A permit that we wrote.
#[derive(Debug, Clone)]
pub(crate) struct PermitText(pub(crate) Shown);

/// An instant: RFC 3339, or milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct When(pub(crate) At);

impl Field for String {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let text = serde_json::from_str(raw.get());
        text.map_err(|_| reading.wrong(pointer, "must be a text in valid Unicode")).ok()
    }
}

impl Field for bool {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let flag = serde_json::from_str(raw.get());
        flag.map_err(|_| reading.wrong(pointer, "must be true or false")).ok()
    }
}

impl Field for Part {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let text = String::read(raw, pointer, reading)?;
        if (1..=MAX_PART_BYTES).contains(&text.len()) {
            return Some(Self(text));
        }
        let bytes = text.len();
        reading.wrong(pointer, format!("is {bytes} bytes, but must be 1 to {MAX_PART_BYTES}"));
        None
    }
}

impl Field for Tenant {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        Part::read(raw, pointer, reading).map(|part| Self(part.0))
    }

    fn absent(pointer: &str, reading: &mut Reading) -> Option<Self> {
        if let Some(tenant) = &reading.tenant {
            return Some(Self(tenant.clone()));
        }
        reading.wrong(pointer, "is required");
        None
    }
}

impl Field for Json {
    const NULL_COUNTS: bool = true;

    fn read(raw: &RawValue, _: &str, _: &mut Reading) -> Option<Self> {
        Some(Self(raw.to_owned()))
    }
}

impl Field for Payload {
    const NULL_COUNTS: bool = true;

    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let bytes = raw.get().len();
        if bytes > PAYLOAD_BYTES_MAX {
            let message = format!("is {bytes} bytes, but must be at most {PAYLOAD_BYTES_MAX}");
            reading.wrong(pointer, message);
            return None;
        }
        match canonical_bytes(raw.get().as_bytes(), &FingerprintPolicy::default()) {
            Ok(canonical) => Some(Self { raw: raw.to_owned(), canonical }),
            Err(error) => {
                reading.wrong(pointer, error.to_string());
                None
            }
        }
    }
}

impl Field for PermitText {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let text = String::read(raw, pointer, reading)?;
        let shown = reading.state.as_ref().and_then(|state| state.keys().read_permit(&text));
        if shown.is_none() {
            reading.wrong(pointer, "is not a permit of this store: send it as you got it");
        }
        shown.map(Self)
    }
}

impl<const LOW: u64, const HIGH: u64> Field for Whole<LOW, HIGH> {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        match serde_json::from_str::<u64>(raw.get()) {
            Ok(number) if (LOW..=HIGH).contains(&number) => Some(Self(number)),
            Ok(number) => {
                let message = format!("is {number}, but must be between {LOW} and {HIGH}");
                reading.wrong(pointer, message);
                None
            }
            Err(_) => {
                let message = format!("must be a whole number between {LOW} and {HIGH}");
                reading.wrong(pointer, message);
                None
            }
        }
    }
}

impl Field for When {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        let text = serde_json::from_str::<u64>(raw.get()).map(|ms| Some(At(ms)));
        let at = text.or_else(|_| {
            serde_json::from_str::<String>(raw.get()).map(|text| match text.parse().ok() {
                Some(Moment::At(at)) => Some(at),
                _ => None,
            })
        });
        let at = at.ok().flatten();
        if at.is_none() {
            let message = "must be an instant: RFC 3339 (2026-11-15T08:00:00Z) or milliseconds \
                           since 1970 in UTC";
            reading.wrong(pointer, message);
        }
        at.map(Self)
    }
}

impl When {
    /// How long it is until then. What lies beyond what the engine keeps is refused: it would come
    /// too early.
    pub(crate) fn run_in_ms(self, now: At) -> Result<u64, Problem> {
        let ms = self.0.since(now);
        if ms > MAX_RETAIN_MS {
            let latest = rfc3339(now.plus(MAX_RETAIN_MS));
            let message = format!("must be at most ten years ahead: {latest} at the latest");
            return Err(Problem::field("/run_at", message));
        }
        Ok(ms)
    }
}

impl<T: Field> Field for Option<T> {
    fn read(raw: &RawValue, pointer: &str, reading: &mut Reading) -> Option<Self> {
        if raw.get() == "null" && !T::NULL_COUNTS {
            return Some(None);
        }
        T::read(raw, pointer, reading).map(Some)
    }

    fn absent(_: &str, _: &mut Reading) -> Option<Self> {
        Some(None)
    }
}

/// Declares a body: a struct, its reader and its schema. What fields mean together is checked by a
/// function that sees all of them, also when one is bad.
macro_rules! body {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(checked by $check:path)? {
            $($(#[$field_meta:meta])* $field:ident $(= $wire:literal)? : $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, utoipa::ToSchema)]
        $vis struct $name {
            $($(#[$field_meta])* $(#[schema(rename = $wire)])? $field: $type,)*
        }

        impl $crate::admin::fields::FromFields for $name {
            fn from_fields(
                fields: &mut $crate::admin::fields::Fields<'_>,
                reading: &mut $crate::admin::fields::Reading,
            ) -> Option<Self> {
                $($check(fields, reading);)?
                $(let $field = fields.take(
                    $crate::admin::fields::wire_name!($field $($wire)?), reading,
                );)*
                let known = [$($crate::admin::fields::wire_name!($field $($wire)?)),*];
                fields.end(&known, reading);
                Some(Self { $($field: $field?,)* })
            }
        }

        impl $crate::admin::fields::Field for $name {
            fn read(
                raw: &serde_json::value::RawValue,
                pointer: &str,
                reading: &mut $crate::admin::fields::Reading,
            ) -> Option<Self> {
                $crate::admin::fields::read_object(raw, pointer, reading)
            }
        }
    };
}
pub(crate) use body;

/// The name of a field on the wire, where it can't be its name in Rust.
macro_rules! wire_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $wire:literal) => {
        $wire
    };
}
pub(crate) use wire_name;

#[cfg(test)]
mod tests {
    use super::*;

    body! {
        struct Sample {
            #[schema(value_type = String)]
            id: Part,
            #[schema(value_type = u64)]
            lease_ms: LeaseMs,
            #[schema(value_type = Option<Object>)]
            payload: Option<Json>,
            kind = "type": Option<String>,
        }
    }

    fn errors(body: &str) -> Vec<(String, String)> {
        let mut reading = Reading::default();
        let read = read_body::<Sample>(body.as_bytes(), &mut reading);
        assert!(read.is_none() || !reading.errors.is_empty(), "{read:?}");
        reading.errors.into_iter().map(|error| (error.pointer, error.message)).collect()
    }

    #[test]
    fn every_bad_field_is_named() {
        let told = errors(r#"{"id":"","lease_ms":99,"leas_ms":1,"id":"twice","type":7}"#);
        let pointers: Vec<&str> = told.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(pointers, ["/id", "/id", "/lease_ms", "/type", "/leas_ms"]);
        assert!(told[4].1.contains("did you mean lease_ms?"), "{told:?}");
        assert_eq!(told[2].1, "is 99, but must be between 100 and 86400000");
    }

    #[test]
    fn what_is_no_object_is_told_without_repeating_it() {
        assert_eq!(errors("[]"), [(String::new(), "must be an object".to_string())]);
        assert!(errors("{secret")[0].1.starts_with("the body is not JSON"), "no text of it");
        assert!(!errors("{secret")[0].1.contains("secret"));
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(errors(&deep)[0].1, "must be an object");
    }

    #[test]
    fn a_null_payload_is_a_payload_and_other_nulls_are_absent() {
        let mut reading = Reading::default();
        let body = br#"{"id":"a","lease_ms":100,"payload":null,"type":null}"#;
        let read = read_body::<Sample>(body, &mut reading).unwrap();
        assert_eq!(read.payload.unwrap().0.get(), "null");
        assert!(read.kind.is_none() && read.id.0 == "a" && read.lease_ms.0 == 100);
    }
}
