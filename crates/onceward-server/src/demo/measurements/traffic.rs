//! The demo's traffic: scales, phones and partners that send measurements as they do in life.
//!
//! A scale is tapped twice, a phone comes late or with a clock that is a little off, a careless
//! client uses an id again, and a partner sends a batch over and over because it hears no answer.
//! All of it goes through the service as requests do.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::future::join_all;
use http::{Method, Request};
use http_body_util::BodyExt;
use jiff::Timestamp;
use onceward_reference::measurements::Measurements;
use onceward_reference::principals::Principal;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::tally::Tally;
use super::super::users;
use crate::admin::new_token;

/// Pause between two things that happen.
const PAUSE: Duration = Duration::from_millis(150);
/// People who are weighed.
const PEOPLE: u64 = 12;
/// Measurements of a partner's batch.
const BATCH: u64 = 20;
/// Rounds between two batches, two late phones, two careless clients.
const BATCH_EVERY: u64 = 10;
const LATE_EVERY: u64 = 4;
const CARELESS_EVERY: u64 = 9;
/// How late a late phone is, and how much a clock is off, in seconds.
const LATE_S: u64 = 1_800;
const SKEW_S: u64 = 120;

/// What the senders know.
pub(super) struct Traffic {
    router: Router,
    token: String,
    tally: Arc<Tally>,
    run: String,
    sent: u64,
}

impl Traffic {
    pub(super) fn new(service: &Measurements, known: &[Principal], tally: Arc<Tally>) -> Self {
        let token = users::tokens(known).into_iter().next().unwrap_or_default();
        let run = new_token().unwrap_or_default().chars().take(12).collect();
        Self { router: service.router(), token, tally, run, sent: 0 }
    }

    /// Sends, for as long as the demo runs.
    pub(super) async fn run(mut self) {
        let mut round = 0_u64;
        loop {
            round += 1;
            self.round(round).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn round(&mut self, round: u64) {
        let person = format!("person-{}", round % PEOPLE);
        let path = format!("/v1/users/{person}/measurements");
        let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        // Tapped twice: both taps are the same request.
        let tap = self.measurement(now_s, "kg", "scale");
        let key = self.id();
        join_all([self.send(&path, Some(&key), &tap), self.send(&path, Some(&key), &tap)]).await;
        if round.is_multiple_of(LATE_EVERY) {
            // Two phones: one lay in a bag for half an hour, the clock of the other is a bit off.
            let late = self.measurement(now_s - LATE_S, "lb", "Phone");
            self.send(&path, None, &late).await;
            let skewed = self.measurement(now_s - SKEW_S, "lb", "phone ");
            self.send(&path, None, &skewed).await;
            // The app sends it again under a key of its own: the id is known.
            self.send(&path, None, &skewed).await;
        }
        if round.is_multiple_of(CARELESS_EVERY) {
            let mut other = tap.clone();
            other["weight"] = json!(99.9);
            self.send(&path, None, &other).await;
        }
        if round.is_multiple_of(BATCH_EVERY) {
            self.partner(now_s).await;
        }
    }

    /// A partner's nightly batch; no answer is heard, so it comes again, and once more anew.
    async fn partner(&mut self, now_s: u64) {
        let mut items = Vec::new();
        for n in 0..BATCH {
            let mut item = self.measurement(now_s, "g", "partner");
            item["user_id"] = json!(format!("patient-{}", n % 5));
            items.push(item);
        }
        let batch = json!({ "measurements": items });
        let (key, path) = (self.id(), "/v1/measurements/batch");
        self.send(path, Some(&key), &batch).await;
        self.send(path, Some(&key), &batch).await;
        let key = self.id();
        self.send(path, Some(&key), &batch).await;
    }

    fn measurement(&mut self, at_s: u64, unit: &str, source: &str) -> Value {
        let weight = match unit {
            "lb" => json!(160 + self.sent % 40),
            "g" => json!(60_000 + self.sent % 40_000),
            _ => json!(60 + self.sent % 40),
        };
        let at = Timestamp::from_second(i64::try_from(at_s).unwrap_or_default());
        let at = at.unwrap_or(Timestamp::UNIX_EPOCH).to_string();
        json!({
            "measurement_id": self.id(), "weight": weight, "unit": unit, "timestamp": at,
            "source": source,
        })
    }

    /// Sends a request; the answer is read to its end, as a client would.
    async fn send(&self, path: &str, key: Option<&str>, body: &Value) {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("x-idempotency-key", key);
        }
        let Ok(request) = request.body(Body::from(body.to_string())) else { return };
        let Ok(response) = self.router.clone().oneshot(request).await;
        self.tally.answered(&response);
        // Nobody looks at it.
        let _ = response.into_body().collect().await;
    }

    fn id(&mut self) -> String {
        self.sent += 1;
        format!("{}-{}", self.run, self.sent)
    }
}
