//! One item's part of a write: its conditions and changes, as DynamoDB's expressions.
//!
//! Rule: an item has one part in a batch, however many conditions and writes speak of it, because a
//! transaction may not name an item twice. A batch of one part needs no transaction.

use std::collections::HashMap;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, TransactWriteItem, Update,
};

use super::super::StoreError;
use super::failure::Failure;
use super::names::Place;

/// An item.
pub(super) type Item = HashMap<String, AttributeValue>;

/// A number as DynamoDB keeps it: exact up to 38 digits.
pub(super) fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Bytes.
pub(super) fn bytes(bytes: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}

/// A text.
pub(super) fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_string())
}

/// The key of a place.
pub(super) fn key_of(place: &Place) -> Item {
    let pair = [("PK", &place.pk), ("SK", &place.sk)];
    pair.into_iter().map(|(name, part)| (name.to_string(), text(part))).collect()
}

/// What happens to an item.
#[derive(Debug, Clone, PartialEq)]
enum What {
    /// Nothing: it is only looked at.
    Check,
    /// Some of its attributes are set or removed; it is made if it is not there.
    Update,
    /// It is written as a whole.
    Put(Item),
    /// It is removed.
    Delete,
}

/// One item's part of a write.
#[derive(Debug, Clone)]
pub(super) struct Op {
    pub(super) place: Place,
    what: What,
    conditions: Vec<String>,
    sets: Vec<String>,
    removes: Vec<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

impl Op {
    /// A look at an item; it becomes an update with the first change.
    pub(super) fn at(place: Place) -> Self {
        Self {
            place,
            what: What::Check,
            conditions: Vec::new(),
            sets: Vec::new(),
            removes: Vec::new(),
            names: HashMap::new(),
            values: HashMap::new(),
        }
    }

    /// Writes a whole item that must not be there yet.
    pub(super) fn insert(place: Place, mut item: Item) -> Self {
        item.extend(key_of(&place));
        let mut op = Self { what: What::Put(item), ..Self::at(place) };
        op.require(|op| format!("attribute_not_exists({})", op.name("PK")));
        op
    }

    /// Writes a whole item, whatever was there.
    pub(super) fn put(place: Place, mut item: Item) -> Self {
        item.extend(key_of(&place));
        Self { what: What::Put(item), ..Self::at(place) }
    }

    /// Removes an item.
    pub(super) fn delete(place: Place) -> Self {
        Self { what: What::Delete, ..Self::at(place) }
    }

    /// The placeholder of an attribute's name: many of our names are DynamoDB's own words.
    pub(super) fn name(&mut self, name: &str) -> String {
        let placeholder = format!("#{name}");
        self.names.insert(placeholder.clone(), name.to_string());
        placeholder
    }

    /// The placeholder of a value.
    pub(super) fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":v{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    /// Something that must hold.
    pub(super) fn require(&mut self, condition: impl FnOnce(&mut Self) -> String) {
        let condition = condition(self);
        self.conditions.push(format!("({condition})"));
    }

    /// Sets an attribute.
    pub(super) fn set(&mut self, name: &str, value: AttributeValue) {
        self.what = What::Update;
        let (name, value) = (self.name(name), self.value(value));
        self.sets.push(format!("{name} = {value}"));
    }

    /// Removes an attribute, if it is there.
    pub(super) fn remove(&mut self, name: &str) {
        self.what = What::Update;
        let name = self.name(name);
        self.removes.push(name);
    }

    /// Sets or removes an attribute.
    pub(super) fn assign(&mut self, name: &str, value: Option<AttributeValue>) {
        match value {
            Some(value) => self.set(name, value),
            None => self.remove(name),
        }
    }

    /// Whether it only looks.
    pub(super) fn is_check(&self) -> bool {
        self.what == What::Check
    }

    /// What is written as a whole.
    pub(super) fn whole(&self) -> Option<&Item> {
        match &self.what {
            What::Put(item) => Some(item),
            What::Check | What::Update | What::Delete => None,
        }
    }

    /// All conditions as one.
    pub(super) fn condition(&self) -> Option<String> {
        (!self.conditions.is_empty()).then(|| self.conditions.join(" AND "))
    }

    /// All changes as one.
    pub(super) fn update(&self) -> String {
        let part = |word: &str, parts: &[String]| match parts {
            [] => None,
            parts => Some(format!("{word} {}", parts.join(", "))),
        };
        let parts = [part("SET", &self.sets), part("REMOVE", &self.removes)];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The names that the expressions use.
    pub(super) fn names(&self) -> Option<HashMap<String, String>> {
        (!self.names.is_empty()).then(|| self.names.clone())
    }

    /// The values that the expressions use.
    pub(super) fn values(&self) -> Option<HashMap<String, AttributeValue>> {
        (!self.values.is_empty()).then(|| self.values.clone())
    }

    /// As a part of a transaction.
    pub(super) fn in_transaction(&self, table: &str) -> Result<TransactWriteItem, Failure> {
        let item = TransactWriteItem::builder();
        Ok(match &self.what {
            What::Check => item.condition_check(
                ConditionCheck::builder()
                    .table_name(table)
                    .set_key(Some(key_of(&self.place)))
                    .set_condition_expression(self.condition())
                    .set_expression_attribute_names(self.names())
                    .set_expression_attribute_values(self.values())
                    .build()
                    .map_err(incomplete)?,
            ),
            What::Update => item.update(
                Update::builder()
                    .table_name(table)
                    .set_key(Some(key_of(&self.place)))
                    .update_expression(self.update())
                    .set_condition_expression(self.condition())
                    .set_expression_attribute_names(self.names())
                    .set_expression_attribute_values(self.values())
                    .build()
                    .map_err(incomplete)?,
            ),
            What::Delete => item.delete(
                Delete::builder()
                    .table_name(table)
                    .set_key(Some(key_of(&self.place)))
                    .set_condition_expression(self.condition())
                    .set_expression_attribute_names(self.names())
                    .set_expression_attribute_values(self.values())
                    .build()
                    .map_err(incomplete)?,
            ),
            What::Put(whole) => item.put(
                Put::builder()
                    .table_name(table)
                    .set_item(Some(whole.clone()))
                    .set_condition_expression(self.condition())
                    .set_expression_attribute_names(self.names())
                    .set_expression_attribute_values(self.values())
                    .build()
                    .map_err(incomplete)?,
            ),
        }
        .build())
    }
}

/// A request without one of its parts: nothing was sent.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
pub(super) fn incomplete(error: BuildError) -> Failure {
    Failure::Store(StoreError::NotApplied(format!("the request can't be made: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_use_exactly_what_they_name() {
        let mut op = Op::at(Place::new("p", "s"));
        assert!(op.is_check());
        op.require(|op| format!("{} < {}", op.name("rev"), op.value(number(7))));
        op.require(|op| format!("attribute_not_exists({})", op.name("gone")));
        op.set("state", text("done"));
        op.assign("due_at", None);
        op.remove("ttl");
        assert!(!op.is_check());
        assert_eq!(op.condition().unwrap(), "(#rev < :v0) AND (attribute_not_exists(#gone))");
        assert_eq!(op.update(), "SET #state = :v1 REMOVE #due_at, #ttl");
        assert_eq!(op.names().unwrap().len(), 5);
        assert_eq!(op.values().unwrap().len(), 2);
        assert!(op.in_transaction("t").is_ok());
    }
}
