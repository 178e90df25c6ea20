//! Preconditions (RFC 9110 section 13): what a client has seen, and whether that still holds.
//!
//! If-Match comes before If-None-Match, and is compared strongly; If-None-Match is compared weakly.
//! Documents have no dates, so the two headers with dates are ignored, as the RFC asks for then.
//! A check here is a courtesy that finds most conflicts early: what makes a lost update impossible
//! is the version that the write expects, checked in its own batch.

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, Method};

use super::etag::{ETag, NotTags, Tags};
use super::refusal::{Code, Refusal};

/// Which tags count in `If-Match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagRules {
    /// `*` and weak tags are refused as malformed, instead of matching anything or nothing.
    pub strict: bool,
    /// `W/"x"` and `"x-gzip"` count as `"x"` when `"x"` is what we minted: for services behind a
    /// proxy that compresses.
    pub altered: bool,
}

/// The preconditions of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preconditions {
    if_match: Option<Tags>,
    if_none_match: Option<Tags>,
    rules: TagRules,
    reads: bool,
}

/// What a read comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadCheck {
    /// Send the representation.
    Send,
    /// The client has it already: 304.
    NotModified,
}

impl Preconditions {
    /// Reads them from a request.
    ///
    /// # Errors
    /// When a header is not a list of tags, or names tags that the rules refuse.
    pub fn read(method: &Method, headers: &HeaderMap, rules: TagRules) -> Result<Self, Refusal> {
        let tags = |name| {
            let lines = headers.get_all(&name);
            Tags::read(lines).map_err(|error: NotTags| {
                Refusal::new(Code::PreconditionInvalid, format!("{name}: {error}"))
            })
        };
        let if_match = tags(IF_MATCH)?;
        let refused = match &if_match {
            Some(Tags::Any) => rules.strict,
            Some(Tags::These(tags)) => rules.strict && !rules.altered && any_weak(tags),
            None => false,
        };
        if refused {
            let detail = "If-Match takes the strong ETag that you have seen, not * or a weak tag";
            return Err(Refusal::new(Code::PreconditionInvalid, detail));
        }
        let reads = *method == Method::GET || *method == Method::HEAD;
        Ok(Self { if_match, if_none_match: tags(IF_NONE_MATCH)?, rules, reads })
    }

    /// Insists on `If-Match`.
    ///
    /// # Errors
    /// When the request has none.
    pub fn require_if_match(&self) -> Result<(), Refusal> {
        match self.if_match {
            Some(_) => Ok(()),
            None => Err(Refusal::new(
                Code::PreconditionRequired,
                "send If-Match with the ETag that you have seen",
            )),
        }
    }

    /// Checks a write against the tag of what is there, or none when nothing is.
    ///
    /// # Errors
    /// When a precondition does not hold; the refusal names what is there.
    pub fn check_write(&self, current: Option<&ETag>) -> Result<(), Refusal> {
        if self.if_match_holds(current) && !self.is_known(current) {
            return Ok(());
        }
        Err(Refusal::precondition_failed(current))
    }

    /// Checks a read against the tag of what is there, or none when nothing is.
    ///
    /// # Errors
    /// When `If-Match` does not hold.
    pub fn check_read(&self, current: Option<&ETag>) -> Result<ReadCheck, Refusal> {
        if !self.if_match_holds(current) {
            return Err(Refusal::precondition_failed(current));
        }
        match (self.is_known(current), self.reads) {
            (false, _) => Ok(ReadCheck::Send),
            (true, true) => Ok(ReadCheck::NotModified),
            (true, false) => Err(Refusal::precondition_failed(current)),
        }
    }

    fn if_match_holds(&self, current: Option<&ETag>) -> bool {
        match (&self.if_match, current) {
            (None, _) | (Some(Tags::Any), Some(_)) => true,
            (Some(_), None) => false,
            (Some(Tags::These(tags)), Some(current)) => tags.iter().any(|tag| {
                tag.same_strongly(current) || (self.rules.altered && tag.is_altered_from(current))
            }),
        }
    }

    /// Whether `If-None-Match` names what is there.
    fn is_known(&self, current: Option<&ETag>) -> bool {
        match (&self.if_none_match, current) {
            (None, _) | (Some(_), None) => false,
            (Some(Tags::Any), Some(_)) => true,
            (Some(Tags::These(tags)), Some(current)) => tags.iter().any(|tag| {
                tag.same_weakly(current) || (self.rules.altered && tag.is_altered_from(current))
            }),
        }
    }
}

impl Refusal {
    /// The resource is not what the client has seen; `current` is what it is.
    #[must_use]
    pub fn precondition_failed(current: Option<&ETag>) -> Self {
        let detail = match current {
            Some(_) => "read it again, and decide anew with the ETag that it has now",
            None => "there is nothing here to match",
        };
        let mut refusal = Self::new(Code::PreconditionFailed, detail);
        refusal.current = current.map(|tag| tag.opaque().to_string());
        refusal
    }

    /// The version that the body expected is not the one that is there.
    #[must_use]
    pub fn version_mismatch(current: u64) -> Self {
        let detail = "read it again, and decide anew with the version that it has now";
        let mut refusal = Self::new(Code::VersionMismatch, detail);
        refusal.current = Some(current.to_string());
        refusal
    }
}

fn any_weak(tags: &[ETag]) -> bool {
    tags.iter().any(ETag::is_weak)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        method: &Method,
        headers: &[(&'static str, &str)],
        rules: TagRules,
    ) -> Result<Preconditions, Code> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        Preconditions::read(method, &map, rules).map_err(|refusal| refusal.code)
    }

    fn writes(headers: &[(&'static str, &str)], rules: TagRules, at: Option<u64>) -> bool {
        let current = at.map(ETag::of_version);
        let checked = read(&Method::PUT, headers, rules).unwrap().check_write(current.as_ref());
        if let Err(refusal) = &checked {
            assert_eq!(refusal.code, Code::PreconditionFailed);
            assert_eq!(refusal.current, at.map(|at| at.to_string()));
        }
        checked.is_ok()
    }

    #[test]
    fn b02_if_match_is_compared_strongly() {
        let rules = TagRules::default();
        for (value, holds) in [
            ("\"3\"", true),
            ("\"2\"", false),
            ("\"2\", \"3\"", true),
            ("W/\"3\"", false),
            ("\"3-gzip\"", false),
            ("*", true),
        ] {
            assert_eq!(writes(&[("if-match", value)], rules, Some(3)), holds, "{value}");
            assert!(!writes(&[("if-match", value)], rules, None), "{value} on nothing");
        }
        assert!(writes(&[], rules, Some(3)));
        assert!(writes(&[], rules, None));
    }

    #[test]
    fn b02_the_strict_rules_refuse_star_and_weak_tags() {
        let strict = TagRules { strict: true, altered: false };
        for bad in ["*", "W/\"3\"", "\"3\", W/\"3\"", "3"] {
            let refused = read(&Method::PUT, &[("if-match", bad)], strict).unwrap_err();
            assert_eq!(refused, Code::PreconditionInvalid, "{bad}");
        }
        assert!(writes(&[("if-match", "\"3\"")], strict, Some(3)));
    }

    #[test]
    fn an_altered_tag_counts_when_that_was_asked_for() {
        for strict in [false, true] {
            let rules = TagRules { strict, altered: true };
            for altered in ["W/\"3\"", "\"3-gzip\"", "W/\"3-gzip\""] {
                assert!(writes(&[("if-match", altered)], rules, Some(3)), "{altered}");
                assert!(!writes(&[("if-match", altered)], rules, Some(4)), "{altered}");
            }
        }
    }

    #[test]
    fn if_none_match_star_means_create_only() {
        let rules = TagRules::default();
        assert!(writes(&[("if-none-match", "*")], rules, None));
        assert!(!writes(&[("if-none-match", "*")], rules, Some(1)));
        assert!(!writes(&[("if-none-match", "W/\"1\"")], rules, Some(1)), "compared weakly");
        assert!(writes(&[("if-none-match", "\"2\"")], rules, Some(1)));
    }

    /// RFC 9110 section 13.2.2: If-Match is judged first, If-None-Match after it.
    #[test]
    fn if_match_takes_precedence_over_if_none_match() {
        let both = [("if-match", "\"3\""), ("if-none-match", "\"3\"")];
        let get = |at: u64| {
            let current = ETag::of_version(at);
            let read = read(&Method::GET, &both, TagRules::default()).unwrap();
            read.check_read(Some(&current)).map_err(|refusal| refusal.code)
        };
        assert_eq!(get(3), Ok(ReadCheck::NotModified));
        assert_eq!(get(4), Err(Code::PreconditionFailed));
        assert!(!writes(&both, TagRules::default(), Some(3)), "304 is only for reads");
    }

    #[test]
    fn a_read_is_304_when_the_client_has_it() {
        for (value, expected) in [
            ("\"3\"", ReadCheck::NotModified),
            ("W/\"3\"", ReadCheck::NotModified),
            ("\"2\"", ReadCheck::Send),
            ("*", ReadCheck::NotModified),
        ] {
            let read =
                read(&Method::GET, &[("if-none-match", value)], TagRules::default()).unwrap();
            assert_eq!(read.check_read(Some(&ETag::of_version(3))).unwrap(), expected, "{value}");
            assert_eq!(read.check_read(None).unwrap(), ReadCheck::Send, "{value} on nothing");
        }
    }

    #[test]
    fn b02_a_missing_if_match_is_428_where_it_is_required() {
        let without = read(&Method::PUT, &[], TagRules::default()).unwrap();
        let refusal = without.require_if_match().unwrap_err();
        assert_eq!(refusal.code.meaning().status, 428);
        let with = read(&Method::PUT, &[("if-match", "\"1\"")], TagRules::default()).unwrap();
        assert!(with.require_if_match().is_ok());
    }
}
