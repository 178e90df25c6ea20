//! What the ontology suite asks of a running service beyond plain calls.

use serde_json::{Value, json};

pub(crate) use super::service::*;

impl Service {
    /// On an empty store.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_named("ontology", test, &[])
    }

    /// Sends a command of demo-a.
    pub(crate) async fn tell(&self, command: &Value) -> Answer {
        send(command).send(self).await
    }

    /// The events of an aggregate of demo-a.
    pub(crate) async fn events(&self, id: &str) -> Vec<Value> {
        let path = format!("/v1/aggregates/{}/events?limit=1000", encoded(id));
        get(&path).send(self).await.must_be(200).items()
    }

    /// An instance, once it is at this number.
    pub(crate) async fn instance_at(&self, id: &str, number: u64) -> Value {
        let path = format!("/v1/instances/{}", encoded(id));
        eventually(&format!("{path} at {number}"), async || {
            let found = get(&path).send(self).await;
            found.status == 200 && found.json()["sequence_number"] == number
        })
        .await;
        get(&path).send(self).await.must_be(200).json()
    }

    /// Ids that a search finds for demo-a.
    pub(crate) async fn found(&self, words: &str) -> Vec<Value> {
        get(&format!("/v1/search?q={}", encoded(words))).send(self).await.must_be(200).items()
    }
}

/// A command as a call: without a key, its event id is one.
pub(crate) fn send(command: &Value) -> Call {
    post("/v1/commands").keyless().json(command)
}

/// The first event of an instance.
pub(crate) fn create(id: &str, event_id: &str, payload: &Value) -> Value {
    json!({ "event_id": event_id, "aggregate_id": id, "kind": "create", "payload": payload })
}

/// A later one.
pub(crate) fn update(id: &str, event_id: &str, expected: u64, payload: &Value) -> Value {
    json!({
        "event_id": event_id, "aggregate_id": id, "kind": "update", "expected_seq": expected,
        "payload": payload,
    })
}

/// The last one.
pub(crate) fn delete(id: &str, event_id: &str, expected: u64) -> Value {
    json!({
        "event_id": event_id, "aggregate_id": id, "kind": "delete", "expected_seq": expected,
        "payload": {},
    })
}

/// A part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let shown = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(shown).collect()
}
