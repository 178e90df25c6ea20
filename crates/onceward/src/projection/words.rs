//! Words that documents are found by: letters and digits, in lower case.

use std::collections::BTreeSet;

use serde_json::Value;

/// Words of one document, and characters of each.
const WORDS_MAX: usize = 10_000;
const WORD_CHARS_MAX: usize = 64;

/// The words of a text.
#[must_use]
pub fn words_of_text(text: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    add(&mut words, text);
    words
}

/// The words of every text and number in a JSON document, names of members not included. Bytes that
/// are not JSON count as text, if they are that.
#[must_use]
pub fn words_of_json(body: &[u8]) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => add_value(&mut words, &value),
        Err(_) => add(&mut words, &String::from_utf8_lossy(body)),
    }
    words
}

fn add_value(words: &mut BTreeSet<String>, value: &Value) {
    match value {
        Value::String(text) => add(words, text),
        Value::Number(number) => add(words, &number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| add_value(words, item)),
        Value::Object(members) => members.values().for_each(|member| add_value(words, member)),
        Value::Null | Value::Bool(_) => {}
    }
}

fn add(words: &mut BTreeSet<String>, text: &str) {
    let text = text.to_lowercase();
    for word in text.split(|character: char| !character.is_alphanumeric()) {
        if words.len() >= WORDS_MAX {
            return;
        }
        if !word.is_empty() {
            words.insert(word.chars().take(WORD_CHARS_MAX).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_letters_and_digits_of_values() {
        let words: Vec<_> = words_of_json(br#"{"Name":"Red Bike-7","tags":["new","RED"],"n":12}"#)
            .into_iter()
            .collect();
        assert_eq!(words, ["12", "7", "bike", "new", "red"]);
        assert_eq!(words_of_json(b"plain Text").len(), 2);
        assert!(words_of_text("*\"'%:").is_empty());
    }
}
