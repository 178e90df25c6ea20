//! The members of a JSON object, each as it was sent.
//!
//! Services keep fields that they know nothing of. Read into a number of the machine, 2^70 or a
//! price of twenty digits would come back as another one; so the text of each value is kept, and
//! only what a service looks at is read. Not responsible for JSON that has no one meaning (a member
//! twice, 1e400): that was refused before it came here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Error, Value};

/// Members in the order of their names.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Members(BTreeMap<String, Box<RawValue>>);

impl Members {
    /// Reads an object; none when it is JSON, but no object.
    pub(crate) fn read(json: &[u8]) -> Result<Option<Self>, Error> {
        let whole: &RawValue = serde_json::from_slice(json)?;
        if is_object(whole) { Self::of(whole).map(Some) } else { Ok(None) }
    }

    fn of(object: &RawValue) -> Result<Self, Error> {
        serde_json::from_str(object.get())
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
        let merged = to_raw_value(self).and_then(|target| {
            let merged = merge(Some(&target), &to_raw_value(patch)?)?;
            Self::of(&merged)
        });
        if let Ok(merged) = merged {
            *self = merged;
        }
    }

    /// As it is kept and sent.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// What becomes of a value when a patch is merged into it (RFC 7396, section 2).
pub(crate) fn merge(target: Option<&RawValue>, patch: &RawValue) -> Result<Box<RawValue>, Error> {
    if !is_object(patch) {
        return Ok(patch.to_owned());
    }
    let target = target.filter(|target| is_object(target)).map(Members::of).transpose()?;
    let Members(mut members) = target.unwrap_or_default();
    for (name, change) in Members::of(patch)?.0 {
        if change.get() == "null" {
            members.remove(&name);
        } else {
            let merged = merge(members.get(&name).map(|there| &**there), &change)?;
            members.insert(name, merged);
        }
    }
    to_raw_value(&Members(members))
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
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

    fn raw(json: &str) -> Box<RawValue> {
        serde_json::from_str(json).unwrap()
    }

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

    /// The examples of RFC 7396, appendix A, that are about objects, and numbers of any size.
    #[test]
    fn a_patch_is_merged() {
        for (before, patch, after) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            (r#"{"a":"foo"}"#, r#"{"a":{"bb":{"c":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (
                r#"{"a":1.50}"#,
                r#"{"b":{"c":18446744073709551617}}"#,
                r#"{"a":1.50,"b":{"c":18446744073709551617}}"#,
            ),
        ] {
            let merged = merge(Some(&raw(before)), &raw(patch)).unwrap();
            assert_eq!(merged.get(), after, "{before} + {patch}");
        }
        assert_eq!(merge(None, &raw(r#"{"a":{"b":null}}"#)).unwrap().get(), r#"{"a":{}}"#);
    }
}
