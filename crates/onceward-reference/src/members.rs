//! The members of a JSON object, each as it was sent.
//!
//! Services keep fields that they know nothing of. Read into a number of the machine, 2^70 or a
//! price of twenty digits would come back as another one; so the text of each value is kept, and
//! only what a service looks at is read. JSON that has no one meaning (a member twice, 1e400, a
//! thousand levels) is refused, whatever media type it was sent as.

use std::collections::BTreeMap;

use onceward::core::canonical::{CanonicalError, Member, members_source};
use onceward::core::patch::merge_patch;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// Members in the order of their names.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Members(BTreeMap<String, Box<RawValue>>);

impl Members {
    /// Reads an object; none when it is JSON, but no object.
    pub(crate) fn read(json: &[u8]) -> Result<Option<Self>, CanonicalError> {
        let Some(members) = members_source(json)? else { return Ok(None) };
        let raw = |(name, source): Member<'_>| {
            // What was read is JSON.
            let text = String::from_utf8_lossy(source).into_owned();
            Some((name, RawValue::from_string(text).ok()?))
        };
        Ok(Some(Self(members.into_iter().filter_map(raw).collect())))
    }

    /// A member, read.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        serde_json::from_str(self.0.get(name)?.get()).ok()
    }

    /// A member that is a text; empty when there is none.
    pub(crate) fn text(&self, name: &str) -> String {
        let raw = self.0.get(name).map_or("", |value| value.get());
        serde_json::from_str(raw).unwrap_or_default()
    }

    /// Sets a member.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        // A value that was read can be written.
        if let Ok(raw) = to_raw_value(&value.into()) {
            self.0.insert(name.into(), raw);
        }
    }

    /// Takes a member away.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Whether there is such a member.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Takes away those of these names that are null.
    pub(crate) fn drop_nulls(&mut self, counts: impl Fn(&str) -> bool) {
        self.0.retain(|name, value| value.get() != "null" || !counts(name));
    }

    /// All but these.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let mut rest = self.clone();
        rest.0.retain(|name, _| !names.contains(&name.as_str()));
        rest
    }

    /// Only these.
    pub(crate) fn only(&self, names: &[&str]) -> Self {
        let mut some = self.clone();
        some.0.retain(|name, _| names.contains(&name.as_str()));
        some
    }

    /// Merges a patch (RFC 7396).
    pub(crate) fn merge(&mut self, patch: &Self) {
        // What was read as an object can be read and written again.
        let merged = merge_patch(Some(&self.bytes()), &patch.bytes());
        if let Some(Ok(Some(merged))) = merged.ok().map(|merged| Self::read(&merged)) {
            *self = merged;
        }
    }

    /// As it is kept and sent.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
impl From<&Value> for Members {
    fn from(value: &Value) -> Self {
        Self::read(value.to_string().as_bytes()).unwrap().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were_sent() {
        let sent =
            r#"{"a":1180591620717411303424,"b":{"c":[0.1234567890123456789012345]},"d":-1e-7}"#;
        let mut members = Members::read(sent.as_bytes()).unwrap().unwrap();
        assert_eq!(members.bytes(), sent.as_bytes());
        members.set("e", "x\"y");
        members.remove("d");
        assert_eq!((members.text("e"), members.text("a")), ("x\"y".into(), String::new()));
        assert_eq!(members.get("e"), Some("x\"y".into()));
        assert!(Members::read(b" [1] ").unwrap().is_none());
        assert!(Members::read(b"{\"a\":}").is_err());
    }

    #[test]
    fn what_has_no_one_meaning_is_refused_at_any_depth() {
        let deep = format!("{}1{}", "{\"\":".repeat(50_000), "}".repeat(50_000));
        for bad in [r#"{"a":1e400}"#, r#"{"x":{"a":1,"a":2}}"#, &deep] {
            Members::read(bad.as_bytes()).unwrap_err();
        }
    }

    #[test]
    fn a_patch_is_merged_and_numbers_keep_their_spelling() {
        let read = |json: &str| Members::read(json.as_bytes()).unwrap().unwrap();
        let mut members = read(r#"{"a":1.50,"b":{"c":1,"d":2},"e":3}"#);
        members.merge(&read(r#"{"b":{"c":18446744073709551617,"d":null},"e":null}"#));
        assert_eq!(members.bytes(), br#"{"a":1.50,"b":{"c":18446744073709551617}}"#);
    }
}
