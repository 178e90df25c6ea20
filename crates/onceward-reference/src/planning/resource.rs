//! Resources: documents of an organisation, as they are kept and as they are shown.
//!
//! A resource is a JSON object. Fields that the service knows are checked (`fields.rs`); further
//! members are kept as they came. `id`, `version` and `revision` are the service's own: the version
//! is the document's, and the revision is its ETag without the quotes.

use onceward::core::key::Subject;
use onceward::core::limits::LimitError;
use onceward::engine::Document;
use onceward::http::{ETag, Seen};
use serde_json::{Map, Value, json};

/// Members that a body can't set.
const OWN_MEMBERS: [&str; 4] = ["id", "version", "revision", "expected_version"];

/// What a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Organization,
    Project,
    Mission,
    Assignment,
    Collaborator,
}

impl Kind {
    /// The word in actions and subjects: `mission.lock`, `mission/7@3`.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Organization => "organization",
            Self::Project => "project",
            Self::Mission => "mission",
            Self::Assignment => "assignment",
            Self::Collaborator => "collaborator",
        }
    }

    /// Where documents of this kind are kept.
    pub(super) const fn space(self) -> &'static str {
        match self {
            Self::Organization => "planning.organization",
            Self::Project => "planning.project",
            Self::Mission => "planning.mission",
            Self::Assignment => "planning.assignment",
            Self::Collaborator => "planning.collaborator",
        }
    }

    /// Where a resource of this kind is read.
    pub(super) fn path(self, id: &str) -> String {
        match self {
            Self::Organization => "/v1/organization".into(),
            kind => format!("/v1/{}s/{id}", kind.word()),
        }
    }
}

/// A resource as it was seen, and as it is to be.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) version: u64,
    pub(super) fields: Map<String, Value>,
}

impl Resource {
    /// One that is not there yet.
    pub(super) fn new(kind: Kind, id: &str, fields: Map<String, Value>) -> Self {
        Self { kind, id: id.into(), version: 0, fields }
    }

    /// What a document holds; none when it was deleted.
    pub(super) fn of_seen(kind: Kind, id: &str, seen: &Seen) -> Option<Self> {
        let fields = serde_json::from_slice(seen.value.as_deref()?).ok()?;
        Some(Self { kind, id: id.into(), version: seen.version, fields })
    }

    /// What a document holds.
    pub(super) fn of_document(kind: Kind, document: &Document) -> Option<Self> {
        let fields = serde_json::from_slice(&document.value).ok()?;
        let (id, version) = (document.subject.id().into_owned(), document.version);
        Some(Self { kind, id, version, fields })
    }

    /// A field that is a text.
    pub(super) fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Sets a field.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.insert(name.into(), value.into());
    }

    /// Merges a patch into the fields (RFC 7396).
    pub(super) fn merge(&mut self, patch: &Map<String, Value>) {
        for (name, change) in patch {
            if !OWN_MEMBERS.contains(&name.as_str()) {
                merge_member(&mut self.fields, name, change);
            }
        }
    }

    /// The tag of this version.
    pub(super) fn tag(&self) -> ETag {
        ETag::of_version(self.version)
    }

    /// As jobs and the audit name it: `mission/7`.
    pub(super) fn subject(&self) -> String {
        format!("{}/{}", self.kind.word(), self.id)
    }

    /// As it is shown.
    pub(super) fn body(&self) -> Value {
        let revision = self.tag().opaque().to_string();
        let mut body = json!({ "id": self.id, "version": self.version, "revision": revision });
        if let Some(members) = body.as_object_mut() {
            members.extend(self.fields.clone());
        }
        body
    }

    /// As it is kept.
    pub(super) fn bytes(&self) -> Vec<u8> {
        Value::Object(self.fields.clone()).to_string().into_bytes()
    }
}

/// What a body says of the fields of a new resource.
pub(super) fn given(body: &Map<String, Value>) -> Map<String, Value> {
    let mut made = Map::new();
    for (name, value) in body {
        if !OWN_MEMBERS.contains(&name.as_str()) {
            merge_member(&mut made, name, value);
        }
    }
    made
}

/// The subject of a resource.
pub(super) fn subject(organisation: &str, kind: Kind, id: &str) -> Result<Subject, LimitError> {
    Subject::new(organisation, kind.space(), id)
}

fn merge_member(target: &mut Map<String, Value>, name: &str, change: &Value) {
    match change {
        Value::Null => {
            target.remove(name);
        }
        Value::Object(change) => {
            let below = target.entry(name).or_insert_with(|| json!({}));
            if !below.is_object() {
                *below = json!({});
            }
            if let Some(below) = below.as_object_mut() {
                for (name, change) in change {
                    merge_member(below, name, change);
                }
            }
        }
        value => {
            target.insert(name.into(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7396, appendix A, that are about objects.
    #[test]
    fn a_patch_is_merged() {
        for (before, patch, after) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":"foo"}), json!({"a":{"bb":{"c":null}}}), json!({"a":{"bb":{}}})),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
        ] {
            let object = |value: &Value| value.as_object().unwrap().clone();
            let mut resource = Resource::new(Kind::Project, "1", object(&before));
            resource.merge(&object(&patch));
            assert_eq!(Value::Object(resource.fields), after, "{before} + {patch}");
        }
    }

    #[test]
    fn what_the_service_keeps_is_not_merged() {
        let mut resource = Resource::new(Kind::Project, "1", Map::new());
        let patch = json!({ "id": "2", "version": 7, "revision": "7", "expected_version": 1 });
        resource.merge(patch.as_object().unwrap());
        assert_eq!(resource.body(), json!({ "id": "1", "version": 0, "revision": "0" }));
    }
}
