//! What the measurements suite asks of a running service beyond plain calls.

use jiff::Timestamp;
use serde_json::{Value, json};

pub(crate) use super::service::*;

/// The instant that tests count from: a while ago, so that what comes after it is not the future.
pub(crate) const NOON: &str = "2025-09-15T12:00:00Z";

impl Service {
    /// On an empty store.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_named("measurements", test, &[])
    }

    /// On an empty store, with these variables.
    pub(crate) fn start_with(test: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_named("measurements", test, variables)
    }

    /// The audit of a user, in its order.
    pub(crate) async fn audit(&self, user: &str) -> Vec<Value> {
        let path = format!("/v1/users/{user}/audit?limit=1000");
        get(&path).send(self).await.must_be(200).items()
    }

    /// The actions of a user's audit.
    pub(crate) async fn actions(&self, user: &str) -> Vec<String> {
        let audit = self.audit(user).await;
        audit.iter().map(|entry| entry["action"].as_str().unwrap().to_string()).collect()
    }

    /// The measurements of a user.
    pub(crate) async fn listed(&self, user: &str) -> Vec<Value> {
        let path = format!("/v1/users/{user}/measurements?limit=1000");
        get(&path).send(self).await.must_be(200).items()
    }

    /// The value of a metric without labels, or with these.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.operate("GET", "/metrics").await.must_be(200).body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// So many seconds after noon.
pub(crate) fn at(seconds: i64) -> String {
    let noon: Timestamp = NOON.parse().unwrap();
    Timestamp::from_second(noon.as_second() + seconds).unwrap().to_string()
}

/// A measurement so many seconds after noon.
pub(crate) fn measurement(id: &str, seconds: i64) -> Value {
    json!({
        "measurement_id": id, "weight": 80.5, "unit": "kg", "timestamp": at(seconds),
        "source": "scale",
    })
}

/// The same, of a user: for batches.
pub(crate) fn of(user: &str, id: &str, seconds: i64) -> Value {
    let mut measurement = measurement(id, seconds);
    measurement["user_id"] = json!(user);
    measurement
}

/// Submits a measurement of a user, with a key of its own.
pub(crate) fn submit(user: &str, measurement: &Value) -> Call {
    post(&format!("/v1/users/{user}/measurements")).json(measurement)
}

/// Submits a batch.
pub(crate) fn batch(items: &[Value]) -> Call {
    post("/v1/measurements/batch").json(&json!({ "measurements": items }))
}

impl Answer {
    /// Status and name of a refusal.
    #[track_caller]
    pub(crate) fn error(&self) -> (u16, String) {
        let body = self.json();
        assert!(body["message"].is_string(), "{self:?}");
        (self.status, body["error"].as_str().unwrap().to_string())
    }

    /// The statuses of a batch, in the order of the request.
    #[track_caller]
    pub(crate) fn statuses(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{self:?}");
        let results = self.json()["results"].as_array().unwrap().clone();
        for (place, line) in results.iter().enumerate() {
            assert_eq!(line["index"], place, "in the order of the request");
        }
        results.iter().map(|line| line["status"].as_str().unwrap().to_string()).collect()
    }
}
