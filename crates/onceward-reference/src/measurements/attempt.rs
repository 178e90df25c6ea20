//! Attempts: every submission leaves an audit entry in the commit of its answer (D07).
//!
//! An entry is about the user (`user/{id}`) and carries the hash of the measurement's key, so that
//! both can be searched for; id, reason and payload are in its detail. What is shown of it is made
//! here too.

use jiff::Timestamp;
use onceward::core::audit::{Audited, Entry, Trace, about_user, user_of};
use onceward::core::text::escape;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::measurement::key_of;

/// What came of an attempt, as actions, answers and metrics say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is kept.
    Accepted,
    /// It was known.
    Duplicate,
    /// It is refused.
    Rejected,
    /// It is kept although it is out of order.
    Overridden,
    /// It is kept without all checks.
    Unchecked,
    /// It was not looked at, because an earlier one was refused.
    Skipped,
    /// It came before there were rules.
    Backfilled,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Accepted,
        Self::Duplicate,
        Self::Rejected,
        Self::Overridden,
        Self::Unchecked,
        Self::Skipped,
        Self::Backfilled,
    ];

    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Rejected => "rejected",
            Self::Overridden => "overridden",
            Self::Unchecked => "unchecked",
            Self::Skipped => "skipped",
            Self::Backfilled => "backfilled",
        }
    }
}

/// What our actions start with in the audit.
const PREFIX: &str = "measurement.";

/// An attempt, to be written down.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) user_id: &'a str,
    pub(super) id: Option<&'a str>,
    pub(super) action: Action,
    pub(super) reason: Option<&'a str>,
    pub(super) payload: Option<&'a RawValue>,
    pub(super) payload_hash: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Detail<'a> {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    measurement_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    payload: Option<&'a RawValue>,
}

impl Attempt<'_> {
    /// Its entry.
    pub(super) fn entry(&self, tenant: &str, trace: &Trace) -> Entry {
        let mut entry = Entry::new(&escape(tenant), &format!("{PREFIX}{}", self.action.as_str()));
        entry.subject = Some(about_user(self.user_id).into());
        let key = self.id.and_then(|id| key_of(tenant, self.user_id, id).ok());
        entry.key_hash = key.map(|key| key.hash_hex().clone());
        entry.payload_hash = self.payload_hash.as_deref().map(Into::into);
        entry.trace = trace.clone();
        let detail = Detail {
            measurement_id: self.id.map(Into::into),
            reason: self.reason.map(Into::into),
            payload: self.payload,
        };
        entry.detail = serde_json::to_string(&detail).ok().map(Into::into);
        entry
    }
}

/// The members of an entry as it is shown, and the columns of an export.
pub(super) const COLUMNS: [&str; 11] = [
    "id",
    "at",
    "user_id",
    "measurement_id",
    "action",
    "reason",
    "payload",
    "payload_hash",
    "actor",
    "request_id",
    "correlation_id",
];

/// An entry as it is shown. Its members are [`COLUMNS`], in their order.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    id: u64,
    at: Option<String>,
    user_id: String,
    measurement_id: Option<String>,
    action: String,
    reason: Option<String>,
    /// As it was sent: numbers and escapes may be ones that no value of ours holds.
    payload: Option<Box<RawValue>>,
    payload_hash: Option<String>,
    actor: Option<String>,
    request_id: Option<String>,
    correlation_id: Option<String>,
}

impl Shown {
    /// With its payload as a text, for cells.
    pub(super) fn cells(mut self) -> Value {
        let payload = self.payload.take();
        let mut cells = json!(self);
        cells["payload"] = json!(payload.as_deref().map(RawValue::get));
        cells
    }
}

/// An entry as it is shown; none when it is not about an attempt.
pub(super) fn shown(audited: &Audited) -> Option<Shown> {
    let entry = &audited.entry;
    let action = entry.action.strip_prefix(PREFIX)?;
    let user_id = user_of(entry.subject.as_deref()?)?;
    let at = i64::try_from(audited.at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let detail = entry.detail.as_deref().unwrap_or("{}");
    let detail: Detail<'_> = serde_json::from_str(detail).ok()?;
    let text = |text: Option<&str>| text.map(str::to_string);
    Some(Shown {
        id: audited.id,
        at: at.map(|at| at.to_string()),
        user_id: user_id.to_string(),
        measurement_id: detail.measurement_id,
        action: action.to_string(),
        reason: detail.reason,
        payload: detail.payload.and_then(on_one_line),
        payload_hash: text(entry.payload_hash.as_deref()),
        actor: text(entry.trace.actor.as_deref()),
        request_id: text(entry.trace.request_id.as_deref()),
        correlation_id: text(entry.trace.correlation_id.as_deref()),
    })
}

/// The same JSON without a break that would end a line of an export: it can only be a space, as
/// texts have them escaped.
fn on_one_line(json: &RawValue) -> Option<Box<RawValue>> {
    RawValue::from_string(json.get().replace(['\n', '\r'], " ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward::core::stamp::At;

    #[test]
    fn d07_an_entry_tells_everything_of_its_attempt() {
        let payload = RawValue::from_string(r#"{"weight":80.50}"#.into()).unwrap();
        let attempt = Attempt {
            user_id: "u/1",
            id: Some("m"),
            action: Action::Rejected,
            reason: Some("OutOfOrderTimestamp"),
            payload: Some(&payload),
            payload_hash: Some("h".into()),
        };
        let trace = Trace { correlation_id: Some("c".into()), ..Trace::default() };
        let entry = attempt.entry("t", &trace);
        assert_eq!(entry.key_hash.as_deref(), Some(&**key_of("t", "u/1", "m").unwrap().hash_hex()));
        let shown = json!(shown(&Audited { id: 7, at: At(0), entry }).unwrap());
        assert_eq!(shown.as_object().unwrap().len(), COLUMNS.len());
        for (member, value) in [
            ("user_id", json!("u/1")),
            ("measurement_id", json!("m")),
            ("action", json!("rejected")),
            ("reason", json!("OutOfOrderTimestamp")),
            ("payload", json!({ "weight": 80.5 })),
            ("correlation_id", json!("c")),
        ] {
            assert_eq!(shown[member], value, "{member}");
        }
    }

    #[test]
    fn d07_a_payload_is_shown_as_it_was_sent() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        for (sent, expected) in [
            ("80.00499999999999999", "80.00499999999999999"),
            ("1e400", "1e400"),
            (r#""\ud800""#, r#""\ud800""#),
            (&deep, &deep),
            ("[1,\r\n2]", "[1,  2]"),
        ] {
            let payload = RawValue::from_string(format!(r#"{{"weight":{sent}}}"#)).unwrap();
            let attempt = Attempt {
                user_id: "u",
                id: Some("m"),
                action: Action::Rejected,
                reason: None,
                payload: Some(&payload),
                payload_hash: None,
            };
            let entry = attempt.entry("t", &Trace::default());
            let shown = shown(&Audited { id: 7, at: At(0), entry }).unwrap();
            let expected = format!(r#"{{"weight":{expected}}}"#);
            let json = serde_json::to_string(&shown).unwrap();
            assert!(json.contains(&format!("\"payload\":{expected},")), "{json}");
            assert_eq!(shown.cells()["payload"], expected);
        }
    }
}
