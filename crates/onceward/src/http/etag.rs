//! Entity tags (RFC 9110 section 8.8.3): made from a document's version, read from a header.
//!
//! The rule kept here: two tags are the same strongly only when neither is weak; a list that is not
//! one is refused whole, because half a precondition protects nobody. What a match means is decided
//! in `preconditions`.

use std::fmt;

use http::HeaderValue;

/// Tags that one header may name, and empty elements that are passed over in it.
pub const TAGS_MAX: usize = 64;
/// What a proxy that compresses appends to the tag of what it compressed.
const ALTERED_SUFFIXES: [&str; 3] = ["-gzip", "-br", "-zstd"];

/// An entity tag: `"3"`, or `W/"3"` when it is weak.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ETag {
    weak: bool,
    opaque: Box<str>,
}

/// What a header of tags asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tags {
    /// `*`: anything that is there.
    Any,
    /// One of these.
    These(Vec<ETag>),
}

/// The text is not an entity tag or a list of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a list of entity tags: each is quoted, as in \"3\" or W/\"3\", at most {TAGS_MAX}")]
pub struct NotTags;

impl ETag {
    /// The strong tag of a document at this version.
    #[must_use]
    pub fn of_version(version: u64) -> Self {
        Self { weak: false, opaque: version.to_string().into() }
    }

    /// A strong tag of this text, which is what stands between the quotes.
    ///
    /// # Errors
    /// When a character may not stand there.
    pub fn strong(opaque: &str) -> Result<Self, NotTags> {
        if !opaque.bytes().all(is_tag_byte) {
            return Err(NotTags);
        }
        Ok(Self { weak: false, opaque: opaque.into() })
    }

    /// What stands between the quotes.
    #[must_use]
    pub fn opaque(&self) -> &str {
        &self.opaque
    }

    /// Whether it only promises that the meaning is the same, not the bytes.
    #[must_use]
    pub fn is_weak(&self) -> bool {
        self.weak
    }

    /// The version that this is the tag of, if [`ETag::of_version`] made it.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        let version = self.opaque.parse().ok()?;
        (*self == Self::of_version(version)).then_some(version)
    }

    /// The same bytes: both strong, and the same text.
    #[must_use]
    pub fn same_strongly(&self, other: &Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// The same meaning: the same text.
    #[must_use]
    pub fn same_weakly(&self, other: &Self) -> bool {
        self.opaque == other.opaque
    }

    /// Whether this is `minted` as a proxy on the way may have altered it: weakened, or marked with
    /// the coding that the proxy applied.
    #[must_use]
    pub fn is_altered_from(&self, minted: &Self) -> bool {
        let coded = || {
            let rest = self.opaque.strip_prefix(&*minted.opaque);
            rest.is_some_and(|rest| ALTERED_SUFFIXES.contains(&rest))
        };
        self.opaque == minted.opaque || coded()
    }

    /// As the value of an `ETag` header.
    #[must_use]
    pub fn header_value(&self) -> HeaderValue {
        let value = HeaderValue::from_str(&self.to_string());
        // Every byte of a tag may stand in a header; this can't be reached.
        value.unwrap_or_else(|_| HeaderValue::from_static("W/\"\""))
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\"{}\"", if self.weak { "W/" } else { "" }, self.opaque)
    }
}

impl Tags {
    /// Reads every line of a header; none when there is none.
    ///
    /// # Errors
    /// When a line is not a list of tags, or `*` is not alone.
    pub fn read<'a>(
        lines: impl IntoIterator<Item = &'a HeaderValue>,
    ) -> Result<Option<Self>, NotTags> {
        let mut any = false;
        let mut tags = Vec::new();
        for line in lines {
            // Tags with bytes past ASCII are allowed in theory; we never mint one.
            let line = line.to_str().map_err(|_| NotTags)?.trim();
            if line == "*" && !any && tags.is_empty() {
                any = true;
                continue;
            }
            read_line(line, &mut tags)?;
        }
        match (any, tags.is_empty()) {
            (true, true) => Ok(Some(Self::Any)),
            (true, false) => Err(NotTags),
            (false, true) => Ok(None),
            (false, false) => Ok(Some(Self::These(tags))),
        }
    }
}

/// Reads one line. Empty elements of the list are passed over (RFC 9110 section 5.6.1.2), but a
/// line of nothing else names no tag: half a precondition protects nobody.
fn read_line(line: &str, tags: &mut Vec<ETag>) -> Result<(), NotTags> {
    let before = tags.len();
    let (mut rest, mut empty) = (line, 0);
    loop {
        rest = match rest.strip_prefix(',') {
            Some(next) if empty < TAGS_MAX => {
                empty += 1;
                next.trim_start()
            }
            Some(_) => return Err(NotTags),
            None if rest.is_empty() => break,
            None => read_tag(rest, tags)?,
        };
    }
    if tags.len() == before { Err(NotTags) } else { Ok(()) }
}

/// Reads one tag; what is left begins at the comma behind it and the element after that.
fn read_tag<'a>(text: &'a str, tags: &mut Vec<ETag>) -> Result<&'a str, NotTags> {
    let (weak, quoted) = match text.strip_prefix("W/") {
        Some(quoted) => (true, quoted),
        None => (false, text),
    };
    let opaque = quoted.strip_prefix('"').ok_or(NotTags)?;
    let (opaque, after) = opaque.split_once('"').ok_or(NotTags)?;
    if tags.len() == TAGS_MAX {
        return Err(NotTags);
    }
    tags.push(ETag { weak, ..ETag::strong(opaque)? });
    let after = after.trim_start();
    match after.strip_prefix(',') {
        Some(next) => Ok(next.trim_start()),
        None if after.is_empty() => Ok(after),
        None => Err(NotTags),
    }
}

fn is_tag_byte(byte: u8) -> bool {
    byte == 0x21 || (0x23..=0x7e).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(lines: &[&str]) -> Result<Option<Tags>, NotTags> {
        let lines: Vec<_> = lines.iter().map(|line| HeaderValue::from_str(line).unwrap()).collect();
        Tags::read(&lines)
    }

    fn tag(text: &str) -> ETag {
        match read(&[text]) {
            Ok(Some(Tags::These(tags))) if tags.len() == 1 => tags[0].clone(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn lists_are_read_across_lines_and_commas_inside_quotes_belong_to_the_tag() {
        let Ok(Some(Tags::These(tags))) = read(&["\"a,b\" ,W/\"c\"", "\"\""]) else { panic!() };
        let shown: Vec<_> = tags.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["\"a,b\"", "W/\"c\"", "\"\""]);
        assert_eq!(read(&["*"]), Ok(Some(Tags::Any)));
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn what_is_not_a_list_of_tags_is_refused_whole() {
        for bad in
            ["", ",", " , ,", "a", "\"a", "\"a\" \"b\"", "w/\"a\"", "*, \"a\"", "\"a b\"", "*,"]
        {
            assert_eq!(read(&[bad]), Err(NotTags), "{bad:?}");
        }
        assert_eq!(read(&["*", "\"a\""]), Err(NotTags));
        assert_eq!(read(&["\"a\"", "*"]), Err(NotTags));
        assert_eq!(read(&[&vec!["\"a\""; TAGS_MAX + 1].join(",")]), Err(NotTags));
    }

    #[test]
    fn peer_d5_empty_elements_of_a_list_of_tags_are_ignored() {
        for line in ["\"a\",", ",\"a\"", ",, \"a\" , ,", "\t\"a\"\t,\t", " ,\"a\""] {
            assert_eq!(tag(line), tag("\"a\""), "{line:?}");
        }
        let Ok(Some(Tags::These(tags))) = read(&["\"a\",,W/\"b\",", ",\"c\""]) else { panic!() };
        assert_eq!(tags.len(), 3);
        // A reasonable number of them, and no more.
        assert_eq!(read(&[&format!("\"a\"{}", ",".repeat(TAGS_MAX + 2))]), Err(NotTags));
    }

    /// RFC 9110, the table in section 8.8.3.2.
    #[test]
    fn comparison_is_strong_or_weak_by_the_rfcs_table() {
        for (one, other, strongly, weakly) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
        ] {
            let (a, b) = (tag(one), tag(other));
            assert_eq!((a.same_strongly(&b), a.same_weakly(&b)), (strongly, weakly), "{one}");
        }
    }

    #[test]
    fn an_altered_tag_is_known_by_what_was_minted() {
        let minted = ETag::of_version(3);
        for altered in ["W/\"3\"", "\"3-gzip\"", "W/\"3-gzip\"", "\"3-br\"", "\"3\""] {
            assert!(tag(altered).is_altered_from(&minted), "{altered}");
        }
        for other in ["\"33\"", "W/\"2\"", "\"3-\"", "\"3-gzip-gzip\"", "\"-gzip\""] {
            assert!(!tag(other).is_altered_from(&minted), "{other}");
        }
    }

    #[test]
    fn a_version_comes_back_from_its_own_tag_only() {
        assert_eq!(ETag::of_version(7).version(), Some(7));
        for other in ["W/\"7\"", "\"07\"", "\"+7\"", "\"x\""] {
            assert_eq!(tag(other).version(), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_lines_never_panic_and_what_is_read_is_written_the_same(line in "[ -~]{0,40}") {
            if let Ok(Some(Tags::These(tags))) = read(&[&line]) {
                let written: Vec<_> = tags.iter().map(ToString::to_string).collect();
                prop_assert_eq!(read(&[&written.join(", ")]), Ok(Some(Tags::These(tags))));
            }
        }
    }
}
