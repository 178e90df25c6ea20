//! A service of notes: PUT and GET with ETags, each write one commit.
//!
//! The handler reads, checks what the client has seen, and hands back its writes with its answer.
//! The layer commits the key, the note, the audit entry and the response together, so that a retry
//! gets the same answer and two writers never overwrite each other. At the end the service gets a
//! few requests, so that there is something to see.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use axum::{Json, Router};
use http_body_util::BodyExt;
use onceward::core::key::Subject;
use onceward::engine::Engine;
use onceward::http::{
    Caller, Commits, Door, Identity, OncewardLayer, Policy, Preconditions, Refusal, Route, Routes,
    Versioned, Writes,
};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::Value;
use tower::{Layer, ServiceExt};

const TENANT: &str = "acme";

/// Creates a note, or replaces the one that the client has seen.
async fn put_note(
    mut writes: Writes,
    preconditions: Preconditions,
    Path(id): Path<String>,
    Json(note): Json<Value>,
) -> Result<Response, Refusal> {
    let seen = writes.read("notes", &id).await?;
    preconditions.check_write(seen.tag().as_ref())?;
    let version = writes.put(&seen, note.to_string().into_bytes())?;
    let mut entry = writes.entry("note.put");
    entry.version_before = Some(seen.version);
    entry.version_after = Some(version);
    writes.audit(entry);
    let status = if seen.value.is_none() { StatusCode::CREATED } else { StatusCode::OK };
    Ok(writes.answer((status, Versioned::new(version, Json(note)))))
}

/// Reads a note; 304 when the client has it already.
async fn get_note(
    State(engine): State<Engine>,
    preconditions: Preconditions,
    Path(id): Path<String>,
) -> Result<Response, Box<dyn Error>> {
    let found = engine.get(&Subject::new(TENANT, "notes", &id)?).await?;
    let Some(note) = found else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let body = Json(serde_json::from_slice::<Value>(&note.value)?);
    let answer = Versioned::new(note.version, body).for_read(&preconditions);
    Ok(answer.unwrap_or_else(IntoResponse::into_response))
}

/// An error that nobody expected, as axum wants it said.
async fn get_note_or_500(
    engine: State<Engine>,
    preconditions: Preconditions,
    id: Path<String>,
) -> Response {
    let got = get_note(engine, preconditions, id).await;
    got.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

fn service(engine: &Engine) -> Result<Router, Box<dyn Error>> {
    let policy = Policy { commits: Commits::One, ..Policy::default() };
    let routes = Routes::written(vec![Route::new("PUT /notes/{id}", policy)?]);
    // One caller for everything: a real service identifies them.
    let caller = Caller { tenant: TENANT.into(), caller: "ada".into() };
    let door = Door::new(engine.clone(), Identity::Single(caller), routes);
    let router = Router::new()
        .route("/notes/{id}", put(put_note).get(get_note_or_500))
        .with_state(engine.clone());
    // Around the router, so that it routes by the spelling of the path that keys are made of.
    Ok(Router::new().fallback_service(OncewardLayer::new(door).layer(router)))
}

/// Sends a request and tells what came back.
async fn tell(
    router: &Router,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<(), Box<dyn Error>> {
    let mut request = Request::builder().method(method).uri("/notes/1");
    request = request.header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = router.clone().oneshot(request.body(Body::from(body.to_string()))?).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    let shown = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
    println!("{method} {headers:?}");
    println!(
        "  {} etag={} replayed={} {}",
        head.status.as_u16(),
        shown("etag"),
        shown("idempotency-replayed"),
        String::from_utf8_lossy(&body)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("onceward-notes-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = SqliteStore::open(folder.join("notes.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let router = service(&engine)?;
    let (milk, bread) = (r#"{"text":"milk"}"#, r#"{"text":"bread"}"#);
    // Create it, and send the same again: the answer is the same, and nothing is written twice.
    tell(&router, "PUT", &[("idempotency-key", "k-1"), ("if-none-match", "*")], milk).await?;
    tell(&router, "PUT", &[("idempotency-key", "k-1"), ("if-none-match", "*")], milk).await?;
    // Two clients have seen version 1; the second one to write is told so.
    tell(&router, "PUT", &[("idempotency-key", "k-2"), ("if-match", "\"1\"")], bread).await?;
    tell(&router, "PUT", &[("idempotency-key", "k-3"), ("if-match", "\"1\"")], milk).await?;
    tell(&router, "GET", &[], "").await?;
    tell(&router, "GET", &[("if-none-match", "\"2\"")], "").await?;
    engine.close().await?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
