//! The ontology's users: they create, race each other for a number, send things twice, and delete.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt;
use onceward_reference::ontology::Ontology;
use onceward_reference::principals::Principal;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::tally::Tally;
use super::super::users;
use crate::admin::new_token;

/// Pause between two things that the users do.
const PAUSE: Duration = Duration::from_millis(200);
/// Updates of one instance before the next one is made.
const UPDATES: u64 = 12;

/// What the users know.
pub(super) struct Traffic {
    router: Router,
    tokens: Vec<String>,
    tally: Arc<Tally>,
    run: String,
}

impl Traffic {
    pub(super) fn new(ontology: &Ontology, known: &[Principal], tally: Arc<Tally>) -> Self {
        let run = new_token().unwrap_or_default();
        Self { router: ontology.router(), tokens: users::tokens(known), tally, run }
    }

    /// Works on one instance after the other, for as long as the demo runs.
    pub(super) async fn run(self) {
        for instance in 0_u64.. {
            let id = format!("boat-{}-{instance}", &self.run[..self.run.len().min(8)]);
            let create = self.command(&id, "create", 0, 0);
            // The same command three times at once: one event.
            join_all((0..3).map(|user| self.send(user % 2, &create))).await;
            let mut seq = 1;
            for round in 0..UPDATES {
                // Two users have seen the same number: one of them is told where it is now.
                let raced = [0, 1].map(|user| self.command(&id, "update", seq, user));
                let sent = raced.iter().enumerate().map(|(user, command)| self.send(user, command));
                let numbers = join_all(sent).await;
                seq = numbers.into_iter().flatten().max().unwrap_or(seq);
                if round % 5 == 4 {
                    // A retry that does not know that it was heard.
                    self.send(0, &raced[0]).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
            if instance % 3 == 2 {
                let delete = self.command(&id, "delete", seq, 0);
                self.send(0, &delete).await;
            }
        }
    }

    fn command(&self, id: &str, kind: &str, seq: u64, user: u64) -> Value {
        json!({
            "event_id": format!("{id}-{seq}-{user}"),
            "aggregate_id": id,
            "kind": kind,
            "expected_seq": seq,
            "payload": { "name": format!("Boat of user {user}"), "trips": seq },
        })
    }

    /// Sends a command; the number of its event, when it has one.
    async fn send(&self, user: usize, command: &Value) -> Option<u64> {
        let token = self.tokens.get(user)?;
        let request = Request::builder()
            .method("POST")
            .uri("/v1/commands")
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json")
            .body(Body::from(command.to_string()))
            .ok()?;
        let response = self.router.clone().oneshot(request).await.ok()?;
        self.tally.command(&response);
        let body = response.into_body().collect().await.ok()?.to_bytes();
        let body: Value = serde_json::from_slice(&body).ok()?;
        body.get("sequence_number").or_else(|| body.get("current_seq"))?.as_u64()
    }
}
