//! What the business suite asks of a running service beyond plain calls.

use serde_json::{Value, json};

pub(crate) use super::service::*;

/// Organisation of demo-b.
pub(crate) const ORGANISATION_B: &str = "22222222-2222-2222-2222-222222222222";

/// The shortest time that an outcome may be kept: longer than a client's retries take.
pub(crate) const SHORT: &str = "10s";

impl Service {
    /// On an empty store.
    pub(crate) fn start(test: &str) -> Self {
        Self::start_named("business", test, &[])
    }

    /// On an empty store, with these variables.
    pub(crate) fn start_with(test: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_named("business", test, variables)
    }

    /// Requests' records of an organisation.
    pub(crate) async fn requests(&self, tenant: &str) -> Vec<Value> {
        let mut records = self.records(tenant).await;
        records.retain(|record| record["kind"] == "request");
        records
    }

    /// Audit entries with this action, all of them.
    pub(crate) async fn entries(&self, tenant: &str, action: &str) -> Vec<Value> {
        let path = format!("/v1/audit?tenant={tenant}&action={action}&limit=1000");
        self.operate("GET", &path).await.must_be(200).items()
    }

    /// The value of a metric, by its name and labels as they are written; 0 when it is not there.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.operate("GET", "/metrics").await.must_be(200).body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        let value = |line: &str| line.strip_prefix(name)?.trim().parse::<f64>().ok();
        text.lines().find_map(value).unwrap_or_default()
    }
}

impl Answer {
    /// Whether it was given before.
    pub(crate) fn is_again(&self) -> bool {
        self.header("x-idempotency-replay") == "true"
    }

    /// Status and code of a refusal, which has all its members.
    #[track_caller]
    pub(crate) fn error(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), "application/json", "{self:?}");
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["details"].is_object(), "{error}");
        (self.status, error["code"].as_str().unwrap().to_string())
    }
}

/// A hold, for whom and when.
pub(crate) fn hold(phone: &str, hour: u8) -> Value {
    json!({
        "customer_info": { "name": "Ada", "phone": phone },
        "requested_time": format!("2031-02-16T{hour:02}:00:00Z"),
    })
}

/// A request without a key of its own.
pub(crate) fn book(body: &Value) -> Call {
    post("/bookings/hold").keyless().json(body)
}

/// A payment link.
pub(crate) fn link(amount: u64) -> Value {
    json!({ "amount": amount, "currency": "EUR" })
}

pub(crate) fn put(path: &str) -> Call {
    call("PUT", path)
}
