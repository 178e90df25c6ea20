//! Resources: documents of an organisation, as they are kept and as they are shown.
//!
//! A resource is a JSON object. Fields that the service knows are checked (`fields.rs`); further
//! members are kept as they came. `id`, `version` and what a kind decides itself (a hold's status,
//! a link's state) are the service's own: a body does not set them.

use onceward::core::key::Subject;
use onceward::core::limits::LimitError;
use onceward::engine::Document;
use onceward::http::Seen;
use serde_json::Value;

use crate::members::Members;

/// What a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Hold,
    Estimate,
    PaymentLink,
    Customer,
    Job,
}

impl Kind {
    /// The word in actions and subjects: `hold.create`, `hold/7`.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Estimate => "estimate",
            Self::PaymentLink => "payment_link",
            Self::Customer => "customer",
            Self::Job => "job",
        }
    }

    /// Where documents of this kind are kept.
    pub(super) const fn space(self) -> &'static str {
        match self {
            Self::Hold => "business.hold",
            Self::Estimate => "business.estimate",
            Self::PaymentLink => "business.payment_link",
            Self::Customer => "business.customer",
            Self::Job => "business.job",
        }
    }

    /// Where a resource of this kind is read.
    pub(super) fn path(self, id: &str) -> String {
        let place = match self {
            Self::Hold => "/bookings/hold",
            Self::Estimate => "/estimates/draft",
            Self::PaymentLink => "/payments/link",
            Self::Customer => "/customers",
            Self::Job => "/jobs",
        };
        // A client chooses some ids: what an address gives a meaning to is encoded.
        let segment: String = id
            .bytes()
            .map(|byte| match byte {
                b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
                byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            })
            .collect();
        format!("{place}/{segment}")
    }
}

/// A resource as it was seen, and as it is to be.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) id: String,
    /// 0 before it is made.
    pub(super) version: u64,
    pub(super) fields: Members,
}

impl Resource {
    /// One with the fields of a body.
    pub(super) fn new(kind: Kind, id: &str, version: u64, fields: &Members) -> Self {
        let mut fields = fields.clone();
        for own in ["id", "version"] {
            fields.remove(own);
        }
        Self { kind, id: id.into(), version, fields }
    }

    /// What a document holds; none when there is none.
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

    /// As jobs and the audit name it: `hold/7`.
    pub(super) fn subject(&self) -> String {
        format!("{}/{}", self.kind.word(), self.id)
    }

    /// As it is shown.
    pub(super) fn body(&self) -> Members {
        let mut body = self.fields.clone();
        body.set("id", self.id.as_str());
        body.set("version", self.version);
        body
    }

    /// As it is kept.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.fields.bytes()
    }
}

/// The subject of a resource.
pub(super) fn subject(organisation: &str, kind: Kind, id: &str) -> Result<Subject, LimitError> {
    Subject::new(organisation, kind.space(), id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn further_fields_are_kept_and_own_ones_are_not_taken_over() {
        let sent = json!({ "id": "mine", "version": 7, "name": "Ada", "colour": { "hue": 1 } });
        let made = Resource::new(Kind::Customer, "c1", 0, &Members::from(&sent));
        let expected = json!({ "id": "c1", "version": 0, "name": "Ada", "colour": { "hue": 1 } });
        assert_eq!(made.body().bytes(), expected.to_string().into_bytes());
        assert_eq!(
            (made.subject(), made.kind.path("c1")),
            ("customer/c1".into(), "/customers/c1".into())
        );
        assert_eq!(Kind::Customer.path("a/b é?"), "/customers/a%2Fb%20%C3%A9%3F");
    }
}
