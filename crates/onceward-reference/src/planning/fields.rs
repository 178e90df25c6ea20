//! What the fields of each kind must be. All that is wrong is told at once, each with its pointer.
//!
//! Instants are compared as instants and kept as they were spelled.

use jiff::SignedDuration;
use serde_json::Value;

use super::problem::{FieldError, Problem};
use super::resource::{Kind, Resource};
use crate::instant::since_1970;
use crate::principals::Role;

/// Longest name or title, in characters.
const TEXT_CHARS_MAX: usize = 200;

/// What a field must be.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// A text that says something.
    Text,
    /// An RFC 3339 instant.
    Instant,
    /// A role.
    Role,
}

/// A field that the service knows.
struct Field {
    name: &'static str,
    rule: Rule,
    required: bool,
}

const fn required(name: &'static str, rule: Rule) -> Field {
    Field { name, rule, required: true }
}

const fn optional(name: &'static str, rule: Rule) -> Field {
    Field { name, rule, required: false }
}

const NAMED: [Field; 1] = [required("name", Rule::Text)];
const MISSION: [Field; 3] = [
    required("title", Rule::Text),
    optional("starts_at", Rule::Instant),
    optional("ends_at", Rule::Instant),
];
const ASSIGNMENT: [Field; 3] = [
    required("collaborator_id", Rule::Text),
    required("starts_at", Rule::Instant),
    required("ends_at", Rule::Instant),
];
const COLLABORATOR: [Field; 2] = [required("name", Rule::Text), required("role", Rule::Role)];

/// The state that an archived mission goes back to.
pub(super) const ARCHIVED_FROM: &str = "archived_from";

const fn fields(kind: Kind) -> &'static [Field] {
    match kind {
        Kind::Organization | Kind::Project => &NAMED,
        Kind::Mission => &MISSION,
        Kind::Assignment => &ASSIGNMENT,
        Kind::Collaborator => &COLLABORATOR,
    }
}

/// Members that only commands change, each with what does.
pub(super) const fn by_command(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Project => &[("archived", "is changed by archive and unarchive")],
        Kind::Mission => &[
            ("state", "is changed by plan, lock, archive and unarchive"),
            ("project_id", "is given when the mission is made"),
            (ARCHIVED_FROM, "is kept by the service"),
        ],
        Kind::Assignment => &[("mission_id", "is changed by move")],
        Kind::Organization | Kind::Collaborator => &[],
    }
}

/// Whether the service knows a member of this kind.
pub(super) fn is_known(kind: Kind, member: &str) -> bool {
    fields(kind).iter().any(|field| field.name == member)
        || by_command(kind).iter().any(|(name, _)| *name == member)
}

/// Checks every field of a resource.
pub(super) fn check(resource: &Resource) -> Result<(), Problem> {
    let mut errors = Vec::new();
    for field in fields(resource.kind) {
        match resource.fields.get(field.name) {
            None if field.required => errors.push(FieldError::new(field.name, "is required")),
            None => {}
            Some(value) => {
                if let Err(message) = field.rule.check(&value) {
                    errors.push(FieldError::new(field.name, message));
                }
            }
        }
    }
    if errors.is_empty()
        && let (Some(starts_at), Some(ends_at)) =
            (instant(resource, "starts_at"), instant(resource, "ends_at"))
        && starts_at >= ends_at
    {
        errors.push(FieldError::new("ends_at", "must be after starts_at"));
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors)) }
}

/// Checks that members which only commands change are what they were.
pub(super) fn check_unchanged(before: &Resource, after: &Resource) -> Result<(), Problem> {
    differing(before, after, |_| true)
}

/// Checks that of members which only commands change nothing else was sent than what is made.
pub(super) fn check_made(sent: &Resource, made: &Resource) -> Result<(), Problem> {
    differing(sent, made, |name| sent.fields.contains(name))
}

fn differing(
    before: &Resource,
    after: &Resource,
    counts: impl Fn(&str) -> bool,
) -> Result<(), Problem> {
    let changed = by_command(before.kind)
        .iter()
        .filter(|(name, _)| counts(name) && before.fields.get(name) != after.fields.get(name));
    let errors: Vec<_> = changed.map(|(name, message)| FieldError::new(name, message)).collect();
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors)) }
}

/// An instant of a resource, if it has one there: the time since 1970.
pub(super) fn instant(resource: &Resource, name: &str) -> Option<SignedDuration> {
    since_1970(&resource.text(name))
}

impl Rule {
    fn check(self, value: &Value) -> Result<(), &'static str> {
        let text = value.as_str();
        let (holds, message) = match self {
            Self::Text => {
                let fits =
                    |text: &str| !text.trim().is_empty() && text.chars().count() <= TEXT_CHARS_MAX;
                (text.is_some_and(fits), "must be a text of 1 to 200 characters")
            }
            Self::Instant => {
                let is_instant = |text: &str| since_1970(text).is_some();
                (text.is_some_and(is_instant), "must be an instant, as 2030-01-01T09:00:00Z")
            }
            Self::Role => (text.and_then(Role::parse).is_some(), "must be viewer, editor or admin"),
        };
        if holds { Ok(()) } else { Err(message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Members;
    use serde_json::json;

    #[test]
    fn what_only_commands_change_is_not_given_otherwise() {
        let mission = |fields| Resource::new(Kind::Mission, "1", Members::from(&fields));
        let made = mission(json!({ "title": "t", "state": "draft", "project_id": "7" }));
        for (sent, expected) in [
            (json!({ "title": "t" }), &[][..]),
            (json!({ "state": "draft", "project_id": "7" }), &[]),
            (json!({ "state": "locked", "archived_from": "x" }), &["/state", "/archived_from"]),
        ] {
            let checked = check_made(&mission(sent.clone()), &made);
            assert_eq!(checked.map_or_else(|wrong| wrong.pointers(), |()| vec![]), expected);
        }
        check_unchanged(&made, &mission(json!({ "title": "t", "state": "draft" }))).unwrap_err();
    }

    #[track_caller]
    fn wrong(kind: Kind, fields: &Value) -> Vec<String> {
        let resource = Resource::new(kind, "1", Members::from(fields));
        match check(&resource) {
            Ok(()) => Vec::new(),
            Err(problem) => problem.pointers(),
        }
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let at = "2030-01-01T09:00:00Z";
        let later = "2030-01-01T12:00:00+02:00";
        for (kind, fields, expected) in [
            (Kind::Project, json!({}), &["/name"][..]),
            (Kind::Project, json!({ "name": " " }), &["/name"]),
            (Kind::Project, json!({ "name": "x".repeat(201) }), &["/name"]),
            (Kind::Project, json!({ "name": "x", "colour": 1 }), &[]),
            (Kind::Mission, json!({ "title": 1, "starts_at": "soon" }), &["/title", "/starts_at"]),
            (Kind::Mission, json!({ "title": "t", "starts_at": at, "ends_at": at }), &["/ends_at"]),
            (Kind::Mission, json!({ "title": "t", "starts_at": at, "ends_at": later }), &[]),
            (
                Kind::Mission,
                json!({ "title": "t", "starts_at": later, "ends_at": at }),
                &["/ends_at"],
            ),
            (Kind::Mission, json!({ "title": "t", "ends_at": "9999-12-31T23:59:59Z" }), &[]),
            (Kind::Mission, json!({ "title": "t", "ends_at": "20300101T090000Z" }), &["/ends_at"]),
            (
                Kind::Mission,
                json!({ "title": "t", "ends_at": format!("{at}[UTC]") }),
                &["/ends_at"],
            ),
            (Kind::Mission, json!({ "title": "t", "starts_at": "1969-12-31T23:59:59.5Z" }), &[]),
            (Kind::Assignment, json!({}), &["/collaborator_id", "/starts_at", "/ends_at"]),
            (Kind::Collaborator, json!({ "name": "Ada", "role": "queen" }), &["/role"]),
        ] {
            assert_eq!(wrong(kind, &fields), expected, "{fields}");
        }
    }
}
