//! Resources: documents of an organisation, as they are kept and as they are shown.
//!
//! A resource is a JSON object. Fields that the service knows are checked (`fields.rs`); further
//! members are kept as they came. `id`, `version` and `revision` are the service's own: the version
//! is the document's, and the revision is its ETag without the quotes.

use onceward::core::key::Subject;
use onceward::core::limits::LimitError;
use onceward::engine::Document;
use onceward::http::{ETag, Seen};
use serde_json::Value;

use super::fields::is_known;
use crate::members::Members;

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
    pub(super) fields: Members,
}

impl Resource {
    /// One that is not there yet.
    pub(super) fn new(kind: Kind, id: &str, fields: Members) -> Self {
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
    pub(super) fn text(&self, name: &str) -> String {
        self.fields.text(name)
    }

    /// Sets a field.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fields.set(name, value);
    }

    /// Merges a patch into the fields (RFC 7396).
    pub(super) fn merge(&mut self, patch: &Members) {
        self.fields.merge(&patch.without(&OWN_MEMBERS));
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
    pub(super) fn body(&self) -> Members {
        let mut body = self.fields.clone();
        body.set("id", self.id.as_str());
        body.set("version", self.version);
        body.set("revision", self.tag().opaque());
        body
    }

    /// As it is kept.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.fields.bytes()
    }
}

/// What a body says of all fields of a resource. It is no patch: a null is kept where the service
/// does not know the member, and of one that it knows says the same as nothing.
pub(super) fn given(kind: Kind, body: &Members) -> Members {
    let mut fields = body.without(&OWN_MEMBERS);
    fields.drop_nulls(|name| is_known(kind, name));
    fields
}

/// The subject of a resource.
pub(super) fn subject(organisation: &str, kind: Kind, id: &str) -> Result<Subject, LimitError> {
    Subject::new(organisation, kind.space(), id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_service_keeps_is_not_merged() {
        let mut resource = Resource::new(Kind::Project, "1", Members::default());
        let patch = json!({ "id": "2", "version": 7, "revision": "7", "expected_version": 1 });
        resource.merge(&Members::from(&patch));
        let shown = json!({ "id": "1", "version": 0, "revision": "0" });
        assert_eq!(resource.body().bytes(), shown.to_string().into_bytes());
    }

    #[test]
    fn nulls_are_kept_where_they_mean_something_to_the_client_alone() {
        let sent = json!({
            "title": "t", "starts_at": null, "state": null, "id": null,
            "note": null, "meta": { "a": null, "b": [null, { "c": null }] },
        });
        let kept = json!({
            "title": "t", "note": null, "meta": { "a": null, "b": [null, { "c": null }] },
        });
        let given = given(Kind::Mission, &Members::from(&sent));
        assert_eq!(given.bytes(), kept.to_string().into_bytes());
    }
}
