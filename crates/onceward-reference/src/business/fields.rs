//! What the fields of each kind must be. All that is wrong is told at once, each with its path.
//!
//! Fields that the service does not know are not looked at.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::problem::{FieldError, Problem};

/// Longest text of a field, in characters.
const TEXT_CHARS_MAX: usize = 200;
/// Most items of an estimate.
const ITEMS_MAX: usize = 1_000;
/// Largest amount: what every JSON reader can hold exactly.
const AMOUNT_MAX: u64 = (1 << 53) - 1;

/// What a field must be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// A text that says something.
    Text,
    /// An RFC 3339 instant.
    Instant,
    /// Money in minor units.
    Amount,
    /// Three letters.
    Currency,
    /// More than none.
    Quantity,
    /// Lines of an estimate.
    Items,
}

/// A field that the service knows, by its dotted path.
pub(super) struct Field {
    path: &'static str,
    rule: Rule,
    required: bool,
}

const fn required(path: &'static str, rule: Rule) -> Field {
    Field { path, rule, required: true }
}

const fn optional(path: &'static str, rule: Rule) -> Field {
    Field { path, rule, required: false }
}

pub(super) const HOLD: [Field; 4] = [
    required("customer_info.name", Rule::Text),
    required("customer_info.phone", Rule::Text),
    required("requested_time", Rule::Instant),
    optional("service", Rule::Text),
];
pub(super) const ESTIMATE: [Field; 1] = [required("items", Rule::Items)];
const ITEM: [Field; 2] = [required("sku", Rule::Text), required("qty", Rule::Quantity)];
pub(super) const PAYMENT_LINK: [Field; 2] =
    [required("amount", Rule::Amount), required("currency", Rule::Currency)];
pub(super) const CUSTOMER: [Field; 2] =
    [required("name", Rule::Text), optional("phone", Rule::Text)];
pub(super) const JOB: [Field; 1] = [optional("status", Rule::Text)];

/// Checks the fields of a body.
pub(super) fn check(body: &Map<String, Value>, fields: &[Field]) -> Result<(), Problem> {
    let mut errors = Vec::new();
    check_within(body, fields, "", &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(&errors)) }
}

fn check_within(
    object: &Map<String, Value>,
    fields: &[Field],
    prefix: &str,
    errors: &mut Vec<FieldError>,
) {
    for Field { path, rule, required } in fields {
        let place = format!("{prefix}{path}");
        // An explicit null says the same as nothing.
        match find(object, path).filter(|value| !value.is_null()) {
            None if *required => errors.push(FieldError::new(place, "is required")),
            None => {}
            Some(value) => rule.check(value, &place, errors),
        }
    }
}

fn find<'v>(object: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let mut parts = path.split('.');
    let first = object.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

impl Rule {
    fn check(self, value: &Value, place: &str, errors: &mut Vec<FieldError>) {
        let text = value.as_str();
        let (holds, message) = match self {
            Self::Text => {
                let fits =
                    |text: &str| !text.trim().is_empty() && text.chars().count() <= TEXT_CHARS_MAX;
                (text.is_some_and(fits), "must be a text of 1 to 200 characters")
            }
            Self::Instant => {
                let is_instant = |text: &str| text.parse::<Timestamp>().is_ok();
                (text.is_some_and(is_instant), "must be an instant, as 2030-01-01T09:00:00Z")
            }
            Self::Amount => (
                whole(value).is_some_and(|amount| (1..=AMOUNT_MAX).contains(&amount)),
                "must be a whole number of minor units above 0",
            ),
            Self::Currency => {
                let is_code =
                    |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_alphabetic());
                (text.is_some_and(is_code), "must be a currency code of three letters")
            }
            Self::Quantity => {
                (value.as_f64().is_some_and(|quantity| quantity > 0.0), "must be a number above 0")
            }
            Self::Items => return check_items(value, place, errors),
        };
        if !holds {
            errors.push(FieldError::new(place.into(), message));
        }
    }
}

fn check_items(value: &Value, place: &str, errors: &mut Vec<FieldError>) {
    let items = value.as_array().filter(|items| (1..=ITEMS_MAX).contains(&items.len()));
    let Some(items) = items else {
        errors.push(FieldError::new(place.into(), "must be a list of 1 to 1,000 items"));
        return;
    };
    for (index, item) in items.iter().enumerate() {
        match item.as_object() {
            Some(item) => check_within(item, &ITEM, &format!("{place}.{index}."), errors),
            None => {
                let message = "must be an object with sku and qty";
                errors.push(FieldError::new(format!("{place}.{index}"), message));
            }
        }
    }
}

/// A whole number: 5 and 5.0 are one.
fn whole(value: &Value) -> Option<u64> {
    let fits = |number: &f64| number.fract() == 0.0 && (0.0..=AMOUNT_MAX as f64).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(fits).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn wrong(fields: &[Field], body: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        check_within(body.as_object().unwrap(), fields, "", &mut errors);
        errors.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn everything_wrong_is_told_at_once() {
        let at = "2030-01-01T09:00:00+02:00";
        let person = json!({ "name": "Ada", "phone": "+1", "colour": 1 });
        for (fields, body, expected) in [
            (
                &HOLD[..],
                json!({}),
                &["customer_info.name", "customer_info.phone", "requested_time"][..],
            ),
            (&HOLD, json!({ "customer_info": person, "requested_time": at }), &[]),
            (
                &HOLD,
                json!({ "customer_info": 1, "requested_time": "soon", "service": "" }),
                &["customer_info.name", "customer_info.phone", "requested_time", "service"],
            ),
            (&ESTIMATE, json!({ "items": [] }), &["items"]),
            (&ESTIMATE, json!({ "items": [{ "sku": "a", "qty": 1.5, "note": [] }] }), &[]),
            (
                &ESTIMATE,
                json!({ "items": [{ "sku": "a", "qty": 0 }, { "qty": "1" }, 7] }),
                &["items.0.qty", "items.1.sku", "items.1.qty", "items.2"],
            ),
            (&PAYMENT_LINK, json!({ "amount": 1_999.0, "currency": "usd" }), &[]),
            (&PAYMENT_LINK, json!({ "amount": 0, "currency": "US" }), &["amount", "currency"]),
            (&PAYMENT_LINK, json!({ "amount": 1.5, "currency": "USD" }), &["amount"]),
            (&PAYMENT_LINK, json!({ "amount": -1, "currency": "USD" }), &["amount"]),
            (&PAYMENT_LINK, json!({ "amount": 1e300, "currency": "USD" }), &["amount"]),
            (&CUSTOMER, json!({ "name": " ", "phone": null }), &["name"]),
            (&JOB, json!({}), &[]),
            (&JOB, json!({ "status": 3 }), &["status"]),
        ] {
            assert_eq!(wrong(fields, &body), expected, "{body}");
        }
    }
}
