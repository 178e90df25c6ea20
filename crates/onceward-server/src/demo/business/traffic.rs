//! The demo's traffic: people in a hurry and partners who retry.
//!
//! Somebody clicks "book" twice; a partner's integration repeats what it has no answer for, with
//! its own key; two people of one office send the same estimate; a form is changed and sent under
//! the old key, which is a conflict; a link is paid twice at once. All of it goes through the
//! service as requests do.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::future::join_all;
use http::{Method, Request};
use http_body_util::BodyExt;
use onceward_reference::business::Business;
use onceward_reference::principals::Principal;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::tally::Tally;
use super::super::users;
use crate::admin::new_token;

/// Pause between two things that happen.
const PAUSE: Duration = Duration::from_millis(200);
/// Customers that are served again and again.
const CUSTOMERS: u64 = 12;

/// What the users know.
pub(super) struct Traffic {
    router: Router,
    tokens: Vec<String>,
    tally: Arc<Tally>,
    run: String,
}

impl Traffic {
    pub(super) fn new(business: &Business, known: &[Principal], tally: Arc<Tally>) -> Self {
        let (router, tokens) = (business.router(), users::tokens(known));
        Self { router, tokens, tally, run: new_token().unwrap_or_default() }
    }

    /// One thing after the other, for as long as the demo runs.
    pub(super) async fn run(self) {
        for round in 0_u64.. {
            match round % 4 {
                0 => self.book(round).await,
                1 => self.estimate(round).await,
                2 => self.pay(round).await,
                _ => self.update(round).await,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A double click: the same form twice at once, without a key. The times at which it was sent
    /// differ, and don't count.
    async fn book(&self, round: u64) {
        let (day, hour) = (1 + round % 28, 8 + round % 9);
        let form = |click: u64| {
            json!({
                "customer_info": { "name": customer(round), "phone": phone(round) },
                "requested_time": format!("2031-03-{day:02}T{hour:02}:00:00Z"),
                "service": "Boiler check",
                "visit": format!("{}-{round}", self.run),
                "timestamp": format!("2031-01-01T00:00:00.{click:03}Z"),
            })
        };
        let forms = [form(1), form(2)];
        let clicks =
            forms.iter().map(|form| self.send(0, Method::POST, "/bookings/hold", None, form));
        join_all(clicks).await;
        if round.is_multiple_of(12) {
            // A form that is not filled in, sent in a hurry.
            let empty = json!({ "customer_info": { "name": "" }, "visit": round });
            self.send(0, Method::POST, "/bookings/hold", None, &empty).await;
        }
    }

    /// Two of one office send the same draft, with its lines in another order: it is one estimate.
    async fn estimate(&self, round: u64) {
        let (valve, hour) =
            (json!({ "sku": "VALVE-15", "qty": 2 }), json!({ "sku": "HOUR", "qty": 1.5 }));
        let office = format!("{}-{round}", self.run);
        let one = json!({ "items": [valve, hour], "office": office });
        let other = json!({ "items": [hour, valve], "office": office });
        let path = "/estimates/draft";
        join_all([
            self.send(0, Method::POST, path, None, &one),
            self.send(1, Method::POST, path, None, &other),
        ])
        .await;
    }

    /// A partner that has a key of its own, retries with it, and once in a while changes its mind
    /// under the same key. Then the customer pays, twice.
    async fn pay(&self, round: u64) {
        let key = format!("partner-{}-{round}", self.run);
        let wanted = json!({
            "amount": 4_900 + round % 100, "currency": "EUR", "customer": customer(round),
        });
        let path = "/payments/link";
        let tries = (0..3).map(|_| self.send(1, Method::POST, path, Some(&key), &wanted));
        let made = join_all(tries).await.into_iter().flatten().next();
        if round.is_multiple_of(3) {
            let mut changed = wanted.clone();
            changed["amount"] = json!(9_900);
            self.send(1, Method::POST, path, Some(&key), &changed).await;
        }
        let Some(id) = made.as_ref().and_then(|made| made["id"].as_str()) else { return };
        let pay = format!("/payments/link/{id}/pay");
        let paid = json!({ "card_number": "4000 0000 0000 0002" });
        join_all((0..2).map(|_| self.send(0, Method::POST, &pay, None, &paid))).await;
        // Too late.
        self.send(1, Method::POST, &format!("/payments/link/{id}/cancel"), None, &json!({})).await;
    }

    /// Two clerks write the same customer at once, each under a key of their own; the job goes on.
    async fn update(&self, round: u64) {
        let path = format!("/customers/c{}", round % CUSTOMERS);
        let forms = [0, 1].map(|clerk| {
            let note = format!("seen by clerk {clerk} in round {round}");
            json!({ "name": customer(round), "phone": phone(round), "note": note })
        });
        let keys = [0, 1].map(|clerk| format!("clerk{clerk}-{}-{round}", self.run));
        let writes = forms.iter().zip(&keys).enumerate();
        join_all(
            writes.map(|(user, (form, key))| self.send(user, Method::PUT, &path, Some(key), form)),
        )
        .await;
        let job = format!("/jobs/j{}", round % CUSTOMERS);
        let status = if round % 8 < 4 { "under way" } else { "done" };
        let body = json!({ "status": status, "round": round });
        join_all((0..2).map(|_| self.send(0, Method::PUT, &job, None, &body))).await;
    }

    /// Sends a request; what it answered, when it did what was asked.
    async fn send(
        &self,
        user: usize,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> Option<Value> {
        let token = self.tokens.get(user)?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(body.to_string())).ok()?;
        let response = self.router.clone().oneshot(request).await.ok()?;
        self.tally.answered(&response);
        let succeeded = response.status().is_success();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        succeeded.then(|| serde_json::from_slice(&body).ok()).flatten()
    }
}

fn customer(round: u64) -> String {
    const NAMES: [&str; 5] =
        ["Corner bakery", "Harbour inn", "Mill school", "North bank", "Quay 7"];
    NAMES[(round % NAMES.len() as u64) as usize].to_string()
}

fn phone(round: u64) -> String {
    format!("+1-512-555-01{:02}", round % 100)
}
