//! One-commit handlers and preconditions around a real axum router, on every store.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use axum::{Json, Router};
use http_body_util::BodyExt;
use onceward::core::decide::NewJob;
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::limits::MAX_BATCH_BYTES;
use onceward::engine::{Engine, Take};
use onceward::http::{
    Caller, Commits, Dialect, Door, Identity, IfMatch, MissingKey, OncewardLayer, Policy,
    Preconditions, Refusal, Routes, Versioned, Writes,
};
use onceward::store::{Items, List};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use support::on::{On, Opened};

/// What handlers share: how often they ran, and a gate between reading and answering.
struct Shared {
    ran: AtomicU64,
    read: Semaphore,
    go_on: Semaphore,
}

struct Place {
    router: Router,
    shared: Arc<Shared>,
    engine: Engine,
    _opened: Opened,
}

async fn put_note(
    State(shared): State<Arc<Shared>>,
    mut writes: Writes,
    preconditions: Preconditions,
    Path(id): Path<String>,
    Json(note): Json<Value>,
) -> Result<Response, Refusal> {
    shared.ran.fetch_add(1, Ordering::SeqCst);
    let seen = writes.read("notes", &id).await?;
    preconditions.check_write(seen.tag().as_ref())?;
    gate(&shared, &note).await;
    let version = writes.put(&seen, note.to_string().into_bytes())?;
    let mut entry = writes.entry("note.put");
    entry.version_after = Some(version);
    writes.audit(entry);
    let tenant = writes.caller().tenant.clone();
    let key = Key::new(Kind::Job, &tenant, "index", &format!("{id}@{version}")).unwrap();
    let payload: Arc<[u8]> = id.as_bytes().into();
    writes.enqueue(NewJob::new(key, fingerprint_bytes(&payload), payload));
    if note["status"] == 503 {
        return Ok(writes.answer(StatusCode::SERVICE_UNAVAILABLE));
    }
    Ok(writes.answer(Versioned::new(version, Json(note))))
}

/// Between reading and writing, a handler that is asked to waits until it is told to go on.
async fn gate(shared: &Shared, note: &Value) {
    if note["gate"] == true {
        shared.read.add_permits(1);
        shared.go_on.acquire().await.unwrap().forget();
    }
}

/// Adds one to a counter, whatever the client has seen.
async fn count(State(shared): State<Arc<Shared>>, mut writes: Writes) -> Result<Response, Refusal> {
    shared.ran.fetch_add(1, Ordering::SeqCst);
    let seen = writes.read("counters", "one").await?;
    let value: u64 =
        seen.value.as_ref().map_or(0, |v| std::str::from_utf8(v).unwrap().parse().unwrap());
    writes.put(&seen, (value + 1).to_string().into_bytes())?;
    Ok(writes.answer((value + 1).to_string()))
}

/// Writes over the version in its body, without looking.
async fn blind(mut writes: Writes, body: Bytes) -> Result<Response, Refusal> {
    let mut seen = writes.read("notes", "blind").await?;
    seen.version = std::str::from_utf8(&body).unwrap().parse().unwrap();
    writes.put(&seen, *b"blind")?;
    Ok(writes.answer("written"))
}

async fn expects(mut writes: Writes, Json(body): Json<Value>) -> Result<Response, Refusal> {
    let seen = writes.read("notes", "expects").await?;
    if body["expected_version"].as_u64() != Some(seen.version) {
        return Err(Refusal::version_mismatch(seen.version));
    }
    writes.put(&seen, *b"x")?;
    Ok(writes.answer("written"))
}

async fn forgets(mut writes: Writes) -> Result<&'static str, Refusal> {
    let seen = writes.read("notes", "forgets").await?;
    writes.put(&seen, *b"lost")?;
    Ok("this was never written")
}

async fn panics(mut writes: Writes) -> Response {
    let seen = writes.read("notes", "panics").await.unwrap();
    writes.put(&seen, *b"x").unwrap();
    panic!("the handler breaks off");
}

async fn too_large(mut writes: Writes) -> Result<Response, Refusal> {
    let seen = writes.read("notes", "large").await?;
    writes.put(&seen, vec![b'x'; MAX_BATCH_BYTES])?;
    Ok(writes.answer("written"))
}

async fn too_many(mut writes: Writes) -> Result<Response, Refusal> {
    for id in 0..50 {
        let seen = writes.read("notes", &id.to_string()).await?;
        writes.put(&seen, *b"x")?;
    }
    Ok(writes.answer("written"))
}

async fn requires(preconditions: Preconditions) -> Result<&'static str, Refusal> {
    preconditions.require_if_match()?;
    Ok("had one")
}

async fn get_note(
    State(engine): State<Engine>,
    preconditions: Preconditions,
    Path(id): Path<String>,
) -> Result<Response, Refusal> {
    let subject = Subject::new("acme", "notes", &id).unwrap();
    let Some(note) = engine.get(&subject).await.unwrap() else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    Versioned::new(note.version, note.value.to_vec()).for_read(&preconditions)
}

fn one() -> Policy {
    Policy { commits: Commits::One, ..Policy::default() }
}

async fn place(on: On, policy: Policy) -> Place {
    let opened = on.open().await;
    let engine = Engine::new(opened.store.clone());
    let identity = Identity::Single(Caller { tenant: "acme".into(), caller: "ada".into() });
    let door = Door::new(engine.clone(), identity, Routes::every(policy).unwrap());
    let door = on.cached(door);
    let shared = Arc::new(Shared {
        ran: AtomicU64::new(0),
        read: Semaphore::new(0),
        go_on: Semaphore::new(0),
    });
    let reads = Router::new().route("/notes/{id}", axum::routing::get(get_note));
    let router = Router::new()
        .route("/notes/{id}", put(put_note))
        .route("/count", post(count))
        .route("/blind", post(blind))
        .route("/expects", post(expects))
        .route("/forgets", post(forgets))
        .route("/panics", post(panics))
        .route("/too_many", post(too_many))
        .route("/too_large", post(too_large))
        .route("/requires", post(requires))
        .with_state(shared.clone())
        .merge(reads.with_state(engine.clone()))
        .layer(OncewardLayer::new(door));
    Place { router, shared, engine, _opened: opened }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    #[track_caller]
    fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status);
        problem
    }

    #[track_caller]
    fn is_replay_of(&self, first: &Self) {
        assert_eq!((self.status, &self.body), (first.status, &first.body));
        assert_eq!(self.header("etag"), first.header("etag"));
        assert_eq!(self.header("idempotency-replayed"), Some("true"));
    }
}

impl Place {
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    async fn put(&self, key: &str, if_match: Option<&str>, body: &str) -> Answer {
        let mut headers = vec![("idempotency-key", key)];
        headers.extend(if_match.map(|tag| ("if-match", tag)));
        self.send("PUT", "/notes/1", &headers, body).await
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.send("POST", path, &[("idempotency-key", key)], body).await
    }

    fn ran(&self) -> u64 {
        self.shared.ran.load(Ordering::SeqCst)
    }

    async fn note(&self) -> Option<(u64, Vec<u8>)> {
        let subject = Subject::new("acme", "notes", "1").unwrap();
        let note = self.engine.get(&subject).await.unwrap()?;
        Some((note.version, note.value.to_vec()))
    }

    async fn records(&self) -> usize {
        let what = List::Records { tenant: None, scope: None, state: None };
        let page = self.engine.list(what, None, 1_000).await.unwrap();
        let Items::Records(records) = page.items else { panic!("records") };
        records.len()
    }

    async fn jobs(&self) -> usize {
        let take = Take { queue: "index".into(), owner: "w".into(), max: 100, lease_ms: None };
        self.engine.take(&take).await.unwrap().len()
    }
}

async fn a21_key_document_job_audit_and_response_commit_together_and_are_replayed(on: On) {
    let place = place(on, one()).await;
    let first = place.put("k", None, r#"{"text":"a"}"#).await;
    assert_eq!((first.status, first.header("etag")), (200, Some("\"1\"")));
    place.put("k", None, r#"{"text":"a"}"#).await.is_replay_of(&first);
    assert_eq!(place.ran(), 1);
    assert_eq!(place.note().await, Some((1, br#"{"text":"a"}"#.to_vec())));
    assert_eq!(place.jobs().await, 1);
    let what = List::Audit(onceward::store::AuditFilter::default());
    let Items::Audit(entries) = place.engine.list(what, None, 100).await.unwrap().items else {
        panic!("audit")
    };
    let actions: Vec<_> = entries.iter().map(|audited| audited.entry.action.to_string()).collect();
    assert!(actions.iter().any(|action| action == "note.put"), "{actions:?}");
    assert!(actions.iter().any(|action| action == "request.done"), "{actions:?}");
    let other = place.put("k", None, r#"{"text":"b"}"#).await;
    other.problem(422, "idempotency.payload_mismatch");
}

async fn replay_wins_over_a_now_stale_if_match(on: On) {
    let place = place(on, one()).await;
    place.put("k1", None, "{}").await;
    let mine = place.put("k2", Some("\"1\""), r#"{"text":"mine"}"#).await;
    assert_eq!(mine.header("etag"), Some("\"2\""));
    place.put("k3", Some("\"2\""), r#"{"text":"theirs"}"#).await;
    place.put("k2", Some("\"1\""), r#"{"text":"mine"}"#).await.is_replay_of(&mine);
    assert_eq!(place.note().await.unwrap().0, 3);
}

async fn b02_b04_a_stale_if_match_is_412_and_stays_412_under_its_key(on: On) {
    let place = place(on, one()).await;
    place.put("k1", None, "{}").await;
    place.put("k2", Some("\"1\""), "{}").await;
    let stale = place.put("k3", Some("\"1\""), r#"{"text":"lost"}"#).await;
    let problem = stale.problem(412, "precondition.failed");
    assert_eq!(problem["current_revision"], "2");
    assert_eq!(problem["key_advice"], "rotate");
    assert_ne!(problem["instance"], "urn:request:", "the problem names the request");
    place.put("k3", Some("\"1\""), r#"{"text":"lost"}"#).await.is_replay_of(&stale);
    // Also with the right tag: the key's outcome is settled.
    place.put("k3", Some("\"2\""), r#"{"text":"lost"}"#).await.is_replay_of(&stale);
    assert_eq!(place.note().await.unwrap().0, 2);
}

async fn b02_a_lost_race_is_412_and_never_a_lost_update(on: On) {
    let place = Arc::new(place(on, one()).await);
    place.put("k1", None, "{}").await;
    let slow = {
        let place = place.clone();
        tokio::spawn(async move {
            place.put("slow", Some("\"1\""), r#"{"gate":true,"text":"slow"}"#).await
        })
    };
    // It has read version 1 and found that If-Match holds; now someone else writes.
    place.shared.read.acquire().await.unwrap().forget();
    let quick = place.put("quick", Some("\"1\""), r#"{"text":"quick"}"#).await;
    assert_eq!(quick.status, 200);
    place.shared.go_on.add_permits(1);
    let slow = slow.await.unwrap();
    assert_eq!(slow.problem(412, "precondition.failed")["current_revision"], "2");
    assert_eq!(place.note().await, Some((2, br#"{"text":"quick"}"#.to_vec())));
    let again = place.put("slow", Some("\"1\""), r#"{"gate":true,"text":"slow"}"#).await;
    again.is_replay_of(&slow);
    assert_eq!(place.jobs().await, 2, "the loser's job was never made");
}

async fn losers_of_a_race_of_duplicates_replay_the_winners_answer(on: On) {
    let place = Arc::new(place(on, one()).await);
    let body = r#"{"gate":true,"text":"x"}"#;
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let place = place.clone();
            tokio::spawn(async move { place.put("k", None, body).await })
        })
        .collect();
    // All of them have computed before one of them commits.
    place.shared.read.acquire_many(8).await.unwrap().forget();
    place.shared.go_on.add_permits(8);
    let mut replays = 0;
    let mut answers = Vec::new();
    for racer in racers {
        let answer = racer.await.unwrap();
        assert_eq!(answer.status, 200);
        replays += usize::from(answer.header("idempotency-replayed").is_some());
        answers.push(answer.body);
    }
    answers.dedup();
    assert_eq!((replays, answers.len(), place.jobs().await), (7, 1, 1));
    assert_eq!(place.note().await.unwrap().0, 1);
}

async fn i12_a_handler_without_precondition_runs_again_until_it_fits(on: On) {
    let place = Arc::new(place(on, one()).await);
    let racers: Vec<_> = (0..20)
        .map(|number| {
            let place = place.clone();
            tokio::spawn(async move { place.post("/count", &format!("k{number}"), "{}").await })
        })
        .collect();
    let mut seen: Vec<u64> = Vec::new();
    for racer in racers {
        let answer = racer.await.unwrap();
        assert_eq!(answer.status, 200);
        seen.push(std::str::from_utf8(&answer.body).unwrap().parse().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=20).collect::<Vec<_>>());
}

async fn a_blind_write_that_loses_is_412_once_and_for_all(on: On) {
    let place = place(on, one()).await;
    assert_eq!(place.post("/blind", "k1", "0").await.status, 200);
    let lost = place.post("/blind", "k2", "0").await;
    assert_eq!(lost.problem(412, "precondition.failed")["current_revision"], "1");
    place.post("/blind", "k2", "0").await.is_replay_of(&lost);
}

async fn a24_an_expected_version_in_the_body_that_fails_is_409(on: On) {
    let place = place(on, Policy { dialect: Dialect::Planning, ..one() }).await;
    let body = r#"{"expected_version":7}"#;
    let answer = place.post("/expects", "k", body).await;
    let problem = answer.problem(409, "concurrency.version_mismatch");
    assert_eq!(problem["current_version"], 0);
    place.post("/expects", "k", body).await.is_replay_of(&answer);
    assert_eq!(place.post("/expects", "k2", r#"{"expected_version":0}"#).await.status, 200);
}

async fn b02_the_planning_dialect_has_its_own_codes_and_refuses_star_and_weak_tags(on: On) {
    let planning = Policy { dialect: Dialect::Planning, ..one() };
    let place = place(on, Policy { if_match: IfMatch::Require, ..planning.clone() }).await;
    let missing = place.put("k0", None, "{}").await;
    missing.problem(428, "planning.concurrency_etag_required");
    let stale = place.put("k1", Some("\"9\""), "{}").await;
    stale.problem(412, "planning.concurrency_mismatch");
    for bad in ["*", "W/\"1\"", "1"] {
        let answer = place.put("k2", Some(bad), "{}").await;
        answer.problem(400, "planning.concurrency_etag_invalid");
    }
    assert_eq!(place.records().await, 1, "only the 412 is an outcome");
}

async fn altered_tags_count_only_when_that_was_asked_for(on: On) {
    for (altered_etags, status) in [(false, 412), (true, 200)] {
        let place = place(on, Policy { altered_etags, ..one() }).await;
        place.put("k1", None, "{}").await;
        assert_eq!(place.put("k2", Some("W/\"1\""), "{}").await.status, status);
        let current = if altered_etags { "\"2-gzip\"" } else { "\"1-gzip\"" };
        assert_eq!(place.put("k3", Some(current), "{}").await.status, status);
    }
}

async fn ruling_4_what_is_not_an_outcome_leaves_no_record_and_no_writes(on: On) {
    let place = place(on, one()).await;
    assert_eq!(place.put("k", None, r#"{"status":503}"#).await.status, 503);
    let missing = place.post("/requires", "k", "{}").await;
    missing.problem(428, "precondition.required");
    assert_eq!((place.records().await, place.jobs().await), (0, 0));
    assert_eq!(place.note().await, None);
    let headers = [("idempotency-key", "k"), ("if-match", "\"1\"")];
    assert_eq!(
        place.send("POST", "/requires", &headers, "{}").await.status,
        200,
        "a retry may run"
    );
}

async fn a_handler_that_breaks_off_or_loses_its_writes_has_written_nothing(on: On) {
    let place = place(on, one()).await;
    for path in ["/panics", "/forgets"] {
        let answer = place.post(path, "k", "{}").await;
        answer.problem(502, "upstream.failed");
    }
    // What does not fit into one commit never will: more writes, or more bytes.
    for path in ["/too_many", "/too_large"] {
        let problem = place.post(path, "k", "{}").await.problem(413, "body.too_large");
        assert_eq!(problem["retryable"], false);
    }
    assert_eq!(place.note().await, None);
    assert_eq!(place.records().await, 0);
}

async fn a_handler_with_writes_on_a_two_commit_route_is_refused_and_says_why(on: On) {
    let place = place(on, Policy::default()).await;
    let answer = place.put("k", None, "{}").await;
    let problem = answer.problem(502, "upstream.failed");
    assert!(problem["detail"].as_str().unwrap().contains("Commits::One"), "{problem}");
    assert_eq!(place.note().await, None);
    // To the layer it is a handler that failed: what it did elsewhere is not known.
    assert_eq!(answer.header("idempotency-stored"), Some("false"));
    assert_eq!(place.records().await, 1);
    // A refusal that has judged nothing leaves no record.
    place.post("/requires", "k", "{}").await.problem(428, "precondition.required");
    assert_eq!(place.records().await, 1);
}

async fn a_request_without_a_key_is_committed_too_where_that_is_allowed(on: On) {
    let place = place(
        on,
        Policy { missing_key: MissingKey::Allow, dialect: Dialect::Measurements, ..one() },
    )
    .await;
    for version in 1..=2 {
        let answer = place.send("PUT", "/notes/1", &[], "{}").await;
        assert_eq!(answer.status, 200);
        assert!(answer.header("warning").is_some() && answer.header("x-idempotency-key").is_none());
        assert_eq!(place.note().await.unwrap().0, version);
    }
}

async fn b01_reads_have_a_strong_etag_and_304_and_write_nothing(on: On) {
    let place = place(on, one()).await;
    place.put("k", None, r#"{"text":"a"}"#).await;
    let records = place.records().await;
    let read = place.send("GET", "/notes/1", &[], "").await;
    assert_eq!((read.status, read.header("etag")), (200, Some("\"1\"")));
    let known = place.send("GET", "/notes/1", &[("if-none-match", "W/\"1\"")], "").await;
    assert_eq!((known.status, known.header("etag"), known.body.len()), (304, Some("\"1\""), 0));
    let bad = place.send("GET", "/notes/1", &[("if-none-match", "1")], "").await;
    let problem = bad.problem(400, "precondition.invalid");
    assert_ne!(problem["instance"], json!("urn:request:"));
    assert_eq!(place.records().await, records);
}

on_every_store! {
    a21_key_document_job_audit_and_response_commit_together_and_are_replayed,
    replay_wins_over_a_now_stale_if_match,
    b02_b04_a_stale_if_match_is_412_and_stays_412_under_its_key,
    b02_a_lost_race_is_412_and_never_a_lost_update,
    losers_of_a_race_of_duplicates_replay_the_winners_answer,
    i12_a_handler_without_precondition_runs_again_until_it_fits,
    a_blind_write_that_loses_is_412_once_and_for_all,
    a24_an_expected_version_in_the_body_that_fails_is_409,
    b02_the_planning_dialect_has_its_own_codes_and_refuses_star_and_weak_tags,
    altered_tags_count_only_when_that_was_asked_for,
    ruling_4_what_is_not_an_outcome_leaves_no_record_and_no_writes,
    a_handler_that_breaks_off_or_loses_its_writes_has_written_nothing,
    a_handler_with_writes_on_a_two_commit_route_is_refused_and_says_why,
    a_request_without_a_key_is_committed_too_where_that_is_allowed,
    b01_reads_have_a_strong_etag_and_304_and_write_nothing,
}
