//! The demo's traffic: slightly chaotic users of an organisation of their own.
//!
//! They send duplicates at once, race each other with the same ETag, come with stale ones, use a
//! key twice for different things, and now and then a worker dies with jobs in its hands. All of it
//! goes through the service as requests do; only the dying worker takes jobs from the engine.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::future::join_all;
use http::{Method, Request};
use http_body_util::BodyExt;
use onceward::engine::Take;
use onceward_reference::planning::{Planning, SUMMARY};
use onceward_reference::principals::{ORGANISATION_TRAFFIC, Principal};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::super::tally::Tally;
use super::super::users;
use crate::admin::new_token;

/// Pause between two things that the users do.
const PAUSE: Duration = Duration::from_millis(150);
/// Rounds between two workers that die.
const KILL_EVERY: u64 = 80;
/// How long a worker that is to die looks for a job.
const DOOMED_WITHIN: Duration = Duration::from_secs(10);
/// Rounds that one project is worked on.
const ROUNDS: u64 = 40;

/// What the users know.
pub(super) struct Traffic {
    planning: Planning,
    router: Router,
    tokens: Vec<String>,
    tally: Arc<Tally>,
    keys: u64,
    run: String,
}

/// A resource as a user has seen it.
#[derive(Clone, Default)]
struct Known {
    path: String,
    etag: String,
}

impl Traffic {
    pub(super) fn new(planning: &Planning, known: &[Principal], tally: Arc<Tally>) -> Self {
        let tokens = users::tokens(known);
        let run = new_token().unwrap_or_default();
        let router = planning.router();
        Self { planning: planning.clone(), router, tokens, tally, keys: 0, run }
    }

    /// Works on one project after the other, for as long as the demo runs.
    pub(super) async fn run(mut self) {
        let mut round = 0;
        loop {
            let key = self.key();
            let body = json!({ "name": format!("Crossing {round}") });
            let project = self.duplicated(Method::POST, "/v1/projects", &key, &body).await;
            for _ in 0..ROUNDS {
                round += 1;
                if let Some(project) = &project {
                    self.round(round, project).await;
                }
                if round.is_multiple_of(KILL_EVERY) {
                    self.kill_a_worker(round);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// One mission from its beginning to its end.
    async fn round(&mut self, round: u64, project: &Known) {
        let missions = format!("{}/missions", project.path);
        let (key, body) = (self.key(), json!({ "title": format!("Ferry run {round}") }));
        let Some(mission) = self.duplicated(Method::POST, &missions, &key, &body).await else {
            return;
        };
        if round.is_multiple_of(7) {
            // A careless client: the key again, for something else.
            self.send(0, Method::POST, &missions, (&key, ""), &json!({ "title": "Other" })).await;
        }
        let mission = self.raced(&mission, round).await;
        self.book(&mission).await;
        let (key, plan) = (self.key(), format!("{}/plan", mission.path));
        let planned = self.send(0, Method::POST, &plan, (&key, &mission.etag), &Value::Null).await;
        if round.is_multiple_of(3) {
            // A stale writer: it has not heard of the plan.
            let (key, title) = (self.key(), json!({ "title": "Too late" }));
            self.send(1, Method::PATCH, &mission.path, (&key, &mission.etag), &title).await;
        }
        if let (Some(planned), 0) = (planned, round % 2) {
            let key = self.key();
            let lock = format!("{}/lock", mission.path);
            self.send(0, Method::POST, &lock, (&key, &planned.etag), &Value::Null).await;
        }
    }

    /// Two users change what they both have seen: one wins.
    async fn raced(&mut self, mission: &Known, round: u64) -> Known {
        let keys = [self.key(), self.key()];
        let titles = ["north", "south"].map(|to| json!({ "title": format!("Ferry {round} {to}") }));
        let raced = keys.iter().zip(&titles).enumerate().map(|(user, (key, title))| {
            self.send(user, Method::PATCH, &mission.path, (key, &mission.etag), title)
        });
        let mut won = join_all(raced).await.into_iter().flatten();
        won.next().unwrap_or_else(|| mission.clone())
    }

    /// Two users want the same ferryman at overlapping times: one gets him, and sets him free.
    async fn book(&mut self, mission: &Known) {
        let keys = [self.key(), self.key()];
        let hour = |hour: u64| format!("2031-01-01T{hour:02}:00:00Z");
        let wanted = [(8, 10), (9, 11)].map(|(from, to)| {
            let from_to = (hour(from), hour(to));
            json!({ "collaborator_id": "actor-x", "starts_at": from_to.0, "ends_at": from_to.1 })
        });
        let path = format!("{}/assignments", mission.path);
        let raced = keys
            .iter()
            .zip(&wanted)
            .enumerate()
            .map(|(user, (key, body))| self.send(user, Method::POST, &path, (key, ""), body));
        let made: Vec<Known> = join_all(raced).await.into_iter().flatten().collect();
        for assignment in made {
            let key = self.key();
            // A retry that does not wait: both get the same answer.
            let (path, tag) = (&assignment.path, &assignment.etag);
            let send = |user| self.send(user, Method::DELETE, path, (&key, tag), &Value::Null);
            join_all([send(0), send(0)]).await;
        }
    }

    /// The same request three times at once: it runs once.
    async fn duplicated(
        &self,
        method: Method,
        path: &str,
        key: &str,
        body: &Value,
    ) -> Option<Known> {
        let sent = (0..3).map(|_| self.send(0, method.clone(), path, (key, ""), body));
        join_all(sent).await.into_iter().flatten().next()
    }

    /// Sends a request; what it made or changed, when it did.
    async fn send(
        &self,
        user: usize,
        method: Method,
        path: &str,
        (key, etag): (&str, &str),
        body: &Value,
    ) -> Option<Known> {
        let token = self.tokens.get(user)?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {token}"))
            .header("idempotency-key", key)
            .header("content-type", "application/json");
        if !etag.is_empty() {
            request = request.header("if-match", etag);
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let response = self.router.clone().oneshot(request.body(body).ok()?).await.ok()?;
        self.tally.answered(&response);
        let created = response.headers().get("location").and_then(|place| place.to_str().ok());
        let path = created.unwrap_or(path).to_string();
        let etag = response.headers().get("etag").and_then(|tag| tag.to_str().ok());
        let etag = etag.unwrap_or_default().to_string();
        let succeeded = response.status().is_success();
        // The body is read to its end, as a client would.
        response.into_body().collect().await.ok()?;
        succeeded.then_some(Known { path, etag })
    }

    /// A worker takes jobs and is never heard of again: their leases run out.
    fn kill_a_worker(&self, round: u64) {
        let take = Take {
            queue: SUMMARY.into(),
            owner: format!("doomed worker {round}"),
            max: 3,
            lease_ms: None,
        };
        let (engine, tally) = (self.planning.engine().clone(), self.tally.clone());
        tokio::spawn(async move {
            // The living are quick; it takes a while to get hold of a job.
            let stop = std::future::pending();
            let taken =
                engine.take_waiting(Some(ORGANISATION_TRAFFIC), &take, DOOMED_WITHIN, stop).await;
            if taken.is_ok_and(|taken| !taken.is_empty()) {
                tally.killed();
            }
        });
    }

    fn key(&mut self) -> String {
        self.keys += 1;
        format!("{}-{}", self.run, self.keys)
    }
}
