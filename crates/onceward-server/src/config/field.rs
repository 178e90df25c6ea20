//! Kinds of fields: how each is read from TOML, said again as TOML, and described.
//!
//! Lengths of time need a unit ("30s", "24h"): a bare number would be seconds to one reader and
//! milliseconds to the next. Sizes are numbers of bytes or have a unit ("8MiB").

use std::net::SocketAddr;
use std::path::PathBuf;

use http::{HeaderName, Uri};
use toml::de::DeValue;

use super::reading::{Reading, Value, join, meant};

/// A kind of field.
pub(crate) trait Field: Sized {
    /// Reads a value; what is wrong with it is noted, and then there is none.
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self>;

    /// The value as TOML; none when it is not set.
    fn show(&self) -> Option<String>;

    /// What a value looks like, for the reference.
    fn form() -> String;
}

/// A kind that is written as one TOML string.
pub(crate) trait Text: Sized {
    /// What a value looks like.
    const FORM: &'static str;
    fn from_text(text: &str) -> Option<Self>;
    fn text(&self) -> String;
    /// What is wrong with a text that is none, where more can be said than what it should be.
    fn wrong(_text: &str) -> Option<&'static str> {
        None
    }
}

impl<T: Text> Field for T {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let text = value.get_ref().as_str();
        let read = text.and_then(Self::from_text);
        match text.and_then(Self::wrong) {
            _ if read.is_some() => {}
            Some(why) => reading.wrong(value.span().start, path, why),
            None => expected(value, path, Self::FORM, reading),
        }
        read
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.text()))
    }

    fn form() -> String {
        Self::FORM.into()
    }
}

/// Notes that a value is not what its field takes. The value itself may be a secret of its
/// writer's, put into the wrong place, so only short plain ones are repeated.
pub(super) fn expected(value: &Value<'_>, path: &str, form: &str, reading: &mut Reading) {
    let found = match value.get_ref() {
        DeValue::String(text) if text.len() <= 32 => format!("{text:?}"),
        DeValue::Integer(number) => number.as_str().to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        other => format!("a {}", other.type_str()),
    };
    reading.wrong(value.span().start, path, format!("{found} is not {form}"));
}

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(pub(crate) u64);

impl Span {
    /// So many seconds.
    pub(crate) const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1_000)
    }

    /// So many hours.
    pub(crate) const fn hours(hours: u64) -> Self {
        Self::seconds(hours * 3_600)
    }

    /// As the standard library has it.
    pub(crate) const fn duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

/// Units of time, longest first.
const TIMES: [(&str, u64); 6] =
    [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Text for Span {
    const FORM: &'static str = "a length of time such as \"500ms\", \"30s\", \"15m\", \"24h\" or \
                                \"7d\"";

    fn from_text(text: &str) -> Option<Self> {
        let (number, unit) = split_unit(text)?;
        let (_, ms) = TIMES.iter().find(|(known, _)| *known == unit)?;
        number.checked_mul(*ms).map(Self)
    }

    fn text(&self) -> String {
        let fits = |(_, ms): &&(&str, u64)| self.0.is_multiple_of(*ms) && self.0 >= *ms;
        // A day and a half-day are easier to compare when both are said in hours.
        let units = TIMES.iter().filter(|(unit, ms)| *unit != "d" || self.0 / ms >= 2);
        let units = units.filter(|(unit, _)| *unit != "min");
        match units.clone().find(fits) {
            Some((unit, ms)) => format!("{}{unit}", self.0 / ms),
            None => format!("{}ms", self.0),
        }
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

/// Units of size, largest first.
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

impl Field for Size {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let read = match value.get_ref() {
            DeValue::String(text) => split_unit(text).and_then(|(number, unit)| {
                let (_, bytes) = SIZES.iter().find(|(known, _)| *known == unit)?;
                number.checked_mul(*bytes)
            }),
            DeValue::Integer(_) => natural(value),
            _ => None,
        };
        if read.is_none() {
            expected(value, path, &Self::form(), reading);
        }
        read.map(Self)
    }

    fn show(&self) -> Option<String> {
        let binary = SIZES.iter().filter(|(unit, _)| unit.ends_with("iB"));
        let unit =
            binary.clone().find(|(_, bytes)| self.0.is_multiple_of(*bytes) && self.0 >= *bytes);
        Some(match unit {
            Some((unit, bytes)) => format!("\"{}{unit}\"", self.0 / bytes),
            None => self.0.to_string(),
        })
    }

    fn form() -> String {
        "a size such as \"8MiB\" or \"64KiB\", or a number of bytes".into()
    }
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

fn natural(value: &Value<'_>) -> Option<u64> {
    let DeValue::Integer(number) = value.get_ref() else { return None };
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

impl Field for bool {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let read = value.get_ref().as_bool();
        if read.is_none() {
            expected(value, path, &Self::form(), reading);
        }
        read
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn form() -> String {
        "true or false".into()
    }
}

impl Field for u32 {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let read = natural(value).and_then(|number| Self::try_from(number).ok());
        if read.is_none() {
            expected(value, path, &Self::form(), reading);
        }
        read
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn form() -> String {
        "a whole number that is not negative".into()
    }
}

impl Field for u16 {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let read = natural(value).and_then(|number| Self::try_from(number).ok());
        if read.is_none() {
            expected(value, path, &Self::form(), reading);
        }
        read
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn form() -> String {
        "the number of a status, such as 409".into()
    }
}

impl Text for String {
    const FORM: &'static str = "a text that is not empty";

    fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_string())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

impl Text for PathBuf {
    const FORM: &'static str = "the path of a file";

    fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.into())
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

impl Text for SocketAddr {
    const FORM: &'static str = "an address with a port, such as \"127.0.0.1:7600\" or \"[::1]:0\"";

    fn from_text(text: &str) -> Option<Self> {
        match text.strip_prefix("localhost:") {
            Some(port) => Some(Self::from(([127, 0, 0, 1], port.parse().ok()?))),
            None => text.parse().ok(),
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Text for HeaderName {
    const FORM: &'static str = "the name of an HTTP header";

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn text(&self) -> String {
        self.as_str().to_string()
    }
}

/// An `http:` or `https:` URL without a fragment or a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url(pub(crate) Uri);

impl Text for Url {
    const FORM: &'static str = "a URL that starts with http:// or https://";

    fn from_text(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        let host = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
        (known && host && !text.contains('#')).then_some(Self(uri))
    }

    /// Never repeats the text: what stands before an `@` may be a password.
    fn wrong(text: &str) -> Option<&'static str> {
        if text.contains('@') {
            return Some("a URL with a login (what stands before the `@`) is not supported");
        }
        text.contains('#')
            .then_some("a URL with a fragment (`#` and what follows) is not supported")
    }

    fn text(&self) -> String {
        let text = self.0.to_string();
        // A URI shows an empty path as a slash; nobody wrote it.
        if self.0.path() == "/" { text.trim_end_matches('/').into() } else { text }
    }
}

impl<T: Field> Field for Vec<T> {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        let Some(items) = value.get_ref().as_array() else {
            expected(value, path, &Self::form(), reading);
            return None;
        };
        let items = items.iter().enumerate();
        let read: Vec<_> =
            items.map(|(at, item)| T::read(item, &format!("{path}[{at}]"), reading)).collect();
        read.into_iter().collect()
    }

    fn show(&self) -> Option<String> {
        let items: Vec<_> = self.iter().filter_map(Field::show).collect();
        Some(format!("[{}]", items.join(", ")))
    }

    fn form() -> String {
        format!("a list; each item is {}", T::form())
    }
}

impl<T: Field> Field for Option<T> {
    fn read(value: &Value<'_>, path: &str, reading: &mut Reading) -> Option<Self> {
        T::read(value, path, reading).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Field::show)
    }

    fn form() -> String {
        T::form()
    }
}

/// Reads one of a few words.
pub(super) fn word<T: Copy>(
    words: &[(&'static str, T)],
    value: &Value<'_>,
    path: &str,
    reading: &mut Reading,
) -> Option<T> {
    let text = value.get_ref().as_str();
    let found = text.and_then(|text| words.iter().find(|(word, _)| *word == text));
    if let Some((_, found)) = found {
        return Some(*found);
    }
    let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    match text.and_then(|text| meant(text, &known)) {
        Some(meant) => {
            let text = text.unwrap_or_default();
            let message = format!("{text:?} is not known; did you mean \"{meant}\"?");
            reading.wrong(value.span().start, path, message);
        }
        None => expected(value, path, &one_of(&known), reading),
    }
    None
}

/// "one of …".
pub(super) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.join(""),
    }
}

/// Gives an enum of ours, or of a library of ours, its words.
macro_rules! words {
    ($kind:ty { $($word:literal => $value:path),+ $(,)? }) => {
        impl $crate::config::field::Field for $kind {
            fn read(
                value: &$crate::config::reading::Value<'_>,
                path: &str,
                reading: &mut $crate::config::reading::Reading,
            ) -> Option<Self> {
                $crate::config::field::word(&[$(($word, $value)),+], value, path, reading)
            }

            fn show(&self) -> Option<String> {
                match self {
                    $($value => Some(concat!("\"", $word, "\"").into()),)+
                }
            }

            fn form() -> String {
                $crate::config::field::one_of(&[$($word),+])
            }
        }
    };
}
pub(super) use words;

/// A section: a struct whose fields are read, shown and described from one definition.
pub(crate) trait Section: Sized {
    /// What it is for.
    const ABOUT: &'static [&'static str];

    /// Reads a table.
    fn read_table(table: &mut super::reading::Table<'_, '_>, reading: &mut Reading) -> Self;

    /// Every field with its text.
    fn fields(&self) -> Vec<Described>;
}

/// A field as the reference and the example show it.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) name: &'static str,
    pub(crate) about: &'static [&'static str],
    pub(crate) form: String,
    /// As TOML; none when it is not set.
    pub(crate) value: Option<String>,
    /// A value to show where none is set.
    pub(crate) like: Option<&'static str>,
}

/// The name in the file of a field, which in Rust may be a raw identifier.
pub(super) const fn plain_name(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// Defines a section: each field with its words, its kind and its default; `like` shows a value
/// where the default is not to have one.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident: $kind:ty = $default:expr
               $(, like $like:literal)?; )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub(crate) struct $name {
            $( $(#[doc = $doc])+ pub(crate) $field: $kind, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $crate::config::field::Section for $name {
            const ABOUT: &'static [&'static str] = &[$($about),+];

            fn read_table(
                table: &mut $crate::config::reading::Table<'_, '_>,
                reading: &mut $crate::config::reading::Reading,
            ) -> Self {
                let default = Self::default();
                Self {
                    $( $field: table.take(
                        $crate::config::field::plain_name(stringify!($field)),
                        default.$field,
                        reading,
                    ), )+
                }
            }

            fn fields(&self) -> Vec<$crate::config::field::Described> {
                use $crate::config::field::{Described, Field, plain_name};
                vec![ $( Described {
                    name: plain_name(stringify!($field)),
                    about: &[$($doc),+],
                    form: <$kind as Field>::form(),
                    value: Field::show(&self.$field),
                    like: [$($like,)? ""].first().copied().filter(|like| !like.is_empty()),
                }, )+ ]
            }
        }
    };
}
pub(super) use section;

/// Reads an inline table as a section.
pub(super) fn inline<S: Section>(
    value: &Value<'_>,
    path: &str,
    form: &str,
    reading: &mut Reading,
) -> Option<S> {
    let Some(entries) = value.get_ref().as_table() else {
        expected(value, path, form, reading);
        return None;
    };
    let mut table = super::reading::Table::new(entries, path);
    let section = S::read_table(&mut table, reading);
    table.end(&[], reading);
    Some(section)
}

/// A section as an inline table.
pub(super) fn show_inline<S: Section>(section: &S) -> String {
    let fields = section.fields();
    let shown = fields.iter().filter_map(|field| {
        let value = field.value.as_ref()?;
        Some(format!("{} = {value}", join("", field.name)))
    });
    format!("{{ {} }}", shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn reads<T: Field>(text: &str) -> Option<T> {
        let value = DeValue::parse(text).unwrap();
        T::read(&value, "x", &mut Reading::of(text))
    }

    #[test]
    fn lengths_of_time_need_a_unit_and_are_said_shortly() {
        for (text, ms, said) in [
            ("\"500ms\"", 500, "\"500ms\""),
            ("\"30s\"", 30_000, "\"30s\""),
            ("\"90 s\"", 90_000, "\"90s\""),
            ("\"15m\"", 900_000, "\"15m\""),
            ("\"15min\"", 900_000, "\"15m\""),
            ("\"24h\"", 86_400_000, "\"24h\""),
            ("\"1d\"", 86_400_000, "\"24h\""),
            ("\"7d\"", 604_800_000, "\"7d\""),
            ("\"0s\"", 0, "\"0ms\""),
        ] {
            let read = reads::<Span>(text).unwrap();
            assert_eq!((read.0, read.show().unwrap().as_str()), (ms, said), "{text}");
        }
        for bad in ["30", "\"30\"", "\"s\"", "\"-3s\"", "\"1.5h\"", "\"99999999999999999999d\""] {
            assert_eq!(reads::<Span>(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_are_numbers_or_have_a_unit() {
        for (text, bytes, said) in [
            ("8388608", 8 << 20, "\"8MiB\""),
            ("\"8MiB\"", 8 << 20, "\"8MiB\""),
            ("\"8 MB\"", 8_000_000, "8000000"),
            ("\"1024KiB\"", 1 << 20, "\"1MiB\""),
            ("0x400", 1024, "\"1KiB\""),
            ("0", 0, "0"),
        ] {
            let read = reads::<Size>(text).unwrap();
            assert_eq!((read.0, read.show().unwrap().as_str()), (bytes, said), "{text}");
        }
        for bad in ["-1", "\"8\"", "\"8mib\"", "\"MiB\"", "1.5", "true"] {
            assert_eq!(reads::<Size>(bad), None, "{bad}");
        }
    }

    #[test]
    fn urls_have_a_host_and_no_login() {
        for (text, said) in [
            ("\"http://127.0.0.1:8080\"", "\"http://127.0.0.1:8080\""),
            ("\"https://api.example/v1\"", "\"https://api.example/v1\""),
        ] {
            assert_eq!(reads::<Url>(text).unwrap().show().unwrap(), said);
        }
        for bad in
            ["\"127.0.0.1:80\"", "\"ftp://h\"", "\"http://u:p@h\"", "\"/x\"", "\"http://h#f\""]
        {
            assert_eq!(reads::<Url>(bad), None, "{bad}");
        }
        for (bad, why) in [("http://u:hunter2@h", "a login"), ("http://h#hunter2", "a fragment")] {
            let text = quoted(bad);
            let mut reading = Reading::of(&text);
            assert_eq!(Url::read(&DeValue::parse(&text).unwrap(), "x", &mut reading), None);
            let told = reading.end("f").unwrap().to_string();
            assert!(told.contains(why) && !told.contains("hunter2"), "{told}");
        }
        assert!(reads::<SocketAddr>("\"localhost:0\"").is_some());
        assert!(reads::<SocketAddr>("\"7600\"").is_none());
    }
}
