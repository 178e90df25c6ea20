//! Keys and subjects: what a record and a mark are found by.
//!
//! A key is tenant + kind + scope + whatever narrows the scope (caller, path values) + id. Parts
//! are compared byte for byte, without Unicode normalisation, and joined injectively: no choice of
//! characters in one part can imitate another. The tenant leads, always.
//! The HTTP header's syntax is not this file's business: see `header_key`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::Text;
use crate::limits::{LimitError, MAX_KEY_BYTES, MAX_PART_BYTES, MAX_WITHIN_PARTS};
use crate::text::{escape, unescape};
use crate::zoo::{Bug, planted};

/// What a record is about. Keys of different kinds never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An idempotent request or a claim over the control API.
    Request,
    /// A background job.
    Job,
    /// An event as one handler sees it.
    Event,
    /// An append to an event store.
    Append,
}

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Request, Self::Job, Self::Event, Self::Append];

    /// The word in texts and columns.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Job => "job",
            Self::Event => "event",
            Self::Append => "append",
        }
    }

    /// Reads [`Kind::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Identity of a record. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<KeyParts>);

struct KeyParts {
    tenant: Box<str>,
    kind: Kind,
    name: Box<str>,
    /// Made when it is first asked for: a request's log, cache and audit entry all show it.
    hash: OnceLock<Text>,
}

impl KeyParts {
    /// What makes it this key and no other, in the order of lists.
    fn identity(&self) -> (&str, Kind, &str) {
        (&self.tenant, self.kind, &self.name)
    }
}

impl PartialEq for KeyParts {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for KeyParts {}

impl Hash for KeyParts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl PartialOrd for KeyParts {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyParts {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Key {
    /// A key without narrowing parts.
    ///
    /// # Errors
    /// When a part is empty or longer than [`MAX_PART_BYTES`].
    pub fn new(kind: Kind, tenant: &str, scope: &str, id: &str) -> Result<Self, LimitError> {
        Self::within(kind, tenant, scope, &[], id)
    }

    /// A key whose scope is narrowed by further parts, such as the caller and path values. These
    /// parts may be empty; tenant, scope and id may not.
    ///
    /// # Errors
    /// When a part, their number or the whole key breaks its bound.
    pub fn within(
        kind: Kind,
        tenant: &str,
        scope: &str,
        within: &[&str],
        id: &str,
    ) -> Result<Self, LimitError> {
        check_part("tenant", tenant, 1)?;
        check_part("scope", scope, 1)?;
        check_part("id", id, 1)?;
        if within.len() > MAX_WITHIN_PARTS {
            let bound = format!("at most {MAX_WITHIN_PARTS} parts");
            return Err(LimitError::new("within", within.len(), bound));
        }
        let mut name = escape(scope).into_owned();
        for part in within {
            check_part("within", part, 0)?;
            if planted(Bug::KeyWithoutPath) {
                continue;
            }
            name.push(':');
            name.push_str(&escape(part));
        }
        name.push(':');
        name.push_str(&escape(id));
        let tenant =
            if planted(Bug::KeyWithoutTenant) { Cow::Borrowed("-") } else { escape(tenant) };
        // Its parts are in key form: they were escaped here.
        Self::of_columns(&tenant, kind, &name)
    }

    /// Rebuilds a key from what [`Key::tenant_column`] and [`Key::name_column`] gave.
    ///
    /// # Errors
    /// When the columns are not something a key writes.
    pub fn from_columns(tenant: &str, kind: Kind, name: &str) -> Result<Self, LimitError> {
        let key = Self::of_columns(tenant, kind, name)?;
        let parts_fit = name.split(':').count() >= 2 && name.split(':').all(is_escaped);
        if !is_escaped(tenant) || tenant.is_empty() || !parts_fit {
            return Err(LimitError::new(
                "key",
                "not in key form",
                "tenant:kind:scope:…:id, escaped",
            ));
        }
        Ok(key)
    }

    /// A key of columns that are in key form, within its bound.
    fn of_columns(tenant: &str, kind: Kind, name: &str) -> Result<Self, LimitError> {
        let bytes = tenant.len() + name.len();
        if bytes > MAX_KEY_BYTES {
            let bound = format!("at most {MAX_KEY_BYTES} bytes, escaped");
            return Err(LimitError::new("key", format!("{bytes} bytes"), bound));
        }
        let (tenant, name, hash) = (tenant.into(), name.into(), OnceLock::new());
        Ok(Self(Arc::new(KeyParts { tenant, kind, name, hash })))
    }

    /// Reads the text form that `Display` writes: `tenant:kind:scope:…:id`, parts escaped.
    ///
    /// # Errors
    /// When the text has another form.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        let bad = || {
            let bound = "tenant:kind:scope:id with %3A for a colon inside a part; \
                         kind is request, job, event or append";
            LimitError::new("key", format!("{:?}", crate::text_cut(text, 80)), bound)
        };
        let (tenant, rest) = text.split_once(':').ok_or_else(bad)?;
        let (kind, name) = rest.split_once(':').ok_or_else(bad)?;
        let kind = Kind::parse(kind).ok_or_else(bad)?;
        let unescaped = |part| unescape(part).ok_or_else(bad);
        let parts: Vec<_> = name.split(':').map(unescaped).collect::<Result<_, _>>()?;
        let [scope, within @ .., id] = parts.as_slice() else { return Err(bad()) };
        let within: Vec<&str> = within.iter().map(AsRef::as_ref).collect();
        Self::within(kind, &unescaped(tenant)?, scope, &within, id)
    }

    /// What the record is about.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> Cow<'_, str> {
        plain(&self.0.tenant)
    }

    /// The scope: endpoint, queue, handler, …
    #[must_use]
    pub fn scope(&self) -> Cow<'_, str> {
        plain(self.0.name.split(':').next().unwrap_or_default())
    }

    /// The parts between scope and id.
    pub fn within_parts(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let parts = self.0.name.split(':').count();
        self.0.name.split(':').take(parts - 1).skip(1).map(plain)
    }

    /// The id, unique in the scope.
    #[must_use]
    pub fn id(&self) -> Cow<'_, str> {
        plain(self.0.name.rsplit(':').next().unwrap_or_default())
    }

    /// The tenant as stores keep it (escaped).
    #[must_use]
    pub fn tenant_column(&self) -> &str {
        &self.0.tenant
    }

    /// Scope, narrowing parts and id as stores keep them (escaped, joined by `:`).
    #[must_use]
    pub fn name_column(&self) -> &str {
        &self.0.name
    }

    /// The scope as stores keep it (escaped).
    #[must_use]
    pub fn scope_column(&self) -> &str {
        self.0.name.split(':').next().unwrap_or_default()
    }

    /// A short hash that logs and audit entries may show in the key's place.
    #[must_use]
    pub fn hash_hex(&self) -> &Text {
        let KeyParts { tenant, kind, name, hash } = &*self.0;
        let parts = [tenant.as_bytes(), kind.as_str().as_bytes(), name.as_bytes()];
        hash.get_or_init(|| crate::audit::hash_hex(&parts).into())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.0.tenant, self.0.kind.as_str(), self.0.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Identity of a mark or document: tenant + space + id. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(Arc<SubjectParts>);

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct SubjectParts {
    tenant: Box<str>,
    name: Box<str>,
}

impl Subject {
    /// A subject: `id`, unique in `space` of `tenant`.
    ///
    /// # Errors
    /// When a part is empty or too long.
    pub fn new(tenant: &str, space: &str, id: &str) -> Result<Self, LimitError> {
        check_part("tenant", tenant, 1)?;
        check_part("space", space, 1)?;
        check_part("subject", id, 1)?;
        let name = format!("{}:{}", escape(space), escape(id));
        Self::from_columns(&escape(tenant), &name)
    }

    /// Rebuilds a subject from its columns.
    ///
    /// # Errors
    /// When the columns are not something a subject writes.
    pub fn from_columns(tenant: &str, name: &str) -> Result<Self, LimitError> {
        let bytes = tenant.len() + name.len();
        if bytes > MAX_KEY_BYTES {
            let bound = format!("at most {MAX_KEY_BYTES} bytes, escaped");
            return Err(LimitError::new("subject", format!("{bytes} bytes"), bound));
        }
        let parts_fit = name.split(':').count() == 2 && name.split(':').all(is_escaped);
        if tenant.is_empty() || !is_escaped(tenant) || !parts_fit {
            return Err(LimitError::new("subject", "not in subject form", "space:id, escaped"));
        }
        Ok(Self(Arc::new(SubjectParts { tenant: tenant.into(), name: name.into() })))
    }

    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> Cow<'_, str> {
        plain(&self.0.tenant)
    }

    /// The space that the id is unique in.
    #[must_use]
    pub fn space(&self) -> Cow<'_, str> {
        plain(self.0.name.split(':').next().unwrap_or_default())
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> Cow<'_, str> {
        plain(self.0.name.rsplit(':').next().unwrap_or_default())
    }

    /// The tenant as stores keep it (escaped).
    #[must_use]
    pub fn tenant_column(&self) -> &str {
        &self.0.tenant
    }

    /// Space and id as stores keep them (escaped, joined by `:`).
    #[must_use]
    pub fn name_column(&self) -> &str {
        &self.0.name
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.tenant, self.0.name)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({self})")
    }
}

/// Checks one part of a key.
///
/// # Errors
/// When it is shorter than `least` or longer than [`MAX_PART_BYTES`].
pub fn check_part(field: &'static str, part: &str, least: usize) -> Result<(), LimitError> {
    if (least..=MAX_PART_BYTES).contains(&part.len()) {
        return Ok(());
    }
    let bound = format!("{least} to {MAX_PART_BYTES} bytes");
    Err(LimitError::new(field, format!("{} bytes", part.len()), bound))
}

fn is_escaped(part: &str) -> bool {
    unescape(part).is_some()
}

fn plain(part: &str) -> Cow<'_, str> {
    // Constructors only admit escaped parts, so the fallback is never taken.
    unescape(part).unwrap_or(Cow::Borrowed(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_gives_its_parts_back() {
        let key =
            Key::within(Kind::Request, "acme", "PUT /c/{id}", &["bob", "a:b"], "k%1").unwrap();
        assert_eq!(key.to_string(), "acme:request:PUT /c/{id}:bob:a%3Ab:k%251");
        assert_eq!(key.tenant(), "acme");
        assert_eq!(key.scope(), "PUT /c/{id}");
        assert_eq!(key.within_parts().collect::<Vec<_>>(), ["bob", "a:b"]);
        assert_eq!(key.id(), "k%1");
        assert_eq!(Key::parse(&key.to_string()).unwrap(), key);
    }

    #[test]
    fn bounds_name_field_value_and_bound() {
        let error = Key::new(Kind::Job, "", "s", "i").unwrap_err();
        assert_eq!(error.to_string(), "tenant is 0 bytes, but must be 1 to 512 bytes");
        let long = "x".repeat(513);
        let error = Key::new(Kind::Job, "t", "s", &long).unwrap_err();
        assert_eq!(error.to_string(), "id is 513 bytes, but must be 1 to 512 bytes");
        assert!(Key::new(Kind::Job, &"t".repeat(512), &"s".repeat(512), &"i".repeat(512)).is_ok());
        let colons = ":".repeat(512);
        assert_eq!(Key::new(Kind::Job, "t", &colons, &colons).unwrap_err().field, "key");
        let many = vec!["x"; 17];
        assert_eq!(Key::within(Kind::Job, "t", "s", &many, "i").unwrap_err().field, "within");
    }

    #[test]
    fn foreign_text_is_refused() {
        for text in
            ["", "a", "a:job", "a:job:s", "a:nope:s:i", "a:job:s:%41", ":job:s:i", "a:job::i"]
        {
            assert!(Key::parse(text).is_err(), "{text:?}");
        }
    }

    fn part() -> impl Strategy<Value = String> {
        prop_oneof!["[a:%]{1,4}", "[ -~]{1,12}", "\\PC{1,6}", Just("\0".to_string())]
    }

    proptest! {
        #[test]
        fn keys_are_injective(
            a in (part(), part(), prop::collection::vec(part(), 0..3), part()),
            b in (part(), part(), prop::collection::vec(part(), 0..3), part()),
        ) {
            let make = |p: &(String, String, Vec<String>, String)| {
                let within: Vec<&str> = p.2.iter().map(String::as_str).collect();
                Key::within(Kind::Request, &p.0, &p.1, &within, &p.3).unwrap()
            };
            prop_assert_eq!(a == b, make(&a) == make(&b));
            prop_assert_eq!(a == b, make(&a).to_string() == make(&b).to_string());
            prop_assert_eq!(Key::parse(&make(&a).to_string()).unwrap(), make(&a));
        }

        #[test]
        fn parse_never_panics(text in any::<String>()) {
            if let Ok(key) = Key::parse(&text) {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }
}
