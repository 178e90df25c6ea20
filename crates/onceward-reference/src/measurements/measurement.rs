//! A measurement: how it is read, what of it counts, and how it is kept.
//!
//! Weight, timestamp and source count, normalised (D02); the id names it. What is kept is the
//! result as it was answered: it is the document that guards the id, for ever.

use std::borrow::Cow;
use std::collections::BTreeMap;

use onceward::core::Bytes;
use onceward::core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::limits::LimitError;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::weight::{Unit, Weight};
use crate::instant;

/// Bytes of an id, and of a source.
const TEXT_BYTES_MAX: usize = 128;
/// Bytes of a submitted payload that the audit keeps.
const AUDITED_BYTES_MAX: usize = 1_024;
/// Where measurements are kept: `{user}/{id}`.
pub(super) const ITEMS: &str = "measurements.item";
/// Where a user's last timestamp is kept.
const LAST: &str = "measurements.last";
/// Scope of the keys of measurement ids.
pub(super) const SCOPE: &str = "measurements";

/// A measurement, normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measurement {
    pub(super) user_id: String,
    pub(super) id: String,
    pub(super) payload: Payload,
}

/// What of a measurement is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) weight: Weight,
    pub(super) at_ms: u64,
    pub(super) source: String,
}

/// What a client sent, not understood yet.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Submitted<'a> {
    #[serde(borrow, default)]
    user_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    measurement_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    weight: Option<&'a RawValue>,
    #[serde(borrow, default)]
    unit: Option<&'a RawValue>,
    #[serde(borrow, default)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow, default)]
    source: Option<&'a RawValue>,
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FieldError {
    field: &'static str,
    message: String,
}

/// Old and new value of a field, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    original: Box<RawValue>,
    submitted: Box<RawValue>,
}

impl<'a> Submitted<'a> {
    /// What a JSON text holds; none when it is no object, or has a member twice.
    pub(super) fn of_json(json: &'a [u8]) -> Option<Self> {
        let object = json.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        object.then(|| serde_json::from_slice(json).ok()).flatten()
    }

    /// The id of the measurement, as far as it is one.
    pub(super) fn id(&self) -> Option<String> {
        text("measurement_id", self.measurement_id).ok()
    }

    /// The user, as far as it is one.
    pub(super) fn user_id(&self) -> Option<String> {
        text("user_id", self.user_id).ok()
    }

    /// The instant, as far as it is one.
    pub(super) fn at_ms(&self) -> Option<u64> {
        instant::parse(&text("timestamp", self.timestamp).ok()?).ok()
    }

    /// What the audit keeps of the payload: as it was sent, unless that is too long.
    pub(super) fn audited(&self) -> Option<Box<RawValue>> {
        let members = [
            ("weight", self.weight),
            ("unit", self.unit),
            ("timestamp", self.timestamp),
            ("source", self.source),
        ];
        let members = members.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let members: Vec<String> =
            members.map(|(name, value)| format!("\"{name}\":{}", value.get())).collect();
        let json = format!("{{{}}}", members.join(","));
        if json.len() > AUDITED_BYTES_MAX {
            return None;
        }
        RawValue::from_string(json).ok()
    }

    /// The measurement of this user, or of the one that it names itself.
    pub(super) fn read(&self, of: Option<&str>) -> Result<Measurement, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut keep = |error: FieldError| errors.push(error);
        let user_id = match (of, self.user_id) {
            (Some(user), None) => checked("user_id", user).map(|()| user.to_string()),
            (Some(user), Some(named)) => match text("user_id", Some(named)) {
                Ok(named) if named == user => checked("user_id", user).map(|()| named),
                _ => Err(FieldError::new("user_id", "must be the user of the path")),
            },
            (None, named) => text("user_id", named),
        };
        let user_id = user_id.map_err(&mut keep).ok();
        let id = text("measurement_id", self.measurement_id).map_err(&mut keep).ok();
        let unit = text("unit", self.unit).and_then(|unit| {
            Unit::parse(&unit).ok_or_else(|| FieldError::new("unit", "must be kg, lb, st or g"))
        });
        let unit = unit.map_err(&mut keep).ok();
        let weight = match self.weight {
            // Without a unit the bounds can't be told; that it is a number can.
            Some(number) => Weight::of_json(number.get(), unit.unwrap_or(Unit::Kilogram))
                .map_err(|why| FieldError::new("weight", &why.to_string())),
            None => Err(FieldError::new("weight", "is missing")),
        };
        let weight = weight.map_err(&mut keep).ok();
        let at_ms = text("timestamp", self.timestamp).and_then(|timestamp| {
            instant::parse(&timestamp).map_err(|why| FieldError::new("timestamp", why))
        });
        let at_ms = at_ms.map_err(&mut keep).ok();
        let source = text("source", self.source).map(|source| source.trim().to_lowercase());
        let source = source.and_then(|source| checked("source", &source).map(|()| source));
        let source = source.map_err(&mut keep).ok();
        let (Some(user_id), Some(id), Some(weight), Some(at_ms), Some(source), Some(_)) =
            (user_id, id, weight, at_ms, source, unit)
        else {
            return Err(errors);
        };
        let measurement = Measurement { user_id, id, payload: Payload { weight, at_ms, source } };
        // With a tenant's name before them, ids have to fit into a key.
        match measurement.subject("-") {
            Ok(_) => Ok(measurement),
            Err(limit) => Err(vec![FieldError::new("measurement_id", &limit.to_string())]),
        }
    }
}

impl FieldError {
    pub(super) fn new(field: &'static str, message: &str) -> Self {
        Self { field, message: message.into() }
    }

    /// Everything that is wrong, in a sentence.
    pub(super) fn sentence(errors: &[Self]) -> String {
        let parts = errors.iter().map(|error| format!("{} {}", error.field, error.message));
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// A text of the body, within its bound.
fn text(field: &'static str, raw: Option<&RawValue>) -> Result<String, FieldError> {
    let raw = raw.ok_or_else(|| FieldError::new(field, "is missing"))?;
    let text = serde_json::from_str::<String>(raw.get())
        .map_err(|_| FieldError::new(field, "must be a text"))?;
    checked(field, &text).map(|()| text)
}

fn checked(field: &'static str, text: &str) -> Result<(), FieldError> {
    if (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let message = format!("must have 1 to {TEXT_BYTES_MAX} bytes and no control characters");
    Err(FieldError::new(field, &message))
}

/// A user's name within an id, so that no `/` in it can imitate the end of it.
fn enclosed(user_id: &str) -> String {
    user_id.replace('%', "%25").replace('/', "%2F")
}

/// What the ids of a user's measurements start with.
pub(super) fn prefix(user_id: &str) -> String {
    format!("{}/", enclosed(user_id))
}

/// Where the last timestamp of a user is kept: its position is the instant.
pub(super) fn last_of(tenant: &str, user_id: &str) -> Result<Subject, LimitError> {
    Subject::new(tenant, LAST, user_id)
}

/// The key of a measurement's id.
pub(super) fn key_of(tenant: &str, user_id: &str, id: &str) -> Result<Key, LimitError> {
    Key::within(Kind::Request, tenant, SCOPE, &[user_id], id)
}

impl Measurement {
    /// Where it is kept.
    pub(super) fn subject(&self, tenant: &str) -> Result<Subject, LimitError> {
        Subject::new(tenant, ITEMS, &format!("{}{}", prefix(&self.user_id), self.id))
    }

    /// The key of its id.
    pub(super) fn key(&self, tenant: &str) -> Result<Key, LimitError> {
        key_of(tenant, &self.user_id, &self.id)
    }

    /// Its result: what is answered, and what is kept.
    pub(super) fn result(&self, status: &str, now_ms: u64) -> Bytes {
        #[derive(Serialize)]
        struct Result<'a> {
            measurement_id: &'a str,
            user_id: &'a str,
            weight: Box<RawValue>,
            unit: &'static str,
            timestamp: String,
            source: &'a str,
            status: &'a str,
            accepted_at: String,
        }
        let result = Result {
            measurement_id: &self.id,
            user_id: &self.user_id,
            weight: raw(&self.payload.weight.to_string()),
            unit: "kg",
            timestamp: instant::shown(self.payload.at_ms),
            source: &self.payload.source,
            status,
            accepted_at: instant::shown(now_ms),
        };
        serde_json::to_vec(&result).unwrap_or_default().into()
    }
}

impl Payload {
    /// What a kept result tells of the payload.
    pub(super) fn of_result(result: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Kept<'a> {
            #[serde(borrow)]
            weight: &'a RawValue,
            #[serde(borrow)]
            timestamp: Cow<'a, str>,
            #[serde(borrow)]
            source: Cow<'a, str>,
        }
        let kept: Kept<'_> = serde_json::from_slice(result).ok()?;
        Some(Self {
            weight: Weight::of_json(kept.weight.get(), Unit::Kilogram).ok()?,
            at_ms: instant::parse(&kept.timestamp).ok()?,
            source: kept.source.into_owned(),
        })
    }

    /// The hash of what counts (D02).
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let source = serde_json::Value::from(self.source.as_str());
        let timestamp = instant::shown(self.at_ms);
        let canonical = format!(
            r#"{{"source":{source},"timestamp":"{timestamp}","unit":"kg","weight":"{}"}}"#,
            self.weight
        );
        fingerprint_bytes(canonical.as_bytes())
    }

    /// What differs in a submitted payload.
    pub(super) fn differences(&self, submitted: &Self) -> BTreeMap<&'static str, Difference> {
        let shown = |payload: &Self| {
            [
                ("weight", payload.weight.to_string()),
                ("timestamp", format!("\"{}\"", instant::shown(payload.at_ms))),
                ("source", serde_json::Value::from(payload.source.as_str()).to_string()),
            ]
        };
        let pairs = shown(self).into_iter().zip(shown(submitted));
        let differing = pairs.filter(|((_, original), (_, submitted))| original != submitted);
        differing
            .map(|((name, original), (_, submitted))| {
                (name, Difference { original: raw(&original), submitted: raw(&submitted) })
            })
            .collect()
    }
}

/// JSON that we made.
fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.into()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &serde_json::Value) -> Result<Measurement, Vec<FieldError>> {
        Submitted::of_json(body.to_string().as_bytes()).unwrap().read(Some("u"))
    }

    #[test]
    fn d02_spelling_does_not_matter_and_content_does() {
        let one = json!({
            "measurement_id": "m", "weight": 80.5, "unit": "kg",
            "timestamp": "2025-09-15T10:00:00Z", "source": "scale",
        });
        let same = json!({
            "measurement_id": "other", "weight": 80500, "unit": "G", "note": "not compared",
            "timestamp": "2025-09-15T12:00:00.000+02:00", "source": "  Scale ",
        });
        let (one, same) = (read(&one).unwrap(), read(&same).unwrap());
        assert_eq!(one.payload.fingerprint(), same.payload.fingerprint());
        assert!(one.payload.differences(&same.payload).is_empty());
        let mut other = same.clone();
        other.payload.source = "phone".into();
        assert_ne!(one.payload.fingerprint(), other.payload.fingerprint());
        let differing = serde_json::to_value(one.payload.differences(&other.payload)).unwrap();
        assert_eq!(differing, json!({ "source": { "original": "scale", "submitted": "phone" } }));
    }

    #[test]
    fn what_is_kept_tells_the_payload_again() {
        let body = json!({
            "measurement_id": "m\"1", "weight": 12.5, "unit": "st", "user_id": "u",
            "timestamp": "2025-09-15T10:00:00.5Z", "source": "Küche",
        });
        let measurement = read(&body).unwrap();
        let result = measurement.result("accepted", 0);
        assert_eq!(Payload::of_result(&result), Some(measurement.payload));
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
        assert_eq!((&result["weight"], &result["unit"]), (&json!(79.38), &json!("kg")));
    }

    #[test]
    fn every_bad_field_is_named() {
        let errors = read(&json!({ "weight": "80", "unit": "ton", "user_id": "v" })).unwrap_err();
        let fields: Vec<&str> = errors.iter().map(|error| error.field).collect();
        let all = ["user_id", "measurement_id", "unit", "weight", "timestamp", "source"];
        assert_eq!(fields, all);
        assert!(Submitted::of_json(b"[]").is_none() && Submitted::of_json(b"nonsense").is_none());
    }

    #[test]
    fn no_user_can_imitate_another_by_a_slash() {
        let at = |user: &str, id: &str| {
            let payload = Payload {
                weight: Weight::of_json("1", Unit::Kilogram).unwrap(),
                at_ms: 0,
                source: "s".into(),
            };
            Measurement { user_id: user.into(), id: id.into(), payload }.subject("t").unwrap()
        };
        assert_ne!(at("a/b", "c"), at("a", "b/c"));
        assert_ne!(at("a%2Fb", "c"), at("a/b", "c"));
    }
}
