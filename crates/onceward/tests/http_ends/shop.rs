//! A shop that charges and answers as it is asked to, behind the layer; and what a retry of one of
//! its requests comes to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http_body_util::BodyExt;
use onceward::engine::Engine;
use onceward::http::{
    Attempt, Caller, Code, Commits, Door, Identity, OncewardLayer, Policy, Refusal, Route, Routes,
    Writes,
};
use onceward::store::{AuditFilter, Items, List};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{OnAbandoned, State as RecordState};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tower::ServiceExt;

use super::support::on::{On, Opened};
use super::{Column, How};

/// When a first attempt charges: before it answers, or, since its answer ends it, not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Effect {
    Before,
    After,
}

/// What a first attempt is asked for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) how: How,
    pub(crate) status: u16,
    pub(crate) effect: Effect,
}

/// What the handler notes of each key: a plain list that hides nothing.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The attempts that ran, where the handler was told which.
    ran: HashMap<String, Vec<Option<Attempt>>>,
    /// The fences under which it charged.
    charged: HashMap<String, Vec<u64>>,
}

pub(crate) type Shared = Arc<Mutex<Ledger>>;

pub(crate) struct Shop {
    on: On,
    _opened: Opened,
    engine: Engine,
    ledger: Shared,
    router: Router,
    requests: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// None when it broke off.
    pub(crate) body: Option<Bytes>,
}

impl Answer {
    pub(crate) fn code(&self) -> String {
        let body = self.body.as_deref().unwrap_or_default();
        let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        problem["code"].as_str().unwrap_or_default().into()
    }

    pub(crate) fn has(&self, name: &str, value: &str) -> bool {
        self.headers.get(name).is_some_and(|there| there == value)
    }
}

/// Charges, then answers; at a first attempt as it is asked to.
pub(crate) async fn charge(State(ledger): State<Shared>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let ask: Ask = serde_json::from_slice(&body).unwrap();
    let key = head.headers["idempotency-key"].to_str().unwrap().to_string();
    let attempt = head.extensions.get::<Attempt>().copied();
    let mut writes = Writes::of(&head.extensions);
    let is_first = {
        let mut ledger = ledger.lock().unwrap();
        let ran = ledger.ran.entry(key.clone()).or_default();
        ran.push(attempt);
        ran.len() == 1
    };
    if !is_first || ask.effect == Effect::Before {
        match &mut writes {
            // In one commit the effect is what is handed back.
            Some(writes) => {
                let seen = writes.read("charges", &key).await.unwrap();
                writes.put(&seen, *b"charged").unwrap();
            }
            None => {
                let fence = attempt.map_or(0, |attempt| attempt.fence);
                ledger.lock().unwrap().charged.entry(key).or_default().push(fence);
            }
        }
    }
    let answer = if is_first { first(ask) } else { StatusCode::CREATED.into_response() };
    match writes {
        Some(writes) => writes.attach(answer),
        None => answer,
    }
}

/// The answer of a first attempt.
fn first(ask: Ask) -> Response {
    let status = StatusCode::from_u16(ask.status).unwrap();
    let problem = |body: serde_json::Value| {
        (status, [("content-type", "application/problem+json")], body.to_string()).into_response()
    };
    let chunk = |ok: bool| match ok {
        true => Ok(Bytes::from_static(b"data: half\n\n")),
        false => Err(std::io::Error::other("the line is cut")),
    };
    let live = |chunks: Vec<Result<Bytes, std::io::Error>>, media_type: &str| {
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        Response::builder().status(status).header("content-type", media_type).body(body).unwrap()
    };
    match ask.how {
        How::Plain => (status, "said").into_response(),
        How::RetryAfter => (status, [("retry-after", "1")], "said").into_response(),
        How::Problem => problem(json!({ "retryable": true, "detail": "x".repeat(60_000) })),
        How::Refusal => {
            let code = "idempotency.response_not_stored";
            problem(json!({ "type": format!("urn:onceward:problem:{code}"), "code": code }))
        }
        How::Typed => {
            let code = if ask.status == 502 { Code::UpstreamFailed } else { Code::Damaged };
            Refusal::new(code, "it went wrong").into_response()
        }
        How::Stream => live(vec![chunk(true), chunk(true)], "text/event-stream"),
        How::TooLarge => (status, "x".repeat(2_000)).into_response(),
        How::Breaks => live(vec![chunk(true), chunk(false)], "text/plain"),
        How::Panics => panic!("the handler breaks off"),
    }
}

impl Shop {
    pub(crate) async fn open(on: On) -> Self {
        let opened = on.open().await;
        let engine = Engine::new(opened.store.clone());
        let (ledger, router) = (Shared::default(), Router::new());
        Self { on, _opened: opened, engine, ledger, router, requests: AtomicU64::new(0) }
    }

    /// Serves under this policy from now on, with a written route or without any.
    pub(crate) fn serve(&mut self, policy: Policy, written: bool) {
        let routes = if written {
            Routes::written(vec![Route::new("POST /charges", policy).unwrap()])
        } else {
            Routes::every(policy).unwrap()
        };
        let caller = Caller { tenant: "acme".into(), caller: "ada".into() };
        let door = Door::new(self.engine.clone(), Identity::Single(caller), routes);
        self.router = Router::new()
            .route("/charges", post(charge))
            .with_state(self.ledger.clone())
            .layer(OncewardLayer::new(self.on.cached(door)));
    }

    async fn send(&self, key: &str, body: String) -> Answer {
        send(&self.router, key, body).await
    }

    /// What a retry comes to, in the words of the table; everything that must hold beside it holds.
    pub(crate) async fn ends(&self, ask: Ask, at: Column, told: &str) -> &'static str {
        let key = format!("k{}", self.requests.fetch_add(1, Ordering::SeqCst));
        let body = serde_json::to_string(&ask).unwrap();
        let first = self.send(&key, body.clone()).await;
        let record = self.record(&key).await;
        let retry = self.send(&key, body.clone()).await;
        let ran = self.ledger.lock().unwrap().ran[&key].clone();
        let charged = self.ledger.lock().unwrap().charged.get(&key).cloned().unwrap_or_default();
        let is_one = at.commits == Commits::One;
        if is_one {
            // What is not stored was not written: the retry writes for the first time.
            let subject = Subject::new("acme", "charges", &key).unwrap();
            let version = self.engine.get(&subject).await.unwrap().map_or(0, |there| there.version);
            let expected = u64::from(ran.len() == 2 || ask.effect == Effect::Before);
            assert_eq!(version, expected, "{told}");
        }
        let end = match (ran.as_slice(), retry.code().as_str()) {
            ([_], "idempotency.response_not_stored") => "done",
            ([_], "idempotency.outcome_unknown") => "held",
            ([_], _) => {
                assert!(retry.has("idempotency-replayed", "true"), "{told}: {retry:?}");
                assert_eq!((retry.status, &retry.body), (first.status, &first.body), "{told}");
                "stored"
            }
            ([Some(one), Some(two)], _) if two.attempt == 2 => {
                assert!(one.attempt == 1 && two.fence > one.fence, "{told}");
                "attempt 2"
            }
            ([one, two], _) => {
                let attempts = [one, two].map(|attempt| attempt.map_or(1, |it| it.attempt));
                assert_eq!(attempts, [1, 1], "{told}");
                "released"
            }
            (more, _) => panic!("{told}: ran {} times", more.len()),
        };
        let is_open = ["attempt 2", "held"].contains(&end);
        // Of the first answer: what no retry can hear of is marked.
        let is_ours = matches!(ask.how, How::Panics | How::Breaks)
            || at.upstream && first.status == 502 && is_open;
        if !is_ours {
            let is_marked = is_open || end == "done" || at.upstream;
            assert_eq!(first.has("idempotency-stored", "false"), is_marked, "{told}: {first:?}");
            assert_eq!(first.status, ask.status, "{told}");
        }
        match (end, at.on_abandoned) {
            ("released", _) => assert_eq!(record, None, "{told}"),
            ("attempt 2", _) => assert_eq!(record, Some(RecordState::Failed), "{told}"),
            ("held", _) => assert_eq!(record, Some(RecordState::Unknown), "{told}"),
            _ => assert_eq!(record, Some(RecordState::Done), "{told}"),
        }
        if at.on_abandoned == OnAbandoned::Hold && end != "released" && !is_one {
            assert!(charged.len() <= 1, "{told}: charged {charged:?}");
        }
        assert!(charged.is_sorted_by(|a, b| a < b), "{told}: charged {charged:?}");
        end
    }

    /// How the record of a key stands, if there is one.
    async fn record(&self, key: &str) -> Option<RecordState> {
        let (scope, within) = ("POST /charges", ["ada"]);
        let key = Key::within(Kind::Request, "acme", scope, &within, key).unwrap();
        self.engine.look(&key).await.unwrap().map(|found| found.stored.record.state)
    }

    /// Sends what is not the payload of this key.
    pub(crate) async fn mismatch(&self, key: &str) -> Answer {
        let ask = Ask { how: How::Plain, status: 299, effect: Effect::After };
        self.send(key, serde_json::to_string(&ask).unwrap()).await
    }

    /// The actions that the audit has of requests.
    pub(crate) async fn audited(&self) -> Vec<String> {
        let list = List::Audit(AuditFilter::default());
        let Items::Audit(entries) = self.engine.list(list, None, 1_000).await.unwrap().items else {
            panic!("entries")
        };
        entries.into_iter().map(|entry| entry.entry.action.to_string()).collect()
    }

    pub(crate) fn charged(&self, key: &str) -> usize {
        self.ledger.lock().unwrap().charged.get(key).map_or(0, Vec::len)
    }

    /// Sends a request with this key.
    pub(crate) async fn ask(&self, key: &str, ask: Ask) -> Answer {
        self.send(key, serde_json::to_string(&ask).unwrap()).await
    }
}

/// Sends a charge.
pub(crate) async fn send(router: &Router, key: &str, body: String) -> Answer {
    let request = Request::post("/charges").header("content-type", "application/json");
    let request = request.header("idempotency-key", key).body(Body::from(body)).unwrap();
    let (head, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.ok().map(http_body_util::Collected::to_bytes);
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}
